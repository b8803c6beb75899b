"""Questions about layouts, answered exactly by evaluating them on their whole domain."""

from __future__ import annotations

import numpy as np

from tilewright.ir.layout.layout import AnyLayout, Indices, Layout, LayoutError
from tilewright.ir.layout.ops import coalesce
from tilewright.support.distinct import distinct


def same(a: AnyLayout, b: AnyLayout) -> bool:
    """Whether two layouts are one function of the linear coordinate.

    >>> same(Layout((2, (1, 6)), (1, (6, 2))), Layout(12)), same(Layout(8), Layout((2, 4), (4, 1)))
    (True, False)
    """
    if isinstance(a, Layout) and isinstance(b, Layout):
        return coalesce(a) == coalesce(b)  # coalesced layouts are unique
    return a.size() == b.size() and bool(np.array_equal(a.indices(), b.indices()))


def injective(layout: AnyLayout) -> bool:
    """Whether no two coordinates share an index.

    >>> injective(Layout((3, 2), (2, 3))), injective(Layout((3, 2), (1, 2)))
    (True, False)
    """
    return _distinct(layout.indices()) == layout.size()


def covers(layout: AnyLayout, count: int) -> bool:
    """Whether every index below `count` is hit.

    >>> covers(Layout((3, 2), (1, 2)), 5), covers(Layout(4, 2), 4)
    (True, False)
    """
    indices = layout.indices()
    return _distinct(indices[indices < count]) == count


def bijective(layout: AnyLayout) -> bool:
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


def fit_layout(indices: Indices) -> Layout:
    """The coalesced layout whose indices these are; `LayoutError` when there is none.

    >>> fit_layout(np.array([0, 4, 1, 5]))
    (2,2):(4,1)
    """
    rest = np.asarray(indices, np.int64)
    modes = []
    if not rest.size or rest[0] != 0 or rest.min() < 0:
        raise LayoutError("fit_layout: a layout starts at index 0 and has no negative ones")
    while len(rest) > 1:
        breaks = np.flatnonzero(rest != np.arange(len(rest)) * rest[1])
        extent = int(breaks[0]) if breaks.size else len(rest)
        if len(rest) % extent:
            raise LayoutError(
                f"fit_layout: a run of {extent} equal steps does not divide {len(rest)} indices"
            )
        modes.append((extent, int(rest[1])))
        rest = rest[::extent]
    layout = coalesce(Layout([extent for extent, _ in modes], [stride for _, stride in modes]))
    if not np.array_equal(layout.indices(), indices):
        raise LayoutError(f"fit_layout: the indices start like {layout} but do not go on like it")
    return layout
