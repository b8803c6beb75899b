"""The memory of a tile as elements of another size."""

from __future__ import annotations

import numpy as np

from tilewright.ir.layout.layout import (
    AnyLayout,
    ComposedLayout,
    IntTuple,
    Layout,
    LayoutError,
    Swizzle,
    make_layout,
)
from tilewright.ir.layout.query import fit_layout


def recast(layout: AnyLayout, old_bits: int, new_bits: int) -> AnyLayout:
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
    swizzle, offset = layout.swizzle, layout.offset
    if finer:
        return ComposedLayout(
            Swizzle(swizzle.bits, swizzle.base + by, swizzle.shift), offset * times, found
        )
    if offset % times or swizzle.base < by:
        raise LayoutError(f"{swizzle} parts elements of {new_bits} bits")
    return ComposedLayout(
        Swizzle(swizzle.bits, swizzle.base - by, swizzle.shift), offset // times, found
    )


def _times(stride: IntTuple, k: int) -> IntTuple:
    return stride * k if isinstance(stride, int) else tuple(_times(s, k) for s in stride)
