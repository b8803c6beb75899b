"""How deep loops run ahead, and in which boxes.

**Stages** (`choose_stages`): as many slots as it takes to hide a load: what is loaded in an
iteration must be there when the iterations before have been computed. A model of the units tells
how long both take (`unit_times`); shared memory bounds it, of which results on their way to memory
need some, and, where one warpgroup computes, a second block of the multiprocessor half, if there
is one.

That is for loops whose text does not say (`T.Pipelined(n)`), and for those whose text says too few
for warpgroups that a producer feeds: they are alone on their multiprocessor, and shared memory that
they leave is nobody's. On an H200, products of 4096³ by tiles of 128×128×64, both operands with K
inside, run at 307 TFLOP/s with two slots, 560 with three, 736 with four.

Loads of pipelined loops that go to registers come by way of shared memory where the schedule says
how many stages (`stage_loads`). Without that, other blocks of the multiprocessor hide a load.

**Boxes** (`split_stages`): tiles of products cut along K, so that a product begins when its first
box is there.

    copy A -> a[:, 0:128]; copy B -> b[0:128, :]; gemm a, b -> c

becomes two copies, tiles and products each. Rings, waits and releases follow from what reads what,
as everywhere: each box has an event of its own, is waited for alone, and is free for the next
iteration while the rest is still multiplied. Two slots of two boxes then hide what takes three
whole ones. The sums are made in the same order, so no bit changes.

A tile is cut where it is loaded whole by one copy of a pipelined loop and only one product of that
loop reads it, whole. What else that multiplies (a tile loaded before the loop, registers) is read
in parts. A box is as wide as one of the widest swizzles, 128 or 64 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from tilewright.ir.gather import is_tile_load, loaded_ahead, loaded_tile
from tilewright.passes.core import *
from tilewright.passes.grid.persist_blocks import tile_count, worth_it
from tilewright.passes.layout.matrix_tiles import factors, shape_of, split_of
from tilewright.passes.overlap.prefetchable import MOST_SLOTS
from tilewright.passes.overlap.roles import placed, warpgroups, why_not, why_not_worth
from tilewright.passes.overlap.unit_times import BYTES_PER_CYCLE, LATENCY, cycles

UNSAID = -1
MOST = 6
ROOM = 2048  # bytes left for barriers, scratch and alignment
PIECE = 64  # columns of a piece of a result: 128 bytes, the widest swizzle
STAGED = 2 * 128 * PIECE * 2  # bytes for two pieces of a result
BOXES = (128, 64)  # bytes of a box along K: spans of the widest swizzles
# Boxes of a ring that hide a load. On an H200, tiles of 128×128, 4096³, TFLOP/s: three slots of 64
# columns 527, in boxes of 32 664; two of 128 columns 372, in boxes of 64 725; six of 64 772
ENOUGH = 6
FEW = 3  # slots


def planned_bytes(kernel: Kernel) -> int:
    """Shared memory that the kernel will take, rings of pipelined loops included."""
    stages: dict[str, set[int]] = {}  # loops of another depth have rings of their own
    for loop in walk_ops(kernel, For):
        for op in walk_ops(loop.body) if loop.kind == "pipelined" else ():
            if (tile := loaded_tile(op)) is not None:
                stages.setdefault(tile.name, set()).add(max(1, loop.stages))
    shared = [op.buffer for op in walk_ops(kernel, Alloc) if op.buffer.is_shared]
    return sum(b.bytes * sum(stages.get(b.name, {1})) for b in shared)


# ── stages ───────────────────────────────────────────────────────────────────────────────────


@kernel_pass
def stage_loads(at: Facts) -> Kernel:
    """Where `stages` is given, let every load of a pipelined loop go through a tile that runs
    ahead."""
    stages = at.target.schedule.stages
    if not isinstance(stages, int) or stages < 2 or at.has_roles:
        return at.kernel

    def loops(op: Op) -> Op | None:
        if not isinstance(op, For) or op.kind != "pipelined" or op.order is not None:
            return None
        return rebuild(op, body=loaded_ahead(op.body, fresh_name))

    return map_ops(at.kernel, loops)


def choose_stages(kernel: Kernel, target: Target) -> Kernel:
    """Choose the number of stages of every pipelined loop."""
    for loop in [op for op in walk_ops(kernel, For) if op.kind == "pipelined"]:
        work = _work(kernel, loop)
        choose = _stages if loop.stages == UNSAID else _deeper
        stages, why = choose(kernel, loop, work, target)
        told = target.schedule.stages
        if isinstance(told, int) and loop.order is None and work.slot:
            stages, why = told, f"{told} stages, as requested"
        if why:
            because(kernel.name, loop, why)
        kernel = _with(kernel, loop, stages)
    return kernel


def _with(kernel: Kernel, loop: For, stages: int) -> Kernel:
    def rule(op: Op) -> Op | None:
        return rebuild(op, stages=stages) if isinstance(op, For) and op.var is loop.var else None

    return map_ops(kernel, rule)


@dataclass(frozen=True)
class Work:
    """Of an iteration: the tiles that it loads, and cycles that it computes for."""

    tiles: frozenset[Buffer]
    busy: float

    @property
    def slot(self) -> int:
        return sum(tile.bytes for tile in self.tiles)

    def load(self, rate: int) -> float:
        """Cycles until a slot is filled, at `rate` bytes of a cycle."""
        return LATENCY + self.slot / rate

    def hiding(self, rate: int) -> int:
        """Slots that hide a load."""
        return ceil(self.load(rate) / max(self.busy, 1)) + 1

    @property
    def times(self) -> str:
        load = self.load(BYTES_PER_CYCLE)
        return f"a load takes {load:.0f} cycles, an iteration {self.busy:.0f}"


def _work(kernel: Kernel, loop: For) -> Work:
    tiles: set[Buffer] = set()
    products = threads = 0.0
    for op in loop.body:
        tile = loaded_tile(op)
        if tile is not None and (not isinstance(op, Copy) or op.dst.is_whole):
            tiles.add(tile)
        elif isinstance(op, Gemm):
            products += cycles(op)
        else:
            threads += cycles(op)
    # of several warpgroups one computes while another multiplies
    busy = products + threads if warpgroups(kernel) <= 1 else max(products, threads)
    return Work(frozenset(b for b in tiles if b.is_static), busy)


def _other_tiles(kernel: Kernel, work: Work) -> set[Buffer]:
    """Shared tiles that are not loaded in the loop."""
    allocs = {op.buffer for op in walk_ops(kernel, Alloc)} - work.tiles
    return {b for b in allocs if b.is_shared and b.is_static}


def _stages(kernel: Kernel, loop: For, work: Work, target: Target) -> tuple[int, str]:
    """As many as are worth it, and why."""
    if not work.slot:
        return 0, "0 stages: nothing to prefetch"
    others = sum(b.bytes for b in _other_tiles(kernel, work))
    tiles = tile_count(kernel)
    few = isinstance(tiles, Const) and int(tiles) <= target.chip.multiprocessors
    alone = warpgroups(kernel) > 1 or few
    room = target.chip.shared // (1 if alone else 2) - ROOM - others
    results = STAGED * kernel.ping_pong if any(walk_ops(loop, Gemm)) else 0
    # a second slot is worth more than a place for results
    fits = max((room - results) // work.slot, min(room // work.slot, 2), 1)
    wanted = min(max(work.hiding(BYTES_PER_CYCLE), 2), MOST)
    if target.schedule.stages in ("least", "fewest"):
        fits = min(fits, 2)
    stages = min(wanted, fits)
    said = f"{stages} stages: {work.times}"
    if fits < wanted:
        said += f"; {wanted} would hide it, {fits} of {work.slot} bytes fit"
    return stages, said


def _deeper(kernel: Kernel, loop: For, work: Work, target: Target) -> tuple[int, str]:
    """As many as the text says, or as hide a load where those cannot even if all of it comes from
    the L2 cache; and why."""
    if target.schedule.stages == "fewest" and loop.order is None and work.slot:
        return _fewer(kernel, loop, target)
    said, rate = loop.stages, target.chip.l2_bytes
    fits, _ = _stages(kernel, loop, work, target)
    advice = f"{said} stages, as the text says: {fits} would fit and hide more latency"
    kept = said, advice if 0 < said < fits else ""
    if said < 1 or loop.order is not None or not work.slot or not _fed(kernel, loop, target):
        return kept
    fast = replace(work, busy=max(work.busy, work.slot / rate))
    if fast.hiding(rate) <= said or target.schedule.stages in ("text", "least"):
        return kept
    most = min(work.hiding(BYTES_PER_CYCLE), MOST)
    trips = simplify(loop.stop - loop.start)
    if isinstance(trips, Const) and not worth_it(kernel, target)[0]:
        most = min(most, int(trips))  # no next tile whose first slots could be filled
    spare = STAGED * kernel.ping_pong + ROOM + _slots_of_threads(kernel, loop, work)
    for stages in range(most, said, -1):
        if planned_bytes(_with(kernel, loop, stages)) + spare <= target.chip.shared:
            return stages, f"{stages} stages, {said} in the text: {fast.times}"
    return kept


def _fewer(kernel: Kernel, loop: For, target: Target) -> tuple[int, str]:
    """As many as the text says, or as fit; and why."""
    said = loop.stages
    for stages in range(said, 0, -1):
        if planned_bytes(_with(kernel, loop, stages)) + ROOM <= target.chip.shared:
            room = f"a block has {target.chip.shared} bytes of shared memory"
            return stages, f"{stages} stages, {said} in the text: {room}" if stages < said else ""
    return said, ""


def _fed(kernel: Kernel, loop: For, target: Target) -> bool:
    """Whether a producer will fill the loop's rings for products of warpgroups: its block is alone
    on its multiprocessor."""
    if target.schedule.roles is False or Feature.BULK_COPY not in target.features:
        return False
    threads = kernel.thread_count
    splits = [split_of(op, threads, target) for op in walk_ops(loop.body, Gemm)]
    able = any(split is not None and split.atom == "wgmma" for split in splits)
    return able and why_not(kernel) is None and why_not_worth(kernel) is None


def _slots_of_threads(kernel: Kernel, loop: For, work: Work) -> int:
    """Bytes that more slots for tiles would take that threads fill for products."""
    read = {r.buffer for op in walk_ops(loop.body, Gemm) for r in (op.a, op.b)}
    return sum((MOST_SLOTS - 1) * b.bytes for b in _other_tiles(kernel, work) & read)


# ── boxes ────────────────────────────────────────────────────────────────────────────────────


@kernel_pass
def split_stages(at: Facts) -> Kernel:
    """Split operands along K where a ring has few slots: a copy, an event and a GEMM for each
    box."""
    kernel, told, roles = at.kernel, at.target.schedule.split_stages, at.target.schedule.roles
    if told is False or Feature.BULK_COPY not in at.target.features or placed(kernel):
        return kernel
    # where all threads fill the rings, what they gain they lose by waiting more often
    alike = roles is False or (roles == "auto" and why_not_worth(kernel) is not None)
    if told == "auto" and alike:
        return kernel
    asked = told is True
    boxes: dict[
        str, tuple[int, list[Buffer]]
    ] = {}  # of each tile that is cut: along what, into what
    counts: dict[int, int] = {}  # by id of a product, its parts
    for loop in walk_ops(kernel, For):
        wanted = asked or (loop.stages < ENOUGH and _only_multiplies(loop))
        if loop.kind != "pipelined" or loop.stages < 1 or not wanted:
            continue
        loaded = _loaded(kernel, loop)
        for op in loop.body:
            if not isinstance(op, Gemm) or id(op) in counts:
                continue
            cut = {r.buffer: dim for _, r, dim in factors(op) if r.buffer.name in loaded}
            count = _count(op, loop.stages, asked)
            alone = all(_reads_alone(op, loop, *each) for each in cut.items())
            if not cut or count < 2 or not alone:
                continue
            counts[id(op)] = count
            for tile, dim in cut.items():
                part = along(whole(tile), dim, const(0), int(tile.shape[dim]) // count).extents
                boxed = [fresh_name(f"{tile.name}_{k}") for k in range(count)]
                boxes[tile.name] = dim, [replace(tile, name=n, shape=part) for n in boxed]
            because(kernel.name, loop, f"{count} boxes per tile, each with its own event")

    def part_of(region: Region, dim: int, size: int, k: int) -> Region:
        """A box where the tile has some, or so much of a region along `dim`."""
        if region.buffer.name in boxes:
            return whole(boxes[region.buffer.name][1][k])
        return along(region, dim, const(k * size), size)

    def rule(op: Op) -> Body | None:
        match op:
            case Alloc() if op.buffer.name in boxes:
                return tuple(rebuild(op, buffer=box) for box in boxes[op.buffer.name][1])
            case Copy() if op.dst.buffer.name in boxes:
                dim, parts = boxes[op.dst.buffer.name]
                cut = partial(part_of, dim=dim, size=int(parts[0].shape[dim]))
                each = range(len(parts))
                return tuple(rebuild(op, src=cut(op.src, k=k), dst=cut(op.dst, k=k)) for k in each)
            case Gemm() if id(op) in counts:
                count = counts[id(op)]
                depth = shape_of(op)[2] // count
                a, b = (partial(part_of, r, dim, depth) for _, r, dim in factors(op))
                clear = (op.clear, *(FALSE,) * (count - 1))
                return tuple(rebuild(op, a=a(k), b=b(k), clear=clear[k]) for k in range(count))
        return None

    return map_ops(kernel, rule)


def _loaded(kernel: Kernel, loop: For) -> set[str]:
    """Tiles that one copy of the loop's own body loads whole, and nobody touches outside."""
    told = {op.buffer.name for op in walk_ops(kernel, Alloc) if op.buffer.layout is not None}
    told |= {op.buffer.name for op in walk_ops(kernel, Hint) if op.buffer is not None}
    outside = used_outside(kernel.body, {loop.var}) | aliases(kernel).viewed | told
    written = [b.name for op in walk_ops(loop.body) for b in written_buffers(op)]
    copies = [op.dst for op in loop.body if is_tile_load(op) and op.atom is op.prefer is None]
    tiles = {dst.buffer for dst in copies if dst.is_whole and dst.buffer.is_static}
    return {b.name for b in tiles if b.rank == 2 and written.count(b.name) == 1} - outside


