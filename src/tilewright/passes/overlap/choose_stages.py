"""How deep loops run ahead.

As many slots as it takes to hide a load: what is loaded in an iteration must be there when the
iterations before have been computed. A model of the units tells how long both take
(`unit_times`); shared memory bounds it, of which results on their way to memory need some, and,
where one warpgroup computes, a second block of the multiprocessor half.

That is for loops whose text does not say (`T.Pipelined(n)`), and for those whose text says too few
for warpgroups that a producer feeds: they are alone on their multiprocessor, and shared memory that
they leave is nobody's. On an H200, products of 4096³ by tiles of 128×128×64, both operands with K
inside, run at 307 TFLOP/s with two slots, 560 with three, 736 with four.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const
from tilewright.ir.gather import as_gather
from tilewright.ir.op import Alloc, Copy, For, Gemm, Kernel, Map, Op, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.grid.persist_blocks import worth_it
from tilewright.passes.layout.matrix_tiles import split_of
from tilewright.passes.overlap.multibuffer import MOST as TURNING
from tilewright.passes.overlap.rings import filled_by
from tilewright.passes.overlap.roles import warpgroups, why_not, why_not_worth
from tilewright.passes.overlap.stage_stores import PIECE, ROOM, planned_bytes
from tilewright.passes.overlap.unit_times import BYTES_PER_CYCLE, LATENCY, cycles
from tilewright.passes.reasons import because

UNSAID = -1
MOST = 6
STAGED = 2 * 128 * PIECE * 2  # bytes for two pieces of a result


def choose_stages(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a number of stages for every pipelined loop."""
    for loop in [op for op in walk_ops(kernel) if isinstance(op, For) and op.kind == "pipelined"]:
        work = _work(kernel, loop)
        choose = _stages if loop.stages == UNSAID else _deeper
        stages, why = choose(kernel, loop, work, target)
        told = target.schedule.stages
        if isinstance(told, int) and loop.order is None and work.slot:
            stages, why = told, f"{told} stages, as asked for"
        if why:
            because(kernel.name, loop, why)
        kernel = _with(kernel, loop, stages)
    return kernel


def _with(kernel: Kernel, loop: For, stages: int) -> Kernel:
    def rule(op: Op) -> Op | None:
        return rebuild(op, stages=stages) if isinstance(op, For) and op.var is loop.var else None

    return kernel if stages == loop.stages else rebuild(kernel, body=map_body(kernel.body, rule))


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


def _work(kernel: Kernel, loop: For) -> Work:
    tiles: set[Buffer] = set()
    products = threads = 0.0
    for op in loop.body:
        nest = as_gather(op, {}) if isinstance(op, Map) else None
        if nest is not None:
            tiles.add(filled_by(nest))
        elif (
            isinstance(op, Copy)
            and op.src.buffer.space is Space.GLOBAL
            and op.dst.buffer.space is Space.SHARED
            and op.dst.is_whole
        ):
            tiles.add(op.dst.buffer)
        elif isinstance(op, Gemm):
            products += cycles(op)
        else:
            threads += cycles(op)
    # of several warpgroups one computes while another multiplies
    busy = products + threads if warpgroups(kernel) <= 1 else max(products, threads)
    return Work(frozenset(b for b in tiles if b.is_static), busy)


def _stages(kernel: Kernel, loop: For, work: Work, target: Target) -> tuple[int, str]:
    """As many as are worth it, and why."""
    if not work.slot:
        return 0, "0 stages: nothing to load ahead"
    allocs = {op.buffer for op in walk_ops(kernel) if isinstance(op, Alloc)}
    others = sum(b.bytes for b in allocs - work.tiles if b.space is Space.SHARED and b.is_static)
    alone = warpgroups(kernel) <= 1
    room = target.chip.shared // (2 if alone else 1) - ROOM - others
    if any(isinstance(op, Gemm) for op in walk_ops(loop)):
        room -= STAGED * kernel.ping_pong
    fits = max(room // work.slot, 1)
    wanted = min(max(work.hiding(BYTES_PER_CYCLE), 2), MOST)
    if target.schedule.stages in ("least", "fewest"):
        fits = min(fits, 2)
    stages = min(wanted, fits)
    load = work.load(BYTES_PER_CYCLE)
    said = f"{stages} stages: a load takes {load:.0f} cycles, an iteration {work.busy:.0f}"
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
    advice = f"{said} stages, as the text says: {fits} would fit, and hide more of a load"
    kept = said, advice if 0 < said < fits else ""
    if said < 1 or loop.order is not None or not work.slot or not _fed(kernel, loop, target):
        return kept
    busy = max(work.busy, work.slot / rate)
    if replace(work, busy=busy).hiding(rate) <= said or target.schedule.stages in ("text", "least"):
        return kept
    most = min(work.hiding(BYTES_PER_CYCLE), MOST)
    trips = simplify(loop.stop - loop.start)
    if isinstance(trips, Const) and not worth_it(kernel, target)[0]:
        most = min(most, int(trips))  # no next tile whose first slots could be filled
    spare = STAGED * kernel.ping_pong + ROOM + _turning(kernel, loop, work)
    for stages in range(most, said, -1):
        if planned_bytes(_with(kernel, loop, stages)) + spare <= target.chip.shared:
            load = work.load(BYTES_PER_CYCLE)
            why = f"a load takes {load:.0f} cycles, an iteration {busy:.0f}"
            return stages, f"{stages} stages, {said} in the text: {why}"
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
    if why_not(kernel) is not None or why_not_worth(kernel) is not None:
        return False
    products = [op for op in walk_ops(loop.body) if isinstance(op, Gemm)]
    splits = [split_of(op, prod(kernel.threads), target) for op in products]
    return any(split is not None and split.atom == "wgmma" for split in splits)


def _turning(kernel: Kernel, loop: For, work: Work) -> int:
    """Bytes that more slots for tiles would take that threads fill for products."""
    allocs = {op.buffer for op in walk_ops(kernel) if isinstance(op, Alloc)}
    read = {r.buffer for op in walk_ops(loop.body) if isinstance(op, Gemm) for r in (op.a, op.b)}
    filled = [b for b in (allocs & read) - work.tiles if b.space is Space.SHARED and b.is_static]
    return sum((TURNING - 1) * b.bytes for b in filled)
