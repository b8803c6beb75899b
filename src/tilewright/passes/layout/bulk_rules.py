"""Which copies the bulk engine, or `cp.async`, can make.

A rule answers with the reason against, in words, or None: the pass that chooses instructions and
whoever explains its choice ask the same function.
"""

from __future__ import annotations

from math import gcd, prod

from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Const, Expr, binary, const
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Copy

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
        return f"{tensor.buffer.name} has more than {MOST_RANK} dimensions"
    if not tensor.buffer.rank:
        return f"{tensor.buffer.name} is a single element"
    inner = int(tensor.extents[-1])
    if inner * bits % UNIT_BITS or longest(inner, MOST_BOX) * bits % UNIT_BITS:
        return f"rows of {inner} elements of {tensor.dtype} are not multiples of 16 bytes"
    if int(tile.extents[-1]) != inner:
        return f"the fastest dimension of {tensor.buffer.name} is not that of {tile.buffer.name}"
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
        return f"the fastest dimension of {tensor.buffer.name} is not that of {tile.buffer.name}"
    if multiple_of(tensor.buffer.shape[-1], ranges) * tensor.dtype.bits % WORD_BITS:
        return f"rows of {tensor.buffer.name} may end within 4 bytes"
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
    spaces = copy.src.buffer.space, copy.dst.buffer.space
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
        reason = f"it touches a part of {tile.buffer.name}"
    elif not _is_compact(tile.buffer):
        reason = f"the rows of {tile.buffer.name} lie apart"
    elif tensor.static_tile != tile.static_tile:
        reason = "its sides have different shapes"
    return tensor, tile, reason


def _is_compact(buffer: Buffer) -> bool:
    layout = buffer.layout
    if layout is None or isinstance(layout, Fragment):
        return True
    return layout.cosize() == prod(buffer.static_shape)


def _is_dense(tile: Region) -> bool:
    """The whole buffer, or whole slices of its leading dimensions."""
    shape, extents = tile.buffer.shape, tile.extents
    lead = 0
    while lead < len(extents) and _value(extents[lead]) == 1:
        lead += 1
    return all(
        _value(start) == 0 and extent is size
        for start, extent, size in zip(
            tile.starts[lead:], extents[lead:], shape[lead:], strict=True
        )
    )


def _value(expr: Expr) -> int | None:
    return int(expr.value) if isinstance(expr, Const) else None


def _aligned(tensor: Region, ranges: Ranges, unit: int) -> str | None:
    """Why rows and their start may not lie on multiples of `unit` bits."""
    buffer, bits = tensor.buffer, tensor.dtype.bits
    strides = buffer.strides or row_major_strides(buffer)
    if _value(strides[-1]) != 1:
        return f"the innermost dimension of {buffer.name} is not contiguous"
    for stride in strides[:-1]:
        if multiple_of(stride, ranges) * bits % unit:
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
