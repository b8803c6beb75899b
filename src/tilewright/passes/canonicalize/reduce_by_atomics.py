"""Additions of whole tiles that ask for the copy engine (`T.atomic_add(..., use_tma=True)`), as
atomics of the block's threads.

Which engine adds does not change what is added. A scheduled program says `atom=bulk_store` itself.
"""

from __future__ import annotations

from tilewright.ir.op import Atomic, Copy, Kernel, Op
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target


def reduce_by_atomics(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with an atomic for each copy that reduces and has no instruction yet."""

    def change(op: Op) -> Op | None:
        if isinstance(op, Copy) and op.reduce is not None and op.atom is None:
            return Atomic(op.reduce, op.dst, src=op.src, loc=op.loc)
        return None

    return rebuild(kernel, body=map_body(kernel.body, change))
