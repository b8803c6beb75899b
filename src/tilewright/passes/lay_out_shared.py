"""Choose how shared tiles lie in memory: as the kernel says (`T.annotate_layout`,
`T.annotate_padding`), swizzled where matrices are moved, row by row otherwise.
"""

from __future__ import annotations

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.layout import AnyLayout, Layout, make_layout, row_major
from tilewright.ir.layout_ops import make_swizzled_layout
from tilewright.ir.op import Alloc, Copy, Gemm, Hint, Kernel, View, walk_ops
from tilewright.ir.rewrite import replace_buffers
from tilewright.ir.target import Target

CORE_BYTES = 16  # rows of the smallest block that a matrix descriptor knows


def pin_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with the layouts that its author gives shared tiles, by hints."""
    changes: dict[Buffer, Buffer] = {}
    for op in walk_ops(kernel):
        if not isinstance(op, Hint) or op.buffer is None or op.buffer.space is not Space.SHARED:
            continue
        if op.name == "padding":
            changes[op.buffer] = op.buffer.with_layout(padded(op.buffer, int(op.detail[0])))
        elif op.name == "layout" and op.layout is not None:
            changes[op.buffer] = op.buffer.with_layout(op.layout)
    return replace_buffers(kernel, changes) if changes else kernel


def lay_out_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a layout for each shared buffer that has none."""
    ops = list(walk_ops(kernel))
    operands = {
        r.buffer.name
        for op in ops
        if isinstance(op, Gemm) and op.atom == "wgmma"
        for r in (op.a, op.b)
        if r.buffer.space is Space.SHARED
    }
    # what warps move as matrices, eight rows of 16 bytes at a time
    matrices = {
        shared.buffer.name
        for op in ops
        if isinstance(op, Copy)
        for shared, held in ((op.src, op.dst), (op.dst, op.src))
        if shared.buffer.space is Space.SHARED and held.buffer.space is Space.FRAGMENT
    }
    viewed = {op.source.name for op in ops if isinstance(op, View)}
    viewed |= {op.buffer.name for op in ops if isinstance(op, View)}
    changes: dict[Buffer, Buffer] = {}
    for op in ops:
        if not isinstance(op, Alloc | View) or op.buffer.space is not Space.SHARED:
            continue
        buffer = op.buffer
        if buffer.layout is not None:
            continue
        if buffer.name in viewed or buffer.rank == 0:
            layout = plain(buffer)
        elif buffer.name in operands:
            layout = operand(buffer)
        elif buffer.name in matrices:
            layout = make_swizzled_layout(buffer.static_shape, _bits(buffer))
        else:
            layout = plain(buffer)
        changes[buffer] = buffer.with_layout(layout)
    return replace_buffers(kernel, changes)


def _bits(buffer: Buffer) -> int:
    return max(4, buffer.dtype.bits)


def plain(buffer: Buffer) -> AnyLayout:
    return row_major(buffer.static_shape or (1,))


def padded(buffer: Buffer, amount: int) -> AnyLayout:
    """Rows `amount` elements longer than the tile's."""
    shape = buffer.static_shape
    strides, size = [1], shape[-1] + amount
    for extent in reversed(shape[:-1]):
        strides.insert(0, size)
        size *= extent
    return Layout(shape, tuple(strides))


def operand(buffer: Buffer) -> AnyLayout:
    """Panels as wide as the widest swizzle that divides a row; rows that none divides, but whole
    blocks of 16 bytes, lie in such blocks."""
    shape, bits = buffer.static_shape, buffer.dtype.bits
    found = make_swizzled_layout(shape, bits)
    core = CORE_BYTES * 8 // bits
    if not isinstance(found, Layout) or shape[-1] % core:
        return found
    *outer, rows, columns = shape
    inner = Layout((core, columns // core), (1, rows * core))
    size = rows * columns
    slots: list[Layout] = []
    for extent in reversed(outer):
        slots.insert(0, Layout(extent, size))
        size *= extent
    return make_layout(*slots, Layout(rows, core), inner)
