"""Memory order between the blocks of a cluster.

Bulk copies and matrix instructions are ordered by barriers alone. Ordinary accesses are ordered by
a barrier within the block; where the other side is a peer, whoever waits acquires at cluster scope,
and whoever arrives puts a fence in front; one serves all the arrivals of an unrolled loop.

`fence cluster` waits for the thread's accesses at the scope of the GPU, which cost the softmax of
long rows 7 % on an H200. Where all that peers can depend on lies in the block's own shared memory,
`fence cluster_shared` does, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.passes.lower.core import *


def crossing_barriers(kernel: Kernel) -> frozenset[str]:
    """Names of the barriers that order ordinary accesses of different blocks: those that count
    remote stores, and those on which a role announces to a peer that it has read, by its threads,
    what peers write."""
    copies = list(walk_ops(kernel, Copy))
    stores = [op for op in copies if op.atom == "remote_store"]
    shared = {op.dst.buffer for op in copies if op in stores or op.multicast is not None}
    found = {op.barrier.buffer.name for op in stores if op.barrier is not None}
    for role in walk_ops(kernel, Role):
        if shared & _read_by_threads(role):
            arrivals = [op.barrier for op in walk_ops(role, Arrive)]
            found |= {barrier.buffer.name for barrier in arrivals if barrier.cta is not None}
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
    ops = [op for op in walk_ops(kernel) if not _by_engine(op)]
    remote = any(r.cta is not None for op in ops for r in regions(op, reads=True, writes=True))
    return "cluster" if remote or passes_tensors(kernel, _by_engine) else "cluster_shared"


def _by_engine(op: Op) -> bool:
    return isinstance(op, Copy) and op.atom in ENGINE_ATOMS


COMMUTING = frozenset({"add", "max", "min", "and", "or", "xor"})


def passes_tensors(kernel: Kernel, ordered: Callable[[Op], bool] = lambda op: False) -> bool:
    """Blocks may depend on what others have done to a tensor before they meet: one is both written
    and read, or written on both sides of a meeting.

    Atomics have no order among themselves, except that those after a meeting see the ones before
    it. What is written by ops that are `ordered` otherwise is left out.
    """
    roots = aliases(kernel)
    read, written, seen = set[str](), set[str](), set[str]()
    atomics: dict[str, set[str]] = {}
    # in the kernel's body, and in the order of its text: a loop may hold both sides
    places: dict[str, list[tuple[int, int]]] = {}
    meetings: list[tuple[int, int, bool]] = []
    own: dict[str, frozenset[object]] = {}
    line = 0

    def tensors(buffers: Iterable[Buffer]) -> set[str]:
        return {roots[b.name] for b in buffers if b.is_global}

    for at, top in enumerate(kernel.body):
        for op in walk_ops((top,)):
            line += 1
            if isinstance(op, Sync) and op.scope == "cluster":
                meetings.append((at, line, op is top))
            elif isinstance(op, Intrinsic) and INTRINSICS[op.name].opaque:
                written |= tensors(read_buffers(op))
            reads, writes = tensors(read_buffers(op)), tensors(written_buffers(op))
            if isinstance(op, Atomic):
                reads -= writes
                for b in writes:
                    atomics.setdefault(b, set()).add(op.op)
                    if op.result is not None or op.op not in COMMUTING:
                        seen.add(b)
            elif ordered(op):
                writes = set()
            else:
                written |= writes
            read |= reads
            for b in writes:
                places.setdefault(b, []).append((at, line))
                own[b] = own.get(b, _own(kernel, op, b)) & _own(kernel, op, b)
    if read & (written | set(atomics)):
        return True
    free = {b for b, kinds in atomics.items() if len(kinds) == 1} - seen - written
    free |= {b for b, parts in own.items() if parts}
    between = ((min(each), max(each)) for b, each in places.items() if b not in free)
    return any(
        start < met < end or (not alone and first < last and at in (first, last))
        for (first, start), (last, end) in between
        for at, met, alone in meetings
    )


def _own(kernel: Kernel, op: Op, tensor: str) -> frozenset[object]:
    """The dimensions of what an op writes of a tensor, and the indices in them, that no other block
    of the cluster has, whenever it writes the same."""
    along = [v for v, n in zip(kernel.blocks, kernel.cluster or (), strict=False) if n != 1]
    written = [(r.starts, r.extents) for r in regions(op, writes=True) if r.name == tensor]
    if isinstance(op, Store) and op.buffer.name == tensor:
        written.append((op.indices, (const(1),) * len(op.indices)))
    if len(along) != 1 or len(written) != 1:
        return frozenset()
    return frozenset(
        (dim, start, extent)
        for dim, (start, extent) in enumerate(zip(*written[0], strict=True))
        if variables(start) <= set(kernel.blocks) and not loads(start)
        and isinstance(extent, Const)
        and abs(stride_of(start, along[0]) or 0) >= int(extent)
    )  # fmt: skip


def lower_wait(low: Lowering, op: Wait) -> Iterable[Op]:
    """A wait, at cluster scope when peers' ordinary accesses come before it: all of them, or where
    that is enough those of shared memory, which keeps the block's cache of global memory."""
    op = low.plain(op)
    if op.barrier.buffer.name not in low.crossing:
        yield op
    else:
        order = "shared" if low.peer_fence == "cluster_shared" else ""
        yield Intrinsic("wait_cluster", (op.barrier, op.phase), text=order)


def order_arrivals(low: Lowering, body: Body) -> Body:
    """In front of arrivals at peers: the fence that their order needs, once threads have met."""
    if low.ordered or any(accesses_memory(op) for op in body):
        return ()
    for barrier in (op.barrier for op in walk_ops(body, Arrive)):
        if barrier.cta is not None and barrier.buffer.name in low.crossing:
            return (*low.meet(), *low.by_leader(Fence(low.peer_fence)))
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
    met = low.meet() if announced else ()
    fence = order_arrivals(low, body)
    low.ordered = low.ordered or bool(fence)
    return (*met, *fence)
