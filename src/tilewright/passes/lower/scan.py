"""Prefix folds along a dimension.

A tile's line is distributed over threads in levels, from the inside out: registers in a row, lanes,
registers again, warps. Each thread folds its runs of registers. Then, level by level, it finds the
fold of what comes before each run: of lanes by shuffles, of warps through shared memory, where
each warp tells its totals. One fold of that with each element ends the scan.

Where threads hold lines in another way, or the tile lies in memory, it goes through shared memory,
and each thread runs along lines of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from tilewright.passes.lower.core import *
from tilewright.passes.lower.reduce import (
    FOLDS,
    accumulates_in,
    chooses,
    held_parts,
    within_tile,
)
from tilewright.passes.lower.relayout import tile_map

Exprs = Sequence[Expr]
Fold = Callable[[Exprs, Exprs], Exprs]


def scan_fold(op: Scan) -> tuple[Fold, list[DType]]:
    """How two folds become one, a tuple of as many as there are sources; their types."""
    if op.by is not None:
        by = op.by
        return (lambda a, b: by(*a, *b)), [r.dtype for r in op.sources]
    kind = accumulates_in(op.op, op.src.dtype, op.dst.dtype)
    return (lambda a, b: (FOLDS[op.op].fold(a[0], b[0]),)), [kind]


def lower_scan(low: Lowering, op: Scan) -> Iterable[Op]:
    if op.by is not None:
        op = rebuild(op, by=Operator(op.by.vars, tuple(map(low.expr, op.by.result))))
    with low.restored():
        found = _Registers.find(low, op)
        if found is not None:
            return found.lower()
    return tuple(_through_shared(low, op))


# ── how lines are distributed ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Level:
    """A digit of the place along a line, of which there are `extent`: in the thread's number, where
    `thread // place % extent` is the digit, or (`place` 0) in the registers' order."""

    extent: int
    place: int = 0


@dataclass(frozen=True, eq=False)
class Distribution:
    """`runs[r, k]`: the values of each run, line by line; `lines` of them; `levels` around runs;
    `rows[t, l]`: the line l of thread t as an index of the tile without the dimension, or -1."""

    runs: Indices
    lines: int
    levels: tuple[Level, ...]
    rows: Indices


