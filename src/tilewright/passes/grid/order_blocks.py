"""The order in which the tiles of a grid are taken up: what `T.use_swizzle` and `order` ask for.

Blocks are launched in order of their number, axis 0 fastest. The kernel's own indices become
functions of the number, one to one for every size of the grid; nothing else changes.

- `plain`: the number counts through the grid.
- `grouped`: in panels of rows (or columns) the number goes down the rows of a panel, then to the
  next column, turning round at the end of the grid, so that blocks which run together share rows
  and columns in the L2 cache.
- `hilbert`: the same panels in squares of 2^k by 2^k, each along a Hilbert curve that ends beside
  the next square. What is left over at the edges is walked in columns.
- `longest`: the axis that decides how long pipelined loops run is the slowest, beginning with the
  most work, so that short blocks fill the gaps at the end of the launch; in sections of the other
  axes, so that some of the blocks that run together load the same tiles.

Left to itself the pass follows the hint, or else takes `longest` where loops of blocks differ, or
else `grouped` where blocks of a row load the same tiles and blocks of a column too, as far as their
places are computed; what is looked up is taken to be the same for neighbours.
In kernels with clusters these are the orders of clusters.

The second half tells how long a grid takes when its tiles differ, by who hands them out. Lengths
are in iterations of the tiles' pipelined loops. The hardware gives the next tile to
whichever block is done first (`handed_out`), and every tile begins and ends with nobody computing.
Blocks that stay walk over tiles that are theirs from the start (`in_waves`): what ends one tile and
begins the next is hidden, but nobody helps a block that has more to do than others, or is slower.

On an H200, causal attention of 1024 to 16384 keys with heads of 64 and 128, staying against not:
1.13, 1.09, 1.03, 1.00, 0.99 and 1.13, 1.05, 1.03, 1.01, 1.00. A tile's beginning and end are then
worth 0.4 to 0.9 iterations, and even shares 1 % less than they seem.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import add, mul
from typing import Any

import numpy as np

from tilewright.ir.analysis.linear import factors
from tilewright.passes.core import *

ABOUT = "block order"
PANEL = 8  # rows of a panel that nobody asked for
SIDE = 16  # of the largest square that a Hilbert curve fills
EVEN = "all blocks run equally many iterations"
SHARING = 4  # blocks that load the same tiles at the same time
CACHED = 32 << 20  # bytes of tensors that the L2 cache keeps from one wave to the next
CLUSTER = "cluster"  # the kind of the loop over a cluster's places
MOST = 2**31  # tiles that numbers can count
MOST_KNOWN = 1 << 14  # tiles whose lengths are looked at
ENDS = 0.5  # iterations that a tile's beginning and end take
UNEVEN = 1.01  # of their shares of the work, what blocks that stay take

Lengths = np.ndarray[Any, np.dtype[np.int64]]


@kernel_pass
def order_blocks(at: Facts) -> Kernel:
    """Choose the order in which blocks take tiles of the grid: in panels that share operands in the
    L2 cache, or the longest first where the loops of blocks differ."""
    hints = [op for op in at.kernel.body if isinstance(op, Hint) and op.name == "swizzle"]
    work = _Orders(map_ops(at.kernel, lambda op: () if op in hints else None))
    lets, why = _chosen(work, hints[0] if hints else None, at.dims, at.target)
    because(at.kernel.name, ABOUT, why)
    return work.kernel if lets is None else work.renamed(lets)


def _chosen(
    work: _Orders, hint: Hint | None, dims: Iterable[Dim], target: Target
) -> tuple[list[Op] | None, str]:
    """What computes the kernel's indices, None where blocks stay in order; and why."""
    kernel, choice = work.kernel, target.schedule.order
    size, way = (int(hint.detail[0]), str(hint.detail[1])) if hint else (PANEL, "row")
    rows = "rows" if way == "row" else "columns"
    said = f"panels of {size} {rows}"
    total = prod(int(n.value) for n in kernel.grid if isinstance(n, Const))
    if not kernel.grid:
        return None, "plain: there is one block"
    if total >= MOST:
        return None, "plain: the grid is too large to number"
    if choice == "plain":
        return None, "plain, as requested"
    if choice in ("grouped", "hilbert") and len(kernel.grid) < 2:
        return None, f"plain: {choice} orders need a grid of two axes or more"
    if choice == "hilbert":
        side = hilbert_side(work.counts[:2])
        return work.hilbert(side), f"hilbert, as requested: curves in squares of {side} × {side}"
    if choice == "grouped":
        return work.grouped(size, way), f"grouped, as requested: {said}"
    if choice == "auto" and hint is not None:
        if len(kernel.grid) < 2:
            return None, "plain: panels need a grid of two axes or more"
        return work.grouped(size, way), f"grouped: T.use_swizzle asks for {said}{_line(hint)}"
    asked = ", as requested" if choice == "longest" else ""
    found = most_work(kernel, dims)
    if isinstance(found, str):
        if choice == "auto" and (shared := reloaded(kernel, dims)):
            return work.grouped(size, way), f"grouped, {said}: {shared}"
        return None, f"plain: {found}"
    axis, direction, loop = found
    more = "grows" if direction > 0 else "shrinks"
    name = kernel.blocks[axis].name
    why = f"longest first{asked}: the trip count of the loop{_line(loop)} {more} with {name}"
    wide = section_size(kernel, axis, direction, target, dims)
    if wide is not None:
        why += f"; {wide} at a time on the other axes, so that blocks share loads"
        return work.sections(axis, direction, wide), why
    if direction < 0 and axis == len(kernel.grid) - 1:
        return None, f"plain, which is {why}"
    return work.longest(axis, direction), why


