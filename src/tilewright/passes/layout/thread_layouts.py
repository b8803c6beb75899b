"""How a tile is spread over threads when nothing prescribes it: vectorized along memory, coalesced,
rows that are reduced within a warp where that costs no registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, log2, prod

import numpy as np

from tilewright.ir.layout.fragment import Fragment, repeat, spatial
from tilewright.ir.layout.layout import Indices

WARP = 32
SECTOR = 32  # bytes of memory that move together
WIDEST = 16  # bytes of one access

# Prices, in instructions of a warp per register: what moves a value through the memory pipes,
# a shuffle with its operation, a trip through shared memory with two barriers.
MOVE, SHUFFLE, EXCHANGE = 1.0, 4.0, 80.0


@dataclass(frozen=True)
class Wish:
    """What is known of a tile: the elements that may move at once along its last dimension, the
    bytes of an element, the dimensions along which it is reduced and how often, whether every slot
    must hold an element, how often ops work on all of it, and the threads along a row with which
    matrix loads can fill it."""

    vector: int
    bytes: int
    reduced: tuple[tuple[int, int], ...] = ()
    exact: bool = False
    uses: int = 1
    lanes: int = 0


@lru_cache(maxsize=512)
def spread(shape: tuple[int, ...], threads: int, wish: Wish) -> Fragment:
    """The cheapest of the candidates; of equals, the widest vectors, then the longest rows."""
    found = list(candidates(shape, threads, wish))
    return min(found, key=lambda f: (cost(f, wish), -f[1], -f[2]))[0]


Candidate = tuple[Fragment, int, int]


def candidates(shape: tuple[int, ...], threads: int, wish: Wish) -> Iterable[Candidate]:
    """Fragments, each with its vector and its threads along the last dimension."""
    columns = shape[-1]
    widest = gcd(columns, wish.vector)
    for vector in sorted({gcd(columns, 1 << i) for i in range(widest.bit_length())}):
        if vector > wish.vector:
            continue
        chunks = columns // vector
        for along in divisors(threads):
            if along > 1 and (along >= 2 * chunks or (wish.exact and chunks % along)):
                continue  # half of these threads would have nothing, or some of them
            counts = [1] * len(shape)
            counts[-1] = along
            left = threads // along
            for dim in range(len(shape) - 2, -1, -1):
                counts[dim] = max(
                    d
                    for d in divisors(left)
                    if d == 1 or (shape[dim] % d == 0 if wish.exact else d < 2 * shape[dim])
                )
                left //= counts[dim]
            steps = [1] * (len(shape) - 1) + [vector]
            times = [ceil(n / (t * v)) for n, t, v in zip(shape, counts, steps, strict=True)]
            whole = repeat(*times) * spatial(*counts) * repeat(*steps)
            yield whole.crop(*shape).replicate(left), vector, along


@lru_cache(maxsize=512)
def spread_in_words(fragment: Fragment, wish: Wish) -> str:
    """What a spread amounts to, for whoever asks why: elements, accesses, sectors, and among how
    many candidates it was the cheapest."""
    table = fragment.table()
    vector = gcd(fragment.tile[-1], wish.vector)
    while vector > 1 and not _moves(table, vector):
        vector //= 2
    first = table[:WARP, 0]
    first = first[first >= 0]
    sectors = len({(int(e) * wish.bytes + b) // SECTOR for e in first
                   for b in range(0, vector * wish.bytes, SECTOR)})  # fmt: skip
    full = ceil(len(set(first.tolist())) * vector * wish.bytes / SECTOR)
    count = sum(1 for _ in candidates(fragment.tile, fragment.threads, wish))
    used = "all of them used" if sectors <= full else f"{full / sectors:.0%} of them used"
    words = [
        f"{fragment.values} elements a thread",
        f"{vector * wish.bytes}-byte accesses",
        f"{sectors} sectors a warp, {used}" if sectors != 1 else "1 sector a warp",
    ]
    if wish.reduced:
        across = [prod_threads(fragment, dim) for dim, _ in wish.reduced]
        words.append("reduced across " + " and ".join(str(a) for a in across) + " threads")
    words.append(f"cheapest of {count} spreads")
    return ", ".join(words)


def _moves(table: Indices, vector: int) -> bool:
    """Whether each thread's registers are vectors of contiguous, aligned elements."""
    if table.shape[1] % vector:
        return False
    groups = table.reshape(len(table), -1, vector)
    start = groups[..., :1]
    steps = np.where(start < 0, -1, start + np.arange(vector))
    return bool((groups == steps).all() and ((start < 0) | (start % vector == 0)).all())


def cost(candidate: Candidate, wish: Wish) -> float:
    """In instructions of a warp: moving the registers, and reducing them."""
    fragment, vector, along = candidate
    values = fragment.values
    moved = values / vector
    # bytes side by side that a warp touches at once; below a sector the rest is fetched in vain
    together = min(along, WARP) * vector * wish.bytes
    moved *= max(1.0, SECTOR / together)
    if wish.lanes and (along != wish.lanes or vector * wish.bytes != WIDEST):
        moved += values  # element by element
    # sixteen bytes a lane keep memory busy with the fewest instructions
    total = MOVE * moved * 4 + values * wish.uses
    last = len(fragment.tile) - 1
    for dim, times in wish.reduced:
        extent = fragment.tile[dim]
        across = along if dim == last else prod_threads(fragment, dim)
        if across <= 1:
            continue
        results = max(1, values // max(1, ceil(extent / across)))
        total += SHUFFLE * log2(min(across, WARP)) * results * times
        if across > WARP or dim != last:
            total += EXCHANGE * times
    return total


def prod_threads(fragment: Fragment, dim: int) -> int:
    """Threads among which one dimension is dealt."""
    thread = fragment.along(dim)[0]
    return prod(extent for extent, stride in thread.modes() if stride)


def divisors(n: int) -> list[int]:
    """Everything that divides `n`, the least first."""
    return [d for d in range(1, n + 1) if n % d == 0]
