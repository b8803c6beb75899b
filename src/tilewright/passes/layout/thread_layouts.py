"""How tiles are spread over threads, and which elements of them the points of a map touch.

A tile that nothing prescribes is vectorized along memory, coalesced, with rows that are reduced
within a warp where that costs no registers (`spread`); where nothing at all is known of its use,
neighbouring threads take a vector each along the last dimension (`coalesced`).

Indices of accesses are evaluated over the map's whole domain, so that questions about them are
decided, not guessed; the common case, indices that are the map's own variables, is also known by
its shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, log2, prod

import numpy as np

from tilewright.ir.layout.fragment import repeat, row_of, spatial
from tilewright.passes.core import *
from tilewright.passes.layout.addresses import ravel

SECTOR = 32  # bytes of memory that move together
WIDEST = 16  # bytes of one access

# Prices, in instructions of a warp per register: what moves a value through the memory pipes,
# a shuffle with its operation, a trip through shared memory with two barriers.
MOVE, SHUFFLE, EXCHANGE = 1.0, 4.0, 80.0


@dataclass(frozen=True)
class Wish:
    """What is known of a tile: the elements that may move at once along its last dimension, the
    bytes of an element, the dimensions along which it is reduced and how often, whether every slot
    must hold an element, how often ops work on all of it, the threads along a row with which
    matrix loads can fill it, the dimensions along which it is scanned and how often, and how often
    it moves then."""

    vector: int
    bytes: int
    reduced: tuple[tuple[int, int], ...] = ()
    exact: bool = False
    uses: int = 1
    lanes: int = 0
    scanned: tuple[tuple[int, int], ...] = ()
    moves: int = 1


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
        chunks = columns // vector
        for along in divisors(threads):
            if along > 1 and (along >= 2 * chunks or (wish.exact and chunks % along)):
                continue  # half of these threads would have nothing, or some of them
            for rows, left in _across(shape[:-1], threads // along, wish.exact):
                counts = [*rows, along]
                steps = [1] * (len(shape) - 1) + [vector]
                for dim, _ in wish.scanned:
                    if dim < len(shape) - 1:  # in a row in each thread
                        steps[dim] = ceil(shape[dim] / counts[dim])
                times = [ceil(n / (t * v)) for n, t, v in zip(shape, counts, steps, strict=True)]
                whole = repeat(*times) * spatial(*counts) * repeat(*steps)
                if along > WARP and along % WARP == 0 and len(shape) - 1 in dict(wish.scanned):
                    # in a row in each warp: they exchange one total each
                    lanes, counts[-1] = (*[1] * (len(shape) - 1), WARP), along // WARP
                    whole = spatial(*counts) * repeat(*times) * spatial(*lanes) * repeat(*steps)
                yield whole.crop(*shape).replicate(left), vector, along


def _across(
    shape: tuple[int, ...], threads: int, exact: bool
) -> Iterator[tuple[tuple[int, ...], int]]:
    """How many threads each dimension has, and how many are left: as many as the last ones can
    have; where that leaves slots idle, also others that leave fewer."""

    def able(extent: int, left: int) -> list[int]:
        return [
            d for d in divisors(left)
            if d == 1 or (extent % d == 0 if exact else d < 2 * extent)
        ]  # fmt: skip

    def slots(counts: tuple[int, ...]) -> int:
        return prod(ceil(n / t) for n, t in zip(shape, counts, strict=True))

    most: tuple[int, ...] = ()
    ways: list[tuple[int, ...]] = [()]
    for extent in reversed(shape):
        most = (max(able(extent, threads // prod(most))), *most)
        ways = [(d, *way) for way in ways for d in able(extent, threads // prod(way))]
    yield most, threads // prod(most)
    ways = [way for way in ways if slots(way) < slots(most)]
    fewest = {way[-1]: way for way in sorted(ways, key=slots, reverse=True)}
    yield from ((way, threads // prod(way)) for way in fewest.values())


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
    words.append(f"cheapest of {count} layouts")
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
    moved = values / vector * _sectors(candidate, wish)
    if wish.lanes and (along != wish.lanes or vector * wish.bytes != WIDEST):
        moved += values  # element by element
    # sixteen bytes a lane keep memory busy with the fewest instructions
    total = MOVE * moved * 4 * wish.moves + values * wish.uses
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
    for dim, times in wish.scanned:
        across = along if dim == last else prod_threads(fragment, dim)
        runs = values / (vector if dim == last else ceil(fragment.tile[dim] / across))
        total += SHUFFLE * log2(min(across, WARP)) * runs * times
        if across > WARP or (dim != last and across > 1):
            told = ceil(across / WARP) * (1 if dim == last else runs)
            total += (EXCHANGE + 3 * told) * times
    return total


def _sectors(candidate: Candidate, wish: Wish) -> float:
    """How many times the sectors move that a warp uses of them at once. Rows that are no vectors
    of 16 bytes begin anywhere."""
    fragment, vector, along = candidate
    unit = together = vector * wish.bytes
    lanes, last = WARP, len(fragment.tile) - 1
    for dim in range(last, -1, -1):
        across = min(lanes, along if dim == last else prod_threads(fragment, dim))
        together, lanes = together * across, lanes // across
        if across * (vector if dim == last else 1) < fragment.tile[dim]:
            break  # what comes next lies elsewhere
    if wish.vector * wish.bytes < WIDEST:
        return (1 + (together - unit) / SECTOR) * SECTOR / together
    return max(1.0, SECTOR / together)


def prod_threads(fragment: Fragment, dim: int) -> int:
    """Threads among which one dimension is distributed."""
    thread = fragment.along(dim)[0]
    return prod(extent for extent, stride in thread.modes() if stride)


def divisors(n: int) -> list[int]:
    """Everything that divides `n`, the least first."""
    return [d for d in range(1, n + 1) if n % d == 0]


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


MOST_INNER = 4096  # values of loop variables inside a map that are looked at


@dataclass(frozen=True)
class Access:
    """`buffer[indices]` in a map. `points[p, r]`: the element (row-major; -1 outside) at point p
    for the r-th values of the loop variables inside the map or unrolled around it; None when an
    index is known only at run time. `dims`: the map's dimensions that are the indices, in order,
    when that is all they are; `extents` those of the map. `grid`: how many boxes like the map's
    make up the buffer, where the access is one of them."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    points: Indices | None
    dims: tuple[int, ...] | None
    extents: tuple[int, ...]
    grid: tuple[int, ...] | None = None


