"""Place fragments that are larger than a thread's registers in shared memory, where they fit.

A fragment of more than 255 registers in each thread cannot be one. Where copies, fills and nests
alone use it and the block has room, it is a shared tile; else the assembler keeps what does not
fit in local memory (`fit_registers` says so). Both are slow, and a warning names the fragment.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Kernel, Role, walk_ops
from tilewright.ir.rewrite import rebuild, replace_buffers
from tilewright.ir.target import Target
from tilewright.passes.memory.spill_fragments import movable
from tilewright.passes.reasons import because, costs

MOST = 255  # registers of a thread


def move_large_fragments(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` without fragments that no thread has registers for, as far as they can move."""
    if any(isinstance(op, Role) for op in walk_ops(kernel)):
        return kernel
    threads = prod(kernel.threads)
    most = min(MOST, target.chip.registers // threads)
    allocs = [op for op in walk_ops(kernel) if isinstance(op, Alloc)]
    shared = sum(op.buffer.bytes for op in allocs if op.buffer.space is Space.SHARED)
    viewed = aliases(kernel).viewed
    for op in allocs:
        buffer, words = op.buffer, -(-op.buffer.bytes // (4 * threads))
        if buffer.space is not Space.FRAGMENT or words <= most or buffer.name in viewed:
            continue
        if shared + buffer.bytes > target.chip.shared or not movable(kernel, buffer):
            continue
        shared += buffer.bytes
        because(kernel.name, buffer.name, f"{words} registers of a thread, which has {most}")
        costs(
            kernel.name,
            op.loc,
            f"{buffer.name} takes {words} registers of a thread, which has {most}: it lies in "
            "shared memory",
        )
        new = replace(buffer, space=Space.SHARED)
        kernel = rebuild(kernel, body=replace_buffers(kernel.body, {buffer: new}))
    return kernel


__all__ = ["move_large_fragments"]
