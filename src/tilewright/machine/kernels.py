"""Kernels of tile code and of thread code: what is known of them before they run.

A block is run by *agents*, one per outermost role instance (one for the block where a kernel has
no roles; in thread code, one for each warpgroup of a role that takes turns). The threads of an
agent run in step, agents are interleaved as the seed says, and asynchronous ops complete at
moments of the scheduler's choice. Lockstep hides nothing: accesses of shared memory that no
barrier orders are errors whatever the interleaving. In thread code a wait by one thread holds its
whole agent, so warps that wait for each other need roles.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod

from tilewright.ir.atoms import ATOMS
from tilewright.ir.messages import label_kernel
from tilewright.ir.tensor_map import MapHint
from tilewright.machine import (  # noqa: F401  (fill the table)
    flow,
    ops,
    thread_async,
    threads,
)
from tilewright.machine.core import *
from tilewright.machine.events import HazardWatch
from tilewright.machine.sanitizer import Sanitizer
from tilewright.machine.thread_agents import Plan, ThreadAgent, ThreadBlock
from tilewright.machine.thread_ops import ThreadWatch
from tilewright.machine.tile_agents import KNOWERS, TileAgent, TileBlock
from tilewright.support.errors import RunError


def outer_roles(body: Body) -> Iterator[Role]:
    for op in body:
        if isinstance(op, Role):
            yield op
        else:
            for inner in bodies(op):
                yield from outer_roles(inner)


def find_crews(kernel: Kernel, explicit: bool, parts: Callable[[Role], int]) -> list[Crew]:
    """The block's warps, cut wherever an outermost role or one of its parts begins or ends."""
    total = -(-prod(kernel.threads) // WARP)
    roles = list(outer_roles(kernel.body))
    pieces = []  # the first warp of each, their number, what to call it
    for role in roles:
        count = parts(role)
        share = max(role.warps // count, 1)
        for k in range(count):
            label = role.name if count == 1 else f"{role.name}[{k}]"
            pieces.append((role.first + k * share, share, label, role))
    crews = []
    edges = {0, total, *(f for f, *_ in pieces), *(f + share for f, share, *_ in pieces)}
    for first, last in pairwise(sorted(edges)):
        names = {}
        for start, share, label, role in pieces:
            if not start <= first < start + share:
                continue
            if last - first == share:
                names[label] = role
            elif explicit:
                raise RunError(
                    f"role {role.name} is cut in two by another role's warps",
                    loc=role.loc,
                    fix="let roles cover equal or disjoint ranges of warps",
                )  # else its agents come together for it
        idle = "warps outside roles" if roles else "all threads"
        crews.append(Crew(first, last - first, "/".join(names) or idle))
    return crews


def is_scheduled(kernel: Kernel) -> bool:
    """The kernel places asynchronous operations or roles itself."""
    return any(_schedules(op) for op in walk_ops(kernel))


def _schedules(op: Op) -> bool:
    if isinstance(op, (Role, BarrierInit, Arrive, Wait, Commit, WaitGroup)):
        return True
    if isinstance(op, Sync):
        return op.scope == "named"
    atom = getattr(op, "atom", None)
    return atom in ATOMS and ATOMS[atom].is_async


def is_explicit(kernel: Kernel) -> bool:
    """Every instruction is chosen, so every synchronisation must be there too."""
    tiles = list(walk_ops(kernel, Copy, Gemm))
    return bool(tiles) and all(op.atom is not None for op in tiles)


def needs_block_order(kernel: Kernel) -> bool:
    """Results may depend on the order of blocks."""
    for op in walk_ops(kernel):
        if isinstance(op, Intrinsic):
            reduces = op.name == "bulk_store" and "reduce" in op.fields
            found = reduces or op.name.startswith("atomic")
        elif isinstance(op, Copy):
            found = op.reduce is not None and op.dst.dtype.is_float
        else:
            found = isinstance(op, Atomic) and (op.result is not None or op.dst.dtype.is_float)
        if found:
            return True
    return False


class CompiledKernel(Compiled):
    """A kernel with its ops turned into steps."""

    def __init__(
        self, kernel: Kernel, options: Options, wrap: Callable[[Step], Step] | None = None
    ) -> None:
        kernel = label_kernel(kernel)
        self.kernel, self.options = kernel, options
        self.scheduled = is_scheduled(kernel) or prod(kernel.cluster) > 1
        explicit = options.explicit
        if explicit is None:
            explicit = self.scheduled and is_explicit(kernel)
        self.explicit, self.scheduled = explicit, self.scheduled or explicit
        evaluate = Evaluator(sanitize=options.sanitize, nan=options.nan)
        builder = Builder(kernel, evaluate, explicit=explicit, wrap=wrap)
        self.grid = [evaluate(g) for g in kernel.grid]
        self.body = builder.body(kernel.body)
        self.crews = find_crews(kernel, explicit, lambda role: role.instances)
        self.knowers = KNOWERS * len(self.crews)
        self.in_order = needs_block_order(kernel)
        self.families = builder.families

    def make_block(
        self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int
    ) -> TileBlock:
        return TileBlock(cluster, index, rank, linear)

    def make_agent(self, block: Block, crew: Crew) -> TileAgent:
        first = block.rank * self.knowers + KNOWERS * self.crews.index(crew)
        return TileAgent(block, crew, self.options.sanitize, first)

    def watches(self, agent: Agent) -> tuple[Watch, ...]:
        found: list[Watch] = []
        if self.scheduled:
            found.append(HazardWatch(typing.cast("TileAgent", agent), strict=self.explicit))
        if self.options.sanitize:
            races = agent.block.cluster.launch.races
            found.append(Sanitizer(agent, races, threads=not self.scheduled))
        return tuple(found)


# what only programs at stage THREAD contain
_LOWERED = frozenset(
    "warp_index elect descriptor wgmma mma ldmatrix stmatrix bulk_load bulk_store store_remote "
    "store_cluster "
    "load_shared store_shared load_global store_global store_packed wait_cluster".split()
)


_STORES = frozenset("store_global store_packed atomic atomic_of_warp".split())


def is_thread_ir(program: Program) -> bool:
    """Whether tile ops of `program` have become thread code."""
    return any(op.name in _LOWERED for k in program.kernels for op in walk_ops(k, Intrinsic))


def _parts(role: Role) -> int:
    """Agents that run a role: its instances; its warpgroups where they wait for each other, each at
    a barrier of its own."""
    groups, rest = divmod(role.warps, 4)
    apart = not all(op.id is None or isinstance(op.id, Const) for op in walk_ops(role.body, Sync))
    return groups if apart and role.instances == 1 and not rest else role.instances


class ThreadKernel(Compiled):
    """A kernel with its ops turned into steps."""

    def __init__(self, kernel: Kernel) -> None:
        kernel = label_kernel(kernel)
        self.kernel = kernel
        self.plan = Plan(kernel)
        self.scheduled = True
        self.knowers = -(-prod(kernel.threads) // WARP) * WARP
        evaluate = Evaluator()
        builder = Builder(kernel, evaluate, explicit=True, threads=True)
        intrinsics = list(walk_ops(kernel, Intrinsic))
        for op in walk_ops(kernel, Hint):
            if op.name == "tensor_map" and op.buffer is not None:
                said = MapHint.of(op)
                builder.maps[said.name] = TensorMap(op.buffer, said.swizzle, said.box, said.sizes)
        builder.registers = {
            a.buffer.name
            for op in intrinsics
            if op.name == "wgmma"
            for a in op.args
            if isinstance(a, Region)
        }
        # tensors of which two threads may disturb each other
        stores = [op.args[0] for op in intrinsics if op.name in _STORES]
        self.written = {
            *(b.name for op in walk_ops(kernel) for b in written_buffers(op)),
            *(a.buffer.name for a in stores if isinstance(a, Region)),
            *(builder.maps[op.fields["map"]].tensor.name
              for op in intrinsics if op.name == "bulk_store"),
        }  # fmt: skip
        self.grid = [evaluate(g) for g in kernel.grid]
        self.body = builder.body(kernel.body)
        self.crews = find_crews(kernel, False, _parts)
        self.in_order = needs_block_order(kernel)

    def make_block(
        self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int
    ) -> ThreadBlock:
        return ThreadBlock(cluster, index, rank, linear, self.plan, self.written)

    def make_agent(self, block: Block, crew: Crew) -> ThreadAgent:
        return ThreadAgent(typing.cast("ThreadBlock", block), crew)

    def watches(self, agent: Agent) -> tuple[Watch, ...]:
        return (ThreadWatch(),)
