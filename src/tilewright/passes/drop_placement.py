"""Let all threads run what was placed on some warpgroups.

`T.ws(i)` says where statements run and keeps their sequential meaning, so leaving the place open
is right, if slower. With barriers of its own a kernel says more than that, and is refused.
"""

from __future__ import annotations

from tilewright.ir.op import Arrive, Hint, Kernel, Op, Role, Wait, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError


def drop_placement(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` without `ws` hints."""
    ops = list(walk_ops(kernel))
    placed = [op for op in ops if _is_placement(op)]
    if not placed or any(isinstance(op, Role) for op in ops):
        return kernel
    own = next((op for op in ops if isinstance(op, (Arrive, Wait))), None)
    if own is not None:
        raise CompileError(
            "this kernel places statements on warpgroups and has barriers of its own, which is "
            f"not scheduled for {target} yet",
            loc=own.loc or placed[0].loc,
            fix="leave the barriers out, or write the scheduled form (docs/scheduled.md)",
        )
    return rebuild(kernel, body=map_body(kernel.body, lambda op: () if _is_placement(op) else None))


def _is_placement(op: Op) -> bool:
    return isinstance(op, Hint) and op.name == "ws"
