"""Sizes that a text leaves open: of tiles, of threads, of pieces of long rows.

Products take 64 along each side. Kernels that work row by row live by memory: blocks that hold
little and come and go stream it best. A short row is held in registers, several in a block. A
longer one lies in shared memory, where it is loaded once, and a block works on a piece of it at a
time; when it would leave room for fewer than three blocks on a multiprocessor, the blocks of a
cluster have a part of it each. A row too long for a cluster is loaded again for each pass.

Scans live by memory too. A block has a long row or several short ones, or columns that make up
whole lines of memory; it goes along them step by step, and holds a step in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, prod
from typing import Any

from tilewright.ir.atoms import Feature
from tilewright.ir.chips import CHIPS, Chip
from tilewright.ir.expr import variables
from tilewright.ir.target import Target
from tilewright.ir.warps import WARP
from tilewright.lang.axes import Axis, Split
from tilewright.lang.builder import CHOSEN, Builder, Sizes
from tilewright.support.errors import CompileError, suggest

MATRIX = 64  # along each side of a matrix product
ELEMENTS = 4096  # of the largest value that a block keeps
LONGEST = 1024
VECTOR = 16  # bytes of the widest access
TINY = 512  # bytes of a row below which nothing is gained by bringing it to a vector's begin
SHORT = 4096  # bytes of a row up to which a block holds several in registers
HELD = 64  # bytes of rows that a thread holds in registers
SLOTS = 512  # bytes of a block for what warps and blocks tell each other
RESIDENT = 3  # blocks of a multiprocessor that hide each other's latencies
KEPT = 3  # values of a plain scan: what is loaded, it in a wider type, the result
LINE, SECTOR = 128, 32  # bytes of memory that a warp loads at once, and that move together
FEWEST = 4  # warps of a block
MOST_SCANNED = 32768  # elements of a line that the registers of a block hold
UNKNOWN = 1 << 20  # lines, or elements of one, where nothing says how many


def choose_sizes(builder: Builder) -> Sizes:
    """A size for all that was left open, legal for every shape."""
    found = Sizes()
    for kernel in sorted(builder.tiled):
        lines, rows = _lines(builder, kernel), _rows(builder, kernel)
        if lines is not None:
            _choose_lines(builder, kernel, lines, found)
        elif rows is not None:
            _choose_rows(builder, kernel, rows, found)
    found.tiles = {**_tile_sizes(builder), **found.tiles}
    return found


def check_chosen(builder: Builder) -> None:
    """A schedule names loop variables and whole dimensions of the text."""
    whole = [name for _, name in builder.extents]
    known = list(dict.fromkeys([*builder.axes.values(), *builder.open_tiles, *whole]))
    for name in dict(CHOSEN.get().schedule.tiles):
        if known and name not in known:
            fix, _ = suggest(name, known, "name the variable of a loop over tiles")
            raise CompileError(
                f"the schedule has a size for {name!r}, and no loop over tiles has that variable",
                expected=" or ".join(known),
                fix=fix,
                code="target",
            )


def _tile_sizes(builder: Builder) -> dict[str, int]:
    """64 along the sides of matrix products; otherwise as many as keep the values of a block within
    4096 elements."""
    multiplied = {builder.axes[key] for key in builder.multiplied if key in builder.axes}
    chosen = {name: MATRIX for name in builder.open_tiles if name in multiplied}
    for name in builder.open_tiles:
        if name in chosen:
            continue
        size = LONGEST
        for axes in builder.footprints:
            mine = {builder.axes.get(a.key) for a in axes} & builder.open_tiles.keys() - multiplied
            if name not in mine:
                continue
            fixed = prod(
                chosen.get(builder.axes.get(a.key, ""), a.size)
                for a in axes
                if builder.axes.get(a.key) not in mine
            )
            room = max(1, ELEMENTS // fixed) ** (1 / len(mine))
            size = min(size, 1 << max(0, int(room).bit_length() - 1))
        chosen[name] = size
    return chosen


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Rows:
    """The longest whole dimension of a kernel, and the bytes that a block loads of it: an element's
    in the narrowest type, and a column's in all."""

    axis: Axis
    narrowest: int
    column: int
    height: int  # of what a block has at least
    tiles: tuple[str, ...]  # the loops over rows whose sizes are open
    is_single: bool  # a block may have one, and which one depends on the block alone


def _rows(builder: Builder, kernel: int) -> Rows | None:
    scans = any(number == kernel for number, *_ in builder.scanned)
    if builder.multiplied or kernel in builder.uncut or scans:
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
    tiles = [builder.axes[key] for key in others if builder.axes.get(key) in builder.open_tiles]
    height = prod(a.size for key, a in others.items() if builder.axes.get(key) not in tiles)
    is_single = height == 1 and _is_counted(builder, kernel, mine, best.size)
    column = (sum(own) or max(sizes)) * height
    return Rows(best, min(sizes), column, height, tuple(tiles), is_single)


