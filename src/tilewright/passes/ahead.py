"""Which copies of pipelined loops may run ahead of their readers, and what can make them."""

from __future__ import annotations

from tilewright.ir import scope
from tilewright.ir.atoms import Feature
from tilewright.ir.bounds import Ranges, bounds
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Const, Expr, Var, const, loads, substitute, variables
from tilewright.ir.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    For,
    Hint,
    Kernel,
    Let,
    Op,
    Program,
    View,
    bodies,
    bound,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import rebuild
from tilewright.ir.target import Target
from tilewright.passes.bulk_rules import bulk_eligible, cp_async_eligible
from tilewright.passes.cluster_blocks import Common, blocks_of_cluster
from tilewright.passes.rings import (
    BULK,
    CP_ASYNC,
    Fill,
    Plan,
    copy_at,
    leaves_early,
    mentioned,
    part_of,
    written_by,
    written_in,
)


class Ahead:
    """`plans` of the kernel's pipelined loops, by their ids, and the ids of the `copies` in them.

    `tensors` are the program's; `viewed` the buffers that have views or are some; `written` those
    that the kernel writes, tensors also under other names. With `tiles` also the loop over tiles of
    a persistent kernel has slots, one of each: for what its body loads outside other loops.
    """

    def __init__(
        self, kernel: Kernel, program: Program, target: Target, *, tiles: bool = False
    ) -> None:
        self.kernel = kernel
        self.tiles = tiles
        self.target = target
        self.tensors = {t.name for t in program.tensors}
        views = [op for op in walk_ops(kernel) if isinstance(op, View)]
        self.viewed = {b.name for op in views for b in (op.buffer, op.source)}
        self.written = written_by(kernel)
        self.copies: set[int] = set()
        self.common = Common(kernel)
        self.plans = self.find_plans(program)

    def find_plans(self, program: Program) -> dict[int, Plan]:
        """By the id of each pipelined loop."""
        plans: dict[int, Plan] = {}
        for op, ranges in scope.walk_ranges(self.kernel, program.dims):
            if isinstance(op, For) and self.is_pipelined(op):
                plan = Plan(op if op.stages else rebuild(op, stages=1))
                step, extent = op.step, bounds(op.stop - op.start, ranges)
                forward = (bounds(step, ranges).lo or 0) > 0
                forward = forward and (isinstance(step, Const) or op.kind == "persistent")
                runs = extent.hi is None or extent.hi > 0  # otherwise nothing would be filled
                if forward and runs and not leaves_early(op.body):
                    for at, each in enumerate(op.body):
                        found = self.runs_ahead(plan.loop, at, each, ranges)
                        if found is not None:
                            plan.fills[found.copy.dst.buffer.name] = found
                plans[id(op)] = plan
        # a ring holds a buffer's values only where every use stands in a loop that fills it
        outside = self.uses_outside(self.kernel.body, plans)
        for plan in plans.values():
            plan.fills = {n: f for n, f in plan.fills.items() if n not in outside}
            self.copies |= {id(plan.loop.body[fill.at]) for fill in plan.fills.values()}
        return plans

    def is_pipelined(self, loop: For) -> bool:
        if loop.kind == "persistent":
            return self.tiles
        return loop.kind == "pipelined" and loop.stages >= 1

    def uses_outside(self, body: Body, plans: dict[int, Plan]) -> set[str]:
        """Buffers used in `body` outside the loops that fill them ahead."""
        found: set[str] = set()
        for op in body:
            if isinstance(op, (Alloc, Hint)):
                continue
            inner = set().union(*(self.uses_outside(b, plans) for b in bodies(op)))
            head = {b.name for b in (*read_buffers(op), *written_buffers(op))}
            if id(op) in plans:
                inner -= set(plans[id(op)].fills)
            found |= head | inner
        return found

    def runs_ahead(self, loop: For, at: int, op: Op, ranges: Ranges) -> Fill | None:
        """Statement `at` of `loop` as a copy that may be made in an earlier iteration."""
        if not isinstance(op, Copy) or op.atom is not None or op.prefer == "sync":
            return None
        if op.multicast is not None or op.barrier is not None or op.reduce is not None:
            return None
        tensor, tile = op.src.buffer, op.dst.buffer
        if tensor.space is not Space.GLOBAL or tile.space is not Space.SHARED:
            return None
        if not op.dst.is_whole or not tile.is_static or tile.name in self.viewed:
            return None
        writers = [i for o in loop.body for i in walk_ops(o) if tile.name in written_in((i,))]
        uses = [k for k, o in enumerate(loop.body) if k != at and tile.name in mentioned(o)]
        own = [i for i in writers if not any(True for _ in bodies(i))]
        if len(own) != 1 or own[0] is not op or not uses or min(uses) < at:
            return None
        if isinstance(tile.layout, Fragment) or tensor.name in written_in(loop.body):
            return None
        copy = self.resolved(loop, at, op)
        if copy is None:
            return None
        how = self.engine(copy, loop, ranges)
        return None if how is None else Fill(at, copy, how, uses, self.peers(copy))

    def peers(self, copy: Copy) -> int:
        """Blocks of the cluster, where all of them need the same tile at the same time."""
        count = blocks_of_cluster(self.kernel)
        if count == 1 or self.kernel.rank is None or not self.tiles:
            return 1
        alike = self.common.control and self.common.region(copy.src)
        return count if alike and part_of(copy, count, const(0)) is not None else 1

    def resolved(self, loop: For, at: int, op: Copy) -> Copy | None:
        """`op` in terms of the loop's variable and what holds in all iterations; None where it
        needs something that the body computes."""
        values: dict[Var, Expr] = {}
        for earlier in loop.body[:at]:
            if isinstance(earlier, Let):
                values[earlier.var] = substitute(earlier.value, values)
        inner = {v for o in loop.body for each in walk_ops(o) for v in bound(each)}
        changed = written_in(loop.body)
        src = Region(
            op.src.buffer,
            tuple(substitute(s, values) for s in op.src.starts),
            tuple(substitute(e, values) for e in op.src.extents),
            op.src.cta,
        )
        for expr in (*src.starts, *src.extents):
            if variables(expr) & inner:
                return None
            for load in loads(expr):
                fixed = self.written if load.buffer.space is Space.GLOBAL else changed
                if load.buffer.name in fixed:
                    return None
        return rebuild(op, src=src)

    def engine(self, copy: Copy, loop: For, ranges: Ranges) -> str | None:
        """What makes the copy wherever it ends up: before the loop, or iterations ahead in it."""
        turn = Var(" turn", loop.var.dtype)
        before = ranges.where(turn, 0, loop.stages - 1)
        ahead = scope.inside(loop, "body", ranges)
        places = (
            (copy_at(copy, loop, loop.start + turn * loop.step), before),
            (copy_at(copy, loop, loop.var + loop.step * loop.stages), ahead),
            (copy_at(copy, loop, loop.var + loop.step * (loop.stages - 1)), ahead),
        )
        features = self.target.features
        # a tensor that this kernel writes is not read behind the threads' back
        if copy.src.buffer.name in self.written:
            return None
        bulk = Feature.BULK_COPY in features and copy.src.buffer.name in self.tensors
        if bulk and copy.prefer != "cp_async" and all(bulk_eligible(c, r) for c, r in places):
            return BULK
        if Feature.CP_ASYNC in features and all(cp_async_eligible(c, r) for c, r in places):
            return CP_ASYNC
        return None
