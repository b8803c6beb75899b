"""Running a program at stage THREAD: every thread's code, as vectors over the threads of an agent.

A block is run by *agents*, one per outermost role instance (one for the block where a kernel has
no roles, one for each warpgroup of a role that takes turns); the threads of an agent run in step,
agents are interleaved as the seed says, and asynchronous ops complete at moments of the scheduler's
choice. Lockstep hides nothing: accesses of shared memory that no barrier orders are errors whatever
the interleaving (`thread_races.py`). A wait by one thread holds its whole agent, so warps that wait
for each other need roles.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Const
from tilewright.ir.messages import label_kernel
from tilewright.ir.op import (
    Hint,
    Intrinsic,
    Kernel,
    Op,
    Program,
    Role,
    Sync,
    walk_ops,
    written_buffers,
)
from tilewright.ir.tensor_map import MapHint
from tilewright.machine import thread_async, thread_moves  # noqa: F401  (fill the tables)
from tilewright.machine.lanes import Frame
from tilewright.machine.meaning import Blocked, Run
from tilewright.machine.memory import Array, Memory, describe_index
from tilewright.machine.sanitizer import BlockRaces, meets
from tilewright.machine.thread_async import Registers
from tilewright.machine.thread_memory import Plan, SharedBytes
from tilewright.machine.thread_ops import (
    WARP,
    TensorMap,
    ThreadBuilder,
    ThreadEvaluator,
    fields_of,
)
from tilewright.machine.thread_races import Clocks, Shadow, describe
from tilewright.machine.thread_sync import Cell, Groups, Meeting, Transfer
from tilewright.machine.tile_machine import Crew, find_crews, unravel
from tilewright.support.errors import RunError

# what only programs at stage THREAD contain
_LOWERED = frozenset(
    "warp_index elect descriptor wgmma mma ldmatrix stmatrix bulk_load bulk_store store_remote "
    "store_cluster "
    "load_shared store_shared load_global store_global store_packed wait_cluster".split()
)


_STORES = frozenset("store_global store_packed atomic atomic_of_warp".split())


def is_thread_ir(program: Program) -> bool:
    """Whether tile ops of `program` have become thread code."""
    return any(
        isinstance(op, Intrinsic) and op.name in _LOWERED
        for kernel in program.kernels
        for op in walk_ops(kernel)
    )


def _parts(role: Role) -> int:
    """Agents that run a role: its instances; its warpgroups where they wait for each other, each at
    a barrier of its own."""
    groups, rest = divmod(role.warps, 4)
    apart = any(
        isinstance(op, Sync) and op.id is not None and not isinstance(op.id, Const)
        for op in walk_ops(role.body)
    )
    return groups if apart and role.instances == 1 and not rest else role.instances


class ThreadKernel:
    """A kernel with its ops turned into steps."""

    def __init__(self, kernel: Kernel) -> None:
        kernel = label_kernel(kernel)
        self.kernel = kernel
        self.plan = Plan(kernel)
        self.evaluate = ThreadEvaluator()
        builder = ThreadBuilder(kernel, self.evaluate, explicit=True)
        intrinsics = [op for op in walk_ops(kernel) if isinstance(op, Intrinsic)]
        for op in walk_ops(kernel):
            if isinstance(op, Hint) and op.name == "tensor_map" and op.buffer is not None:
                said = MapHint.of(op)
                builder.maps[said.name] = TensorMap(op.buffer, said.swizzle, said.box, said.sizes)
        self.matrix = {
            a.buffer.name
            for op in intrinsics
            if op.name == "wgmma"
            for a in op.args
            if isinstance(a, Region)
        }
        # tensors of which two threads may disturb each other
        self.written = {
            b.name
            for op in walk_ops(kernel)
            for b in written_buffers(op)
            if b.space is Space.GLOBAL
        } | {
            builder.maps[fields_of(op)["map"]].tensor.name
            for op in intrinsics
            if op.name == "bulk_store"
        } | {
            a.buffer.name
            for op in intrinsics
            if op.name in _STORES
            for a in op.args[:1]
            if isinstance(a, Region) and a.buffer.space is Space.GLOBAL
        }  # fmt: skip
        self.grid = [self.evaluate(g) for g in kernel.grid]
        self.body: Run = builder.body(kernel.body)
        self.crews = find_crews(kernel, False, _parts)
        # blocks in linear order where results may depend on it, as for tiles
        self.in_order = any(
            op.name.startswith("atomic") or (op.name == "bulk_store" and "reduce=" in op.text)
            for op in intrinsics
        )


class ThreadAgent:
    """The threads of one role instance, or of a block, and what they have under way."""

    sanitize = False
    joint = True  # a thread runs its code whoever else does

    def __init__(self, block: ThreadBlock, crew: Crew) -> None:
        self.block = block
        self.crew = crew
        self.first_warp, self.last_warp = crew.first, crew.first + crew.warps - 1
        cluster = block.cluster
        self.clocks: Clocks = cluster.clocks
        total = prod(cluster.compiled.kernel.threads)
        self.ids: Array = np.arange(
            crew.first * WARP, min((crew.first + crew.warps) * WARP, total), dtype=np.int32
        )
        self.gids: Array = self.ids.astype(np.int64) + block.rank * cluster.stride
        self.positions: Array = np.arange(self.ids.size)
        self.matrix = cluster.compiled.matrix
        self.groups: dict[tuple[str, int], Groups] = {}
        self.in_flight: list[Registers] = []
        self.touched: dict[str, int] = {}
        self.fenced = 0
        self.unfenced: list[Array] = []  # units of shared memory
        self.apart = False  # threads of one warp may know different things
        self.blocked: Blocked | None = None
        self.frame = Frame(self, (self.ids.size,))  # type: ignore[arg-type]
        self.flow: Iterator[Any] = iter(())
        self.done = False
        self._time = 0

    def tick(self) -> int:
        self._time += 1
        return self._time

    def lane_ids(self, fr: Frame) -> Array:
        return np.broadcast_to(self.ids, fr.lanes)

    def __str__(self) -> str:
        return f"{self.crew.name} of block {self.block.index}"


class ThreadBlock:
    """One block: its shared memory, barriers and agents."""

    def __init__(self, cluster: ThreadCluster, index: tuple[int, ...], rank: int) -> None:
        self.cluster, self.index, self.rank = cluster, index, rank
        compiled = cluster.compiled
        self.shared = SharedBytes(compiled.plan)
        unit = compiled.plan.unit
        self.shadow = Shadow(
            cluster.clocks,
            compiled.plan.bytes // unit,
            unit,
            2 * len(compiled.crews),
            compiled.plan.owner,
        )
        self.cells: dict[tuple[str, tuple[int, ...]], Cell] = {}
        self.meetings: dict[str, Meeting] = {}
        self.incoming: list[tuple[Cell, Array, Op]] = []
        self.exited = False
        self.agents: list[ThreadAgent] = []

    @property
    def ids(self) -> Array:
        return np.concatenate([a.gids for a in self.agents])

    def end(self) -> None:
        """Nothing may come after a block that uses its memory."""
        clocks, ids, shadow = self.cluster.clocks, self.ids, self.shadow
        for cell, units, op in self.incoming if clocks.watching else ():
            mine = units[shadow.writer[units] == cell.entity]
            if mine.size and not clocks.has(ids, cell.entity, int(shadow.wrote[mine].max())):
                raise RunError(
                    f"block {self.index} ends while an asynchronous write of its memory may be "
                    "under way",
                    loc=op.loc,
                    fix="wait on the barrier that counts its bytes first",
                )
        for cell in self.cells.values():
            for thread, time, op in cell.remote:
                if not clocks.has(ids, thread, time):
                    raise RunError(
                        f"block {self.index} ends without knowing of an arrival on {cell}",
                        loc=op.loc,
                        fix="wait for the barrier's last phase, or synchronise the cluster, first",
                    )
        self.exited = True


class ThreadCluster:
    """Blocks that run together; a cluster of one where the kernel has none."""

    def __init__(self, launch: ThreadLaunch, compiled: ThreadKernel, blocks: int) -> None:
        self.launch, self.compiled = launch, compiled
        self.stride = -(-prod(compiled.kernel.threads) // WARP) * WARP
        self.clocks = Clocks(self.stride, blocks)
        self.blocks: list[ThreadBlock] = []
        self.pending: list[Transfer] = []
        self.meetings: dict[str, Meeting] = {}
        self.number = launch.clusters
        self.tensors: dict[str, Shadow] = {}

    def tensor_shadow(self, mem: Memory) -> Shadow:
        """What threads of this cluster did to a tensor, element by element."""
        found = self.tensors.get(mem.name)
        if found is None:
            shape = mem.shape

            def name(at: int) -> str:
                return describe_index(mem, tuple(map(int, np.unravel_index(at, shape))))

            found = self.tensors[mem.name] = Shadow(self.clocks, mem.data.size, 1, 0, name)
        return found

    def block(self, rank: int, fr: Frame) -> ThreadBlock:
        if not 0 <= rank < len(self.blocks):
            raise RunError(
                f"there is no block {rank} in a cluster of {len(self.blocks)}", loc=fr.loc()
            )
        return self.blocks[rank]

    def run(self, rng: random.Random) -> None:
        """Interleave the agents until all are done."""
        live = [agent for block in self.blocks for agent in block.agents]
        while live:
            ready = [a for a in live if a.blocked is None or a.blocked.ready()]
            # mostly as late as the waits allow, so that nothing works by luck
            if self.pending and (not ready or rng.random() < 0.1):
                self.pending[rng.randrange(len(self.pending))].complete()
                continue
            if not ready:
                raise self.deadlock(live)
            agent = ready[rng.randrange(len(ready))] if len(ready) > 1 else ready[0]
            agent.blocked = None
            try:
                agent.blocked = next(agent.flow)
            except StopIteration:
                live.remove(agent)
                self.leave(agent)
        while self.pending:
            self.pending[0].complete()

    def leave(self, agent: ThreadAgent) -> None:
        agent.done = True
        for groups in agent.groups.values():
            left = groups.open or (groups.closed[-1:] and groups.closed[-1])
            number = groups.committed + bool(groups.open)
            if left and not self.clocks.has(groups.owners, groups.entity, number):
                raise RunError(
                    f"{agent} ends while {describe(left[0].op)} may be under way",
                    loc=left[0].op.loc,
                    fix=f"commit it, and wait for its group (wait_group {groups.unit}) before "
                    "the end",
                )
        if all(a.done for a in agent.block.agents):
            agent.block.end()

    def deadlock(self, live: list[ThreadAgent]) -> RunError:
        notes = []
        for agent in live:
            op = agent.frame.op
            why = agent.blocked.why() if agent.blocked is not None else "nothing"
            notes.append(f"{agent} stands in {describe(op)}, waiting for {why}")
        first = live[0].frame.op
        return RunError(
            "deadlock: no agent can go on",
            loc=first.loc if first is not None else None,
            notes=tuple(notes),
        )


@dataclass
class ThreadLaunch:
    """One run of a program at stage THREAD."""

    memories: dict[str, Memory]
    values: dict[str, Any]
    seed: int
    say: Callable[[str], None]
    made: dict[str, Memory] = field(default_factory=dict)
    elected: int = 0  # the lane that `elect` picks
    clusters: int = 0  # that this kernel has begun
    races: BlockRaces | None = None

    def __post_init__(self) -> None:
        self.elected = self.seed * 13 % WARP

    def global_memory(self, buffer: Buffer, make: Callable[[], Memory]) -> Memory:
        if buffer.name not in self.made:
            self.made[buffer.name] = make()
        return self.made[buffer.name]

    def run(self, compiled: ThreadKernel, rng: random.Random) -> None:
        nobody: Any = None
        probe = Frame(nobody, ())
        probe.vars = dict(self.values)
        grid = tuple(int(g(probe)) for g in compiled.grid)
        if any(n <= 0 for n in grid):
            return
        kernel = compiled.kernel
        shape = (kernel.cluster or ()) + (1,) * (len(grid) - len(kernel.cluster or ()))
        if any(n % c for n, c in zip(grid, shape, strict=False)):
            raise RunError(
                f"a grid of {grid} does not divide into clusters of {shape}", loc=kernel.loc
            )
        counts = tuple(n // c for n, c in zip(grid, shape, strict=False))
        order = list(range(prod(counts)))
        if not compiled.in_order:
            rng.shuffle(order)
        self.clusters, self.races = 0, BlockRaces(prod(counts))
        for number in order:
            self.cluster(compiled, unravel(number, counts), shape[: len(grid)]).run(rng)
            self.clusters += 1

    def require_apart(
        self, cluster: ThreadCluster, mem: Memory, units: Array, kind: str, op: Op
    ) -> None:
        """No other cluster of blocks touches these elements of a tensor, unless atomically."""
        assert self.races is not None
        where = np.unravel_index(units, mem.shape) if mem.shape else ()
        wrong = self.races.access(mem, where, cluster.number, kind, op.loc)
        if wrong is not None:
            at = int(units[np.argmax(np.broadcast_to(wrong, units.shape))])
            place = tuple(map(int, np.unravel_index(at, mem.shape)))
            raise RunError(
                f"block-race: {describe_index(mem, place)} is {meets(kind, 'block')}",
                loc=op.loc,
                notes=self.races.lines.other(mem, kind, op.loc),
                fix="let blocks write disjoint elements, use atomics, or split the kernel in two",
            )

    def cluster(
        self, compiled: ThreadKernel, corner: tuple[int, ...], shape: tuple[int, ...]
    ) -> ThreadCluster:
        cluster = ThreadCluster(self, compiled, prod(shape))
        for rank in range(prod(shape)):
            inner = unravel(rank, shape)
            index = tuple(c * s + i for c, s, i in zip(corner, shape, inner, strict=True))
            block = ThreadBlock(cluster, index, rank)
            cluster.blocks.append(block)
            block.agents = [ThreadAgent(block, crew) for crew in compiled.crews]
            for agent in block.agents:
                self.enter(agent, compiled)
        return cluster

    def enter(self, agent: ThreadAgent, compiled: ThreadKernel) -> None:
        """Give the agent what it knows at the start: indices and tensors."""
        kernel, fr = compiled.kernel, agent.frame
        fr.vars.update(self.values)
        for var, i in zip(kernel.blocks, agent.block.index, strict=True):
            fr.vars[var.name] = var.dtype.numpy.type(i)
        rest = agent.ids
        for var, n in zip(kernel.thread_vars, kernel.threads, strict=True):
            fr.vars[var.name] = (rest % n).astype(var.dtype.numpy)
            rest = rest // n
        if kernel.rank is not None:
            fr.vars[kernel.rank.name] = kernel.rank.dtype.numpy.type(agent.block.rank)
        fr.bufs.update(self.memories)
        agent.flow = compiled.body(fr)
