"""Copies that do not run ahead, made by the bulk engine where it can.

Loads of single tiles get a barrier of their own, a run of them one, waited for before the next op
that uses one of the tiles; tiles in shared memory are stored by the engine too. In a loop a load
begins as soon as its tile is free, not after products that it has nothing to do with: what is used
late comes while threads wait for what is used first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeGuard

from tilewright.ir.analysis.accesses import accesses_of, apart
from tilewright.passes.core import *
from tilewright.passes.layout.shared_tiles import bulk_eligible, cp_async_bytes, is_row
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import BULK, CP_ASYNC, Ring


class SingleCopies:
    """`found` says which copies run ahead; `barriers` and `counters` are what the kernel gets;
    `gives`: in roles, which load only, ops before which all loads must be over, because others
    learn of them there."""

    def __init__(self, found: Ahead, gives: Callable[[Op], bool] | None = None) -> None:
        self.found, self.kernel, self.target = found, found.kernel, found.target
        self.barriers: list[Buffer] = []
        self.counters: list[Buffer] = []
        self.rings: list[Ring] = []
        self.in_roles = gives is not None
        self.gives = gives or (lambda op: False)

    def barrier(self, name: str, count: int) -> Buffer:
        size = (const(count),)
        made = Buffer(fresh_name(name), size, BARRIER, Space.BARRIER)
        self.barriers.append(made)
        return made

    def counter(self, name: str) -> Buffer:
        self.counters.append(Buffer(fresh_name(name), (), INT32, Space.LOCAL))
        return self.counters[-1]

    def engaged(self, op: Copy, ranges: Ranges, looped: bool) -> Copy:
        """`op` by the bulk engine where it can: loads of tensors that the kernel does not write,
        stores of tensors that nothing else uses. (The fence that shows the engine ordinary writes
        is for those of the block's own threads: tiles that peers write are not its.) Other loads by
        `cp.async`, where no loop counts its groups."""
        found, load = self.found, op.src.buffer.is_global
        tensor, tile = (op.src.buffer, op.dst.buffer) if load else (op.dst.buffer, op.src.buffer)
        able = (
            Feature.BULK_COPY in self.target.features
            and (load or not self.in_roles)
            and op.atom is None
            and op.multicast is None
            and op.prefer not in ("sync", "cp_async")
            and id(op) not in found.copies
            and tile.name not in found.viewed
            and tile not in self.of_peers
            and (tensor.name not in found.written if load else self.is_stored_only(tensor, op))
            and ((tensor.name in found.tensors and bulk_eligible(op, ranges)) or is_row(op, ranges))
        )
        if able:
            return rebuild(op, atom=BULK if load else "bulk_store")
        if looped or not load or op.atom is not None or op.prefer not in (None, CP_ASYNC):
            return op
        if tile.name in found.viewed or tile in self.of_peers:
            return op
        grouped = any(ring.how == CP_ASYNC for ring in self.rings)
        least = 1 if op.prefer == CP_ASYNC else 16
        if grouped or cp_async_bytes(op, ranges) < least:
            return op
        return rebuild(op, atom=CP_ASYNC)

    @cached_property
    def of_peers(self) -> set[Buffer]:
        """Tiles that other blocks of the cluster store into."""
        return {op.dst.buffer for op in walk_ops(self.kernel, Copy) if op.dst.cta is not None}

    def is_stored_only(self, tensor: Buffer, store: Copy) -> bool:
        """Nothing touches `tensor` but `store`, and others that the engine can make: what it does
        not do is not ordered with what it does."""
        others = self.not_stored.get(tensor, ())
        return tensor.name not in self.found.viewed and all(op is store for op in others)

    @cached_property
    def not_stored(self) -> dict[Buffer, list[Op]]:
        """By tensor, what touches it that is no store which the engine can make."""
        found: dict[Buffer, list[Op]] = {}
        for op in walk_ops(self.kernel.body):
            store = op.dst.buffer if isinstance(op, Copy) and bulk_eligible(op, Ranges()) else None
            for buffer in {*read_buffers(op), *written_buffers(op)}:
                if buffer != store:
                    found.setdefault(buffer, []).append(op)
        return found

    def loads(self, body: list[Op], looped: bool) -> Body:
        """Loads of single tiles: each run of them on one barrier, waited for before the next op
        that uses one of the tiles."""
        found: list[Op] = []
        waiting: list[tuple[list[Copy], list[Op]]] = []
        run: list[Copy] = []
        body, moved = self.early(body) if looped else (body, set())

        def issue() -> None:
            if not run:
                return
            first = run[0].dst.buffer.name
            if run[0].atom == CP_ASYNC:
                found.extend([*run, Commit(CP_ASYNC)])
                waiting.append(([*run], [WaitGroup(CP_ASYNC, 0)]))
                run.clear()
                return
            barrier = element(self.barrier(f"{first}_full", 1), 0)
            total = sum(c.dst.dtype.storage_bytes(prod(c.dst.static_tile)) for c in run)
            found.append(Arrive(barrier, const(total)))
            found.extend(rebuild(c, barrier=barrier) for c in run)
            wait: list[Op] = [Wait(barrier, const(0))]
            if looped:
                counter = self.counter(f"{first}_count")
                uses = Load(counter, ())
                wait = [Wait(barrier, uses % 2), Store(counter, (), uses + 1)]
            waiting.append(([*run], wait))
            run.clear()

        def settle(op: Op | None) -> None:
            for item in list(waiting):
                if op is None or any(_uses(op, x) or self.overwrites(op, x) for x in item[0]):
                    found.extend(item[1])
                    waiting.remove(item)

        for op in body:
            used = mentioned(op)
            joins = _is_load(op) and id(op) not in moved and all(c.atom == op.atom for c in run)
            if not joins or used & {c.dst.buffer.name for c in run}:
                issue()
            everything = leaves_early((op,)) or any(self.gives(o) for o in walk_ops(op))
            settle(None if everything else op)
            if _is_load(op):
                run.append(op)
            else:
                found.append(op)
        issue()
        settle(None)
        return tuple(found)

    def overwrites(self, op: Op, load: Copy) -> bool:
        """Whether `op` may write what `load` still reads: a tensor, perhaps under another name."""
        tensor = load.src.buffer.name
        if tensor not in self.found.written and tensor not in self.found.viewed:
            return False
        return any(b.is_global for inner in walk_ops((op,)) for b in written_buffers(inner))

    def early(self, body: list[Op]) -> tuple[list[Op], set[int]]:
        """`body` of a loop whose loads begin as soon as their tiles are free, and which of them
        were moved: what is used late then comes while threads wait for what is used first."""
        found: list[Op] = []
        moved: set[int] = set()
        for op in body:
            at = len(found)
            if _is_load(op):
                while at > 0 and not self.orders(found[at - 1], op):
                    at -= 1
                if any(walk_ops(tuple(found[at:]), Gemm)):
                    moved.add(id(op))
                else:  # nothing to wait for in between
                    at = len(found)
            found.insert(at, op)
        return found, moved

    def orders(self, before: Op, load: Copy) -> bool:
        """Whether `load` has to stay after `before`."""
        if isinstance(before, Copy) and before.atom == BULK:
            return True  # loads come in the order of the text
        needs = {v for e in expressions(load) for v in variables(e)}
        reads = {x.buffer.name for x in op_loads(load)} | {load.dst.buffer.name}
        named = mentioned(before) | {buffer.name for buffer in named_buffers(before)}
        meets = any(self.gives(o) or _meets_others(o) for o in walk_ops(before))
        free = needs.isdisjoint(bound(before)) and reads.isdisjoint(named)
        return meets or not free or leaves_early((before,))


def _is_load(op: Op) -> TypeGuard[Copy]:
    """A load by the engine that has no barrier yet, or by `cp.async`."""
    return isinstance(op, Copy) and op.atom in (BULK, CP_ASYNC) and op.barrier is None


def _uses(op: Op, load: Copy) -> bool:
    """Whether `op` touches what `load` brings; what fills the rest of a tile does not."""
    tile = load.dst.buffer.name
    if tile not in mentioned(op) or not isinstance(op, Fill):
        return tile in mentioned(op)
    boxes = [[box for b, _, _, box, *_ in accesses_of(x) if b.name == tile] for x in (op, load)]
    return not all(a and b and apart(a, b) for a, b in product(*boxes))


def _meets_others(op: Op) -> bool:
    """Whether `op` may be there to wait until others, even of other kernels, have written what is
    loaded after it."""
    return isinstance(op, (Sync, Fence, Intrinsic, While)) or (
        isinstance(op, Atomic) and (op.result is not None or op.order != "relaxed")
    )
