"""Numbers to evaluate expressions in, and the evaluator.

An identity that a derivation claims is checked by evaluating both sides in several models. In the
two algebraic ones random numbers decide almost surely whether two expressions are the same
function; they know no order, so what a maximum is they do not say. Decimals know the order, floats
the rounding and the range.

    Series    power series in ε up to ε⁵ over Z_{2⁶¹ - 1}; exp(u) is the series of exp(εu)
    Pair      Z_q × Z_p, p = 2q + 1: exp takes the first half to the second; has roots and signs
    Decimals  60 digits
    Measured  decimals with a bound of the error that an evaluation in floats makes
    Floats    float64 or float32, one number or an array of them

Functions that a model does not know are random oracles there: equal arguments give equal values.
A product with a factor exp(…) that is zero is zero, whatever its other factors are.
"""

from __future__ import annotations

import decimal
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir.arith import FOLD, Bin, Call, Cast, Cmp, Const, Expr, Select, Var
from tilewright.ir.dtype import DTYPES, DType

Value: TypeAlias = Any  # a number of the model, or a bool
Number: TypeAlias = "int | float | Fraction"

SMALL = 1 << 20  # integers below it are themselves in every model


class Discard(Exception):
    """The numbers drawn have no value here, a root of what is no square: draw others."""


class Model(ABC):
    """Arithmetic on one kind of number."""

    name: str
    ordered = True  # comparisons and maxima mean what they mean of real numbers

    @abstractmethod
    def constant(self, value: Number) -> Value: ...
    @abstractmethod
    def add(self, a: Value, b: Value) -> Value: ...
    @abstractmethod
    def mul(self, a: Value, b: Value) -> Value: ...
    @abstractmethod
    def neg(self, a: Value) -> Value: ...
    @abstractmethod
    def power(self, a: Value, exponent: Fraction) -> Value: ...
    @abstractmethod
    def exp(self, a: Value) -> Value: ...
    @abstractmethod
    def log(self, a: Value) -> Value: ...
    @abstractmethod
    def function(self, name: str, args: Sequence[Value]) -> Value: ...
    @abstractmethod
    def compare(self, op: str, a: Value, b: Value) -> Value: ...
    @abstractmethod
    def finite(self, a: Value) -> Value: ...

    def div(self, a: Value, b: Value) -> Value:
        return self.mul(a, self.power(b, Fraction(-1)))

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        return a if cond else b

    def whole(self, a: Value) -> int | None:
        """The small integer that `a` is."""
        return None

    def fold(self, monoid: str, values: Sequence[Value], positive: bool = False) -> Value:
        """`values` by sum, prod, max or min; `positive`: none of them can be negative."""
        if monoid in ("sum", "prod"):
            total = self.constant(0 if monoid == "sum" else 1)
            for value in values:
                total = self.add(total, value) if monoid == "sum" else self.mul(total, value)
            return total
        best = self.constant(-math.inf if monoid == "max" else math.inf)
        for value in values:
            best = self.function(monoid, (best, value))
        return best

    def best(self, monoid: str, pairs: Sequence[tuple[Value, Value]]) -> tuple[Value, Value]:
        """Of (value, index) the best, of equal ones that with the smallest index. If one of them
        is no number, neither is what comes out."""
        value, index = pairs[0]
        better = ">" if monoid == "argmax" else "<"
        for other, place in pairs[1:]:
            tie = self.compare("==", other, value) & self.compare("<", place, index)
            wins = self.compare(better, other, value) | tie
            value, index = self.select(wins, other, value), self.select(wins, place, index)
        for other, _ in pairs:
            index = self.select(self.compare("!=", other, other), self.constant(math.nan), index)
        return value, index


# ---------------------------------------------------------------- functions in terms of others

_Rule: TypeAlias = Callable[..., Value]


def _plus(m: Model, a: Value, value: Number) -> Value:
    return m.add(a, m.constant(value))


def _times(m: Model, a: Value, value: Number) -> Value:
    return m.mul(a, m.constant(value))


def _pow(m: Model, a: Value, b: Value) -> Value:
    count = m.whole(b) if m.finite(b) else None
    return m.exp(m.mul(m.log(a), b)) if count is None else m.power(a, Fraction(count))


def _tanh(m: Model, a: Value) -> Value:
    grown = _plus(m, m.exp(_times(m, a, 2)), 1)
    return _plus(m, m.div(m.constant(-2), grown), 1)


