"""Functions of one element each, as a table: what types they take and give, and their expression.

Functions that targets do not have are composed of those they have, so that they are right for
NaN, infinities and zeros, and within a few ulp elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright.formula.front.promotion import FLOAT64, KINDS, kind_of, result_type
from tilewright.formula.front.values import (
    OPERATIONS,
    Number,
    Value,
    array_of,
    define,
    element_of,
    operand,
    pointwise,
    shape_of,
    sized,
)
from tilewright.ir.arith import folded, power
from tilewright.ir.core import *
from tilewright.ir.dtype import INT64
from tilewright.support.errors import CompileError

_LN2 = math.log(2.0)


def _of(value: float, x: Expr) -> Expr:
    """A constant of the type of `x`."""
    return const(value, x.dtype)


def _call(name: str) -> Callable[..., Expr]:
    return lambda *args: Call(name, args, args[0].dtype)


def _bin(op: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: folded(op, a, b)


def _is(op: str, a: Expr, b: Expr | float) -> Expr:
    return folded(op, a, b if isinstance(b, Expr) else _of(b, a))


def _truth(op: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: folded(op, truth(a), truth(b))


def _float_test(name: str, of_integers: bool) -> Callable[[Expr], Expr]:
    answer = const(of_integers, BOOL)
    return lambda x: Call(name, (x,), BOOL) if x.dtype.is_float else answer


def _rounds(name: str) -> Callable[[Expr], Expr]:
    return lambda x: Call(name, (x,), x.dtype) if x.dtype.is_float else x


def _extreme(op: str, of_bools: str) -> Callable[[Expr, Expr], Expr]:
    """`max` or `min`; of floats it is NaN where either is."""

    def build(a: Expr, b: Expr) -> Expr:
        if a.dtype.is_bool:
            return folded(of_bools, a, b)
        return Call(f"{op}_nan", (a, b), a.dtype) if a.dtype.is_float else folded(op, a, b)

    return build


largest, least = _extreme("max", "or"), _extreme("min", "and")


def _log_twice(x: Expr) -> Expr:
    """log(2x) of large ones."""
    return _call("log")(x) + _LN2


def _large(x: Expr) -> Expr:
    return _is(">", x, 1e8)


def _acosh(x: Expr) -> Expr:
    t = x - 1
    near = _call("log1p")(t + _call("sqrt")(t) * _call("sqrt")(t + 2))
    return Select(_large(x), _log_twice(x), near)


def _size(x: Expr) -> Expr:
    """|x| where the result takes the sign of x: unlike `abs` it has slope 1 at zero."""
    return _call("copysign")(x, _of(1, x))


def _asinh(x: Expr) -> Expr:
    a = _size(x)
    near = _call("log1p")(a + a * a / (1 + _call("sqrt")(a * a + 1)))
    return _call("copysign")(Select(_large(a), _log_twice(a), near), x)


def _atanh(x: Expr) -> Expr:
    a = _size(x)
    return _call("copysign")(_call("log1p")(2 * a / (1 - a)) / 2, x)


def _hypot(a: Expr, b: Expr) -> Expr:
    a, b = abs(a), abs(b)
    top, bottom = largest(a, b), least(a, b)
    ratio = bottom / top
    near = top * _call("sqrt")(1 + ratio * ratio)
    infinite = folded("or", Call("isinf", (a,), BOOL), Call("isinf", (b,), BOOL))
    return Select(infinite, _of(math.inf, a), Select(_is("==", top, 0), top, near))


def _logaddexp(a: Expr, b: Expr) -> Expr:
    apart = largest(a, b) + _call("log1p")(_call("exp")(-abs(a - b)))
    # both are said, so that both have a slope
    return Select(_is("==", a, b), a * 0.5 + b * 0.5 + _LN2, apart)


def _sign(x: Expr) -> Expr:
    if x.dtype.kind == "uint":
        return Select(_is("==", x, 0), x, _of(1, x))
    rest = x * _of(0, x) if x.dtype.is_float else x  # zero or NaN, of slope zero
    return Select(_is(">", x, 0), _of(1, x), Select(_is("<", x, 0), _of(-1, x), rest))


def _floor_divide(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        return folded("//", a, b)
    # a quotient just below zero, as by an infinity, is rounded to zero
    quotient = a / b
    differ = folded("^", _is("<", a, 0), _is("<", b, 0))
    below = folded("and", folded("and", _is("==", quotient, 0), _is("!=", a, 0)), differ)
    return Select(below, _of(-1, a), Call("floor", (quotient,), a.dtype))


def _gelu(x: Expr) -> Expr:
    return x * 0.5 * (1 + _call("erf")(x * math.sqrt(0.5)))


def _gelu_tanh(x: Expr) -> Expr:
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (1 + _call("tanh")(inner))


class Elementwise(NamedTuple):
    """`least` is the lowest kind that it computes in, `most` the highest that it takes."""

    arity: int
    least: str
    build: Callable[..., Expr]
    result: str = ""  # 'bool', or the type that it computes in
    most: str = "float"


def _table() -> dict[str, Elementwise]:
    calls = "acos asin atan cos cosh exp expm1 log log1p log2 log10 sin sinh sqrt tan tanh"
    own = "erf rsqrt sigmoid"
    found = {name: Elementwise(1, "float", _call(name)) for name in f"{calls} {own}".split()}
    for name, op in zip("add subtract multiply remainder".split(), "+-*%", strict=True):
        found[name] = Elementwise(2, "int", _bin(op))
    comparisons = "less less_equal equal not_equal greater greater_equal".split()
    for name, op in zip(comparisons, CMP_OPS, strict=True):
        found[name] = Elementwise(2, "bool", _bin(op), "bool")
    bits = {"and": "&", "or": "|", "xor": "^"}
    for name, op in bits.items():
        found[f"bitwise_{name}"] = Elementwise(2, "bool", _bin(op), most="int")
    for name, op in {"left": "<<", "right": ">>"}.items():
        found[f"bitwise_{name}_shift"] = Elementwise(
            2, "int", lambda a, b, op=op: binary(op, a, b), most="int"
        )
    for name, op in {"and": "and", "or": "or", "xor": "^"}.items():
        found[f"logical_{name}"] = Elementwise(2, "bool", _truth(op), "bool")
    for name in ("ceil", "floor", "round", "trunc"):
        found[name] = Elementwise(1, "int", _rounds(name))
    for name, of_integers in {"isnan": False, "isinf": False, "isfinite": True}.items():
        found[name] = Elementwise(1, "int", _float_test(name, of_integers), "bool")
    return {
        **found,
        "abs": Elementwise(1, "int", lambda x: x if x.dtype.kind == "uint" else abs(x)),
        "acosh": Elementwise(1, "float", _acosh),
        "asinh": Elementwise(1, "float", _asinh),
        "atan2": Elementwise(2, "float", _call("atan2")),
        "atanh": Elementwise(1, "float", _atanh),
        "bitwise_invert": Elementwise(1, "bool", lambda x: ~x, most="int"),
        "copysign": Elementwise(2, "float", _call("copysign")),
        "divide": Elementwise(2, "float", _bin("/")),
        "floor_divide": Elementwise(2, "int", _floor_divide),
        "hypot": Elementwise(2, "float", _hypot),
        "logaddexp": Elementwise(2, "float", _logaddexp),
        "logical_not": Elementwise(1, "bool", logical_not, "bool"),
        "maximum": Elementwise(2, "bool", largest),
        "minimum": Elementwise(2, "bool", least),
        "negative": Elementwise(1, "int", lambda x: -x),
        "positive": Elementwise(1, "int", lambda x: x),
        "pow": Elementwise(2, "int", power),
        "reciprocal": Elementwise(1, "float", lambda x: 1 / x),
        "sign": Elementwise(1, "int", _sign),
        "signbit": Elementwise(
            1, "float", lambda x: _is("<", _call("copysign")(_of(1, x), x), 0), "bool"
        ),
        "square": Elementwise(1, "int", lambda x: x * x),
        # not in the standard
        "gelu_erf": Elementwise(1, "float", _gelu),
        "gelu_tanh": Elementwise(1, "float", _gelu_tanh),
        "relu": Elementwise(1, "int", lambda x: largest(x, _of(0, x))),
        "silu": Elementwise(1, "float", lambda x: x * _call("sigmoid")(x)),
        "softplus": Elementwise(
            1, "float", lambda x: largest(x, _of(0, x)) + _call("log1p")(_call("exp")(-abs(x)))
        ),
    }


TABLE = _table()


def _type(name: str, row: Elementwise, operands: list[Any]) -> DType:
    """What it computes in: the operands' common type, raised to the lowest kind it computes in."""
    found = result_type(*operands)
    rank = KINDS.index(kind_of(found))
    if rank > KINDS.index(row.most):
        raise CompileError(
            f"{name} takes integers and bools, not {found}",
            fix='convert it first: tm.astype(x, "int32")',
        )
    if rank >= KINDS.index(row.least):
        return found
    return FLOAT32 if row.least == "float" else INT32


