"""Views of tensors at the kernel's start.

A view made inside a loop says nothing about the loop, but copies of it that run ahead would stand
before it. Those whose offset is known only inside stay where they are.
"""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.ir.expr import loads, variables
from tilewright.ir.op import Body, Kernel, Op, View, bound, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target


def hoist_views(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with the views of tensors that can be made first, made first."""
    ops = list(walk_ops(kernel.body))
    views = [op for op in ops if isinstance(op, View) and op.source.space is Space.GLOBAL]
    inner = {var for op in ops for var in bound(op)}
    stay: set[str] = set()
    first: list[View] = []
    for op in views:
        sizes = (op.offset, *op.buffer.shape)
        if op.source.name in stay or any(variables(e) & inner or loads(e) for e in sizes):
            stay.add(op.buffer.name)
        else:
            first.append(op)
    if all(a is b for a, b in zip(first, kernel.body, strict=False)):
        return kernel
    chosen = {id(op) for op in first}

    def rule(op: Op) -> Body | None:
        return () if id(op) in chosen else None

    return rebuild(kernel, body=(*first, *map_body(kernel.body, rule)))
