"""Give every shared buffer and barrier of a kernel its place in the block's shared memory.

Swizzled tiles begin on 1024 bytes, so that address bits and offset bits agree; other buffers on
128, which is what bulk copies ask for; barriers come last. The places are `hint place` ops.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.layout import ComposedLayout, Layout
from tilewright.ir.op import Alloc, Hint, Kernel, Op, walk_ops
from tilewright.ir.rewrite import rebuild
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError

SWIZZLE_ALIGNMENT = 1024
BULK_ALIGNMENT = 128
BARRIER_BYTES = 8
SHARED_BYTES = 232448


def place_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a `hint place` for each of its shared buffers, in front."""
    allocs = [op for op in walk_ops(kernel) if isinstance(op, Alloc)]
    tiles = [op for op in allocs if op.buffer.space is Space.SHARED]
    barriers = [op for op in allocs if op.buffer.space is Space.BARRIER]
    tiles.sort(key=lambda op: -_alignment(op.buffer))  # stable: declared order within
    offset, hints = 0, []
    for op in (*tiles, *barriers):
        align = _alignment(op.buffer)
        offset = -(-offset // align) * align
        hints.append((op, offset))
        offset += _size(op.buffer)
    if offset > SHARED_BYTES:
        sizes = ", ".join(f"{op.buffer.name} {_size(op.buffer)}" for op, _ in hints)
        raise CompileError(
            f"kernel {kernel.name} needs more shared memory than a block has",
            loc=kernel.loc,
            expected=f"at most {SHARED_BYTES} bytes",
            got=f"{offset} bytes: {sizes}",
            fix="use fewer stages or smaller tiles",
        )
    places = {op.buffer.name: at for op, at in hints}

    body: list[Op] = []
    for each in kernel.body:
        body.append(each)
        if isinstance(each, Alloc) and each.buffer.name in places:
            place = places.pop(each.buffer.name)
            body.append(Hint("place", each.buffer, detail=(place,), loc=each.loc))
    if places:
        raise CompileError(
            f"shared buffers must be allocated at the top of the kernel: {', '.join(places)}",
            loc=kernel.loc,
        )
    return rebuild(kernel, body=tuple(body))


def _alignment(buffer: Buffer) -> int:
    if buffer.space is Space.BARRIER:
        return BARRIER_BYTES
    swizzled = isinstance(buffer.layout, ComposedLayout)
    return SWIZZLE_ALIGNMENT if swizzled else BULK_ALIGNMENT


def _size(buffer: Buffer) -> int:
    if buffer.space is Space.BARRIER:
        return BARRIER_BYTES * prod(buffer.static_shape)
    layout = buffer.layout
    if isinstance(layout, (Layout, ComposedLayout)):
        return buffer.dtype.storage_bytes(layout.cosize())
    return buffer.bytes