def _mean(m: Model, a: Value, b: Value) -> Value:
    return _times(m, m.add(a, b), Fraction(1, 2))


# what exact models make of a function; `floats` have their own
LOWERED: dict[str, _Rule] = {
    "exp2": lambda m, a: m.exp(m.mul(a, m.log(m.constant(2)))),
    "exp10": lambda m, a: m.exp(m.mul(a, m.log(m.constant(10)))),
    "expm1": lambda m, a: _plus(m, m.exp(a), -1),
    "log2": lambda m, a: m.div(m.log(a), m.log(m.constant(2))),
    "log10": lambda m, a: m.div(m.log(a), m.log(m.constant(10))),
    "log1p": lambda m, a: m.log(_plus(m, a, 1)),
    "sqrt": lambda m, a: m.power(a, Fraction(1, 2)),
    "rsqrt": lambda m, a: m.power(a, Fraction(-1, 2)),
    "sigmoid": lambda m, a: m.power(_plus(m, m.exp(m.neg(a)), 1), Fraction(-1)),
    "tanh": _tanh,
    "cosh": lambda m, a: _mean(m, m.exp(a), m.exp(m.neg(a))),
    "sinh": lambda m, a: _mean(m, m.exp(a), m.neg(m.exp(m.neg(a)))),
    "tan": lambda m, a: m.div(m.function("sin", (a,)), m.function("cos", (a,))),
    "abs": lambda m, a: m.select(m.compare("<", a, m.constant(0)), m.neg(a), a),
    "max": lambda m, a, b: m.select(m.compare(">=", a, b), a, b),
    "min": lambda m, a, b: m.select(m.compare("<=", a, b), a, b),
    "pow": _pow,
    "fma": lambda m, a, b, c: m.add(m.mul(a, b), c),
    "divide": lambda m, a, b: m.div(a, b),
    "isfinite": lambda m, a: m.finite(a),
}
EXPONENTIAL = frozenset(("exp", "exp2", "exp10"))


# ---------------------------------------------------------------- decimals

DIGITS = 60
EXACT = decimal.Context(DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])
_ONE = Decimal(1)
_COARSE = Decimal(2) ** -23  # the eps of float32
_ROUNDINGS = {
    "floor": decimal.ROUND_FLOOR,
    "ceil": decimal.ROUND_CEILING,
    "round": decimal.ROUND_HALF_EVEN,
    "trunc": decimal.ROUND_DOWN,
}
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
_TURN = decimal.Context(80).multiply(_PI, Decimal(2))


def _wave(a: Decimal, first: Decimal, k: int) -> Decimal:
    """sin (`first` = a, k = 1) or cos (`first` = 1, k = 0) by their series."""
    total = term = first
    square = EXACT.multiply(a, a).copy_negate()
    while term and term.adjusted() > -DIGITS - 5:
        k += 2
        term = EXACT.divide(EXACT.multiply(term, square), Decimal(k * (k - 1)))
        total = EXACT.add(total, term)
    return total


def _erf(a: Decimal) -> Decimal:
    if a.copy_abs() > 14:  # the rest is below 10⁻⁸⁰
        return Decimal(1).copy_sign(a)
    context = decimal.Context(DIGITS + 90, traps=[])
    total, term, k = a, a, 0
    square = context.multiply(a, a).copy_negate()
    while term and term.adjusted() > -DIGITS - 5:
        k += 1
        term = context.divide(context.multiply(term, square), Decimal(k))
        total = context.add(total, context.divide(term, Decimal(2 * k + 1)))
    return EXACT.divide(context.add(total, total), EXACT.sqrt(_PI))


