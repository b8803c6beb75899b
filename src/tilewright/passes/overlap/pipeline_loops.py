"""Copies that run ahead of their readers, filled by all threads or by a producer.

A shared buffer that a pipelined loop fills by a copy and then reads becomes a ring of `stages`
slots. The first fills stand before the loop; in an iteration, a wait for the slot's bytes stands
before the first reader, and after the last one the slot is filled again for a later iteration.
Slot and phase come from a counter that runs on across loops around and after, so that trip counts
of 0 and 1, guards and persistent loops are nothing special.

- The bulk engine fills what it can (`shared_tiles`), `cp.async` what it can of the rest; a copy
  that neither can make, or that may not run ahead, stays where it is.
- Buffers with the same first and last reader share a ring and its barriers. All that `cp.async`
  fills in a loop is one ring: its groups complete in order.
- A matrix instruction reads asynchronously. A slot that one reads last is filled again where its
  result is needed anyway, or one iteration late, behind the next one's instruction.
- Other copies that the bulk engine can make get a barrier of their own, waited for before the
  next op that uses the tile; tiles in shared memory are stored by it.

`prefetchable` says which copies these are. With a producer (`roles`) it fills the slots; here they
are only waited for and handed back. `insert_syncs` adds what orders the threads among themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilewright.passes.core import *
from tilewright.passes.overlap.loop_sections import Place, Section, Sections, always, copies_of
from tilewright.passes.overlap.prefetchable import (
    WIDE,
    Ahead,
    loops_of_guards,
    thread_fills,
)
from tilewright.passes.overlap.rings import (
    BULK,
    CP_ASYNC,
    FETCHED,
    THREADS,
    Fetches,
    Groups,
    Plan,
    Ring,
    RingKey,
    Skew,
    find_fetches,
    is_async_fill,
    rows_before,
    slots_of,
    staged,
)
from tilewright.passes.overlap.roles import (
    NoProducer,
    placed,
    producer_of,
    releases,
    split_into_roles,
    why_not,
    why_not_worth,
)
from tilewright.passes.overlap.single_copies import SingleCopies
from tilewright.passes.overlap.skew import find_skew
from tilewright.passes.overlap.stages import ROOM, planned_bytes
from tilewright.passes.sync.insert_syncs import settle_stores
from tilewright.passes.sync.matrix_groups import (
    NumberedGemm,
    Release,
    number_gemms,
    settle_matrix_groups,
    unnumber,
)

FETCHED_AHEAD = 2  # numbers that are under way: the producer is a tile ahead


@kernel_pass
def pipeline_loops(facts: Facts) -> Kernel:
    """Derive rings of pipelined loops: slots, barriers, phases and byte counts, who fills them, and
    which statements of two iterations stand side by side (`skew`)."""
    kernel, told = facts.kernel, facts.target.schedule.roles
    if split_into_roles(kernel):
        work = _Pipeliner(Ahead(facts), releases)
        body = work.body(kernel.body, scope.entry(kernel, facts.dims), looped=False)
        announced = any(isinstance(op, Fence) and op.kind == "barrier_init" for op in kernel.body)
        return rebuild(kernel, body=(*work.start(announced), *body))
    if placed(kernel):
        return kernel
    numbered = facts.of(rebuild(kernel, body=number_gemms(kernel.body)))
    found = Ahead(numbered)
    work, producer = _Pipeliner(found), tuple[Role, ...]()
    if told is not False:
        # a producer asks for guards itself
        body = loops_of_guards(numbered.kernel.body)
        asked = facts.of(rebuild(numbered.kernel, body=body))
        found = found if asked.kernel is numbered.kernel else Ahead(asked)
    if told is not False and found.fills:
        against = _why_whole(found) or (None if told is True else why_not_worth(asked.kernel))
        if against is None:
            apart = _Pipeliner(Ahead(asked, tiles=True), apart=True)
            try:
                producer = (apart.producer(),)
                work = apart
                work.skew_loops()
            except NoProducer as error:
                against = str(error)
        for plan in work.plans.values() if against else ():
            because(kernel.name, plan.loop, f"filled by all threads: {against}")
    if not producer:
        work.make_rings()
    work.find_thread_fills()
    body = work.body(work.kernel.body, scope.entry(work.kernel, facts.dims), looped=False)
    body = settle_matrix_groups((*work.start(), *body), work.fills_ring)
    return settle_stores(rebuild(kernel, body=(*unnumber(body), *producer)))


def _why_whole(found: Ahead) -> str | None:
    """What keeps the kernel from having a producer, as far as is seen without making one."""
    slow = [f.tile.name for f in found.fills if f.how != BULK and f.width < WIDE]
    if slow:
        return f"the bulk engine cannot fill {slow[0]}"
    if Feature.BULK_COPY not in found.target.features:
        return f"{found.target.arch} has no bulk engine, or it is switched off"
    if found.kernel.cluster_size > 1 and found.kernel.rank is None:
        return "it runs in clusters"
    return why_not(found.kernel)


class _Pipeliner(SingleCopies):
    """`apart`: a producer fills the rings."""

    def __init__(
        self, found: Ahead, gives: Callable[[Op], bool] | None = None, *, apart: bool = False
    ) -> None:
        super().__init__(found, gives)
        self.plans = found.plans
        self.apart = apart
        self.shared_counters: dict[tuple[frozenset[int], int], Buffer] = {}
        self.fetches: Fetches | None = None

    # ── rings ────────────────────────────────────────────────────────────────────────────────

    def make_rings(self) -> None:
        """Loops that fill the same tiles in the same way, equally deep, go round one ring."""
        filled = {n: plan.shared_fills() for n, plan in self.plans.items()}
        rings: dict[RingKey, Ring] = {}
        for n, plan in self.plans.items():
            for key, fills in filled[n].items():
                if key not in rings:
                    loops = frozenset(m for m, each in filled.items() if key in each)
                    # each loop hands slots back to whoever fills them
                    peers = max(fill.peers for m in loops for fill in filled[m][key])
                    tiles, name = [fill.tile for fill in fills], plan.loop.var.name
                    rings[key] = self.ring(key[2], tiles, key[1], name, loops, peers)
                plan.groups.append((rings[key], fills))
                for fill in fills:
                    if isinstance(fill.copy, Map):
                        said = (
                            f"{fill.tile.name} gathered by cp.async, {fill.width} bytes at a time"
                        )
                        because(self.kernel.name, plan.loop, said)

    def ring(
        self,
        how: str,
        tiles: Iterable[Buffer],
        stages: int,
        name: str,
        loops: frozenset[int] = frozenset(),
        peers: int = 1,
    ) -> Ring:
        used = {tile for ring in self.rings for tile in ring.slots}
        slots = {}
        for tile in tiles:
            own = fresh_name(tile.name) if tile.name in used else tile.name
            slots[tile.name] = slots_of(tile, own, stages)
        together = loops, stages  # rings that the same loops go round count together
        if together not in self.shared_counters:
            self.shared_counters[together] = self.counter(f"{name}_count")
        made = Ring(stages, how, slots, self.shared_counters[together], peers=peers)
        first, apart = next(iter(slots)), self.apart and how != THREADS
        if how == BULK or apart:
            made.full = self.barrier(f"{first}_full", stages)
        if apart:
            made.free = self.barrier(f"{first}_free", stages)
        self.rings.append(made)
        return made

    def start(self, announced: bool = False) -> Body:
        """What the kernel begins with: rings, barriers and counters. `announced`: it has a fence
        after the initialisation of barriers already."""
        warps = self.kernel.warps
        found: list[Op] = [
            Alloc(b, multibuffer=ring.how == THREADS)
            for ring in self.rings
            for b in ring.slots.values()
        ]
        found += [Alloc(b) for b in self.barriers]
        found += [Alloc(b, const(0)) for b in self.counters]
        arrivals = {ring.free: warps * ring.peers for ring in self.rings}
        # each warp of the producer says when its `cp.async` have come
        arrivals |= {ring.full: GROUP for ring in self.rings if ring.how == CP_ASYNC}
        found += [BarrierInit(whole(b), const(arrivals.get(b, 1))) for b in self.barriers]
        if self.barriers and not announced:
            shared = any(ring.peers > 1 for ring in self.rings)
            meet = Sync("cluster" if shared else "block")
            found += [Fence("barrier_init"), meet]
        return tuple(found)

    def fills_ring(self, op: Op) -> bool:
        rings = [ring for ring in self.rings if ring.how == THREADS or is_async_fill(op)]
        slots = {b.name for ring in rings for b in ring.slots.values()}
        return not slots.isdisjoint(written_in((op,)))

    def find_thread_fills(self) -> None:
        """Tiles that threads fill for products get slots, as far as there is room."""
        others = {*self.found.viewed, *(name for p in self.plans.values() for name in p.fills)}
        room = self.target.chip.shared - ROOM - planned_bytes(self.kernel)
        for n, plan in self.plans.items():
            if plan.skew is not None or self.target.internal.multibuffer is False:
                continue
            for fill in thread_fills(self.kernel, plan.loop, others, room):
                name, loops = plan.loop.var.name, frozenset({n})
                ring = self.ring(THREADS, [fill.tile], fill.slots, name, loops)
                plan.threaded.append((ring, fill))
                room -= (fill.slots - 1) * fill.tile.bytes
                said = f"{fill.slots} slots of {fill.tile.name}, filled while gemms run"
                because(self.kernel.name, plan.loop, said)

    # ── rewriting ────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, ranges: Ranges, *, looped: bool) -> Body:
        """`body` with loops pipelined, inner ones first, and other copies given to the engine."""
        parts = self.statements(body, ranges, looped=looped)
        return self.loads([op for part in parts for op in part], looped)

    def statements(self, body: Body, ranges: Ranges, *, looped: bool) -> list[list[Op]]:
        """What becomes of each statement of `body`."""
        found = []
        for op in body:
            with at(op.loc):
                found.append(self.statement(op, ranges, looped))
            ranges = scope.after(op, ranges)
        return found

    def statement(self, op: Op, ranges: Ranges, looped: bool) -> list[Op]:
        plan = self.plans.get(id(op))
        if plan is not None and (plan.groups or plan.threaded):
            inside = scope.inside(op, "body", ranges)
            parts = self.statements(plan.loop.body, inside, looped=True)
            return self.pipelined(plan, parts, ranges, looped)
        if isinstance(op, (Alloc, Hint)) and (buffer := op.buffer) is not None:
            rings = [ring for ring in self.rings if buffer.name in ring.slots]
            if isinstance(op, Hint) and rings:  # what is said of a buffer is said of its rings
                return [_said_of(ring, buffer, op) for ring in rings]
            return [] if rings else [op]  # these are allocated at the start
        if isinstance(op, Copy):
            return [self.engaged(op, ranges, looped)]
        if isinstance(op, Atomic) and self.fetches is not None and self.fetches.has(op):
            slot = fresh_var("fetch_slot")
            return self.fetches.received(op, slot, self.kernel.warps)
        if isinstance(op, Map):
            return [op]
        inner = looped or isinstance(op, (For, While))
        return [scope.map_inside(op, ranges, partial(self.body, looped=inner))]

    # ── one loop ─────────────────────────────────────────────────────────────────────────────

    def pipelined(
        self, plan: Plan, parts: list[list[Op]], ranges: Ranges, looped: bool
    ) -> list[Op]:
        """The loop after its first fills. `parts` are its statements, rewritten within; `looped`
        whether it stands in another loop."""
        found: list[Op] = []
        loop = plan.loop
        for end in ("start", "stop"):
            value: Expr = getattr(loop, end)
            if loads(value):  # taken once, as the loop does
                var = fresh_var(f"{loop.var.name}_{end}", dtype=value.dtype)
                found.append(Let(var, value))
                loop = rebuild(loop, **{end: var})
        for fill in plan.fills.values():
            parts[fill.at] = []
        work = Sections(plan.skew, loop, parts)
        if plan.skew and plan.skew.copies:
            work.copies = copies_of(plan.skew.copies, self.kernel)
            work.settled = self.target.schedule.waits != "late"
            found += [Alloc(twin) for twin in work.copies.tiles.values()]
        for ring, tile in plan.threaded:
            work.rings.append(ring)
            over = Release(tile.numbers, tile.slots - 2)
            work.at(Place(tile.last), always([over]))
        refills: dict[Place, Groups] = {}
        groups = plan.groups
        if not self.apart:  # what finds elements in every iteration is loaded before the loop
            groups = [(ring, [rows_before(f, loop, found) for f in fs]) for ring, fs in groups]
        for ring, fills in groups:
            uses = work.in_time({k for f in fills for k in f.uses})
            work.rings.append(ring)
            first, last = uses[0], uses[-1]
            place, numbers, run = self.release(plan, work, uses, ring)
            free: list[Op] = [Release(numbers, run)] if numbers else []
            if ring.full is not None:
                work.waited_for(ring, first)
            else:
                pending = ring.stages - 1 - place.lag + int(place.at < first)
                arrived: list[Op] = [WaitGroup(CP_ASYNC, pending)]
                if numbers:
                    arrived.append(Fence("proxy_async"))
                # each thread has waited for what it copied itself; it also means that no thread
                # reads the slot of the iteration before any more
                arrived.append(Sync("block"))
                work.before(first, always(arrived))
            if ring.free is None:
                work.at(place, always(free))
                refills.setdefault(place, []).append((ring, fills))
                readers = _reading(self.kernel, ring)  # in loops before, or an outer iteration
                found += [Release(readers)] if readers else []
                continue
            stores = [op for part in parts for op in walk_ops(tuple(part), Copy)]
            if any(op.atom == "bulk_store" and op.src.buffer.name in ring.slots for op in stores):
                free.append(WaitGroup("bulk", 0, read=True))
            users = sum(r is ring for p in self.plans.values() for r, _ in p.groups)
            again = looped or users > 1 or ring.peers > 1
            work.handed_back(ring, last, place, free, self.kernel.warps, again)
        for place, several in refills.items():
            work.at(place, partial(self.refill, loop, several, place.lag, ranges))
        if not self.apart and groups:
            found += self.first_fills(loop, groups, ranges)
        runs = prove(loop.start < loop.stop, ranges) is True
        return [*found, *work.loops(lambda body: self.loads(body, True), runs)]

    def release(
        self, plan: Plan, work: Sections, uses: list[int], ring: Ring
    ) -> tuple[Place, tuple[int, ...], int]:
        """Where a slot is free again, which products must be over there, and which run of them.
        `uses` are the statements that read it, in time."""
        body = plan.loop.body
        numbers = _reading(body, ring)
        first, last = uses[0], uses[-1]
        latest = body[last]
        if not numbers and ring.how == CP_ASYNC and ring.stages > 1:
            return Place(first, ahead=True, lag=1), (), 0
        direct = {op.number for op in body if isinstance(op, NumberedGemm)}
        if not numbers or not direct.issuperset(numbers) or not isinstance(latest, NumberedGemm):
            return Place(last), numbers, 0
        copies = {fill.at for fill in plan.fills.values()}

        def waits(k: int, product: NumberedGemm = latest) -> bool:
            """Statement `k` cannot go on while the product runs."""
            op, result = body[k], product.c.buffer.name
            if isinstance(op, NumberedGemm):
                return result in (op.a.buffer.name, op.b.buffer.name)
            if k in copies:
                return False
            slots = {*ring.slots, *(n for each, _ in plan.threaded for n in each.slots)}
            registers = {r.buffer.name for r in (product.a, product.b)} - slots
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
            # both: after one that leaves the later open, the assembler misreads registers (C7514)
            awaited = tuple(p.number for p in begun if waits(k, p))
            if awaited:
                return Place(k, ahead=True, lag=1), (*final, *awaited), 0
            if isinstance(op := body[k], NumberedGemm):
                begun.append(op)
        first = next(k for k in order if isinstance(body[k], NumberedGemm)) if alone else last
        return Place(first, lag=1), final, int(first == last)

    def fills(
        self, loop: For, groups: Groups, value: Expr, ahead: Expr | int, section: Section | None
    ) -> list[Op]:
        """The copies of one iteration, the one in which the loop's variable is `value`, `ahead`
        of that of `section`."""
        found: list[Op] = []
        later = Section(loop)
        for ring, fills in groups:
            if section is not None and isinstance(ahead, int) and ahead % ring.stages == 0:
                slot = section.slot(ring)
            else:
                slot = later.slot(ring, ahead, "next")
            if ring.full is not None:
                found.append(ring.expect(slot))
            found += [fill.into(ring, slot, loop, value) for fill in fills]
        return [*later.head, *found]

    def first_fills(self, loop: For, groups: Groups, ranges: Ranges) -> list[Op]:
        number = fresh_var(f"{loop.var.name}_first", dtype=loop.var.dtype)
        value = simplify(loop.start + number * loop.step, ranges)
        extent = bounds(loop.stop - loop.start, ranges)
        step, count = int(loop.step), loop.stages
        by_threads = any(ring.how == CP_ASYNC for ring, _ in groups)
        # as many groups of cp.async as slots, so that waits may count them
        if not by_threads:
            count = min(count, -(-extent.hi // step))
        inner = self.fills(loop, groups, value, number, None)
        if (count - 1) * step >= extent.lo:
            inner = [If(value < loop.stop, tuple(inner))]
        if by_threads:
            inner.append(Commit(CP_ASYNC))
        zero, last = const(0, loop.var.dtype), const(count, loop.var.dtype)
        return [For(number, zero, last, tuple(inner), kind="unroll")]

    def refill(
        self, loop: For, groups: Groups, lag: int, ranges: Ranges, section: Section
    ) -> list[Op]:
        distance = loop.stages - lag
        value = loop.var + loop.step * distance
        cond = value < loop.stop
        known = prove(cond, scope.inside(loop, "body", ranges))
        if lag:
            cond = binary("and", loop.var > loop.start, cond)
        found: list[Op] = []
        if known is not False:
            inner = self.fills(loop, groups, value, distance, section)
            found.append(If(cond, tuple(inner)))
        if any(ring.how == CP_ASYNC for ring, _ in groups):
            found.append(Commit(CP_ASYNC))
        return found

    # ── a producer of its own ────────────────────────────────────────────────────────────────

    def producer(self) -> Role:
        """Who fills the rings."""
        self.make_rings()
        groups = {n: plan.groups for n, plan in self.plans.items() if plan.groups}
        atomics = find_fetches(self.kernel)
        if atomics:
            name, kind = fresh_name("fetched"), atomics[0].dst.dtype
            tile = Buffer(name, (), kind, Space.SHARED)
            self.fetches = Fetches(atomics, self.ring(FETCHED, [tile], FETCHED_AHEAD, name))
            self.rings.insert(0, self.rings.pop())
        return producer_of(self.kernel, groups, self.found.written, self.fetches)

    def skew_loops(self) -> None:
        """Statements run late where that makes units wait less."""
        told = self.target.schedule.skew
        for plan in self.plans.values():
            if not plan.fills or told is False or plan.loop.kind != "pipelined":
                continue
            fills = list(plan.fills.values())
            found = find_skew(self.kernel, plan.loop, fills, asked=told is True)
            inner = [self.plans.get(id(op)) for op in walk_ops(plan.loop.body)]
            if any(each and each.fills for each in inner):
                # it is filled whole before what the next iteration waits for
                found = "a loop inside it has a ring of its own"
            if isinstance(found, Skew) and plan.loop.stages == 1:
                found = _one_slot_is_enough(plan, found)
            if isinstance(found, Skew):
                plan.skew = found
                late = ", ".join(_named(plan.loop.body[k]) for k in sorted(found.late))
                cycles = f"{found.interval:.0f} cycles instead of {found.plain:.0f}"
                said = f"{late} skewed by one iteration: {cycles}"
            else:
                said = f"no skew: {found}"
            because(self.kernel.name, plan.loop, said)


def _one_slot_is_enough(plan: Plan, skew: Skew) -> Skew | str:
    """With one slot, what is used late must be filled after what the next iteration begins with,
    and be used late only."""
    filled: dict[bool, list[int]] = {True: [], False: []}  # where what is used late, or not, is
    for group in plan.shared_fills().values():
        late, *both = {k in skew.late for fill in group for k in fill.uses}
        if both:
            return f"{group[0].tile.name} has one slot for two iterations"
        filled[late].append(min(fill.at for fill in group))
    if all(filled.values()) and min(filled[True]) < max(filled[False]):
        return "the single slot that skewed statements read is filled first"
    return skew


def _named(op: Op) -> str:
    kind = "product" if isinstance(op, NumberedGemm) else type(op).__name__.lower()
    return f"{kind} {at_line(op.loc)}".strip()


def _reading(code: Kernel | Body, ring: Ring) -> tuple[int, ...]:
    """The numbers of the products that read a ring's tiles."""
    products = walk_ops(code, NumberedGemm)
    return tuple(
        p.number for p in products if {p.a.buffer.name, p.b.buffer.name} & ring.slots.keys()
    )


def _said_of(ring: Ring, buffer: Buffer, op: Hint) -> Op:
    layout = None if op.layout is None else staged(op.layout, ring.stages)
    return rebuild(op, buffer=ring.slots[buffer.name], layout=layout)
