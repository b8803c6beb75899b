"""The largest elements of an axis, in order."""

from __future__ import annotations

import builtins
import math

from tilewright.formula.front.elementwise import FUNCTIONS_BY_NAME, where
from tilewright.formula.front.indexing import indices
from tilewright.formula.front.reductions import max, min
from tilewright.formula.front.shapes import squeeze, stack
from tilewright.formula.front.values import Value, array_of, astype, axis_of, sizes
from tilewright.ir.dtype import BOOL, INT32, INT64
from tilewright.support.errors import CompileError

isnan = FUNCTIONS_BY_NAME["isnan"]
MOST = 32  # that a round of folds finds one by one


def top_k(x: Value, k: int, /, *, axis: int = -1) -> tuple[Value, Value]:
    """The `k` largest elements along `axis` and their indices, the largest first. Of equal
    elements the one with the lowest index comes first; a NaN is larger than any number.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> best = tw.math(lambda x: tm.top_k(x, 2))
    >>> values, places = best(np.array([1, 3, 2, 3], np.float32))
    >>> values.tolist(), places.tolist()
    ([3.0, 3.0], [1, 3])
    """
    x = array_of(x, "top_k")
    along = axis_of(axis, x.ndim)
    (count,), extent = sizes(k, "k of tm.top_k"), x.shape[along]
    if not 1 <= count <= MOST or count > extent:
        raise CompileError(
            f"tm.top_k finds up to {MOST} of the elements that there are",
            got=f"k = {count}, of {extent} elements",
            fix=f"give a k from 1 to {builtins.min(MOST, extent)}",
        )
    found = astype(x, INT32) if x.dtype == BOOL else x
    place = indices(x, along)
    low = -math.inf if found.dtype.is_float else int(found.dtype.min_value)
    values: list[Value] = []
    places: list[Value] = []
    rest: Value | None = None  # what has not been found yet
    for _ in range(count):
        top = max(found if rest is None else where(rest, found, low), axis=along, keepdims=True)
        hit = _is_same(found, top) if rest is None else _is_same(found, top) & rest
        first = min(where(hit, place, extent), axis=along, keepdims=True)
        values.append(top)
        places.append(first)
        rest = (place != first) if rest is None else rest & (place != first)
    parts = [stack([squeeze(v, along) for v in each], axis=along) for each in (values, places)]
    return astype(parts[0], x.dtype), astype(parts[1], INT64)


def _is_same(x: Value, top: Value) -> Value:
    if not x.dtype.is_float:
        return x == top
    return (x == top) | (isnan(x) & isnan(top))
