"""How deep loops run ahead whose text does not say (`T.Pipelined(n)`).

As many slots as it takes to hide a load: what is loaded in an iteration must be there when the
iterations before have been computed. A model of the units tells how long both take
(`unit_times`); shared memory bounds it, of which results on their way to memory need some, and,
where one warpgroup computes, a second block of the multiprocessor half.
"""

from __future__ import annotations

from math import ceil

from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Copy, For, Gemm, Kernel, Op, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target
from tilewright.passes.reasons import because
from tilewright.passes.roles import dealt_to, warpgroups
from tilewright.passes.stage_stores import PIECE, ROOM
from tilewright.passes.unit_times import BYTES_PER_CYCLE, LATENCY, cycles

UNSAID = -1
MOST = 6
STAGED = 2 * 128 * PIECE * 2  # bytes for two pieces of a result


def choose_stages(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a number of stages for every pipelined loop."""

    def rule(op: Op) -> Op | None:
        if not isinstance(op, For) or op.kind != "pipelined":
            return None
        stages, why = _stages(kernel, op, target)
        if op.stages == UNSAID:
            because(kernel.name, op, why)
            return rebuild(op, stages=stages)
        if 0 < op.stages < stages:
            told = (
                f"{op.stages} stages, as the text says: {stages} would fit, and hide more of a load"
            )
            because(kernel.name, op, told)
        return None

    return rebuild(kernel, body=map_body(kernel.body, rule))


def _stages(kernel: Kernel, loop: For, target: Target) -> tuple[int, str]:
    """As many as are worth it, and why."""
    tiles = {
        op.dst.buffer
        for op in loop.body
        if isinstance(op, Copy)
        and op.src.buffer.space is Space.GLOBAL
        and op.dst.buffer.space is Space.SHARED
        and op.dst.is_whole
        and op.dst.buffer.is_static
    }
    slot = sum(tile.bytes for tile in tiles)
    if not slot:
        return 0, "0 stages: nothing to load ahead"
    allocs = {op.buffer for op in walk_ops(kernel) if isinstance(op, Alloc)}
    others = sum(b.bytes for b in allocs - tiles if b.space is Space.SHARED and b.is_static)
    alone = warpgroups(kernel) <= 1
    room = target.chip.shared // (2 if alone else 1) - ROOM - others
    if any(isinstance(op, Gemm) for op in walk_ops(loop)):
        room -= STAGED * dealt_to(kernel)
    fits = max(room // slot, 1)
    work = [op for op in loop.body if not (isinstance(op, Copy) and op.dst.buffer in tiles)]
    products = sum(cycles(op) for op in work if isinstance(op, Gemm))
    threads = sum(cycles(op) for op in work if not isinstance(op, Gemm))
    # of several warpgroups one computes while another multiplies
    busy = products + threads if alone else max(products, threads)
    load = LATENCY + slot / BYTES_PER_CYCLE
    wanted = min(max(ceil(load / max(busy, 1)) + 1, 2), MOST)
    if target.choice("depth") == "least":
        fits = min(fits, 2)
    stages = min(wanted, fits)
    said = f"{stages} stages: a load takes {load:.0f} cycles, an iteration {busy:.0f}"
    if fits < wanted:
        said += f"; {wanted} would hide it, {fits} of {slot} bytes fit"
    return stages, said