def needed_by(points: Indices, map_layout: Fragment) -> Indices:
    """[threads, k] elements that each thread of a map touches, -1 for none (`Access.points`)."""
    table = map_layout.table()
    found = points[np.maximum(table, 0)]
    return np.where((table < 0)[..., None], -1, found).reshape(map_layout.threads, -1)


@lru_cache(maxsize=64)
def plain_points(
    dims: tuple[int, ...], extents: tuple[int, ...], shape: tuple[int, ...]
) -> Indices:
    """`Access.points` of an access whose `dims` are known; read-only."""
    coords = np.indices(extents).reshape(len(extents), -1)
    zeros = np.zeros(coords.shape[1], np.int64)
    result: Indices = zeros + ravel((coords[dim] if dim >= 0 else zeros for dim in dims), shape)
    result.flags.writeable = False
    return result[:, None]


def static_extents(op: Map) -> tuple[int, ...]:
    return tuple(int(e) for e in op.extents)


def accesses(op: Map, around: dict[Var, range]) -> list[Access]:
    """Every access of a fragment in `op`; `around` are the unrolled variables outside."""
    extents = static_extents(op)
    coords = np.indices(extents).reshape(len(op.vars), -1)
    domain = dict(zip(op.vars, coords, strict=True))
    found: list[Access] = []
    for inner, lets, loops, _ in walk_map(op.body, {}, around):
        for place, writes in elements_of(inner):
            buffer = place.buffer
            if not buffer.is_fragment:
                continue
            indices = tuple(substitute(i, lets) for i in place.indices)
            dims, grid = _dims(op, indices, buffer.static_shape), None
            if dims is None:
                points = _points(buffer, indices, domain, loops)
                grid = _grid(op, indices, buffer.static_shape)
            else:
                points = plain_points(dims, extents, buffer.static_shape)
            found.append(Access(buffer, place.indices, writes, points, dims, extents, grid))
    return found


