"""What may be filled ahead of its readers in pipelined loops, and by which filler.

- **Copies** of tensors to shared tiles, by the bulk engine or `cp.async` (`Ahead`).
- **Gathers**, maps that move elements from wherever an expression says, by `cp.async`:

      for k { map i, j { tile[i, j] = X[table[i], k * 64 + j] } … }

  A thread copies 16 bytes at a time (8 or 4 where that is all that lies together), zeros where a
  guard or the tensor's edge says so.
- **Guarded copies**, as copies of loops of one iteration or none (`loops_of_guards`).
- **Tiles that threads compute** for products (`thread_fills`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilewright.ir.analysis.lifetimes import overwrites
from tilewright.ir.gather import Gather, as_gather, filled_by, gather_of, is_tile_load, reads_inside
from tilewright.passes.core import *
from tilewright.passes.grid.persist_blocks import Common
from tilewright.passes.layout.shared_tiles import bulk_eligible, cp_async_bytes
from tilewright.passes.overlap.rings import BULK, CP_ASYNC, Plan, RingFill, ThreadFill
from tilewright.passes.sync.matrix_groups import NumberedGemm

SIZES = (16, 8, 4)  # bytes of one `cp.async`
WIDE = SIZES[0]
ROWS = 8  # of a swizzle's pattern: parts of a tile begin at whole ones
MOST_SLOTS = 3  # of a tile that threads fill


class Ahead:
    """`plans` of the kernel's pipelined loops, by their ids, and the ids of the `copies` in them.

    `tensors` are the program's, `mapped` what the bulk engine can load from; `viewed` the buffers
    that have views or are some; `written` those that the kernel writes, tensors also under other
    names. With `tiles` also the loop over tiles of a persistent kernel has slots, one of each: for
    what its body loads outside other loops.
    """

    def __init__(self, at: Facts, *, tiles: bool = False) -> None:
        kernel, program = at.kernel, at.program
        self.kernel, self.target, self.tiles = kernel, at.target, tiles
        self.tensors = {t.name for t in (*program.tensors, *program.scratch)}
        self.viewed = at.viewed
        self.mapped = _mapped(program, walk_ops(kernel, View))
        self.written = written_by(kernel)
        self.by_threads: set[int] = set()  # copies that could run ahead, if there were an engine
        self.against: dict[int, str] = {}  # of maps that only move: why they do not run ahead
        self.common = Common(kernel)
        self.plans = {
            id(op): self.plan(op, ranges)
            for op, ranges in scope.walk_ranges(kernel, program.dims)
            if isinstance(op, For)
            and (tiles if op.kind == "persistent" else op.kind == "pipelined" and op.stages >= 1)
        }
        # a ring holds a buffer's values only where every use stands in a loop that fills it
        plans = self.plans.values()
        for name in {fill.tile.name for fill in self.fills}:
            loops = {plan.loop.var for plan in plans if name in plan.fills}
            if name in used_outside(kernel.body, loops):
                for plan in plans:
                    plan.fills.pop(name, None)
        self.copies = {id(p.loop.body[fill.at]) for p in plans for fill in p.fills.values()}

    @property
    def fills(self) -> list[RingFill]:
        return [fill for plan in self.plans.values() for fill in plan.fills.values()]

    def plan(self, op: For, ranges: Ranges) -> Plan:
        plan = Plan(op if op.stages else rebuild(op, stages=1))
        forward = isinstance(op.step, Const) or op.kind == "persistent"
        forward = forward and bounds(op.step, ranges).lo > 0
        runs = bounds(op.stop - op.start, ranges).hi > 0  # otherwise nothing would be filled
        if forward and runs and not leaves_early(op.body):
            fills = [self.fill(plan.loop, at, ranges) for at in range(len(op.body))]
            plan.fills = {fill.tile.name: fill for fill in fills if fill is not None}
        return plan

    def fill(self, loop: For, at: int, ranges: Ranges) -> RingFill | None:
        """Statement `at` of `loop` as a copy or a gather that may run in an earlier iteration."""
        op, names = loop.body[at], let_values(loop.body[:at])
        new: Copy | Map | None = None
        if isinstance(op, Map) and op.layout is None and op.atom is None:
            if loop.kind == "pipelined" and loop.stages > 1 and loop.order is None:
                new = as_gather(op, names)
        elif isinstance(op, Copy) and _loads_tile(op):
            new = rebuild(op, src=map_region(op.src, lambda e: substitute(e, names)))
        if new is None:
            return None
        tile, gathers = filled_by(new), isinstance(new, Map)
        uses = [k for k, o in enumerate(loop.body) if k != at and tile.name in mentioned(o)]
        alone = tile.is_static and tile.name not in self.viewed and bool(uses) and uses[0] > at
        against = {
            "something else uses the tile": not alone
            or any(touched(loop.body[k])[tile.name] for k in uses),
            "as requested": gathers and self.target.internal.async_gathers is False,
            "threads hold the tile": isinstance(tile.layout, Fragment),
            "the loop decides what is moved": not self.is_steady(loop, new),
            "a guard decides what may be read": isinstance(new, Map) and not _is_safe(new),
        }
        why = next((why for why, holds in against.items() if holds), None)
        how = why or self.engine(new, loop, ranges)
        if not isinstance(how, str):
            # the bulk engine alone sends to other blocks
            peers = self.peers(new) if isinstance(new, Copy) and how[0] == BULK else 1
            return RingFill(at, new, how[0], uses, peers, how[1])
        if gathers:
            self.against[id(op)] = how
        elif why is None:
            self.by_threads.add(id(op))
        return None

    def is_steady(self, loop: For, op: Op) -> bool:
        """Whether `op` depends on nothing that the loop computes, and on no tensor that is written:
        an asynchronous copy could miss the change."""
        changed, ops = written_in(loop.body), list(walk_ops(op))
        inner = {v for each in loop.body for v in bound_within(each)} - {*bound_within(op)}
        return not any(variables(e) & inner for each in ops for e in expressions(each)) and not any(
            b.name in (self.written if b.is_global else changed)
            for each in ops
            for b in read_buffers(each)
        )

    def engine(self, op: Copy | Map, loop: For, ranges: Ranges) -> tuple[str, int] | str:
        """What makes the copy wherever it ends up, before the loop or iterations ahead in it, and
        how many bytes `cp.async` moves at a time; or why nothing does."""
        iteration, count = Var(" iteration", loop.var.dtype), loop.stages
        ahead = scope.inside(loop, "body", ranges)
        places = [(loop.start + iteration * loop.step, ranges.where(iteration, 0, count - 1))]
        places += [(loop.var + loop.step * n, ahead) for n in (count, count - 1)]
        moved = [(substitute_vars(op, {loop.var: v}), known) for v, known in places]
        features = self.target.features
        if isinstance(op, Copy) and op.prefer != "cp_async" and Feature.BULK_COPY in features:
            able = all(isinstance(c, Copy) and bulk_eligible(c, known) for c, known in moved)
            if able and op.src.buffer.name in self.mapped:
                return BULK, 0
        if Feature.CP_ASYNC not in features:
            return f"{self.target.arch} has none"
        width = min(async_bytes(*each) for each in moved)
        unaligned = "fewer than 4 aligned bytes are known to be contiguous"
        return (CP_ASYNC, width) if width else unaligned

    def peers(self, copy: Copy) -> int:
        """Blocks of the cluster, where all of them need the same tile at the same time."""
        count = self.kernel.cluster_size
        if count == 1 or self.kernel.rank is None or not self.tiles:
            return 1
        rows, *inner = copy.dst.static_tile
        parts = bool(inner) and rows % (count * ROWS) == 0
        return count if parts and self.common.control and self.common.region(copy.src) else 1


def _loads_tile(op: Copy) -> bool:
    """Whether a copy of a tensor fills a whole tile of shared memory, whichever way."""
    plain = all(x is None for x in (op.atom, op.multicast, op.barrier, op.reduce))
    return plain and op.prefer != "sync" and is_tile_load(op) and op.dst.is_whole


def _mapped(program: Program, views: Iterable[View]) -> set[str]:
    """Tensors, and views of whole ones under another shape that a launch knows."""
    found = {t.name: t for t in (*program.tensors, *program.scratch)}
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


def _is_safe(op: Map) -> bool:
    """Whether all elements may be read, though the map's guard does not ask for them."""
    found = gather_of(op)
    assert found is not None
    return found.cond is TRUE or all(reads_inside(x, op) for x in loads(found.store.value))


