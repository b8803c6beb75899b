"""Threads hold what the places of a window share.

A loop over a window reads an array at places beside each other: `X[i + a, 2 * j + b]` for a few a
and b. Elements that lie side by side in a thread, and what the loop adds to them, read most of X
several times, one element at a time. Here they are loaded once, by vectors, into registers
that the loop, which is unrolled, indexes by constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.ir.layout.fragment import Fragment
from tilewright.passes.core import *

MOST_HELD = 80  # words of registers
PARTS = 1, 2, 3, 4, 6, 8  # of a map, one after the other, where it holds more
MOST_READ = 384  # elements, by the unrolled loops of a thread: their code runs once
VECTOR = 128  # bits of the widest access


@kernel_pass
def hold_windows(at: Facts) -> Kernel:
    """Load what the places of a window share into registers, once."""
    return at.kernel if at.has_roles else rebuild(at.kernel, body=_inside(at.kernel.body, at))


def _inside(body: Body, at: Facts) -> Body:
    found: list[Op] = []
    for op in body:
        held = _held(op) if isinstance(op, For) else None
        if held is not None:
            because(at.kernel.name, op, "unrolled: its places share what threads hold in registers")
            found += held
        else:
            inner = isinstance(op, Map)
            found.append(op if inner else map_bodies(op, lambda body: _inside(body, at)))
    return tuple(found)


def _held(op: For) -> Body | None:
    """`op` after the loads of what its loops read; None where that is not worth its registers."""
    loops, map_ = _inner_map(op)
    if map_ is None or not isinstance(map_.layout, Fragment):
        return None
    trips = {loop.var: _trips(loop) for loop in loops}
    reads = prod(trips.values()) * map_.layout.values
    if not 0 < reads <= MOST_READ:
        return None
    lets = {x.var: x.value for loop in loops for x in loop.body if isinstance(x, Let)}
    for dim in range(len(map_.vars)):
        for parts in PARTS:
            body = _held_in(op, map_, trips, lets, dim, parts)
            if body is not None:
                return body
    return None


def _held_in(
    op: For, map_: Map, trips: Mapping[Var, int], lets: dict[Var, Expr], dim: int, parts: int
) -> Body | None:
    """`_held` for one of `parts` along a dimension of the map after the other."""
    part = _part(map_, dim, parts)
    if part is None:
        return None
    number, inner = part
    assert isinstance(inner.layout, Fragment)
    touched = dict.fromkeys(loads_within(inner.body))  # in the order of the text
    whole = Fragment(inner.layout.cover, inner.layout.layout)  # idle slots hold something, too
    found = {x: _window(x, inner, whole, trips, lets) for x in touched}
    windows = {x: w for x, w in found.items() if w is not None}
    words = sum(w.tile.fragment.values * w.tile.dtype.bits for w in windows.values()) // 32
    if not windows or words > MOST_HELD:
        return None
    if parts > 1 and not all(w.shares for w in windows.values()):
        return None  # inner loops alone hold less

    def unrolled(op: Op) -> Op:
        if isinstance(op, For):
            return rebuild(op, kind="unroll", body=tuple(map(unrolled, op.body)))
        return map_ops(inner, read) if isinstance(op, Map) else op

    def read(op: Op) -> Op:
        return map_loads(op, lambda x: windows[x].read if x in windows else None)

    first = [each for w in windows.values() for each in (Alloc(w.tile), w.fill)]
    body = (*(rebuild(each, loc=op.loc) for each in first), unrolled(op))
    if parts == 1:
        return body
    return (For(number, const(0), const(parts), body, kind="unroll", loc=op.loc),)


def _part(map_: Map, dim: int, parts: int) -> tuple[Var, Map] | None:
    """The map over one of `parts` along a dimension, and the variable that says which: what threads
    hold of each is the same, in other registers."""
    layout, extent = map_.layout, map_.extents[dim]
    assert isinstance(layout, Fragment) and isinstance(extent, Const)
    number = fresh_var("part")
    if parts == 1:
        return number, map_
    size = int(extent.value) // parts
    if size * parts != extent.value:
        return None
    try:
        own, *others = (layout.part(dim, n * size, size) for n in range(parts))
    except LayoutError:
        return None
    if any(not own.same(other) for other in others):
        return None
    v = map_.vars[dim]
    body = substitute_vars(map_.body, {v: v + number * size})
    extents = (*map_.extents[:dim], const(size), *map_.extents[dim + 1 :])
    return number, rebuild(map_, extents=extents, body=body, layout=own)


def _inner_map(op: For) -> tuple[list[For], Map | None]:
    """The loops that surround nothing but one map, and that map, which writes registers only."""
    loops: list[For] = []
    inner: Op = op
    while isinstance(inner, For):
        loops.append(inner)
        *lets, last = inner.body or (inner,)
        if last is inner or not all(isinstance(each, Let) for each in lets):
            return loops, None
        inner = last
    if not isinstance(inner, Map) or not all(isinstance(each, (Let, Store)) for each in inner.body):
        return loops, None
    into = [each.buffer for each in inner.body if isinstance(each, Store)]
    return loops, inner if all(buffer.is_fragment for buffer in into) else None


def _trips(loop: For) -> int:
    """How often a loop runs that counts from zero by one; 0 where it does not."""
    values = values_of(loop)
    counts = values is not None and [*values] == [*range(len(values))]
    return len(values or ()) if counts and loop.kind in ("serial", "unroll") else 0


@dataclass(frozen=True)
class _Window:
    """`tile`: a fragment that `fill` loads, and `read`, an element of it in place of a load.
    `shares`: along all axes but the last, neighbours read the same elements."""

    tile: Buffer
    fill: Map
    read: Load
    shares: bool


@dataclass(frozen=True)
class _Axis:
    """An index of a load: `base + own · step + tap · by`. A thread has `many` neighbours along
    `own` and holds `length` elements for them, the first of them `begin` before `base`, which are
    loaded by `wide`."""

    base: Expr
    own: Var
    step: int
    tap: Var | None = None
    by: int = 0
    many: int = 1
    begin: int = 0
    length: int = 1
    wide: int = 1


def _window(
    load: Load, map_: Map, layout: Fragment, trips: Mapping[Var, int], lets: dict[Var, Expr]
) -> _Window | None:
    """What threads hold of the places that `load` reads in loops of so many `trips`, between which
    `lets` are."""
    found = _axes(load, map_, layout, trips, lets)
    if found is None:
        return None
    axes = [next(x for x in found if isinstance(x, _Axis) and x.own is v) for v in map_.vars]
    held = _held_layout(layout, axes)
    if held is None:
        return None
    names: list[Var] = []
    places: list[Expr] = []
    starts: dict[Var, Expr] = {}
    for axis in axes:
        group = fresh_var(axis.own.name)
        names.append(group)
        starts[axis.own] = axis.base + group * (axis.step * axis.many)
        if axis.tap is None:
            places.append(axis.own)
            continue
        place = fresh_var(axis.tap.name)
        names.append(place)
        starts[axis.own] = starts[axis.own] + place - axis.begin
        inner = axis.own % axis.many * axis.step + axis.tap * axis.by + axis.begin
        places += [axis.own // axis.many, inner]
    shape = tuple(map(const, held.tile))
    name = fresh_name(f"{load.buffer.name}_window")
    tile = Buffer(name, shape, load.dtype, Space.FRAGMENT, layout=held)
    indices = tuple(simplify(starts[x.own] if isinstance(x, _Axis) else x) for x in found)
    fill = Store(tile, tuple(names), Load(load.buffer, indices))
    read = Load(tile, tuple(map(simplify, places)))
    outer = [x for x in found[:-1] if isinstance(x, _Axis) and x.tap is not None]
    shares = all(x.length < x.many * trips[x.tap] for x in outer if x.tap is not None)
    return _Window(tile, Map(tuple(names), shape, (fill,), layout=held), read, shares)


def _axes(
    load: Load, map_: Map, layout: Fragment, trips: Mapping[Var, int], lets: dict[Var, Expr]
) -> list[_Axis | Expr] | None:
    """The indices of a load, those that stay the same as they are; None where threads cannot hold
    what it reads, or gain nothing."""
    buffer, moving = load.buffer, (*map_.vars, *trips)
    if not buffer.is_global or buffer.dtype.bits < 8 or not load.indices:
        return None
    zero: dict[Var, Expr] = {v: const(0, v.dtype) for v in moving}
    inside = {v for op in walk_ops(map_.body) for v in bound(op)}
    seen: list[Var] = []
    found: list[_Axis | Expr] = []
    for n, index in enumerate(load.indices):
        for var in reversed(lets):
            index = substitute(index, {var: lets[var]})
        by = {v: stride_of(index, v) for v in moving}
        base = simplify(substitute(index, zero))
        own = [v for v in map_.vars if by[v] != 0]
        taps = [v for v in trips if by[v] != 0]
        seen += own + taps
        if any(step is None or step < 0 for step in by.values()) or loads(index):
            return None
        if len(own) > 1 or len(taps) > len(own) or variables(base) & inside:
            return None
        if not own:
            found.append(base)
            continue
        axis = _Axis(base, own[0], by[own[0]] or 0)
        for tap in taps:
            many = _run(layout, map_.vars.index(axis.own))
            step = by[tap] or 0
            length = axis.step * (many - 1) + step * (trips[tap] - 1) + 1
            last = n == len(load.indices) - 1
            wide, begin = _vector(base, axis.step * many, length, buffer) if last else (1, 0)
            length = -(-(begin + length) // wide) * wide
            if length > many * trips[tap] and wide == 1:
                return None
            axis = replace(axis, tap=tap, by=step, many=many, begin=begin, length=length, wide=wide)
        found.append(axis)
    axes = [x for x in found if isinstance(x, _Axis) and x.tap in trips]
    gains = any(x.wide > 1 or x.length < x.many * trips[x.tap] for x in axes if x.tap is not None)
    gains = gains or _is_asked_for(load, map_)
    return found if gains and len(seen) == len(moving) == len({*seen}) else None


def _is_asked_for(load: Load, map_: Map) -> bool:
    """Whether conditions say which elements are read: each would be a branch, and waited for."""
    nodes = (n for op in walk_ops(map_.body) for e in expressions(op) for n in walk(e))
    return any(load in loads(x) for n in nodes if isinstance(n, Select) for x in (n.a, n.b))


def _run(layout: Fragment, dim: int) -> int:
    """How many neighbours along a dimension each thread has, wherever it begins."""
    coords = layout.coordinates()[..., dim]
    own = {*coords[0].tolist()}
    many = 1
    while layout.tile[dim] % (2 * many) == 0:
        begins = coords[:, 0] - coords[:, 0] % (2 * many)
        whole = all(c - c % (2 * many) + k in own for c in own for k in range(2 * many))
        if not whole or ((coords[:, 0] - coords[0, 0]) % (2 * many)).any() or begins.min() < 0:
            break
        many *= 2
    return many


def _vector(base: Expr, stride: int, length: int, buffer: Buffer) -> tuple[int, int]:
    """How many elements the widest vectors have that a run of `length` from `base` is read by,
    where runs are `stride` apart, and how many of them come before it."""
    form, size = linear(base), buffer.shape[-1]
    if form is None or not isinstance(size, Const) or buffer.strides is not None:
        return 1, 0
    wide = VECTOR // buffer.dtype.bits
    while wide > 1:
        begin = form.const % wide
        even = all(n % wide == 0 for n in (stride, size.value, *form.terms.values()))
        if even and -(-(begin + length) // wide) * wide <= 2 * length:
            return wide, begin
        wide //= 2
    return 1, 0


def _held_layout(layout: Fragment, axes: Sequence[_Axis]) -> Fragment | None:
    """The threads of `layout` with what they hold of the axes."""
    coords = np.moveaxis(layout.coordinates(), -1, 0)
    many = [x.many for x in axes]
    first = np.logical_and.reduce([c[0] % n == 0 for c, n in zip(coords, many, strict=True)])
    if first.sum() * prod(many) != layout.values:
        return None
    tile = tuple(n // m for n, m in zip(layout.tile, many, strict=True))
    groups = tuple(c[:, first] // n for c, n in zip(coords, many, strict=True))
    found, dim = Fragment.fit(tile, np.ravel_multi_index(groups, tile)), 0
    for axis in axes:
        dim += 1
        if axis.tap is not None:
            found = _expanded(found, dim, axis)
            dim += 1
    return found


def _expanded(layout: Fragment, dim: int, axis: _Axis) -> Fragment:
    """`layout` with a dimension for what threads hold along an axis. Only what a vector loads lies
    in registers beside each other: longer runs would be loaded by wider ones that are not aligned,
    and shifted."""
    tile = (*layout.tile[:dim], axis.length, *layout.tile[dim:])
    outer = np.arange(axis.length).reshape(1, -1, 1, axis.wide)
    coords = [c[:, None, :, None] for c in np.moveaxis(layout.coordinates(), -1, 0)]
    table = np.ravel_multi_index(np.broadcast_arrays(*coords[:dim], outer, *coords[dim:]), tile)
    return Fragment.fit(tile, table.reshape(layout.threads, -1))
