"""Tiles that nothing uses, and maps without iterations: no memory, no registers, no layout."""

from __future__ import annotations

from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Const
from tilewright.ir.op import Alloc, Body, Hint, Kernel, Map, Op, named_buffers, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target


def drop_unused(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` without maps of no iterations, and without buffers that are only allocated, and what
    is said of their layouts."""
    ops = list(walk_ops(kernel.body))
    if any(map(_is_empty, ops)):
        found = map_body(kernel.body, lambda op: () if _is_empty(op) else None)
        return drop_unused(rebuild(kernel, body=found), target)
    # what a variable begins with, or an assumption asks for, is used
    used = {b for op in ops for b in named_buffers(op) if b is not _about(op)}

    def rule(op: Op) -> Body | None:
        about = _about(op)
        return None if about is None or about in used else ()

    unused = {op.buffer for op in ops if isinstance(op, Alloc)} - used
    return rebuild(kernel, body=map_body(kernel.body, rule)) if unused else kernel


def _is_empty(op: Op) -> bool:
    return isinstance(op, Map) and any(isinstance(e, Const) and e.value == 0 for e in op.extents)


def _about(op: Op) -> Buffer | None:
    return op.buffer if isinstance(op, (Alloc, Hint)) else None
