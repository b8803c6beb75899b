"""Copies that run ahead of their readers, filled by all threads or by a producer.

A shared buffer that a pipelined loop fills by a copy and then reads becomes a ring of `stages`
slots. The first fills stand before the loop; in an iteration, a wait for the slot's bytes stands
before the first reader, and behind the last one the slot is filled again for a later iteration.
Slot and phase come from a counter that runs on across loops around and behind, so that trip counts
of 0 and 1, guards and persistent loops are nothing special.

- The bulk engine fills what it can (`shared_tiles`), `cp.async` what it can of the rest; a copy
  that neither can make, or that may not run ahead, stays where it is.
- Buffers with the same first and last reader share a ring and its barriers. All that `cp.async`
  fills in a loop is one ring: its groups complete in order.
- A matrix instruction reads asynchronously. A slot that one reads last is filled again where its
  result is needed anyway, or one iteration late, behind the next one's instruction.
- Other copies that the bulk engine can make get a barrier of their own, waited for before the
  next op that uses the tile; tiles in shared memory are stored by it.

`ahead` says which copies these are. With a producer (`roles`) it fills the slots; here they are
only waited for and handed back. `insert_syncs` adds what orders the threads among themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges, bounds, prove
from tilewright.ir.analysis.effects import mentioned, written_in
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Space, element, whole
from tilewright.ir.dtype import BARRIER, INT32
from tilewright.ir.expr import (
    Expr,
    Var,
    binary,
    compare,
    const,
    loads,
)
from tilewright.ir.op import (
    Alloc,
    Arrive,
    Atomic,
    BarrierInit,
    Body,
    Commit,
    Copy,
    Fence,
    For,
    Hint,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Sync,
    WaitGroup,
    While,
    marked,
    walk_ops,
)
from tilewright.ir.rewrite import fresh_name, program_names, rebuild
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.grid.persist_blocks import blocks_of_cluster
from tilewright.passes.overlap.fetched_scalars import Fetches, find_fetches, make_fetches
from tilewright.passes.overlap.gathers import WIDE, rows_before
from tilewright.passes.overlap.guarded_fills import loops_of_guards
from tilewright.passes.overlap.loop_sections import Section, Sections, always, copies_of
from tilewright.passes.overlap.multibuffer import THREADS, Turning, find_turning
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import (
    BULK,
    CP_ASYNC,
    Fill,
    Groups,
    Place,
    Plan,
    Ring,
    RingKey,
    Skew,
    Slots,
    copy_at,
    fill_groups,
    is_async_fill,
    nest_at,
    ring_key,
    slot_region,
    slots_of,
    slotted,
    staged,
)
from tilewright.passes.overlap.roles import (
    GROUP,
    NoProducer,
    consuming_warps,
    placed,
    producer_of,
    releases,
    split_into_roles,
    why_not,
    why_not_worth,
)
from tilewright.passes.overlap.single_copies import SingleCopies
from tilewright.passes.overlap.skew import find_skew
from tilewright.passes.overlap.stage_stores import ROOM, planned_bytes
from tilewright.passes.reasons import at_line, because
from tilewright.passes.sync.insert_syncs import settle_stores
from tilewright.passes.sync.matrix_groups import (
    NumberedGemm,
    Release,
    number_gemms,
    settle_matrix_groups,
    unnumber,
)
from tilewright.support.errors import Loc


def pipeline_loops(program: Program, target: Target) -> Program:
    """Every kernel of `program` with its copies running ahead, as far as `target` can."""
    names = program_names(program)
    kernels = tuple(_kernel(kernel, program, target, names) for kernel in program.kernels)
    return dataclasses.replace(program, kernels=kernels)


def _kernel(kernel: Kernel, program: Program, target: Target, names: set[str]) -> Kernel:
    if split_into_roles(kernel):
        work = _Pipeliner(kernel, program, target, names, gives=releases)
        body = work.body(kernel.body, scope.entry(kernel, program.dims), looped=False)
        announced = any(isinstance(op, Fence) and op.kind == "barrier_init" for op in kernel.body)
        return rebuild(kernel, body=(*work.start(announced), *body))
    if placed(kernel):
        return kernel
    body = number_gemms(kernel.body)
    numbered = rebuild(kernel, body=body)
    work, producer = _Pipeliner(numbered, program, target, names), tuple[Role, ...]()
    told = target.schedule.roles
    # a producer asks for guards itself
    asked = rebuild(kernel, body=loops_of_guards(body, names)) if told is not False else numbered
    ahead = work if asked.body == body else _Pipeliner(asked, program, target, names)
    if told is not False and any(plan.fills for plan in ahead.plans.values()):
        against = ahead.why_whole() or (None if told is True else why_not_worth(asked))
        if against is None:
            apart = _Pipeliner(asked, program, target, names, apart=True)
            try:
                producer = (apart.producer(),)
                work, numbered = apart, asked
                apart.skew_loops()
            except NoProducer as error:
                against = str(error)
        for plan in work.plans.values() if against else ():
            because(kernel.name, plan.loop, f"filled by all threads: {against}")
    for plan in work.plans.values():
        for fill in plan.fills.values():
            if isinstance(fill.copy, Map):
                said = f"{fill.tile.name} gathered by cp.async, {fill.width} bytes at a time"
                because(kernel.name, plan.loop, said)
    work.turn_tiles()
    body = work.body(numbered.body, scope.entry(numbered, program.dims), looped=False)
    body = settle_matrix_groups((*work.start(), *body), work.fills_ring)
    return settle_stores(rebuild(kernel, body=(*unnumber(body), *producer)))


class _Pipeliner:
    def __init__(
        self,
        kernel: Kernel,
        program: Program,
        target: Target,
        names: set[str],
        *,
        apart: bool = False,
        gives: Callable[[Op], bool] | None = None,
    ) -> None:
        self.kernel = kernel
        self.apart = apart  # a producer fills the rings
        self.target = target
        self.names = names
        found = Ahead(kernel, program, target, tiles=apart)
        self.written, self.plans = found.written, found.plans
        self.rings: dict[RingKey, Ring] = {}
        self.turns: dict[tuple[frozenset[int], int], Buffer] = {}
        self.barriers: list[Buffer] = []
        self.counters: list[Buffer] = []
        self.ring_names: set[str] = set()
        self.turning: dict[int, list[tuple[Ring, Turning]]] = {}
        self.fetches: Fetches | None = None
        self.single = SingleCopies(kernel, target, found, self.barrier, self.counter, gives)

    # ── rewriting ────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, ranges: Ranges, *, looped: bool) -> Body:
        """`body` with loops pipelined, inner ones first, and other copies given to the engine."""
        parts = self.statements(body, ranges, looped=looped)
        return self.single.loads([op for part in parts for op in part], looped)

    def statements(self, body: Body, ranges: Ranges, *, looped: bool) -> list[list[Op]]:
        """What becomes of each statement of `body`."""
        found = []
        for op in body:
            found.append(self.statement(op, ranges, looped))
            ranges = scope.after(op, ranges)
        return found

    def statement(self, op: Op, ranges: Ranges, looped: bool) -> list[Op]:
        plan = self.plans.get(id(op))
        if plan is not None and (plan.fills or id(op) in self.turning):
            inside = scope.inside(op, "body", ranges)
            parts = self.statements(plan.loop.body, inside, looped=True)
            return self.pipelined(plan, parts, ranges, looped, self.turning.get(id(op), ()))
        if isinstance(op, Alloc) and self.is_ring(op.buffer):
            return []  # allocated at the start
        if isinstance(op, Hint) and op.buffer is not None and self.is_ring(op.buffer):
            return self.hints(op)
        if isinstance(op, Copy):
            return [self.single.engaged(op, ranges)]
        if isinstance(op, Atomic) and self.fetches is not None and self.fetches.has(op):
            return self.fetches.received(op, self.var("fetch_slot"), consuming_warps(self.kernel))
        if isinstance(op, Map):
            return [op]
        inner = looped or isinstance(op, (For, While))
        changes = {
            f.name: self.body(getattr(op, f.name), scope.inside(op, f.name, ranges), looped=inner)
            for f in marked(op, "body")
        }
        return [rebuild(op, **changes)]

    def is_ring(self, buffer: Buffer) -> bool:
        turning = any(buffer.name in ring.slots for ring in self.turning_rings())
        return turning or any(buffer.name in plan.fills for plan in self.plans.values())

    def turning_rings(self) -> list[Ring]:
        return [ring for several in self.turning.values() for ring, _ in several]

    def hints(self, op: Hint) -> list[Op]:
        """What is said of a buffer, said of its rings. Their loops may come later in the text."""
        assert op.buffer is not None
        found: list[Op] = []
        rings = [ring for plan in self.plans.values() for ring in self.loop_rings(plan)]
        for ring in (*rings, *self.turning_rings()):
            slots = ring.slots.get(op.buffer.name)
            layout = None if op.layout is None else staged(op.layout, ring.stages)
            if slots is not None:
                new = rebuild(op, buffer=slots, layout=layout)
                found += [] if new in found else [new]
        return found

    def loop_rings(self, plan: Plan) -> list[Ring]:
        return [ring for ring, _ in self.grouped(plan)]

    def grouped(self, plan: Plan) -> Groups:
        """The loop's rings: buffers with the same first and last reader together."""
        return [(self.ring(fills, plan), fills) for fills in fill_groups(plan)]

    def ring(self, fills: list[Fill], plan: Plan) -> Ring:
        how, stages = fills[0].how, plan.loop.stages
        key = ring_key(fills, stages)
        if key not in self.rings:
            slots = {}
            for fill in fills:
                buffer = fill.tile
                used = any(buffer.name in ring.slots for ring in self.rings.values())
                name = fresh_name(buffer.name, self.names) if used else buffer.name
                slots[buffer.name] = slots_of(buffer, name, stages)
                self.ring_names.add(name)
            # rings that the same loops go round count together
            loops = frozenset(n for n in self.plans if self.groups_of(key, n))
            together = (loops, stages)
            if together not in self.turns:
                self.turns[together] = self.counter(f"{plan.loop.var.name}_turn")
            full = free = None
            if how == BULK or self.apart:
                full = self.barrier(f"{fills[0].tile.name}_full", stages)
            if self.apart:
                free = self.barrier(f"{fills[0].tile.name}_free", stages)
            # of all loops that go round the ring: each hands slots back to whoever fills them
            peers = max(fill.peers for group in self.groups_of(key) for fill in group)
            self.rings[key] = Ring(stages, how, slots, self.turns[together], full, free, peers)
        return self.rings[key]

    def groups_of(self, key: RingKey, loop: int | None = None) -> list[list[Fill]]:
        """What fills a ring in all loops, or in one of them."""
        plans = self.plans.values() if loop is None else (self.plans[loop],)
        return [
            g for plan in plans for g in fill_groups(plan) if ring_key(g, plan.loop.stages) == key
        ]

    def barrier(self, name: str, count: int) -> Buffer:
        self.barriers.append(
            Buffer(fresh_name(name, self.names), (const(count),), BARRIER, Space.BARRIER)
        )
        return self.barriers[-1]

    def counter(self, name: str) -> Buffer:
        self.counters.append(Buffer(fresh_name(name, self.names), (), INT32, Space.LOCAL))
        return self.counters[-1]

    def var(self, name: str) -> Var:
        return Var(fresh_name(name, self.names))

    def start(self, announced: bool = False) -> Body:
        """What the kernel begins with: rings, barriers and counters. `announced`: it has a fence
        after the initialisation of barriers already."""
        loc = self.kernel.loc
        found: list[Op] = []
        for ring in self.rings.values():
            found += [Alloc(b, loc=loc) for b in ring.slots.values()]
        for ring in self.turning_rings():
            found += [Alloc(b, multibuffer=True, loc=loc) for b in ring.slots.values()]
        found += [Alloc(b, loc=loc) for b in self.barriers]
        found += [Alloc(b, const(0), loc=loc) for b in self.counters]
        warps = consuming_warps(self.kernel)
        arrivals = {ring.free: warps * ring.peers for ring in self.rings.values()}
        # each warp of the producer says when its `cp.async` have come
        arrivals |= {ring.full: GROUP for ring in self.rings.values() if ring.how == CP_ASYNC}
        if self.fetches is not None:
            found.insert(0, Alloc(self.fetches.values, loc=loc))
            arrivals[self.fetches.ring.free] = warps
        found += [BarrierInit(whole(b), const(arrivals.get(b, 1)), loc=loc) for b in self.barriers]
        if self.barriers and not announced:
            shared = any(ring.peers > 1 for ring in self.rings.values())
            meet = Sync("cluster" if shared else "block", loc=loc)
            found += [Fence("barrier_init", loc=loc), meet]
        return tuple(found)

    def fills_ring(self, op: Op) -> bool:
        written = written_in((op,))
        if any(written & {b.name for b in ring.slots.values()} for ring in self.turning_rings()):
            return True
        return is_async_fill(op) and bool(written & self.ring_names)

    def turn_tiles(self) -> None:
        """Tiles that threads fill for products get slots, as far as there is room."""
        others = set(self.single.found.viewed)
        others |= {name for plan in self.plans.values() for name in plan.fills}
        room = self.target.chip.shared - ROOM - planned_bytes(self.kernel)
        for key, plan in self.plans.items():
            if plan.skew is not None or self.target.internal.multibuffer is False:
                continue
            for tile in find_turning(self.kernel, plan.loop, others, room):
                together = (frozenset({key}), tile.slots)
                if together not in self.turns:
                    self.turns[together] = self.counter(f"{plan.loop.var.name}_turn")
                slots = slots_of(tile.buffer, tile.buffer.name, tile.slots)
                ring = Ring(tile.slots, THREADS, {tile.buffer.name: slots}, self.turns[together])
                self.turning.setdefault(key, []).append((ring, tile))
                room -= slots.bytes - tile.buffer.bytes
                said = f"{tile.slots} slots of {tile.buffer.name}, filled under products"
                because(self.kernel.name, plan.loop, said)

    # ── one loop ─────────────────────────────────────────────────────────────────────────────

    def pipelined(
        self,
        plan: Plan,
        parts: list[list[Op]],
        ranges: Ranges,
        looped: bool,
        turning: Iterable[tuple[Ring, Turning]],
    ) -> list[Op]:
        """The loop behind its first fills. `parts` are its statements, rewritten within; `looped`
        whether it stands in another loop."""
        found: list[Op] = []
        loop = plan.loop
        ends = []
        for name, value in (("start", loop.start), ("stop", loop.stop)):
            if loads(value):  # taken once, as the loop does
                var = Var(fresh_name(f"{loop.var.name}_{name}", self.names), value.dtype)
                found.append(Let(var, value, loc=loop.loc))
                value = var
            ends.append(value)
        loop = rebuild(loop, start=ends[0], stop=ends[1])
        for fill in plan.fills.values():
            parts[fill.at] = []
        work = Sections(plan.skew, loop, parts, self.names)
        if plan.skew and plan.skew.copies:
            work.copies = copies_of(plan.skew.copies, self.kernel, self.names)
            work.settled = self.target.schedule.waits != "late"
            found += [Alloc(twin, loc=loop.loc) for twin in work.copies.tiles.values()]
        for ring, tile in turning:
            work.rings.append(ring)
            over = Release(tile.numbers, tile.slots - 2, loc=loop.loc)
            work.at(Place(tile.last), always([over]))
        refills: dict[Place, Groups] = {}
        groups = self.grouped(plan)
        if not self.apart:
            groups = [(ring, [self.rows_before(f, loop, found) for f in fs]) for ring, fs in groups]
        for ring, fills in groups:
            uses = work.in_time({k for f in fills for k in f.uses})
            work.rings.append(ring)
            first, last, loc = uses[0], uses[-1], loop.body[uses[0]].loc
            place, numbers, run = self.release(plan, work, uses, ring)
            if ring.full is not None:
                work.waited_for(ring, first)
            else:
                pending = ring.stages - 1 - place.lag + int(place.at < first)
                arrived: list[Op] = [WaitGroup(CP_ASYNC, pending, loc=loc)]
                if numbers:
                    arrived.append(Fence("proxy_async", loc=loc))
                # each thread has waited for what it copied itself; it also means that no thread
                # reads the slot of the iteration before any more
                arrived.append(Sync("block", loc=loc))
                work.before(first, always(arrived), early=True)
            free: list[Op] = [Release(numbers, run, loc=loc)] if numbers else []
            if ring.free is None:
                work.at(place, always(free))
                refills.setdefault(place, []).append((ring, fills))
                found += self.free(ring, loop.loc)
                continue
            tiles = set(ring.slots)
            if any(_stores(op, tiles) for part in parts for op in walk_ops(tuple(part))):
                free.append(WaitGroup("bulk", 0, read=True, loc=loc))
            again = looped or self.is_shared(ring) or ring.peers > 1
            work.handed_back(ring, last, place, free, consuming_warps(self.kernel), again)
        for place, several in refills.items():
            work.at(place, partial(self.refill, loop, several, place.lag, ranges))
        if not self.apart and groups:
            found += self.first_fills(loop, groups, ranges)
        runs = prove(compare("<", loop.start, loop.stop), ranges) is True
        return [*found, *work.loops(lambda body: self.single.loads(body, True), runs)]

    def rows_before(self, fill: Fill, loop: For, before: list[Op]) -> Fill:
        """`fill`, what finds its elements in every iteration loaded `before` the loop."""
        if not isinstance(fill.copy, Map):
            return fill
        rows, nest = rows_before(fill.copy, loop, self.names)
        before += rows
        return dataclasses.replace(fill, copy=nest)

    # ── a producer of its own ────────────────────────────────────────────────────────────────

    def why_whole(self) -> str | None:
        """What keeps the kernel from having a producer, as far as is seen without making one."""
        fills = [fill for plan in self.plans.values() for fill in plan.fills.values()]
        if not fills:
            return "nothing runs ahead"
        slow = [f.tile.name for f in fills if f.how != BULK and f.width < WIDE]
        if slow:
            return f"the bulk engine cannot fill {slow[0]}"
        if Feature.BULK_COPY not in self.target.features:
            return f"{self.target.arch} has no bulk engine, or it is switched off"
        if blocks_of_cluster(self.kernel) > 1 and self.kernel.rank is None:
            return "it runs in clusters"
        return why_not(self.kernel)

    def skew_loops(self) -> None:
        """Statements run late where that makes units wait less."""
        told = self.target.schedule.skew
        for plan in self.plans.values():
            if not plan.fills or told is False or plan.loop.kind != "pipelined":
                continue
            fills = list(plan.fills.values())
            found = find_skew(self.kernel, plan.loop, fills, asked=told is True)
            inner = [op for op in walk_ops(plan.loop.body) if id(op) in self.plans]
            if any(self.plans[id(op)].fills for op in inner):
                # it is filled whole before what the next iteration waits for
                found = "a loop in it has slots of its own"
            if isinstance(found, Skew) and plan.loop.stages == 1:
                found = _one_slot_is_enough(plan, found)
            if isinstance(found, Skew):
                plan.skew = found
                late = ", ".join(_named(plan.loop.body[k]) for k in sorted(found.late))
                said = f"{late} late: {found.interval:.0f} cycles for {found.plain:.0f}"
            else:
                said = f"nothing late: {found}"
            because(self.kernel.name, plan.loop, said)

    def is_shared(self, ring: Ring) -> bool:
        """Several loops use its slots, one after the other."""
        return any(len(loops) > 1 and c is ring.counter for (loops, _), c in self.turns.items())

    def producer(self) -> Role:
        """Who fills the rings."""
        groups = {key: self.grouped(plan) for key, plan in self.plans.items() if plan.fills}
        atomics = find_fetches(self.kernel)
        if atomics:
            name = fresh_name("fetched", self.names)
            self.fetches = make_fetches(atomics, self.barrier, self.counter, name)
        return producer_of(self.kernel, groups, self.written, self.names, self.fetches)

    def free(self, ring: Ring, loc: Loc | None) -> list[Op]:
        """Products of loops before, or of this one in an outer iteration, that read the slots."""
        names = set(ring.slots) | {b.name for b in ring.slots.values()}
        numbers = tuple(
            op.number
            for op in walk_ops(self.kernel)
            if isinstance(op, NumberedGemm) and {op.a.buffer.name, op.b.buffer.name} & names
        )
        return [Release(numbers, loc=loc)] if numbers else []

    def release(
        self, plan: Plan, work: Sections, uses: list[int], ring: Ring
    ) -> tuple[Place, tuple[int, ...], int]:
        """Where a slot is free again, which products must be over there, and which run of them.
        `uses` are the statements that read it, in time."""
        body, names = plan.loop.body, set(ring.slots)
        reading = [
            (k, inner)
            for k, op in enumerate(body)
            for inner in walk_ops(op)
            if isinstance(inner, NumberedGemm)
            and names & {inner.a.buffer.name, inner.b.buffer.name}
        ]
        numbers = tuple(gemm.number for _, gemm in reading)
        first, last = uses[0], uses[-1]
        latest = body[last]
        if not reading and ring.how == CP_ASYNC and ring.stages > 1:
            return Place(first, ahead=True, lag=1), (), 0
        nested = any(body[k] is not gemm for k, gemm in reading)
        if nested or not reading or not isinstance(latest, NumberedGemm):
            return Place(last), numbers, 0
        copies = {fill.at for fill in plan.fills.values()}

        def waits(k: int, product: NumberedGemm = latest) -> bool:
            """Statement `k` cannot go on while the product runs."""
            op, result = body[k], product.c.buffer.name
            if isinstance(op, NumberedGemm):
                return result in (op.a.buffer.name, op.b.buffer.name)
            if k in copies:
                return False
            registers = {r.buffer.name for r in (product.a, product.b)} - set(ring.slots)
            registers -= {name for each in self.turning_rings() for name in each.slots}
            return result in mentioned(op) or bool(registers & written_in((op,)))

        final, order = (latest.number,), work.order
        here = order.index(last)
        # nothing but products: no thread computes where one would be waited for
        alone = all(
            isinstance(body[k], (NumberedGemm, Let, Hint)) for k in order if k not in copies
        )
        if latest.c.buffer in work.copies.tiles and last not in work.late:
            # what waits for it is late, and meets the product of the iteration before
            at = next((k for k in order if k in work.late and waits(k)), order[-1])
            return Place(at, ahead=at in work.late, lag=1), final, 0
        for k in order[here + 1 :]:
            if waits(k):
                return Place(k, ahead=True), final, 0
            if alone and isinstance(body[k], NumberedGemm):
                return Place(k), final, 0  # the tensor core has work while this one is waited for
        if ring.stages == 1 and not work.skewed:
            return Place(last), final, 0
        # where nothing stays open across iterations, slots are free at their end
        ended = self.apart and self.target.schedule.waits in ("iteration", "each")
        if work.skewed or ended:
            return Place(order[-1]), final, 0
        begun: list[NumberedGemm] = [latest]
        for k in order[:here]:
            # products end in order: who waits for a later one has waited for this one. One wait for
            # both: behind one that leaves the later open, the assembler misreads registers (C7514)
            awaited = tuple(p.number for p in begun if waits(k, p))
            if awaited:
                return Place(k, ahead=True, lag=1), (*final, *awaited), 0
            if isinstance(op := body[k], NumberedGemm):
                begun.append(op)
        first = next(k for k in order if isinstance(body[k], NumberedGemm)) if alone else last
        return Place(first, lag=1), final, int(first == last)

    def fills(
        self, loop: For, groups: Groups, value: Expr, ahead: Expr | int, here: Slots | None
    ) -> list[Op]:
        """The copies of one iteration, the one in which the loop's variable is `value`, `ahead`
        of that in which the slots are `here`."""
        found: list[Op] = []
        slots: Slots = {}
        for ring, fills in groups:
            slot = slots.get(ring.counter)
            if slot is None:
                slot = const(0)
                if here is not None and isinstance(ahead, int) and ahead % ring.stages == 0:
                    slot = here[ring.counter]
                elif ring.stages > 1:
                    slot = self.var(f"{loop.var.name}_next")
                    found.append(Let(slot, ring.slot(ahead), loc=loop.loc))
                slots[ring.counter] = slot
            full = None
            if ring.full is not None:
                full = element(ring.full, slot)
                found.append(Arrive(full, const(ring.bytes), loc=fills[0].copy.loc))
            for fill in fills:
                if isinstance(fill.copy, Map):
                    nest = nest_at(fill.copy, loop, value, self.names)
                    found.append(slotted(rebuild(nest, atom=ring.how), ring.slots, slot))
                    continue
                copy = copy_at(fill.copy, loop, value)
                buffer = ring.slots[copy.dst.buffer.name]
                dst = slot_region(copy.dst, buffer, slot)
                found.append(rebuild(copy, dst=dst, barrier=full, atom=ring.how))
        return found

    def first_fills(self, loop: For, groups: Groups, ranges: Ranges) -> list[Op]:
        turn = Var(fresh_name(f"{loop.var.name}_first", self.names), loop.var.dtype)
        value = simplify(loop.start + turn * loop.step, ranges)
        extent = bounds(loop.stop - loop.start, ranges)
        step, count = int(loop.step), loop.stages
        by_threads = any(ring.how == CP_ASYNC for ring, _ in groups)
        # as many groups of cp.async as slots, so that waits may count them
        if not by_threads and extent.hi is not None:
            count = max(0, min(count, -(-extent.hi // step)))
        if not count:
            return []
        inner = self.fills(loop, groups, value, turn, None)
        if extent.lo is None or (count - 1) * step >= extent.lo:
            inner = [If(compare("<", value, loop.stop), tuple(inner), loc=loop.loc)]
        if by_threads:
            inner.append(Commit(CP_ASYNC, loc=loop.loc))
        zero, last = const(0, loop.var.dtype), const(count, loop.var.dtype)
        return [For(turn, zero, last, tuple(inner), kind="unroll", loc=loop.loc)]

    def refill(
        self, loop: For, groups: Groups, lag: int, ranges: Ranges, section: Section
    ) -> list[Op]:
        here = {ring.counter: section.slot(ring, 0) for ring, _ in groups}
        distance = loop.stages - lag
        value = loop.var + loop.step * distance
        cond = compare("<", value, loop.stop)
        known = prove(cond, scope.inside(loop, "body", ranges))
        if lag:
            cond = binary("and", compare(">", loop.var, loop.start), cond)
        found: list[Op] = []
        if known is not False:
            inner = self.fills(loop, groups, value, distance, here)
            found.append(If(cond, tuple(inner), loc=loop.loc))
        if any(ring.how == CP_ASYNC for ring, _ in groups):
            found.append(Commit(CP_ASYNC, loc=loop.loc))
        return found


def _one_slot_is_enough(plan: Plan, skew: Skew) -> Skew | str:
    """With one slot, what is used late must be filled behind what the next iteration begins with,
    and be used late only."""
    early: list[int] = []
    late: list[int] = []
    for group in fill_groups(plan):
        kinds = {k in skew.late for fill in group for k in fill.uses}
        if len(kinds) > 1:
            return f"{group[0].tile.name} has one slot for two iterations"
        (late if kinds == {True} else early).append(min(fill.at for fill in group))
    if late and early and min(late) < max(early):
        return "its one slot of what is used late is filled first"
    return skew


def _named(op: Op) -> str:
    kind = "product" if isinstance(op, NumberedGemm) else type(op).__name__.lower()
    return f"{kind} {at_line(op.loc)}".strip()


def _stores(op: Op, tiles: set[str]) -> bool:
    """The bulk engine reads one of `tiles`."""
    return isinstance(op, Copy) and op.atom == "bulk_store" and op.src.buffer.name in tiles
