"""Sizes that a text leaves open: of tiles, of threads, of pieces of long rows.

Products take 64 along each side. Kernels that work row by row live by memory: blocks that hold
little and come and go stream it best. A short row is held in registers, several in a block. A
longer one lies in shared memory, where it is loaded once, and a block works on a piece of it at a
time; when it would leave room for fewer than three blocks on a multiprocessor, the blocks of a
cluster have a part of it each. A row too long for a cluster is loaded again for each pass.

Scans, and reductions along columns, live by memory too. A block has a long row or several short
ones, or columns that make up whole lines of memory; it goes along them step by step, and holds a
step in registers. Columns are loaded some steps ahead, where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, gcd, log2, prod
from typing import Any, TypeAlias

from tilewright.ir.atoms import MATRIX_TYPES, Feature
from tilewright.ir.chips import CHIPS, Chip
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.lang.axes import Axis, Split
from tilewright.lang.builder import CHOSEN, Builder, Sizes, TileLoop
from tilewright.support.errors import suggest

# the program at other sizes; of one kernel, where its number is given, others as they were before
Traced: TypeAlias = Callable[[Sizes, "int | None"], Program]

MATRIX = 64  # along each side of a matrix product
ROWS, COLUMNS, DEPTH = 16, 8, 256  # of an `mma`, of which DEPTH is in bits
ELEMENTS = 4096  # of the largest value that a block keeps
LONGEST = 1024  # elements of a tile along an axis
RUN = 256  # elements that lie side by side, before other axes have some
VECTOR = 16  # bytes of the widest access
SHORT = 4096  # bytes of a row up to which a block holds several in registers
HELD = 64  # bytes of rows that a thread holds in registers
SLOTS = 512  # bytes of a block for what warps and blocks tell each other
RESIDENT = 3  # blocks of a multiprocessor that hide each other's latencies
KEPT = 3  # values of a plain scan: what is loaded, it in a wider type, the result
LINE, SECTOR = 128, 32  # bytes of memory that a warp loads at once, and that move together
WIDE = 1024  # bytes of a line of columns at most
STAGE, STAGES = 16384, 6  # bytes that are loaded ahead at once, and how often at most
FEWEST = 4  # warps of a block
MOST_SCANNED = 32768  # elements of a line that the registers of a block hold
REDUCED = 2  # arrays that a step of a reduction has: what is loaded, what is kept of it
UNKNOWN = 1 << 20  # lines, or elements of one, where nothing says how many


def choose_sizes(builder: Builder) -> Sizes:
    """A size for all that was left open, legal for every shape."""
    found = Sizes(joined=builder.sizes.joined)
    for kernel in sorted(builder.tiled):
        lines, rows = _lines(builder, kernel), _rows(builder, kernel)
        if lines is not None:
            _choose_lines(builder, kernel, lines, found)
        elif rows is not None:
            _choose_rows(builder, kernel, rows, found)
    _fill_products(builder, found)
    found.tiles = {**_tile_sizes(builder), **found.tiles}
    return found


def beside_products(sizes: Sizes, builder: Builder) -> Sizes:
    """`sizes` of kernels that multiply, and for the others what suits `builder`, a first trace with
    the numbers that were chosen."""
    said = ("numbers", "joined", "is_rest")
    found: dict[str, Any] = {f.name: {} for f in fields(Sizes) if f.name not in said}
    others = choose_sizes(builder)
    for each in found:
        for one, multiplies in ((sizes, True), (others, False)):
            for at, value in getattr(one, each).items():
                if _multiplies(builder, at[0] if isinstance(at, tuple) else at) is multiplies:
                    found[each][at] = value
    return replace(sizes, **found)


def check_chosen(builder: Builder) -> None:
    """A schedule names loop variables and whole dimensions of the text."""
    whole = [name for _, name in builder.extents]
    over = (name for _, name in (*builder.axes.values(), *builder.open_tiles))
    known = list(dict.fromkeys([*over, *whole, *builder.numbers]))
    for name in dict(CHOSEN.get().schedule.tiles):
        if known and name not in known:
            fix, _ = suggest(name, known, "name the variable of a loop over tiles")
            raise CompileError(
                f"the schedule has a size for {name!r}, and no loop over tiles has that variable",
                expected=" or ".join(known),
                fix=fix,
                code="target",
            )


def _tile_sizes(builder: Builder) -> dict[TileLoop, int]:
    """64 along the sides of matrix products; otherwise as many as keep the values of a block within
    4096 elements, more along axes where elements of a tensor are neighbours."""
    multiplied = {builder.axes[key] for key in builder.multiplied if key in builder.axes}
    chosen = {loop: MATRIX for loop in builder.open_tiles if loop in multiplied}
    found = dict.fromkeys(builder.open_tiles.keys() - multiplied, LONGEST)
    for axes in builder.footprints:
        mine = {loop: a for a in axes if (loop := builder.axes.get(a.key)) in found}
        others = [a for a in axes if builder.axes.get(a.key) not in mine]
        fixed = prod(chosen.get(builder.axes.get(a.key, (-1, "")), a.size) for a in others)
        for loop, size in _shares(builder, mine, max(1, ELEMENTS // fixed)).items():
            found[loop] = min(found[loop], size)
    return chosen | found


def _shares(builder: Builder, axes: dict[Any, Axis], room: int) -> dict[TileLoop, int]:
    """Sizes that multiply to `room` at most: runs of memory first, then the others, then longer
    runs. A run that is alone is no longer than it must be: the others get what its end leaves."""
    most = {
        loop: 1 << (builder.lengths.get(a.key, LONGEST) - 1).bit_length()
        for loop, a in axes.items()
    }
    ranks = {loop: builder.lasts.get(a.key, 0) for loop, a in axes.items()}
    dims = max([1, *ranks.values()])  # what has fewer has few elements
    runs = [loop for loop, rank in ranks.items() if rank == dims]
    finest = [loop for loop in runs if axes[loop].key in builder.finest]
    if all(builder.lengths.get(axes[loop].key, UNKNOWN) <= RUN for loop in finest):
        runs = finest or runs  # a tile has whole rows
    others = [loop for loop in axes if loop not in runs]
    long = [loop for loop in runs if most[loop] > VECTOR]  # several are transposed: whole matrices
    alone = long if len(long) == 1 and CHOSEN.get().kind != "cpu" else []
    found = dict.fromkeys(axes, 1)
    for loops, limit in ((runs, RUN if others else LONGEST), (others, LONGEST), (runs, LONGEST)):
        for at, loop in enumerate(sorted(loops, key=lambda loop: most[loop])):
            left = room // prod(found.values())
            share = int((left + 0.5) ** (1 / (len(loops) - at)))
            found[loop] *= _power(
                max(1, min(share, limit // found[loop], most[loop] // found[loop]))
            )
        for loop, a in axes.items():
            if loop in alone and loop in loops and a.key in builder.lengths:
                found[loop] = _fitted(builder.lengths[a.key], found[loop])
    return found


def _fitted(length: int, size: int) -> int:
    """At most `size` elements of a run, so that little lies past its end: all of it, or even parts
    for whole warps.

    >>> [_fitted(n, 256) for n in (129, 256, 513, 1024)]
    [129, 256, 192, 256]
    """
    parts = ceil(length / size)
    return min(size, length if parts == 1 else ceil(ceil(length / parts) / WARP) * WARP)


def _fill_products(builder: Builder, found: Sizes) -> None:
    """Whole dimensions that tensor cores multiply have as many places as instructions do."""
    target = CHOSEN.get()
    for kernel, sides, kind in builder.products:
        if target.kind == "cpu" or kind.name not in MATRIX_TYPES or kernel in builder.uncut:
            continue
        for axis, step in zip(sides, (ROWS, COLUMNS, DEPTH // kind.bits), strict=True):
            at = kernel, axis.name
            if axis.key in builder.axes or at not in builder.extents:
                continue
            size = max(-(-axis.size // step) * step, found.splits.get(at, Split(0)).part)
            if size != axis.size:
                found.splits[at] = Split(size)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Rows:
    """The longest whole dimension of a kernel, and the bytes that a block loads of it: an element's
    in the narrowest type, and a column's in all."""

    axis: Axis
    narrowest: int
    column: int
    height: int  # of what a block has at least
    tiles: dict[TileLoop, int]  # the loops over rows whose sizes are open, and their lengths
    is_run: bool  # its elements are neighbours
    is_written: bool  # one of the tensors: then no block reads what another one has
    is_single: bool  # a block may have one, and which one depends on the block alone


