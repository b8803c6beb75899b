"""`x[…]`: numbers, slices, None, an ellipsis, and arrays of integers."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any

from tilewright.formula.front.values import (
    OPERATIONS,
    Shape,
    Value,
    array_of,
    axis_of,
    broadcast_at,
    broadcast_shapes,
    define,
)
from tilewright.ir.core import *
from tilewright.support.errors import CompileError

_STEPWISE = "index in steps, x[:, 0][rows], or move the axes together with tm.moveaxis"


def getitem(x: Value, key: Any) -> Value:
    """An element, a part, or a gather. Integer arrays beside each other broadcast, and read zero
    outside of `x`."""
    keys = _complete(x, key if isinstance(key, tuple) else (key,))
    gathers = [each for each in keys if isinstance(each, Value)]
    common = broadcast_shapes(*(each.shape for each in gathers)) if gathers else ()
    if common:
        _require_adjacent(keys)
    shape: list[int] = []
    reads: list[Callable[[tuple[Expr, ...]], Expr]] = []  # of the new indices, one per axis of x
    start: int | None = None  # where the axes of the gathers are
    for each in keys:
        at, extent = len(shape), x.shape[len(reads)] if len(reads) < x.ndim else 0
        if each is None:
            shape.append(1)
        elif isinstance(each, slice):
            reads.append(_slice(each, extent, at, shape))
        elif isinstance(each, Value):
            if start is None:
                start = at
                shape += common
            reads.append(_gather(each, start, common))
        else:
            reads.append(_number(each, extent))
    if not gathers:
        return x.view(tuple(shape), lambda *new: tuple(read(new) for read in reads))
    return define("item", tuple(shape), lambda new: x.at(tuple(r(new) for r in reads)), x.dtype)


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


def _slice(key: slice, extent: int, at: int, shape: list[int]) -> Callable[..., Expr]:
    for bound in (key.start, key.stop, key.step):
        if isinstance(bound, Value) or not (bound is None or hasattr(bound, "__index__")):
            raise CompileError(
                "the bounds of a slice are Python integers", got=repr(bound),
                fix="gather with x[start + tm.arange(n)], or write tm.array(shape, fn)",
            )  # fmt: skip
    if key.step == 0:
        raise CompileError("the step of a slice is zero", fix="leave it out")
    start, stop, step = key.indices(extent)
    shape.append(len(range(start, stop, step)))
    return lambda new: new[at] * step + start


def _number(key: Any, extent: int) -> Callable[..., Expr]:
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
    x, found = array_of(x, "take_along_axis"), array_of(indices, "take_along_axis")
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
        own = [zero if n == 1 else i for n, i in zip(x.shape, new, strict=True)]
        own[along] = row
        return x.at(tuple(own))

    return define("take_along_axis", shape, elements, x.dtype)


OPERATIONS["getitem"] = getitem
