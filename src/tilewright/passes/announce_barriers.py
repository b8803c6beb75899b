"""Let the block meet behind the initialisation of barriers that a kernel's author allocates.

One thread initialises them; whoever arrives or waits before it has done so finds anything there.
Kernels that say it themselves, and those whose barriers are derived, are left as they are.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.op import Alloc, BarrierInit, Fence, Hint, Kernel, Let, Role, Sync, walk_ops
from tilewright.ir.rewrite import rebuild
from tilewright.ir.target import Target


def announce_barriers(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a meeting between the initialisation of its barriers and what follows."""
    inits = [k for k, op in enumerate(kernel.body) if isinstance(op, BarrierInit)]
    if not inits or any(isinstance(op, Role) for op in walk_ops(kernel)):
        return kernel
    behind = inits[-1] + 1
    for op in kernel.body[behind:]:
        if isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            return kernel
        if not isinstance(op, (Alloc, Let, Hint, Fence)):
            break
    loc = kernel.body[inits[-1]].loc
    scope = "cluster" if prod(kernel.cluster) > 1 else "block"
    meeting = (Fence("barrier_init", loc=loc), Sync(scope, loc=loc))
    return rebuild(kernel, body=(*kernel.body[:behind], *meeting, *kernel.body[behind:]))