def walk_map(
    body: Body, lets: dict[Var, Expr], loops: dict[Var, range], guards: tuple[Expr, ...] = ()
) -> Iterator[tuple[Op, dict[Var, Expr], dict[Var, range], tuple[Expr, ...]]]:
    """Every op of a map's body, with the names that it sees, the loops around it whose values are
    known, and what all around it ask."""
    for op in body:
        yield op, lets, loops, guards
        if isinstance(op, Let):
            lets = {**lets, op.var: substitute(op.value, lets)}
        for inner in bodies(op):
            asked = (*guards, *(substitute(e, lets) for e in expressions(op)))
            yield from walk_map(inner, lets, {**loops, **_values(op)}, asked)


def _values(op: Op) -> dict[Var, range]:
    """The variable of a loop, with its values, when they are known."""
    values = values_of(op) if isinstance(op, For) else None
    return {op.var: values} if isinstance(op, For) and values is not None else {}


def unrolled(kernel: Kernel) -> dict[Var, range]:
    """The variables of loops that are unrolled, with their values, where they are known."""
    loops = [op for op in walk_ops(kernel, For) if op.kind == "unroll"]
    return {var: values for op in loops for var, values in _values(op).items()}


def _dims(op: Map, indices: tuple[Expr, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The map's dimensions that are the indices, -1 for none where there is one element; None
    where that is not all they are."""
    found: list[int] = []
    for index, size in zip(indices, shape, strict=True):
        if isinstance(index, Const) and index.value == 0 and size == 1:
            found.append(-1)
            continue
        at = op.vars.index(index) if isinstance(index, Var) and index in op.vars else -1
        if at < 0 or at in found or int(op.extents[at]) != size:
            return None
        found.append(at)
    return tuple(found)


def _grid(op: Map, indices: tuple[Expr, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """How many boxes like the map's make up a buffer of that shape, where the indices are the
    map's variables, in order, from the start of one of these on."""
    extents = static_extents(op)
    if len(indices) != len(extents):
        return None
    for var, index, extent, size in zip(op.vars, indices, extents, shape, strict=True):
        form = linear(index, Ranges())
        if form is None or dict(form.terms) != {var: 1} or size % extent or form.const % extent:
            return None
    return tuple(size // extent for size, extent in zip(shape, extents, strict=True))


def _points(
    buffer: Buffer,
    indices: tuple[Expr, ...],
    domain: dict[Var, Indices],
    loops: dict[Var, range],
) -> Indices | None:
    used = sorted({v for i in indices for v in variables(i)} - set(domain), key=lambda v: v.name)
    if any(v not in loops for v in used) or any(loads(i) for i in indices):
        return None
    ranges = [loops[v] for v in used]
    count = prod(len(r) for r in ranges)
    size = next(iter(domain.values())).shape[0] if domain else 1
    if count > MOST_INNER:
        return None
    grid = np.meshgrid(*(np.array(r, np.int64) for r in ranges), indexing="ij")
    values = {v: x[:, None] for v, x in domain.items()}
    values |= {v: g.reshape(1, -1) for v, g in zip(used, grid, strict=True)}
    try:
        places = [np.broadcast_to(evaluate(i, values), (size, count)) for i in indices]
    except (CompileError, KeyError):
        return None
    pairs = zip(places, buffer.static_shape, strict=True)
    inside = np.all([(at >= 0) & (at < extent) for at, extent in pairs], axis=0)
    return np.where(inside, ravel(places, buffer.static_shape), -1)


# ── from maps to buffers and back ───────────────────────────────────────────────────────────


def buffer_from_map(access: Access, map_layout: Fragment) -> Fragment | None:
    """How the buffer is spread when each thread holds what it touches; None when that is not a
    fragment of the whole buffer."""
    shape = access.buffer.static_shape
    if access.dims is not None:
        try:
            return _dropped(access.dims, map_layout, shape)
        except LayoutError:
            pass  # modes that cross the tile's dimensions, as views have: by its table, then
    if access.grid is not None and map_layout.cover == map_layout.tile:
        return repeat(*access.grid) * map_layout  # the other boxes are held as this one is
    if access.points is None:
        return None
    needed = needed_by(access.points, map_layout)
    if not needed.size or (needed < 0).any():
        return None
    _, first = np.unique(needed, axis=1, return_index=True)
    try:
        found = Fragment.fit(shape, needed[:, np.sort(first)])
    except LayoutError:
        return None
    return found if found.is_complete else None


def _dropped(
    dims: tuple[int, ...], map_layout: Fragment, shape: tuple[int, ...]
) -> Fragment | None:
    """`map_layout` less the dimensions that are not among `dims`, in their order."""
    result, kept = map_layout, [d for d in dims if d >= 0]
    for dim in sorted(set(range(len(map_layout.tile))) - set(kept), reverse=True):
        result = row_of(result, dim, keepdim=len(result.tile) == 1)
    if kept:
        order = sorted(kept)
        result = result.permute(*(order.index(d) for d in kept))
    return with_units(result, shape)


def map_from_buffer(access: Access, fragment: Fragment) -> Fragment | None:
    """The layout of a map in which every thread touches what it holds; None unless the access
    is a bijection between the map and the buffer, or a part of it in the same registers of all
    threads."""
    if access.dims is not None:
        try:
            return _raised(access.dims, fragment, access.extents)
        except LayoutError:
            pass  # as in `buffer_from_map`
    if access.points is None or access.points.shape[1] != 1 or fragment.cover != fragment.tile:
        return None
    points = access.points[:, 0]
    if (points < 0).any() or len(np.unique(points)) != len(points):
        return None
    inverse = np.full(fragment.elements, -1, points.dtype)
    inverse[points] = np.arange(len(points))
    table = inverse[fragment.table()]
    if len(points) != fragment.elements:  # a part, of which threads hold the same registers
        table = table[:, (table >= 0).any(axis=0)]
        if (table < 0).any():
            return None
    try:
        return Fragment.fit(access.extents, table)
    except LayoutError:
        return None


def _raised(dims: tuple[int, ...], fragment: Fragment, extents: tuple[int, ...]) -> Fragment | None:
    """`fragment` with its dimensions where `dims` says that they are in the map."""
    kept = [d for d in dims if d >= 0 and extents[d] != 1]
    sizes = tuple(extents[d] for d in kept)
    squeezed = with_units(fragment, sizes or (1,))
    if squeezed is None or prod(sizes) != prod(extents):
        return None
    if kept:
        squeezed = squeezed.permute(*(kept.index(d) for d in sorted(kept)))
    return with_units(squeezed, extents)


def with_units(fragment: Fragment, shape: tuple[int, ...]) -> Fragment | None:
    """`fragment` with dimensions of extent 1 added or dropped so that its tile is `shape`."""
    if fragment.tile == shape:
        return fragment
    pairs = list(zip(fragment.tile, fragment.cover, strict=True))
    left = [pair for pair in pairs if pair[0] != 1]
    if [size for size, _ in left] != [size for size in shape if size != 1] or any(
        size == 1 != cover for size, cover in pairs
    ):
        return None
    covers = iter(cover for _, cover in left)
    cover = tuple(1 if size == 1 else next(covers) for size in shape)
    return Fragment(shape, fragment.layout, cover)


def same_registers(buffer: Buffer, source: Buffer) -> bool:
    """Whether bit for bit each thread's registers of one fragment are those of the other."""
    new, old = buffer.fragment, source.fragment
    if new.threads != old.threads:
        return False
    tables = []
    for fragment, bits in ((new, buffer.dtype.bits), (old, source.dtype.bits)):
        unit = min(buffer.dtype.bits, source.dtype.bits)
        table, per = fragment.table(), bits // unit
        parts = table[:, :, None] * per + np.arange(per)
        tables.append(np.where(table[:, :, None] < 0, -1, parts).reshape(len(table), -1))
    return np.array_equal(tables[0], tables[1])
