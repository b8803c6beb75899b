"""How a tile is spread over threads when nothing prescribes it: vectorized along memory, coalesced,
rows that are reduced within a warp where that costs no registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, log2, prod

from tilewright.ir.fragment import Fragment, repeat, spatial

WARP = 32
SECTOR = 32  # bytes of memory that move together
WIDEST = 16  # bytes of one access

# Prices, in instructions of a warp per register: what moves a value through the memory pipes,
# a shuffle with its operation, a trip through shared memory with two barriers.
MOVE, SHUFFLE, EXCHANGE = 1.0, 4.0, 80.0


@dataclass(frozen=True)
class Wish:
    """What is known of a tile: the elements that may move at once along its last dimension, the
    bytes of an element, the dimensions along which it is reduced, and whether every slot must
    hold an element."""

    vector: int
    bytes: int
    reduced: frozenset[int] = frozenset()
    exact: bool = False


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


def cost(candidate: Candidate, wish: Wish) -> float:
    """In instructions of a warp: moving the registers, and reducing them."""
    fragment, vector, along = candidate
    values = fragment.values
    moved = values / vector
    # bytes side by side that a warp touches at once; below a sector the rest is fetched in vain
    together = min(along, WARP) * vector * wish.bytes
    moved *= max(1.0, SECTOR / together)
    # sixteen bytes a lane keep memory busy with the fewest instructions
    total = MOVE * moved * 4 + values
    last = len(fragment.tile) - 1
    for dim in wish.reduced:
        extent = fragment.tile[dim]
        across = along if dim == last else prod_threads(fragment, dim)
        if across <= 1:
            continue
        results = max(1, values // max(1, ceil(extent / across)))
        total += SHUFFLE * log2(min(across, WARP)) * results
        if across > WARP or dim != last:
            total += EXCHANGE
    return total


def prod_threads(fragment: Fragment, dim: int) -> int:
    """Threads among which one dimension is dealt."""
    thread = fragment.along(dim)[0]
    return prod(extent for extent, stride in thread.modes() if stride)


def divisors(n: int) -> list[int]:
    """Everything that divides `n`, the least first."""
    return [d for d in range(1, n + 1) if n % d == 0]