def _line(op: Op) -> str:
    return f" {at_line(op.loc)}" if op.loc is not None else ""


def in_range(var: Var, extent: Expr) -> Hint:
    """What a grid index says by itself."""
    inside = binary("and", var >= 0, var < extent)
    return Hint("assume", value=inside)


# ── orders ───────────────────────────────────────────────────────────────────────────────────


class _Orders:
    """Indices of one kernel as functions of those that blocks are launched with."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        rank = len(kernel.grid)
        self.cluster = (kernel.cluster + (1,) * rank)[:rank]
        # of clusters, where there are some
        self.counts = tuple(n // c for n, c in zip(kernel.grid, self.cluster, strict=True))
        self.raw: dict[int, Var] = {}
        self.lets: list[Op] = []

    def let(self, name: str, value: Expr) -> Var:
        var = fresh_var(name, dtype=value.dtype)
        self.lets.append(Let(var, value))
        return var

    def number(self, axes: Iterable[int]) -> Var:
        """The number of the launched block (or cluster) on these axes, which get new indices."""
        axes = tuple(axes)
        for axis in axes:
            var = self.kernel.blocks[axis]
            self.raw[axis] = fresh_var(f"{var.name}_raw", dtype=var.dtype)
        raw = [self.raw[axis] // self.cluster[axis] for axis in axes]
        return self.let("number", number_in(raw, [self.counts[axis] for axis in axes]))

    def placed(self, places: dict[int, Expr]) -> list[Op]:
        """The indices of the kernel at these places, in terms of clusters."""
        for axis, place in sorted(places.items()):
            var, extent, size = self.kernel.blocks[axis], self.kernel.grid[axis], self.cluster[axis]
            index = place if size == 1 else place * size + self.raw[axis] % size
            self.lets.append(Let(var, cast(index, var.dtype)))
            self.lets.append(in_range(var, extent))
        return self.lets

    def renamed(self, lets: list[Op]) -> Kernel:
        kernel = self.kernel
        blocks = tuple(self.raw.get(axis, var) for axis, var in enumerate(kernel.blocks))
        return replace(kernel, blocks=blocks, body=(*lets, *kernel.body))

    def grouped(self, size: int, way: str) -> list[Op]:
        along, across = (0, 1) if way == "row" else (1, 0)
        length, width = self.counts[along], self.counts[across]
        panel, inside, narrow = self.panels("panel", self.number((0, 1)), size, length, width)
        step = self.let("step", inside // narrow)
        there = {across: panel * size + inside - step * narrow}
        return self.placed(there | {along: self.turned(panel, length, step)})

    def panels(self, name: str, number: Var, size: int, length: Expr, width: Expr) -> list[Var]:
        """The panel, the number in it and its width."""
        panel = self.let(name, number // (length * size))
        inside = self.let("inside", number - panel * (length * size))
        narrow = self.let("narrow", binary("min", const(size), width - panel * size))
        return [panel, inside, narrow]

    def turned(self, panel: Expr, length: Expr, step: Expr) -> Expr:
        """Every other panel is walked backwards."""
        return select(compare("!=", panel % 2, 0), length - 1 - step, step)

    def hilbert(self, side: int) -> list[Op]:
        length, width = self.counts[:2]
        panel, inside, narrow = self.panels("panel", self.number((0, 1)), side, length, width)
        square = self.let("square", inside // (narrow * side))
        rest = self.let("rest", inside - square * (narrow * side))
        wide = binary("min", const(side), length - square * side)
        column = self.let("column", rest // narrow)
        x, y = self.curve(rest, side)
        whole = self.let("whole", compare("==", wide * narrow, side * side))
        along = square * side + select(whole, x, column)
        across = panel * side + select(whole, y, rest - column * narrow)
        return self.placed({0: self.turned(panel, length, along), 1: across})

    def curve(self, number: Var, side: int) -> tuple[Expr, Expr]:
        """The place of `number` on the Hilbert curve from one corner of a square to the next one
        along: the curve of half the side, turned into each quarter, from the inside outwards."""
        x: Expr = const(0, number.dtype)
        y: Expr = const(0, number.dtype)
        for level in range(side.bit_length() - 1):
            half = 1 << level
            right = self.let("right", (number >> (2 * level + 1)) & 1)
            up = self.let("up", ((number >> (2 * level)) ^ right) & 1)
            flip = right > up
            x, y = select(flip, half - 1 - x, x), select(flip, half - 1 - y, y)
            is_up = compare("==", up, 0)
            x, y = select(is_up, y, x), select(is_up, x, y)
            x, y = self.let("x", x + right * half), self.let("y", y + up * half)
        return x, y

    def sections(self, axis: int, direction: int, size: int) -> list[Op]:
        """As `longest`, for `size` at a time of the tiles that differ on other axes."""
        others = [at for at in range(len(self.counts)) if at != axis]
        length = self.counts[axis]
        width = reduce(mul, (self.counts[other] for other in others))
        number = self.number(range(len(self.counts)))
        section, inside, narrow = self.panels("section", number, size, length, width)
        step = self.let("step", inside // narrow)
        rest = self.let("rest", section * size + inside - step * narrow)
        places = self.distributed(rest, others[:-1], others[-1])
        return self.placed({**places, axis: length - 1 - step if direction > 0 else step})

    def longest(self, axis: int, direction: int) -> list[Op]:
        # where the axis is the slowest already, the others keep the indices they are launched with
        rank = len(self.counts)
        axes = [axis] if axis == rank - 1 else range(rank)
        places = self.distributed(self.number(axes), [a for a in axes if a != axis], axis)
        if direction > 0:
            places[axis] = self.counts[axis] - 1 - places[axis]
        return self.placed(places)

    def distributed(self, number: Expr, axes: Iterable[int], last: int) -> dict[int, Expr]:
        """The places of `number` on `axes`, the first of them fastest, and on the last one."""
        places: dict[int, Expr] = {}
        for axis in axes:
            count = self.counts[axis]
            if isinstance(count, Const) and count.value == 1:
                places[axis] = const(0, number.dtype)
            else:
                places[axis] = number % count
                number = self.let("rest", number // count)
        return {**places, last: number}


def hilbert_side(counts: Sequence[Expr]) -> int:
    """The side of the squares: as many of them as can be should be whole."""
    sizes = [int(n.value) if isinstance(n, Const) else PANEL for n in counts]
    return int(1 << max(1, min(SIDE, *sizes).bit_length() - 1))


# ── where the work is ────────────────────────────────────────────────────────────────────────


def most_work(kernel: Kernel, dims: Iterable[Dim] = ()) -> tuple[int, int, For] | str:
    """The axis whose index alone decides how long pipelined loops run, 1 where that grows with it
    or -1, and a loop that does; or why there is none, in words."""
    if any(isinstance(op, For) and op.kind == "persistent" for op in walk_ops(kernel)):
        return "its blocks already loop over tiles"
    blocks = set(kernel.blocks)
    trips: list[tuple[Expr, For, Ranges]] = []
    for op, ranges in scope.walk_ranges(kernel, dims):
        if not isinstance(op, For) or op.kind != "pipelined":
            continue
        trip: Expr | None = op.stop - op.start
        for var in kernel.blocks:
            trip = ranges.resolve(trip, var) if trip is not None else None
        if trip is None:
            return f"the trip count of the loop{_line(op)} is read from memory"
        if variables(trip) & blocks:
            trips.append((trip, op, ranges))
    deciding = {v for trip, *_ in trips for v in variables(trip) & blocks}
    if not deciding:
        return EVEN
    if len(deciding) > 1:
        several = ", ".join(sorted(v.name for v in deciding))
        return f"the trip count of the loop{_line(trips[0][1])} depends on {several}"
    (var,) = deciding
    found = _together(trend(trip, var, ranges) for trip, _, ranges in trips)
    if found is None and len({op.step for _, op, _ in trips}) == 1:
        # one loop may go on where another ends
        found = trend(reduce(add, (t for t, *_ in trips)), var, trips[-1][2])
    if not found:
        at = _line(trips[0][1])
        return f"the trip count of the loop{at} neither grows nor shrinks with {var.name}"
    return kernel.blocks.index(var), found, trips[0][1]


def section_size(
    kernel: Kernel, axis: int, direction: int, target: Target, dims: Iterable[Dim] = ()
) -> int | None:
    """How many tiles of the other axes may be under way at a time for `SHARING` blocks to load the
    same: with one each, causal attention of 128 heads reads the keys of all of them from memory at
    once, and takes a fifth longer. Up to half as many, if that makes shares of blocks that stay
    more even. None where there are no more, or nothing is loaded again that the cache forgets."""
    if target.kind != "cuda" or not all(isinstance(n, Const) for n in kernel.grid):
        return None
    sizes = [int(n) for n in kernel.grid]
    width = prod(n for k, n in enumerate(sizes) if k != axis)
    most = max(1, target.chip.multiprocessors // SHARING)
    again = {copy.src.buffer for copy in shared_loads(kernel, dims, kernel.blocks[axis], True)}
    kept = all(b.is_static for b in again) and sum(b.bytes for b in again) <= CACHED
    if width <= most or kept:
        return None
    lengths = tile_lengths(kernel)
    if lengths is None:
        return -(-width // -(-width // most))
    mine = np.moveaxis(lengths.reshape(sizes[::-1]), len(sizes) - 1 - axis, 0)
    longest_first = mine.reshape(len(mine), -1)[::-direction, 0]
    blocks = blocks_of(kernel, target)

    def shares(size: int) -> float:
        sections = [size] * (width // size) + [width % size]
        return in_waves(np.concatenate([longest_first.repeat(n) for n in sections]), blocks)

    return min(range(most, most // 2, -1), key=shares)


def tensor_loads(kernel: Kernel, dims: Iterable[Dim]) -> Iterator[tuple[Copy, For, Ranges]]:
    """Copies of tensors in pipelined loops, and what is known in front of the loop."""
    for loop, ranges in scope.walk_ranges(kernel, dims):
        if isinstance(loop, For) and loop.kind == "pipelined":
            for op in loop.body:
                if isinstance(op, Copy) and op.src.buffer.is_global:
                    yield op, loop, ranges


def shared_loads(
    kernel: Kernel, dims: Iterable[Dim], var: Var, overlapping: bool = False
) -> Iterator[Copy]:
    """Copies of tensors in pipelined loops that are the same whatever `var` is; or `overlapping`:
    where it matters, it moves what the loop walks over."""
    for copy, loop, ranges in tensor_loads(kernel, dims):
        starts = copy.src.starts
        if overlapping:
            starts = tuple(s for s in starts if loop.var not in variables(s))
        found = [ranges.resolve(s, var) for s in starts]
        if all(s is not None and var not in variables(s) for s in found):
            yield copy


def reloaded(kernel: Kernel, dims: Iterable[Dim] = ()) -> str | None:
    """What pipelined loops load again and again, in rows of the grid and in columns; in words."""
    if len(kernel.grid) < 2:
        return None
    found: dict[int, str] = {}  # by the axis that does not matter
    named = let_values(walk_ops(kernel))

    def looked_up(e: Expr) -> Expr | None:
        """What is looked up (the expert of some rows, a page) is taken to be the same for
        neighbours."""
        return const(0, e.dtype) if isinstance(e, Load) else None

    for copy, loop, ranges in tensor_loads(kernel, dims):
        starts = [s for s in copy.src.starts if ranges.resolve(s, loop.var) is not None]
        asked = {v for s in starts for v in variables(transform(substitute(s, named), looked_up))}
        same = [axis for axis in (0, 1) if kernel.blocks[axis] not in asked]
        if len(same) == 1 and len(starts) == len(copy.src.starts):
            found.setdefault(same[0], copy.src.buffer.name)
    if len(found) < 2:
        return None
    return f"rows of blocks share tiles of {found[0]}, columns of {found[1]}"


def trend(expr: Expr, var: Var, ranges: Ranges) -> int | None:
    """1 where `expr` never falls as `var` grows, -1 where it never rises, 0 where it does not
    depend on it; None where nobody knows."""
    if var not in variables(expr):
        return 0
    if expr is var:
        return 1
    match expr:
        case Cast(_, a) if expr.dtype.is_int and a.dtype.is_int:
            return trend(a, var, ranges)
        case Bin("//" | ">>" as op, a, b) if var not in variables(b):
            low = bounds(b, ranges).lo  # nothing divides by 0
            return trend(a, var, ranges) if op == ">>" or low >= 0 else None
        case Bin("min" | "max", a, b):
            return _together(trend(e, var, ranges) for e in (a, b))
        case Select(cond, a, b) if var not in variables(cond):
            return _together(trend(e, var, ranges) for e in (a, b))
        case Bin("+" | "-" | "*" | "<<") | Call("neg"):
            form = linear(expr, ranges)
            if form is not None and (form.terms.keys() != {expr} or len(factors(expr)) > 1):
                found = [(_product(atom, var, ranges), c) for atom, c in form.terms.items()]
                return _together(t and (t if c > 0 else -t) for t, c in found)
    return None


def _product(atom: Expr, var: Var, ranges: Ranges) -> int | None:
    """The trend of a product, one factor of which depends on `var`."""
    parts = factors(atom)
    if len(parts) == 1 or var not in variables(atom):
        return trend(atom, var, ranges)
    if sum(var in variables(p) for p in parts) > 1:
        return None
    found = 1
    for part in parts:
        span = bounds(part, ranges)
        sign = 1 if span.lo >= 0 else -1 if span.hi <= 0 else None
        if var in variables(part):
            sign = trend(part, var, ranges)
        if sign is None:
            return None
        found *= sign
    return found


def _together(trends: Iterable[int | None]) -> int | None:
    """Of a sum: what its parts have in common."""
    found = set(trends)
    if None in found or len(found - {0}) > 1:
        return None
    return next(iter(found - {0}), 0)


# ── how long it takes ────────────────────────────────────────────────────────────────────────


def cluster_loop(kernel: Kernel) -> For | None:
    return next((op for op in walk_ops(kernel, For) if op.kind == CLUSTER), None)


def planned_cluster(kernel: Kernel) -> int:
    loop = cluster_loop(kernel)
    return 1 if loop is None else int(loop.stop)


def blocks_of(kernel: Kernel, target: Target) -> int:
    """Blocks, or clusters of them, that run at the same time: for kernels with products, whose
    registers and rings are not known yet, one per multiprocessor unless they say more; for others,
    what threads and shared memory leave room for."""
    chip, ops = target.chip, list(walk_ops(kernel))
    asked = [int(op.detail[0]) for op in ops if isinstance(op, Hint) and op.name == "min_blocks"]
    if asked or any(isinstance(op, Gemm) for op in ops):
        return max(1, chip.multiprocessors * max(asked, default=1) // planned_cluster(kernel))
    deep = max((op.stages for op in ops if isinstance(op, For)), default=1)
    shared = sum(
        op.buffer.bytes
        for op in ops
        if isinstance(op, Alloc) and op.buffer.is_shared and op.buffer.is_static
    )
    room = chip.shared_per_sm // (shared * max(1, deep) + chip.reserved)
    threads = chip.threads_per_sm // kernel.thread_count
    resident = max(1, min(chip.blocks_per_sm, threads, room))
    return max(1, chip.multiprocessors * resident // planned_cluster(kernel))


def tile_lengths(kernel: Kernel) -> Lengths | None:
    """Iterations of each of a kernel's tiles, in the order of their numbers; None where they are
    not known in advance, or too many."""
    sizes = [int(n.value) for n in kernel.grid if isinstance(n, Const)]
    total = prod(sizes)
    if len(sizes) < len(kernel.grid) or not 0 < total <= MOST_KNOWN:
        return None
    places, rest = dict[Var, Any](), np.arange(total)
    for var, size in zip(kernel.blocks, sizes, strict=True):
        rest, places[var] = np.divmod(rest, size)
    try:
        return np.broadcast_to(_iterations(kernel.body, places), (total,))
    except (CompileError, KeyError):  # read from memory, or from a register
        return None


def _iterations(body: Body, values: dict[Var, Any]) -> Any:
    """Of all pipelined loops in `body`, for arrays of values."""
    total: Any = np.int64(0)
    for op in body:
        match op:
            case Let():
                try:
                    values[op.var] = evaluate(op.value, values)
                except (CompileError, KeyError):
                    continue  # an unknown one, unless it counts, does no harm
            case For():
                inside = _iterations(op.body, values)
                each = np.maximum(inside, 1) if op.kind == "pipelined" else inside
                if np.any(each):
                    start, stop, step = (evaluate(e, values) for e in (op.start, op.stop, op.step))
                    total = total + each * np.maximum(0, -((start - stop) // step))
            case If():
                total = total + np.maximum(
                    _iterations(op.then, values), _iterations(op.orelse, values)
                )
    return total


def handed_out(lengths: Lengths, blocks: int) -> float:
    """Iterations until all tiles are done, the next one going to the first block that is free."""
    busy = [0.0] * blocks
    for length in lengths.tolist():
        heapq.heapreplace(busy, busy[0] + length + ENDS)
    return max(busy)


def in_waves(lengths: Lengths, blocks: int) -> float:
    """The same where persistent blocks take wave after wave of tiles, there and back."""
    waves = np.pad(lengths, (0, -len(lengths) % blocks)).reshape(-1, blocks)
    shares = waves[::2].sum(axis=0) + waves[1::2, ::-1].sum(axis=0)
    return UNEVEN * float(shares.max())
