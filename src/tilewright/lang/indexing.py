"""Tensors and values under an index: tiles of them, elements by integer values, parts."""

from __future__ import annotations

import math as numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

from tilewright.ir.analysis.bounds import bounds
from tilewright.ir.marks import with_loc
from tilewright.ir.simplify import simplify
from tilewright.lang.builder import TracedAgain
from tilewright.lang.joined import check_joined, seen_joined
from tilewright.lang.products import Product
from tilewright.lang.scalar import as_number, concrete
from tilewright.lang.values import *


def box_of(tile: Tile, keys: Sequence[Any]) -> Box:
    """`keys`: a scalar, a tile index, a slice or an integer value for each dimension."""
    keys = [k.as_expr() if isinstance(k, (Access, Variable)) else k for k in keys]
    keys = [value_of(k) if isinstance(k, Tiles) else k for k in keys]
    buffer = seen_joined(current("an index"), tile.buffer, tile.extents, keys)
    gathers = [k for k in keys if isinstance(k, Value)]
    where = [at for at, k in enumerate(keys) if isinstance(k, Value)]
    if where and any(isinstance(k, (slice, TileIndex)) for k in keys[where[0] : where[-1]]):
        raise CompileError(
            f"the integer values that index {buffer.name} are not adjacent",
            fix="bring them side by side, or use scalars for the other dimensions",
            code="index",
        )
    for value in gathers:
        if not value.kind.is_int:
            raise CompileError(
                f"an index of {buffer.name} must be an integer",
                got=f"a value of type {value.kind}",
                fix="choose elements instead: Y[m, n] = T.where(cond, x, Y[m, n])"
                if value.kind.is_bool
                else 'cast it: T.cast(x, "int32")',
                code="not-integer",
            )
    joint = broadcast([v.axes for v in gathers], f"the indices of {buffer.name}")
    axes: list[Axis] = []
    recipe: list[tuple[str, Any]] = []  # how each index of the buffer is found
    starts: list[Expr] = []
    loose: list[Axis] = []
    for at, key in enumerate(keys):
        size = tile.extents[at]
        if isinstance(key, Value):
            if at == where[0]:
                first = len(axes)
                axes += joint
                loose += [axis for axis in joint if axis.is_ragged]
            recipe.append(("gather", (key, first)))
        elif isinstance(key, TileIndex):
            recipe.append(("tile", (len(axes), key.base)))
            axes.append(key.axis)
            starts.append(key.base)
            low, end = key.axis.first, key.axis.limit
            own = key.base is key.axis.start
            before = low is not None and not (own and is_same(low, const(0)))
            behind = end is not None and not (own and is_same(end, buffer.shape[at]))
            if before or behind or key.axis.shift is not None:
                loose.append(key.axis)
        elif isinstance(key, slice):
            start, axis = _slice_axis(tile, at, key, size)
            recipe.append(("tile", (len(axes), start)))
            axes.append(axis)
            starts.append(start)
            ends = axis.limit is None or is_same(axis.limit, buffer.shape[at])
            if not buffer.is_global:
                current().uncut.add(current().number)
            elif axis.shift is not None or not ends or axis.part != axis.size:
                loose.append(axis)
        else:
            index = current("an index").snapshot(integer(key, f"an index of {buffer.name}"))
            _check_front(buffer, at, index)
            recipe.append(("scalar", index))
            starts.append(index)

    def indices(places: Places) -> Places:
        found: list[Expr] = []
        for how, what in recipe:
            if how == "scalar":
                found.append(what)
            elif how == "tile":
                found.append(what[1] + places[what[0]])
            else:
                value, begin = what
                found.append(
                    value.element(own_places(value, joint, places[begin : begin + len(joint)]))
                )
        return tuple(found)

    region: Region | None = None
    along: tuple[Axis | None, ...] = ()
    if not gathers:
        kept = iter(axes)
        along = tuple(None if how == "scalar" else next(kept) for how, _ in recipe)
        extents = tuple(const(1 if axis is None else axis.part) for axis in along)
        region = Region(buffer, tuple(starts), extents)
        if any(axis is not None and axis.shift is not None for axis in along):
            region, along = _flat(region, along)
    check_joined(current(), [axis.key for axis in axes])
    return Box(tile, keys, tuple(axes), indices, region, along, tuple(loose), tuple(gathers))


