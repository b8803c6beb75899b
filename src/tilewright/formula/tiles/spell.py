"""How expressions are spelt for the chip, where every result is rounded to 16 bits or fewer.

A few ulp of float32 are then far below the rounding: exponentials become powers of two with their
factors folded into what they are applied to (one FMA and one instruction an element), and what is
divided by a value of fewer dimensions is multiplied by its reciprocal. `explain()` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from tilewright.formula.factors import POWERS, is_far
from tilewright.ir.core import *

Dims: TypeAlias = Callable[[Expr], tuple[Var, ...]]
NOTE = "exponentials and quotients are a few ulp of float32 off: results have 16 bits or fewer"
_FAST = {"sigmoid": "__sigmoid", "log": "__log", "log2": "__log2"}


def spell(expr: Expr, dims: Dims, exponent: bool = False, near: Collection[str] = ()) -> Expr:
    """`expr` in fast words; `dims` says which dimensions a value has. `exponent`: it is what an
    exponential is taken of, so that its error counts as it is, however small it is itself. Numbers
    that are not `near` would be infinite times a factor: they are subtracted before.

    >>> x, m = Var("x", FLOAT32), Var("m", FLOAT32)
    >>> spell(Call("exp", (x * 0.125 - m,), FLOAT32), lambda e: (x,) if x in variables(e) else ())
    __exp2(x * 0.18033688 - m * 1.442695)
    """

    def rule(node: Expr) -> Expr | None:
        if node.dtype != FLOAT32:
            return None
        match node:
            case Call(name=name, args=(a,)) if name in POWERS:
                return Call("__exp2", (_scaled(_logistic(a), POWERS[name], dims, near),), FLOAT32)
            case (
                Bin(op="+", a=Const(value=1), b=Call(name="tanh", args=(u,)))
                | Bin(op="+", a=Call(name="tanh", args=(u,)), b=Const(value=1))
            ):  # near -1, where tanh cancels, the logistic function keeps its digits
                return Call("__sigmoid", (_doubled(u),), FLOAT32) * 2
            case Bin(
                op="*",
                a=Bin(op="*", a=a, b=Const(value=k)),
                b=Bin(op="*", a=b, b=Const(value=other)),
            ) if k * other == 1:
                return a * b
            case Call(name=name, args=args) if name in _FAST:
                return Call(_FAST[name], args, FLOAT32)
            case Bin(op="/", a=a, b=b) if len(dims(b)) < len(dims(a)) and not isinstance(b, Const):
                return a * (1 / b)
            case Bin(op="/", a=a, b=b) if dims(b):
                return Call("__divide", (a, b), FLOAT32)
        return None

    return transform(_logistic(expr) if exponent else expr, rule)


def _logistic(expr: Expr) -> Expr:
    """tanh by the logistic function, two instructions: off by a few ulp of one, not of itself."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Call) and node.name == "tanh" and node.dtype == FLOAT32:
            return Call("__sigmoid", (_doubled(node.args[0]),), FLOAT32) * 2 - 1
        return None

    return transform(expr, rule)


def _doubled(expr: Expr) -> Expr:
    terms: dict[Expr, float] = {}
    _collect(expr, 2.0, terms, lambda e: ())
    ((term, by),) = terms.items()
    return term * by


def _scaled(expr: Expr, factor: float, dims: Dims, near: Collection[str]) -> Expr:
    """`expr · factor`, each term of a sum with one constant; what has fewer dimensions is added up
    before it is subtracted."""
    terms: dict[Expr, float] = {}
    _collect(expr, factor, terms, dims)
    most = max((len(dims(term)) for term in terms), default=0)
    wide = {term: by for term, by in terms.items() if len(dims(term)) == most}
    rest = {term: -by for term, by in terms.items() if len(dims(term)) < most}
    if rest and any(is_far(term, near) for term in wide):
        match expr:
            case Bin(op="*", a=a, b=Const(value=k)) | Bin(op="*", a=Const(value=k), b=a):
                return a * (float(k) * factor)
        return expr * factor
    found = _sum(wide)
    return found - _sum(rest) if rest else found


def _sum(terms: dict[Expr, float]) -> Expr:
    found: Expr | None = None
    for term, by in sorted(terms.items(), key=lambda item: item[1] < 0):
        if isinstance(term, Const):
            part: Expr = const(float(term.value) * abs(by), FLOAT32)
        else:
            part = term if abs(by) == 1 else term * abs(by)
        if found is None:
            found = part if by > 0 else -part
        else:
            found = found + part if by > 0 else found - part
    return const(0.0, FLOAT32) if found is None else found


def _collect(
    expr: Expr,
    by: float,
    terms: dict[Expr, float],
    dims: Dims,
    thin: Collection[Var] | None = None,
) -> None:
    """Sums are taken apart where a side has fewer dimensions: its product is then cheap. Of sums of
    both rows and columns, `thin` are the dimensions of the outermost; the others stay together."""
    match expr:
        case Bin(op="+" | "-" as op, a=a, b=b) if len(dims(a)) != len(dims(b)) and (
            thin is None or {*min(dims(a), dims(b), key=len)} <= {*thin}
        ):
            thin = min(dims(a), dims(b), key=len) if thin is None else thin
            _collect(a, by, terms, dims, thin)
            _collect(b, by if op == "+" else -by, terms, dims, thin)
        case Call(name="neg", args=(a,)):
            _collect(a, -by, terms, dims, thin)
        case Bin(op="*", a=a, b=Const(value=k)) | Bin(op="*", a=Const(value=k), b=a):
            _collect(a, by * float(k), terms, dims, thin)
        case Bin(op="/", a=a, b=Const(value=k)) if k:
            _collect(a, by / float(k), terms, dims, thin)
        case _:
            terms[expr] = terms.get(expr, 0.0) + by
