"""`x[…]`: numbers, slices, None, an ellipsis, and arrays of integers."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any

from tilewright.formula.front.values import (
    OPERATIONS,
    Number,
    Shape,
    Value,
    array_of,
    axis_of,
    broadcast_at,
    broadcast_shapes,
    current,
    define,
    extent_of,
    same,
    sizes,
)
from tilewright.ir.analysis.bounds import prove
from tilewright.ir.core import *
from tilewright.ir.formula import extents
from tilewright.support.errors import CompileError

_STEPWISE = "index in steps, x[:, 0][rows], or move the axes together with tm.moveaxis"


def getitem(x: Value, key: Any) -> Value:
    """An element, a part, or a gather. Integer arrays beside each other broadcast, and read zero
    outside of `x`."""
    keys = _complete(x, key if isinstance(key, tuple) else (key,))
    gathers = [i for i in keys if isinstance(i, Value) and not isinstance(i, Number)]
    common = broadcast_shapes(*(each.shape for each in gathers)) if gathers else ()
    if common:
        _require_adjacent(keys)
    shape: list[Any] = []
    reads: list[Callable[[tuple[Expr, ...]], Expr]] = []  # of the new indices, one per axis of x
    start: int | None = None  # where the axes of the gathers are
    for each in keys:
        at, extent = len(shape), x.shape[len(reads)] if len(reads) < x.ndim else 0
        if each is None:
            shape.append(1)
        elif isinstance(each, slice):
            reads.append(_slice(each, extent, at, shape))
        elif isinstance(each, Value) and not isinstance(each, Number):
            if start is None:
                start = at
                shape += common
            reads.append(_gather(each, start, common))
        else:
            reads.append(_number(each, extent))
    if not gathers:
        return x.view(tuple(shape), lambda *new: tuple(read(new) for read in reads))
    x = _ended(x)
    axes = [each for each in keys if each is not None]
    lone = [d for d, n in enumerate(x.shape) if same(n, 1) and isinstance(axes[d], Value)]

    def elements(new: tuple[Expr, ...]) -> Expr:
        places = tuple(read(new) for read in reads)
        found = x.at(places)
        for d in lone:  # views of one element do not ask at which index they are read
            found = select(compare("==", places[d], 0), found, const(0, found.dtype))
        return found

    return define("item", tuple(shape), elements, x.dtype)


def _ended(x: Value) -> Value:
    """`x` with zeros beyond its ends, where a view may have other elements of its array."""
    if x.is_whole or x.buffer is None:
        return x
    axes = tuple(Var(f"%{d}") for d in range(x.ndim))
    ends = dict(zip((*x._outer, *x._read(axes)), extents(x.buffer), strict=True))
    pairs = zip(axes, x.shape, strict=True)
    is_array = all(same(ends.get(axis, 0), n) for axis, n in pairs if not same(n, 1))
    return x if is_array else define("part", x.shape, x.at, x.dtype)


def _complete(x: Value, keys: tuple[Any, ...]) -> list[Any]:
    """Checked, and with slices for what an ellipsis or the end leaves out."""
    for each in keys:
        _check(each)
    taken = sum(each is not None and each is not Ellipsis for each in keys)
    if taken > x.ndim:
        raise CompileError(
            f"{taken} indices for an array of {x.ndim} axes", got=f"shape {x.shape}",
            fix="leave some out",
        )  # fmt: skip
    if sum(each is Ellipsis for each in keys) > 1:
        raise CompileError("an index has more than one ...", fix="write : for single axes")
    rest = [slice(None)] * (x.ndim - taken)
    at = next((i for i, each in enumerate(keys) if each is Ellipsis), None)
    return [*keys, *rest] if at is None else [*keys[:at], *rest, *keys[at + 1 :]]


def _check(key: Any) -> None:
    if isinstance(key, Value):
        if key.dtype.is_int:
            return
        is_mask = key.dtype.is_bool
        raise CompileError(
            f"an index is an array of integers, not of {key.dtype}",
            fix="the size of x[mask] is not known before it runs: use tm.where(mask, x, other)"
            if is_mask
            else 'convert it first: tm.astype(i, "int32")',
        )
    if key is None or isinstance(key, (slice, EllipsisType)):
        return
    if isinstance(key, (bool, list, tuple)) or not hasattr(key, "__index__"):
        raise CompileError(
            f"{type(key).__name__} is no index", got=repr(key)[:80],
            fix="use integers, slices, None, ... or integer arrays of the formula; pass a table "
            "as an argument of the function",
        )  # fmt: skip


def _require_adjacent(keys: list[Any]) -> None:
    places = [i for i, each in enumerate(keys) if not (each is None or isinstance(each, slice))]
    if places[-1] - places[0] >= len(places):
        raise CompileError(
            "integer indices with an axis between them", got="such as x[rows, :, 0]", fix=_STEPWISE
        )


def _slice(key: slice, extent: Any, at: int, shape: list[Any]) -> Callable[..., Expr]:
    sized = any(isinstance(n, Number) for n in (key.start, key.stop, extent))
    for bound in (key.start, key.stop, key.step):
        if isinstance(bound, Number) and bound.dtype.is_int and bound is not key.step:
            continue
        if isinstance(bound, Value) or not (bound is None or hasattr(bound, "__index__")):
            raise CompileError(
                "the bounds of a slice are Python integers", got=repr(bound),
                fix="gather with x[start + tm.arange(n)], or write tm.array(shape, fn)",
            )  # fmt: skip
    if key.step == 0:
        raise CompileError("the step of a slice is zero", fix="leave it out")
    start, stop, step = _ends(key, extent) if sized else key.indices(extent)
    length = stop - start if step > 0 else start - stop
    if key.start is key.stop is None and abs(step) == 1:
        shape.append(extent)  # by its name, where it has one
    else:
        count = (length + abs(step) - 1) // abs(step) if sized else len(range(start, stop, step))
        shape.append(count)
    begin = extent_of(start)
    return lambda new: new[at] * step + begin


def _ends(key: slice, extent: Any) -> tuple[Any, Any, int]:
    """What `slice.indices` says, of sizes that calls give: contracts have to decide it."""
    step = 1 if key.step is None else key.step.__index__()
    ends = (0, extent) if step > 0 else (extent - 1, -1)

    def counted(given: Any, end: Any) -> Any:
        if given is None:
            return end
        return given + extent if is_sure(given < 0) else given

    start, stop = counted(key.start, ends[0]), counted(key.stop, ends[1])
    low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
    if not all(is_sure(n >= 0) for n in (low, high - low, extent - high)):
        raise _undecided(f"the part {low} … {high}", extent)
    return start, stop, step


def is_sure(condition: Any) -> bool:
    """Whether a comparison of sizes holds, whatever calls give."""
    known = prove(condition.expr, current().ranges) if isinstance(condition, Number) else condition
    return known is True


def _undecided(what: str, extent: Any) -> CompileError:
    return CompileError(
        f"whether {what} lies inside an axis of {extent} elements is known only when the function "
        "is called",
        fix="say how long it is at least: dynamic={…: T.dynamic(name, min=…)}",
    )


def _number(key: Any, extent: Any) -> Callable[..., Expr]:
    if isinstance(key, Number) or isinstance(extent, Number):
        at = key + extent if is_sure(key < 0) else key
        if not is_sure((at >= 0) & (at < extent)):
            raise _undecided(f"index {key}", extent)
        place = wrap(extent_of(at))
        return lambda new: place
    found = const(axis_of(key, extent, "index") if extent else _outside(key))
    return lambda new: found


def _outside(key: Any) -> int:
    raise CompileError(f"index {key} of an axis that is empty", fix="check the size of the axis")


def _gather(key: Value, start: int, common: Shape) -> Callable[..., Expr]:
    return lambda new: cast(broadcast_at(key, new[start : start + len(common)]), INT32)


def take(x: Value, indices: Any, /, *, axis: int | None = None) -> Value:
    """The elements of `x` at `indices` along `axis`.

    >>> from tilewright.formula.front.trace import trace
    >>> rows = trace(take_rows := lambda x, i: take(x, i, axis=0),
    ...              [("x", (8, 4), "float32"), ("i", (3,), "int32")])
    >>> print(rows)
    formula formula(x: float32[8, 4], i: int32[3]) -> out
        out[i1 < 3, j < 4]: float32 = x[i[i1], j]
    """
    x, found = array_of(x, "take"), array_of(indices, "take")
    if axis is None and x.ndim != 1:
        raise CompileError(
            "take needs an axis in an array of several axes", got=f"shape {x.shape}", fix="axis=0"
        )
    before = axis_of(axis or 0, x.ndim)
    return getitem(x, (*[slice(None)] * before, found))


def take_along_axis(x: Value, indices: Any, /, *, axis: int = -1) -> Value:
    """The elements of `x` at `indices` along `axis`, each in its own row."""
    x, found = _ended(array_of(x, "take_along_axis")), array_of(indices, "take_along_axis")
    _check(found)
    along = axis_of(axis, x.ndim)
    if found.ndim != x.ndim:
        raise CompileError(
            f"take_along_axis of shapes {x.shape} and {found.shape}", fix="give both as many axes"
        )
    rest = [n for d, n in enumerate(x.shape) if d != along]
    others = [n for d, n in enumerate(found.shape) if d != along]
    common = list(broadcast_shapes(tuple(rest), tuple(others)))
    shape = (*common[:along], found.shape[along], *common[along:])

    def elements(new: tuple[Expr, ...]) -> Expr:
        row = cast(broadcast_at(found, new), INT32)
        zero = const(0)
        own = [zero if same(n, 1) else i for n, i in zip(x.shape, new, strict=True)]
        own[along] = row
        return x.at(tuple(own))

    return define("take_along_axis", shape, elements, x.dtype)


def indices(x: Any, /, *axes: int) -> Any:
    """The index of each element of `x` along the axes (all, if none is said), as int32 arrays of
    the shape of `x`, or of `x` itself where that is a shape; of one axis it is one array.

    >>> from tilewright.formula.front.trace import trace
    >>> def causal(s):
    ...     i, j = indices(s, -2, -1)
    ...     return j <= i
    >>> print(trace(causal, [("s", (4, 4), "float32")]))  # doctest: +ELLIPSIS
    formula causal(s: float32[4, 4]) -> out
        i[i1 < 4, j1 < 4]: int32 = i1
        j[i2 < 4, j2 < 4]: int32 = j2
        out[i3 < 4, j3 < 4]: bool = j[i3, j3] <= i[i3, j3]
    """
    shape = sizes(x) if isinstance(x, tuple) else array_of(x, "indices").shape
    found = [axis_of(axis, len(shape)) for axis in (axes or range(len(shape)))]
    made = [
        define("index", shape, lambda new, axis=axis: new[axis], INT32)  # type: ignore[misc]
        for axis in found
    ]
    return made[0] if len(axes) == 1 else tuple(made)


OPERATIONS["getitem"] = getitem
