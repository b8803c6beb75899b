"""Tensors and values under an index: tiles of them, elements by integer values, parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.marks import with_loc
from tilewright.lang.axes import ONE, Axis, broadcast, extent_axis, shape_text
from tilewright.lang.builder import current, current_block
from tilewright.lang.handles import WORDS, Access, Tile, Tiles, Variable
from tilewright.lang.types import integer
from tilewright.lang.values import (
    Box,
    Places,
    Product,
    TileIndex,
    Value,
    lift,
    over,
    own_places,
    value_of,
)
from tilewright.lang.where import locate


def box_of(tile: Tile, keys: Sequence[Any]) -> Box:
    """`keys`: a scalar, a tile index, a slice or an integer value for each dimension."""
    keys = [k.as_expr() if isinstance(k, (Access, Variable)) else k for k in keys]
    keys = [value_of(k) if isinstance(k, Tiles) else k for k in keys]
    buffer = tile.buffer
    gathers = [k for k in keys if isinstance(k, Value)]
    where = [at for at, k in enumerate(keys) if isinstance(k, Value)]
    if where and where != list(range(where[0], where[-1] + 1)):
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
                fix='cast it: T.cast(x, "int32")',
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
                loose += [axis for axis in joint if axis.limit is not None]
            recipe.append(("gather", (key, first)))
        elif isinstance(key, TileIndex):
            recipe.append(("tile", (len(axes), key.start)))
            axes.append(key.axis)
            starts.append(key.start)
            end = key.axis.limit
            if end is not None and not (
                key.start is key.axis.start and same(end, buffer.shape[at])
            ):
                loose.append(key.axis)
        elif isinstance(key, slice):
            start, axis = _slice_axis(tile, at, key, size)
            recipe.append(("tile", (len(axes), start)))
            axes.append(axis)
            starts.append(start)
        else:
            index = current("an index").snapshot(integer(key, f"an index of {buffer.name}"))
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

    region = None
    if not gathers:
        kept = iter(axes)
        extents = tuple(
            const(1) if how == "scalar" else const(next(kept).size) for how, _ in recipe
        )
        region = Region(buffer, tuple(starts), extents)
    return Box(tile, keys, tuple(axes), indices, region, tuple(loose), tuple(gathers))


def same(a: Expr, b: Expr) -> bool:
    return a is b or (isinstance(a, Const) and isinstance(b, Const) and a.value == b.value)


def _slice_axis(tile: Tile, at: int, key: slice, size: Any) -> tuple[Expr, Axis]:
    if key.start is None and key.stop is None and key.step is None:
        return const(0), extent_axis(size)
    if key.step is not None or any(
        not isinstance(wrap(b or 0), Const) for b in (key.start, key.stop)
    ):
        raise CompileError(
            f"a slice of {tile.name} with bounds that are known only at run time, or a step",
            fix="shift a tile index: X[m + s, :]; or index with integer values: X[T.arange(n) * 2]",
            code="index",
        )
    start = 0 if key.start is None else key.start
    stop = size if key.stop is None else key.stop
    if int(wrap(start)) == 0:
        return const(0), extent_axis(stop)
    return const(int(wrap(start))), extent_axis(int(wrap(stop)) - int(wrap(start)))


def read(tile: Tile, keys: Sequence[Any], fill: Any = 0) -> Value:
    """The elements of a buffer there, `fill` outside it."""
    builder = current_block()
    box = box_of(tile, keys)
    buffer, loc = box.buffer, locate()

    def at(places: Places) -> Expr:
        indices = box.indices(places)
        load = Load(buffer, indices, loc)
        if fill == 0 and not isinstance(fill, Expr):
            return load
        inside: Expr = TRUE
        for index, size in zip(indices, buffer.shape, strict=True):
            low = compare("<=", const(0), index)
            inside = logical_and(inside, logical_and(low, compare("<", index, size)))
        return select(inside, load, cast(wrap(fill, buffer.dtype), buffer.dtype))

    if not box.axes:
        return builder.let(at(()))  # type: ignore[return-value]
    value = Value(box.axes, buffer.dtype, at, box.parts)
    value.source, value.writes = buffer, builder.writes(buffer)
    value.box, value.is_formula = box, False
    if fill == 0:
        value.region = box.region
        value.zeros = tuple(a for a in box.axes if box.region is not None and a not in box.loose)
    return value


def store(tile: Tile, keys: Sequence[Any], value: Any) -> None:
    """The elements of a tensor there = value. Padding is not stored."""
    builder = current_block()
    box = box_of(tile, keys)
    made = value_of(value)
    axes = broadcast([box.axes, made.axes], f"a store to {tile.name}")
    if [a.key for a in axes] != [a.key for a in box.axes]:
        raise CompileError(
            f"a store to {tile.name}: the value has more dimensions than the place",
            expected=shape_text(box.axes),
            got=shape_text(made.axes),
            fix="index the tensor with a tile index for each dimension of the value",
            code="shape",
        )
    if not box.axes:
        builder.emit(Store(box.buffer, box.indices(()), cast(made.element(()), box.buffer.dtype)))
        return
    if box.region is not None and not box.loose and len(made.real) == len(box.axes):
        if made.held((Space.FRAGMENT, ())) is None and not isinstance(made, Product):
            made = lift(lambda x: cast(x, box.buffer.dtype), made)
            made.name = f"{tile.name}_tile"
        builder.emit(Copy(whole(made.hold()), box.region))
        return
    vars, places = over(builder, box.axes)
    element = made.element(own_places(made, box.axes, places))
    op: Op = Store(box.buffer, box.indices(places), cast(element, box.buffer.dtype))
    builder.emit(guarded_map(vars, box, places, op))


def guarded_map(vars: tuple[Var, ...], box: Box, places: Places, op: Op) -> Op:
    """`op` for all places that count."""
    current_block().footprints.append(tuple(axis for axis in box.axes if axis is not ONE))
    inside: Expr = TRUE
    for axis, place in zip(box.axes, places, strict=True):
        if axis in box.loose:
            inside = logical_and(inside, axis.inside(place))
    body: Body = (op,) if inside is TRUE else (If(inside, (with_loc(op, locate()),)),)
    return Map(vars, tuple(const(a.size) for a in box.axes if a is not ONE), body)


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
        if isinstance(key, slice):
            start, stop = (0 if key.start is None else key.start, key.stop or axis.size)
            if axis.limit is not None or key.step is not None or not 0 <= start < stop <= axis.size:
                raise CompileError(
                    f"a slice of a value along {axis.name}",
                    expected=f"constant bounds between 0 and {axis.size}, of a whole dimension",
                    got=f"{start}:{stop}",
                    fix="slice what it was read from, or choose with T.where",
                    code="index",
                )
            inner.append((len(axes), const(int(start))))
            axes.append(extent_axis(int(stop) - int(start)))
            continue
        inner.append((None, current("an index").snapshot(integer(key, "an index of a value"))))

    def at(places: Places) -> Expr:
        return value.element(tuple(by if p is None else places[p] + by for p, by in inner))

    made = Value(tuple(axes), value.kind, at, (value,))
    if not axes:
        return current().let(Load(value.hold(Space.SHARED), tuple(by for _, by in inner)))
    return made


WORDS.update(read=read, store=store, slice=sliced)
