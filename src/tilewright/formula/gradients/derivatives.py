"""Derivatives of expressions: what a change of the value says about each element that it reads.

Where a function has no derivative, a choice is made, the symmetric one: `abs` has slope 0 at 0, the
larger of two equal values shares its cotangent evenly (so relu has slope 1/2 at 0). Roundings
(`floor`, `round`, …) have slope 0 and conversions between floats slope 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tilewright.formula.front.promotion import compute_type
from tilewright.ir.core import *
from tilewright.support.errors import CompileError

Partial: TypeAlias = "Callable[[Expr, Expr], Expr]"  # of y = f(x) by x, given y and x
Cotangents: TypeAlias = "tuple[Expr | None, ...]"  # one for each argument
Rule: TypeAlias = "Callable[..., Cotangents]"  # given that of y, y and the arguments


def pullback(expr: Expr, cotangent: Expr) -> dict[Load, Expr]:
    """The cotangents of the elements that `expr` reads, given its own. A `Select` has them on the
    side that it chooses, and nothing is computed with the other: it may be infinite there.

    >>> from tilewright.ir.formula import tensor
    >>> i = Var("i")
    >>> x, d = (Load(tensor(name, (4,), FLOAT32), (i,)) for name in "xd")
    >>> pullback(Call("exp", (x * 2,), FLOAT32), d)
    {x[i]: d[i] * exp(x[i] * 2.0) * 2.0}
    """
    known: dict[Expr, Expr] = {expr: cotangent}
    found: dict[Load, Expr] = {}
    for node in reversed(list(_in_order(expr))):
        given = known.get(node)
        if given is None:
            continue
        if isinstance(node, Load):
            _add(found, node, given)
        elif isinstance(node, Select):
            for load, value in _chosen(node, given).items():
                _add(found, load, value)
        else:
            for child, part in zip(node.children, _pulled(node, given), strict=True):
                if part is not None and child.dtype.is_float:
                    _add(known, child, cast(part, compute_type(child.dtype)))
    return found


def _in_order(expr: Expr) -> Iterator[Expr]:
    """The floats that `expr` is made of, each after what it is made of; what a `Select` chooses
    from is left to itself."""
    seen: set[Expr] = set()
    stack = [(expr, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            yield node
        elif node.dtype.is_float and node not in seen:
            seen.add(node)
            stack.append((node, True))
            inner = () if isinstance(node, (Select, Load)) else node.children
            stack += [(child, False) for child in reversed(inner)]


def _add(into: dict[Expr, Expr] | dict[Load, Expr], key: Expr, value: Expr) -> None:
    table: dict[Expr, Expr] = into  # type: ignore[assignment]
    table[key] = table[key] + value if key in table else value


def _chosen(node: Select, given: Expr) -> dict[Load, Expr]:
    sides = pullback(node.a, given), pullback(node.b, given)
    zero = const(0, given.dtype)
    return {
        load: select(node.cond, sides[0].get(load, zero), sides[1].get(load, zero))
        for load in {**sides[0], **sides[1]}
    }


def _pulled(node: Expr, given: Expr) -> Cotangents:
    """The cotangents of a node's children."""
    name = _name(node)
    args = tuple(cast(child, compute_type(child.dtype)) for child in node.children)
    y = cast(node, given.dtype)
    if name in PARTIALS:
        return (times(given, PARTIALS[name](y, *args)),)
    if name in RULES:
        return RULES[name](given, y, *args)
    if name in FLAT:
        return (None,) * len(args)
    if not args:
        return ()
    raise CompileError(
        f"the derivative of {name} is not known",
        got=str(node)[:80],
        fix="write it with functions that have one, or leave its inputs out of wrt",
    )


def _name(node: Expr) -> str:
    match node:
        case Bin(op=op):
            return op
        case Call(name=name):
            return name.removeprefix("__")  # the fast forms have the same derivative
        case Cast():
            return "cast"
    return type(node).__name__


# ── arithmetic that knows zero and one ───────────────────────────────────────────────────────


