"""How many lines of memory a copy moves: rows that begin between lines, boxes that end outside."""

from __future__ import annotations

from math import ceil, gcd, prod

from tilewright.ir.core import *

UNKNOWN = 4096  # a size that is known at launch only
LINE = 128  # bytes
# Measured on an H200, `benchmarks/notes/choices.md` says how
ACROSS = 0.74  # as long again for rows that lie in two lines: 1112×15920×7816
OUTSIDE = 2.0  # times as long as loads: 8 rows in boxes of 64 take 15 µs, 64 rows 8.6


def thread_load(tensor: Buffer) -> int:
    """Bytes that one instruction of a thread loads, where the engine cannot: rows of the tensor do
    not begin on 16 bytes. 0 where it can."""
    row = size_of(tensor.shape[-1]) * tensor.dtype.bits // 8
    return 0 if row % 16 == 0 else next((n for n in (8, 4) if row % n == 0), tensor.dtype.bits // 8)


def whole_lines(tensor: Region, tile: Region) -> float:
    """Bytes of whole lines that the engine moves in the time of a copy. It moves what the swizzle
    of a tile keeps together, which divides a row of it. Rows of a tensor that do not begin on lines
    lie in two of them; what lies outside takes longer than what is loaded."""
    sizes = zip(map(size_of, tensor.extents), map(size_of, tensor.buffer.shape), strict=True)
    inside = prod(inner_part(extent, size) for extent, size in sizes) * tensor.dtype.bits / 8
    row = size_of(tile.extents[-1]) * tile.dtype.bits // 8
    whole = prod(map(size_of, tile.extents)) * tile.dtype.bits / 8
    span = next((span for span in (LINE, 64, 32) if row % span == 0), 16)
    across = crossing(tensor.buffer, span)
    return (inside + (whole - inside) * OUTSIDE) * LINE / span * (1 + ACROSS * across)


def crossing(tensor: Buffer, span: int) -> float:
    """Of pieces of rows of so many bytes, how many lie in two lines."""
    step = gcd(size_of(tensor.shape[-1]) * tensor.dtype.bits // 8, LINE)
    return sum(at + span > LINE for at in range(0, LINE, step)) * step / LINE


def inner_part(extent: int, size: int) -> float:
    """Of the extent of a tile, what lies inside a tensor, in the mean of all tiles along it."""
    return min(extent, size / max(1, ceil(size / max(1, extent))))


def size_of(e: Expr) -> int:
    return int(e.value) if isinstance(e, Const) else UNKNOWN
