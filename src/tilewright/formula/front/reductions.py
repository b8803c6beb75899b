"""Folds of axes, scans, and what is made of them; comprehensions over index variables.

tm.sum(x, axis=-1)                              of an array
tm.sum((8, 3), lambda c, r: x[c] * w[c, r])     of an expression over indices
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from math import prod as product
from typing import Any, TypeAlias

from tilewright.formula.front.elementwise import named
from tilewright.formula.front.promotion import (
    arithmetic_type,
    compute_type,
    default_sum_type,
    result_type,
)
from tilewright.formula.front.shapes import reshape, squeeze
from tilewright.formula.front.values import (
    Number,
    Shape,
    Value,
    array_of,
    axis_of,
    current,
    define,
    element_of,
    operand,
    pointwise,
    sizes,
)
from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Axis, vars_of
from tilewright.support.errors import CompileError

Axes: TypeAlias = "int | tuple[int, ...] | None"


# ── comprehensions ───────────────────────────────────────────────────────────────────────────


def _words(function: Callable[..., Any], count: int) -> list[str] | None:
    """The names of the parameters that get `count` indices; None where they do not fit."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in named if p.default is p.empty]
    takes_more = builtins.any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(needed) > count or (len(named) < count and not takes_more):
        return None
    return [p.name for p in named[:count]]


def comprehended(word: str, extents: Any, function: Any) -> tuple[Any, Any]:
    """The axes of a comprehension, and what its function gives for them."""
    trace = current()
    if not callable(function):
        axis = repr(function) if isinstance(function, (int, tuple)) else "…"
        fix = f"write tm.{word}(…, axis={axis})"
        if isinstance(function, Value):  # as Python's max takes it
            fix = f"write tm.{word}imum(x, y)" if word in ("max", "min") else "write x + y, x * y"
        raise CompileError(
            f"tm.{word} takes sizes and a function of indices, or an array and axis= by its name",
            got=repr(function)[:80],
            fix="tm.full(shape, number)" if word == "array" else fix,
        )
    shape = sizes(extents, f"the size of tm.{word}")
    words = _words(function, len(shape))
    if words is None:
        raise CompileError(
            f"tm.{word} over {len(shape)} indices calls a function of another number",
            got=f"sizes {shape}",
            fix="give the function one parameter per size",
        )
    axes = trace.axes(shape, words)
    with trace.inside(axes):
        return axes, function(*(Value((), INT32, scalar=a.var) for a in axes))


def _over(word: str, extents: Any, function: Callable[..., Any]) -> tuple[Any, Value]:
    """The axes of a comprehension, and its value over them."""
    axes, found = comprehended(word, extents, function)
    found = operand(found, f"tm.{word}")
    if not isinstance(found, Value):
        kind = result_type(found)
        found = Value((), kind, scalar=element_of(found, (), kind))
    return axes, found


def array(shape: Any, function: Callable[..., Any], /) -> Value:
    """The array whose element at each index is what `function` says of it.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: array((4,), lambda i: x[i + 1] - x[i]), [("x", (4,), "float32")]))
    formula formula(x: float32[4]) -> out
        out[i < 4]: float32 = x[i + 1] - x[i]
    """
    axes, found = _over("array", shape, function)
    whole = found.over(axes)
    if whole is not None:
        return whole
    axes += current().axes(found.shape)
    extents = tuple(axis.extent for axis in axes)
    own = len(axes) - found.ndim
    return define("array", extents, lambda new: found.at(new[own:]), found.dtype, axes=axes)


# ── folds ────────────────────────────────────────────────────────────────────────────────────


def axes_of(axis: Axes, ndim: int) -> tuple[int, ...]:
    """The axes that a fold goes over, in order; None means all."""
    if axis is None:
        return tuple(range(ndim))
    found = [axis_of(each, ndim) for each in (axis if isinstance(axis, tuple) else (axis,))]
    if len(set(found)) != len(found):
        raise CompileError("an axis is folded twice", got=repr(axis), fix="name each axis once")
    return tuple(sorted(found))


