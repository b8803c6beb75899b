"""Sorting: each element goes where as many others stand before it. Work is the square of what is
sorted, so rows are short."""

from __future__ import annotations

import math

from tilewright.formula.front.elementwise import FUNCTIONS_BY_NAME, where
from tilewright.formula.front.indexing import indices
from tilewright.formula.front.reductions import max, min, sum
from tilewright.formula.front.shapes import moveaxis, zeros
from tilewright.formula.front.values import Value, array_of, astype, axis_of
from tilewright.ir.dtype import BOOL, INT32, INT64
from tilewright.support.errors import CompileError

isnan = FUNCTIONS_BY_NAME["isnan"]
MOST = 2048  # elements of a row, each compared with all


def sort(x: Value, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Value:
    """The elements along `axis` in order, of rows of up to 2048. A NaN is larger than any number.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> tw.math(lambda x: tm.sort(x))(np.array([3, 1, 2], np.float32)).tolist()
    [1.0, 2.0, 3.0]
    """
    x, along = _row(x, axis, "sort")
    if x.shape[-1] < 2:
        return moveaxis(x, -1, along)
    found = astype(x, INT32) if x.dtype == BOOL else x
    low = -math.inf if found.dtype.is_float else int(found.dtype.min_value)
    at, rows = _ranks(found, descending), found[..., None, :]
    values = max(where(at, rows, low), axis=-1)
    return moveaxis(astype(values, x.dtype), -1, along)


def argsort(x: Value, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Value:
    """The indices that sort along `axis`, of equal elements the lower first.
    `tm.take_along_axis(v, tm.argsort(key, axis=-1), axis=-1)` sorts by a key.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> tw.math(lambda x: tm.argsort(x))(np.array([3, 1, 1], np.float32)).tolist()
    [1, 2, 0]
    """
    x, along = _row(x, axis, "argsort")
    if x.shape[-1] < 2:
        return moveaxis(zeros(x.shape, dtype=INT64), -1, along)
    at = _ranks(astype(x, INT32) if x.dtype == BOOL else x, descending)
    places = min(where(at, indices(at, -1), x.shape[-1]), axis=-1)
    return moveaxis(astype(places, INT64), -1, along)


def searchsorted(
    x1: Value, x2: Value, /, *, side: str = "left", sorter: Value | None = None
) -> Value:
    """How many elements of the sorted `x1` are less than each of `x2`; with side "right", how many
    are not larger.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> place = tw.math(lambda x, y: tm.searchsorted(x, y))
    >>> place(np.array([1, 3, 5], np.float32), np.array([0, 3, 9], np.float32)).tolist()
    [0, 1, 3]
    """
    x1, x2 = array_of(x1, "searchsorted"), array_of(x2, "searchsorted")
    if x1.ndim != 1 or side not in ("left", "right"):
        raise CompileError(
            "tm.searchsorted takes one sorted row, and a side",
            expected='an array of one dimension, "left" or "right"',
            got=f"shape {x1.shape}, {side!r}",
        )
    if sorter is not None:
        x1 = x1[sorter]
    known, wanted = x1, x2[..., None]
    before = known < wanted if side == "left" else known <= wanted
    if x2.dtype.is_float:  # a NaN comes last
        before = before | (isnan(wanted) & (~isnan(known) if side == "left" else True))
    return sum(astype(before, INT64), axis=-1)


def _row(x: Value, axis: int, name: str) -> tuple[Value, int]:
    """With the axis that is sorted as the last."""
    x = array_of(x, name)
    along = axis_of(axis, x.ndim)
    extent = x.shape[along]
    if not isinstance(extent, int) or extent > MOST:
        raise CompileError(
            f"tm.{name} sorts rows of up to {MOST} elements: it compares each with all",
            got=f"{extent} elements along axis {axis}",
            fix="take the first ones by tm.top_k(x, k), or sort before the call",
        )
    return moveaxis(x, along, -1), along


def _ranks(x: Value, descending: bool) -> Value:
    """[…, rank, i]: whether element i has this rank."""
    one, other = x[..., :, None], x[..., None, :]
    before = other > one if descending else other < one
    equal = other == one
    if x.dtype.is_float:
        first, last = (other, one) if descending else (one, other)
        before = before | (isnan(first) & ~isnan(last))
        equal = equal | (isnan(one) & isnan(other))
    i, j = indices(equal, -2, -1)
    ranks = sum(astype(before | (equal & (j < i)), INT32), axis=-1, dtype=INT32)
    found: Value = ranks[..., None, :] == i
    return found