def apply(name: str, *given: Any) -> Value:
    """The function `name` of the table on arrays and numbers; of numbers alone, a number."""
    row = TABLE[name]
    operands = [operand(x, name) for x in given]
    if all(isinstance(x, (Number, bool, int, float)) for x in operands):
        kinds = [x.expr.dtype if isinstance(x, Number) else result_type(x) for x in operands]
        is_float = row.least == "float" or any(kind.is_float for kind in kinds)
        is_float |= name == "pow" and not (isinstance(given[1], int) and given[1] >= 0)
        known = not any(isinstance(x, Value) for x in operands)
        inner = FLOAT64 if is_float else INT64 if known else INT32
        made = row.build(*(element_of(x, (), inner) for x in operands))
        from tilewright.formula.meaning import Evaluator  # which brings the machine

        found: Value = Evaluator({}, {}, True)(made).item() if known else sized(made)
        return found
    inner = _type(name, row, operands)
    outer = BOOL if row.result == "bool" else inner
    return pointwise(name, operands, row.build, inner, outer)


def named(name: str, about: str, function: Callable[..., Value]) -> Callable[..., Value]:
    """A function that a table or another function makes, under its public name."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return function


def _function(name: str, arity: int) -> Callable[..., Value]:
    """A function of the table."""

    def unary(x: Any, /) -> Value:
        return apply(name, x)

    def both(x1: Any, x2: Any, /) -> Value:
        return apply(name, x1, x2)

    about = f"`{name}` of the Array API, element by element."
    return named(name, about, unary if arity == 1 else both)


FUNCTIONS_BY_NAME: dict[str, Callable[..., Value]] = {
    name: _function(name, row.arity)
    for name, row in TABLE.items()
    if name not in ("gelu_erf", "gelu_tanh")
}
OPERATIONS.update(FUNCTIONS_BY_NAME)


def clip(x: Value, /, min: Any = None, max: Any = None) -> Value:
    """`x`, no less than `min` and no more than `max`; NaN stays NaN."""
    x = array_of(x, "clip")
    bounds = [(each, build) for each, build in ((min, largest), (max, least)) if each is not None]
    operands = [x, *(operand(each, "clip") for each, _ in bounds)]
    kind = result_type(*operands)

    def build(first: Expr, *rest: Expr) -> Expr:
        for bound, (_, fold) in zip(rest, bounds, strict=True):
            first = fold(first, bound)
        return first

    return pointwise("clip", operands, build, kind, kind)


def where(condition: Any, x1: Any, x2: Any, /) -> Value:
    """`x1` where `condition`, else `x2`.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: where(x > 0, x, 0.0), [("x", (4,), "float32")]))
    formula formula(x: float32[4]) -> out
        greater[i < 4]: bool = x[i] > 0.0
        out[i1 < 4]: float32 = x[i1] if greater[i1] else 0.0
    """
    condition, a, b = (operand(x, "where") for x in (condition, x1, x2))
    if not isinstance(condition, Value):
        raise CompileError(
            "the condition of tm.where is an array",
            got=repr(condition),
            fix="a condition that Python knows is decided by if",
        )
    kind = result_type(a, b)

    def elements(new: tuple[Expr, ...]) -> Expr:
        chosen = truth(element_of(condition, new, condition.dtype))
        return select(chosen, element_of(a, new, kind), element_of(b, new, kind))

    return define("where", shape_of(condition, a, b), elements, kind)


def gelu(x: Any, /, approximate: str = "none") -> Value:
    """x·Φ(x), or its approximation by `"tanh"`."""
    forms = {"none": "gelu_erf", "tanh": "gelu_tanh"}
    if approximate not in forms:
        raise CompileError(
            f"there is no approximation {approximate!r} of gelu", fix='write "none" or "tanh"'
        )
    return apply(forms[approximate], x)
