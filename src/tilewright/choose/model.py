"""How long a kernel takes, by closed formulas on its tile IR, before any pass has run.

An iteration of a pipelined loop takes as long as the busiest of three units: the tensor core, the
threads, and the memory that feeds them. The ends of a tile (its first loads, its results) add to
that, unless warpgroups with tiles of their own hide them (ping-pong). Tiles run in waves. The whole
grid takes no less than DRAM needs for what it must deliver: blocks that run at once share some of
what they load, and the L2 cache keeps it for them.

`unit_times` and `Chip` have the rates. Sizes that are known at launch only are taken as large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.ir.analysis.lifetimes import lifetimes
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.ir.warps import WARP, WARPGROUP
from tilewright.passes.layout.matrix_tiles import shape_of, split_of
from tilewright.passes.overlap import unit_times as rates
from tilewright.passes.overlap.ping_pong import PLAIN
from tilewright.passes.overlap.roles import gathering, handed_over
from tilewright.passes.overlap.stages import MOST as STAGES
from tilewright.passes.overlap.stages import ROOM, STAGED
from tilewright.support.errors import CompileError

UNKNOWN = 4096  # a size that is known at launch only
SAMPLES = 16  # blocks whose loops are looked at
CACHED = 32 << 20  # bytes of tensors that the L2 cache keeps from one wave to the next
START = 3000  # cycles of a launch, before the first load and after the last store
ADDRESSES = 48  # registers of a thread, where threads address tensors themselves
INSTRUCTION = 16  # rows of a product by a warp
REGISTERS = 255  # of a thread at most
PANELS = (1, 2, 4, 8, 16, 32, 64)  # rows of tiles that run side by side

TENSOR, THREADS, MEMORY, SHARED = "tensor core", "threads", "loads", "shared memory"
ENDS, DRAM = "ends of tiles", "DRAM"


class Infeasible(Exception):
    """What does not fit, in words."""


@dataclass(frozen=True)
class Estimate:
    """Cycles of the whole grid, and those for which each unit of a multiprocessor is busy."""

    cycles: float
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
    """Bytes of a tensor that one op moves in one block, and the block indices that say which."""

    bytes: float
    blocks: frozenset[Var]
    tensor: Buffer


@dataclass
class Work:
    """Of one run of a body: cycles of units, bytes that move. Numbers are of several blocks."""

    tensor: Any = 0.0
    threads: Any = 0.0
    shared: Any = 0.0  # memory, which products read
    bytes: Any = 0.0
    moved: list[Moved] = field(default_factory=list)

    def add(self, other: Work, times: Any = 1) -> None:
        self.tensor = self.tensor + other.tensor * times
        self.threads = self.threads + other.threads * times
        self.shared = self.shared + other.shared * times
        self.bytes = self.bytes + other.bytes * times
        self.moved += other.repeated(times)

    def repeated(self, times: Any) -> Iterator[Moved]:
        many = float(np.mean(times))
        return (Moved(each.bytes * many, each.blocks, each.tensor) for each in self.moved)


def estimate(kernel: Kernel, target: Target) -> Estimate:
    """How long `kernel` takes; `Infeasible` where a block has more than fits."""
    block = Block(kernel, target)
    chip, tiles = target.chip, prod(block.grid)
    resident, ping_pong = block.resident()
    active = min(tiles, chip.multiprocessors * resident)
    # each block of a multiprocessor has its share of the units
    shared = min(resident, ceil(tiles / chip.multiprocessors))
    groups = block.groups * (2 if ping_pong else 1) * shared
    issue, rate = min(1.0, rates.SOLO * groups) / shared, chip.l2_bytes / shared
    ends, main = block.ends, np.zeros(1)
    units = dict.fromkeys((TENSOR, THREADS, MEMORY, SHARED), 0.0)
    for inside, trips in block.loops:
        own = inside.tensor * shared, inside.threads / issue, inside.bytes / rate
        read = inside.shared * shared
        busy = np.maximum(own[0], own[1]) if groups > 1 else own[0] + own[1]
        late = (rates.LATENCY + own[2]) / max(1, block.stages(inside, ping_pong) - 1)
        main = main + trips * (np.maximum(np.maximum(busy, own[2]), late) + rates.TURN)
        for name, each in zip(units, (*own, read), strict=True):
            units[name] += float(np.mean(each * trips))
    last = ends.threads / issue + ends.tensor * shared + ends.bytes / rate
    tile = np.maximum(main, last) if ping_pong else main + last + rates.LATENCY
    units[ENDS] = float(np.mean(last))
    waves = tiles / active
    # the hardware deals out uneven tiles; at the end, some wait for a long one
    uneven = float(np.ptp(tile)) > 0
    rounds = waves + 0.5 * float(np.max(tile) / np.mean(tile)) if uneven else ceil(waves)
    units = {name: rounds * each for name, each in units.items()}
    units[DRAM] = block.delivered(active) / (chip.dram_bytes * chip.multiprocessors)
    cycles = max(rounds * float(np.mean(tile)), units[DRAM]) + START
    return Estimate(cycles, tiles, waves, units)


class _Values(dict[Var, Any]):
    """Values of variables; sizes that a launch gives are large."""

    def __missing__(self, var: Var) -> Any:
        return np.int64(UNKNOWN)


class Block:
    """What a block of a kernel does: in pipelined loops, each with its trips, and besides."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target = kernel, target
        self.groups = max(1, kernel.thread_count // WARPGROUP)
        self.values = _Values()
        self.depends: dict[Var, frozenset[Var]] = {}  # on which block indices
        self.data: set[Var] = set()  # what depends on tensors
        self.grid = [max(1, int(self.number(size))) for size in kernel.grid]
        at = np.unique(np.linspace(0, prod(self.grid) - 1, SAMPLES).astype(np.int64))
        for var, size in zip(kernel.blocks, self.grid, strict=True):
            self.values[var], at = at % size, at // size
            self.depends[var] = frozenset({var})
        allocs = [op.buffer for op in walk_ops(kernel, Alloc) if op.buffer.is_static]
        self.shared = sum(b.bytes for b in allocs if b.is_shared)
        self.fragments = {b.name: b.bytes for b in allocs if b.is_fragment}
        self.addresses = False  # whether threads compute those of tensors
        self.gathers = False  # into shared memory
        self.reduces = any(walk_ops(kernel, Reduce))
        self.loops: list[tuple[Work, Any]] = []
        self.ends = self.work(kernel.body)

    def number(self, e: Expr) -> Any:
        try:
            return evaluate(e, self.values)
        except CompileError:  # it depends on what tensors hold
            return np.int64(UNKNOWN)

    def is_data(self, e: Expr) -> bool:
        """Whether an index depends on what tensors hold."""
        return bool(loads(e)) or any(var in self.data for var in variables(e))

    def blocks_of(self, *parts: Expr) -> frozenset[Var]:
        asked = {var for e in parts for var in variables(e)}
        return frozenset().union(*(self.depends.get(var, frozenset()) for var in asked))

    # ── what ops do ──

    def work(self, body: Body) -> Work:
        """Of a body, without its pipelined loops, which go to `loops`."""
        found = Work()
        for op in body:
            match op:
                case Let():
                    self.data |= {op.var} if self.is_data(op.value) else set()
                    self.values[op.var] = self.number(op.value)
                    self.depends[op.var] = self.blocks_of(op.value)
                case For():
                    self.loop(op, found)
                case If():
                    arms = self.work(op.then), self.work(op.orelse)
                    found.add(max(arms, key=lambda arm: float(np.mean(arm.tensor + arm.threads))))
                case Gemm():
                    self.product(op, found)
                case Copy():
                    self.copy(op, found)
                case _:
                    found.threads = found.threads + rates.cycles(op)
                    self.elements(op, found)
        return found

    def loop(self, op: For, found: Work) -> None:
        start, stop, step = (self.number(e) for e in (op.start, op.stop, op.step))
        trips = np.maximum(0, -((start - stop) // np.maximum(step, 1)))
        self.values[op.var], self.depends[op.var] = start, self.blocks_of(op.start)
        before = len(self.loops)
        inside = self.work(op.body)
        self.loops[before:] = [(work, times * trips) for work, times in self.loops[before:]]
        if op.kind == "pipelined" and len(self.loops) == before:
            self.loops.append((inside, trips))
        else:
            found.add(inside, trips)

    def product(self, op: Gemm, found: Work) -> None:
        m, n, k = shape_of(op)
        bits, chip = op.a.dtype.bits, self.target.chip
        split = split_of(op, self.kernel.thread_count, self.target)
        if split is None:
            raise Infeasible("no instruction multiplies such tiles")
        if split.atom == "wgmma":
            in_shared = op.a.buffer.is_shared
            found.tensor += rates.warpgroup_cycles(m, n, k, bits, split.n, in_shared)
            read = m / 64 * n / split.n * k * (split.n + 64 * in_shared) * bits / 8
            found.shared += read / rates.SHARED_BYTES
        elif split.atom == "mma":
            if self.reduces and self.kernel.thread_count // WARP * INSTRUCTION > m:
                raise Infeasible("warps would share rows, and exchange what they find in them")
            found.tensor += m * n * k / chip.warp_products * bits / 16
            read = (m * split.columns + n * split.rows) * k * bits / 8  # by warps
            found.threads += read / rates.SHARED_BYTES
            found.shared += read / rates.SHARED_BYTES
        else:  # a thread reads a row and a column for a product of both
            rows, columns = m / max(split.rows, 1), n / max(split.columns, 1)
            found.threads += m * n * k / rates.LANES * (1 + 1 / rows + 1 / columns)

    def copy(self, op: Copy, found: Work) -> None:
        for side in (op.src, op.dst):
            if side.buffer.is_global:
                self.addresses |= any(self.is_data(e) for e in side.starts)
                sizes = zip(map(_size, side.extents), map(_size, side.buffer.shape), strict=True)
                bytes = prod(map(min, sizes)) * side.dtype.bits / 8  # not what lies outside
                found.bytes += bytes
                found.moved.append(Moved(bytes, self.blocks_of(*side.starts), side.buffer))
        if not (op.src.buffer.is_global and op.dst.buffer.is_shared):
            found.threads += rates.cycles(op)

    def elements(self, op: Op, found: Work) -> None:
        """What threads load and store by themselves."""
        if not isinstance(op, Map):
            return
        extents = dict(zip(op.vars, map(_size, op.extents), strict=True))
        for inner in walk_ops(op, Store):
            accesses: list[Load | Store] = [*op_loads(inner), inner]
            for at in accesses:
                if not at.buffer.is_global:
                    continue
                self.addresses = True
                self.gathers |= at is not inner and inner.buffer.is_shared
                asked = {var for e in at.indices for var in variables(e)}
                points = prod(n for var, n in extents.items() if var in asked)
                bytes = points * at.buffer.dtype.bits / 8
                blocks = self.blocks_of(*at.indices) or frozenset(self.kernel.blocks)
                found.bytes += bytes
                found.moved.append(Moved(bytes, blocks, at.buffer))

    # ── what fits ──

    def resident(self) -> tuple[int, bool]:
        """Blocks of a multiprocessor, and whether warpgroups have tiles of their own."""
        kernel, chip, threads = self.kernel, self.target.chip, self.kernel.thread_count
        lives = lifetimes(kernel, (Space.FRAGMENT,))
        words = sum(self.fragments[name] for name in lives.peak(self.fragments)[1]) / 4
        splits = [split_of(op, threads, self.target) for op in walk_ops(kernel, Gemm)]
        by_groups = all(split is not None and split.atom == "wgmma" for split in splits)
        given = self.given(self.groups, int(words / threads)) if by_groups else None
        plain = PLAIN + ADDRESSES * self.addresses
        room = (given or REGISTERS) - plain
        if words / threads > room:
            raise Infeasible(f"fragments take {words / threads:.0f} registers of {room}")
        if self.shared + ROOM > chip.shared:
            raise Infeasible(f"tiles take {self.shared} bytes of shared memory")
        if not by_groups:
            taken = int(words / threads) + plain
            return max(1, chip.resident(threads, 2 * self.shared + ROOM, taken)), False
        own = (self.given(max(2, self.groups), int(words / WARPGROUP)) or 0) - plain
        only_products = bool(self.loops) and not any(np.any(w.threads) for w, _ in self.loops)
        return 1, (
            only_products and words / WARPGROUP <= own and prod(self.grid) > chip.multiprocessors
        )

    def given(self, groups: int, held: int) -> int | None:
        """Registers of a thread of so many consumers; a producer that gathers hands over fewer."""
        chip = self.target.chip
        if self.gathers:
            return gathering(groups, held)[1] or chip.registers // (groups + 1) // WARPGROUP
        return handed_over(groups, chip.registers)[1]

    def stages(self, inside: Work, ping_pong: bool) -> int:
        """Slots of the ring that feeds a loop."""
        slot = max(1.0, sum(each.bytes for each in inside.moved))
        room = self.target.chip.shared - ROOM - max(0.0, self.shared - slot)
        results = STAGED * (2 if ping_pong else 1)
        return min(STAGES, max(int((room - results) // slot), min(int(room // slot), 2), 1))

    # ── what DRAM delivers ──

    def delivered(self, active: int) -> float:
        """Bytes, where `active` blocks run at once."""
        moved = [*self.ends.moved]
        for inside, trips in self.loops:
            moved += inside.repeated(trips)
        counts = dict(zip(self.kernel.blocks, self.grid, strict=True))
        least: dict[Buffer, float] = {}
        for each in moved:
            asked = each.bytes * prod(counts[var] for var in each.blocks)
            size = each.tensor.bytes if each.tensor.is_static else asked
            least[each.tensor] = min(size, least.get(each.tensor, 0) + asked)
        once = sum(least.values())
        if once <= CACHED:
            return once
        waves = ceil(prod(self.grid) / active)
        return max(once, waves * min(self._wave(moved, high, active) for high in PANELS))

    def _wave(self, moved: list[Moved], high: int, active: int) -> float:
        """Bytes of what runs at once: a panel of so many rows of the first two axes of the grid,
        then the others."""
        axes = [*zip(self.kernel.blocks, self.grid, strict=True)]
        box: dict[Var, int] = {}
        left = active
        for at, (var, size) in enumerate(axes):
            wide = left // min(high, axes[1][1]) if at == 0 and len(axes) > 1 else left
            box[var] = min(size, max(1, wide))
            left = max(1, left // box[var])
        return sum(each.bytes * prod(box[var] for var in each.blocks) for each in moved)


def _size(e: Expr) -> int:
    return int(e.value) if isinstance(e, Const) else UNKNOWN