def _rows(builder: Builder, kernel: int) -> Rows | None:
    scans = any(number == kernel for number, *_ in builder.scanned)
    if _multiplies(builder, kernel) or kernel in builder.uncut or scans:
        return None
    axes = [axis for (number, _), axis in builder.extents.items() if number == kernel]
    boxes = [box for number, box in builder.reads_of if number == kernel and box.region is not None]
    best = max(axes, key=lambda axis: axis.size, default=None)
    if best is None:
        return None
    keys = [[axis.key for axis in box.axes] for box in boxes]
    mine = [box for box, own in zip(boxes, keys, strict=True) if best.key in own]
    if not mine or any(own.count(best.key) > 1 for own in keys):
        return None
    bytes_of = {box.buffer: ceil(box.buffer.dtype.bits / 8) for box in mine}
    sizes = bytes_of.values()
    own = [bytes_of[buffer] for buffer in {box.buffer for box in mine if len(box.keys) > 1}]
    others = {a.key: a for box in mine for a in box.axes if a.key != best.key and a.size != 1}
    tiles = {
        builder.axes[key]: builder.lengths.get(key, UNKNOWN)
        for key in others
        if builder.axes.get(key) in builder.open_tiles
    }
    height = prod(a.size for key, a in others.items() if builder.axes.get(key) not in tiles)
    is_single = height == 1 and _is_counted(builder, kernel, mine, best.size)
    column = (sum(own) or max(sizes)) * height
    is_run = best.key in builder.lasts
    is_written = any(builder.writes(box.buffer) for box in mine)
    return Rows(best, min(sizes), column, height, tiles, is_run, is_written, is_single)