def folded_axes(
    shape: Shape, folds: tuple[int, ...]
) -> tuple[Shape, tuple[Axis, ...], Callable[[tuple[Expr, ...]], tuple[Expr, ...]]]:
    """What is left of a shape, the axes that are folded, and the index of an element, of those that
    are left."""
    over = current().axes([shape[d] for d in folds])
    kept = [d for d in range(len(shape)) if d not in folds]

    def places(new: tuple[Expr, ...]) -> tuple[Expr, ...]:
        index = dict(zip((*kept, *folds), (*new, *vars_of(over)), strict=True))
        return tuple(index[d] for d in range(len(shape)))

    return tuple(shape[d] for d in kept), over, places


def _fold(
    word: str,
    x: Value,
    monoid: str,
    axis: Axes,
    keepdims: bool,
    dtype: DType,
    build: Callable[[Expr], Expr] = lambda e: e,
) -> Value:
    """`build` of the elements of `x`, folded."""
    folds = axes_of(axis, x.ndim)
    shape, over, places = folded_axes(x.shape, folds)

    def elements(new: tuple[Expr, ...]) -> Expr:
        found = build(x.at(places(new)))
        return found if monoid.startswith("arg") else cast(found, compute_type(dtype))

    found = define(word, shape, elements, dtype, monoid=monoid if over else "", over=over)
    return kept_axes(found, x.shape, folds) if keepdims else found


def kept_axes(x: Value, shape: Shape, folds: tuple[int, ...]) -> Value:
    """With axes of size 1 where something was folded."""
    whole = tuple(1 if d in folds else n for d, n in enumerate(shape))
    return x.view(whole, lambda *new: tuple(i for d, i in enumerate(new) if d not in folds))


def _reduce(
    word: str,
    x: Any,
    function: Callable[..., Any] | None,
    axis: Axes,
    keepdims: bool,
    dtype: Any = None,
) -> Value:
    """A fold of an array's axes, or of a comprehension."""
    rule, build = _RULES[word]
    if function is not None:
        axes, value = _over(word, x, function)
        if value.shape:
            raise CompileError(
                f"the function of tm.{word} gives a number, not an array of shape {value.shape}",
                fix="index it, or fold it inside the function",
            )
        kind = find_dtype(dtype) if dtype is not None else rule(value.dtype)
        body = build(value.at(()))
        return define(word, (), lambda _: body, kind, monoid=word if axes else "", over=axes)
    x = array_of(x, word)
    kind = find_dtype(dtype) if dtype is not None else rule(x.dtype)
    return _fold(word, x, word, axis, keepdims, kind, build)


# by fold: the type of its result, and what it does to each element
_RULES: dict[str, tuple[Callable[[DType], DType], Callable[[Expr], Expr]]] = {
    **dict.fromkeys(("sum", "prod"), (default_sum_type, lambda e: e)),
    **dict.fromkeys(("max", "min"), (arithmetic_type, lambda e: e)),
    **dict.fromkeys(("any", "all"), (lambda _: BOOL, truth)),
}  # fmt: skip
_Fn: TypeAlias = "Callable[..., Any] | None"


def sum(x: Any, fn: _Fn = None, /, *, axis: Axes = None, dtype: Any = None,
        keepdims: bool = False) -> Value:  # fmt: skip
    """The sum of elements: `sum(x, axis=…)`, or over indices, `sum((3, 4), lambda r, s: …)`.
    Integers are summed in 64 bits unless `dtype` says otherwise.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: sum(x, axis=-1), [("x", (2, 4), "float32")]))
    formula formula(x: float32[2, 4]) -> out
        out[i < 2]: float32 = sum{j < 4} x[i, j]
    """
    return _reduce("sum", x, fn, axis, keepdims, dtype)


