"""Approximate functions and division, for those who ask (`fast_math`).

    exp(x) → __exp(x)        a / b → __divide(a, b)

The fast forms are off by a few ulp (`tanh` by 2⁻¹¹) where the hardware has them.
"""

from __future__ import annotations

from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import Bin, Call, Expr, transform
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.ir.op import Kernel, Op
from tilewright.ir.rewrite import map_exprs, map_ops
from tilewright.ir.target import Target


def use_fast_functions(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with the fast forms of what it computes in float32, if `target` allows it."""
    if not target.numerics.fast_math:
        return kernel

    def node(e: Expr) -> Expr | None:
        if e.dtype != FLOAT32:
            return None
        if isinstance(e, Call) and f"__{e.name}" in FUNCTIONS:
            return Call(f"__{e.name}", e.args, e.dtype)
        if isinstance(e, Bin) and e.op == "/":
            return Call("__divide", (e.a, e.b), e.dtype)
        return None

    def rule(op: Op) -> Op:
        return map_exprs(op, lambda e: transform(e, node))

    return map_ops(kernel, rule)
