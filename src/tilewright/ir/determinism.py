"""What may give other bits from run to run: sums whose order nobody fixes."""

from __future__ import annotations

from tilewright.ir.op import Atomic, Copy, Op, Program, walk_ops
from tilewright.support.errors import CompileError


def is_unordered(op: Op) -> bool:
    """Whether `op` adds floats in the order in which blocks and threads happen to come."""
    if isinstance(op, Atomic):
        return op.op == "add" and op.dst.dtype.is_float
    return isinstance(op, Copy) and op.reduce == "add" and op.dst.dtype.is_float


def check_deterministic(program: Program) -> None:
    """Refuse what `deterministic=True` rules out."""
    for kernel in program.kernels:
        for op in walk_ops(kernel):
            if is_unordered(op):
                assert isinstance(op, (Atomic, Copy))
                raise CompileError(
                    f"atomic sums of {op.dst.dtype} may give other bits from run to run",
                    loc=op.loc,
                    expected="sums in a fixed order, as deterministic=True asks for",
                    got=f"additions to {op.dst.buffer.name} in the order in which blocks come",
                    fix="let each block store its part, and sum the parts in a second T.Kernel; "
                    "integers may be added atomically",
                )


__all__ = ["check_deterministic", "is_unordered"]