def prod(x: Any, fn: _Fn = None, /, *, axis: Axes = None, dtype: Any = None,
         keepdims: bool = False) -> Value:  # fmt: skip
    """The product of elements, of an array or over indices."""
    return _reduce("prod", x, fn, axis, keepdims, dtype)


def _folding(word: str, about: str) -> Callable[..., Value]:
    def fold(x: Any, fn: _Fn = None, /, *, axis: Axes = None, keepdims: bool = False) -> Value:
        return _reduce(word, x, fn, axis, keepdims)

    return named(word, about, fold)


max = _folding("max", "The largest element, of an array or over indices; NaN if one is.")
min = _folding("min", "The least element, of an array or over indices; NaN if one is.")
any = _folding("any", "Whether an element is not zero, of an array or over indices.")
all = _folding("all", "Whether no element is zero, of an array or over indices.")


def _placing(word: str, about: str) -> Callable[..., Value]:
    def place(x: Value, /, *, axis: int | None = None, keepdims: bool = False) -> Value:
        x = array_of(x, word)
        flat = x if axis is not None else reshape(x, (-1,))
        along = axis_of(-1 if axis is None else axis, flat.ndim)
        found = _fold(word, flat, word, along, False, INT64)
        return kept_axes(found, x.shape, axes_of(axis, x.ndim)) if keepdims else found

    return named(word, about, place)


argmax = _placing("argmax", "The index of the first largest element, or of the first NaN.")
argmin = _placing("argmin", "The index of the first least element, or of the first NaN.")


def count_nonzero(x: Value, /, *, axis: Axes = None, keepdims: bool = False) -> Value:
    """How many elements are not zero."""
    x = array_of(x, "count_nonzero")
    return _fold("count_nonzero", x, "sum", axis, keepdims, INT64, truth)


def isin(x1: Value, x2: Value, /, *, invert: bool = False) -> Value:
    """Whether each element of one array is somewhere in the other."""
    x, among = array_of(x1, "isin"), reshape(array_of(x2, "isin"), (-1,))
    kind = result_type(x, among)
    op = "==" if not invert else "!="
    over = current().axes(among.shape)

    def elements(new: tuple[Expr, ...]) -> Expr:
        sides = element_of(x, new, kind), element_of(among, (over[0].var,), kind)
        return compare(op, *sides)

    return define("isin", x.shape, elements, BOOL, monoid="all" if invert else "any", over=over)


def _count(x: Value, axis: Axes) -> Any:
    return product(x.shape[d] for d in axes_of(axis, x.ndim))


def _float(x: Value, what: str) -> tuple[Value, DType]:
    """`x`, and the float type that it is averaged in."""
    x = array_of(x, what)
    kind = arithmetic_type(x.dtype)
    return x, kind if kind.is_float else FLOAT32


def _scaled(word: str, total: Value, count: Any, root: bool = False) -> Value:
    def build(e: Expr) -> Expr:
        found = e / element_of(count, (), e.dtype)
        return Call("sqrt", (found,), e.dtype) if root else found

    return pointwise(word, [total], build, total.dtype, total.dtype)


def mean(x: Value, /, *, axis: Axes = None, keepdims: bool = False) -> Value:
    """The average of elements."""
    x, kind = _float(x, "mean")
    return _scaled("mean", _fold("sum", x, "sum", axis, keepdims, kind), _count(x, axis))


def _spread(word: str, about: str) -> Callable[..., Value]:
    def spread(
        x: Value, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
    ) -> Value:
        x, kind = _float(x, word)
        center = mean(x, axis=axis, keepdims=True)
        far = pointwise("square", [x, center], lambda e, m: (e - m) * (e - m), kind, kind)
        total = _fold("sum", far, "sum", axis, keepdims, kind)
        count = _count(x, axis) - correction
        if not isinstance(count, Number):
            count = builtins.max(count, 0)
        return _scaled(word, total, count, word == "std")

    return named(word, about, spread)


