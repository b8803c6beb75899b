"""Elementwise maps as thread code: each thread visits the values of its fragment layout.

A thread's coordinates are `f(thread) + g(value)`. The values are one unrolled loop, `g` and the
registers that an element lies in are functions of its variable, found from the table of all
threads and values: an element that a thread does not hold, or holds in another register than its
neighbour, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.analysis.intervals import limits
from tilewright.ir.analysis.linear import Linear, build_sum
from tilewright.passes.canonicalize.rules import widened
from tilewright.passes.core import *
from tilewright.passes.layout.addresses import layout_expr, ravel
from tilewright.passes.lower.lowering import Lowering, guarded, unroll
from tilewright.support.distinct import distinct

EXACT = {"float32": 1 << 24, "float64": 1 << 53}  # integers up to these are floats


class Held:
    """Registers of `region`, in order: the k-th holds, in each thread, element `table[thread, k]`
    of the region (row-major). Where the region begins may depend on unrolled variables, what is
    in it may not."""

    def __init__(self, low: Lowering, region: Region) -> None:
        self.low, self.region, self.fragment = low, region, region.buffer.fragment
        low.check_spread(region.name, self.fragment)
        self._parts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.first(0)

    @property
    def tile(self) -> tuple[int, ...]:
        return self.region.static_tile

    @property
    def values(self) -> int:
        return int(self.table.shape[1])

    def coords(self) -> tuple[Indices, ...]:
        """[thread, k] of every dimension of the tile."""
        return tuple(np.asarray(c) for c in np.unravel_index(self.table, self.tile))

    def first(self, start: int, count: int = 1, var: Var | None = None, step: int = 1) -> Expr:
        """The first of the registers `start` … `start + count - 1`, which are consecutive; `var`
        (unrolled) times `step` further on when given."""
        times = 1 if var is None else len(self.low.unrolled[var])

        def find(env: dict[Var, Any]) -> Any:
            registers = self._part(tuple(int(evaluate(s, env)) for s in self.region.starts))
            runs = [registers[start + k * step :][:count] for k in range(times)]
            if any(run != tuple(range(run[0], run[0] + count)) for run in runs):
                raise self._refused("does not hold consecutive registers for this")
            return runs[0][0] if var is None else [run[0] for run in runs]

        own = None if var is None else (var, times)
        return self.low.registers("a register's index", self.region.starts, find, own)

    def runs(self, count: int) -> bool:
        """Whether each `count` registers in a row are consecutive and begin at a multiple of
        it, or of those that share 32 bits, wherever the region begins."""
        pack = max(32 // self.region.dtype.bits, 1)
        for registers in self._parts.values():
            groups = np.array(registers).reshape(-1, count)
            whole = groups == groups[:, :1] + np.arange(count)
            if not whole.all() or (groups[:, 0] % min(pack, count)).any():
                return False
        return True

    def _part(self, starts: tuple[int, ...]) -> tuple[int, ...]:
        if starts not in self._parts:
            found = _part_of(self.fragment, starts, tuple(int(e) for e in self.region.extents))
            if found is None:
                raise self._refused("is held in different registers by different threads")
            if not self._parts:
                self.table = found[1]
            if not np.array_equal(found[1], self.table):
                raise self._refused("is held in different ways in different places")
            self._parts[starts] = found[0]
        return self._parts[starts]

    def _refused(self, why: str) -> CompileError:
        name = self.region.name
        return CompileError(f"this part of {name} {why}", got=repr(self.fragment))


@lru_cache(maxsize=32)
def _part_of(
    fragment: Fragment, starts: tuple[int, ...], extents: tuple[int, ...]
) -> tuple[tuple[int, ...], Indices] | None:
    """The registers of a part of a fragment, and what they hold; None where that is not the same
    ones in all threads. Whoever chooses a copy asks, and who lowers it asks again."""
    table = fragment.table()
    coords = np.unravel_index(np.maximum(table, 0), fragment.tile)
    inside = table != IDLE
    index = np.zeros_like(table)
    for c, start, extent in zip(coords, starts, extents, strict=True):
        inside = inside & (c >= start) & (c < start + extent)
        index = index * extent + c - start
    if (inside != inside[:1]).any() or not inside.any():
        return None
    registers = np.flatnonzero(inside[0])
    held = index[:, registers]
    held.flags.writeable = False
    return tuple(registers.tolist()), held


@dataclass
class MapLoop:
    """What each thread visits of `fragment`'s tile. `value` counts it; `coords` are the tile
    coordinates at `value`, `named` the variables of the source that stand for them. `before` has
    to be computed in front of the loop."""

    low: Lowering
    fragment: Fragment
    var: Var
    coords: tuple[Expr, ...] = ()
    named: dict[Var, Expr] = field(default_factory=dict)
    tables: dict[Var, Indices] = field(default_factory=dict)
    lets: dict[Var, Expr] = field(default_factory=dict)
    bound: frozenset[Var] = frozenset()  # what the body defines
    before: list[Op] = field(default_factory=list)
    inside: Expr = TRUE  # whether a slot is in the region, besides being one of the tile
    part: Indices | None = None
    movable: bool = True  # whether `table` is known
    alone: bool = False  # whether one of the threads that hold the same elements visits them

    @property
    def values(self) -> int:
        return self.fragment.values

    @property
    def table(self) -> Indices:
        """[thread, value]: row-major indices of the region that is visited, -1 elsewhere."""
        return self.fragment.table() if self.part is None else self.part

    # ── expressions ──────────────────────────────────────────────────────────────────────────

    def expr(self, e: Expr) -> Expr:
        """`e` as thread `thread` computes it for value `value`."""
        if isinstance(e, Var):
            return self.named.get(e, e)
        if isinstance(e, Load):
            return self.load(e)
        if isinstance(e, (Cmp, Cast)):
            hoisted = self.comparison(e) if isinstance(e, Cmp) else self.converted(e)
            if hoisted is not None:
                return hoisted
        return widened(map_children(e, self.expr))

    def index(self, e: Expr) -> Expr:
        return self.low.simplify(self.expr(e))

    def load(self, e: Load) -> Expr:
        if e.buffer.is_fragment:
            flat = self.low.flat(e.buffer)
            return Load(flat, (self.register(e.buffer, e.indices, e.loc),), e.loc)
        return self.low.load(e, tuple(self.index(i) for i in e.indices))

    def register(self, buffer: Buffer, indices: Sequence[Expr], loc: Loc | None = None) -> Expr:
        """The register that holds an element of a fragment, the same in all threads."""
        fragment = buffer.fragment
        inlined = [substitute(i, self.lets) for i in indices]
        self.low.check_spread(buffer.name, fragment)
        idle = self.table == IDLE

        def find(env: dict[Var, Any]) -> Indices:
            places = [evaluate(i, {**self.tables, **env}) for i in inlined]
            columns = _columns(fragment, places, idle)
            if columns is None:
                raise CompileError(
                    f"a thread needs an element of {buffer.name} that it does not hold",
                    loc=loc,
                    expected=f"the elements of {self.fragment}",
                    got=repr(fragment),
                    fix="give both the same layout, or relayout one",
                )
            return columns

        what = f"the register of an element of {buffer.name}"
        own = self.var, self.values
        return self.low.registers(what, inlined, find, own, self.tables, loc)

    # ── masks ────────────────────────────────────────────────────────────────────────────────

    def comparison(self, e: Cmp) -> Expr | None:
        """A comparison of coordinates with what is the same for all values, as `g(value) op
        limit`: one instruction an element, the limit computed once. Not where moving terms to the
        other side may wrap."""
        kind = e.a.dtype
        if kind.kind != "int" or kind.bits < 32 or not is_pure(e.a) or not is_pure(e.b):
            return None
        ranges = self.low.ranges
        a, b = (linear(self.expr(x), ranges, index=False) for x in e.children)
        parts = None if a is None or b is None else self.apart(a - b, kind)
        if parts is None:
            return None
        moving, fixed = parts
        span, full = ranges.evaluate(moving, False), limits(kind)
        distance = self.distance(fixed.scaled(-1), kind)
        if distance is None or not full.lo < span.lo <= span.hi < full.hi:
            return None
        left = self.low.simplify(build_sum(moving, kind), index=False)
        limit = self.low.simplify(distance, index=False)
        if not isinstance(limit, (Const, Var)):
            limit = self.name("limit", limit)
        return compare(e.op, left, limit)

    def distance(self, form: Linear, kind: DType) -> Expr | None:
        """`form`, how far two sides of a comparison are apart, in their type. Where data (2³¹ - 1
        for "no window") may take it too far, it is the nearest number there is, which no
        coordinate comes near to; None where no type is wide enough to find it."""
        plain, full = build_sum(form, kind), limits(kind)
        if self.low.ranges.exact(plain, False):
            return plain
        if kind.bits > 32:
            return None
        wide = Linear({cast(atom, INT64): c for atom, c in form.terms.items()}, form.const)
        least, most = const(full.lo, INT64), const(full.hi, INT64)
        return cast(binary("min", most, binary("max", least, build_sum(wide, INT64))), kind)

    def converted(self, e: Cast) -> Expr | None:
        """An integer of coordinates as a float: what is the same for all values is converted once,
        and adding to it is exact where no integer needs more digits than the type has."""
        kind, given = e.dtype, e.a.dtype
        exact = EXACT.get(kind.name)
        if exact is None or not given.is_int or not is_pure(e.a):
            return None
        value = self.expr(e.a)
        form = linear(value, self.low.ranges, index=False)
        parts = None if form is None else self.apart(form, given)
        if parts is None:
            return None
        moving, fixed = (self.low.simplify(build_sum(p, given), index=False) for p in parts)
        for part in (value, moving, fixed):
            span = bounds(part, self.low.ranges, index=False)
            if max(-span.lo, span.hi) > exact:
                return None
        base = cast(fixed, kind)
        if not isinstance(base, Const):
            base = self.name("base", base)
        return base + cast(moving, kind)

    def apart(self, form: Linear, kind: DType) -> tuple[Linear, Linear] | None:
        """What of an integer differs from value to value, and what is the same for all of them."""
        private = {self.var, *self.lets, *self.bound}
        terms = {cast(a, kind): c for a, c in form.terms.items()}
        moving = {a: c for a, c in terms.items() if self.var in variables(a)}
        fixed = {a: c for a, c in terms.items() if a not in moving}
        if not moving or max(map(abs, (*terms.values(), form.const))) > kind.max_value:
            return None
        if any(variables(a) - {self.var} for a in moving):
            return None
        if any(variables(a) & private for a in fixed):
            return None
        return Linear(moving, 0), Linear(fixed, form.const)

    def name(self, name: str, value: Expr) -> Var:
        """`value`, computed once in front of the loop."""
        for op in self.before:
            if isinstance(op, Let) and op.value is value:
                return op.var
        var, let = self.low.let(name, value)
        self.before.append(let)
        self.low.ranges = self.low.ranges.let(var, value)
        return var

    # ── threads ──────────────────────────────────────────────────────────────────────────────

    def guard(self) -> Expr:
        """Whether the slot at `value` is one of those visited."""
        cond = self.inside
        fragment = self.fragment
        for coord, most, size in zip(self.coords, fragment.cover, fragment.tile, strict=True):
            if most > size:
                cond = logical_and(cond, coord < size)
        return cond

    def first_copy(self, turn: int = 0) -> Expr:
        """True in one of the threads that hold the same elements: of another warp at each turn,
        where there are several."""
        flat = self.fragment.table()
        real = np.sort(flat[flat >= 0])
        if self.alone or not (real[1:] == real[:-1]).any():
            return TRUE
        thread = self.low.instance.thread
        numbers = np.arange(self.fragment.threads)
        cond: Expr = TRUE
        chosen = np.ones_like(numbers, dtype=bool)
        inner = 1
        for extent, stride in self.fragment.layout[0].modes():
            if stride == 0 and extent > 1:
                number = turn * max(1, WARP // inner) % extent
                cond = logical_and(cond, compare("==", thread // inner % extent, number))
                chosen &= numbers // inner % extent == number
            inner *= extent
        owners = flat[chosen]
        if not np.array_equal(np.sort(owners[owners >= 0]), distinct(real)):
            raise CompileError(
                "threads hold the same elements in a way that no simple rule chooses one of",
                got=repr(self.fragment),
            )
        return self.low.simplify(cond)

    def emit(self, body: Body) -> Body:
        """`body` at every value, what it needs in front."""
        body = guarded(self.guard(), body)
        if self.values > 1:
            body = (unroll(self.var, self.values, body),)
        return (*used(self.before, body), *body)


def used(before: Iterable[Op], body: Body) -> Body:
    """Those of the `Let`s `before` whose variables are read."""
    needed = read_variables(body)
    found: list[Op] = []
    for op in reversed(list(before)):
        if not isinstance(op, Let) or op.var in needed:
            found.append(op)
            needed |= read_variables((op,))
    return tuple(reversed(found))


def map_loop(low: Lowering, fragment: Fragment, names: Sequence[Var]) -> MapLoop:
    """The map of `fragment`'s tile in the instance's threads; `names` stand for its
    coordinates."""
    low.check_spread("the map", fragment)
    fragment = fragment.drop_repeats()
    loop = MapLoop(low, fragment, low.var("v"))
    apart = dimensions(fragment)
    parts = [fragment.layout if apart is None else apart[dim] for dim in range(len(names))]
    # before the map's own variables are known, which these do not have: what is simplified here
    # is remembered for the next map
    places = [low.simplify(layout_expr(part[0], low.instance.thread)) for part in parts]
    low.unrolled[loop.var] = range(fragment.values)
    low.ranges = low.ranges.where(loop.var, 0, fragment.values - 1)
    value: Expr = loop.var if fragment.values > 1 else const(0)
    coords = []
    tables = coordinates(fragment)
    for dim, name in enumerate(names):
        place = places[dim]
        if not isinstance(place, (Const, Var)):
            place = loop.name(name.name, place)
        coord = low.simplify(place + layout_expr(parts[dim][1], value))
        if apart is None:
            inner, extent = prod(fragment.cover[dim + 1 :]), fragment.cover[dim]
            coord = low.simplify(coord // inner % extent)
        coords.append(coord)
        loop.named[name] = coord
        loop.tables[name] = tables[dim]
    loop.coords = tuple(coords)
    return loop


@lru_cache(maxsize=32)
def coordinates(fragment: Fragment) -> tuple[Indices, ...]:
    """[thread, value] of each dimension of the cover."""
    thread, values = fragment.layout
    index = thread.indices()[:, None] + values.indices()[None, :]
    return np.unravel_index(index, fragment.cover) if fragment.cover else ()


def _columns(fragment: Fragment, places: Sequence[Any], idle: Indices) -> Indices | None:
    """For each value the register of the element at `places`; None where threads disagree."""
    needed, inside = ravel(places, fragment.tile), ~idle
    for place, size in zip(places, fragment.tile, strict=True):
        inside = inside & (place >= 0) & (place < size)
    # guards keep values away that lie outside in all threads
    missing = np.where(idle | ~inside.any(axis=0), IDLE, fragment.elements)
    return fragment.registers(np.where(inside, needed, missing))


@lru_cache(maxsize=256)
def dimensions(fragment: Fragment) -> tuple[Layout, ...] | None:
    """For each dimension the layout from (thread, value) to its coordinate. None where there are
    none: what a thread, or a value, goes on by is no number of whole rows (views)."""
    try:
        found = tuple(fragment.along(d) for d in range(len(fragment.tile)))
    except LayoutError:
        return None
    for layout, coord in zip(found, coordinates(fragment), strict=True):
        thread, values = layout
        if not np.array_equal(thread.indices()[:, None] + values.indices()[None, :], coord):
            return None
    return found


def region_loop(low: Lowering, region: Region) -> tuple[MapLoop, tuple[Var, ...], Expr]:
    """The map of what threads hold of a fragment's `region`; variables for the region's
    coordinates, unit extents dropped; the register at `value`.

    Where all threads hold the region in the same registers, those alone are visited. Otherwise
    all are, and a guard tells which slots belong to it."""
    fragment = region.buffer.fragment
    names = tuple(low.var(f"i{d}") for d in range(len(fragment.tile)))
    kept = tuple(n for n, e in zip(names, region.extents, strict=True) if int(e) != 1)
    if region.is_whole:
        loop = map_loop(low, fragment, names)
        return loop, kept, loop.register(region.buffer, names)
    try:
        held = Held(low, region)
        loop = map_loop(low, Fragment.fit(held.tile, held.table), kept)
        if loop.values == held.values:
            return loop, kept, held.first(0, 1, loop.var)
    except (CompileError, LayoutError):
        pass
    bases = tuple(low.var(n.name) for n in names)
    loop = map_loop(low, fragment, bases)
    register = loop.register(region.buffer, bases)
    index = np.zeros_like(loop.table)
    known = loop.table != IDLE
    for base, name, start, extent in zip(bases, names, region.starts, region.extents, strict=True):
        if isinstance(start, Const):
            at = loop.tables[base] - int(start)
            known = known & (at >= 0) & (at < int(extent))
            loop.tables[name] = at
            index = index * int(extent) + at
        loop.named[name] = low.simplify(loop.named[base] - start)
        loop.lets[name] = base - start
    loop.inside = low.in_box([loop.named[name] for name in names], region.extents)
    if all(isinstance(s, Const) for s in region.starts):
        loop.part = np.where(known, index, IDLE)
    else:
        loop.movable = False
    return loop, kept, register
