"""A multiprocessor as the simulation sees it: time, the units that agents share, and what ops take.
Barriers and groups are the interpreter's (`machine.sync`), of which nobody keeps account.

Agents share three units. The tensor core runs products one after the other, as they are issued.
Threads share issue slots: a warpgroup alone fills `SOLO` of them. Copies come one after the other
at the rate of memory, and are there after its latency.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from tilewright.inspect.steady_loop import ENOUGH, Env, trips, value
from tilewright.ir.core import *
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.target import Target
from tilewright.machine.sync import Blocked, Cell, Clocks, Meeting
from tilewright.passes.layout.matrix_tiles import shape_of, split_of
from tilewright.passes.overlap import unit_times as rates
from tilewright.support.errors import CompileError

COPIES, WAITS = "copies", "waits"


@dataclass(frozen=True)
class Span:
    """An agent kept `unit` busy with `op`, which takes `work` cycles of it, or waited for `what`
    (`unit` is then `WAITS`)."""

    who: int
    unit: str
    op: Op
    start: float
    end: float
    work: float = 0.0
    size: float = 0.0  # bytes
    what: str = ""


@dataclass
class Who:
    """An agent: a warpgroup of a role (or fewer warps, where it has fewer)."""

    number: int
    role: str
    block: int
    instance: int
    place: int  # among the warpgroups of its instance
    peers: int  # how many these are
    warps: int
    starts: list[float] = field(default_factory=list)  # of the iterations asked about

    @property
    def leader(self) -> bool:
        return self.place == 0


Steps: TypeAlias = "Generator[float | Blocked | None, None, None]"  # until when, or for what


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.queue: list[tuple[float, int, Any]] = []
        self.count = 0
        self.waiting: list[tuple[Blocked, Steps]] = []

    def at(self, time: float, what: Any) -> None:
        """Call `what`, or let that agent go on."""
        self.count += 1
        heapq.heappush(self.queue, (time, self.count, what))

    def step(self) -> None:
        self.now, _, what = heapq.heappop(self.queue)
        asked = what() if callable(what) else next(what, None)
        if isinstance(asked, Blocked):
            self.waiting.append((asked, what))
        elif asked is not None:
            self.at(asked, what)
        for each in [w for w in self.waiting if w[0].ready()]:
            self.waiting.remove(each)
            self.at(self.now, each[1])


class Lane:
    """A unit that takes one after the other."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.free = 0.0

    def take(self, time: float) -> tuple[float, float]:
        start = max(self.clock.now, self.free)
        self.free = start + time
        return start, self.free


