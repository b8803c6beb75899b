"""Formulas in the names of the Python Array API: `import tilewright.math as tm`.

Functions and operators mean what the standard says: broadcasting, promotion, `axis`, `keepdims`.
What it leaves open: a float beside integers makes float32; integers of different signs that no type
holds are refused; floats of 8 bits are computed, and returned, as float32; reads outside an array
by an integer array are zero. Values are computed in float32 (float64 where an input is) and rounded
where they leave the function, or where `astype` says so.

    def attention(q, k, v):
        s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
        i, j = tm.indices(s, -2, -1)
        s = tm.where(j <= i, s, -tm.inf)
        return tm.softmax(s, axis=-1) @ v

Besides the standard: `array`, and `sum`, `prod`, `max`, `min`, `any`, `all` over indices;
`monoid`, `reduce`, `scan` by functions, `top_k`; `indices`, `einsum`, `outer`, `softmax`,
`log_softmax`, `logsumexp`, `sigmoid`, `relu`, `silu`, `gelu`, `softplus`, `rsqrt`, `erf`; `vjp`,
the gradients of a function.

Of the standard it leaves out:

| left out | why |
|---|---|
| nonzero unique_all unique_counts unique_inverse unique_values | data decide their shapes |
| boolean masks as indices | shapes that depend on data: `where` says it |
| asarray from_dlpack empty empty_like | arrays are arguments and definitions |
| conj imag real complex64 complex128 | no complex numbers |
| nextafter | no target has it |
| finfo iinfo isdtype | questions about types, which NumPy answers |
| `repeat` by an array of counts | its shape would depend on data |
"""

from __future__ import annotations

import math as _math
import sys as _sys
import types as _types
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from tilewright.formula.front.elementwise import FUNCTIONS_BY_NAME as _ELEMENTWISE
from tilewright.formula.front.elementwise import clip, gelu, where
from tilewright.formula.front.indexing import indices, take, take_along_axis
from tilewright.formula.front.instead import refuse as _refuse
from tilewright.formula.front.monoids import monoid, reduce, scan
from tilewright.formula.front.products import einsum, matmul, outer, tensordot, vecdot
from tilewright.formula.front.promotion import can_cast, result_type
from tilewright.formula.front.reductions import (
    all,
    any,
    argmax,
    argmin,
    array,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    isin,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    prod,
    softmax,
    std,
    sum,
    var,
)
from tilewright.formula.front.selection import top_k
from tilewright.formula.front.shapes import (
    arange,
    broadcast_arrays,
    broadcast_to,
    concat,
    diff,
    expand_dims,
    eye,
    flip,
    full,
    full_like,
    linspace,
    matrix_transpose,
    meshgrid,
    moveaxis,
    ones,
    ones_like,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    tril,
    triu,
    unstack,
    zeros,
    zeros_like,
)
from tilewright.formula.front.sorting import argsort, searchsorted, sort
from tilewright.formula.front.values import OPERATIONS as _OPERATIONS
from tilewright.formula.front.values import Value, astype, broadcast_shapes
from tilewright.ir.dtype import DTYPES as _DTYPES

inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
newaxis = None

_TYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
    "float8_e4m3fn float8_e5m2"
).split()
globals().update(_ELEMENTWISE, **{name: _DTYPES[name] for name in _TYPES})


def vjp(function: _Any, *, wrt: _Any = None, target: _Any = None) -> _Any:
    """The gradients of a function of arrays, as a function: it takes the arguments, then a
    cotangent for each float result, and returns the cotangents of the float arguments (or of those
    that `wrt` names), a tuple if there are several. They are a formula like any other, computed
    from the arguments alone: what the function computes on its way is computed again. Where it has
    run before, `forward` gives its results and what it keeps, `backward` the gradients of that.

    >>> import numpy as np, tilewright.math as tm
    >>> gradient = tm.vjp(lambda x, y: tm.sum(x * y))
    >>> x, y = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    >>> dx, dy = gradient(x, y, np.float32(1))
    >>> dx.tolist(), dy.tolist()
    ([1.0, 1.0, 1.0], [0.0, 1.0, 2.0])
    >>> total, kept = gradient.forward(x, y)
    >>> [d.tolist() for d in gradient.backward(kept, np.float32(2))]
    [[2.0, 2.0, 2.0], [0.0, 2.0, 4.0]]
    """
    from tilewright.formula.gradients.backward import gradients

    return gradients(function, wrt, target)


_OPERATIONS["namespace"] = lambda: _sys.modules[__name__]

__all__ = [
    "Value",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "array",
    "astype",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "clip",
    "concat",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "e",
    "einsum",
    "expand_dims",
    "eye",
    "flip",
    "full",
    "full_like",
    "gelu",
    "indices",
    "inf",
    "isin",
    "linspace",
    "log_softmax",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "meshgrid",
    "min",
    "monoid",
    "moveaxis",
    "nan",
    "newaxis",
    "ones",
    "ones_like",
    "outer",
    "permute_dims",
    "pi",
    "prod",
    "reduce",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "scan",
    "searchsorted",
    "softmax",
    "sort",
    "squeeze",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "top_k",
    "tril",
    "triu",
    "unstack",
    "var",
    "vecdot",
    "vjp",
    "where",
    "zeros",
    "zeros_like",
]
__all__ += [*_ELEMENTWISE, *_TYPES]


if _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        """The functions of the table, and types."""


class _Decorator(_types.ModuleType):
    """`tw.math` is this module and, called, the decorator."""

    def __getattr__(self, name: str) -> _Any:
        if name.startswith("_"):
            raise AttributeError(name)
        _refuse(name, "tilewright.math has no")

    def __call__(self, function: _Any = None, *, target: _Any = None, dynamic: _Any = None) -> _Any:
        from tilewright.formula.function import math

        return math(function, target=target, dynamic=dynamic)


_sys.modules[__name__].__class__ = _Decorator
