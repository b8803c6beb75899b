"""Loads of pipelined loops that go to registers, through shared memory where stages are asked for.

    for k { copy X[k] -> x; … }

    for k { copy X[k] -> tile; copy tile -> x; … }

A copy into shared memory runs ahead by as many iterations as the schedule has stages. Without that,
other blocks of the multiprocessor hide a load.
"""

from __future__ import annotations

from tilewright.passes.core import *


@kernel_pass
def stage_loads(at: Facts) -> Kernel:
    """Every load of a pipelined loop by way of a tile that runs ahead."""
    stages = at.target.schedule.stages
    if not isinstance(stages, int) or stages < 2 or at.has_roles:
        return at.kernel

    def staged(op: Op) -> Body | None:
        if not isinstance(op, Copy) or not _is_load(op):
            return None
        name = fresh_name(f"{op.dst.name}_ahead", at.names)
        shape = tuple(const(e) for e in op.dst.static_tile)
        tile = whole(Buffer(name, shape, op.src.dtype, Space.SHARED))
        return Alloc(tile.buffer), rebuild(op, dst=tile), Copy(tile, op.dst)

    def loops(op: Op) -> Op | None:
        if not isinstance(op, For) or op.kind != "pipelined" or op.order is not None:
            return None
        return rebuild(op, body=tuple(x for each in op.body for x in staged(each) or (each,)))

    return map_ops(at.kernel, loops)


def _is_load(op: Copy) -> bool:
    to_registers = op.src.buffer.is_global and op.dst.buffer.is_fragment and op.dst.is_whole
    return to_registers and op.reduce is None and op.barrier is None and op.atom is None
