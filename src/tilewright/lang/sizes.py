"""Sizes that a text leaves open: of tiles, of threads, of pieces of long rows.

Products take 64 along each side. Kernels that work row by row live by memory: blocks that hold
little and come and go stream it best. A short row is held in registers, several in a block. A
longer one lies in shared memory, where it is loaded once, and a block works on a piece of it at a
time; when it would leave room for fewer than three blocks on a multiprocessor, the blocks of a
cluster have a part of it each. A row too long for a cluster is loaded again for each pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod

from tilewright.ir.atoms import Feature
from tilewright.ir.chips import CHIPS, Chip
from tilewright.ir.expr import variables
from tilewright.ir.target import Target
from tilewright.lang.axes import Axis, Split
from tilewright.lang.builder import CHOSEN, Builder
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


@dataclass
class Sizes:
    """What is chosen for a text, by the names of axes and by kernel."""

    tiles: dict[str, int] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    splits: dict[tuple[int, str], Split] = field(default_factory=dict)


def choose_sizes(builder: Builder) -> Sizes:
    """A size for all that was left open, legal for every shape."""
    found = Sizes()
    for kernel in sorted(builder.tiled):
        rows = _rows(builder, kernel)
        if rows is not None:
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
    tile: str | None  # the loop over rows whose size is open
    is_single: bool  # a block may have one, and which one depends on the block alone


def _rows(builder: Builder, kernel: int) -> Rows | None:
    if builder.multiplied or kernel in builder.uncut:
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
    blocks = {*builder.kernels[kernel].blocks}
    rows = [i for box in mine for i in box.region.starts[:-1]]
    # as one row of all elements a tensor is counted in 32 bits
    counts = all(box.buffer.is_static and prod(box.buffer.static_shape) < 2**31 for box in mine)
    fixed = all(blocks.issuperset(variables(index)) for index in rows)
    is_single = height == 1 and counts and fixed
    column = (sum(own) or max(sizes)) * height
    return Rows(best, min(sizes), column, height, next(iter(tiles), None), is_single)


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
        if rows.tile is not None:
            found.tiles[rows.tile] = 1 << (lines.bit_length() - 1)
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
    if rows.tile is not None:
        found.tiles[rows.tile] = 1
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


def _chip(target: Target) -> Chip:
    return CHIPS.get(target.arch, CHIPS["sm_90"])
