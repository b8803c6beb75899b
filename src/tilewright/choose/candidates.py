"""Candidates for the tile sizes and threads of a kernel that multiplies.

The sides of a product have ladders of sizes: multiples of what instructions have, up to the first
one that holds all of the range; rows, which `swap_operands` may make columns of instructions, also
even parts of it. A loop that is a side of several products takes what suits all of
them. Threads follow the rows, of which a warpgroup has 64 or 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

from tilewright.choose.ranges import launch_sizes, lengths_at
from tilewright.ir.atoms import MATRIX_TYPES, Feature
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.lang.builder import Builder

PAIR = 2  # blocks of a cluster
SHARES = (2, 4, 8)  # blocks that have steps of a loop each
MOST_PARTS = 16  # of a loop, whose sums a second kernel adds up
FEWEST = 2  # steps of such a block
WAVES = (1, 2, 3, 4, 6, 8)  # blocks of a multiprocessor, by numbers that are open
WASTE = 16  # at most one in so many steps lies past the end
MOST = 200  # candidates of a kernel; with more, ladders have powers of two alone
ROWS, GROUPS = 64, 3  # of a product by a warpgroup; warpgroups of a block, besides a producer
COLUMNS, WIDEST = 8, 256  # of an instruction of a warpgroup
PARTS = 4  # of the rows of a product whose operands are swapped

# sizes by side; of k in bytes: whole rows of a swizzled tile, or two of them
BY_GROUPS = {"m": (64, 128, 192, 256), "n": (16, 32, 64, 96, 128, 160, 192, 224, 256)}
BY_WARPS = {"m": (16, 32, 64, 128), "n": (16, 32, 64, 128, 256)}
BY_LANES = {"m": (16, 32, 64, 128), "n": (32, 64, 128, 256)}
DEEP, SHALLOW = (128, 256), (64, 128)
SHORT = (64, 32)  # of rows that are no multiple of the others, and short: channels of images
DEEPER = (*DEEP, 512)  # for few rows, of which a warp multiplies all
OWN = {64: 64, 128: 128, 256: 128}  # of so many threads that multiply, products of one at most
LEAST = 8  # and at least
SMALL = {"m": (16, 32), "n": (16, 32)}  # where nothing else fits


@dataclass(frozen=True)
class Candidate:
    """Sizes by loop variable, threads of a block (0: the default), blocks that share what they
    load, and blocks that share the steps of a loop, by its variable: those of a cluster, or of the
    grid, whose sums a second kernel adds up; numbers of `T.chosen`."""

    tiles: tuple[tuple[str, int], ...]
    threads: int
    cluster: int = 1
    shares: tuple[tuple[str, int], ...] = ()
    parts: tuple[tuple[str, int], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        told = [f"{name} {size}" for name, size in self.tiles]
        told += [f"{self.threads} threads"] * bool(self.threads)
        told += [f"clusters of {self.cluster}"] * (self.cluster > 1)
        told += [f"{blocks} blocks share {name}" for name, blocks in self.shares]
        told += [f"{name} in {blocks} parts" for name, blocks in self.parts]
        return ", ".join([*told, *(f"{name} {number}" for name, number in self.numbers)])


class Opened(NamedTuple):
    """A text at its default sizes, and by kernel all candidates for what it leaves open."""

    program: Program
    target: Target
    found: Mapping[int, Sequence[Candidate]]


@dataclass
class _Loop:
    """A loop whose size is open: the sizes that its sides allow, and its length. How deep stages
    are matters where it is no other side."""

    allowed: dict[str, Sequence[int]]
    length: int | None = None
    even: bool = False  # also parts of its length that are as long

    def sizes(self) -> list[int]:
        sides = [each for side, each in self.allowed.items() if side != "k"] or [self.allowed["k"]]
        least = max(each[0] for each in sides)
        known = sorted({size for each in sides for size in each})
        found = [s for s in known if s % least == 0]
        if self.length is None:
            return found
        enough = [s for s in found if s >= self.length]
        # few rows: as many as they are, or as instructions of warpgroups have
        kept = enough[:1] + [s for s in enough[1:] if s == ROWS]
        found = [s for s in found if s < self.length] + kept
        parts = range(1, PARTS + 1) if self.even else ()
        each = {-(-self.length // n // COLUMNS) * COLUMNS for n in parts}
        return sorted({*found, *(size for size in each if size <= WIDEST)})


def candidates(
    builder: Builder, kernel: int, target: Target, small: bool = False
) -> list[Candidate]:
    """For one kernel of a text whose sizes have not been chosen; none where it does not multiply,
    or nothing is open. `small`: tiles for when no others fit, and few threads."""
    products = [(sides, kind) for number, sides, kind in builder.products if number == kernel]
    lengths = builder.lengths | lengths_at(builder, launch_sizes(builder))
    loops: dict[str, _Loop] = {}
    rows: dict[str, int] = {}
    columns: dict[str, int] = {}
    is_grouped, by_lanes = False, True
    for sides, kind in products:
        matrix = MATRIX_TYPES.get(kind.name)
        grouped = matrix is not None and matrix.wgmma and Feature.WGMMA in target.features
        is_grouped |= grouped
        by_lanes &= matrix is None
        by_warps = BY_WARPS if matrix is not None else BY_LANES
        ladders = dict(SMALL if small else BY_GROUPS if grouped else by_warps)
        ladders["k"] = tuple(size * 8 // kind.bits for size in (DEEP if matrix else SHALLOW))
        if matrix is not None and not small and lengths.get(sides[0].key, ROWS) < ROWS:
            ladders["m"] = BY_WARPS["m"]
            ladders["k"] = tuple(size * 8 // kind.bits for size in DEEPER)
        if grouped and not small:
            ladders["k"] = (*_short(lengths.get(sides[2].key), kind), *ladders["k"])
        for side, axis in zip("mnk", sides, strict=True):
            loop = builder.axes.get(axis.key, (kernel, axis.name))
            if side != "k":
                (rows if side == "m" else columns)[loop[1]] = axis.size
            if loop in builder.open_tiles:
                found = loops.setdefault(loop[1], _Loop({}))
                found.allowed[side] = ladders[side]
                found.length = lengths.get(axis.key)
                found.even |= side == "m" and grouped and not small
    told = target.schedule.threads
    if not products or not (loops or told == "auto" or open_numbers(builder, target)):
        return []
    ladders_of = [loop.sizes() for loop in loops.values()]
    if prod(map(len, ladders_of)) > MOST:
        ladders_of = [[s for s in each if s & (s - 1) == 0] or each for each in ladders_of]
    made = []
    for sizes in product(*ladders_of):
        tiles = dict(zip(loops, sizes, strict=True))
        height, width = (
            max(tiles.get(name, size) for name, size in side.items()) for side in (rows, columns)
        )
        threads: list[int]
        if told != "auto":
            threads = [told]
        elif by_lanes and not small:
            area = height * width
            threads = [n for n, most in OWN.items() if LEAST * n <= area <= most * n]
        else:
            threads = _threads(0 if small else height, width, is_grouped)
        made += [Candidate(tuple(tiles.items()), each) for each in threads]
    return made


def _short(length: int | None, kind: DType) -> list[int]:
    """Of a product, depths that end with a row, where others would multiply as many zeros."""
    width = (length or 0) * kind.bits // 8
    if not 0 < width < DEEP[1] or width % DEEP[0] == 0:
        return []
    size = next((size for size in SHORT if width % size == 0), SHORT[width <= SHORT[1]])
    return [size * 8 // kind.bits]


def clustered(found: Sequence[Candidate], target: Target) -> list[Candidate]:
    """The same with pairs of blocks, where the target has them and nobody chose."""
    able = {Feature.CLUSTER, Feature.MULTICAST, Feature.WGMMA} <= target.features
    if not able or target.schedule.cluster != "auto":
        return []
    return [replace(each, cluster=PAIR) for each in found if each.cluster == 1]


Steps = Callable[[Candidate], tuple[str, int] | None]


def steps_of(
    builder: Builder, kernel: int, target: Target, chosen: Candidate
) -> tuple[str, int] | None:
    """The only loop over K, and its steps, which blocks may share."""
    deep = [sides[2] for number, sides, _ in builder.products if number == kernel]
    loops = {builder.axes.get(axis.key): builder.lengths.get(axis.key) for axis in deep}
    if Feature.CLUSTER not in target.features or target.schedule.cluster != "auto":
        return None
    (loop, length), *others = loops.items()
    if loop is None or length is None or others:
        return None
    size = dict(chosen.tiles).get(loop[1], length)
    return loop[1], -(-length // size)


def shared(found: Iterable[Candidate], steps: Steps) -> Iterator[Candidate]:
    """The same with clusters whose blocks have some of the steps each."""
    for each in found:
        name, trips = steps(each) or ("", 1)
        able = [n for n in SHARES if trips // n >= FEWEST and -trips % n * WASTE <= trips]
        yield from (replace(each, shares=((name, n),)) for n in able)


def parted(found: Mapping[Candidate, int], steps: Steps, there: int) -> Iterator[Candidate]:
    """The same, with so many tiles each, with a grid of blocks that have some of the steps each,
    one or two for every multiprocessor that is `there`."""
    for each, tiles in found.items():
        name, trips = steps(each) or ("", 1)
        able = {min(MOST_PARTS, waves * there // tiles, trips // FEWEST) for waves in (1, 2)}
        yield from (replace(each, parts=((name, n),)) for n in sorted(able) if n > 1)


def open_numbers(builder: Builder, target: Target) -> dict[str, int]:
    """Of `T.chosen`, those that no schedule says, and what they are at most."""
    told = dict(target.schedule.tiles)
    return {name: most for name, most in builder.numbers.items() if name not in told}


def numbered(
    found: Mapping[Candidate, int], numbers: Mapping[str, int], there: int
) -> Iterator[Candidate]:
    """The same, with so many tiles each, with numbers by which each of the multiprocessors that are
    `there` has some blocks."""
    for each, tiles in found.items():
        for name, most in numbers.items():
            able = {min(most, waves * there // tiles) for waves in WAVES}
            yield from (replace(each, numbers=((name, n),)) for n in sorted(able) if n > 1)


def _threads(height: int, width: int, is_grouped: bool) -> list[int]:
    """Of tiles of so many rows and columns; of rows that are no multiple of 64 if the columns are,
    so that operands can be swapped, or if they are few."""
    if not height:
        return [WARP, 2 * WARP, WARPGROUP]
    if is_grouped and height % ROWS:
        if width % ROWS == 0:
            height = width
        elif height > ROWS:
            return []
    if not is_grouped or height < ROWS:
        return [WARPGROUP, 2 * WARPGROUP]
    groups = height // ROWS
    return [WARPGROUP * n for n in range(1, GROUPS + 1) if groups % n == 0 and groups <= 2 * n]
