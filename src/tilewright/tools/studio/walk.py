"""A block's way through a kernel, from its first op to its last: the simulation that `explain()`
draws two iterations of, followed to the end, with the elements that every step touches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.inspect.multiprocessor import (
    COPIES,
    ENOUGH,
    WAITS,
    Env,
    Span,
    Steps,
    Who,
    bytes_of,
    value,
)
from tilewright.inspect.multiprocessor import steady_loop as find_loop
from tilewright.inspect.simulate import EACH_OTHER, EVENTS, Over, Simulation, Walk
from tilewright.inspect.timeline import role_name
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.ir.text import print_op
from tilewright.passes.overlap import unit_times as rates

STORES = "stores"
MORE = 6  # iterations of a second tile that are walked
FIRST, LAST = 12, 4  # iterations that a recording keeps; those between repeat the steady state
POINTS = 1 << 14  # of a map whose box is looked for

Box = tuple[
    str, tuple[int | None, ...], tuple[int, ...]
]  # buffer, starts (None: data say), extents


class _Spans(list[Span]):
    """Spans, each noted while its agent stands where it began."""

    def __init__(self, walk: WholeWalk) -> None:
        super().__init__()
        self.walk = walk

    def append(self, span: Span) -> None:
        super().append(span)
        self.walk.note(span)


class _Follower(Walk):
    """An agent that says at which op it stands. Where data in memory decide, it goes to where the
    main loop is: the block is taken to have work."""

    sim: WholeWalk
    at: Op | None = None
    since = 0.0

    def __init__(self, sim: WholeWalk, who: Who, env: Env) -> None:
        super().__init__(sim, who, env)
        self.data: set[Any] = set()  # variables, and scalars by name, that memory gives

    def is_data(self, e: Expr) -> bool:
        held = any(not x.buffer.is_local or x.buffer.name in self.data for x in loads(e))
        return held or any(v in self.data for v in variables(e))

    def on_let(self, op: Let) -> None:
        super().on_let(op)
        self.data |= {op.var} if self.is_data(op.value) else set()

    def on_store(self, op: Store) -> None:
        super().on_store(op)
        self.data |= {op.buffer.name} if self.is_data(op.value) else set()

    def on_if(self, op: If) -> Steps:
        if not self.is_data(op.cond):
            yield from super().on_if(op)
            return
        self.sim.guessed = True
        sides = (op.then, op.orelse)
        yield from self.body(max(sides, key=lambda side: sum(1 for _ in walk_ops(side))))

    def op(self, op: Op) -> Steps:
        self.at, self.since = op, self.now
        yield from super().op(op)

    def on_copy(self, op: Copy) -> Steps:
        yield from super().on_copy(op)
        if op.atom == "remote_store" and op.barrier is not None and self.who.leader:
            # blocks of a cluster do alike: as much as this one sends comes to it
            sim = self.sim
            sim.barrier(self.who, op.barrier, self.env).count_bytes(int(bytes_of(op.src)), op)


class WholeWalk(Simulation):
    """The blocks of a multiprocessor until they end, or begin with their next tile."""

    whole = True

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        target: Target,
        blocks: int,
        sizes: Mapping[str, int],
    ) -> None:
        super().__init__(program, kernel, target, blocks, sizes)
        self.spans = _Spans(self)
        self.walks: dict[int, _Follower] = {}
        self.notes: list[tuple[int, int, tuple[Box, ...], tuple[Box, ...]]] = []
        self.flips: list[tuple[float, int, str, int, int]] = []  # time, block, barrier, slot, phase
        self.seen: dict[Any, int] = {}
        self.inside: dict[int, list[For]] = {}  # loops around an op that are told of
        self.makes: dict[int, list[Any]] = {}  # what an op's indices are made of
        self.boxes: dict[Any, tuple[tuple[Box, ...], tuple[Box, ...]]] = {}
        self.ended: set[int] = set()  # agents
        self.cut = self.guessed = False  # some agent was stopped; went where data say

    def run(self) -> WholeWalk:
        """Wherever it stops: `finished` says whether the block came to its end."""
        found = find_loop(self.kernel, self.known)
        self.has_loop = found is not None
        if found is not None:
            self.loop, self.env, self.trip = found
            self.loops = {id(self.loop), *self.others()}
            self.rounds = self.trip + MORE
        else:
            self.env, self.trip, self.loops, self.rounds = dict(self.known), 0, set(), EVENTS
            self.env |= dict.fromkeys((*self.kernel.blocks, *self.kernel.thread_vars), 0)
            self.env |= {} if self.kernel.rank is None else {self.kernel.rank: 0}
        self.iterated = self.loops | {id(loop) for loop in self.feeders()}
        for loop in walk_ops(self.kernel, For):
            if id(loop) in self.iterated or loop.kind == "persistent":
                for op in walk_ops(loop):
                    self.inside.setdefault(id(op), []).append(loop)
        self.walk()
        for who, op in self.standing():  # a wait that does not end
            what = op.barrier.buffer.name if isinstance(op, Wait) else EACH_OTHER
            since, until = self.walks[who.number].since, self.now + rates.LATENCY
            self.spans.append(Span(who.number, WAITS, op, since, until, what=what))
        return self

    def feeders(self) -> Iterator[For]:
        """The loops that fill the main loop's rings: innermost ones that name its barriers."""
        for loop in walk_ops(self.kernel, For) if self.has_loop else ():
            inner = any(isinstance(op, For) for op in walk_ops(loop) if op is not loop)
            if not inner and loop.kind != "persistent" and super().partner(loop):
                yield loop

    def partner(self, op: For) -> bool:
        return not self.has_loop or super().partner(op)

    def agent(self, who: Who) -> Steps:
        walk = self.walks[who.number] = _Follower(self, who, dict(self.env))
        try:
            yield from walk.body(self.kernel.body)
        except Over:
            self.cut = True
        self.open.discard(who.number)
        self.ended.add(who.number)

    def in_loop(self) -> bool:
        """Whether the main loop was walked; then its agents, each with its first tile alone."""
        self.agents = [who for who in self.partitions if len(who.starts) > 1]
        for who in self.agents:
            del who.starts[self.trip + 1 :]
        return self.has_loop and bool(self.agents)

    @property
    def finished(self) -> bool:
        return not any(who.number in self.open for who in self.partitions)

    def standing(self) -> Iterator[tuple[Who, Op]]:
        """Agents that cannot go on, and the op at which they stand."""
        if self.clock.queue or self.cut or self.finished:
            return  # it was given up, nobody hangs
        for who in self.partitions:
            at = self.walks[who.number].at if who.number in self.walks else None
            if who.number not in self.ended and at is not None:
                yield who, at

    def stepped(self) -> None:
        for key, cell in self.cells.items():
            if self.seen.get(key, 0) != cell.phase:
                self.seen[key] = cell.phase
                self.flips.append((self.now, key[0], key[1], key[2] if key[2:] else 0, cell.phase))

    @property
    def now(self) -> float:
        return self.clock.now

    # what spans are about

    def note(self, span: Span) -> None:
        """Iteration, tile, and what the op reads and writes."""
        env = self.walks[span.who].env
        iteration = tile = -1
        for loop in self.inside.get(id(span.op), ()):
            first, step = (int(value(e, env)) for e in (loop.start, loop.step))
            number = (int(env.get(loop.var, first)) - first) // max(step, 1)
            if id(loop) in self.iterated:
                iteration = number
            else:
                tile = number
        self.notes.append((iteration, tile, *self.touched(span.op, env)))

    def touched(self, op: Op, env: Env) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
        """Once for all iterations in which what the op's indices are made of is the same."""
        if id(op) not in self.makes:
            told = [e for inner in walk_ops(op) for e in expressions(inner)]
            names = {v for e in told for v in variables(e)} | {
                load.buffer.name for e in told for load in loads(e) if load.buffer.is_local
            }
            self.makes[id(op)] = sorted(names, key=str)
        key = id(op), *(env.get(v) for v in self.makes[id(op)])
        if key not in self.boxes:
            self.boxes[key] = self.find(op, env)
        return self.boxes[key]

    def find(self, op: Op, env: Env) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
        if isinstance(op, (Wait, Arrive)):
            return (self.box(op.barrier, env),), ()
        if isinstance(op, (Map, For, If)):
            return self.points(op, env)
        reads, writes = (
            tuple(self.box(r, env) for r in regions(op, reads=not w, writes=w))
            for w in (False, True)
        )
        return reads, writes

    def box(self, region: Region, env: Env) -> Box:
        starts = tuple(int(value(e, env)) if _known(e, env) else None for e in region.starts)
        extents = tuple(int(value(e, env)) for e in region.extents)
        return region.buffer.name, starts, extents

    def points(self, op: Op, env: Env) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
        """Of a map, the box around all elements that it reads, and writes."""
        own: dict[Var, Any] = {}
        sizes: list[int] = []
        for map_ in walk_ops(op):
            if isinstance(map_, Map):
                sizes += [max(1, int(value(e, env))) for e in map_.extents]
                own |= dict.fromkeys(map_.vars)
            elif isinstance(map_, For):
                own[map_.var] = None
                sizes.append(max(1, len(range(*(int(value(e, env)) for e in
                                                (map_.start, map_.stop, map_.step))))))  # fmt: skip
        if prod(sizes) > POINTS:
            sizes = [min(2, n) for n in sizes]  # their corners
            ends = [int(value(e, env)) for n in walk_ops(op, Map) for e in n.extents]
            steps = [np.array([0, max(0, e - 1)])[:n] for n, e in zip(sizes, ends, strict=False)]
        else:
            steps = [np.arange(n) for n in sizes]
        values = {v: np.int64(n) for v, n in env.items() if isinstance(v, Var)}
        for axis, var in enumerate(own):
            if axis < len(steps):
                shape = [1] * len(steps)
                shape[axis] = -1
                values[var] = steps[axis].reshape(shape)
        found: tuple[dict[Box, None], dict[Box, None]] = {}, {}
        for inner in walk_ops(op):
            if isinstance(inner, Let):
                values[inner.var] = _at_all(inner.value, values)
            for load in op_loads(inner):
                found[0][_around(load.buffer, load.indices, values)] = None
            if isinstance(inner, Store):
                found[1][_around(inner.buffer, inner.indices, values)] = None
            for writes in (False, True):
                for region in regions(inner, reads=not writes, writes=writes):
                    found[writes][self.box(region, env)] = None
        return tuple(found[0]), tuple(found[1])


