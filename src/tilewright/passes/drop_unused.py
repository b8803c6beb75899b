"""Tiles that nothing uses: no memory, no registers, and no plan counts them."""

from __future__ import annotations

from tilewright.ir.op import Alloc, Body, Hint, Kernel, Op, named_buffers, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target


def drop_unused(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` without buffers that are only allocated, and what is said of their layouts."""
    ops = list(walk_ops(kernel.body))
    used = {b for op in ops if not isinstance(op, (Alloc, Hint)) for b in named_buffers(op)}

    def rule(op: Op) -> Body | None:
        about = op.buffer if isinstance(op, (Alloc, Hint)) else None
        return None if about is None or about in used else ()

    unused = {op.buffer for op in ops if isinstance(op, Alloc)} - used
    return rebuild(kernel, body=map_body(kernel.body, rule)) if unused else kernel