def _reads_alone(product: Gemm, loop: For, tile: Buffer, dim: int) -> bool:
    """Whether nothing in the loop reads the tile but this product, all of it, along `dim`."""
    readers = [op for op in walk_ops(loop.body) if tile in read_buffers(op)]
    whole_of = [d for _, r, d in factors(product) if r.buffer is tile and r.is_whole]
    return readers == [product] and whole_of == [dim]


def _only_multiplies(loop: For) -> bool:
    """Whether a loop loads for one product and does nothing else. What threads compute runs under
    the product before, which they would wait for half done."""
    work = [op for op in loop.body if not isinstance(op, (Let, Hint, Alloc))]
    loads = [op for op in work if isinstance(op, Copy) and op.src.buffer.is_global]
    return len(work) == len(loads) + 1 and any(isinstance(op, Gemm) for op in work)


def _count(op: Gemm, stages: int, asked: bool) -> int:
    """Boxes of a product's K, no more than it takes; 1 where it is not cut."""
    if op.meta is not None or op.atom is not None or not (_is_matrix(op.a) and _is_matrix(op.b)):
        return 1
    k, bits = shape_of(op)[2], max(op.a.dtype.bits, op.b.dtype.bits)
    # rows of 64 bytes are slow to load: worth it for one operand, not for both
    narrow = asked or (stages <= FEW and sum(dim for *_, dim in factors(op)) < 2)
    sizes = BOXES if narrow else BOXES[:1]
    counts = [k * bits // (8 * size) for size in sizes if k * bits % (8 * size) == 0]
    enough = [n for n in counts if n > 1 and stages * n >= ENOUGH]
    return enough[0] if enough else max(counts, default=1)


def _is_matrix(region: Region) -> bool:
    return region.buffer.rank == 2 and all(
        isinstance(e, Const) and int(e) > 1 for e in region.extents
    )