def _is_counted(builder: Builder, kernel: int, boxes: Sequence[Any], total: int) -> bool:
    """Whether the block alone says which rows of matrices these are, whole ones of `total`
    elements, and all elements of their tensors are counted in 32 bits."""
    blocks = {*builder.kernels[kernel].blocks}
    shapes = [b.static_shape if (b := box.buffer).is_static else (2**31,) for box in boxes]
    rows = [index for box in boxes for index in box.region.starts[:-1]]
    whole = [shape[-1] == total for shape in shapes if len(shape) > 1]
    counts = all(prod(shape) < 2**31 for shape in shapes)
    return counts and any(whole) and all(whole) and all(blocks >= variables(i) for i in rows)


def _choose_rows(builder: Builder, kernel: int, rows: Rows, found: Sizes) -> None:
    target = CHOSEN.get()
    chosen = target.schedule
    name, total = rows.axis.name, rows.axis.size
    pinned = dict(chosen.tiles).get(name)
    vector, width = VECTOR // rows.narrowest, rows.narrowest * total
    ragged = rows.is_single and width % VECTOR != 0 and target.kind != "cpu"
    ragged = ragged and target.internal.rows != "any"
    if target.kind == "cpu" and pinned is None:
        return
    if pinned is None and width <= (TINY if ragged else SHORT) and chosen.cluster in ("auto", 1):
        part, threads = _rounded(total, vector), 256
        lines = max(1, HELD * threads // (part * rows.column))
        if rows.tiles:
            found.tiles[rows.tiles[0]] = _power(lines)
        found.threads[kernel] = threads
        if part != total:
            found.splits[kernel, name] = Split(part)
        return
    chip = _chip(target)
    room = chip.shared_per_sm // RESIDENT - chip.reserved
    divisible = kernel not in builder.undivided and Feature.CLUSTER in target.features
    align = vector if ragged else 1
    most = chip.cluster if divisible else 1
    blocks = 1 if chosen.cluster == "auto" else min(chosen.cluster, most)
    while True:
        share = ceil((total + align - 1) / blocks)
        # what the last part is short of, one thread fills with zeros
        part = ceil(share / vector) * vector if blocks > 1 or align > 1 else share
        threads = _threads(part * rows.height // vector, chosen.threads)
        step = pinned or threads * vector
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


def _threads(vectors: int, chosen: int | str) -> int:
    """Enough that a thread has 8 to 16 vectors."""
    return chosen if isinstance(chosen, int) else 128 if vectors <= 2000 else 256


def _rounded(total: int, vector: int) -> int:
    """At least `total`, so that a power of two of threads has as many vectors each."""
    lanes = 1
    while lanes < 32 and lanes * vector < total:
        lanes *= 2
    return ceil(total / (lanes * vector)) * lanes * vector


# ── scans ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Lines:
    """What a kernel scans: a value along an axis; `across` is the axis of rows, or the one along
    which columns lie side by side in memory. Bytes of elements: the least, the most, and those of
    all tensors."""

    along: Axis
    others: tuple[Axis, ...]
    across: Axis | None
    by_rows: bool
    narrowest: int
    widest: int
    column: int
    arrays: int  # that are scanned, by a function twice as many
    is_single: bool  # which row it is depends on the block alone, where there is one


@dataclass(frozen=True)
class Form:
    """Threads of a block, its lines along `across`, the elements of a step, `Split.align`, and the
    blocks of a multiprocessor that have to be there at once."""

    threads: int
    width: int
    step: int
    align: int = 1
    blocks: int = 1


def _lines(builder: Builder, kernel: int) -> Lines | None:
    scans = [scan for scan in builder.scanned if scan[0] == kernel]
    if builder.multiplied or not scans:
        return None
    _, axes, along, _ = max(scans, key=lambda scan: len(scan[1]))
    boxes = [box for number, box in builder.reads_of if number == kernel and box.region is not None]
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
    return Lines(along, others, across, by_rows, least, most, column, arrays, is_single)


def _choose_lines(builder: Builder, kernel: int, lines: Lines, found: Sizes) -> None:
    target, along = CHOSEN.get(), lines.along
    name = builder.axes.get(along.key, along.name)
    values = [*builder.footprints, *(b.axes for number, b in builder.reads_of if number == kernel)]
    twice = any([a.key for a in axes].count(along.key) > 1 for axes in values)
    is_whole = along.key not in builder.axes and kernel not in builder.uncut and not twice
    total = _length(builder, along)
    if target.kind == "cpu":
        if is_whole and total > MOST_SCANNED:
            found.splits[kernel, name] = Split(total, ELEMENTS, keeps=False)
        return
    if not is_whole and name not in builder.open_tiles:
        return
    tiles = {a.key: builder.axes.get(a.key, "") for a in lines.others}
    tiles = {key: tile for key, tile in tiles.items() if tile in builder.open_tiles}
    fixed = prod(a.size for a in lines.others if a.key not in tiles)  # lines of a block
    count = prod(_length(builder, a) for a in lines.others)
    if variables(along.start) & {*builder.kernels[kernel].blocks}:  # a block has a part of a line
        count = UNKNOWN
    chip, most = _chip(target), _chip(target).threads_per_sm // 2
    form = (_row_form if lines.by_rows else _column_form)(builder, lines, total, count, fixed, most)
    if is_whole and name in dict(target.schedule.tiles):
        form = replace(form, step=max(2, dict(target.schedule.tiles)[name]))
    for key, tile in tiles.items():
        found.tiles[tile] = form.width if lines.across and key == lines.across.key else 1
    found.threads[kernel] = form.threads
    kept = sum(along.key in {a.key for a in axes} for axes in builder.footprints)
    if form.blocks > 1 and lines.arrays == 1 and kept <= KEPT:
        found.blocks[kernel] = form.blocks
    if not is_whole:
        found.tiles[name] = form.step
        if form.align > 1:
            found.aligns[kernel, name] = form.align
    elif form.align > 1 or form.step < total:
        part = ceil((total + form.align - 1) / form.align) * form.align
        keeps = part * lines.column * fixed * form.width <= chip.shared - 4096
        found.splits[kernel, name] = Split(part, form.step, 1, keeps, form.align)
    elif form.step > total and lines.by_rows:
        found.splits[kernel, name] = Split(form.step)


def _row_form(
    builder: Builder, lines: Lines, total: int, count: int, fixed: int, most: int
) -> Form:
    """A row in each warp, or a longer one in a block: its threads have loads of 64 bytes each under
    way. Few rows take more of the threads of a multiprocessor each."""
    target = CHOSEN.get()
    pinned, chip = target.schedule.threads, _chip(target)
    vector = VECTOR // lines.narrowest
    ragged = lines.is_single and fixed == 1 and lines.narrowest * total % VECTOR != 0
    ragged = ragged and target.internal.rows != "any"
    if total * lines.column <= (TINY if ragged else SHORT):
        threads = pinned if isinstance(pinned, int) else FEWEST * WARP
        step = _rounded(total, vector)
        rows = max(threads // WARP, threads * _held(lines, threads) // step) // fixed
        return Form(threads, _power(rows), step)
    room = max(2 * FEWEST * WARP, most // ceil(count / chip.multiprocessors))
    threads = min(_power(total * fixed * lines.column // HELD), _power(room))
    threads = pinned if isinstance(pinned, int) else max(FEWEST * WARP, threads)
    one = max(threads // fixed, 1) * min(vector, 2 * VECTOR // lines.widest)
    total += (vector - 1) * ragged
    held = threads * _held(lines, threads) // fixed
    forms = [one * k for k in range(1, 1 + max(1, held * 5 // 4 // one))]
    # a step takes as long as loading half of it, besides
    step = min(forms, key=lambda step: (ceil(total / step) * (step + held // 2), -step))
    taken = 20 * threads + step * fixed * (1 + lines.column / 4)  # registers
    blocks = max(1, int(chip.registers // taken)) if pinned == "auto" else 1
    return Form(threads, 1, step, vector if ragged else 1, blocks)


def _column_form(
    builder: Builder, lines: Lines, total: int, count: int, fixed: int, most: int
) -> Form:
    """Lines of 128 bytes: shorter ones where not every multiprocessor would have a block, longer
    ones where blocks would have to wait for others, which go on until the end."""
    chip, pinned = _chip(CHOSEN.get()), CHOSEN.get().schedule.threads
    width, length = 1, 1
    if lines.across is not None and builder.axes.get(lines.across.key) in builder.open_tiles:
        width, length = LINE // lines.widest, _length(builder, lines.across)
    others, resident = max(1, count // length), most // WARP // FEWEST
    while ceil(length / width) * others > resident * chip.multiprocessors and width < length:
        width *= 2
    while (size := width * lines.widest) > VECTOR:
        least = (1.5 if size > SECTOR else 0.75) * chip.multiprocessors
        if ceil(length / width) * others >= least:
            break
        width //= 2
    blocks = ceil(ceil(length / width) * others / chip.multiprocessors)
    warps = min(max(most // WARP // blocks, FEWEST), most // WARP)
    threads = pinned if isinstance(pinned, int) else warps * WARP
    held = _held(lines, threads)
    if threads * held > total * width * fixed and not isinstance(pinned, int):
        threads = max(1, ceil(total * width * fixed / held / WARP)) * WARP
    fits = blocks * threads <= most and not isinstance(pinned, int)
    return Form(threads, width, max(1, threads * held // (width * fixed)), 1, blocks if fits else 1)


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