def _check_front(buffer: Buffer, axis: int, index: Expr) -> None:
    """No element lies at a negative constant; a part may begin before the first, with zeros."""
    if isinstance(index, Const) and index.value < 0:
        size = concrete(buffer.shape[axis])
        raise CompileError(
            f"index {index.value} is outside dimension {axis} of {buffer.name}",
            expected=f"0 … {size - 1}" if isinstance(size, int) else "0 or more",
            got=str(index.value),
            fix=f"negative indices do not wrap: write {size} - {-index.value}",
            code="index",
        )


def _flat(region: Region, along: Sequence[Axis | None]) -> tuple[Region | None, Any]:
    """The same elements of a tensor seen as one row, where its rows begin at the places that the
    shift of its last axis was made for. A row outside a matrix of several would be another's."""
    buffer, axis = region.buffer, along[-1]
    single = all(extent is const(1) for extent in region.extents[:-1])
    if axis is None or axis.shift is None or axis.split is None or not single:
        return None, ()
    if buffer.rank == 1 or buffer.strides is not None or not buffer.is_global:
        return None, ()
    if not buffer.is_static or prod(buffer.static_shape) >= 2**31:
        return None, ()
    length = const(axis.total) if axis.total else axis.limit
    if region.starts[-1] is not axis.start or not is_same(length, buffer.shape[-1]):
        return None, ()
    builder = current()
    ranges, sizes = builder.known(), buffer.static_shape[1:-1]
    found = [bounds(index, ranges) for index in region.starts[1:-1]]
    if any(each.lo < 0 or each.hi >= size for each, size in zip(found, sizes, strict=True)):
        return None, ()
    row: Expr = const(0)
    for index, size in zip(region.starts[:-1], buffer.shape[:-1], strict=True):
        row = row * size + index
    first = row * buffer.shape[-1]
    known = builder.shifts.get(axis.shift)
    if known is None:
        known = builder.shifts[axis.shift] = first
        begin = builder.outermost()._replace(at=0, order=0)
        builder.emit_at(begin, Let(axis.shift, first % axis.split.align))
    if known is not first:
        return None, ()
    name = (builder.number, buffer.name)
    if name not in builder.flat:
        size = reduce(lambda a, b: a * b, buffer.shape)
        flat = Buffer(builder.fresh(f"{buffer.name}_flat"), (size,), buffer.dtype, buffer.space)
        builder.flat[name] = flat
        builder.emit_at(builder.outermost()._replace(at=0), View(flat, buffer))
    align = axis.split.align
    start = first // align * align + simplify(axis.start + axis.shift)
    return Region(builder.flat[name], (start,), (const(axis.part),)), (axis,)


def _slice_axis(tile: Tile, at: int, key: slice, size: Any) -> tuple[Expr, Axis]:
    if key.start is None and key.stop is None and key.step is None:
        if isinstance(size, TileIndex):
            return const(0), size.axis
        axis = extent_axis(size)
        return axis.start, axis
    if key.step is None and key.start is not None and key.stop is not None:
        low, high = (integer(bound, f"a bound of {tile.name}") for bound in (key.start, key.stop))
        length = simplify(high - low)
        if isinstance(length, Const) and length.value > 0 and not isinstance(low, Const):
            axis = extent_axis(int(length.value))
            return axis.start + current("an index").snapshot(low), axis
    given = [wrap(bound) for bound in (key.start, key.stop) if bound is not None]
    if key.step is not None or not all(isinstance(bound, Const) for bound in given):
        raise CompileError(
            f"a slice of {tile.name} whose length is known only at run time, or with a step",
            fix="loop over the range: `for n in T.tile((low, high)):`; shift a tile index: "
            "X[m + s, :]; or index with integer values: X[T.arange(n) * 2]",
            code="index",
        )
    start = 0 if key.start is None else key.start
    stop = size if key.stop is None else key.stop
    first = int(wrap(start))
    if first < 0 and key.stop is None:
        raise CompileError(
            f"a slice of {tile.name} from the end",
            expected="a start that counts from the front",
            got=f"{first}:",
            fix=f"negative indices do not wrap: write {size} - {-first} as the start",
            code="index",
        )
    if isinstance(end := wrap(stop), Const) and end.value <= first:
        raise CompileError(
            f"a slice of {tile.name} has no elements",
            expected=f"an end after the start, {first}",
            got=str(end.value),
            fix=f"negative indices do not wrap: write {size} - {-end.value} as the end"
            if end.value < 0
            else "leave it out, or write where it ends",
            code="index",
        )
    axis = extent_axis(stop if first == 0 else int(wrap(stop)) - first)
    return axis.start + first, axis


