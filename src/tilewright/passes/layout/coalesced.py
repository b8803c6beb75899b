"""A spread of a tile over threads, where nothing else decides: neighbouring threads along the last
dimension, a vector each, the rest of the threads over the dimensions before it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.layout.fragment import Fragment, repeat, spatial
from tilewright.passes.layout.thread_layouts import divisors


def coalesced(tile: Sequence[int], threads: int, vector: int = 1) -> Fragment:
    """`tile` over `threads` threads; where it does not divide among them, slots are idle.

    >>> coalesced((64, 64), 128, 8)
    frag{tile=(64,64) tv=(128,(8,4)):(8,(1,1024))}
    >>> coalesced((10,), 32)
    frag{tile=(10) cover=(32) tv=(32,1):(1,0)}
    """
    tile = tuple(tile) or (1,)
    units = (*tile[:-1], -(-tile[-1] // vector))
    across, left = [1] * len(units), threads
    for dim in reversed(range(len(units))):
        # the fewest steps, and of those the fewest threads that would have nothing to do
        across[dim] = min(divisors(left), key=lambda t: (-(-units[dim] // t), t))
        left //= across[dim]
    across[0] *= left
    steps = [-(-u // a) for u, a in zip(units, across, strict=True)]
    inner = repeat(*(1 for _ in tile[:-1]), vector)
    return (repeat(*steps) * spatial(*across) * inner).crop(*tile)
