"""Words on tile values: loads, constants, choices, functions of elements, other shapes."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from math import prod
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.lang import math, move, scalar
from tilewright.lang.alloc import scalar_value
from tilewright.lang.handles import Access
from tilewright.lang.indexing import fill_outside, is_zero, number_of, read
from tilewright.lang.scalar import Scalar, as_number
from tilewright.lang.types import named
from tilewright.lang.values import *

_any, _all = builtins.any, builtins.all
inf = float("inf")


def elementwise(function: Callable[..., Any], keeps: bool = False) -> Callable[..., Any]:
    """A word of numbers that works on tiles too: narrow floats are computed as float32, unless the
    word `keeps` their type."""

    def compute_one(*args: Any, **kwargs: Any) -> Any:
        if not keeps:
            args = tuple(map(_wide, args))
        return function(*args, **kwargs)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _any(map(is_tile, args)):
            return lift(lambda *each: compute_one(*each, **kwargs), *args, what=f"T.{word()}")
        if scalar.widens():
            args = tuple(x.as_expr() if isinstance(x, Scalar) else x for x in args)
            return as_number(compute_one(*args, **kwargs))
        return function(*args, **kwargs)

    return wrapper


def _wide(x: Any) -> Any:
    narrow = isinstance(x, Expr) and x.dtype.is_float and x.dtype.bits < 32
    return cast(x, FLOAT32) if narrow else x


# ── making values ────────────────────────────────────────────────────────────────────────────────


def load(source: Any, *more: Any, fill: Any = 0, cache: str | None = None) -> Any:
    """The elements of a tensor at an index, read now; `fill` outside the tensor. `cache` is that of
    `T.copy`.

    >>> @tw.jit
    ... def shifted(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         Y[n] = T.load(X[n + 1], fill=-1)
    ...     return Y
    >>> shifted(np.arange(4, dtype=np.float32)).tolist()
    [1.0, 2.0, 3.0, -1.0]
    """
    if more:
        raise CompileError(
            "T.load reads one place",
            got=f"{1 + len(more)} arguments",
            fix="index the tensor: T.load(A[m, :]) is a tile, A[i] an element; what lies outside "
            "reads as fill=",
            code="arguments",
        )
    if is_tile(fill):
        raise CompileError(
            "fill= of T.load is a number",
            got=repr(fill),
            fix="choose elements by their index: T.where(m.index + 1 < M, X[m + 1], other)",
            code="arguments",
        )
    made: Any
    if isinstance(source, Tiles):
        made = source = read(source.tile, source.keys, fill)
    elif isinstance(source, Tile):
        made = source = read(source, [slice(None)] * source.ndim, fill)
    elif is_zero(fill):
        whole = isinstance(source, Value)
        made = source if whole else as_number(current("T.load").let(wrap(source)))
    elif isinstance(source, Value) and source.box is not None:
        made = _filled(source, source.box, fill)
    elif isinstance(source, Access):
        found = fill_outside(source.as_expr(), source.buffer, source.indices, fill)
        made = as_number(current("T.load").let(found))
    else:
        raise CompileError(
            "T.load fills what it reads outside a tensor, and this was read or computed before",
            got=f"{source!r}, fill={fill}",
            fix="load first, then compute: T.load(X[m + 1, :], fill=-1) * 2",
            code="arguments",
        )
    if isinstance(source, Value) and cache is not None:
        source.cache = move.cache_word(cache)
    return made


def _filled(value: Value, box: Box, fill: Any) -> Value:
    """What was read there, `fill` outside the tensor."""
    fill = number_of(fill, box.buffer.dtype)

    def at(places: Places) -> Expr:
        return fill_outside(value.element(places), box.buffer, box.indices(places), fill)

    return Value(value.axes, value.kind, at, (value,))


def full(shape: Any, value: Any, dtype: Any = "float32") -> Any:
    """A value of this shape, all of one number; of shape `()` a variable.

    >>> @tw.jit
    ... def sevens(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         Y[n] = T.full((n,), 7)
    ...     return Y
    >>> sevens(np.zeros(3, np.float32)).tolist()
    [7.0, 7.0, 7.0]
    """
    kind = find_dtype(dtype)
    dims = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not dims:
        return scalar_value(dtype, value)
    number = current_block().snapshot(number_of(value, kind))
    made = Value(tuple(map(axis_of, dims)), kind, lambda _: number)
    made.is_formula = False  # mostly where a sum starts
    return made


def zeros(shape: Any, dtype: Any = "float32") -> Any:
    """A value of this shape, all zero: where sums start.

    Example:
        Y[0, :] = T.zeros((64,)) - 1
        # Y[0]: -1 -1
    """
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = "float32") -> Any:
    """A value of this shape, all one.

    Example:
        Y[0, :] = T.ones((64,)) * 3
        # Y[0]: 3 3
    """
    return full(shape, 1, dtype)


def arange(n: Any, *more: Any) -> Value:
    """0, 1, … n - 1, as int32.

    Example:
        M[:] = T.arange(64) * 2
        # M: 0 2 4 6
    """
    if more:
        raise CompileError(
            "T.arange counts from 0",
            got=f"{1 + len(more)} arguments",
            fix="write T.arange(n) + start",
            code="arguments",
        )
    axis = axis_of(n)
    return Value((axis,), INT32, lambda places: axis.index(places[0]))


def where(cond: Any, a: Any, b: Any) -> Any:
    """a where cond, else b, element by element.

    Example:
        x = T.load(X[:, :])
        Y[:, :] = T.where(x > 1, x, 0)
        # Y[0]: 0 0 2 3
    """
    if not _any(map(is_tile, (cond, a, b))):
        return as_number(math.if_then_else(cond, a, b))
    return lift(select, cond, a, b, what="T.where")


def _extreme(choose: Callable[..., Any], keep_nan: bool) -> Callable[..., Any]:
    def compute(a: Any, b: Any) -> Any:
        found = choose(a, b)
        if not keep_nan or not isinstance(found, Bin) or not found.dtype.is_float:
            return found
        return Call(f"{found.op}_nan", found.children, found.dtype)

    return compute if keep_nan else choose


def maximum(a: Any, b: Any, *, keep_nan: bool = False) -> Any:
    """The larger of two, element by element; of a number and a NaN, the number, or the NaN with
    `keep_nan=True`.

    Example:
        Y[:, :] = T.maximum(X[:, :], 2)
        # Y[0]: 2 2 2 3
    """
    return elementwise(_extreme(math.max, keep_nan), keeps=True)(a, b)


def minimum(a: Any, b: Any, *, keep_nan: bool = False) -> Any:
    """The smaller of two, element by element; of a number and a NaN, the number, or the NaN with
    `keep_nan=True`.

    Example:
        Y[:, :] = T.minimum(X[:, :], 2)
        # Y[0]: 0 1 2 2
    """
    return elementwise(_extreme(math.min, keep_nan), keeps=True)(a, b)


# ── functions that models use ────────────────────────────────────────────────────────────────────


def _activation(
    name: str, doc: str, shown: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """A word of one element; `shown` is what it makes of -1, 0, 1."""

    @named(name, f"{doc}\n\nExample:\n    Y[:, :] = T.{name}(X[:, :] - 1)\n    # Y[0]: {shown}\n")
    def word(x: Any, **options: Any) -> Any:
        return elementwise(function)(x, **options)

    return word


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


gelu = _activation(
    "gelu", 'x · Φ(x), by erf; by tanh with approximate="tanh".', "-0.1587 0 0.8413", _gelu
)
relu = _activation("relu", "max(x, 0).", "0 0 1", lambda x: math.max(x, 0.0))
silu = _activation("silu", "x · sigmoid(x).", "-0.2689 0 0.7311", lambda x: x * math.sigmoid(x))
softplus = _activation(
    "softplus", "log(1 + eˣ).", "0.3133 0.6931 1.3133",
    lambda x: math.max(x, 0.0) + math.log1p(math.exp(-math.abs(x))),
)  # fmt: skip
mish = _activation(
    "mish", "x · tanh(softplus(x)).", "-0.3034 0 0.8651",
    lambda x: x * math.tanh(math.max(x, 0.0) + math.log1p(math.exp(-math.abs(x)))),
)  # fmt: skip
hardsigmoid = _activation(
    "hardsigmoid", "x / 6 + 1 / 2, between 0 and 1.", "0.3333 0.5 0.6667",
    lambda x: math.clamp(x / 6.0 + 0.5, 0.0, 1.0),
)  # fmt: skip


# ── words that have another form ─────────────────────────────────────────────────────────────────


def reshape(src: Any, *shape: Any) -> Any:
    """The same elements under another shape, row-major.

    Example:
        x = T.reshape(T.load(X[:, :]), (32, 128))
        Y[0, :] = x[0, 64:128]
        # Y[0]: -1 0 1 2
    """
    if not isinstance(src, Value):
        return move.reshape(src, *shape)
    dims = shape_tuple(shape[0]) if len(shape) == 1 and not hasattr(shape[0], "axis") else shape
    axes = tuple(map(axis_of, dims))
    old, new = [*src.real], [axis for axis in axes if axis is not ONE]
    for end in (0, -1):  # what stays where it is
        while old and new and old[end].key == new[end].key:
            del old[end], new[end]
    if old or new:
        current().undivided.add(current().number)
    counts = [prod(axis.total or axis.size for axis in each) for each in (old, new)]
    if _all(has_places(a) for a in (*old, *new)) and counts[0] != counts[1]:
        raise CompileError(
            "T.reshape keeps all elements",
            expected=f"sizes whose product is {counts[0]}",
            got=f"{shape_text(new)}, whose product is {counts[1]}",
            fix="compute one size from the others: T.reshape(x, (m, N // 4, 4))",
            code="shape",
        )
    if not _all(has_places(a) for a in (*old, *new)):
        raise CompileError(
            "T.reshape of a tile whose size is open, or whose end may be ragged",
            got=f"{shape_text(src.axes)} as {shape_text(axes)}",
            fix="reshape whole dimensions only, or pin a size that divides the range: "
            "T.tile(N, size=64)",
            code="shape",
        )

    def at(places: Places) -> Expr:
        linear: Expr = const(0)
        for axis, place in zip(axes, places, strict=True):
            linear = linear * (axis.total or axis.size) + place
        found: list[Expr] = []
        for axis in reversed(src.axes):
            found.insert(0, linear % (axis.total or axis.size))
            linear = linear // (axis.total or axis.size)
        return src.element(tuple(found))

    return Value(axes, src.kind, at, (src,))