def _note_last(builder: Builder, box: Box) -> None:
    """The axes along which the last index moves, and of how many axes that is; of integers the
    last of theirs is the finest."""
    key = box.keys[-1] if box.keys else None
    last = box.along[-1] if box.along else box.axes[-1] if box.axes else None
    axes = key.axes if isinstance(key, Value) else () if last is None else (last,)
    for axis in axes:
        builder.lasts[axis.key] = max(builder.lasts.get(axis.key, 0), len(box.axes))
    builder.finest |= {axis.key for axis in [a for a in axes if a.key is not None][-1:]}


def read(tile: Tile, keys: Sequence[Any], fill: Any = 0) -> Value:
    """The elements of a buffer there, `fill` outside it."""
    builder = current_block()
    box = box_of(tile, keys)
    buffer, loc = box.buffer, locate()
    fill = fill if is_zero(fill) else number_of(fill, buffer.dtype)

    def at(places: Places) -> Expr:
        if is_zero(fill):
            return Load(*box.where(places), loc)
        indices = box.indices(places)
        return fill_outside(Load(buffer, indices, loc), buffer, indices, fill)

    if not box.axes:
        return as_number(builder.let(at(())))  # type: ignore[no-any-return]
    value = Value(box.axes, buffer.dtype, at, box.parts)
    value.source, value.writes = buffer, builder.writes(buffer)
    number = builder.number
    builder.reads_of.append((number, box))
    _note_last(builder, box)
    if value.writes:  # perhaps by another block, where several have a row
        builder.undivided.add(number)
    if value.is_long and box.region is not None:
        builder.loads += 1
        value.serial = builder.loads
    value.box, value.is_formula = box, False
    if is_zero(fill):
        value.region, value.is_zero_outside = box.region, buffer.is_global
        value.zeros = tuple(a for a in box.axes if box.region is not None and a not in box.loose)
    return value


def is_zero(fill: Any) -> bool:
    """Whether `fill` is what reads outside a tensor give anyway."""
    return not isinstance(fill, Expr) and bool(fill == 0)


def fill_outside(element: Expr, buffer: Buffer, indices: Places, fill: Any) -> Expr:
    """The element of `buffer` there, `fill` outside it."""
    inside: Expr = TRUE
    for index, size in zip(indices, buffer.shape, strict=True):
        low = compare("<=", const(0), index)
        inside = logical_and(inside, logical_and(low, compare("<", index, size)))
    return select(inside, element, number_of(fill, buffer.dtype))


def number_of(value: Any, kind: DType) -> Expr:
    """A number as one of the type. A literal has to be one; -1 has the bits of unsigned ones, and
    infinity is the largest."""
    expr = wrap(value, kind)
    if not kind.is_int or not isinstance(expr, Const) or abs(expr.value) == numbers.inf:
        return cast(expr, kind)
    low = -(1 << kind.bits - 1)
    return cast(expr if low <= expr.value < 0 else const(expr.value, kind), kind)


