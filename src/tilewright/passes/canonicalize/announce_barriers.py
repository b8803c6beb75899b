"""Let the block meet behind the initialisation of barriers that a kernel's author allocates.

One thread initialises them; whoever arrives or waits before it has done so finds anything there.
Kernels that say it themselves, and those whose barriers are derived, are left as they are.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.op import Alloc, BarrierInit, Fence, Hint, Kernel, Let, Op, Role, Sync, walk_ops
from tilewright.ir.rewrite import rebuild
from tilewright.ir.target import Target


def announce_barriers(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a meeting between the initialisation of its barriers and what follows."""
    if any(walk_ops(kernel, Role)):
        return kernel
    scope = "cluster" if prod(kernel.cluster) > 1 else "block"
    found: list[Op] = []
    fresh: Op | None = None  # the last initialisation that nobody has met behind
    for op in kernel.body:
        if isinstance(op, BarrierInit):
            fresh = op
        elif isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            fresh = None
        elif fresh is not None and not isinstance(op, (Alloc, Let, Hint, Fence)):
            found += [Fence("barrier_init", loc=fresh.loc), Sync(scope, loc=fresh.loc)]
            fresh = None
        found.append(op)
    return kernel if len(found) == len(kernel.body) else rebuild(kernel, body=tuple(found))
