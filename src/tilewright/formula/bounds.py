"""How far results may be from the formula in exact arithmetic: a bound by running error analysis.

Beside the value of every expression two more numbers are computed, in float64: its magnitude, which
is its value with no term cancelling another, and a bound of its error. An operation adds `SLACK`
times `u` times the magnitude, `u` being the unit roundoff of float32 (of float64 where an input
is): factors that move out of sums, sums in another order and centers that move change no magnitude.
Besides,

    a sum of n elements      adds 2 · n · u times its magnitude: tensor cores cut digits off
    a product's operand      twice the roundoff of the type that it is rounded to
    a cast, a result         twice the roundoff of the type, and its smallest step
    exp, log, tanh, …        are taken at both ends of the argument, and are `FUNCTION` · u off
    a choice by a condition  adds the difference of both sides where it may go either way

Indices (argmax) have no bound where elements may be equal, nor have monoids of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as pairs
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.formula.matrices import Product, product_of
from tilewright.formula.meaning import Evaluator, parts_of
from tilewright.formula.search.rewrites import SIDES, operand_type
from tilewright.ir.core import *
from tilewright.ir.dtype import DType
from tilewright.ir.formula import Array, Formula, at_sizes, bound_sizes
from tilewright.machine.numbers import call_fn

SLACK = 4  # operations of a kernel for one of the formula
FUNCTION = 16  # units of roundoff that functions of chips may be off
_TURNING = ("sin", "cos", "abs")  # an end of an interval is not the extreme; slopes of 1 at most
_STEPS = ("floor", "ceil", "round", "trunc")

Values: TypeAlias = "np.ndarray[Any, Any]"


def unit_roundoff(kind: DType) -> float:
    """Half the distance from 1 to the next number.

    >>> unit_roundoff(FLOAT32) == 2.0**-24
    True
    """
    return float(_info(kind).eps) / 2


def _smallest(kind: DType) -> float:
    return float(_info(kind).smallest_subnormal)


def _info(kind: DType) -> Any:
    import ml_dtypes

    info: Any = ml_dtypes.finfo
    return info(kind.numpy)


class Off(NamedTuple):
    """Values, their magnitudes, and how far they may be off."""

    value: Any
    size: Any
    error: Any


def error_bounds(formula: Formula, inputs: Sequence[Any]) -> tuple[Values, ...]:
    """For each element of the outputs, how far a kernel may be off.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> formula = parse_formula('''
    ... formula f(x: float32[1, 1024]) -> y
    ...     y[i < 1]: float32 = sum{j < 1024} x[i, j]
    ... ''')
    >>> (bound,) = error_bounds(formula, [np.ones((1, 1024))])
    >>> float(bound[0]) == 2 * 1024 * 2.0**-24 * 1024
    True
    """
    if formula.sizes:
        formula = at_sizes(formula, bound_sizes(formula, [np.shape(x) for x in inputs]))
    double = any(b.dtype.is_float and b.dtype.bits == 64 for b in formula.inputs)
    known: dict[str, Off] = {}
    for b, x in zip(formula.inputs, inputs, strict=True):
        x = np.asarray(x).astype(b.dtype.numpy)
        wide = x.astype(float) if b.dtype.is_float else x
        known[b.name] = Off(wide, np.abs(wide.astype(float)), np.zeros(x.shape))
    names = {b.name for b in formula.inputs}
    with np.errstate(all="ignore"):
        for a in formula.arrays:
            known[a.name] = _array(a, known, names, 2.0**-53 if double else 2.0**-24)
    found = (np.asarray(known[b.name].error) for b in formula.outputs)
    return tuple(np.where(np.isnan(x), np.inf, x) for x in found)


def roundings(formula: Formula) -> list[str]:
    """Where results get their errors, and how large each is.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(*roundings(parse_formula('''
    ... formula f(x: float32[4, 64], w: float16[64, 8]) -> y
    ...     t[i < 4, j < 8]: float32 = sum{k < 64} x[i, k] * float32(w[k, j])
    ...     y[i < 4, j < 8]: float16 = float16(t[i, j])
    ... ''')), sep="\\n")
    t: 7.6e-06 of the sum of 64 magnitudes
    y: 4.9e-04, rounded to float16
    """
    given = {b.name for b in formula.inputs}
    double = any(b.dtype.is_float and b.dtype.bits == 64 for b in formula.inputs)
    found = []
    for a in formula.arrays:
        count = prod(x.extent for x in a.over if isinstance(x.extent, int))
        if a.monoid == "sum" and count > 1:
            off = 2 * count * (2.0**-53 if double else 2.0**-24)
            found.append(f"{a.name}: {off:.1e} of the sum of {count:,} magnitudes")
        p = product_of(a)
        for side, kind in _rounded(p, given) if p is not None else ():
            text = f"{2 * unit_roundoff(kind):.1e}, its {side} operand rounded to {kind}"
            found.append(f"{a.name}: {text}")
        if a.buffer.dtype.is_float and a.buffer.dtype.bits < 32:
            off = unit_roundoff(a.buffer.dtype)
            found.append(f"{a.name}: {off:.1e}, rounded to {a.buffer.dtype}")
    return found


def _rounded(p: Product, given: set[str]) -> list[tuple[str, DType]]:
    """The sides of a product that are rounded to a narrower type."""
    kind = operand_type(p, given)
    found = []
    for side in SIDES:
        operand = getattr(p, side)
        inner = operand.a if isinstance(operand, Cast) else operand
        if kind.is_float and kind.bits < 32 and inner.dtype != kind:
            found.append((side, kind))
    return found


def _array(a: Array, known: dict[str, Off], given: set[str], unit: float) -> Off:
    p, parts = product_of(a), []
    lost: list[Expr] = []  # by operands that are below the normal numbers of their type
    relative = 0.0
    for side, kind in _rounded(p, given) if p is not None else ():
        assert p is not None
        other = p.right if side == "left" else p.left
        whole = other if p.scale is None else other * p.scale
        lost.append(whole * const(_smallest(kind), whole.dtype))
        relative += 2 * unit_roundoff(kind)
    for env, shape in parts_of(a):
        walk = _Walk(env, known, unit)
        bodies = [_spread(walk(body), shape) for body in a.bodies]
        more = sum((_spread(walk(e), shape).size for e in lost), np.zeros(shape))
        body = bodies[0]._replace(error=bodies[0].error + relative * bodies[0].size + more)
        parts.append(_FOLDS[a.monoid](a, body, unit))
    found = Off(*(np.concatenate(x) if len(parts) > 1 else x[0] for x in zip(*parts, strict=True)))
    kind = a.buffer.dtype
    if kind.is_float and kind.bits < 32:
        found = _narrowed(found, kind)
    return found


def _spread(off: Off, shape: tuple[int, ...]) -> Off:
    value, size, error = (np.broadcast_to(x, shape) for x in off)
    return Off(value, size.astype(float), error.astype(float))


def _narrowed(off: Off, kind: DType) -> Off:
    size = 2 * unit_roundoff(kind) * np.abs(off.value) + _smallest(kind)
    return off._replace(error=off.error + np.where(np.isfinite(off.value), size, 0))


# ── folds ────────────────────────────────────────────────────────────────────────────────────


def _dims(a: Array) -> tuple[int, ...]:
    return tuple(range(len(a.axes), len(a.axes) + len(a.over)))


def _count(a: Array) -> int:
    return prod(x.extent for x in a.over if isinstance(x.extent, int))


def _sum(a: Array, x: Off, unit: float) -> Off:
    if a.scan:
        along = a.axes.index(a.over[0])
        value, size, error = (np.cumsum(each, along) for each in x)
    else:
        value, size, error = (each.sum(_dims(a)) for each in x)
    return Off(value, size, error + 2 * _count(a) * unit * size)


def _product(a: Array, x: Off, unit: float) -> Off:
    relative = np.where(x.error == 0, 0, x.error / np.abs(x.value))
    if a.scan:
        along = a.axes.index(a.over[0])
        value, most = np.cumprod(x.value, along), np.cumprod(1 + relative, along)
    else:
        value, most = x.value.prod(_dims(a)), (1 + relative).prod(_dims(a))
    size = np.abs(value.astype(float))
    return Off(value, size, size * (most * np.exp(2 * _count(a) * unit) - 1))


def _extreme(a: Array, x: Off, unit: float) -> Off:
    ufunc = np.maximum if a.monoid == "max" else np.minimum
    if a.scan:
        along = a.axes.index(a.over[0])
        size, error = (np.maximum.accumulate(each, along) for each in (x.size, x.error))
        return Off(ufunc.accumulate(x.value, along), size, error)
    start = -np.inf if a.monoid == "max" else np.inf
    value = ufunc.reduce(x.value.astype(float), _dims(a), initial=start)
    size, error = (each.max(_dims(a), initial=0) for each in (x.size, x.error))
    return Off(value, size, error)


def _place(a: Array, x: Off, unit: float) -> Off:
    (dim,) = _dims(a)
    value = np.asarray(getattr(np, a.monoid)(x.value, dim))
    best = np.take_along_axis(x.value, value[..., None], dim)
    off = np.take_along_axis(x.error, value[..., None], dim)
    close = (np.abs(x.value - best) <= x.error + off) & (x.error + off > 0)
    return Off(value, value, np.where(close.sum(dim) > 1, np.inf, 0))


def _logical(a: Array, x: Off, unit: float) -> Off:
    ufunc = np.logical_or if a.monoid == "any" else np.logical_and
    value = ufunc.reduce(x.value, _dims(a))
    unsure = (x.error > 0).any(_dims(a))
    return Off(value, value, np.where(unsure, np.inf, 0))


def _unknown(a: Array, x: Off, unit: float) -> Off:
    shape = x.value.shape[: len(a.axes)]
    return Off(np.full(shape, np.nan), np.zeros(shape), np.full(shape, np.inf))


_FOLDS: dict[str, Callable[[Array, Off, float], Off]] = {
    "": lambda a, x, unit: x, "sum": _sum, "prod": _product, "max": _extreme, "min": _extreme,
    "argmax": _place, "argmin": _place, "any": _logical, "all": _logical, "by": _unknown,
}  # fmt: skip


# ── expressions ──────────────────────────────────────────────────────────────────────────────


class _Unrounded(Evaluator):
    """Float64 that no cast rounds."""

    def _value(self, node: Expr) -> Any:
        if isinstance(node, Cast) and node.dtype.is_float and node.a.dtype.is_float:
            return self(node.a)
        return super()._value(node)


class _Walk:
    """Expressions with magnitudes and errors."""

    def __init__(self, env: dict[Var, Any], known: dict[str, Off], unit: float) -> None:
        self.arrays, self.unit = known, unit
        self.value = _Unrounded(env, {n: off.value for n, off in known.items()}, True)
        self.found: dict[Expr, Off] = {}

    def __call__(self, node: Expr) -> Off:
        found = self.found.get(node)
        if found is None:
            value, size, error = self._off(node)
            finite = np.isfinite(value)  # what is infinite is so by itself, as masks are
            found = Off(value, np.where(finite, size, 0), np.where(np.isinf(value), 0, error))
            self.found[node] = found
        return found

    def _off(self, node: Expr) -> Off:
        value = self.value(node)
        size = np.abs(np.asarray(value, float))
        if isinstance(node, Load):
            whole = self.arrays[node.buffer.name]
            return Off(value, *(self.value.element(node, each) for each in whole[1:]))
        args = [self(child) for child in node.children]
        if isinstance(node, (Const, Var)):
            return Off(value, size, np.zeros(()))
        if isinstance(node, Select):
            return self._chosen(node, args, value)
        if isinstance(node, Cmp):
            a, b = args
            close = np.abs(np.asarray(a.value, float) - b.value) <= a.error + b.error
            return Off(value, size, np.where(close & (a.error + b.error > 0), 1, 0))
        if isinstance(node, Cast):
            return self._cast(node, args[0], value)
        off = sum(a.error for a in args)
        if not node.dtype.is_float:  # exact, or not at all
            return Off(value, size, np.where(off > 0, 1 if node.dtype.is_bool else np.inf, 0))
        rule = _RULES.get(node.op if isinstance(node, Bin) else node.name)  # type: ignore[attr-defined]
        if rule is not None:
            size, error = rule(*args)
            return Off(value, size, error + SLACK * self.unit * size)
        assert isinstance(node, Call), node
        return Off(value, size, self._function(node, args, value) + FUNCTION * self.unit * size)

    def _chosen(self, node: Select, args: list[Off], value: Any) -> Off:
        cond, a, b = args
        unsure = cond.error > 0
        size = np.where(unsure, np.maximum(a.size, b.size), np.where(cond.value, a.size, b.size))
        apart = np.abs(np.asarray(a.value, float) - b.value) + np.maximum(a.error, b.error)
        sure = np.where(cond.value, a.error, b.error)
        return Off(value, size, np.where(unsure, apart, sure))

    def _cast(self, node: Cast, a: Off, value: Any) -> Off:
        if not node.dtype.is_float:
            return Off(value, np.abs(np.asarray(value, float)), np.where(a.error > 0, np.inf, 0))
        off = Off(value, a.size, a.error)
        if not node.a.dtype.is_float:
            return off._replace(error=a.error + self.unit * a.size)
        return _narrowed(off, node.dtype) if node.dtype.bits < 32 else off

    def _function(self, node: Call, args: list[Off], value: Any) -> Any:
        """How far the function moves while its arguments move as far as they may."""
        off = sum(a.error for a in args)
        if node.name in _TURNING:
            return off
        kinds = tuple(a.dtype if not a.dtype.is_float else self.value._type(a.dtype)
                      for a in node.args)  # fmt: skip
        f = call_fn(node.name, kinds, self.value._type(node.dtype))
        found = np.zeros(())
        for signs in pairs((-1, 1), repeat=len(args)):
            end = f(*(a.value + s * a.error if a.value.dtype.kind == "f" else a.value
                      for a, s in zip(args, signs, strict=True)))  # fmt: skip
            found = np.maximum(found, np.abs(end - value))
        if node.name in _STEPS:
            return found
        return np.where(off == 0, 0, np.where(np.isnan(found), np.inf, found))


Sized: TypeAlias = "tuple[Any, Any]"


def _times(a: Off, b: Off) -> Sized:
    moved = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return a.size * b.size, moved


def _over(a: Off, b: Off) -> Sized:
    left = np.abs(b.value) - b.error
    moved = np.where(left > 0, (a.error + np.abs(a.value / b.value) * b.error) / left, np.inf)
    return a.size / np.abs(b.value), np.where(a.error + b.error == 0, 0, moved)


def _larger(a: Off, b: Off) -> Sized:
    return np.maximum(a.size, b.size), np.maximum(a.error, b.error)


_RULES: dict[str, Callable[..., Sized]] = {
    "+": lambda a, b: (a.size + b.size, a.error + b.error),
    "-": lambda a, b: (a.size + b.size, a.error + b.error),
    "*": _times,
    "/": _over,
    **dict.fromkeys(("min", "max", "min_nan", "max_nan"), _larger),
    "neg": lambda a: (a.size, a.error),
}
