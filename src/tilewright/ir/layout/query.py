"""Questions about layouts, answered exactly by evaluating them on their whole domain, and the
memory of a tile as elements of another size."""

from __future__ import annotations

import numpy as np

from tilewright.ir.layout.layout import *
from tilewright.ir.layout.ops import coalesce
from tilewright.support.distinct import distinct


def same(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Whether two layouts are one function of the linear coordinate.

    >>> same(Layout((2, (1, 6)), (1, (6, 2))), Layout(12)), same(Layout(8), Layout((2, 4), (4, 1)))
    (True, False)
    """
    if isinstance(a, Layout) and isinstance(b, Layout):
        return coalesce(a) == coalesce(b)  # coalesced layouts are unique
    return a.size() == b.size() and bool(np.array_equal(a.indices(), b.indices()))


def injective(layout: MemoryLayout) -> bool:
    """Whether no two coordinates share an index.

    >>> injective(Layout((3, 2), (2, 3))), injective(Layout((3, 2), (1, 2)))
    (True, False)
    """
    return _distinct(layout.indices()) == layout.size()


def covers(layout: MemoryLayout, count: int) -> bool:
    """Whether every index below `count` is hit.

    >>> covers(Layout((3, 2), (1, 2)), 5), covers(Layout(4, 2), 4)
    (True, False)
    """
    indices = layout.indices()
    return _distinct(indices[indices < count]) == count


def bijective(layout: MemoryLayout) -> bool:
    """Whether the layout permutes `[0, size)`.

    >>> bijective(Layout((4, 8), (8, 1))), bijective(Layout((4, 8), (1, 5)))
    (True, False)
    """
    return covers(layout, layout.size())


def _distinct(indices: Indices) -> int:
    if not indices.size:
        return 0
    span = int(indices.max()) + 1
    if span > 16 * indices.size:  # too sparse to mark
        return len(distinct(indices))
    marked = np.zeros(span, np.bool_)
    marked[indices] = True
    return int(np.count_nonzero(marked))


def modes_of(indices: Indices) -> list[tuple[int, int]] | None:
    """(extent, stride) of the digits of which each index is a sum, the fastest first; None where
    there are none."""
    modes = []
    while len(indices) > 1:
        stride = int(indices[1] - indices[0])
        breaks = np.flatnonzero(indices - indices[0] != np.arange(len(indices)) * stride)
        extent = int(breaks[0]) if breaks.size else len(indices)
        if len(indices) % extent:
            return None
        rows = indices.reshape(-1, extent)
        if not np.array_equal(rows, rows[:, :1] + np.arange(extent) * stride):
            return None
        modes.append((extent, stride))
        indices = rows[:, 0]
    return modes


def fit_layout(indices: Indices) -> Layout:
    """The coalesced layout whose indices these are; `LayoutError` when there is none.

    >>> fit_layout(np.array([0, 4, 1, 5]))
    (2,2):(4,1)
    """
    indices = np.asarray(indices, np.int64)
    if not indices.size or indices[0] != 0 or indices.min() < 0:
        raise LayoutError("fit_layout: a layout starts at index 0 and has no negative ones")
    modes = modes_of(indices)
    if modes is None:
        raise LayoutError("fit_layout: no extents and strides give these indices")
    return coalesce(Layout([extent for extent, _ in modes], [stride for _, stride in modes]))


def recast(layout: MemoryLayout, old_bits: int, new_bits: int) -> MemoryLayout:
    """The same memory seen as elements of `new_bits`, by linear coordinate, where `layout` places
    elements of `old_bits`. `LayoutError` where a wider element would not lie in one piece.

    >>> recast(ComposedLayout(Swizzle(1, 0, 2), 0, Layout(8, 1)), 32, 16)
    S<1,1,2> o 0 o (2,8):(1,2)
    >>> recast(Layout((8, 4), (1, 8)), 16, 32)
    16:1
    """
    if old_bits == new_bits:
        return layout
    finer = old_bits > new_bits
    times = max(old_bits, new_bits) // min(old_bits, new_bits)
    by = times.bit_length() - 1
    if max(old_bits, new_bits) != min(old_bits, new_bits) << by:
        raise LayoutError(f"{old_bits} bits are no power of two times {new_bits}")
    inner = layout.layout if isinstance(layout, ComposedLayout) else layout
    if finer:
        scaled = Layout(inner.shape, _times(inner.stride, times))
        found = make_layout(Layout(times, 1), scaled)
    else:
        indices = inner.indices()
        if inner.size() % times:
            raise LayoutError(f"{inner.size()} elements are no multiple of {times}")
        pieces = indices.reshape(-1, times)
        if (pieces[:, 0] % times).any() or (pieces != pieces[:, :1] + np.arange(times)).any():
            raise LayoutError(f"{times} neighbours do not lie next to each other, aligned")
        found = fit_layout(pieces[:, 0] // times)
    if not isinstance(layout, ComposedLayout):
        return found
    swizzle, offset = layout.swizzle, layout.offset * times
    if not finer:
        offset, by = layout.offset // times, -by
        if layout.offset % times or swizzle.base + by < 0:
            raise LayoutError(f"{swizzle} parts elements of {new_bits} bits")
    moved = Swizzle(swizzle.bits, swizzle.base + by, swizzle.shift)
    return ComposedLayout(moved, offset, found)


def _times(stride: IntTuple, k: int) -> IntTuple:
    return stride * k if isinstance(stride, int) else tuple(_times(s, k) for s in stride)