class Slots:
    """Issue slots that those who compute share evenly; nobody gets more than `rates.SOLO`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done = 0.0  # work that each job has had so far
        self.since = 0.0
        self.jobs: list[tuple[float, int]] = []
        self.version = 0

    def _advance(self) -> float:
        share = min(rates.SOLO, 1 / len(self.jobs)) if self.jobs else rates.SOLO
        self.done += (self.clock.now - self.since) * share
        self.since = self.clock.now
        return share

    def run(self, work: float) -> Blocked:
        self._advance()
        self.version += 1
        job = (self.done + work, self.version)
        heapq.heappush(self.jobs, job)
        self._plan()
        return Blocked(lambda: job not in self.jobs, lambda: "issue slots")

    def _plan(self) -> None:
        self.version += 1
        version = self.version
        if self.jobs:
            share = min(rates.SOLO, 1 / len(self.jobs))
            rest = max(0.0, self.jobs[0][0] - self.done) / share
            self.clock.at(self.clock.now + rest, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version == self.version:
            self._advance()
            heapq.heappop(self.jobs)
            self._plan()


class Multiprocessor:
    """Its units, barriers and agents, and what has happened."""

    loop: For  # that is asked about,
    env: Env  # with what is known there,
    trip: int  # and its iterations
    loops: set[int]  # it and those that run in step with it

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        target: Target,
        blocks: int,
        sizes: Mapping[str, int],
    ) -> None:
        self.kernel, self.target, self.blocks = kernel, target, blocks
        self.chip, self.sizes = target.chip, sizes
        self.clock = Clock()
        self.tensor, self.memory = Lane(self.clock), Lane(self.clock)
        self.slots = Slots(self.clock)
        self.clocks = Clocks(0, watching=False)
        self.cells: dict[Any, Cell] = {}
        self.counts: dict[str, int] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.turns: dict[tuple[int, str, int], list[int]] = {}
        self.spans: list[Span] = []
        self.crew: list[Who] = []
        self.open: set[int] = set()  # agents that have iterations to go
        self.known: Env = {}
        self.costs: dict[int, tuple[float, float]] = {}
        self.roles = list(walk_ops(kernel.body, Role))
        self.sharing: dict[int, float] = {}  # by a copy's id, how many blocks read the same
        for dim in program.dims:
            many = max(ENOUGH // max(dim.multiple_of, 1), 1) * max(dim.multiple_of, 1)
            self.known[dim.var] = sizes.get(dim.var.name, min(max(many, dim.min), dim.max or many))
        for op in walk_ops(kernel, BarrierInit):
            self.counts[op.barrier.buffer.name] = int(value(op.count, self.known))

    def partner(self, op: For) -> bool:
        """Whether a loop has to do with the one that is asked about: both name a barrier."""
        return bool(_barriers(op) & _barriers(self.loop)) or holds(op, self.loop)

    # what ops take

    def cost(self, op: Op) -> tuple[float, float]:
        """Cycles of (tensor core, threads), of the whole block's op."""
        if id(op) not in self.costs:
            self.costs[id(op)] = self._cost(op)
        return self.costs[id(op)]

    def _cost(self, op: Op) -> tuple[float, float]:
        if isinstance(op, Gemm):
            return self._product(op)
        if isinstance(op, (For, If)):
            turns = len(trips(op, self.env)) if isinstance(op, For) else 1
            inner = [self.cost(each) for body in bodies(op) for each in body]
            return turns * sum(t for t, _ in inner), turns * sum(h for _, h in inner)
        if isinstance(op, (Map, Reduce, Copy, Store, Fill, Scan, Relayout, Atomic, Intrinsic)):
            try:
                return 0.0, max(rates.cycles(op), self.through_shared(op))
            except (CompileError, TypeError, ValueError):
                return 0.0, 1.0
        return 0.0, 0.0

    def _product(self, op: Gemm) -> tuple[float, float]:
        m, n, k = shape_of(op)
        bits = op.a.dtype.bits
        if op.atom == "wgmma":
            held = op.c.buffer.layout
            threads = held.threads if isinstance(held, Fragment) else WARPGROUP
            split = split_of(op, threads, self.target)
            width = split.n if split is not None else min(n, 256)
            a_shared = op.a.buffer.space is Space.SHARED
            return rates.warpgroup_cycles(m, n, k, bits, width, a_shared), 0.0
        if op.atom == "mma":
            return m * n * k * bits / 16 / self.chip.warp_products, 0.0
        return 0.0, m * n * k / rates.LANES

    def through_shared(self, op: Op) -> float:
        if not isinstance(op, Copy):
            return 0.0
        sides = [r for r in (op.src, op.dst) if r.buffer.space is Space.SHARED]
        return sum(bytes_of(r) for r in sides) / rates.SHARED_BYTES

    def move(self, who: Who, op: Op, size: float) -> tuple[float, float]:
        """From or to global memory: when it is through, and when it is there."""
        shared = self.sharing.get(id(op), 1.0)
        time = max(size / shared / self.chip.dram_bytes, size / self.chip.l2_bytes)
        start, end = self.memory.take(time)
        self.spans.append(Span(who.number, COPIES, op, start, end, end - start, size))
        return end, end + rates.LATENCY

    def barrier(self, who: Who, region: Region, env: Env) -> Cell:
        name = region.buffer.name
        key = (who.block, name, *(int(value(start, env)) for start in region.starts))
        if key not in self.cells:
            self.cells[key] = Cell(self.clocks, name, self.counts.get(name, 1), 0, self)
        return self.cells[key]


def holds(op: Op, inner: Op) -> bool:
    return any(each is inner for each in walk_ops(op))


def _barriers(op: Op) -> set[str]:
    found = set()
    for inner in walk_ops(op):
        region = inner.barrier if isinstance(inner, (Wait, Arrive, Copy)) else None
        if region is not None:
            found.add(region.buffer.name)
        elif isinstance(inner, Sync) and inner.id is not None:
            found.add(f"named {inner.id}")
    return found


def bytes_of(region: Region) -> float:
    count = prod(int(e.value) if isinstance(e, Const) else 1 for e in region.extents)
    return count * region.dtype.bits / 8