def read_with_ones(tile: Tile, keys: tuple[Any, ...]) -> Value:
    """`X[m, None, :]`: each None is a dimension of 1."""
    given = tuple(k for k in keys if k is not None)
    value = value_of(tile[given])
    gathers = [k for k in given if isinstance(k, Value)]
    dots = tile.buffer.rank - len(given) + 1
    parts: list[Any] = []
    for key in keys:
        if key is None:
            parts.append(None)
        elif isinstance(key, Value):  # adjacent ones are read together
            parts += [slice(None)] * (value.ndim - _kept(given, dots)) if key is gathers[0] else []
        else:
            parts += [slice(None)] * _kept((key,), dots)
    return sliced(value, tuple(parts))  # type: ignore[no-any-return]


def _kept(keys: tuple[Any, ...], dots: int) -> int:
    """The dimensions that slices, tile indices and an ellipsis keep."""
    return sum(dots if key is Ellipsis else isinstance(key, (slice, TileIndex)) for key in keys)


def store(tile: Tile, keys: Sequence[Any], value: Any) -> None:
    """The elements of a tensor there = value. Padding is not stored."""
    builder = current_block()
    box = box_of(tile, keys)
    made = value_of(value)
    _note_last(builder, box)
    builder.writes_of.append((builder.number, box))
    _check_fits(box, made, f"a store to {tile.name}")
    _read_first(builder, box, made)
    with once(builder, box.axes), walking(builder, box.axes, made.goes_backward):
        _store(builder, box, made)


def _check_fits(box: Box, made: Value, what: str) -> None:
    axes = broadcast([box.axes, made.axes], what)
    if [a.key for a in axes] != [a.key for a in box.axes]:
        fix = "index the tensor with a tile index for each dimension of the value, or reduce "
        fix += "the value first: T.sum(x, dim=…)"
        twice = [a.name for k, a in enumerate(made.real) if a in made.real[:k]]
        if twice:  # X[m, L[m]]
            fix = "read an element for each index: " + "X[{0}.index, L[{0}]]".format(*twice)
        raise CompileError(
            f"{what}: the value has more dimensions than the place",
            expected=shape_text(box.axes),
            got=shape_text(made.axes),
            fix=fix,
            code="shape",
        )


def _read_first(builder: Builder, box: Box, made: Value) -> None:
    """What is read of the tensor, element by element as it is stored to, is read before where it
    is not the same element. One block has all of a row then."""
    for part in made_of(made):
        same = part.region is not None and part.region == box.region and not part.is_turned
        if part.source is not box.buffer or same:
            continue
        builder.undivided.add(builder.number)
        if part.serial and part.serial not in builder.kept:
            builder.kept.add(part.serial)
            raise TracedAgain
        part.hold()


def _store(builder: Builder, box: Box, made: Value) -> None:
    if not box.axes:
        builder.emit(Store(box.buffer, box.indices(()), cast(made.element(()), box.buffer.dtype)))
        return
    if box.region is not None and not box.loose and len(made.real) == len(box.axes):
        is_turned = made.is_turned
        if made.held((Space.FRAGMENT, ())) is None and not isinstance(made, Product):
            made = lift(lambda x: cast(x, box.buffer.dtype), made)
            made.name = f"{box.buffer.name}_tile"
        if made.is_long:
            builder.emit(Copy(whole(made.piece(builder)), box.piece(builder)))
            return
        source = made.hold()
        if is_turned:  # written in rows too
            name = builder.fresh(None, f"{box.buffer.name}_rows")
            rows = replace(source, name=name, space=Space.SHARED)
            builder.emit(Alloc(rows))
            builder.emit(Copy(whole(source), whole(rows)))
            source = rows
        builder.emit(Copy(whole(source), box.region))
        return
    element_map(
        builder, box, made,
        lambda buffer, indices, value: Store(buffer, indices, cast(value, buffer.dtype)),
    )  # fmt: skip


def update(op: str, dst: Any, value: Any, order: str) -> None:
    """The elements of a tensor there = themselves op value, each in one step."""
    builder, made = current_block(), value_of(value)
    box = value_of(dst).box
    assert box is not None
    _check_fits(box, made, f"an atomic update of {box.buffer.name}")
    _read_first(builder, box, made)
    ones = tuple(const(1) for _ in box.buffer.shape)
    with once(builder, box.axes), walking(builder, box.axes, made.goes_backward):
        element_map(
            builder, box, made,
            lambda buffer, at, each: Atomic(
                op, Region(buffer, at, ones[: buffer.rank]), cast(each, buffer.dtype), order=order
            ),
        )  # fmt: skip


