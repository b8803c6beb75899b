"""Shared tiles: how they lie in memory, and which engines and instructions move them.

**Layouts**: as the kernel says (`T.annotate_layout`, `T.annotate_padding`), swizzled where matrices
are moved, row by row otherwise.

**Transposed copies**: maps `y[j, i] = x[i, j]` from shared memory into registers. Matrix loads
transpose on the way, eight rows of 16 bytes at a time, where threads hold the result as four lanes
along its rows. A result that goes on to shared memory is held as the matrices that matrix stores
take: in swizzled tiles neither meets a conflict.

**Engines**: which copies the bulk engine, or `cp.async`, can make. A rule answers with the reason
against, in words, or None: the pass that chooses instructions and whoever explains its choice ask
the same function.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from tilewright.ir.layout.banks import bank_conflicts, make_swizzled_layout
from tilewright.ir.layout.fragment import repeat, spatial
from tilewright.ir.layout.layout import MemoryLayout, leaves, make_layout, row_major
from tilewright.ir.layout.ops import composition
from tilewright.ir.layout.query import recast, same
from tilewright.passes.core import *
from tilewright.passes.layout.addresses import row_pitch

MATRIX_ROWS = 8  # of what ldmatrix and stmatrix move
CORE_BYTES = 16  # rows of the smallest block that a matrix descriptor knows


def pin_shared(kernel: Kernel, target: Target) -> Kernel:
    """Give shared tiles the layouts that the author pinned."""
    changes: dict[Buffer, Buffer] = {}
    views = list(walk_ops(kernel, View))
    for op in walk_ops(kernel, Hint):
        if op.buffer is None or not op.buffer.is_shared:
            continue
        layout, how = op.layout, "pinned by annotate_layout"
        if op.name == "padding":
            layout, how = padded(op.buffer, int(op.detail[0])), "padded by annotate_padding"
        if layout is None:
            continue
        new = op.buffer.with_layout(layout)
        blocked = _unseen(views, new)
        if blocked is None:
            changes[op.buffer] = new
            because(kernel.name, op.buffer.name, f"{how} {at_line(op.loc)}")
        else:
            costs(
                kernel.name,
                op.loc,
                f"the layout of {op.buffer.name} is left out, because no layout shows its memory "
                f"as {blocked} does: it lies row by row",
            )
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


def lay_out_shared(kernel: Kernel) -> Kernel:
    """`kernel` with a layout for each shared buffer that has none."""
    operands = {
        r.name
        for op in walk_ops(kernel, Gemm)
        if op.atom == "wgmma"
        for r in (op.a, op.b)
        if r.buffer.is_shared
    }
    # what warps move as matrices, eight rows of 16 bytes at a time
    matrices = {
        shared.name
        for op in walk_ops(kernel, Copy)
        for shared, held in ((op.src, op.dst), (op.dst, op.src))
        if shared.buffer.is_shared and held.buffer.is_fragment
        if shared.buffer.rank > 1 and shared.buffer.static_shape[-2] >= MATRIX_ROWS
        if not _free_of_conflicts(shared, held)
    }
    matrices |= {pair[0].name for op in walk_ops(kernel, Map) if (pair := turned(op))}
    held = {op.a.name for op in walk_ops(kernel, Gemm) if op.a.buffer.is_fragment}
    moved = ((op.buffer.name, op.value) for op in walk_ops(kernel, Store))
    matrices |= {
        load.buffer.name
        for name, load in moved
        if name in held and isinstance(load, Load) and load.buffer.rank > 1
    }
    viewed = aliases(kernel).viewed
    changes: dict[Buffer, Buffer] = {}
    for op in walk_ops(kernel, Alloc, View):
        buffer = op.buffer
        if not buffer.is_shared:
            continue
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
            layout, why = plain(buffer), "row-major: it is also viewed in other shapes"
        elif buffer.name in operands:
            layout, why = operand(buffer), "read by wgmma: the widest swizzle that divides a row"
        elif buffer.name in matrices:
            layout = make_swizzled_layout(buffer.static_shape, _bits(buffer))
            why = "copied to or from fragments: swizzled, so that rows of matrices do not conflict"
        else:
            layout, why = plain(buffer), "row-major: only threads and bulk copies touch it"
        because(kernel.name, buffer.name, why)
        changes[buffer] = buffer.with_layout(layout)
    return replace_buffers(kernel, changes)


def _free_of_conflicts(shared: Region, held: Region) -> bool:
    """Whether threads move these registers by words, 16 bytes at a time, and meet no conflict in
    rows that lie one after the other. Such addresses differ by constants; those of a swizzle are
    computed for every load: of 1191 instructions of a float32 product's loop, 1024 multiplied."""
    fragment, buffer = held.buffer.layout, shared.buffer
    if not isinstance(fragment, Fragment) or buffer.dtype.bits < 32:
        return False
    tile = tuple(map(_value, shared.extents[-2:]))
    if fragment.tile != tile or not held.is_whole:
        return False
    rows = Layout(fragment.tile, row_major(buffer.static_shape[-2:]).stride)
    cost = bank_conflicts(rows, fragment, buffer.dtype.bits // 8)
    return cost.extra == 0 and cost.vector * buffer.dtype.bits == UNIT_BITS


def seen_through(op: View, source: Buffer) -> MemoryLayout:
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


def plain(buffer: Buffer) -> MemoryLayout:
    return row_major(buffer.static_shape or (1,))


def padded(buffer: Buffer, amount: int) -> MemoryLayout:
    """Rows `amount` elements longer than the tile's."""
    *outer, row = shape = buffer.static_shape
    return Layout(shape, row_major((*outer, row + amount)).stride)


def operand(buffer: Buffer) -> MemoryLayout:
    """Panels as wide as the widest swizzle that divides a row; rows that none divides, but whole
    blocks of 16 bytes, lie in such blocks."""
    shape, bits = buffer.static_shape, buffer.dtype.bits
    found = make_swizzled_layout(shape, bits)
    core = CORE_BYTES * 8 // bits
    if not isinstance(found, Layout) or shape[-1] % core:
        return found
    *outer, rows, columns = shape
    inner = Layout((core, columns // core), (1, rows * core))
    strides = leaves(row_major((*outer, rows * columns)).stride)
    slots = [Layout(extent, stride) for extent, stride in zip(outer, strides, strict=False)]
    return make_layout(*slots, Layout(rows, core), inner)


LANES = 4  # of a warp along a row of the result
BITS = 16  # of the elements that matrix loads transpose
WARP, SIDE = 32, 8  # threads that hold a matrix, its rows and columns


def turned(op: Op) -> tuple[Buffer, Buffer] | None:
    """(x, y) of a map that does nothing but `y[j, i] = x[i, j]` for all of both."""
    match op:
        case Map((i, j), extents, (Store(y, to, Load(x, of)),)) if {to, of} == {(i, j), (j, i)}:
            between = (x.space, y.space) == (Space.SHARED, Space.FRAGMENT)
            read, written = (extents, extents[::-1]) if of == (i, j) else (extents[::-1], extents)
            whole_of_both = x.shape == read and y.shape == written
            known = all(isinstance(e, Const) for e in extents)
            if between and whole_of_both and known and x.dtype == y.dtype and x.dtype.bits == BITS:
                return x, y
    return None


def as_matrices(shape: tuple[int, ...], threads: int) -> Fragment | None:
    """A tile as whole matrices, those of a warp side by side; None where it does not divide.

    >>> as_matrices((128, 64), 256)
    frag{tile=(128,64) tv=((4,64),(2,8,2)):((2,64),(1,8,4096))}
    """
    rows, columns = shape
    high = gcd(rows // SIDE, threads // WARP)
    wide = threads // WARP // high
    if threads % WARP or rows % SIDE or columns % (SIDE * wide):
        return None
    along = columns // SIDE // wide
    matrix = spatial(SIDE, LANES) * repeat(1, 2)
    return repeat(rows // SIDE // high, 1) * spatial(high, wide) * repeat(1, along) * matrix


def as_copy(op: Map, x: Buffer, y: Buffer, name: str) -> tuple[View, Copy]:
    """The map as a copy from `x` seen the other way round, which is called `name`."""
    assert x.layout is not None and not isinstance(x.layout, Fragment)
    other = replace(x, name=name, shape=x.shape[::-1], layout=reversed_modes(x.layout))
    return View(other, x, loc=op.loc), Copy(whole(other), whole(y), loc=op.loc)


def reversed_modes(layout: MemoryLayout) -> MemoryLayout:
    """The same places, under coordinates in the opposite order."""
    if isinstance(layout, ComposedLayout):
        return layout.with_layout(make_layout(*reversed(tuple(layout.layout))))
    return make_layout(*reversed(tuple(layout)))


MOST_RANK = 5
MOST_BOX = 256
UNIT_BITS = 128  # the engine moves 16 bytes at a time along the innermost dimension
SLOT_BITS = 128 * 8  # shared memory that it fills begins on 128 bytes
WORD_BITS = 32  # the least that one `cp.async` moves
WIDTHS = (8, 16, 32, 64)


def bulk_eligible(copy: Copy, ranges: Ranges) -> bool:
    """Whether the bulk engine can make this copy between a tensor and shared memory."""
    return why_not_bulk(copy, ranges) is None


def why_not_bulk(copy: Copy, ranges: Ranges) -> str | None:
    """What keeps the bulk engine from making this copy, given what holds where it stands."""
    tensor, tile, reason = _sides(copy)
    if reason or tensor is None or tile is None:
        return reason
    bits = tensor.dtype.bits
    if tensor.buffer.rank > MOST_RANK:
        return f"{tensor.name} has more than {MOST_RANK} dimensions"
    if not tensor.buffer.rank:
        return f"{tensor.name} is a single element"
    inner = int(tensor.extents[-1])
    if inner * bits % UNIT_BITS or longest(inner, MOST_BOX) * bits % UNIT_BITS:
        return f"rows of {inner} elements of {tensor.dtype} are not multiples of 16 bytes"
    if int(tile.extents[-1]) != inner:
        return f"the fastest dimension of {tensor.name} is not that of {tile.name}"
    if prod(int(e) for e in tile.extents) * bits % SLOT_BITS:
        return "the tile is not a multiple of 128 bytes"
    run = _run(tensor, ranges)
    if run != prod(tensor.static_tile) and run * bits % SLOT_BITS:
        return f"boxes of {run} elements of {tensor.dtype} do not begin on multiples of 128 bytes"
    return _aligned(tensor, ranges, UNIT_BITS)


def fold(tensor: Region, ranges: Ranges) -> int:
    """The pieces in which a row is taken that is longer than a box; 0 where it is not."""
    size, last = tensor.buffer.shape[-1], int(tensor.extents[-1])
    if last <= MOST_BOX or tensor.buffer.rank == MOST_RANK:
        return 0
    common = gcd(last, multiple_of(tensor.starts[-1], ranges), multiple_of(size, ranges))
    found = longest(common, MOST_BOX)
    return found if found * tensor.dtype.bits % UNIT_BITS == 0 else 0


def longest(extent: int, most: int) -> int:
    """The largest part, of `most` at the most, into which an extent can be cut evenly."""
    return max(d for d in range(1, min(extent, most) + 1) if extent % d == 0)


def _run(tensor: Region, ranges: Ranges) -> int:
    """How many elements one box of a tile without gaps takes."""
    shape = [int(e) for e in tensor.extents]
    if piece := fold(tensor, ranges):
        shape[-1:] = [shape[-1] // piece, piece]
    run = 1
    for extent in reversed(shape):
        part = longest(extent, MOST_BOX)
        run *= part
        if part != extent:
            break
    return run


def is_row(copy: Copy, ranges: Ranges) -> bool:
    """Whether a load is one run of elements on both sides, which the engine moves without a map of
    the tensor: where boxes would be several, or none, or of rows below 256 bytes. A softmax of rows
    of 20032 elements, 313 boxes, had 0.62 of a copy's speed on an H200."""
    tensor, tile, reason = _sides(copy)
    if reason or tensor is not copy.src or tile is None or copy.multicast is not None:
        return False
    bits, layout = tensor.dtype.bits, tile.buffer.layout
    if any(_value(extent) != 1 for extent in tensor.extents[:-1]):
        return False
    if isinstance(layout, ComposedLayout) or _aligned(tensor, ranges, UNIT_BITS) is not None:
        return False
    row = int(tensor.extents[-1])
    if row * bits % UNIT_BITS:
        return False
    inner = fold(tensor, ranges) or longest(row, MOST_BOX)
    is_box = _run(tensor, ranges) == row and row * bits % SLOT_BITS == 0
    return not is_box or inner * bits < 2 * SLOT_BITS


def why_not_cp_async(copy: Copy, ranges: Ranges) -> str | None:
    """What keeps `cp.async` from making this copy from a tensor to shared memory."""
    tensor, tile, reason = _sides(copy)
    if reason or tensor is None or tile is None:
        return reason
    if tensor is not copy.src:
        return "cp.async only loads"
    if not tensor.buffer.rank or int(tensor.extents[-1]) * tensor.dtype.bits % WORD_BITS:
        return "rows of the tile are not multiples of 4 bytes"
    if int(tile.extents[-1]) != int(tensor.extents[-1]):
        return f"the fastest dimension of {tensor.name} is not that of {tile.name}"
    if multiple_of(tensor.buffer.shape[-1], ranges) * tensor.dtype.bits % WORD_BITS:
        return f"rows of {tensor.name} may end within 4 bytes"
    return _aligned(tensor, ranges, WORD_BITS)


def cp_async_bytes(copy: Copy, ranges: Ranges) -> int:
    """How many bytes one `cp.async` of this copy may move; 0 where none can make it."""
    if why_not_cp_async(copy, ranges) is not None:
        return 0
    row, size = int(copy.src.extents[-1]), multiple_of(copy.src.buffer.shape[-1], ranges)
    for unit in (128, 64):
        whole = (row * copy.src.dtype.bits) % unit == (size * copy.src.dtype.bits) % unit == 0
        if whole and _aligned(copy.src, ranges, unit) is None:
            return unit // 8
    return WORD_BITS // 8


def _sides(copy: Copy) -> tuple[Region | None, Region | None, str | None]:
    """The tensor's side, the tile's side, and why no engine takes such a copy at all."""
    spaces = copy.src.space, copy.dst.space
    if spaces == (Space.GLOBAL, Space.SHARED):
        tensor, tile = copy.src, copy.dst
    elif spaces == (Space.SHARED, Space.GLOBAL):
        tensor, tile = copy.dst, copy.src
    else:
        return None, None, "it is not between a tensor and shared memory"
    reason = None
    if copy.reduce is not None:
        reason = "it reduces into its destination"
    elif tensor.dtype != tile.dtype:
        reason = f"it converts {copy.src.dtype} to {copy.dst.dtype}"
    elif tensor.dtype.bits not in WIDTHS:
        reason = f"elements of {tensor.dtype} are not whole bytes"
    elif not all(isinstance(e, Const) for e in (*tensor.extents, *tile.extents)):
        reason = "the tile's shape is known only at run time"
    elif tile.cta is not None or not _is_dense(tile):
        reason = f"it touches a part of {tile.name}"
    elif not _is_compact(tile.buffer):
        reason = f"the rows of {tile.name} lie apart"
    elif tensor.static_tile != tile.static_tile:
        reason = "its sides have different shapes"
    return tensor, tile, reason


def _is_compact(buffer: Buffer) -> bool:
    layout = buffer.layout
    if layout is None or isinstance(layout, Fragment):
        return True
    return layout.cosize() == prod(buffer.static_shape)


def _is_dense(tile: Region) -> bool:
    """The whole buffer, or whole slices of its leading dimensions, or the first of them."""
    shape, extents = tile.buffer.shape, tile.extents
    lead = 0
    while lead < len(extents) and _value(extents[lead]) == 1:
        lead += 1
    inner = zip(extents[lead + 1 :], shape[lead + 1 :], strict=True)
    return all(_value(start) == 0 for start in tile.starts[lead:]) and all(
        extent is size for extent, size in inner
    )


def _value(expr: Expr) -> int | None:
    return int(expr.value) if isinstance(expr, Const) else None


def _aligned(tensor: Region, ranges: Ranges, unit: int) -> str | None:
    """Why rows and their start may not lie on multiples of `unit` bits."""
    buffer, bits = tensor.buffer, tensor.dtype.bits
    if buffer.strides and _value(buffer.strides[-1]) != 1:
        return f"the innermost dimension of {buffer.name} is not contiguous"
    if row_pitch(buffer, ranges) * bits % unit:
        return f"rows of {buffer.name} are not known to begin on multiples of {unit // 8} bytes"
    if multiple_of(tensor.starts[-1], ranges) * bits % unit:
        return f"the tile of {buffer.name} may begin between multiples of {unit // 8} bytes"
    return None


def row_major_strides(buffer: Buffer) -> tuple[Expr, ...]:
    """Elements from one index to the next, per dimension."""
    strides: list[Expr] = [const(1)]
    for size in reversed(buffer.shape[1:]):
        strides.append(binary("*", strides[-1], size) if len(strides) > 1 else size)
    return tuple(reversed(strides))
