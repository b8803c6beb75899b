"""Loads of pipelined loops that go to registers, through shared memory where the schedule has
stages (`ir.gather.loaded_ahead`). Without that, other blocks of the multiprocessor hide a load."""

from __future__ import annotations

from tilewright.ir.gather import loaded_ahead
from tilewright.passes.core import *


@kernel_pass
def stage_loads(at: Facts) -> Kernel:
    """Every load of a pipelined loop by way of a tile that runs ahead."""
    stages = at.target.schedule.stages
    if not isinstance(stages, int) or stages < 2 or at.has_roles:
        return at.kernel

    def loops(op: Op) -> Op | None:
        if not isinstance(op, For) or op.kind != "pipelined" or op.order is not None:
            return None
        return rebuild(op, body=loaded_ahead(op.body, fresh_name))

    return map_ops(at.kernel, loops)