class Decimals(Model):
    """60 digits, and a range that data do not leave."""

    name = "decimals"

    def constant(self, value: Number) -> Value:
        if isinstance(value, Fraction):
            return EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))
        return Decimal(value)

    def add(self, a: Value, b: Value) -> Value:
        return EXACT.add(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return EXACT.multiply(a, b)

    def neg(self, a: Value) -> Value:
        return a.copy_negate()

    def div(self, a: Value, b: Value) -> Value:
        return EXACT.divide(a, b)

    def power(self, a: Value, exponent: Fraction) -> Value:
        if exponent.denominator == 1:
            if exponent == -1:
                return EXACT.divide(Decimal(1), a)
            return EXACT.power(a, int(exponent)) if exponent else Decimal(1)
        if abs(exponent) == Fraction(1, 2):
            root = EXACT.sqrt(a)
            return root if exponent > 0 else EXACT.divide(Decimal(1), root)
        return EXACT.exp(EXACT.multiply(EXACT.ln(a), self.constant(exponent)))

    def exp(self, a: Value) -> Value:
        return EXACT.exp(a)

    def log(self, a: Value) -> Value:
        return EXACT.ln(a)

    def finite(self, a: Value) -> Value:
        return a.is_finite()

    def whole(self, a: Value) -> int | None:
        small = a.is_finite() and a.copy_abs() < SMALL
        return int(a) if small and a == a.to_integral_value() else None

    def compare(self, op: str, a: Value, b: Value) -> Value:
        if a.is_nan() or b.is_nan():
            return op == "!="
        return FOLD[op](a, b)

    def function(self, name: str, args: Sequence[Value]) -> Value:
        if name in ("max", "min") and (args[0].is_nan() or args[1].is_nan()):
            return Decimal("NaN")
        if name in LOWERED:
            return LOWERED[name](self, *args)
        if not all(a.is_finite() for a in args):
            return Decimal("NaN")
        if name in _ROUNDINGS:
            return args[0].to_integral_value(_ROUNDINGS[name])
        if name in ("sin", "cos"):
            turned = EXACT.remainder_near(args[0], _TURN)
            return _wave(turned, turned, 1) if name == "sin" else _wave(turned, Decimal(1), 0)
        if name == "erf":
            return _erf(args[0])
        if name in ("//", "%"):
            whole = EXACT.divide(*args).to_integral_value(decimal.ROUND_FLOOR)
            return whole if name == "//" else EXACT.fma(whole.copy_negate(), args[1], args[0])
        if name in FOLD:
            return Decimal(FOLD[name](*(int(a) for a in args)))
        # the rest as well as floats know it: exact on elements, which is where it stands
        return Decimal(float(Floats(np.float64).function(name, [np.float64(a) for a in args])))


def _size(value: Decimal) -> Decimal:
    """What rounds; an infinite number does not."""
    return Decimal(0) if value.is_infinite() else value.copy_abs()


def _larger(a: Decimal, b: Decimal) -> Decimal:
    return Decimal("NaN") if a.is_nan() or b.is_nan() else max(a, b)


class Measured(Model):
    """A decimal with what its evaluation in floats may be off by, in units of their eps: each
    operation rounds once, and so did each number that is given. To first order, and in products
    to second order too: a square of what should be zero is not zero."""

    name = "measured"
    exact = Decimals()

    def given(self, value: Decimal, exact: bool) -> Value:
        return value, Decimal(0) if exact else _size(value)

    def constant(self, value: Number) -> Value:
        return self.exact.constant(value), Decimal(0)

    def _made(self, value: Decimal, *moved: tuple[Decimal, Decimal]) -> Value:
        """`value` of arguments with errors, each with how fast it moves with that argument."""
        error = _size(value)
        for slope, off in moved:
            if off:
                error = EXACT.fma(slope.copy_abs(), off, error)
        return value, error

    def add(self, a: Value, b: Value) -> Value:
        return self._made(EXACT.add(a[0], b[0]), (_ONE, a[1]), (_ONE, b[1]))

    def mul(self, a: Value, b: Value) -> Value:
        both = EXACT.multiply(a[1], _COARSE)
        return self._made(EXACT.multiply(a[0], b[0]), (b[0], a[1]), (a[0], b[1]), (both, b[1]))

    def neg(self, a: Value) -> Value:
        return a[0].copy_negate(), a[1]

    def power(self, a: Value, exponent: Fraction) -> Value:
        value = self.exact.power(a[0], exponent)
        slope = EXACT.multiply(self.exact.constant(exponent), EXACT.divide(value, a[0]))
        return self._made(value, (slope, a[1]))

    def exp(self, a: Value) -> Value:
        value = EXACT.exp(a[0])
        return self._made(value, (value, a[1])) if value else (value, value)

    def log(self, a: Value) -> Value:
        return self._made(EXACT.ln(a[0]), (EXACT.divide(_ONE, a[0]), a[1]))

    def finite(self, a: Value) -> Value:
        return a[0].is_finite()

    def whole(self, a: Value) -> int | None:
        return self.exact.whole(a[0])

    def compare(self, op: str, a: Value, b: Value) -> Value:
        return self.exact.compare(op, a[0], b[0])

    def function(self, name: str, args: Sequence[Value]) -> Value:
        numbers = [a[0] for a in args]
        value = self.exact.function(name, numbers)
        if isinstance(value, bool):
            return value
        if name in ("max", "min"):
            return value, _larger(args[0][1], args[1][1])
        with decimal.localcontext(EXACT):
            if name in _ROUNDINGS:  # float32 may lie on the other side of a step
                off = abs(numbers[0] - value)
                near = min(off, abs(off - 1), abs(off - Decimal("0.5")))
                steady = not args[0][1] or near > args[0][1] * Decimal("1e-4")
                return value, Decimal(0) if steady else 1 / _COARSE
            moved = []
            for k, (at, off) in enumerate(args):
                if off:
                    nudge = Decimal("1e-25") * max(abs(at), _ONE)
                    near = self.exact.function(name, [*numbers[:k], at + nudge, *numbers[k + 1 :]])
                    moved.append(((near - value) / nudge, off))
            return self._made(value, *moved)


# ---------------------------------------------------------------- floats

_erf_of = np.vectorize(math.erf, otypes=[np.float64])


class Floats(Model):
    """NumPy numbers of one type, or arrays of them: several evaluations side by side."""

    _FUNCTIONS: dict[str, Callable[..., Any]] = {
        **{
            name: getattr(np, name)
            for name in "exp2 expm1 log2 log10 log1p sqrt sin cos tan sinh cosh tanh floor ceil "
            "trunc copysign fmod isnan isinf isfinite abs".split()
        },
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "atan2": np.arctan2,
        "round": np.rint,
        "exp10": lambda a: np.power(a.dtype.type(10), a),
        "rsqrt": lambda a: 1 / np.sqrt(a),
        "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
        "erf": lambda a: _erf_of(a).astype(a.dtype),
        "max": np.maximum,
        "min": np.minimum,
        "pow": np.power,
        "fma": lambda a, b, c: a * b + c,
        "divide": np.divide,
        "//": np.floor_divide,
        "%": np.mod,
    }

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self.dtype = dtype
        self.name = np.dtype(dtype).name
        self.eps = float(np.finfo(dtype).eps)

    def constant(self, value: Number) -> Value:
        return self.dtype(float(value))

    def add(self, a: Value, b: Value) -> Value:
        return a + b

    def mul(self, a: Value, b: Value) -> Value:
        return a * b

    def neg(self, a: Value) -> Value:
        return -a

    def div(self, a: Value, b: Value) -> Value:
        return a / b

    def power(self, a: Value, exponent: Fraction) -> Value:
        if abs(exponent) == Fraction(1, 2):
            return np.sqrt(a) if exponent > 0 else 1 / np.sqrt(a)
        return np.power(a, self.dtype(float(exponent)))

    def exp(self, a: Value) -> Value:
        return np.exp(a)

    def log(self, a: Value) -> Value:
        return np.log(a)

    def finite(self, a: Value) -> Value:
        return np.isfinite(a)

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        return np.where(cond, a, b)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        return FOLD[op](a, b)

    def function(self, name: str, args: Sequence[Value]) -> Value:
        if name in self._FUNCTIONS:
            return self._FUNCTIONS[name](*args)
        if name.startswith(_ROUND_TO):
            return args[0].astype(DTYPES[name[len(_ROUND_TO) :]].numpy).astype(self.dtype)
        if name in FOLD:
            return FOLD[name](*(np.asarray(a).astype(np.int64) for a in args)).astype(self.dtype)
        raise NotImplementedError(f"{name} in floats")


# ---------------------------------------------------------------- the evaluator

_ROUND_TO = "round to "
# constants that mean the logarithm which they are the nearest number to
LOGARITHMS: dict[float, int] = {
    float(number(math.log(base))): base for base in (2, 10) for number in (np.float32, np.float64)
}


def evaluate(
    expr: Expr,
    env: Mapping[Var, Value],
    model: Model,
    memo: dict[Expr, Value] | None = None,
) -> Value:
    """`expr` in `model`, its variables as `env` says. `memo` keeps what parts came to; while only
    variables are added to `env`, another expression may use it.

    >>> x = Var("x", DTYPES["float32"])
    >>> print(evaluate(x * x + 1, {x: Decimal(3)}, Decimals()))
    10
    """
    if isinstance(expr, Var):
        return env[expr]
    memo = {} if memo is None else memo
    found = memo.get(expr)
    if found is None:
        found = memo[expr] = _evaluated(expr, env, model, memo)
    return found


def _evaluated(
    expr: Expr, env: Mapping[Var, Value], model: Model, memo: dict[Expr, Value]
) -> Value:
    if isinstance(expr, Bin):
        a, b = evaluate(expr.a, env, model, memo), evaluate(expr.b, env, model, memo)
        if expr.op in ("*", "/"):
            value = model.mul(a, b) if expr.op == "*" else model.div(a, b)
            return _vanishing(expr, value, env, model, memo)
        return _combined(expr.op, a, b, model)
    if isinstance(expr, Const):
        base = LOGARITHMS.get(expr.value)
        if base is not None:
            return model.log(model.constant(base))
        return expr.value if expr.dtype.is_bool else model.constant(expr.value)
    parts = [evaluate(child, env, model, memo) for child in expr.children]
    if isinstance(expr, Cmp):
        if expr.a.dtype.is_bool:
            parts = [_converted(part, expr.a.dtype, DTYPES["int32"], model) for part in parts]
        return model.compare(expr.op, *parts)
    if isinstance(expr, Select):
        return model.select(*parts)
    if isinstance(expr, Cast):
        return _converted(parts[0], expr.a.dtype, expr.dtype, model)
    if not isinstance(expr, Call):
        raise NotImplementedError(f"{type(expr).__name__} in a formula")
    name = _plain(expr.name)
    if name == "pow" and isinstance(expr.args[1], Const):
        value = model.power(parts[0], Fraction(expr.args[1].value))
        return _vanishing(expr, value, env, model, memo)
    if name in ("exp", "log", "neg"):
        return getattr(model, name)(parts[0])
    if name == "not":
        return parts[0] ^ True
    if name in ("isfinite", "isinf", "isnan") and not isinstance(model, Floats):
        return name != "isnan" and bool(model.finite(parts[0])) == (name == "isfinite")
    return model.function(name, parts)


def _plain(name: str) -> str:
    """Fast forms are the function that they approximate."""
    name = name.removeprefix("__")
    return {"max_nan": "max", "min_nan": "min"}.get(name, name)


def _combined(op: str, a: Value, b: Value, model: Model) -> Value:
    if op == "+":
        return model.add(a, b)
    if op == "-":
        return model.add(a, model.neg(b))
    if op in ("and", "or"):
        return a & b if op == "and" else a | b
    if isinstance(a, (bool, np.bool_)) or getattr(a, "dtype", None) == np.bool_:
        return FOLD[op](a, b)
    return model.function(op, (a, b))


def _converted(value: Value, source: DType, to: DType, model: Model) -> Value:
    if source.is_bool:
        return value if to.is_bool else model.select(value, model.constant(1), model.constant(0))
    if to.is_bool:
        return model.compare("!=", value, model.constant(0))
    if to.is_int:
        return value if source.is_int else model.function("trunc", (value,))
    return value if to.bits >= 32 else model.function(_ROUND_TO + to.name, (value,))


def _vanishing(
    expr: Expr, value: Value, env: Mapping[Var, Value], model: Model, memo: dict[Expr, Value]
) -> Value:
    """`value`, a product, but zero where it is not finite and a factor exp(…) is zero."""
    finite = model.finite(value)
    if finite if isinstance(finite, bool) else finite.all():
        return value
    zero = model.constant(0)
    for factor in _exponentials(expr):
        gone = model.compare("==", evaluate(factor, env, model, memo), zero)
        value = model.select(gone, zero, value)
    return value


def _exponentials(expr: Expr) -> list[Expr]:
    """The factors exp(…) of a product."""
    if isinstance(expr, Bin) and expr.op in ("*", "/"):
        below = _exponentials(expr.b) if expr.op == "*" else []
        return _exponentials(expr.a) + below
    if isinstance(expr, Cast):
        return _exponentials(expr.a)
    if isinstance(expr, Call):
        if _plain(expr.name) in EXPONENTIAL:
            return [expr]
        if expr.name == "neg":
            return _exponentials(expr.args[0])
        if expr.name == "pow" and isinstance(expr.args[1], Const) and expr.args[1].value > 0:
            return _exponentials(expr.args[0])
    return []
