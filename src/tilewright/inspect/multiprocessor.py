"""The loop in which a kernel spends its time and what is known of it before a launch, and the
multiprocessor that runs it as the simulation sees it.

Of the loop: values of expressions, trip counts, and how many of the blocks that run at once read
the same tile. What is not known is taken as large (`ENOUGH`).

Of the multiprocessor: time, the units that agents share, and what ops take. The tensor core runs
products one after the other, as they are issued. Threads share issue slots: a warpgroup alone fills
`SOLO` of them, fewer warps as much less, products of lanes all. What they read of shared memory
comes at its rate, to each thread that holds it, and exponentials and quotients at that of the
special functions. Copies come one after the other, in whole lines, at the rate of memory, of which
a small grid has more for each block, and are there after its latency. Barriers and groups are the
interpreter's (`machine.sync`), of which nobody keeps account.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from operator import truediv
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.ir.analysis.lines import whole_lines
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.machine.sync import Blocked, Cell, Clocks, Meeting
from tilewright.passes.layout.matrix_tiles import shape_of, split_of
from tilewright.passes.lower.stamp_ops import is_quiet
from tilewright.passes.overlap import unit_times as rates

ENOUGH = 1 << 13

Env: TypeAlias = dict[Any, Any]  # of variables, and of scalars by name

_BIN = {**FOLD, "/": truediv}


def value(e: Expr, env: Env) -> Any:
    match e:
        case Const():
            return e.value
        case Var():
            return env.get(e, ENOUGH)
        case Bin() | Cmp():
            try:
                return _BIN[e.op](value(e.a, env), value(e.b, env))
            except (TypeError, ValueError, ArithmeticError):
                return 0
        case Select():
            return value(e.a if value(e.cond, env) else e.b, env)
        case Cast():
            return value(e.a, env)
        case Load():
            return env.get(e.buffer.name, ENOUGH)
        case Call(name="neg"):
            return -value(e.args[0], env)
        case Call(name="not"):
            return not value(e.args[0], env)
    return ENOUGH


def trips(op: For, env: Env) -> range:
    start, stop, step = (int(value(e, env)) for e in (op.start, op.stop, op.step))
    return range(start, stop, max(step, 1))


# ── what is asked about ──────────────────────────────────────────────────────────────────────


def _works(op: Op) -> bool:
    return any(
        isinstance(inner, (Gemm, Reduce)) or (isinstance(inner, Map) and not _only_moves(inner))
        for inner in walk_ops(op)
    )


def _only_moves(op: Map) -> bool:
    """A map that copies, or loads what copies ask for: who fills rings has such ones."""
    stored = [i.value for i in walk_ops(op.body, Store)]
    return op.atom is not None or all(isinstance(e, Load) and e.buffer.is_global for e in stored)


def _asked(op: Op) -> bool:
    """A loop that has products, or waits for what runs ahead, and computes."""
    if not isinstance(op, For) or op.kind == "unroll" or is_quiet(op) or not _works(op):
        return False
    return any(isinstance(i, (Gemm, Wait, WaitGroup)) for i in walk_ops(op.body))


def computing_loops(body: Body) -> Iterator[For]:
    """Loops with products or rings that have no such loop inside."""
    for op in body:
        found = [each for inner in bodies(op) for each in computing_loops(inner)]
        if found:
            yield from found
        elif isinstance(op, For) and _asked(op):
            yield op


def _dry(body: Body, env: Env, seen: dict[int, int]) -> None:
    """Trip counts of loops as they are reached first."""
    for op in body:
        if isinstance(op, Let):
            env[op.var] = value(op.value, env)
        elif isinstance(op, Alloc) and op.init is not None:
            env[op.buffer.name] = value(op.init, env)
        elif isinstance(op, For):
            values = trips(op, env)
            seen.setdefault(id(op), len(values))
            env[op.var] = values[0] if values else value(op.start, env)
            _dry(op.body, env, seen)
        elif not isinstance(op, Map):
            for inner in bodies(op):
                _dry(inner, env, seen)


def steady_loop(kernel: Kernel, known: Env) -> tuple[For, Env, int] | None:
    """The innermost loop with products or rings that takes longest, with what block indices are
    taken to be, and its trip count. Blocks of one grid may differ: the longest counts."""
    loops = list(computing_loops(kernel.body))
    best: tuple[float, For, Env, int] | None = None
    for last in (False, True):
        env = dict(known)
        for var, size in zip(kernel.blocks, kernel.grid, strict=True):
            env[var] = int(value(size, known)) - 1 if last else 0
        if kernel.rank is not None:
            env[kernel.rank] = 0
        env.update((var, 0) for var in kernel.thread_vars)
        seen: dict[int, int] = {}
        _dry(kernel.body, dict(env), seen)
        for loop in loops:
            count = seen.get(id(loop), 0)
            cost = count * sum(rates.cycles(op) for op in loop.body)
            if count and (best is None or cost > best[0]):
                best = (cost, loop, env, count)
    return best[1:] if best is not None else None


# ── what blocks share ────────────────────────────────────────────────────────────────────────


def sharing(kernel: Kernel, env: Env, running: int, sizes: set[str]) -> dict[int, float]:
    """How many of the first `running` blocks read the same tile, by the copy's id: one of them
    finds it in memory, the others in the L2 cache. All of them, where the grid is not known; it
    may depend on `sizes`."""
    if any(v.name not in sizes for g in kernel.grid for v in variables(g)):
        return {id(op): float(running) for op in walk_ops(kernel, Copy)}
    counts = [max(1, int(value(g, env))) for g in kernel.grid]
    running = min(running, prod(counts))
    values: dict[Var, Any] = {v: np.int64(n) for v, n in env.items() if isinstance(n, int)}
    rest = np.arange(running, dtype=np.int64)
    rank: Any = np.zeros(running, np.int64)
    for axis in reversed(range(len(counts))):
        at = rest // prod(counts[:axis]) % counts[axis]
        values[kernel.blocks[axis]] = at
        if axis < len(kernel.cluster):
            rank = rank * kernel.cluster[axis] + at % kernel.cluster[axis]
    if kernel.rank is not None:
        values[kernel.rank] = rank
    found: dict[int, float] = {}
    _share(kernel.body, values, running, found)
    return found


def _share(body: Body, values: dict[Var, Any], running: int, found: dict[int, float]) -> None:
    def now(e: Expr) -> Any:
        try:
            return evaluate(e, values)
        except (CompileError, KeyError):
            return np.int64(0)

    for op in body:
        if isinstance(op, Let):
            values[op.var] = now(op.value)
        elif isinstance(op, For):
            values[op.var] = now(op.start)
        if isinstance(op, Copy) and op.src.buffer.is_global:
            starts = [np.broadcast_to(now(s), (running,)).tolist() for s in op.src.starts]
            found[id(op)] = running / max(1, len(set(zip(*starts, strict=True))))
        elif isinstance(op, Map) and op.atom is not None:
            asked = read_variables(op.body) - set(op.vars)
            told = [np.broadcast_to(now(v), (running,)).tolist() for v in asked]
            found[id(op)] = running / max(1, len(set(zip(*told, strict=True))))
        elif not isinstance(op, Map):
            for inner in bodies(op):
                _share(inner, values, running, found)


# ── units and agents ─────────────────────────────────────────────────────────────────────────────


COPIES, WAITS = "copies", "waits"
SPECIAL, SHARED = "special functions", "shared memory"
SPECIALS = 16  # special functions of a cycle
ISSUE = 50  # cycles of the thread that asks for a box: latent attention loads 8 of them, in 440
PANEL = 128  # bytes of a box's row at most, where rows are swizzled
_SPECIAL = re.compile("a?(sin|cos|tan)h?|exp.*|log.*|r?sqrt|sigmoid|erf|gelu|pow")


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


class Cost(NamedTuple):
    """Cycles of units."""

    tensor: float = 0.0
    threads: float = 0.0
    shared: float = 0.0
    special: float = 0.0
    chain: float = 0.0  # of instructions of a warp, each of which adds to the result of the last
    solo: float = rates.SOLO  # of the issue slots, what one warpgroup fills


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
    """Issue slots that those who compute share evenly; nobody gets more than warps can fill."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.since = 0.0
        self.jobs: dict[int, tuple[float, float]] = {}  # work that is left, and the most of a cycle
        self.version = 0

    def _shares(self) -> dict[int, float]:
        """Of a cycle: those who cannot use an even part leave the rest to others."""
        left, shares = 1.0, dict[int, float]()
        ranked = sorted(self.jobs, key=lambda job: self.jobs[job][1])
        for number, job in enumerate(ranked):
            shares[job] = min(self.jobs[job][1], left / (len(ranked) - number))
            left -= shares[job]
        return shares

    def _advance(self) -> None:
        for job, share in self._shares().items():
            rest, most = self.jobs[job]
            self.jobs[job] = rest - (self.clock.now - self.since) * share, most
        self.since = self.clock.now

    def run(self, work: float, most: float = rates.SOLO) -> Blocked:
        self._advance()
        self.version += 1
        job = self.version
        self.jobs[job] = work, most
        self._plan()
        return Blocked(lambda: job not in self.jobs, lambda: "issue slots")

    def _plan(self) -> None:
        self.version += 1
        version = self.version
        if self.jobs:
            ends = {job: max(0.0, self.jobs[job][0]) / s for job, s in self._shares().items()}
            first = min(ends, key=lambda job: ends[job])
            self.clock.at(self.clock.now + ends[first], lambda: self._end(version, first))

    def _end(self, version: int, job: int) -> None:
        if version == self.version:
            self._advance()
            del self.jobs[job]
            self._plan()


