"""How long a kernel takes on the CPU, by closed formulas on what its first trace has noted: the
axes of values that it keeps and stores, and of products. No candidate is traced.

A value is made by a map of loops, of which the innermost goes along vectors. A row costs something
to begin, and more where it has to find where its tensor ends; elements that fill no vector come one
by one. Values that the first-level cache does not hold take longer, and longer still beyond the
second; those that elements alone are computed of stay in registers. A product takes what its blocks
of registers take, and what its operands take to be packed.

Times were fitted to tiles of 114 kernels (`benchmarks/notes/cpu.md`), and are right for the order
of candidates, not for microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import starmap
from math import ceil, inf, log, prod
from typing import Any, NamedTuple

from tilewright.choose.candidates import Candidate
from tilewright.ir.core import *
from tilewright.lang.builder import Builder
from tilewright.lang.sizes import MOST_SCANNED
from tilewright.lang.tiles import LARGEST
from tilewright.support.limits import TILE_BYTES

# ns of a core
ROW = 1.4  # of a map
GUARD = 2.7  # of a row of a ragged tile: to find where it ends
VECTOR = 1.3  # as wide as registers
SINGLE = 1.0  # vectors, of an element of a kept row that fills none
ALONE = 1.1  # an element of a ragged end that is shorter than a vector
PADDED = 0.26  # an element of a tile that lies outside
WAIT = 0.9  # of an element of a scanned row, for the sum before it
DIVIDE = 2.5  # of a row, by a number that its tile may reach across: an index of it
BLOCK = 20.0
TRIP = 2.0  # of a loop over tiles
NEAR = 0.013  # a byte of values beyond the first-level cache
FAR = 0.027  # and beyond the second
FIRST, SECOND = 17 << 10, 391 << 10  # bytes of values that they hold
PAGE = 6.0  # of a tensor beyond the second: to come to another page of it
PAGES, SECOND_T = 4096, 1 << 20  # bytes
READ = 0.15  # of what is read, what stays there beside values
CYCLE = 0.21  # of the units that multiply
CALL = 3.0  # of the micro-kernel
SUM = 0.31  # 64 bytes of results that are read and written
LOAD = 0.006  # a byte that is read where it lies: 61×182×1544 by 2 rows takes twice as long
PACK = 0.036  # a byte of a factor
TRANSPOSED = 0.015  # and one of a factor that lies transposed
NEAR_B = 0.0011  # a byte of B, for each block of rows, beyond the first-level cache
FAR_B = 0.0012
MEMORY_B = 0.05
SECOND_B, THIRD_B = 130 << 10, 4 << 20  # bytes of B that the others hold: of the third, a part

SHARED = 20e3  # from which on cores share a kernel
LAST = 0.25  # of a block, for which one core works while the others have nothing left
UNKNOWN = 4096  # elements of a range whose length a launch gives
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)  # of a range
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)  # besides even parts
SWEEPS = 3  # over all loops, each by itself
MADE_AND_READ = 3  # ops that name a tile: its allocation, too
BLOCKS, MAPS, CACHES, PRODUCTS = "blocks", "vectors", "caches", "products"


class Axes(NamedTuple):
    """Of a value, the innermost last: names, and the sizes of those that no loop has (else 0)."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]


class Rows(NamedTuple):
    """Of a tensor that is read or written: the axes of its dimensions, an empty name where one
    place of it is; its sizes, and the bytes of an element."""

    axes: Axes
    shape: tuple[int, ...]
    size: int


class Factors(NamedTuple):
    """Of a product: M, N and K; what is multiplied; the elements of a row of A and B in memory (0:
    they are computed), and whether B lies there transposed."""

    sides: Axes
    kind: DType
    down_a: int
    down_b: int
    is_turned: bool


