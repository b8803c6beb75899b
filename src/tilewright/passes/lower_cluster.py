"""Memory order between the blocks of a cluster.

Bulk copies and matrix instructions are ordered by barriers alone. Ordinary accesses are ordered by
a barrier within the block; where the other side is a peer, whoever waits acquires at cluster scope,
and whoever arrives puts a fence in front; one serves all the arrivals of an unrolled loop.

`fence cluster` waits for the thread's accesses at the scope of the GPU, which cost the softmax of
long rows 7 % on an H200. Where all that peers can depend on lies in the block's own shared memory,
`fence cluster_shared` does, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.buffer import Space
from tilewright.ir.op import (
    Arrive,
    Atomic,
    Body,
    Copy,
    Fence,
    Intrinsic,
    Kernel,
    Op,
    Role,
    Wait,
    op_loads,
    read_buffers,
    regions,
    walk_ops,
    written_buffers,
)
from tilewright.passes.lowering import BULK_ATOMS, ENGINE_ATOMS, Lowering, accesses_memory


def crossing_barriers(kernel: Kernel) -> frozenset[str]:
    """Names of the barriers that order ordinary accesses of different blocks: those that count
    remote stores, and those on which a role announces to a peer that it has read, by its threads,
    what peers write."""
    copies = [op for op in walk_ops(kernel) if isinstance(op, Copy)]
    stores = [op for op in copies if op.atom == "remote_store"]
    shared = {op.dst.buffer for op in copies if op in stores or op.multicast is not None}
    found = {op.barrier.buffer.name for op in stores if op.barrier is not None}
    for role in walk_ops(kernel):
        if isinstance(role, Role) and shared & _read_by_threads(role):
            found |= {
                op.barrier.buffer.name
                for op in walk_ops(role)
                if isinstance(op, Arrive) and op.barrier.cta is not None
            }
    return frozenset(found)


def _read_by_threads(role: Role) -> set[object]:
    found: set[object] = set()
    for op in walk_ops(role):
        found |= {load.buffer for load in op_loads(op)}
        if isinstance(op, Copy) and op.atom in ("threads", "ldmatrix"):
            found |= {r.buffer for r in regions(op, reads=True)}
    return found


def peer_fence(kernel: Kernel) -> str:
    """The kind of fence that orders the accesses of this kernel's threads for peers."""
    ops = [op for op in walk_ops(kernel) if not isinstance(op, Atomic)]  # these are unordered
    read = {b for op in ops for b in read_buffers(op)}
    for op in ops:
        if isinstance(op, Copy) and op.atom in ENGINE_ATOMS:
            continue
        if any(r.cta is not None for r in regions(op, reads=True, writes=True)):
            return "cluster"
        if any(b.space is Space.GLOBAL and b in read for b in written_buffers(op)):
            return "cluster"
    return "cluster_shared"


def lower_wait(low: Lowering, op: Wait) -> Iterable[Op]:
    """A wait, at cluster scope when peers' ordinary accesses come before it: all of them, or where
    that is enough those of shared memory, which keeps the block's cache of global memory."""
    op = low.plain(op)
    if op.barrier.buffer.name not in low.crossing:
        yield op
    else:
        order = "shared" if low.peer_fence == "cluster_shared" else ""
        yield Intrinsic("wait_cluster", (op.barrier, op.phase), text=order, loc=op.loc)


def order_arrivals(low: Lowering, body: Body) -> Body:
    """In front of arrivals at peers: the fence that their order needs, once threads have met."""
    if low.ordered or any(accesses_memory(op) for op in body):
        return ()
    for op in walk_ops(body):
        if (
            isinstance(op, Arrive)
            and op.barrier.cta is not None
            and op.barrier.buffer.name in low.crossing
        ):
            return (*low.meet(op.loc), *low.by_leader(Fence(low.peer_fence, loc=op.loc)))
    return ()


def before_unrolled(low: Lowering, body: Body) -> Body:
    """What every iteration of an unrolled loop would put in front of what it announces: once is
    enough when threads touch no memory in between."""
    if any(accesses_memory(op) for op in body):
        return ()
    announced = [
        op
        for op in walk_ops(body)
        if isinstance(op, Arrive) or (isinstance(op, Copy) and op.atom in BULK_ATOMS)
    ]
    met = low.meet(announced[0].loc) if announced else ()
    fence = order_arrivals(low, body)
    low.ordered = low.ordered or bool(fence)
    return (*met, *fence)