def _multiplies(builder: Builder, kernel: int) -> bool:
    return any(number == kernel for number, *_ in builder.products)


def _is_counted(builder: Builder, kernel: int, boxes: Sequence[Any], total: int) -> bool:
    """Whether the block alone says which rows of matrices these are, whole ones of `total`
    elements, all elements of their tensors are counted in 32 bits, and none is written: a block
    that begins ahead of its row reads the end of another's."""
    blocks = {*builder.kernels[kernel].blocks}
    shapes = [b.static_shape if (b := box.buffer).is_static else (2**31,) for box in boxes]
    rows = [index for box in boxes for index in box.region.starts[:-1]]
    whole = [shape[-1] == total for shape in shapes if len(shape) > 1]
    counts = all(prod(shape) < 2**31 for shape in shapes)
    counts = counts and not any(builder.writes(box.buffer) for box in boxes)
    return counts and any(whole) and all(whole) and all(blocks >= variables(i) for i in rows)


def _choose_rows(builder: Builder, kernel: int, rows: Rows, found: Sizes) -> None:
    target = CHOSEN.get()
    chosen = target.schedule
    name, total = rows.axis.name, rows.axis.size
    pinned = dict(chosen.tiles).get(name)
    vector, width = VECTOR // rows.narrowest, rows.narrowest * total
    shifts = rows.is_single and target.kind != "cpu" and target.internal.rows != "any"
    short = _short(width) if shifts else SHORT
    if target.kind == "cpu" and pinned is None:
        return
    if pinned is None and width <= short and chosen.cluster in ("auto", 1):
        if not rows.is_run:
            return
        part, threads = _rounded(total, vector), 256
        lines = max(1, HELD * threads // (part * rows.column))
        for loop, length in reversed(rows.tiles.items()):
            found.tiles[loop] = _power(min(lines, 2 * length - 1))
            lines = max(1, lines // found.tiles[loop])
        found.threads[kernel] = threads
        if part != total:
            found.splits[kernel, name] = Split(part)
        return
    chip = _chip(target)
    room = chip.shared_per_sm // RESIDENT - chip.reserved
    divisible = kernel not in builder.undivided and Feature.CLUSTER in target.features
    told = {buffer for number, buffer in builder.told if number == kernel}  # by one block of them
    reading = [op for op in walk_ops(builder.kernels[kernel]) if not isinstance(op, Atomic)]
    divisible = divisible and not any(told & {*read_buffers(op)} for op in reading)
    most = chip.cluster if divisible else 1
    blocks = 1 if chosen.cluster == "auto" else min(chosen.cluster, most)
    while True:
        threads = _threads(ceil(total / blocks) * rows.height // vector, chosen.threads)
        step = pinned or threads * vector
        if rows.height > 1 and not pinned:
            step = max(vector, _power(step // rows.height))
        part, align = _part(total, blocks, step, rows.narrowest, shifts)
        if rows.is_written and blocks > 1:
            part = ceil(part / step) * step
        held = ceil(part / step) * step * rows.column + SLOTS
        if held <= room or blocks == most or chosen.cluster != "auto":
            break
        blocks *= 2
    found.tiles |= dict.fromkeys(rows.tiles, 1)
    found.threads[kernel] = threads
    split = Split(part, step if step < part or align > 1 else 0, blocks, True, align)
    if not split.step and blocks == 1:
        split = split._replace(part=max(part, step))
    keeps = split.size * rows.column <= chip.shared - 4096
    found.splits[kernel, name] = split._replace(keeps=keeps)


def _short(width: int) -> int:
    """Bytes of a row up to which a block holds several in registers: fewer where its loads are of 4
    bytes or less, and a longer row is brought to a vector's begin."""
    return min(SHORT, 2 * SHORT * gcd(width, VECTOR) // VECTOR)


def _part(total: int, blocks: int, step: int, narrowest: int, shifts: bool) -> tuple[int, int]:
    """The places of a block and `Split.align`, so that blocks begin on lines of memory; on less
    than a line where the last block would have fewer whole steps than the others."""
    for size in (LINE, LINE // 2, SECTOR, VECTOR):
        part, unit = total, size // narrowest
        align = unit if shifts and total % unit else 1
        if blocks > 1 or align > 1:
            part = ceil((total + align - 1) / blocks / unit) * unit
        if (total - (blocks - 1) * part) // step == part // step:
            break
    return part, align


def _threads(vectors: int, chosen: int | str) -> int:
    """A thread has at most 10 vectors of a row by 128 threads."""
    return chosen if isinstance(chosen, int) else 128 if vectors <= 1280 else 256


def _rounded(total: int, vector: int) -> int:
    """At least `total`, so that a power of two of threads has as many vectors each."""
    lanes = 1
    while lanes < 32 and lanes * vector < total:
        lanes *= 2
    return ceil(total / (lanes * vector)) * lanes * vector


# ── scans ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Lines:
    """What a kernel scans, or reduces along columns: a value along an axis; `across` is the axis of
    rows, or the one along which columns lie side by side in memory. Bytes of elements: the least,
    the most, and those of all tensors."""

    along: Axis
    others: tuple[Axis, ...]
    across: Axis | None
    by_rows: bool
    narrowest: int
    widest: int
    column: int
    arrays: int  # that a step has, of scans by a function twice as many
    is_single: bool  # which row it is depends on the block alone, where there is one
    matrices: int  # that blocks count besides, by `T.each`
    is_written: bool  # one of the tensors: then nothing of it is loaded ahead
    is_folded: bool  # nothing is scanned or stored along it


@dataclass(frozen=True)
class Form:
    """Threads of a block, its lines along `across`, the elements of a step, `Split.align`, the
    blocks of a multiprocessor that have to be there at once, and the steps that are loaded ahead
    (0: other blocks hide a load)."""

    threads: int
    width: int
    step: int
    align: int = 1
    blocks: int = 1
    stages: int = 0


def _lines(builder: Builder, kernel: int) -> Lines | None:
    boxes = [box for number, box in builder.reads_of if number == kernel and box.region is not None]
    scans = [scan for scan in builder.scanned if scan[0] == kernel]
    scans = scans or _columns(builder, kernel, boxes)
    if _multiplies(builder, kernel) or not scans:
        return None
    _, axes, along, _ = max(scans, key=lambda scan: len(scan[1]))
    boxes = [box for box in boxes if [a.key for a in box.axes].count(along.key) == 1]
    bytes_of = {box.buffer: ceil(box.buffer.dtype.bits / 8) for box in boxes}
    if not boxes or any(other.key != along.key for _, _, other, _ in scans):
        return None
    others = tuple(a for a in axes if a.size != 1 and a.key != along.key)
    last = max(boxes, key=lambda box: len(box.axes)).along[-1]
    by_rows = last is not None and last.key == along.key
    tiles = [a for a in others if builder.axes.get(a.key) in builder.open_tiles]
    beside = [a for a in others if last is not None and a.key == last.key]
    across = next(iter(tiles[::-1] if by_rows else beside), None)
    least, most, column = min(bytes_of.values()), max(bytes_of.values()), sum(bytes_of.values())
    known = {along.key, *(a.key for a in others)}
    single = all(a.key in known or a.size == 1 for box in boxes for a in box.axes)
    is_single = by_rows and single and _is_counted(builder, kernel, boxes, _length(builder, along))
    arrays = sum(scan[3] for scan in scans)
    pairs = [each for box in boxes for each in zip(box.region.starts, box.along, strict=True)]
    counted = {var for start, axis in pairs if axis is None for var in variables(start)}
    grid = zip(builder.kernels[kernel].blocks, builder.kernels[kernel].grid, strict=True)
    each = prod(int(n.value) for var, n in grid if var in counted and isinstance(n, Const))
    is_written = any(builder.writes(box.buffer) for box in boxes)
    kept = any(number == kernel for number, *_ in builder.scanned)
    is_folded = not kept and (kernel, along.key) not in _stored(builder)
    return Lines(
        along, others, across, by_rows, least, most, column, arrays, is_single, each, is_written,
        is_folded,
    )  # fmt: skip


def _columns(builder: Builder, kernel: int, boxes: Sequence[Any]) -> list[Any]:
    """What a kernel without scans does along the longest whole dimension, as `Builder.scanned` has
    it, where another one lies side by side in memory."""
    axes = [axis for (number, _), axis in builder.extents.items() if number == kernel]
    best = max(axes, key=lambda axis: axis.size, default=None)
    mine = [box for box in boxes if best is not None and best.key in [a.key for a in box.axes]]
    if best is None or not mine or kernel in builder.uncut:
        return []
    lasts = [box.along[-1] for box in mine if len(box.along) > 1]
    if not lasts or any(
        a is None or builder.axes.get(a.key) not in builder.open_tiles for a in lasts
    ):
        return []
    widest = max(ceil(box.buffer.dtype.bits / 8) for box in mine)
    # a block holds whole columns; two sectors of each where it would load them for several passes
    line = LINE // 2 if (kernel, best.key) in _stored(builder) else LINE
    if best.size * line // widest <= ELEMENTS:
        return []
    return [(kernel, max(mine, key=lambda box: len(box.axes)).axes, best, REDUCED)]


def _choose_lines(builder: Builder, kernel: int, lines: Lines, found: Sizes) -> None:
    target, along = CHOSEN.get(), lines.along
    loop = builder.axes.get(along.key, (kernel, along.name))
    values = [*builder.footprints, *(b.axes for number, b in builder.reads_of if number == kernel)]
    twice = any([a.key for a in axes].count(along.key) > 1 for axes in values)
    is_whole = along.key not in builder.axes and kernel not in builder.uncut and not twice
    total = _length(builder, along)
    if target.kind == "cpu":
        if is_whole and total > MOST_SCANNED:
            found.splits[loop] = Split(total, ELEMENTS, keeps=False)
        return
    if not is_whole and loop not in builder.open_tiles:
        return
    open_ones = [a.key for a in lines.others if builder.axes.get(a.key) in builder.open_tiles]
    tiles = {key: builder.axes[key] for key in open_ones}
    fixed = prod(a.size for a in lines.others if a.key not in tiles)  # lines of a block
    count = lines.matrices * prod(_length(builder, a) for a in lines.others)
    if variables(along.start) & {*builder.kernels[kernel].blocks}:  # a block has a part of a line
        count = UNKNOWN
    chip, most = _chip(target), _chip(target).threads_per_sm // 2
    form = (_row_form if lines.by_rows else _column_form)(builder, lines, total, count, fixed, most)
    pinned = dict(target.schedule.tiles).get(loop[1])
    if is_whole and pinned is not None:
        form = replace(form, step=max(2, pinned))
    for key, tile in tiles.items():
        found.tiles[tile] = form.width if lines.across and key == lines.across.key else 1
    found.threads[kernel] = form.threads
    kept = sum(along.key in {a.key for a in axes} for axes in builder.footprints)
    if form.blocks > 1 and lines.arrays == 1 and kept <= KEPT:
        found.blocks[kernel] = form.blocks
    if form.stages:
        found.stages[loop] = form.stages
    if not is_whole:
        found.tiles[loop] = form.step
        if form.align > 1:
            found.aligns[loop] = form.align
    elif form.align > 1 or form.step < total:
        part = ceil((total + form.align - 1) / form.align) * form.align
        keeps = part * lines.column * fixed * form.width <= chip.shared - 4096
        found.splits[loop] = Split(part, form.step, 1, keeps, form.align)
    elif form.step > total and lines.by_rows:
        found.splits[loop] = Split(form.step)


def _row_form(
    builder: Builder, lines: Lines, total: int, count: int, fixed: int, most: int
) -> Form:
    """A row in each warp, or a longer one in a block: its threads have loads of 64 bytes each under
    way. Few rows take more of the threads of a multiprocessor each."""
    target = CHOSEN.get()
    pinned, chip = target.schedule.threads, _chip(target)
    vector = VECTOR // lines.narrowest
    shifts = lines.is_single and fixed == 1 and target.internal.rows != "any"
    if total * lines.column <= (_short(lines.narrowest * total) if shifts else SHORT):
        threads = pinned if isinstance(pinned, int) else FEWEST * WARP
        step = _rounded(total, vector)
        rows = max(threads // WARP, threads * _held(lines, threads) // step) // fixed
        return Form(threads, _power(rows), step)
    room = max(2 * FEWEST * WARP, most // ceil(count / chip.multiprocessors))
    threads = min(_power(total * fixed * lines.column // HELD), _power(room))
    threads = pinned if isinstance(pinned, int) else max(FEWEST * WARP, threads)
    one = max(threads // fixed, 1) * min(vector, 2 * VECTOR // lines.widest)
    align = LINE // lines.narrowest if shifts and lines.narrowest * total % LINE else 1
    total += align - 1
    held = threads * _held(lines, threads) // fixed
    forms = [one * k for k in range(1, 1 + max(1, held * 5 // 4 // one))]
    # a step takes as long as loading half of it, besides
    step = min(forms, key=lambda step: (ceil(total / step) * (step + held // 2), -step))
    taken = 20 * threads + step * fixed * (1 + lines.column / 4)  # registers
    blocks = max(1, int(chip.registers // taken)) if pinned == "auto" else 1
    return Form(threads, 1, step, align, blocks)


def _column_form(
    builder: Builder, lines: Lines, total: int, count: int, fixed: int, most: int
) -> Form:
    """Long lines whose loads run ahead. Where too few blocks would have some: lines of 128 bytes;
    shorter ones where not every multiprocessor would have a block, longer ones where blocks would
    have to wait for others, which go on until the end."""
    chip, pinned = _chip(CHOSEN.get()), CHOSEN.get().schedule.threads
    width, length = 1, 1
    if lines.across is not None and builder.axes.get(lines.across.key) in builder.open_tiles:
        width, length = LINE // lines.widest, _length(builder, lines.across)
    others, resident = max(1, count // length // fixed), most // WARP // FEWEST
    along = (lines.along, *lines.others)
    named = {builder.axes.get(a.key, (0, a.name))[1] for a in along}
    is_free = width > 1 and not named & dict(CHOSEN.get().schedule.tiles).keys()
    # loads of 4 and 8 bytes, in one pass: other blocks hide them better than a ring does
    rough = is_free and lines.is_folded and length * lines.narrowest % VECTOR != 0
    ring = _ring_form(lines, total, length, others, fixed) if is_free and not rough else None
    if ring is not None:
        return ring
    if rough:
        width = _power(WIDE // (lines.widest * fixed))
        enough = 2 * chip.multiprocessors
        while width * lines.widest > LINE and ceil(length / width) * others < enough:
            width //= 2
    while ceil(length / width) * others > resident * chip.multiprocessors and width < length:
        if width * fixed * lines.widest >= WIDE:
            break
        width *= 2
    while (size := width * lines.widest) > VECTOR:
        least = (1.5 if size > SECTOR else 0.75) * chip.multiprocessors
        if ceil(length / width) * others >= least:
            break
        width //= 2
    blocks = ceil(ceil(length / width) * others / chip.multiprocessors)
    fewest = 2 * FEWEST if rough else FEWEST
    warps = min(max(most // WARP // blocks, fewest), most // WARP)
    if length * lines.narrowest % 4 and blocks > 1:  # loads of 2 bytes: more of them a thread
        warps = FEWEST
    threads = pinned if isinstance(pinned, int) else warps * WARP
    held = _held(lines, threads)
    if threads * held > total * width * fixed and not isinstance(pinned, int):
        threads = max(1, ceil(total * width * fixed / held / WARP)) * WARP
    fits = blocks * threads <= most and not isinstance(pinned, int)
    step, told = max(1, threads * held // (width * fixed)), CHOSEN.get().schedule.stages
    stages = told if isinstance(told, int) and told > 1 else 0
    return Form(threads, width, step, 1, blocks if fits else 1, stages)


def _ring_form(lines: Lines, total: int, length: int, others: int, fixed: int) -> Form | None:
    """Lines of 1024 bytes, shorter ones where fewer than half of the multiprocessors would have a
    block: each keeps steps of 16 KB under way. What two lines share of a sector moves twice. None
    where a thread cannot load 4 bytes at once."""
    target = CHOSEN.get()
    chip, chosen = _chip(target), target.schedule
    if chosen.threads != "auto" or chosen.stages != "auto" or length * lines.narrowest % 4:
        return None
    width = _power(WIDE // (lines.widest * fixed))
    if lines.is_written or width * lines.widest < LINE:
        return None
    while width * lines.widest > LINE and 2 * ceil(length / width) * others < chip.multiprocessors:
        width //= 2
    blocks = ceil(length / width) * others
    resident = ceil(blocks / chip.multiprocessors)
    line = width * lines.column * fixed
    step = _power(STAGE // line)
    room = min(chip.shared, chip.shared_per_sm // min(resident, RESIDENT) - 2 * chip.reserved)
    stages = min(STAGES, room // (step * line))
    if 2 * blocks < chip.multiprocessors or stages < 3 or total < stages * step:
        return None
    threads = max(FEWEST * WARP, 512 // _power(resident))
    return Form(threads, width, step, stages=stages)


def _held(lines: Lines, threads: int) -> int:
    """Elements of a thread, whose registers have them and what is made of them."""
    room = min(_chip(CHOSEN.get()).registers // threads - 20, HELD)
    return min(max(1, 1 << round(log2(HELD / lines.column))), _power(room // 2 // lines.arrays))


def _length(builder: Builder, axis: Axis) -> int:
    """Of the whole range of an axis."""
    if axis.key in builder.axes:
        return max(1, builder.lengths.get(axis.key, UNKNOWN))
    return axis.total or axis.size


def _power(n: int) -> int:
    """The largest power of two up to `n`."""
    return 1 << (max(1, n).bit_length() - 1)


def _chip(target: Target) -> Chip:
    return CHIPS.get(target.arch, CHIPS["sm_90"])


def _stored(builder: Builder) -> set[tuple[int, Any]]:
    """By kernel, the axes of what is stored."""
    return {(number, axis.key) for number, box in builder.writes_of for axis in box.axes}