def times(a: Expr, b: Expr) -> Expr | None:
    """a · b, or nothing if it is zero."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const) and x.value in (0, 1, -1):
            return {0: None, 1: y, -1: -y}[int(x.value)]
    return a * b


def _of(value: float, x: Expr) -> Expr:
    return const(value, x.dtype)


def _call(name: str, *args: Expr) -> Expr:
    return Call(name, args, args[0].dtype)


def _one(x: Expr) -> Expr:
    return _of(1, x)


# ── the table ────────────────────────────────────────────────────────────────────────────────


def _sign(x: Expr) -> Expr:
    one = _one(x)
    return select(x > 0, one, select(x < 0, -one, _of(0, x)))


def _unit(x: Expr) -> Expr:
    """1 with the sign of x, that of a zero too."""
    return _call("copysign", _one(x), x)


PARTIALS: dict[str, Partial] = {
    "neg": lambda y, x: _of(-1, x),
    "abs": lambda y, x: _sign(x),
    "exp": lambda y, x: y,
    "exp2": lambda y, x: y * math.log(2),
    "exp10": lambda y, x: y * math.log(10),
    "expm1": lambda y, x: y + 1,
    "log": lambda y, x: 1 / x,
    "log2": lambda y, x: (1 / math.log(2)) / x,
    "log10": lambda y, x: (1 / math.log(10)) / x,
    "log1p": lambda y, x: 1 / (x + 1),
    "sqrt": lambda y, x: 0.5 / y,
    "rsqrt": lambda y, x: y * y * y * -0.5,
    "sin": lambda y, x: _call("cos", x),
    "cos": lambda y, x: -_call("sin", x),
    "tan": lambda y, x: y * y + 1,
    "asin": lambda y, x: _call("rsqrt", 1 - x * x),
    "acos": lambda y, x: -_call("rsqrt", 1 - x * x),
    "atan": lambda y, x: 1 / (x * x + 1),
    "sinh": lambda y, x: _call("cosh", x),
    "cosh": lambda y, x: _call("sinh", x),
    "tanh": lambda y, x: 1 - y * y,
    "sigmoid": lambda y, x: y * (1 - y),
    "erf": lambda y, x: _call("exp", -(x * x)) * (2 / math.sqrt(math.pi)),
    "cast": lambda y, x: _of(1, y),
}


def _product(g: Expr, y: Expr, a: Expr, b: Expr) -> Cotangents:
    return times(g, b), times(g, a)


def _quotient(g: Expr, y: Expr, a: Expr, b: Expr) -> Cotangents:
    return g / b, None if isinstance(b, Const) else -(g * y / b)


def _extreme(op: str) -> Rule:
    def rule(g: Expr, y: Expr, a: Expr, b: Expr) -> Cotangents:
        zero, half = _of(0, g), g * 0.5
        tie = compare("==", a, b)
        return tuple(
            select(compare(op, x, other), g, select(tie, half, zero))
            for x, other in ((a, b), (b, a))
        )

    return rule


def _power(g: Expr, y: Expr, a: Expr, b: Expr) -> Cotangents:
    by_base: Expr | None
    if isinstance(b, Const):
        slope = y / a if b.value < 0 else a ** const(b.value - 1, a.dtype)
        by_base = times(g, slope * b)
    else:
        slope = b * _call("pow", a, b - 1)
        by_base = g * select(compare("==", b, 0), _of(0, b), slope)
    if isinstance(b, Const):
        return by_base, None
    grows = y * _call("log", a)  # of zero to some power it is zero
    flat = binary("and", compare("==", a, 0), b >= 0)
    return by_base, g * select(flat, _of(0, b), grows)


def _angle(g: Expr, y: Expr, a: Expr, b: Expr) -> Cotangents:
    square = a * a + b * b
    return g * b / square, -(g * a / square)


def _whole(name: str) -> Rule:
    """Of what is left when `b` is taken from `a` a whole number of times."""
    return lambda g, y, a, b: (g, -(g * _call(name, a / b)))


RULES: dict[str, Rule] = {
    "+": lambda g, y, a, b: (g, g),
    "-": lambda g, y, a, b: (g, -g),
    "*": _product,
    "/": _quotient,
    "divide": _quotient,
    "%": _whole("floor"),
    "fmod": _whole("trunc"),
    "max": _extreme(">"),
    "min": _extreme("<"),
    "max_nan": _extreme(">"),
    "min_nan": _extreme("<"),
    "pow": _power,
    "atan2": _angle,
    "copysign": lambda g, y, a, b: (g * (_unit(a) * _unit(b)), None),
    "fma": lambda g, y, a, b, c: (*_product(g, y, a, b), g),
}

# slope 0 wherever it has one
FLAT = frozenset({"floor", "ceil", "round", "trunc", "//"})
