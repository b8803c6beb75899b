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
| argsort searchsorted sort | sorting is no fold |
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
from tilewright.formula.front.trace import trace
from tilewright.formula.front.values import OPERATIONS as _OPERATIONS
from tilewright.formula.front.values import Value, astype, broadcast_shapes
from tilewright.ir.dtype import DTYPES as _DTYPES

inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
newaxis = None

bool = _DTYPES["bool"]
int8 = _DTYPES["int8"]
int16 = _DTYPES["int16"]
int32 = _DTYPES["int32"]
int64 = _DTYPES["int64"]
uint8 = _DTYPES["uint8"]
uint16 = _DTYPES["uint16"]
uint32 = _DTYPES["uint32"]
uint64 = _DTYPES["uint64"]
float16 = _DTYPES["float16"]
bfloat16 = _DTYPES["bfloat16"]
float32 = _DTYPES["float32"]
float64 = _DTYPES["float64"]
float8_e4m3fn = _DTYPES["float8_e4m3fn"]
float8_e5m2 = _DTYPES["float8_e5m2"]

abs = _ELEMENTWISE["abs"]
acos = _ELEMENTWISE["acos"]
acosh = _ELEMENTWISE["acosh"]
add = _ELEMENTWISE["add"]
asin = _ELEMENTWISE["asin"]
asinh = _ELEMENTWISE["asinh"]
atan = _ELEMENTWISE["atan"]
atan2 = _ELEMENTWISE["atan2"]
atanh = _ELEMENTWISE["atanh"]
bitwise_and = _ELEMENTWISE["bitwise_and"]
bitwise_invert = _ELEMENTWISE["bitwise_invert"]
bitwise_left_shift = _ELEMENTWISE["bitwise_left_shift"]
bitwise_or = _ELEMENTWISE["bitwise_or"]
bitwise_right_shift = _ELEMENTWISE["bitwise_right_shift"]
bitwise_xor = _ELEMENTWISE["bitwise_xor"]
ceil = _ELEMENTWISE["ceil"]
copysign = _ELEMENTWISE["copysign"]
cos = _ELEMENTWISE["cos"]
cosh = _ELEMENTWISE["cosh"]
divide = _ELEMENTWISE["divide"]
equal = _ELEMENTWISE["equal"]
erf = _ELEMENTWISE["erf"]
exp = _ELEMENTWISE["exp"]
expm1 = _ELEMENTWISE["expm1"]
floor = _ELEMENTWISE["floor"]
floor_divide = _ELEMENTWISE["floor_divide"]
greater = _ELEMENTWISE["greater"]
greater_equal = _ELEMENTWISE["greater_equal"]
hypot = _ELEMENTWISE["hypot"]
isfinite = _ELEMENTWISE["isfinite"]
isinf = _ELEMENTWISE["isinf"]
isnan = _ELEMENTWISE["isnan"]
less = _ELEMENTWISE["less"]
less_equal = _ELEMENTWISE["less_equal"]
log = _ELEMENTWISE["log"]
log10 = _ELEMENTWISE["log10"]
log1p = _ELEMENTWISE["log1p"]
log2 = _ELEMENTWISE["log2"]
logaddexp = _ELEMENTWISE["logaddexp"]
logical_and = _ELEMENTWISE["logical_and"]
logical_not = _ELEMENTWISE["logical_not"]
logical_or = _ELEMENTWISE["logical_or"]
logical_xor = _ELEMENTWISE["logical_xor"]
maximum = _ELEMENTWISE["maximum"]
minimum = _ELEMENTWISE["minimum"]
multiply = _ELEMENTWISE["multiply"]
negative = _ELEMENTWISE["negative"]
not_equal = _ELEMENTWISE["not_equal"]
positive = _ELEMENTWISE["positive"]
pow = _ELEMENTWISE["pow"]
reciprocal = _ELEMENTWISE["reciprocal"]
relu = _ELEMENTWISE["relu"]
remainder = _ELEMENTWISE["remainder"]
round = _ELEMENTWISE["round"]
rsqrt = _ELEMENTWISE["rsqrt"]
sigmoid = _ELEMENTWISE["sigmoid"]
sign = _ELEMENTWISE["sign"]
signbit = _ELEMENTWISE["signbit"]
silu = _ELEMENTWISE["silu"]
sin = _ELEMENTWISE["sin"]
sinh = _ELEMENTWISE["sinh"]
softplus = _ELEMENTWISE["softplus"]
sqrt = _ELEMENTWISE["sqrt"]
square = _ELEMENTWISE["square"]
subtract = _ELEMENTWISE["subtract"]
tan = _ELEMENTWISE["tan"]
tanh = _ELEMENTWISE["tanh"]
trunc = _ELEMENTWISE["trunc"]


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
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "array",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bfloat16",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "concat",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "divide",
    "e",
    "einsum",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "flip",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "gelu",
    "greater",
    "greater_equal",
    "hypot",
    "indices",
    "inf",
    "int16",
    "int32",
    "int64",
    "int8",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "monoid",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "not_equal",
    "ones",
    "ones_like",
    "outer",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "prod",
    "reciprocal",
    "reduce",
    "relu",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "rsqrt",
    "scan",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "top_k",
    "trace",
    "tril",
    "triu",
    "trunc",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "unstack",
    "var",
    "vecdot",
    "vjp",
    "where",
    "zeros",
    "zeros_like",
]


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