def _known(e: Expr, env: Env) -> bool:
    return not loads(e) and all(v in env for v in variables(e))


def _at_all(e: Expr, values: Mapping[Var, Any]) -> Any:
    try:
        return evaluate(e, values)
    except (CompileError, KeyError):
        return None


def _around(buffer: Buffer, indices: tuple[Expr, ...], values: Mapping[Var, Any]) -> Box:
    """The box around elements; where data say which, any."""
    starts: list[int | None] = []
    extents: list[int] = []
    for index, size in zip(indices, buffer.shape, strict=False):
        at = None
        if not any(values.get(v, 0) is None for v in variables(index)):
            at = _at_all(index, values)
        whole = int(size.value) if isinstance(size, Const) else ENOUGH
        if at is None:
            starts.append(None)
            extents.append(1)
        else:
            low, high = max(0, int(np.min(at))), min(whole - 1, int(np.max(at)))
            starts.append(low)
            extents.append(max(1, high - low + 1))
    return buffer.name, tuple(starts), tuple(extents)


# ── as data ──────────────────────────────────────────────────────────────────────────────────


def recorded(run: WholeWalk) -> dict[str, Any]:
    """The spans of all blocks of a multiprocessor, with what they touch, in tables."""
    tracks = {who.number: n for n, who in enumerate(run.partitions)}
    ops: dict[int, int] = {}
    told: list[dict[str, Any]] = []
    boxes: dict[Box, int] = {}
    window = _elided(run)
    rows = []
    for span, (iteration, tile, reads, writes) in zip(run.spans, run.notes, strict=True):
        if window and span.start > window["start"] and span.end < window["end"]:
            continue
        if id(span.op) not in ops:
            ops[id(span.op)] = len(told)
            told.append(op_told(span.op))
        unit = STORES if span.unit == COPIES and _stores(span.op) else span.unit
        numbers = [[boxes.setdefault(b, len(boxes)) for b in each] for each in (reads, writes)]
        rows.append([
            tracks[span.who], unit, ops[id(span.op)], round(span.start), round(span.end),
            iteration, tile, span.what, round(span.size), *numbers,
        ])  # fmt: skip
    rows.sort(key=lambda row: (row[0], row[3], row[4]))
    flips = [
        [round(time), name, slot, phase]
        for time, block, name, slot, phase in run.flips
        if block == 0 and not (window and window["start"] < time < window["end"])
    ]
    end = max((span.end for span in run.spans), default=0.0)
    columns = ["track", "unit", "op", "start", "end", "iteration", "tile", "wait", "bytes"]
    return {
        "cycles": round(max(end, run.now)),
        "latency": rates.LATENCY,
        "walked": _walked(run),
        "elided": [{**window, "start": round(window["start"]), "end": round(window["end"])}]
        if window
        else [],
        "tracks": [
            {"role": role_name(w, run.partitions), "block": w.block} for w in run.partitions
        ],
        "ops": told,
        "regions": [list(box) for box in boxes],
        "spans": {"columns": [*columns, "reads", "writes"], "rows": rows},
        "flips": {"columns": ["time", "barrier", "slot", "phase"], "rows": flips},
        "phases": list(_phases(run, end)),
        "notes": ["where data in memory decide, the block is taken to have work"] * run.guessed,
        "standing": [
            {"track": tracks[who.number], "line": op.loc.line if op.loc else None,
             "text": _first(op)}
            for who, op in run.standing()
        ],
    }  # fmt: skip