class Multiprocessor:
    """Its units, barriers and agents, and what has happened."""

    loop: For  # that is asked about,
    env: Env  # with what is known there,
    trip: int  # and its iterations
    loops: set[int]  # it and those that run in step with it
    rounds, whole = 10, False  # iterations that are walked; also what comes after the loop

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
        self.shared = Lane(self.clock)
        self.slots = Slots(self.clock)
        self.clocks = Clocks(0, watching=False)
        self.cells: dict[Any, Cell] = {}
        self.counts: dict[str, int] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.turns: dict[tuple[int, str, int], list[int]] = {}
        self.spans: list[Span] = []
        self.partitions: list[Who] = []
        self.open: set[int] = set()  # agents that have iterations to go
        self.known: Env = {}
        self.costs: dict[int, Cost] = {}
        self.roles = list(walk_ops(kernel.body, Role))
        self.sharing: dict[int, float] = {}  # by a copy's id, how many blocks read the same
        self.lines: dict[int, float] = {}  # by a copy's id, bytes of whole lines for one of it
        self.busy = 1.0  # of the multiprocessors, which have memory's rate together
        for dim in program.dims:
            many = max(ENOUGH // max(dim.multiple_of, 1), 1) * max(dim.multiple_of, 1)
            self.known[dim.var] = sizes.get(dim.var.name, min(max(many, dim.min), dim.max or many))
        for op in walk_ops(kernel, BarrierInit):
            self.counts[op.barrier.buffer.name] = int(value(op.count, self.known))

    def partner(self, op: For) -> bool:
        """Whether a loop has to do with the one that is asked about: both name a barrier."""
        return bool(_barriers(op) & _barriers(self.loop)) or holds(op, self.loop)

    # what ops take

    def cost(self, op: Op) -> Cost:
        """Of the whole block's op."""
        if id(op) not in self.costs:
            self.costs[id(op)] = self._cost(op)
        return self.costs[id(op)]

    def _cost(self, op: Op) -> Cost:
        if isinstance(op, Gemm):
            return self._product(op)
        if isinstance(op, (For, If)):
            count = len(trips(op, self.env)) if isinstance(op, For) else 1
            inner = [self.cost(each) for body in bodies(op) for each in body]
            sums = (count * sum(each) for each in zip(*(c[:-1] for c in inner), strict=True))
            return Cost(*sums)._replace(solo=max((c.solo for c in inner), default=rates.SOLO))
        if isinstance(op, (Map, Reduce, Copy, Store, Fill, Scan, Relayout, Atomic, Intrinsic)):
            try:
                work = rates.cycles(op, guards=False)
                return Cost(0.0, work, _through_shared(op), _specials(op))
            except (CompileError, TypeError, ValueError):
                return Cost(0.0, 1.0)
        return Cost()

    def _product(self, op: Gemm) -> Cost:
        m, n, k = shape_of(op)
        bits = op.a.dtype.bits
        if op.atom == "wgmma":
            held = op.c.buffer.layout
            threads = held.threads if isinstance(held, Fragment) else WARPGROUP
            split = split_of(op, threads, self.target)
            width = split.n if split is not None else min(n, 256)
            a_shared = op.a.buffer.is_shared
            return Cost(rates.warpgroup_cycles(m, n, k, bits, width, a_shared))
        if op.atom == "mma":
            chain = k / (256 // bits) * rates.CHAIN
            return Cost(m * n * k * bits / 16 / self.chip.warp_products, chain=chain)
        return Cost(0.0, m * n * k / rates.LANES, solo=1.0)

    def move(
        self, who: Who, op: Op, size: float, latency: float = rates.LATENCY
    ) -> tuple[float, float]:
        """From or to global memory: when it is through, and when it is there. Few multiprocessors
        have more of memory's rate each; the engine moves whole lines."""
        shared, chip = self.sharing.get(id(op), 1.0), self.chip
        if id(op) not in self.lines:
            self.lines[id(op)] = lines_of(op)
        lines = size * self.lines[id(op)]
        time = max(size / shared / chip.dram_bytes, lines / chip.l2_bytes) * self.busy
        time = max(time, lines / rates.ENGINE)
        start, end = self.memory.take(time)
        self.spans.append(Span(who.number, COPIES, op, start, end, end - start, size))
        return end, end + latency

    def barrier(self, who: Who, region: Region, env: Env) -> Cell:
        name = region.buffer.name
        key = (who.block, name, *(int(value(start, env)) for start in region.starts))
        if key not in self.cells:
            self.cells[key] = Cell(self.clocks, name, self.counts.get(name, 1), 0, self)
        return self.cells[key]


def _through_shared(op: Op) -> float:
    """Cycles of shared memory for what threads read and write there."""
    size = 0.0
    if isinstance(op, Copy):
        for side, other in ((op.src, op.dst), (op.dst, op.src)):
            held = other.buffer.layout
            times = _readers(held) if isinstance(held, Fragment) and side is op.src else 1.0
            size += bytes_of(side) * times * side.buffer.is_shared
    elif isinstance(op, Map):
        extents = {
            v: e.value for v, e in zip(op.vars, op.extents, strict=True) if isinstance(e, Const)
        }
        for inner in walk_ops(op.body):
            for at in (*op_loads(inner), *([inner] if isinstance(inner, Store) else ())):
                own = {v for e in at.indices for v in variables(e)} & extents.keys()
                points = prod(int(extents[v]) for v in own)
                size += points * at.buffer.dtype.bits / 8 * at.buffer.is_shared
    return size / rates.SHARED_BYTES


def _readers(held: Fragment) -> float:
    """How often each element is read. A load of 16 bytes takes half as long where lanes that differ
    in their two lowest bits read the same."""
    pairs = len({held.coord(lane, 0) for lane in range(4)}) < 4
    return held.replication / (1 + (pairs and held.values >= 4))


def lines_of(op: Op) -> float:
    """For a byte that a copy moves to or from shared memory, those of whole lines."""
    if not isinstance(op, Copy):
        return 1.0
    far, near = (op.src, op.dst) if op.src.buffer.is_global else (op.dst, op.src)
    if not (far.buffer.is_global and near.buffer.is_shared):
        return 1.0
    return whole_lines(far, near) / max(1.0, bytes_of(far))


def _specials(op: Op) -> float:
    """Cycles of the special functions."""
    if not isinstance(op, Map):
        return 0.0
    points = prod(int(e.value) if isinstance(e, Const) else 1 for e in op.extents)
    asked = [part for inner in walk_ops(op.body) for e in expressions(inner) for part in walk(e)]
    count = sum(
        bool(_SPECIAL.fullmatch(part.name.strip("_")))
        if isinstance(part, Call)
        else isinstance(part, Bin) and part.op == "/" and part.dtype.is_float
        for part in asked
    )
    return count * points / SPECIALS


def boxes_of(op: Copy) -> int:
    """Boxes that the copy engine is asked for."""
    side = op.src if op.src.buffer.is_shared else op.dst
    row = int(e.value) if isinstance(e := side.extents[-1], Const) else 1
    panels = -(-row * side.dtype.bits // 8 // PANEL)
    return max(1, panels) if isinstance(side.buffer.layout, ComposedLayout) else 1


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
