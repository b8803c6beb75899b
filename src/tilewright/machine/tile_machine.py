"""Kernels of tile code: what is known of them before they run, and what watches them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import cast

from tilewright.ir.atoms import ATOMS
from tilewright.ir.messages import label_kernel
from tilewright.ir.op import (
    Arrive,
    Atomic,
    BarrierInit,
    Commit,
    Copy,
    Gemm,
    Kernel,
    Op,
    Role,
    Sync,
    Wait,
    WaitGroup,
    walk_ops,
)
from tilewright.machine import flow, ops, threads  # noqa: F401  (fill the table)
from tilewright.machine.engine import find_crews
from tilewright.machine.evaluate import Evaluator
from tilewright.machine.hazards import HazardWatch
from tilewright.machine.meaning import Builder, Step
from tilewright.machine.sanitizer import Sanitizer
from tilewright.machine.state import (
    Agent,
    Block,
    Cluster,
    Compiled,
    Crew,
    Options,
    Watch,
)
from tilewright.machine.tile_agents import KNOWERS, TileAgent, TileBlock


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
    tiles = [op for op in walk_ops(kernel) if isinstance(op, (Copy, Gemm))]
    return bool(tiles) and all(op.atom is not None for op in tiles)


def needs_block_order(kernel: Kernel) -> bool:
    for op in walk_ops(kernel):
        if isinstance(op, Atomic) and (op.result is not None or op.dst.buffer.dtype.is_float):
            return True
        if isinstance(op, Copy) and op.reduce is not None and op.dst.buffer.dtype.is_float:
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
        self.explicit = explicit
        self.scheduled = self.scheduled or explicit
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
            found.append(HazardWatch(cast("TileAgent", agent), strict=self.explicit))
        if self.options.sanitize:
            races = agent.block.cluster.launch.races
            found.append(Sanitizer(agent, races, threads=not self.scheduled))
        return tuple(found)
