"""Running a program at stage THREAD: every thread's code, as vectors over the threads of an agent.

A block is run by *agents*, one per outermost role instance (one for the block where a kernel has
no roles, one for each warpgroup of a role that takes turns); the threads of an agent run in step,
agents are interleaved as the seed says, and asynchronous ops complete at moments of the scheduler's
choice. Lockstep hides nothing: accesses of shared memory that no barrier orders are errors whatever
the interleaving (`thread_races.py`). A wait by one thread holds its whole agent, so warps that wait
for each other need roles.
"""

from __future__ import annotations

from math import prod
from typing import cast

from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Const
from tilewright.ir.messages import label_kernel
from tilewright.ir.op import (
    Hint,
    Intrinsic,
    Kernel,
    Program,
    Role,
    Sync,
    walk_ops,
    written_buffers,
)
from tilewright.ir.tensor_map import MapHint
from tilewright.machine import flow, ops, thread_async, threads  # noqa: F401  (fill the table)
from tilewright.machine.engine import find_crews
from tilewright.machine.evaluate import Evaluator
from tilewright.machine.meaning import Builder, TensorMap
from tilewright.machine.state import WARP, Block, Cluster, Compiled, Crew
from tilewright.machine.thread_agents import ThreadAgent, ThreadBlock
from tilewright.machine.thread_memory import Plan
from tilewright.machine.thread_ops import gather, scatter

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


class ThreadKernel(Compiled):
    """A kernel with its ops turned into steps."""

    def __init__(self, kernel: Kernel) -> None:
        kernel = label_kernel(kernel)
        self.kernel = kernel
        self.plan = Plan(kernel)
        self.scheduled = True
        self.knowers = -(-prod(kernel.threads) // WARP) * WARP
        evaluate = Evaluator(load=gather)
        builder = Builder(kernel, evaluate, explicit=True, threads=True, scatter=scatter)
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
            builder.maps[op.fields["map"]].tensor.name
            for op in intrinsics
            if op.name == "bulk_store"
        } | {
            a.buffer.name
            for op in intrinsics
            if op.name in _STORES
            for a in op.args[:1]
            if isinstance(a, Region) and a.buffer.space is Space.GLOBAL
        }  # fmt: skip
        self.grid = [evaluate(g) for g in kernel.grid]
        self.body = builder.body(kernel.body)
        self.crews = find_crews(kernel, False, _parts)
        # blocks in linear order where results may depend on it, as for tiles
        self.in_order = any(
            op.name.startswith("atomic") or (op.name == "bulk_store" and "reduce=" in op.text)
            for op in intrinsics
        )

    def make_block(
        self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int
    ) -> ThreadBlock:
        return ThreadBlock(cluster, index, rank, linear, self.plan, self.written)

    def make_agent(self, block: Block, crew: Crew) -> ThreadAgent:
        return ThreadAgent(cast("ThreadBlock", block), crew, self.matrix)