def element_map(
    builder: Builder, box: Box, made: Value, make: Callable[[Buffer, Places, Expr], Op]
) -> None:
    """The op that `make` gives, for all places of the box that count."""
    builder.footprints.append(tuple(axis for axis in box.axes if axis is not ONE))
    vars, places = over(builder, box.axes)
    op = make(*box.where(places), made.element(own_places(made, box.axes, places)))
    counts = inside(box.axes, places, box.loose)
    body: Body = (op,) if counts is TRUE else (If(counts, (with_loc(op, locate()),)),)
    for each in (Map(vars, spans(builder, box.axes), body),) if vars else body:
        builder.emit(each)


def _said(key: slice) -> str:
    bounds = (key.start, key.stop) if key.step is None else (key.start, key.stop, key.step)
    return ":".join("" if bound is None else str(bound) for bound in bounds)


def sliced(value: Value, keys: tuple[Any, ...]) -> Any:
    """`v[:, None]`, `v[0:4]`, `v[3]`: dimensions added, cut by constants and left out."""
    if any(k is Ellipsis for k in keys):
        dots = next(i for i, k in enumerate(keys) if k is Ellipsis)
        missing = len(value.axes) - sum(k is not None for k in keys) + 1
        keys = (*keys[:dots], *[slice(None)] * missing, *keys[dots + 1 :])
    used = sum(k is not None for k in keys)
    if used > len(value.axes):
        raise CompileError(
            f"a value of shape {shape_text(value.axes)} has {len(value.axes)} dimensions",
            got=f"{used} indices",
            fix="leave out the extra indices",
            code="index",
        )
    keys = (*keys, *[slice(None)] * (len(value.axes) - used))
    axes: list[Axis] = []
    inner: list[tuple[int | None, Expr]] = []  # place of the result, and what is added to it
    own = iter(value.axes)
    for key in keys:
        if key is None:
            axes.append(ONE)
            continue
        axis = next(own)
        if key == slice(None):
            inner.append((len(axes), const(0)))
            axes.append(axis)
            continue
        current().undivided.add(current().number)
        if isinstance(key, slice):
            size = axis.total or axis.size
            start = 0 if key.start is None else key.start
            stop = size if key.stop is None else key.stop
            whole_axis = has_places(axis)
            if not whole_axis or key.step is not None or not 0 <= start < stop <= size:
                raise CompileError(
                    f"a slice of a value along {axis.name}",
                    expected=f"constant bounds between 0 and {size}"
                    if whole_axis
                    else "a whole dimension, not a tile of it",
                    got=_said(key),
                    fix="slice or index what it was read from: X[m, 2 * T.arange(n)]; or choose "
                    "with T.where",
                    code="index",
                )
            inner.append((len(axes), const(int(start))))
            axes.append(extent_axis(int(stop) - int(start)))
            continue
        if isinstance(key, (Value, Tiles)):
            raise CompileError(
                "an index of a value is a tile",
                expected="a number, a slice with constant bounds, or None",
                fix="index the tensor that it was read from: X[m.index, L[m]] takes an element of "
                "each row, X[m, L[:]] the columns L",
                code="index",
            )
        if not has_places(axis):
            raise CompileError(
                f"an element of a value along {axis.name}, whose tiles may have any size",
                fix="index what it was read from, or reduce it: T.max(x, dim=…)",
                code="index",
            )
        inner.append((None, current("an index").snapshot(integer(key, "an index of a value"))))

    def at(places: Places) -> Expr:
        return value.element(tuple(by if p is None else places[p] + by for p, by in inner))

    made = Value(tuple(axes), value.kind, at, (value,))
    if not axes:
        return current().let(Load(value.hold(Space.SHARED), tuple(by for _, by in inner)))
    return made


WORDS.update(update=update, read=read, read_with_ones=read_with_ones, store=store, slice=sliced)