# ── gathers ──────────────────────────────────────────────────────────────────────────────────


def async_bytes(op: Op, ranges: Ranges) -> int:
    """How many bytes one `cp.async` of a copy or a gather may move, given what holds where it
    stands; 0 where none can."""
    if isinstance(op, Copy):
        return cp_async_bytes(op, ranges)
    assert isinstance(op, Map)
    found = gather_of(op)
    assert found is not None
    bits = found.load.dtype.bits
    for size in SIZES:
        count = size * 8 // bits
        if count and int(op.extents[-1]) % count == 0 and _together(op, found, count, ranges):
            return size
    return 0


def _together(op: Map, found: Gather, count: int, ranges: Ranges) -> bool:
    """Whether `count` neighbours of the tile's rows are neighbours in the tensor, and either all
    of them are wanted or none."""
    buffer, indices = found.load.buffer, found.load.indices
    if count == 1 or not indices:
        return count == 1
    last, extent = op.vars[-1], int(op.extents[-1])
    group, each = Var(" group"), Var(" each")
    ranges = scope.inside(op, "body", ranges)
    ranges = ranges.where(group, 0, extent // count - 1).where(each, 0, count - 1)

    def at(e: Expr, more: Expr, index: bool = True) -> Expr:
        return simplify(substitute(e, {last: group * count + more}), ranges, index=index)

    if any(at(e, each) is not at(e, const(0)) for e in indices[:-1]):
        return False
    if not holds_for_all(found.cond, partial(at, index=False), each, count, ranges):
        return False
    first = at(indices[-1], const(0))
    if not _is_zero(at(indices[-1], each) - first - each, ranges):
        return False
    *strides, innermost = buffer.strides or (const(1),)
    apart = [first, buffer.shape[-1], *strides]
    return _is_zero(innermost - 1, ranges) and not any(
        multiple_of(e, ranges) % count for e in apart
    )


def _is_zero(e: Expr, ranges: Ranges) -> bool:
    found = simplify(e, ranges)
    return isinstance(found, Const) and found.value == 0


def holds_for_all(
    cond: Expr, at: Callable[[Expr, Expr], Expr], each: Var, count: int, ranges: Ranges
) -> bool:
    """Whether `cond` is the same for a group of `count` neighbours: `at(e, each)` is what `e` is
    for one of them, `at(e, 0)` for the first. A border that lies between groups parts none.

    For a group of any length (`count` 0): whether those for which it holds follow each other, so
    that it holds for all where it does for the first and the last."""
    zero = const(0)
    if at(cond, each) is at(cond, zero):
        return True
    if isinstance(cond, Bin) and cond.op in ("and", "or")[: 2 if count else 1]:
        return all(holds_for_all(c, at, each, count, ranges) for c in cond.children)
    if not isinstance(cond, Cmp) or cond.op not in _SHIFTS or not cond.a.dtype.is_int:
        return False
    if not all(ranges.exact(at(side, each), False) for side in cond.children):
        return False
    # `first + each < 0` and `first - each <= 0` ask the same of all where first is a multiple
    first, one = (at(cond.a, e) - at(cond.b, e) for e in (zero, each))
    for sign, shift in zip((1, -1), _SHIFTS[cond.op], strict=True):
        if _is_zero(one - first - each * sign, ranges):
            return not count or multiple_of(simplify(first + shift, ranges), ranges) % count == 0
    return False


# what is added to a difference that grows, or falls, by one from neighbour to neighbour
_SHIFTS = {"<": (0, 1), ">=": (0, 1), "<=": (-1, 0), ">": (-1, 0)}


# ── guards ───────────────────────────────────────────────────────────────────────────────────


def loops_of_guards(body: Body) -> Body:
    """`body`, guards around loads of its pipelined loops as loops; itself where there are none.

        for k in 0 .. n kind=pipelined stages=2 { if M[k] { copy K[k] -> a; T = q · a; … } }

        for k in 0 .. n { for once in 0 .. (1 if M[k] else 0) kind=pipelined stages=2 { copy … } }

    What the next iteration loads is not known before its guard has been asked, so nothing can be
    filled in advance by whoever computes. A producer asks for itself: its rings count what was
    used, whichever loops stand around, and it runs ahead over iterations that are skipped. So this
    form is for kernels that get one.
    """

    def once(guard: Op, loop: For) -> Op:
        if not isinstance(guard, If) or guard.orelse or leaves_early(guard.then):
            return guard
        if not any(map(is_tile_load, guard.then)):
            return guard
        var = fresh_var(f"{loop.var.name}_once")
        count = Select(guard.cond, const(1), const(0))
        loop = rebuild(loop, var=var, start=const(0), stop=count, body=guard.then, loc=guard.loc)
        return rebuild(loop, step=const(1))

    def rule(op: Op) -> Op | None:
        if not isinstance(op, For) or op.kind != "pipelined" or op.stages < 1:
            return None
        new = tuple(once(each, op) for each in op.body) if op.order is None else op.body
        same = all(a is b for a, b in zip(new, op.body, strict=True))
        return None if same else rebuild(op, body=new)

    return map_body(body, rule)


# ── tiles that threads fill ──────────────────────────────────────────────────────────────────


def thread_fills(kernel: Kernel, loop: For, others: set[str], room: int) -> list[ThreadFill]:
    """Tiles that threads write for products of `loop` and that may have several slots, in `room`
    bytes. `others`: buffers that cannot (rings, views).

    What no engine can bring as the product needs it (numbers to be unpacked or scaled) threads
    write themselves. With one tile they would wait until the product of the iteration before has
    read it; with two they write the next one under it, and with three the product after that is
    queued when it ends.

        for k { tile = f(k); C += A[k] · tile }

        for k { tile[k % 3] = f(k); wait for the product of k - 2; meet; C += A[k] · tile[k % 3] }

    All threads meet between the writes and the product. Who has met them there has ended the
    products of `slots` iterations ago, so that the next slot is free in every warpgroup.
    """
    found: list[ThreadFill] = []
    if loop.kind != "pipelined" or loop.stages < 2 or leaves_early(loop.body):
        return found
    outside = used_outside(kernel.body, {loop.var}) | others
    for tile in sorted({op.buffer for op in walk_ops(kernel, Alloc)}, key=lambda b: b.name):
        if not tile.is_shared or not tile.is_static or tile.name in outside:
            continue
        uses = [op for op in loop.body if tile.name in mentioned(op)]
        writes = [op for op in uses if touched(op)[tile.name]]
        products = [op for op in uses[len(writes) :] if isinstance(op, NumberedGemm)]
        slots = min(MOST_SLOTS, loop.stages, 1 + room // tile.bytes)
        if slots < 2 or not writes or not products or uses != [*writes, *products]:
            continue
        first, within = writes[0], [p for op in writes for p in walk_ops(op, NumberedGemm)]
        brought = isinstance(first, Copy) and first.src.buffer.is_global  # nobody meets for that
        if brought or not overwrites(first, tile.name):
            continue
        if any(tile in (p.a.buffer, p.b.buffer) for p in within):
            continue  # written again under a product of the same iteration
        room -= (slots - 1) * tile.bytes
        last = next(k for k, op in enumerate(loop.body) if op is writes[-1])
        found.append(ThreadFill(tile, last, tuple(p.number for p in products), slots))
    return found