def op_told(op: Op) -> dict[str, Any]:
    lines = sorted({i.loc.line for i in walk_ops(op) if i.loc is not None})
    line = op.loc.line if op.loc is not None else next(iter(lines), None)
    return {"text": _first(op), "kind": type(op).__name__.lower(), "line": line, "lines": lines}


def _first(op: Op) -> str:
    return print_op(op).splitlines()[0].rstrip(" {")


def _stores(op: Op) -> bool:
    if isinstance(op, Copy):
        return op.dst.buffer.is_global
    return any(b.is_global for inner in walk_ops(op) for b in written_buffers(inner))


def _starts(run: WholeWalk) -> list[float]:
    """Of the iterations of the first warpgroup that computes, in its first tile."""
    return next((w.starts[: run.trip + 1] for w in run.partitions if len(w.starts) > 1), [])


def _elided(run: WholeWalk) -> dict[str, Any]:
    starts = _starts(run)
    if len(starts) - 1 <= FIRST + LAST:
        return {}
    last = len(starts) - 1 - LAST
    return {"start": starts[FIRST], "end": starts[last], "iterations": [FIRST, last]}


def _walked(run: WholeWalk) -> dict[str, Any]:
    tiles = 1 + max((tile for _, tile, *_ in run.notes), default=0)
    done = max(0, len(_starts(run)) - 1)
    complete = (run.finished or run.cut) and done >= run.trip
    return {"iterations": done, "of": run.trip, "tiles": max(1, tiles), "complete": complete}


def _phases(run: WholeWalk, end: float) -> Iterator[dict[str, Any]]:
    starts = _starts(run)
    if not starts:
        yield {"name": "block", "start": 0, "end": round(end)}
        return
    ends = [round(t) for t in (0, starts[0], starts[-1])]
    tile = [s.start for s, n in zip(run.spans, run.notes, strict=True)
            if n[1] > 0 and s.unit != WAITS and n[0] >= 0
            and run.partitions[s.who].starts[:1] == starts[:1]]  # fmt: skip
    ends.append(round(min(tile, default=end)))
    yield from (
        {"name": name, "start": a, "end": b}
        for name, a, b in zip(("prologue", "main loop", "epilogue"), ends, ends[1:], strict=False)
        if b > a
    )
    if ends[-1] < round(end):
        yield {"name": "next tile", "start": ends[-1], "end": round(end)}