@lru_cache(maxsize=64)
def distribute(fragment: Fragment, dim: int) -> Distribution | None:
    """How threads hold the lines of a tile along `dim`; None where levels do not say it."""
    apart = dimensions(fragment)
    if apart is None:
        return None
    coords = coordinates(fragment)
    along = coords[dim][0]
    others = [c for d, c in enumerate(coords) if d != dim]
    order = np.lexsort((along, *(c[0] for c in reversed(others))))
    lines = len(np.unique(np.stack([c[0] for c in others]), axis=1).T) if others else 1
    table = order.reshape(lines, -1)
    places = along[table]
    if (places != places[:1]).any() or any(
        (c[0][table] != c[0][table[:, :1]]).any() for c in others
    ):
        return None
    digits: list[tuple[int, Level]] = []  # strides of those in the thread's number
    place = 1
    for extent, stride in apart[dim][0].modes():
        if stride:
            lanes = min(extent, max(WARP // place, 1)) if place < WARP else 1
            if lanes > 1 and (WARP % (place * lanes) or extent % lanes):
                return None
            digits += [(stride, Level(lanes, place))] * (lanes > 1)
            if extent > lanes:
                digits.append((stride * lanes, Level(extent // lanes, place * lanes)))
        place *= extent
    levels, unit, expected = [], 1, np.zeros(1, np.int64)
    for stride, level in [*sorted(digits, key=lambda d: d[0]), (0, Level(1))]:
        count = stride // unit if stride else places.shape[1] // len(expected)
        expected = (np.arange(count)[:, None] * unit + expected).reshape(-1)
        levels += [Level(count), level]
        unit = stride * level.extent
    if not np.array_equal(expected, places[0]):
        return None
    rows = np.zeros((fragment.threads, lines), np.int64)
    real = np.ones_like(rows, dtype=bool)
    tile = [e for d, e in enumerate(fragment.tile) if d != dim]
    for c, size in zip(others, tile, strict=True):
        at = c[:, table[:, 0]]
        real &= at < size
        rows = rows * size + at
    run, *around = levels
    return Distribution(
        table.reshape(-1, run.extent), lines, tuple(x for x in around if x.extent > 1),
        np.where(real, rows, IDLE),
    )  # fmt: skip


# ── in registers ─────────────────────────────────────────────────────────────────────────────


class _Registers:
    """A scan of fragments that are all held in one way."""

    def __init__(
        self, low: Lowering, op: Scan, loop: MapLoop, shares: Distribution, keep: Indices
    ) -> None:
        self.low, self.op, self.loop, self.shares, self.keep = low, op, loop, shares, keep
        self.fold, self.kinds = scan_fold(op)
        self.runs = len(shares.runs)
        self.values = shares.runs
        if op.reverse:
            lines = shares.runs.reshape(shares.lines, -1)
            self.values = lines[:, ::-1].reshape(shares.runs.shape)
        self.total, self.before = (
            [low.local(name, kind, self.runs) for kind in self.kinds]
            for name in ("total", "before")
        )
        self.kept = [
            low.flat(r.buffer) if r.dtype == kind else low.local("kept", kind, loop.values)
            for r, kind in zip(op.results, self.kinds, strict=True)
        ]
        self.has = None if op.by is None else low.local("has", BOOL, self.runs)
        self.fresh = True  # nothing is known yet of what comes before runs

    @classmethod
    def find(cls, low: Lowering, op: Scan) -> _Registers | None:
        regions, layout = op.sources + op.results, op.src.buffer.layout
        for region in regions:
            other = region.buffer.layout
            if not (isinstance(other, Fragment) and isinstance(layout, Fragment)):
                return None
            if not region.is_whole or not other.same(layout):
                return None
        assert isinstance(layout, Fragment)
        loop = region_loop(low, op.src)[0]
        shares = distribute(loop.fragment, op.axis)
        if shares is None or layout.values != loop.values:
            return None
        whole_warps = low.instance.threads % WARP == 0
        if not whole_warps and any(0 < x.place < WARP for x in shares.levels):
            return None
        cut = loop.fragment.cover[op.axis] > loop.fragment.tile[op.axis]
        if op.by is not None and cut and (op.reverse or op.totals):
            return None
        keep = [_direct(low, total, shares) for total in op.totals]
        if any(k is None for k in keep):
            return None
        return cls(low, op, loop, shares, np.array(keep))

    def lower(self) -> Body:
        op, shares = self.op, self.shares
        arrays = [*self.total, *self.before, *([self.has] if self.has is not None else [])]
        body: list[Op] = [*self._runs()]
        blocks = self.runs
        for k, level in enumerate(shares.levels):
            last = k == len(shares.levels) - 1 and not op.totals
            way = self._by_warps if level.place >= WARP else self._by_lanes
            body += (way if level.place else self._in_thread)(level, blocks, last)
            blocks //= 1 if level.place else level.extent
            self.fresh = False
        body += [*self._ended(), *self._totals()]
        named = {b for x in body for y in walk_ops(x) for b in named_buffers(y)}
        written = {y.buffer for x in body for y in walk_ops(x, Store)}
        made = [a for a in arrays if a in named or a in written]
        made += [a for a in self.kept if a.name not in {r.name for r in op.results}]
        return (*(Alloc(a) for a in made), *used(self.loop.before, tuple(body)), *body)

    # ── pieces ──

    def _loop(self, name: str, count: int, body: Callable[[Expr], Iterable[Op]]) -> Iterable[Op]:
        if count == 1:
            return tuple(body(const(0)))
        var = self.low.var(name)
        self.low.ranges = self.low.ranges.where(var, 0, count - 1)
        return (unroll(var, count, tuple(body(var))),)

    def _register(self, run: Expr, k: Expr) -> Expr:
        """The register of the k-th value of a run."""
        r, i = self.low.var("r"), self.low.var("k")
        index = fit_registers(self.values, (r, i))
        if index is None:
            raise CompileError("the registers of a line are no simple function of its elements")
        return self.low.simplify(substitute(index, {r: run, i: k}))

    def _runs(self) -> Iterable[Op]:
        """Each run of registers, folded from its first one on."""
        guard = self.loop.guard()
        cut = self.loop.fragment.cover[self.op.axis] > self.loop.fragment.tile[self.op.axis]

        def step(run: Expr, k: Expr, first: bool) -> Iterable[Op]:
            at = self._register(run, k)
            inside = self.low.simplify(substitute(guard, {self.loop.var: at})) if cut else TRUE
            new: list[Expr] = []
            for region, kind in zip(self.op.sources, self.kinds, strict=True):
                found = cast(Load(self.low.flat(region.buffer), (at,), self.op.loc), kind)
                neutral = cut and self.has is None
                new.append(select(inside, found, identity(self.op.op, kind)) if neutral else found)
            if not first:
                new = [*self.fold([Load(t, (run,)) for t in self.total], new)]
            yield from self._store(self.total, run, new)
            for kept, total in zip(self.kept, self.total, strict=True):
                yield Store(kept, (at,), Load(total, (run,)))

        def each(run: Expr) -> Iterable[Op]:
            yield from step(run, const(0), True)
            count = self.values.shape[1]
            if count > 1:
                k = self.low.var("k")
                self.low.ranges = self.low.ranges.where(k, 1, count - 1)
                yield unroll(k, count, tuple(step(run, k, False)), start=1)

        return self._loop("run", self.runs, each)

    def _store(self, into: Sequence[Buffer], at: Expr, values: Exprs) -> Iterable[Op]:
        """`values`, all of them computed before the first is stored."""
        if len(into) > 1:
            lets = [self.low.let("new", value) for value in values]
            yield from (let for _, let in lets)
            values = [var for var, _ in lets]
        yield from (Store(b, (at,), v) for b, v in zip(into, values, strict=True))

    def _precede(self, block: Expr, blocks: int, cond: Expr, values: Exprs) -> Iterable[Op]:
        """Where `cond`, `values` come before the runs of a block, and before what is known to."""
        per = self.runs // blocks

        def each(i: Expr) -> Iterable[Op]:
            run = block * per + i
            old = [Load(b, (run,)) for b in self.before]
            if self.has is None:
                neutral = [identity(self.op.op, kind) for kind in self.kinds]
                new = [select(cond, v, n) for v, n in zip(values, neutral, strict=True)]
                yield from self._store(self.before, run, new if self.fresh else self.fold(new, old))
                return
            new, has = [*values], cond
            if not self.fresh:
                known: Expr = Load(self.has, (run,))
                joined = zip(self.fold(values, old), values, old, strict=True)
                new = [select(cond, select(known, j, v), o) for j, v, o in joined]
                has = binary("or", known, cond)
            yield from self._store(self.before, run, new)
            yield Store(self.has, (run,), has)

        return self._loop("i", per, each)

    def _named(self, name: str, values: Exprs) -> tuple[list[Expr], list[Op]]:
        lets = [self.low.let(name, value) for value in values]
        return [var for var, _ in lets], [let for _, let in lets]

    def _in_thread(self, level: Level, blocks: int, last: bool) -> Iterable[Op]:
        """Blocks of runs that one thread holds."""
        count = level.extent

        def each(outer: Expr) -> Iterable[Op]:
            total, lets = self._named("sum", [Load(t, (outer * count,)) for t in self.total])
            yield from lets
            for k in range(count):
                block = outer * count + k
                if k or self.fresh:
                    yield from self._precede(block, blocks, TRUE if k else FALSE, total)
                if k and not (last and k == count - 1):
                    new = self.fold(total, [Load(t, (block,)) for t in self.total])
                    total, lets = self._named("sum", new)
                    yield from lets
            if not last:
                yield from self._store(self.total, outer, total)

        return self._loop("line", blocks // count, each)

    def _digit(self, level: Level) -> Expr:
        """The thread's digit of a level, in the scan's order."""
        found = self.low.simplify(self.low.instance.thread // level.place % level.extent)
        return const(level.extent - 1) - found if self.op.reverse else found

    def _shuffled(self, how: str, values: Exprs, by: Expr) -> tuple[list[Expr], list[Op]]:
        got: list[Expr] = [self.low.var("got", kind) for kind in self.kinds]
        ops = [
            Intrinsic(f"shfl_{how}", (v, by), g)
            for v, g in zip(values, got, strict=True)
            if isinstance(g, Var)
        ]
        return got, [*ops]

    def _by_lanes(self, level: Level, blocks: int, last: bool) -> Iterable[Op]:
        digit, let = self.low.let("digit", self._digit(level))
        self.low.ranges = self.low.ranges.where(digit, 0, level.extent - 1)
        yield let
        up = "down" if self.op.reverse else "up"
        lane = self.low.instance.thread % WARP
        end = 0 if self.op.reverse else level.extent - 1
        away = const(end) - lane // level.place % level.extent
        last_lane = self.low.simplify(lane + away * level.place)

        def each(block: Expr) -> Iterable[Op]:
            own, lets = self._named("own", [Load(t, (block,)) for t in self.total])
            yield from lets
            step = 1
            while step < level.extent:
                got, ops = self._shuffled(up, own, const(step * level.place))
                cond = compare(">=", digit, step)
                pairs = zip(self.fold(got, own), own, strict=True)
                own, lets = self._named("own", [select(cond, n, o) for n, o in pairs])
                yield from (*ops, *lets)
                step *= 2
            got, ops = self._shuffled(up, own, const(level.place))
            yield from ops
            yield from self._precede(block, blocks, compare(">", digit, 0), got)
            if not last:
                ends, ops = self._shuffled("sync", own, last_lane)
                yield from (*ops, *self._store(self.total, block, ends))

        yield from self._loop("block", blocks, each)

    def _by_warps(self, level: Level, blocks: int, last: bool) -> Iterable[Op]:
        low, extent, fragment = self.low, level.extent, self.loop.fragment
        number, coords = np.arange(fragment.threads), coordinates(fragment)
        digits = number // level.place % extent
        # threads that have the same lines, and the same part of them on the levels further out
        key = [c[:, 0] for d, c in enumerate(coords) if d != self.op.axis]
        apart = dimensions(fragment)
        assert apart is not None
        inner, outside = 1, np.zeros_like(number)
        for size, stride in apart[self.op.axis][0].modes():
            if inner * size > level.place * extent:
                outside += number // inner % size * stride * (inner >= level.place * extent)
            inner *= size
        _, group = np.unique(np.stack([*key, outside]), axis=1, return_inverse=True)
        group = group.reshape(-1)
        groups = int(group.max()) + 1
        first = np.zeros(len(number), bool)
        first[np.unique(group * extent + digits, return_index=True)[1]] = True
        digit, let = low.let("digit", self._digit(level))
        mine, let_mine = low.let("group", chosen(low, low.instance.thread, group.tolist()))
        low.ranges = low.ranges.where(digit, 0, extent - 1).where(mine, 0, groups - 1)
        yield from (let, let_mine)

        each_one = blocks * extent * groups

        def place(number: int, block: Expr, part: Expr) -> tuple[Expr, ...]:
            return (low.simplify((block * extent + part) * groups + mine + number * each_one),)

        kind = widest_of(self.kinds)

        def tell(scratch: Buffer) -> Iterable[Op]:
            flat = low.flat(scratch)

            def stores(block: Expr) -> Iterable[Op]:
                for number, total in enumerate(self.total):
                    value = packed(Load(total, (block,)), kind)
                    yield Store(flat, place(number, block, digit), value)

            once = TRUE if first.all() else chooses(low, first)
            return guarded(once, tuple(self._loop("block", blocks, stores)))

        scratch, told = low.exchange(kind, (len(self.total) * each_one,), tell)
        flat = low.flat(scratch)
        yield from told

        def told_by(block: Expr, part: int) -> list[Expr]:
            return [
                unpacked(Load(flat, place(number, block, const(part))), own)
                for number, own in enumerate(self.kinds)
            ]

        def each(block: Expr) -> Iterable[Op]:
            total, lets = self._named("sum", told_by(block, 0))
            ahead = total
            yield from lets
            for k in range(1, extent):
                if k > 1:
                    pairs = zip(total, ahead, strict=True)
                    past = compare(">=", digit, k)
                    ahead, lets = self._named("ahead", [select(past, t, a) for t, a in pairs])
                    yield from lets
                if not last or k < extent - 1:
                    total, lets = self._named("sum", self.fold(total, told_by(block, k)))
                    yield from lets
            yield from self._precede(block, blocks, compare(">", digit, 0), ahead)
            if not last:
                yield from self._store(self.total, block, total)

        yield from self._loop("block", blocks, each)
        low.touched = True

    def _ended(self) -> Iterable[Op]:
        """What comes before a run, folded with each of its elements."""
        same = all(k.name == r.name for k, r in zip(self.kept, self.op.results, strict=True))
        if self.fresh and same:
            return ()

        def step(run: Expr, k: Expr) -> Iterable[Op]:
            at = self._register(run, k)
            now: Exprs = [Load(kept, (at,)) for kept in self.kept]
            if not self.fresh:
                new = self.fold([Load(b, (run,)) for b in self.before], now)
                has = None if self.has is None else Load(self.has, (run,))
                now = [
                    n if has is None else select(has, n, o) for n, o in zip(new, now, strict=True)
                ]
            results = [self.low.flat(r.buffer) for r in self.op.results]
            values = [cast(n, b.dtype) for n, b in zip(now, results, strict=True)]
            yield from self._store(results, at, values)

        count = self.values.shape[1]
        return self._loop("run", self.runs, lambda run: self._loop("k", count, partial(step, run)))

    def _totals(self) -> Iterable[Op]:
        for region, keep, total in zip(self.op.totals, self.keep, self.total, strict=False):
            target = self.low.flat(region.buffer)
            if not region.buffer.is_fragment:
                value = cast(Load(total, (const(0),)), target.dtype)
                spot, _ = self.low.place(region.buffer, region.starts)
                yield from self.low.by_leader(Store(target, spot, value))
                self.low.touched = True
                continue
            d = self.low.var("d")
            line = fit_registers(keep, (d,))
            assert line is not None
            store = Store(target, (d,), cast(Load(total, (line,)), target.dtype))
            yield unroll(d, len(keep), (store,))


def _direct(low: Lowering, region: Region, shares: Distribution) -> list[int] | None:
    """For each register of a tile of totals the line that it is of, the same in all threads."""
    if region.buffer.is_shared and not region.tile:
        return [0]
    return held_parts(low, region, shares.rows)


# ── through shared memory ────────────────────────────────────────────────────────────────────


def widest_of(kinds: Sequence[DType]) -> DType:
    """A type in whose bits elements of all `kinds` fit."""
    return max(kinds, key=lambda kind: (kind.bits, kind.is_float))


def packed(value: Expr, kind: DType) -> Expr:
    """`value` in the bits of another type."""
    if value.dtype.bits == kind.bits or kind.is_float or not value.dtype.is_float:
        return _same_bits(value, kind)
    return cast(_same_bits(value, DTYPES[f"int{value.dtype.bits}"]), kind)


def unpacked(value: Expr, kind: DType) -> Expr:
    """What was `packed`."""
    if value.dtype.bits == kind.bits or value.dtype.is_float or not kind.is_float:
        return _same_bits(value, kind)
    return _same_bits(cast(value, DTYPES[f"int{kind.bits}"]), kind)


def _same_bits(value: Expr, kind: DType) -> Expr:
    if value.dtype == kind or value.dtype.bits != kind.bits:
        return cast(value, kind)
    return Call("reinterpret", (value,), kind)


def _through_shared(low: Lowering, op: Scan) -> Iterable[Op]:
    tile = op.src.static_tile or (1,)
    unit = not op.src.extents or int(op.src.extents[op.axis]) == 1
    dim = -1 if unit else within_tile(op.src, op.axis)
    _, kinds = scan_fold(op)

    def into(scratch: Buffer) -> Iterable[Op]:
        for k, source in enumerate(op.sources):
            yield from low.op(tile_map(low, source, partial(_told, source, scratch, k, kinds[k])))

    scratch, told = low.exchange(widest_of(kinds), (len(kinds), *tile), into)
    yield from told
    if dim >= 0:
        yield from low.op(_lines(low, op, scratch, tile, dim))
        yield from low.join()
    last = None if unit else (dim, 0 if op.reverse else tile[dim] - 1)
    for regions, end in ((op.results, None), (op.totals, last)):
        for k, region in enumerate(regions):
            keep = partial(_kept, region, scratch, k, kinds[k], end)
            yield from low.op(tile_map(low, region, keep))


def _told(
    source: Region, scratch: Buffer, number: int, kind: DType, coords: tuple[Expr, ...]
) -> Body:
    """An element of a source, into its part of `scratch`."""
    value = packed(cast(Load(source.buffer, source.at(coords)), kind), scratch.dtype)
    return (Store(scratch, (const(number), *(coords or (const(0),))), value),)


def _kept(
    region: Region,
    scratch: Buffer,
    number: int,
    kind: DType,
    end: tuple[int, int] | None,
    coords: tuple[Expr, ...],
) -> Body:
    """An element out of `scratch`; of totals, the one at the end of its line."""
    at = coords if end is None else (*coords[: end[0]], const(end[1]), *coords[end[0] :])
    value = unpacked(Load(scratch, (const(number), *(at or (const(0),)))), kind)
    return (Store(region.buffer, region.at(coords), cast(value, region.dtype)),)


def _lines(low: Lowering, op: Scan, scratch: Buffer, tile: tuple[int, ...], dim: int) -> Op:
    """Every line along `dim` by one thread, in place."""
    layout = coalesced(tile[:dim] + tile[dim + 1 :], low.instance.threads)
    names = tuple(low.var(f"i{d}") for d in range(len(tile) - 1))
    k, last = low.var("k"), tile[dim] - 1
    fold, kinds = scan_fold(op)

    def elements(step: Expr) -> list[tuple[Expr, ...]]:
        """Where those of a step lie."""
        at = const(last) - step if op.reverse else step
        return [(const(n), *names[:dim], at, *names[dim:]) for n in range(len(kinds))]

    def found(step: Expr) -> list[Expr]:
        pairs = zip(elements(step), kinds, strict=True)
        return [unpacked(Load(scratch, place), kind) for place, kind in pairs]

    totals = [low.local("total", kind) for kind in kinds]
    more = fold([Load(t, ()) for t in totals], found(k))
    lets = [low.let("new", value) for value in more] if len(totals) > 1 else []
    news = [var for var, _ in lets] or more
    steps = (
        *(let for _, let in lets),
        *(Store(t, (), new) for t, new in zip(totals, news, strict=True)),
        *(
            Store(scratch, place, packed(Load(t, ()), scratch.dtype))
            for place, t in zip(elements(k), totals, strict=True)
        ),
    )
    starts = [Alloc(t, value) for t, value in zip(totals, found(const(0)), strict=True)]
    body: Body = (*starts, For(k, const(1), const(tile[dim]), steps))
    return Map(names or (low.var("i"),), tuple(map(const, layout.tile)), body, layout=layout)
