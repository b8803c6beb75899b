"""Ops in which warps need each other's registers.

Such an op goes through shared memory: threads write what others need, all of them meet, and then
they read. So it is a barrier of the threads that run it as well: what they did before is over
before anybody comes out of it. Passes that place barriers, the lowering and the interpreter ask
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.ir.core import *
from tilewright.support.distinct import distinct


def meets_inside(op: Op, threads: int) -> bool:
    """Whether all of the `threads` that run `op` surely meet in it, after what it reads of memory
    and before what it writes: some thread's result takes elements that no thread of its warp holds,
    or a scan goes through shared memory. Not known, and false, where layouts are not or parts of
    tiles are taken."""
    if isinstance(op, Scan):
        src = _spread(op.src, threads)
        return src is None or (threads > WARP and scan_crosses(src, op.axis))
    if not isinstance(op, (Reduce, Relayout)) or threads <= WARP:
        return False
    src, dst = _spread(op.src, threads), _spread(op.dst, threads)
    if src is None or dst is None:
        return False
    if isinstance(op, Relayout):
        return src.tile == dst.tile and relayout_crosses(src, dst)
    return reduction_crosses(src, dst, op.axis)


def _spread(region: Region, threads: int) -> Fragment | None:
    layout = region.buffer.layout
    fits = isinstance(layout, Fragment) and region.is_whole and layout.threads == threads
    return layout if fits and isinstance(layout, Fragment) else None


def _by_warp(src: Fragment, dst: Fragment) -> Iterator[tuple[Indices, Indices]]:
    """The elements that each warp holds of the one, and those that it keeps of the other."""
    for first in range(0, src.threads, WARP):
        held, kept = (f.table()[first : first + WARP].reshape(-1) for f in (src, dst))
        yield held[held != IDLE], kept[kept != IDLE]


@lru_cache(maxsize=256)
def relayout_crosses(src: Fragment, dst: Fragment) -> bool:
    """Whether some thread needs an element that no thread of its warp holds."""
    return any(not np.isin(kept, held).all() for held, kept in _by_warp(src, dst))


@lru_cache(maxsize=256)
def scan_crosses(src: Fragment, dim: int) -> bool:
    """Whether some warp holds a part of a line, and not all of it."""
    inner, size = prod(src.tile[dim + 1 :]), src.tile[dim]

    def crosses(held: Indices) -> bool:
        lines = held // (inner * size) * inner + held % inner
        return bool((np.bincount(lines) % size != 0).any())

    return any(crosses(distinct(held)) for held, _ in _by_warp(src, src))


@lru_cache(maxsize=256)
def reduction_crosses(src: Fragment, dst: Fragment, dim: int) -> bool:
    """Whether some thread keeps the result of a row of which its warp does not hold all."""
    inner, size = prod(src.tile[dim + 1 :]), src.tile[dim]

    def crosses(held: Indices, kept: Indices) -> bool:
        rows = held // (inner * size) * inner + held % inner
        return bool((np.bincount(rows, minlength=prod(dst.tile))[kept] != size).any())

    return any(crosses(distinct(held), kept) for held, kept in _by_warp(src, dst))


__all__ = ["meets_inside", "reduction_crosses", "relayout_crosses", "scan_crosses"]
