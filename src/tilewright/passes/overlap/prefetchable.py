"""Which copies of pipelined loops may run ahead of their readers, and what can make them."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir import scope
from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.analysis.effects import leaves_early, mentioned, written_by, written_in
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import (
    TRUE,
    Const,
    Expr,
    Load,
    Var,
    const,
    loads,
    substitute,
    variables,
)
from tilewright.ir.gather import as_gather, filled_by, gather_of
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    For,
    Hint,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    View,
    bodies,
    bound_within,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import rebuild
from tilewright.ir.target import Target
from tilewright.passes.grid.persist_blocks import Common, blocks_of_cluster
from tilewright.passes.layout.shared_tiles import bulk_eligible, cp_async_bytes
from tilewright.passes.overlap.gathers import gather_bytes
from tilewright.passes.overlap.rings import (
    BULK,
    CP_ASYNC,
    Fill,
    Plan,
    copy_at,
    part_of,
)


class Ahead:
    """`plans` of the kernel's pipelined loops, by their ids, and the ids of the `copies` in them.

    `tensors` are the program's, `mapped` what the bulk engine can load from; `viewed` the buffers
    that have views or are some; `written` those that the kernel writes, tensors also under other
    names. With `tiles` also the loop over tiles of a persistent kernel has slots, one of each: for
    what its body loads outside other loops.
    """

    def __init__(
        self, kernel: Kernel, program: Program, target: Target, *, tiles: bool = False
    ) -> None:
        self.kernel = kernel
        self.tiles = tiles
        self.target = target
        self.tensors = {t.name for t in program.tensors}
        views = [op for op in walk_ops(kernel) if isinstance(op, View)]
        self.viewed = aliases(kernel).viewed
        self.mapped = _mapped(program, views)
        self.written = written_by(kernel)
        self.copies: set[int] = set()
        self.by_threads: set[int] = set()  # copies that could run ahead, if there were an engine
        self.against: dict[int, str] = {}  # of nests that only move: why they do not run ahead
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
                            plan.fills[found.tile.name] = found
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
        if isinstance(op, Map):
            return self.gathers_ahead(loop, at, op, ranges)
        if not isinstance(op, Copy) or op.atom is not None or op.prefer == "sync":
            return None
        if op.multicast is not None or op.barrier is not None or op.reduce is not None:
            return None
        tensor, tile = op.src.buffer, op.dst.buffer
        if tensor.space is not Space.GLOBAL or tile.space is not Space.SHARED:
            return None
        uses = self.uses_of(loop, at, op, tile)
        if not op.dst.is_whole or uses is None:
            return None
        if isinstance(tile.layout, Fragment) or tensor.name in written_in(loop.body):
            return None
        copy = self.resolved(loop, at, op)
        if copy is None:
            return None
        how, width = self.engine(copy, loop, ranges)
        if how is None:
            if tensor.name not in self.written:
                self.by_threads.add(id(op))
            return None
        # the bulk engine alone sends to other blocks
        return Fill(at, copy, how, uses, self.peers(copy) if how == BULK else 1, width)

    def gathers_ahead(self, loop: For, at: int, op: Map, ranges: Ranges) -> Fill | None:
        """Statement `at` of `loop` as a nest of `cp.async` that may run in an earlier iteration."""
        if loop.kind != "pipelined" or loop.stages < 2 or loop.order is not None:
            return None
        if op.layout is not None or op.atom is not None:
            return None
        nest = as_gather(op, self.names_before(loop, at))
        if nest is None:
            return None
        uses = self.uses_of(loop, at, op.body[-1], filled_by(nest))
        width, against = 0, "something else uses the tile"
        if uses is not None:
            width, against = self.gathered(loop, nest, ranges)
        if not width or uses is None:
            self.against[id(op)] = against
            return None
        return Fill(at, nest, CP_ASYNC, uses, width=width)

    def gathered(self, loop: For, nest: Map, ranges: Ranges) -> tuple[int, str]:
        """How many bytes one `cp.async` of a nest moves; 0, and why none can make it."""
        found, tile = gather_of(nest), filled_by(nest)
        assert found is not None
        value = found.store.value
        if self.target.internal.async_gathers is False:
            return 0, "as asked for"
        if Feature.CP_ASYNC not in self.target.features:
            return 0, f"{self.target.arch} has none"
        if isinstance(tile.layout, Fragment):
            return 0, "threads hold the tile"
        if not self.is_steady(loop, value, set(nest.vars)):
            return 0, "the loop decides what is moved"
        if found.cond is not TRUE and not all(_is_safe(x, nest) for x in loads(value)):
            return 0, "a guard decides what may be read"
        places = [(substitute(value, {loop.var: v}), r) for v, r in self.places(loop, ranges)]
        width = min(
            gather_bytes(rebuild(nest, body=(rebuild(found.store, value=v),)), r) for v, r in places
        )
        return width, "fewer than 4 aligned bytes are known to lie together"

    def uses_of(self, loop: For, at: int, op: Op, tile: Buffer) -> list[int] | None:
        """The statements that read `tile`, which `op`, in statement `at`, fills before; None where
        anything else writes it, or it is seen under other names."""
        if not tile.is_static or tile.name in self.viewed:
            return None
        writers = [i for o in loop.body for i in walk_ops(o) if tile.name in written_in((i,))]
        uses = [k for k, o in enumerate(loop.body) if k != at and tile.name in mentioned(o)]
        own = [i for i in writers if not any(True for _ in bodies(i))]
        if isinstance(op, If):  # a value, or zero
            sides = {id(i) for i in (*op.then, *op.orelse)}
            own = [i for i in own if id(i) not in sides] + [op]
        if len(own) != 1 or own[0] is not op or not uses or min(uses) < at:
            return None
        return uses

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
        values = self.names_before(loop, at)
        src = Region(
            op.src.buffer,
            tuple(substitute(s, values) for s in op.src.starts),
            tuple(substitute(e, values) for e in op.src.extents),
            op.src.cta,
        )
        if not all(self.is_steady(loop, e) for e in (*src.starts, *src.extents)):
            return None
        return rebuild(op, src=src)

    def names_before(self, loop: For, at: int) -> dict[Var, Expr]:
        """What names of the body stand for at statement `at`."""
        values: dict[Var, Expr] = {}
        for earlier in loop.body[:at]:
            if isinstance(earlier, Let):
                values[earlier.var] = substitute(earlier.value, values)
        return values

    def is_steady(self, loop: For, expr: Expr, own: Iterable[Var] = ()) -> bool:
        """Whether `expr` asks for nothing that the loop computes, but for the variables `own`."""
        inner = {v for each in loop.body for v in bound_within(each)}
        if (variables(expr) & inner) - set(own):
            return False
        changed = written_in(loop.body)
        return not any(
            load.buffer.name in (self.written if load.buffer.space is Space.GLOBAL else changed)
            for load in loads(expr)
        )

    def places(self, loop: For, ranges: Ranges) -> tuple[tuple[Expr, Ranges], ...]:
        """What the loop's variable stands for wherever a copy ends up, before the loop or
        iterations ahead in it; and what holds there."""
        turn = Var(" turn", loop.var.dtype)
        before = ranges.where(turn, 0, loop.stages - 1)
        ahead = scope.inside(loop, "body", ranges)
        return (
            (loop.start + turn * loop.step, before),
            (loop.var + loop.step * loop.stages, ahead),
            (loop.var + loop.step * (loop.stages - 1), ahead),
        )

    def engine(self, copy: Copy, loop: For, ranges: Ranges) -> tuple[str | None, int]:
        """What makes the copy wherever it ends up, and how many bytes threads copy at a time."""
        places = [(copy_at(copy, loop, v), known) for v, known in self.places(loop, ranges)]
        features = self.target.features
        # a tensor that this kernel writes is not read behind the threads' back
        if copy.src.buffer.name in self.written:
            return None, 0
        bulk = Feature.BULK_COPY in features and copy.src.buffer.name in self.mapped
        if bulk and copy.prefer != "cp_async" and all(bulk_eligible(c, r) for c, r in places):
            return BULK, 0
        width = min(cp_async_bytes(c, r) for c, r in places)
        return (CP_ASYNC, width) if Feature.CP_ASYNC in features and width else (None, 0)


def _mapped(program: Program, views: Iterable[View]) -> set[str]:
    """Tensors, and views of whole ones under another shape that a launch knows."""
    found = {t.name: t for t in program.tensors}
    known = {d.var for d in program.dims}
    for op in views:
        source, new = found.get(op.source.name), op.buffer
        if source is None or source.strides is not None or new.strides is not None:
            continue
        sizes = [e for e in new.shape if not isinstance(e, Const)]
        same = op.offset is const(0) and new.dtype == source.dtype and len(sizes) < 2
        if same and all(variables(e) <= known and not loads(e) for e in sizes):
            found[new.name] = new
    return set(found)


def _is_safe(load: Load, nest: Map) -> bool:
    """Whether an element may be read though the nest's guard does not ask for it: tensors have
    zeros outside, and others are read at the nest's own points."""
    if load.buffer.space is Space.GLOBAL:
        return True
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    return all(
        isinstance(i, Var) and extents.get(i) is size
        for i, size in zip(load.indices, load.buffer.shape, strict=True)
    )
