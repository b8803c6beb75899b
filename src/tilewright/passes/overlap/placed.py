"""Kernels whose author has decided what happens when."""

from __future__ import annotations

from tilewright.ir.atoms import ATOMS
from tilewright.ir.op import (
    Arrive,
    BarrierInit,
    Commit,
    Copy,
    Hint,
    Kernel,
    Map,
    Op,
    Role,
    Wait,
    WaitGroup,
    walk_ops,
)


def why_placed(op: Op) -> str | None:
    """What of an op is its author's own time, in words."""
    if isinstance(op, (Role, BarrierInit, Arrive, Wait, Commit, WaitGroup)):
        return "the kernel has roles, barriers or waits of its own"
    if isinstance(op, Hint) and op.name == "ws":
        return "the kernel places statements on warps"
    if isinstance(op, (Copy, Map)) and op.atom is not None and ATOMS[op.atom].is_async:
        return "the kernel has asynchronous copies of its own"
    return None


def is_placed(kernel: Kernel) -> bool:
    """The kernel has roles, barriers or asynchronous copies of its own: its time is its author's
    business."""
    return any(why_placed(op) for op in walk_ops(kernel))