var = _spread("var", "The mean squared distance from the average; `correction=1` for a sample's.")
std = _spread("std", "The square root of `var`.")


def _scan(word: str, monoid: str, about: str) -> Callable[..., Value]:
    def scan(
        x: Value, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Value:
        x = array_of(x, word)
        if axis is None and x.ndim != 1:
            raise CompileError(
                f"{word} needs an axis in an array of {x.ndim} axes", got=f"shape {x.shape}",
                fix="write axis=-1",
            )  # fmt: skip
        along = axis_of(-1 if axis is None else axis, x.ndim)
        kind = find_dtype(dtype) if dtype is not None else default_sum_type(x.dtype)
        found = define(word, x.shape, x.at, kind, monoid=monoid, scan=along)
        if not include_initial:
            return found
        shape = tuple(n + (d == along) for d, n in enumerate(x.shape))

        def elements(new: tuple[Expr, ...]) -> Expr:
            before = tuple(i - 1 if d == along else i for d, i in enumerate(new))
            start = const(int(monoid == "prod"), compute_type(kind))
            return select(compare("==", new[along], 0), start, found.at(before))

        return define(word, shape, elements, kind)

    return named(word, about, scan)


cumulative_sum = _scan("cumulative_sum", "sum", "The sums of elements up to each along `axis`.")
cumulative_prod = _scan(
    "cumulative_prod", "prod", "The products of elements up to each along `axis`."
)


# ── softmax and its kin ──────────────────────────────────────────────────────────────────────


def _centered(x: Any, what: str, axis: Axes) -> tuple[Value, Value, Value]:
    """The largest elements, exp of the distance from them, and its sum."""
    x, kind = _float(x, what)
    top = max(x, axis=axis, keepdims=True)
    far = pointwise("exp", [x, top], lambda e, m: Call("exp", (e - m,), e.dtype), kind, kind)
    return top, far, sum(far, axis=axis, keepdims=True)


def softmax(x: Value, /, *, axis: Axes = -1) -> Value:
    """exp(x) / sum(exp(x)) along `axis`, computed from the distance to the largest element.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: softmax(x), [("x", (2, 4), "float32")]))
    formula formula(x: float32[2, 4]) -> out
        max[i < 2]: float32 = max{j < 4} x[i, j]
        exp[i1 < 2, j1 < 4]: float32 = exp(x[i1, j1] - max[i1])
        sum[i2 < 2]: float32 = sum{j2 < 4} exp[i2, j2]
        out[i3 < 2, j3 < 4]: float32 = exp[i3, j3] / sum[i3]
    """
    _, far, total = _centered(x, "softmax", axis)
    return pointwise("softmax", [far, total], lambda a, b: a / b, far.dtype, far.dtype)


def log_softmax(x: Value, /, *, axis: Axes = -1) -> Value:
    """The logarithm of `softmax`."""
    top, _, total = _centered(x, "log_softmax", axis)
    kind = total.dtype
    return pointwise("log_softmax", [x, top, total], lambda e, m, t: (e - m) - _log(t), kind, kind)


def logsumexp(x: Value, /, *, axis: Axes = None, keepdims: bool = False) -> Value:
    """log(sum(exp(x))) along `axis`, which does not overflow."""
    top, _, total = _centered(x, "logsumexp", axis)
    folds = axes_of(axis, array_of(x, "logsumexp").ndim)
    parts = [each if keepdims else squeeze(each, folds) for each in (top, total)]
    kind = total.dtype

    def element(m: Expr, t: Expr) -> Expr:  # of infinite elements a distance is no number
        return select(Call("isinf", (m,), BOOL), m, m + _log(t))

    return pointwise("logsumexp", parts, element, kind, kind)


def _log(e: Expr) -> Expr:
    return Call("log", (e,), e.dtype)
