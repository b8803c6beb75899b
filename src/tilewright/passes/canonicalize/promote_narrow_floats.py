"""Arithmetic on narrow floats: in float32, rounded once per operation."""

from __future__ import annotations

from tilewright.ir.dtype import FLOAT32, DType
from tilewright.ir.expr import Bin, Call, Cast, Cmp, Expr, Load, cast


def is_small(kind: DType) -> bool:
    """Whether values of this type are computed with in float32."""
    return kind.is_float and kind.bits <= 16


def widened(e: Expr) -> Expr:
    """`e`, one operation on operands that are done, with narrow floats widened."""
    children = e.children
    if isinstance(e, (Cast, Load)) or not any(is_small(c.dtype) for c in children):
        return e
    if isinstance(e, Call) and e.name.startswith(("pack_", "reinterpret")):
        return e
    if not isinstance(e, (Bin, Cmp, Call)):
        return e
    wide = tuple(cast(c, FLOAT32) if is_small(c.dtype) else c for c in children)
    if isinstance(e, Call):
        kind = FLOAT32 if is_small(e.dtype) else e.dtype
        return cast(Call(e.name, wide, kind), e.dtype)
    return cast(e.rebuild(wide), e.dtype)
