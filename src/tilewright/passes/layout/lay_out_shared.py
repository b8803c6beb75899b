"""Choose how shared tiles lie in memory: as the kernel says (`T.annotate_layout`,
`T.annotate_padding`), swizzled where matrices are moved, row by row otherwise.
"""

from __future__ import annotations

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import const
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import (
    AnyLayout,
    Layout,
    LayoutError,
    make_layout,
    row_major,
)
from tilewright.ir.layout.ops import composition, make_swizzled_layout
from tilewright.ir.layout.query import same
from tilewright.ir.layout.recast import recast
from tilewright.ir.op import Alloc, Copy, Gemm, Hint, Kernel, View, walk_ops
from tilewright.ir.rewrite import replace_buffers
from tilewright.ir.target import Target
from tilewright.passes.layout.transposed_copies import reversed_modes, turned
from tilewright.passes.reasons import at_line, because, costs
from tilewright.support.errors import CompileError

MATRIX_ROWS = 8  # of what ldmatrix and stmatrix move
CORE_BYTES = 16  # rows of the smallest block that a matrix descriptor knows


def pin_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with the layouts that its author gives shared tiles, by hints."""
    changes: dict[Buffer, Buffer] = {}
    views = list(walk_ops(kernel, View))
    for op in walk_ops(kernel):
        if not isinstance(op, Hint) or op.buffer is None or op.buffer.space is not Space.SHARED:
            continue
        layout = padded(op.buffer, int(op.detail[0])) if op.name == "padding" else op.layout
        blocked = None if layout is None else _unseen(views, op.buffer.with_layout(layout))
        if blocked is not None:
            costs(
                kernel.name,
                op.loc,
                f"the layout of {op.buffer.name} is left out, because no layout shows its memory "
                f"as {blocked} does: it lies row by row",
            )
            continue
        if op.name == "padding":
            changes[op.buffer] = op.buffer.with_layout(padded(op.buffer, int(op.detail[0])))
            because(kernel.name, op.buffer.name, f"padded by annotate_padding {at_line(op.loc)}")
        elif op.name == "layout" and op.layout is not None:
            changes[op.buffer] = op.buffer.with_layout(op.layout)
            because(kernel.name, op.buffer.name, f"pinned by annotate_layout {at_line(op.loc)}")
    return replace_buffers(kernel, changes) if changes else kernel


def _unseen(views: list[View], root: Buffer) -> str | None:
    """A view, or a view of one, that cannot show `root` as it lies."""
    known = {root.name: root}
    for op in views:
        source = known.get(op.source.name)
        if source is None:
            continue
        try:
            known[op.buffer.name] = op.buffer.with_layout(seen_through(op, source))
        except CompileError:
            return op.buffer.name
    return None


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
        if shared.buffer.rank > 1 and shared.buffer.static_shape[-2] >= MATRIX_ROWS
    }
    matrices |= {pair[0].name for op in ops if (pair := turned(op)) is not None}
    viewed = aliases(kernel).viewed
    changes: dict[Buffer, Buffer] = {}
    for op in ops:
        if not isinstance(op, Alloc | View) or op.buffer.space is not Space.SHARED:
            continue
        buffer = op.buffer
        if isinstance(op, View):
            layout = seen_through(op, changes.get(op.source, op.source))
            if buffer.layout is None:
                changes[buffer] = buffer.with_layout(layout)
            elif isinstance(buffer.layout, Fragment) or not same(buffer.layout, layout):
                raise CompileError(
                    f"{buffer.name} is given another layout than the memory it shows",
                    loc=op.loc,
                    expected=f"{layout!r}, which follows from {op.source.name}",
                    got=repr(buffer.layout),
                    fix=f"annotate {op.source.name} instead",
                )
            continue
        if buffer.layout is not None:
            continue
        if buffer.name in viewed or buffer.rank == 0:
            layout, why = plain(buffer), "row by row, because it is also seen under other shapes"
        elif buffer.name in operands:
            layout, why = operand(buffer), "read by wgmma: the widest swizzle that divides a row"
        elif buffer.name in matrices:
            layout = make_swizzled_layout(buffer.static_shape, _bits(buffer))
            why = "copied to or from fragments: swizzled, so that rows of matrices meet no conflict"
        else:
            layout, why = plain(buffer), "row by row, because only threads and engines touch it"
        because(kernel.name, buffer.name, why)
        changes[buffer] = buffer.with_layout(layout)
    return replace_buffers(kernel, changes)


def seen_through(op: View, source: Buffer) -> AnyLayout:
    """Where the elements of a view lie, which follows from where those of its source do."""
    old = source.layout
    if old is None or isinstance(old, Fragment) or same(old, plain(source)):
        return plain(op.buffer)
    try:
        if op.offset is not const(0):
            raise LayoutError("another beginning")
        # linear coordinates run along the first mode, row-major ones along the last
        places = recast(reversed_modes(old), _bits(source), _bits(op.buffer))
        return composition(places, row_major(op.buffer.static_shape or (1,)))
    except LayoutError as error:
        raise CompileError(
            f"{op.buffer.name} is no view of {source.name}, whose layout is {old!r}",
            loc=op.loc,
            got=str(error),
            fix=f"copy it to a tile of its own, or leave {source.name} without a layout",
        ) from None


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