class Model:
    """Of one kernel, whose loops over tiles have these `sizes` where nothing else is said."""

    def __init__(self, builder: Builder, number: int, sizes: Mapping[str, int], cores: int) -> None:
        kernel, self.cores, self.sizes = builder.kernels[number], cores, dict(sizes)
        self.own = {key: name for key, (at, name) in builder.axes.items() if at == number}
        self.length: dict[str, int] = {}
        self.known: set[str] = set()  # loops whose lengths no block says
        self.grid: set[str] = set()  # loops that blocks share
        self.probed: dict[str, int] = {}  # sizes in the first trace
        self.begins: dict[Var, str] = {}  # variables that say where a tile begins
        self.builder, self.blocks = builder, {*kernel.blocks}
        boxes = [box for at, box in builder.reads_of if at == number]
        self.bits = max([32, *(box.buffer.dtype.bits for box in boxes)])
        self.reads = [self.noted(box.axes) for box in boxes]
        for box in boxes:
            for axis, size in zip(box.along, box.buffer.shape, strict=False):
                if axis is not None and axis.key in self.own and isinstance(size, Const):
                    self.length.setdefault(self.own[axis.key], int(size.value))
        by_axes = {tuple(axis.key for axis in box.axes): box for box in boxes}
        products = {
            tuple(axis.key for axis in sides): (sides, kind)
            for at, sides, kind in builder.products
            if at == number
        }
        self.products = [
            Factors(
                self.noted(sides), kind, _down(by_axes.get((m, k))), _down(by_axes.get((k, n))),
                (n, k) in by_axes,
            )
            for (m, n, k), (sides, kind) in products.items()
        ]  # fmt: skip
        factors = {frozenset(pair) for m, n, k in products for pair in ((m, k), (k, n))}
        there = {frozenset(keys) for keys, box in by_axes.items() if box.region is not None}
        self.maps = [
            self.noted(axes)
            for axes in builder.footprints
            if any(axis.key in self.own for axis in axes)
            if frozenset(axis.key for axis in axes) not in factors & there  # read where they lie
        ]
        boxes += [box for at, box in builder.writes_of if at == number]
        self.rows = [
            self.rows_of(box)
            for box in boxes
            if box.region is not None and box.buffer.is_global and box.buffer.rank > 1
            if frozenset(axis.key for axis in box.axes) not in factors
        ]
        # what is stored as it was multiplied, by the loop over K: of one step, it is in no tile
        sides = [factors.sides.names for factors in self.products]
        named = Counter(map_.names for map_ in self.maps)
        self.direct = {(m, n): k for m, n, k in sides if named[m, n] == 1}
        self.folds = any(isinstance(op, (Reduce, Scan, Gemm)) for op in walk_ops(kernel))
        self.wraps: dict[str, set[int]] = {}  # what indices along a loop are divided by
        for op in walk_ops(kernel):
            for each in expressions(op):
                self.note_wraps(each)
        uses = Counter(b.name for op in walk_ops(kernel) for b in named_buffers(op))
        self.is_near = any(_keeps(op, uses) for op in walk_ops(kernel))
        along = [(axes, axis) for at, axes, axis, _ in builder.scanned if at == number]
        self.scans = [self.noted(axes) for axes, axis in along if axis is axes[-1]]
        self.is_kept = self.folds or not _in_one_order([map_.names for map_ in self.maps])
        self.is_near |= self.is_kept and not self.folds
        if not self.is_kept:
            self.maps = [*dict.fromkeys(self.maps)]
        for name in self.sizes:
            self.length.setdefault(name, UNKNOWN)
        counted = prod(ceil(self.length[name] / self.probed[name]) for name in self.grid)
        blocks = prod(int(n.value) for n in kernel.grid if isinstance(n, Const))
        self.besides = max(1, blocks // counted)  # blocks for each tile
        self.inner = [name for name in self.sizes if name not in self.grid]

    def noted(self, axes: Iterable[Any]) -> Axes:
        names, sizes = [], []
        for axis in axes:
            name = self.own.get(axis.key)
            names.append(axis.name if name is None else name)
            sizes.append(axis.size if name is None else 0)
            if name is not None:
                self.sizes.setdefault(name, axis.size)
                self.probed[name] = axis.size
                if (length := self.builder.lengths.get(axis.key)) is not None:
                    self.length[name] = max(1, length)
                    self.known.add(name)
                self.begins |= dict.fromkeys(variables(axis.start), name)
                if variables(axis.start) and variables(axis.start) <= self.blocks:
                    self.grid.add(name)
        return Axes(tuple(names), tuple(sizes))

    def note_wraps(self, e: Expr) -> None:
        for node in walk(e):
            match node:
                case Bin("//" | "%", a, Const(value=int(n))) if n & (n - 1) > 0:
                    for v in variables(a) & self.begins.keys():
                        self.wraps.setdefault(self.begins[v], set()).add(n)

    def rows_of(self, box: Any) -> Rows:
        known = [self.noted((axis,)) if axis is not None else None for axis in box.along]
        axes = Axes(
            tuple("" if each is None else each.names[0] for each in known),
            tuple(1 if each is None else each.sizes[0] for each in known),
        )
        shape = tuple(int(n.value) if isinstance(n, Const) else UNKNOWN for n in box.buffer.shape)
        return Rows(axes, shape, max(1, box.buffer.dtype.bits // 8))

    def ns(self, chosen: Mapping[str, int]) -> dict[str, float]:
        """What a choice of sizes takes, by part."""
        sizes = {**self.sizes, **chosen}
        lengths = dict(self.length)
        for name in self.inner:
            ends = [sizes[at] for at in self.grid if lengths[at] == lengths[name]]
            if name not in self.known and ends:  # it goes on to the block's own place
                lengths[name] = (lengths[name] + min(lengths[name], *ends)) // 2
        trips = {name: ceil(lengths[name] / size) for name, size in sizes.items()}
        blocks = self.besides * prod(trips[name] for name in self.grid)
        steps = prod(trips[name] for name in self.inner) if self.inner else 0
        found = {BLOCKS: (BLOCK + TRIP * steps) * blocks, MAPS: 0.0, CACHES: 0.0, PRODUCTS: 0.0}
        held = moved = 0.0  # bytes: of a block's values, and of all of them
        for names, given in self.maps:
            if names in self.direct and trips.get(self.direct[names], 1) == 1:
                continue
            each = [own or sizes[name] for name, own in zip(names, given, strict=True)]
            often = [1 if own else trips[name] for name, own in zip(names, given, strict=True)]
            around = self.besides * prod(n for name, n in trips.items() if name not in names)
            rows = around * prod(each[:-1]) * prod(often[:-1])
            length = each[-1] if given[-1] else lengths[names[-1]]
            found[MAPS] += rows * row_ns(each[-1], length, often[-1], self.bits, self.folds)
            across = sum(n % sizes[at] > 0 for at in names[:-1] for n in self.wraps.get(at, ()))
            found[MAPS] += DIVIDE * across * rows
            held += prod(each) * self.bits / 8
            moved += rows * each[-1] * often[-1] * self.bits / 8
        for names, given in self.scans:  # rows side by side wait together
            each = [own or sizes[name] for name, own in zip(names, given, strict=True)]
            every = self.besides * prod(trips.values()) * prod(each)
            rows_there = each[-2] if len(each) > 1 else 1
            found[MAPS] += every * WAIT / min(side_by_side(), rows_there)
        for names, given in self.reads:
            sides = zip(names, given, strict=True)
            held += READ * prod(own or sizes[name] for name, own in sides) * self.bits / 8
        if self.is_kept:
            a_byte = NEAR * _share(held, FIRST) + FAR * _share(held, SECOND)
            found[CACHES] = moved * a_byte if self.is_near else 0.0
        if held > TILE_BYTES():
            found[CACHES] = inf
        for tensor in self.rows:
            found[CACHES] += PAGE * self.pages(tensor, sizes, lengths, trips)
        for factors in self.products:
            found[PRODUCTS] += self.besides * self.product(factors, sizes, lengths, trips)
        time = sum(found.values())
        if self.cores > 1 and time > SHARED:
            most = (ceil(blocks / self.cores) + LAST) / blocks
            found = {part: each * most for part, each in found.items()}
        return found

    def pages(
        self,
        rows: Rows,
        sizes: Mapping[str, int],
        lengths: Mapping[str, int],
        trips: Mapping[str, int],
    ) -> float:
        """How often all blocks come to another page of a tensor, beyond the second-level cache."""
        if not (beyond := _share(prod(rows.shape) * rows.size, SECOND_T)):
            return 0.0
        (names, own), run, pitch = rows.axes, 1, rows.size
        each = [n or min(sizes[at], lengths[at]) for at, n in zip(names, own, strict=True)]
        for n, there in zip(reversed(each), reversed(rows.shape), strict=True):
            run *= n
            pitch *= there
            if n < there:
                break
        every = self.besides * prod(trips.values())
        return beyond * every * prod(each) / run * min(1.0, pitch / PAGES)

    def product(
        self,
        factors: Factors,
        sizes: Mapping[str, int],
        lengths: Mapping[str, int],
        trips: Mapping[str, int],
    ) -> float:
        sides = zip(*factors.sides, strict=True)

        def pieces(name: str, own: int) -> list[tuple[int, int]]:
            if own or name in self.known:
                return [(own, 1)] if own else _pieces(sizes[name], lengths[name])
            return [(min(sizes[name], self.length[name]), trips[name])]  # up to what is there

        m, n, k = starmap(pieces, sides)
        around = prod(often for name, often in trips.items() if name not in factors.sides.names)
        return around * sum(
            rows * columns * steps * product_ns(factors, high, wide, deep)
            for high, rows in m
            for wide, columns in n
            for deep, steps in k
        )


def ranked(builder: Builder, number: int, sizes: Mapping[str, int]) -> list[tuple[Candidate, str]]:
    """Sizes for the loops of a kernel whose sizes are open, the best first, and what is said of
    them. Each loop in turn takes the size that is best beside those of the others."""
    from tilewright.targets.cpu.host import thread_count

    model = Model(builder, number, sizes, thread_count())
    known = {builder.axes[key][1] for key in builder.lengths if key in builder.axes}
    scanned = {model.own.get(along.key) for at, _, along, _ in builder.scanned if at == number}
    ladders = {
        name: [*_ladder(model.length[name], MOST_SCANNED if name in scanned else LARGEST)]
        if name in known
        else [size]
        for name, size in sizes.items()
    }
    for name in ladders.keys() & known:
        even = (n // part for n in model.wraps.get(name, ()) for part in PARTS if n % part == 0)
        ladders[name] += [size for size in even if size <= max(ladders[name])]
    found: dict[tuple[tuple[str, int], ...], dict[str, float]] = {}

    def time(chosen: Mapping[str, int]) -> float:
        at = tuple(chosen.items())
        if at not in found:
            found[at] = model.ns(chosen)
        return sum(found[at].values())

    start = {name: min(size, max(ladders[name])) for name, size in sizes.items()}
    # what is best beside a usual size of another loop may not be so beside all of its range
    for whole in (None, *ladders):
        best = start if whole is None else {**start, whole: max(ladders[whole])}
        for _ in range(SWEEPS):
            before = best
            for name in sorted(ladders, key=lambda name: name == whole):
                tried = ({**best, name: size} for size in (best[name], *ladders[name]))
                best = min(tried, key=time)
            if best == before:
                break
    told = []
    for tiles, parts in sorted(found.items(), key=lambda each: sum(each[1].values())):
        chosen = Candidate(tiles, 0)
        limit = max(parts, key=lambda part: parts[part])
        told.append((chosen, f"{chosen}: {sum(parts.values()) / 1e3:.1f} µs ({limit})"))
    return told


def _ladder(length: int, most: int = LARGEST) -> Iterator[int]:
    """Sizes for a range: even parts of it, and usual ones, the largest first."""
    sizes = {-(-length // n) for n in PARTS} | {size for size in SIZES if size < length}
    yield from sorted((size for size in sizes if size <= most), reverse=True)


def row_ns(size: int, length: int, often: int, bits: int, folds: bool) -> float:
    """What all tiles along the innermost axis of a map take for one row."""
    native, count = lanes_of(bits)

    def run(n: int) -> float:
        lanes = count(n, native, not folds)
        (vectors, left), each = divmod(n, lanes), max(1.0, lanes / native)
        return VECTOR * (vectors * each + (left * SINGLE if folds else each * (left > 0)))

    if length % size == 0:
        return often * (ROW + run(size))
    last = length - (often - 1) * size
    if folds:  # all of a tile is filled
        return often * (ROW + GUARD + run(size)) + (size - last) * PADDED
    short = max(min(size, native), 1 << (max(1, size // 4).bit_length() - 1))
    short = min(short, count(size, native, True))
    each = max(1.0, short / native) * VECTOR
    end = ceil(last / short) * each if last >= short else last * ALONE
    return often * (ROW + GUARD) + (often - 1) * ceil(size / short) * each + end


def product_ns(factors: Factors, m: int, n: int, k: int) -> float:
    """As `targets/cpu/gemm.py` multiplies."""
    from tilewright.targets.cpu.gemm import ROWS_WORTH, SPREAD, WORTH

    bits = max(32, factors.kind.bits)
    size, is_narrow = bits // 8, factors.kind.bits < 32
    cycles, blocks, calls = _by_registers(m, n, bits)
    time = cycles * k * CYCLE + calls * CALL + m * n * size / 64 * SUM
    bytes_b, part_a = n * k * size, m / blocks * (factors.down_a or k) * size
    packs = is_narrow or (m >= ROWS_WORTH and k * (factors.down_b or n) * size > SPREAD)
    if factors.is_turned or packs:
        time += bytes_b * (TRANSPOSED if factors.is_turned else PACK)
        time += bytes_b * FAR * _share(bytes_b, SECOND)  # it is written, and read again
    else:
        time += bytes_b * LOAD
    if is_narrow or (n >= WORTH and part_a > SPREAD):
        time += m * k * size * PACK
    else:
        time += m * k * size * LOAD
    by = NEAR_B * _share(bytes_b, FIRST) + FAR_B * _share(bytes_b, SECOND_B)
    by += MEMORY_B * _share(bytes_b, THIRD_B)
    return time + blocks * bytes_b * by  # b goes by for each block of rows


@cache
def _by_registers(m: int, n: int, bits: int) -> tuple[float, int, int]:
    """Cycles for a value of k, blocks of rows, and calls of the micro-kernel."""
    from tilewright.targets.cpu import micro_kernel as inner

    tile = inner.register_tile(DTYPES[f"float{bits}"], m, n)
    rows = sum((last - first) // high for first, last, high in inner.row_blocks(m, tile))
    groups = sum(
        -(-(last - first) // part.columns) for first, last, part in inner.column_groups(n, tile)
    )
    return inner.cycles(tile, m, n), rows, rows * groups


@cache
def lanes_of(bits: int) -> tuple[int, Callable[[int, int, bool], int]]:
    """Of a vector register, and how many of them a map takes at once."""
    from tilewright.targets.cpu.emit_map import lane_count
    from tilewright.targets.cpu.host import host

    return host().lanes(min(bits, 64)), lane_count


def side_by_side() -> int:
    """How many rows are scanned at once."""
    from tilewright.targets.cpu.emit_tile import SIDE_BY_SIDE

    return SIDE_BY_SIDE


def _share(held: float, cache: int) -> float:
    """Of the bytes of values, those that a cache of a size does not have."""
    return min(1.0, log(held / cache) / log(4)) if held > cache else 0.0


def _pieces(size: int, length: int) -> list[tuple[int, int]]:
    """Sizes of tiles of a range, and how many there are of each."""
    full, rest = divmod(length, size)
    return [(size, full)] * (full > 0) + [(rest, 1)] * (rest > 0)


def _down(box: Any) -> int:
    size = box.buffer.shape[-1] if box is not None and box.region is not None else None
    return int(size.value) if isinstance(size, Const) else 0


def _keeps(op: Op, uses: Mapping[str, int]) -> bool:
    """Whether what is folded lies in memory: columns of one reader do not (`fold_rows`)."""
    if not isinstance(op, (Reduce, Scan)):
        return isinstance(op, Gemm)
    is_plain = isinstance(op, Reduce) or op.by is None
    is_row = op.axis == len(op.src.extents) - 1
    return is_row or not is_plain or uses[op.src.name] > MADE_AND_READ


def _in_one_order(orders: list[tuple[str, ...]]) -> bool:
    """Whether the axes of all values are those of the largest, in its order."""
    longest = max(orders, key=len, default=())
    return all(tuple(name for name in longest if name in own) == own for own in orders)
