"""How reductions fold: two partial results into one, what of an element, in which type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.dtype import DTYPES, INT32, DType
from tilewright.ir.expr import Bin, Call, Expr, cast, const, truth


def _max(a: Expr, b: Expr) -> Expr:
    return Call("max_nan", (a, b), a.dtype) if a.dtype.is_float else Bin("max", a, b)


def _min(a: Expr, b: Expr) -> Expr:
    return Call("min_nan", (a, b), a.dtype) if a.dtype.is_float else Bin("min", a, b)


def _magnitude(a: Expr) -> Expr:
    return Call("abs", (a,), a.dtype)


def _number(op: str) -> Callable[[Expr], Expr]:
    """What is folded of an element where NaN is skipped: `max(NaN, x)` is x."""
    return lambda a: Bin(op, a, identity(op, a.dtype))


@dataclass(frozen=True)
class Folding:
    """How two partial results become one, and what is folded of an element."""

    fold: Callable[[Expr, Expr], Expr]
    of: Callable[[Expr], Expr] = lambda a: a
    idempotent: bool = False


FOLDS: dict[str, Folding] = {
    "sum": Folding(lambda a, b: a + b),
    "max": Folding(_max, idempotent=True),
    "min": Folding(_min, idempotent=True),
    "abssum": Folding(lambda a, b: a + b, _magnitude),
    "absmax": Folding(_max, _magnitude, True),
    "max_num": Folding(lambda a, b: Bin("max", a, b), _number("max"), True),
    "min_num": Folding(lambda a, b: Bin("min", a, b), _number("min"), True),
    "absmax_num": Folding(
        lambda a, b: Bin("max", a, b), lambda a: Bin("max", _magnitude(a), const(0, a.dtype)), True
    ),
    "and": Folding(lambda a, b: a & b, idempotent=True),
    "or": Folding(lambda a, b: a | b, idempotent=True),
    "xor": Folding(lambda a, b: a ^ b),
}
# of truth values, as 0 and 1
TRUTHS: dict[str, Folding] = {
    "any": Folding(lambda a, b: a | b, idempotent=True),
    "all": Folding(lambda a, b: a & b, idempotent=True),
}
ALL_FOLDS = {**FOLDS, **TRUTHS}


def accumulates_in(op: str, src: DType, dst: DType) -> DType:
    """The type that partial results have: the wider of the two, at least 32 bits."""
    if op in TRUTHS:
        return INT32
    bits = max(src.bits, dst.bits, 32)
    if src.is_float or dst.is_float:
        wide = 64 in (k.bits for k in (src, dst) if k.is_float)
        return DTYPES["float64" if wide else "float32"]
    signed = "int" in (src.kind, dst.kind) or dst.is_bool
    return DTYPES[f"{'' if signed else 'u'}int{bits}"]


def identity(op: str, kind: DType) -> Expr:
    """What changes no partial result."""
    if op == "all":
        return const(1, kind)
    if op == "and":
        return const(-1 if kind.kind == "int" else kind.max_value, kind)
    if op in ("max", "max_num"):
        return const(-math.inf if kind.is_float else kind.min_value, kind)
    if op in ("min", "min_num"):
        return const(math.inf if kind.is_float else kind.max_value, kind)
    return const(0, kind)


def element_value(op: str, value: Expr, kind: DType) -> Expr:
    """What is folded of an element."""
    if op in TRUTHS:
        return cast(truth(value), kind)
    return ALL_FOLDS[op].of(cast(value, kind))
