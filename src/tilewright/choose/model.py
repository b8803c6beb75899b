"""How long a kernel takes, by closed formulas on its tile IR, before any pass has run.

An iteration of a pipelined loop takes as long as the busiest of three units: the tensor core, the
threads, and the memory that feeds them. The ends of a tile (its first loads, its results) add to
that, unless warpgroups with tiles of their own hide them (ping-pong). Tiles run in waves. The whole
grid takes no less than DRAM needs for what it must deliver: blocks that run at once share some of
what they load, and the L2 cache keeps it for them.

`unit_times` and `Chip` have the rates; a few constants were measured by kernels that show them.
Sizes that are known at launch only are taken as large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.ir.analysis.lifetimes import lifetimes
from tilewright.ir.analysis.lines import *
from tilewright.ir.analysis.points import at_most, evaluate
from tilewright.ir.atoms import Feature
from tilewright.ir.core import *
from tilewright.ir.gather import gather_of
from tilewright.ir.target import Target
from tilewright.passes.grid.order_blocks import CACHED
from tilewright.passes.grid.persist_blocks import asked_cluster, cluster_axis
from tilewright.passes.layout.matrix_tiles import (
    RUN,
    Split,
    fma_step,
    operand_kind,
    shape_of,
    split_of,
    swap_operands,
)
from tilewright.passes.overlap import unit_times as rates
from tilewright.passes.overlap.ping_pong import ADDRESSES, PLAIN
from tilewright.passes.overlap.roles import gathering, handed_over
from tilewright.passes.overlap.stages import MOST as STAGES
from tilewright.passes.overlap.stages import ROOM, STAGED

SAMPLES = 32  # blocks whose loops are looked at
SPREAD = 0.8191725  # along the axes of a grid, so that blocks lie on no line (Roberts' sequence)
START = 1500  # cycles of a launch, before the first load and after the last store
INSTRUCTIONS = 2  # of a load from shared memory, with its address
ASYNC = 6  # of a cp.async, with its addresses and its guard
ALONE = 25  # of an element of 2 bytes, held for an iteration: 8205×2949×5921 takes 1546 µs
REGISTERS = 255  # of a thread at most
CONTROL = 26  # of a thread, besides the results of a wgmma: what the assembler asks for
PANELS = (1, 2, 4, 8, 16, 32, 64)  # rows of tiles that run side by side

# Measured on an H200, `benchmarks/notes/choices.md` says how
MEETING = 2400  # cycles until blocks of a cluster have met and told each other: 1464×432×6312
ROLES = 1500  # cycles until a producer and its consumers are set up: attention of short rows
STEP = 150  # cycles from a product to what threads make of it and back: attention by 16 and 32 keys
EXCHANGE = 80  # cycles until warps have told each other: decoding 16 keys a warp by 1 to 4 warps
TAIL = 0.2  # tiles of the mean length at the end of a grid whose longest come first
WARPS = 0.8  # of the issue slots, what four warps fill: 16 rows by `mma`, by 128 and 256 threads
PEERS = 50  # cycles of an iteration: 4096³ by tiles of 128×128 takes 182 µs, by pairs of blocks 199
ROUND = 400  # cycles of a producer that gathers, from an iteration's end until a slot is free
PLACE, BESIDES = 3, 44  # registers of its threads, for each place they load from and else: SASS
SPILLED = 80  # cycles for each that it lacks: a load takes 50, or 300 where tiles leave no L1 cache
MULTICAST = 0.25  # of what blocks share, what the L2 cache is spared: 128×64 with GELU by 1, 2
NEIGHBOURS = 1.25  # times the L2 cache's rate, while blocks go in step and ask for the same lines
NEXT = 2000  # cycles of a kernel that follows another, and of its first loads
SUMS = 1.4  # times what DRAM takes for sums that are written and read: 1216×472×6608 by 6, 13 parts
FILLED = 1 / 8  # of the keys that a loop may read, where data end it: documents, lengths, padding

TENSOR, THREADS, MEMORY, SHARED = "tensor core", "threads", "loads", "shared memory"
ENDS, DRAM = "ends of tiles", "DRAM"


class Infeasible(Exception):
    """What does not fit, in words."""


@dataclass(frozen=True)
class Estimate:
    """Cycles of the whole grid, as many if DRAM took no time, and those for which each unit of a
    multiprocessor is busy."""

    cycles: float
    inside: float
    tiles: int
    waves: float
    units: Mapping[str, float]

    @property
    def us(self) -> float:
        return self.cycles / rates.CLOCK * 1e6

    @property
    def limit(self) -> str:
        """The unit that is busy longest."""
        return max(self.units, key=lambda name: self.units[name])


@dataclass(frozen=True)
class Moved:
    """What one op moves of a tensor in one block, all trips of the loops around it together: along
    each dimension how many elements of how many, and the block indices that say which."""

    tensor: Buffer
    elements: float
    dims: tuple[tuple[float, float, frozenset[Var]], ...]

    def bytes(self, blocks: Mapping[Var, int]) -> float:
        """Of so many blocks, what several of them move counted once."""
        many = {var: blocks[var] for *_, told in self.dims for var in told}
        sizes = (min(size, own * prod(many[var] for var in told)) for own, size, told in self.dims)
        return min(prod(sizes), self.elements * prod(many.values())) * self.tensor.dtype.bits / 8


@dataclass
class Work:
    """Of one run of a body: cycles of units, bytes that move. Numbers are of several blocks.
    `lines`: by tensor, bytes of whole lines of memory that copies take as long for."""

    tensor: Any = 0.0
    threads: Any = 0.0
    products: Any = 0.0  # of threads: a warp has enough of them to keep its part of the unit busy
    shared: Any = 0.0  # memory, which products read
    reads: Any = 0.0  # of these those by threads, which count as theirs too
    chain: Any = 0.0  # of products by a warp, one after the other
    exchanges: Any = 0.0  # of warps that share rows
    gathers: Any = 0.0  # loads of 16 bytes by threads
    meetings: Any = 0.0  # of the blocks of a cluster
    steps: Any = 0.0  # products, of which the next waits for what threads make of the last
    bytes: Any = 0.0
    lines: dict[str, Any] = field(default_factory=dict)

    def add(self, other: Work, times: Any = 1) -> None:
        for name in [each.name for each in fields(self) if each.name != "lines"]:
            setattr(self, name, getattr(self, name) + getattr(other, name) * times)
        for name, more in other.lines.items():
            self.load(name, more * times)

    def load(self, tensor: str, lines: Any) -> None:
        self.lines[tensor] = self.lines.get(tensor, 0.0) + lines


def estimate(kernel: Kernel, target: Target) -> Estimate:
    """How long `kernel` takes; `Infeasible` where a block has more than fits."""
    kernel = swap_operands(kernel, target)
    block = Block(kernel, target)
    chip, tiles = target.chip, prod(block.grid)
    size = kernel.cluster_size
    there = chip.grouped // size * size if size > 2 and chip.grouped else chip.multiprocessors
    active = min(tiles, there * block.resident)
    delivered = block.delivered(active)
    dram = delivered / (chip.dram_bytes * chip.multiprocessors)
    # of what blocks load, DRAM delivers a part, more slowly
    part = min(1.0, delivered / max(1.0, block.loaded * tiles))
    busy_ones = min(active, there)
    slow = part / (chip.dram_bytes * chip.multiprocessors) * busy_ones
    # few multiprocessors have more of the L2 cache each
    waves, rate = tiles / active, chip.l2_bytes * chip.multiprocessors / busy_ones
    rate = min(rates.SHARED_BYTES, rate * (NEIGHBOURS if waves <= 1 and not block.gathers else 1))
    # a multiprocessor has so many tiles, as many at once as fit, and then the rest
    full, rest = divmod(ceil(tiles / there), block.resident)
    cycles, units = 0.0, dict.fromkeys((TENSOR, THREADS, MEMORY, SHARED, ENDS), 0.0)
    uneven = float(np.ptp(block.trips_of)) > 0
    if uneven:  # the hardware hands out such tiles; at the end, some wait for a long one
        full, rest = 1, 0
    for together, times in ((block.resident, full), (rest, 1)):
        if not together or not times:
            continue
        tile, busy = block.tile(together, rate, slow + (1 - part) / rate)
        mean = float(np.mean(tile))
        rounds = max(waves + TAIL, float(np.max(tile)) / mean) if uneven else float(times)
        cycles += rounds * mean
        units = {name: units[name] + rounds * each for name, each in busy.items()}
    units[DRAM] = dram
    cycles += ROLES * block.is_fed
    return Estimate(max(cycles, dram) + START, cycles + START, tiles, waves, units)


def behind(first: Estimate, program: Program, target: Target) -> Estimate:
    """With a second kernel, which adds up what the first one leaves in memory when all of its
    blocks have nothing else to do."""
    moved = SUMS * sum(buffer.bytes for buffer in program.scratch)
    more = NEXT + moved / (target.chip.dram_bytes * target.chip.multiprocessors)
    return replace(first, cycles=first.cycles + more, inside=first.inside + more)


class _Values(dict[Var, Any]):
    """Values of variables; sizes that a launch gives are large."""

    def __missing__(self, var: Var) -> Any:
        return np.int64(UNKNOWN)


class Block:
    """What a block of a kernel does: in pipelined loops, each with its trips, and besides."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target = kernel, target
        self.groups = kernel.thread_count / WARPGROUP
        self.values = _Values()
        self.depends: dict[Var, frozenset[Var]] = {}  # on which block indices and loops
        self.trips: dict[Var, float] = {}  # of the loops around, in the mean
        self.moved: list[Moved] = []
        self.data: set[Var] = set()  # what depends on tensors
        self.grid = [max(1, int(self.number(size))) for size in kernel.grid]
        for number, (var, size) in enumerate(zip(kernel.blocks, self.grid, strict=True)):
            at = (np.arange(SAMPLES) * SPREAD ** (number + 1) + 0.5) % 1
            self.values[var] = (at * size).astype(np.int64)
            self.depends[var] = frozenset({var})
        if kernel.rank is not None:  # blocks of a cluster have parts of what the others have
            self.values[kernel.rank] = np.int64(0)
            self.depends[kernel.rank] = frozenset(kernel.blocks[:1])
        allocs = [op.buffer for op in walk_ops(kernel, Alloc) if op.buffer.is_static]
        self.shared = sum(b.bytes for b in allocs if b.is_shared)
        self.fragments = {b.name: b.bytes for b in allocs if b.is_fragment}
        self.operands = 0.0  # registers of what products by threads read
        self.addresses = False  # whether threads compute those of tensors
        self.gathers = False  # into shared memory
        self.places = False  # of it, which threads keep
        self.reduces = any(walk_ops(kernel, Reduce))
        self.shares_rows = any(s and s.atom == "mma" and s.columns > 1 for s in self.splits())
        self.loops: list[tuple[Work, Any]] = []
        self.ends = self.work(kernel.body)
        self.ping_pong = self.halved = False  # whether warpgroups have tiles, blocks half the room
        # rows that clusters share; what follows a product was fitted as if it were by groups
        self.shares_parts = not self.loops and not self.splits() and bool(self.ends.meetings)
        by_groups = all(split and split.atom == "wgmma" for split in self.splits())
        self.by_groups = by_groups and not self.shares_parts
        self.resident, self.ping_pong = self.room()
        # by a producer, of which a kernel with meetings of its own has none
        several = self.ping_pong or self.groups > 1
        self.is_fed = self.by_groups and several and kernel.rank is None
        self.cluster, self.common = asked_cluster(kernel), tuple[str, ...]()
        if self.cluster > 1:
            asked = replace(kernel, ping_pong=2 if self.ping_pong else 1)
            found = cluster_axis(asked, self.cluster, target, ())
            if isinstance(found, str):
                raise Infeasible(found)
            self.common = found[1]
        inside = sum(work.bytes * trips for work, trips in self.loops)
        self.trips_of = sum((trips for _, trips in self.loops), np.zeros(1))
        self.loaded = float(np.mean(self.ends.bytes + inside))

    def number(self, e: Expr) -> Any:
        try:
            return evaluate(e, self.values)
        except CompileError:  # it depends on what tensors hold
            return np.int64(UNKNOWN)

    def is_data(self, e: Expr) -> bool:
        """Whether an index depends on what tensors hold."""
        return bool(loads(e)) or any(var in self.data for var in variables(e))

    def asked(self, *parts: Expr) -> frozenset[Var]:
        """The block indices, and the variables of loops, on which expressions depend."""
        found = {var for e in parts for var in variables(e)}
        return frozenset().union(*(self.depends.get(var, frozenset()) for var in found))

    def move(
        self, buffer: Buffer, starts: Iterable[Expr], extents: Iterable[float], elements: float
    ) -> None:
        """Note what an op moves of a tensor, `elements` at a time: all that the loops around it go
        over."""
        dims, blocks, loops = [], frozenset(self.kernel.blocks), set[Var]()
        for start, extent, size in zip(starts, extents, buffer.shape, strict=True):
            told = self.asked(start)
            loops |= told & self.trips.keys()
            own = extent * prod(self.trips[var] for var in told if var in self.trips)
            of = blocks if self.is_data(start) else told & blocks
            dims.append((min(own, size_of(size)), size_of(size), of))
        elements *= prod(self.trips[var] for var in loops)
        self.moved.append(Moved(buffer, elements, tuple(dims)))

    # ── what ops do ──

    def work(self, body: Body) -> Work:
        """Of a body, without its pipelined loops, which go to `loops`."""
        found = Work()
        for op in body:
            match op:
                case Let():
                    self.data |= {op.var} if self.is_data(op.value) else set()
                    self.values[op.var] = self.number(op.value)
                    self.depends[op.var] = self.asked(op.value)
                case For():
                    self.loop(op, found)
                case If():
                    arms = self.work(op.then), self.work(op.orelse)
                    found.add(max(arms, key=lambda arm: float(np.mean(arm.tensor + arm.threads))))
                case Gemm():
                    self.product(op, found)
                case Copy():
                    self.copy(op, found)
                case Reduce():
                    found.threads = found.threads + rates.cycles(op)
                    found.exchanges += self.shares_rows
                case Sync(scope="cluster"):
                    found.meetings += MEETING
                case Map() if gather_of(op) is not None:
                    self.elements(op, found)
                case _:
                    found.threads = found.threads + rates.cycles(op, guards=False)
                    self.elements(op, found)
        return found

    def loop(self, op: For, found: Work) -> None:
        start, stop, step = (self.number(e) for e in (op.start, op.stop, op.step))
        trips = np.maximum(0, -((start - stop) // np.maximum(step, 1)))
        self.values[op.var] = start
        self.depends[op.var] = self.asked(op.start) | {op.var}
        if self.is_data(op.start) or self.is_data(op.stop):
            trips = np.full(1, self.trips_to_read(op))
        self.trips[op.var] = max(1.0, float(np.mean(trips)))
        before = len(self.loops)
        inside = self.work(op.body)
        self.loops[before:] = [(work, times * trips) for work, times in self.loops[before:]]
        if op.kind == "pipelined" and len(self.loops) == before:
            self.loops.append((inside, trips))
        else:
            found.add(inside, trips)

    def trips_to_read(self, op: For) -> float:
        """Of a loop whose end is data: to read all once, or a part of the most that is allowed."""
        moved, loops, self.trips[op.var] = len(self.moved), len(self.loops), 1.0
        self.work(op.body)
        found, self.moved, self.loops = self.moved[moved:], self.moved[:moved], self.loops[:loops]
        sizes = [prod(map(size_of, each.tensor.shape)) / each.elements for each in found]
        most = at_most(op.stop, self.values, self.is_data)
        allowed = 0.0 if most is None else float(np.mean(most)) * FILLED
        return max(1.0, max(sizes, default=1.0) / prod(self.grid), allowed)

    def product(self, op: Gemm, found: Work) -> None:
        m, n, k = shape_of(op)
        found.steps += 1
        bits, chip = op.a.dtype.bits, self.target.chip
        split = split_of(op, self.kernel.thread_count, self.target)
        if split is None:
            raise Infeasible("no instruction multiplies such tiles")
        if split.atom == "wgmma":
            threads = self.kernel.thread_count + WARPGROUP * (self.groups > 1)  # and a producer
            room = chip.registers // threads - CONTROL
            if split.n // 2 > room:
                raise Infeasible(f"an instruction has {split.n // 2} results, registers {room}")
            in_shared = op.a.buffer.is_shared
            found.tensor += rates.warpgroup_cycles(m, n, k, bits, split.n, in_shared)
            read = m / 64 * n / split.n * k * (split.n + 64 * in_shared) * bits / 8
            found.shared += read / rates.SHARED_BYTES
        elif split.atom == "mma":
            found.exchanges += self.reduces and split.columns > 1
            found.tensor += m * n * k / chip.warp_products * bits / 16
            found.chain += k / (256 // bits) * rates.CHAIN
            read = (m * split.columns + n * split.rows) * k * bits / 8  # by warps
            found.threads += read / rates.SHARED_BYTES
            found.reads += read / rates.SHARED_BYTES
            found.shared += read / rates.SHARED_BYTES
        elif operand_kind(op, op.a) is not None and Feature.MMA in self.target.features:
            raise Infeasible("such tiles would be multiplied without the tensor core")
        else:  # a thread loads rows and columns, 16 bytes at a time, for products of all of them
            rows, columns = m / max(split.rows, 1), n / max(split.columns, 1)
            loads = (rows + columns) * bits / 8 / RUN * INSTRUCTIONS
            multiplied = m * n * k / rates.LANES * (1 + loads / (rows * columns))
            read = self.kernel.thread_count * (rows + columns) * k * bits / 8 / rates.SHARED_BYTES
            read /= 1 if split.lanes[0] % 2 or split.lanes[1] % 2 else 2  # see `fragments_of`
            found.products += max(multiplied, read)
            found.shared += read
            self.operands = max(self.operands, (rows + columns) * fma_step(op))

    def copy(self, op: Copy, found: Work) -> None:
        for side, other in ((op.src, op.dst), (op.dst, op.src)):
            if side.buffer.is_global:
                extents = [*map(min, map(size_of, side.extents), map(size_of, side.buffer.shape))]
                is_tile = not other.buffer.is_shared and prod(extents) > self.kernel.thread_count
                self.addresses |= is_tile and any(self.is_data(e) for e in side.starts)
                bytes = prod(extents) * side.dtype.bits / 8  # not what lies outside
                found.bytes += bytes
                lines = whole_lines(side, other) if other.buffer.is_shared else bytes
                found.load(side.buffer.name, lines)
                self.move(side.buffer, side.starts, extents, prod(extents))
        if not (op.src.buffer.is_global and op.dst.buffer.is_shared):
            found.threads += rates.cycles(op)
        elif each := thread_load(op.src.buffer):
            found.threads += bytes / each * (ASYNC if each >= 4 else ALONE) / rates.LANES

    def elements(self, op: Op, found: Work) -> None:
        """What threads load and store by themselves."""
        if not isinstance(op, Map):
            return
        extents = dict(zip(op.vars, map(size_of, op.extents), strict=True))
        for inner in walk_ops(op, Store):
            accesses: list[Load | Store] = [*op_loads(inner), inner]
            for at in accesses:
                if not at.buffer.is_global:
                    continue
                self.addresses = True
                gathers = at is not inner and inner.buffer.is_shared
                each = [{var for var in variables(e) if var in extents} for e in at.indices]
                points = prod(extents[var] for var in set().union(*each))
                sizes = [prod(extents[var] for var in told) for told in each]
                bytes = lines = points * at.buffer.dtype.bits / 8
                if gathers and sizes:
                    self.gathers = True
                    self.places |= any(_is_place(e, extents.keys()) for e in at.indices)
                    found.gathers += bytes / RUN
                    span = min(LINE, sizes[-1] * at.buffer.dtype.bits // 8)
                    lines *= 1 + ACROSS * crossing(at.buffer, span)
                    lines *= inner_part(sizes[-1], size_of(at.buffer.shape[-1])) / sizes[-1]
                found.bytes += bytes
                found.load(at.buffer.name, lines)
                self.move(at.buffer, at.indices, sizes, points)

    def tile(self, together: int, l2: float, byte: float) -> tuple[Any, dict[str, float]]:
        """Cycles of a tile, where so many are computed at once on a multiprocessor, and for how
        many its units are busy. `l2`: bytes of a cycle; `byte`: cycles for one that is loaded."""
        ends, main = self.ends, np.zeros(1)
        groups = self.groups * (2 if self.ping_pong else 1) * together
        solo = rates.SOLO if self.by_groups else WARPS
        issue, rate = min(1.0, solo * groups) / together, l2 / together
        units = dict.fromkeys((TENSOR, THREADS, MEMORY, SHARED), 0.0)
        for inside, trips in self.loops:
            # warps of a quarter of a multiprocessor share its lanes: some have one warp more
            threads = inside.threads / issue + inside.products * together * ceil(groups) / groups
            moved = self.loads(inside, rate, together)
            gathers = self.gathered(inside)
            loads = np.maximum(moved, gathers)
            own = inside.tensor * together, threads, loads
            busy = np.maximum(own[0], own[1]) if groups > 1 else own[0] + own[1]
            # a warpgroup makes one step after the other, of which others hide a part only
            alone = (inside.tensor + inside.threads - inside.reads) / self.groups + inside.reads
            alone = alone + inside.steps * STEP if np.any(inside.threads) else 0.0
            alone = alone + inside.exchanges * EXCHANGE
            busy = np.maximum(np.maximum(busy, inside.chain), alone)
            if self.cluster > 1:  # a slot is free when all blocks have read it
                busy = busy + PEERS
            if not self.is_fed:  # threads that load wait for products, and for each other
                busy = busy + (rates.PRODUCT_LATENCY + rates.SYNC) / together + gathers
            # a slot is free but for the product that reads it
            part = 1 / max(1.0, float(np.mean(inside.steps))) if np.any(inside.threads) else 1.0
            late = rates.LATENCY + part * np.maximum(moved, inside.bytes * byte * together)
            late = late / max(1, self.stages(inside) - part)
            main = main + trips * (np.maximum(np.maximum(busy, own[2]), late) + rates.TURN)
            for name, each in zip(units, (*own, inside.shared * together), strict=True):
                units[name] += float(np.mean(each * trips))
        last = ends.threads / issue + ends.tensor * together + sum(ends.lines.values()) / rate
        units[ENDS] = float(np.mean(last))
        alone = main + last + ends.meetings + rates.LATENCY
        if self.shares_parts:  # while blocks of one cluster wait for each other, others work
            alone = np.maximum(last, alone - last * (1 - 1 / together))
        # of two warpgroups with a tile each, one stores while the other multiplies
        both = np.maximum(np.maximum(main, last), alone / 2)
        return both if self.ping_pong else alone, units

    def gathered(self, inside: Work) -> float:
        """Cycles of the threads that gather: a producer's, which it ends by asking for a slot, or
        all that there are."""
        each = float(np.mean(inside.gathers)) * (1 if self.is_fed else 1 / self.groups)
        if not each or not self.is_fed:
            return each * rates.GATHER
        kept = gathering(int(self.groups), self.held)[0] or REGISTERS
        lacks = each / WARPGROUP * PLACE + BESIDES - kept if self.places else 0.0
        return ROUND + each * rates.GATHER + max(0.0, lacks) * SPILLED

    def loads(self, inside: Work, rate: float, together: int) -> Any:
        """Cycles for what an iteration loads, so many bytes of lines in one from the L2 cache. What
        a cluster shares a block asks for in parts, but gets all of it."""
        saved = dict.fromkeys(self.common, MULTICAST * (1 - 1 / self.cluster))
        asked = sum(each * (1 - saved.get(name, 0)) for name, each in inside.lines.items())
        return np.maximum(asked / rate, sum(inside.lines.values()) * together / rates.ENGINE)

    # ── what fits ──

    def splits(self) -> list[Split | None]:
        """How warps share each product."""
        threads = self.kernel.thread_count
        return [split_of(op, threads, self.target) for op in walk_ops(self.kernel, Gemm)]

    def room(self) -> tuple[int, bool]:
        """Blocks of a multiprocessor, and whether warpgroups have tiles of their own."""
        kernel, chip, threads = self.kernel, self.target.chip, self.kernel.thread_count
        lives = lifetimes(kernel, (Space.FRAGMENT,)).in_place(kernel, self.fragments)
        words = sum(self.fragments[name] for name in lives.peak(self.fragments)[1]) / 4
        groups, self.held = int(self.groups), int(words / threads)
        given = self.given(groups, self.held) if self.by_groups else None
        plain = PLAIN + ADDRESSES * self.addresses
        room = (given or REGISTERS) - plain
        if words / threads > room:
            raise Infeasible(f"fragments take {words / threads:.0f} of {room} registers")
        if self.shared + ROOM > chip.shared:
            raise Infeasible(f"tiles take {self.shared} bytes of shared memory")
        many = prod(self.grid) > chip.multiprocessors
        self.halved = groups <= 1 and many
        if any(np.any(work.gathers) and self.stages(work) < 2 for work, _ in self.loops):
            raise Infeasible("gathered tiles have one slot, so nothing is prefetched")
        if not self.by_groups:
            taken = int(words / threads + self.operands) + plain
            rings = [(self.stages(work) - 1) * self.slot(work) for work, _ in self.loops]
            taken_shared = int(self.shared + max(rings, default=0)) + ROOM
            return max(1, chip.resident(threads, taken_shared, taken)), False
        own = (self.given(max(2, groups), int(words / WARPGROUP)) or 0) - plain
        busy = any(np.any(work.threads + work.gathers) for work, _ in self.loops)
        only_products = bool(self.loops) and not busy
        ping_pong = only_products and words / WARPGROUP <= own and many and kernel.rank is None
        self.halved &= not ping_pong
        return 2 if self.halved else 1, ping_pong

    def given(self, groups: int, held: int) -> int | None:
        """Registers of a thread of so many consumers; a producer that gathers hands over fewer."""
        chip = self.target.chip
        if self.gathers:
            return gathering(groups, held)[1] or chip.registers // (groups + 1) // WARPGROUP
        return handed_over(groups, chip.registers)[1]

    def slot(self, inside: Work) -> float:
        """Bytes that an iteration of a loop loads."""
        return max(1.0, float(np.mean(inside.bytes)))

    def stages(self, inside: Work) -> int:
        """Slots of the ring that feeds a loop, as `choose_stages` has them: as many as hide a load,
        or as fit; where one warpgroup computes, a second block has half of the room."""
        slot, busy = self.slot(inside), (inside.tensor + inside.products, inside.threads)
        others = max(0.0, self.shared - slot)
        room = self.target.chip.shared // (2 if self.halved else 1) - ROOM - others
        results = STAGED * (2 if self.ping_pong else 1)
        fits = max(int((room - results) // slot), min(int(room // slot), 2), 1)
        taken = float(np.mean(sum(busy) if self.groups <= 1 else np.maximum(*busy)))
        load = rates.LATENCY + slot / rates.BYTES_PER_CYCLE
        return min(STAGES, max(2, ceil(load / max(taken, 1)) + 1), fits)

    # ── what DRAM delivers ──

    def delivered(self, active: int) -> float:
        """Bytes, where `active` blocks run at once."""
        grid = dict(zip(self.kernel.blocks, self.grid, strict=True))
        once = 0.0
        for tensor in {each.tensor for each in self.moved}:
            asked = sum(each.bytes(grid) for each in self.moved if each.tensor is tensor)
            once += min(tensor.bytes, asked) if tensor.is_static else asked
        if once <= CACHED:
            return once
        waves = prod(self.grid) / active
        waves = waves if self.shares_parts else ceil(waves)
        return max(once, waves * min(self._wave(high, active) for high in PANELS))

    def _wave(self, high: int, active: int) -> float:
        """Bytes of what runs at once: a panel of so many rows of the first two axes of the grid,
        then the others."""
        axes = [*zip(self.kernel.blocks, self.grid, strict=True)]
        box: dict[Var, int] = {}
        left = active
        for at, (var, size) in enumerate(axes):
            wide = left // min(high, axes[1][1]) if at == 0 and len(axes) > 1 else left
            box[var] = min(size, max(1, wide))
            left = max(1, left // box[var])
        return sum(each.bytes(box) for each in self.moved)


def _is_place(e: Expr, own: Iterable[Var]) -> bool:
    """Whether finding an index takes more than shifts and masks of a thread's `own` variables, so
    that it is found once and kept."""
    parts = [part for part in walk(e) if not variables(part).isdisjoint(own)]
    divided = [part.b for part in parts if isinstance(part, Bin) and part.op in ("//", "%")]
    shifted = [by for by in divided if isinstance(by, Const) and int(by.value).bit_count() == 1]
    return len(divided) > len(shifted) or any(isinstance(part, Load) for part in parts)
