"""Warpgroups that take turns at the tensor core: while one multiplies, another stores or computes.

**Ping-pong.** Consumer warpgroups usually share a tile and store it at the same time, so the tensor
core rests. `choose_ping_pong` gives each warpgroup a whole tile, as in a kernel of one warpgroup.
After all other passes, `apply_ping_pong` distributes the iterations of the persistent loop over
several such warpgroups. One ring feeds them all, in the order of the tiles.

    for tile in … {
      if tiles % 2 == group { wait order[group]; products; arrive order[next]; store } else { skip }
      tiles = tiles + 1
    }

A warpgroup begins when the one before it has waited for its last slot. It keeps the tensor core to
one of them at a time, and it must: a phase has one bit, so a wait for a slot tells the fill that it
means from the one before it, not from earlier ones.

To skip a tile is to count what its owner uses of the rings: the loops and guards around the
counters, without the work. Tiles of shared memory that consumers fill are one per warpgroup.

**Order** (`order_warpgroups`). An iteration of attention is a chain: the tensor core, then the
threads, then the tensor core. Two warpgroups that run in step leave each unit idle while both use
the other one. `turn begin` and `turn end` around the products bring them out of step, and keep them
so.

Products that follow each other with nothing but waits for memory between them are a section. Where
an iteration begins and ends with products, the last of one and the first of the next are one: the
section reaches across the loop's end, and lasts where the loop begins. With q for a product and s
for what threads do between two of them, two warpgroups then need max(4q, 2q + s) for an iteration;
two sections would need max(4q, 3q + s), since a warpgroup could not begin the next iteration before
the other one's softmax is over. What threads do with registers at either end (the sum of a row)
stands in such a section too, where it takes less time than the products in front of it: they run
meanwhile, and nobody else could use the tensor core. Products in front of such a loop (a peeled
iteration) take turns too; those after it have nothing left to wait for.

Loops get them unasked where the tensor core is busy longer than the threads are. On an H200,
warpgroups often fall out of step by themselves, but not always: heads of 192 and 256 ran at 573 and
622 TFLOP/s without and at 672 and 687 with turns. Two texts of head 128, full and causal, 8192 and
2048 keys, ran at 706, 657, 643, 560 and 621, 570, 619, 503 without, at 709, 668, 644, 568 and 676,
628, 607, 515 with them; of head 96, where threads are the busier, at 621, 585, 579, 507 and 552,
506, 542, 440 without, 617, 581, 567, 499 and 560, 521, 530, 442 with.

**Why nobody waits for ever.** A section holds no arrival, no barrier of threads and no other
section. Of all warpgroups that wait, look at the one that is least far, and of several at the same
place the lowest. It does not wait for memory: who releases it has come further, or to the same
place. It does not wait for its turn either: the one before it has ended its section, or is inside
and waits for memory that only what stands in front of the section releases, and there all have
been. So somebody goes on. It takes that all warpgroups run the same sections: where control may
differ between threads there are no turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from tilewright.ir.analysis.lifetimes import lifetimes, overwrites
from tilewright.ir.schedule import Switch
from tilewright.passes.core import *
from tilewright.passes.grid.persist_blocks import worth_it
from tilewright.passes.layout.matrix_tiles import split_of
from tilewright.passes.memory.place_shared import stacked
from tilewright.passes.overlap.rings import slots_of, slotted
from tilewright.passes.overlap.roles import (
    CONSUMER,
    NAMED,
    PRODUCER,
    NoProducer,
    Slice,
    check_known,
    handed_over,
    placed,
    registers_of,
    scalars_of,
    why_not,
)
from tilewright.passes.overlap.stages import planned_bytes
from tilewright.passes.overlap.unit_times import cycles
from tilewright.passes.sync.matrix_groups import is_matrix

ABOUT = "ping-pong"
PLAIN = 40  # registers of a thread for addresses and counters
ADDRESSES = 48  # where threads address tensors themselves


class NoPingPong(Exception):
    """What keeps warpgroups from having tiles of their own, in words."""


def choose_ping_pong(kernel: Kernel, target: Target) -> Kernel:
    """Choose ping-pong: a tile for each consumer warpgroup instead of one tile for all of them,
    where blocks are persistent and threads only store what GEMMs leave."""
    told = target.schedule.ping_pong
    if told is False or not any(walk_ops(kernel, Gemm)):
        return kernel
    count = max(2, kernel.thread_count // WARPGROUP)
    applied = replace(kernel, threads=(WARPGROUP,), ping_pong=count)
    against = placed(kernel) or why_not(kernel) or _spread(kernel) or _handed_on(kernel)
    if against is None and told == "auto":
        against = _not_worth(kernel, applied, count, target)
    if against is not None:
        because(kernel.name, ABOUT, f"no: {against}")
        return kernel
    because(
        kernel.name,
        ABOUT,
        f"{count} warpgroups, each with tiles of its own: one multiplies while another stores",
    )
    return applied


def _not_worth(kernel: Kernel, applied: Kernel, count: int, target: Target) -> str | None:
    """What speaks against it. On an H200, products of 128×128 and 128×192 tiles gain 1 to 3 % for
    long K, 5 to 15 % for K of 2048 and less. Single warpgroups of which two blocks share a
    multiprocessor store under each other's products anyway; with half the slots they would lose."""
    walks = any(isinstance(op, For) and op.kind == "persistent" for op in kernel.body)
    if not walks and not worth_it(applied, target)[0]:
        return "blocks are not persistent, so there is no second tile"
    loops = [op for op in walk_ops(kernel, For) if op.kind == "pipelined"]
    inside = [op for loop in loops for op in walk_ops(loop.body)]
    if any(isinstance(op, (Map, Reduce, Scan, Relayout)) for op in inside):
        return "threads compute between gemms"
    for op in inside:
        split = split_of(op, WARPGROUP, target) if isinstance(op, Gemm) else None
        if isinstance(op, Gemm) and (split is None or split.atom != "wgmma"):
            return "one warpgroup has no instruction for a whole tile"
    allocs = [op.buffer for op in walk_ops(kernel, Alloc)]
    sizes = {b.name: b.bytes for b in allocs if b.is_fragment and b.is_static}
    lives = lifetimes(kernel, (Space.FRAGMENT,)).in_place(kernel, sizes)
    held = sum(sizes[name] for name in lives.peak(sizes)[1])
    _, taken = handed_over(count, target.chip.registers)
    room = (taken or 0) - PLAIN - ADDRESSES * any(map(_reads_a_tile, walk_ops(kernel, Map)))
    registers = held // (4 * WARPGROUP)
    if registers > room:
        return f"a tile in one warpgroup needs {registers} registers per thread, {room} are free"
    said = all(loop.stages >= 0 for loop in loops)
    alone = kernel.thread_count <= WARPGROUP and said
    if alone and 2 * planned_bytes(kernel) <= target.chip.shared_per_sm:
        return "two blocks fit on a multiprocessor"
    return None


def _reads_a_tile(op: Map) -> bool:
    """Whether each element of a tile is loaded by the thread that computes it (a residual)."""
    found = [load for inner in walk_ops(op, Store) for load in op_loads(inner)]
    return any(
        load.buffer.is_global and {v for e in load.indices for v in variables(e)} >= {*op.vars}
        for load in found
    )


def _spread(kernel: Kernel) -> str | None:
    """What the text spreads over more threads than a warpgroup has."""
    for op in walk_ops(kernel):
        held = op.buffer.layout if isinstance(op, Alloc) else getattr(op, "layout", None)
        if isinstance(held, Fragment) and held.threads > WARPGROUP:
            return f"the text spreads a tile over {held.threads} threads"
    return None


def _handed_on(kernel: Kernel) -> str | None:
    """What a tile may leave to the next one where the text itself walks over tiles."""
    loops = [op for op in walk_ops(kernel, For) if op.kind == "persistent"]
    inside = [inner for loop in loops for inner in walk_ops(loop.body)]
    read = [b for op in inside if not isinstance(op, Atomic) for b in read_buffers(op)]
    written = written_by(kernel)
    for buffer in read:
        if buffer.is_global and buffer.name in written:
            return f"a tile may read what another stored to {buffer.name}"
    fresh = {op.buffer.name for op in inside if isinstance(op, Alloc)}
    kept = next((name for loop in loops for name in _kept(loop.body, fresh)), None)
    return kept and f"{kept} may keep something from tile to tile"


def _kept(body: Body, fresh: set[str]) -> Iterator[str]:
    """Tiles that are used before they are given new values; `fresh` grows by those that are given
    some. What becomes of scalars is known (`_skipped`)."""
    for op in body:
        if isinstance(op, (For, If, While)):
            sides = [set(fresh) for _ in bodies(op)]
            for inner, side in zip(bodies(op), sides, strict=True):
                yield from _kept(inner, side)
            if isinstance(op, If):
                fresh |= set.intersection(*sides)
            continue
        for buffer in {buffer for buffer, _ in touched_within(op)}:
            own = not buffer.is_global and buffer.shape
            if own and buffer.name not in fresh:
                if not overwrites(op, buffer.name):
                    yield buffer.name
                fresh.add(buffer.name)


@kernel_pass
def apply_ping_pong(at: Facts) -> Kernel:
    """Hand the tiles of kernels with ping-pong out to their warpgroups."""
    if at.kernel.ping_pong == 1:
        return at.kernel
    applied = _applied(at.kernel, at.kernel.ping_pong, at.target)
    _, taken = stacked(applied)
    if taken > at.target.chip.shared:
        raise NoPingPong(f"with tiles for each, {taken} bytes of shared memory")
    return applied


def _applied(kernel: Kernel, count: int, target: Target) -> Kernel:
    roles = {op.name: op for op in kernel.body if isinstance(op, Role)}
    if roles.keys() != {CONSUMER, PRODUCER}:
        raise NoPingPong("no producer fills their rings")
    if places(kernel):
        raise NoPingPong("shared tiles lie over one another")
    consumer, producer = roles[CONSUMER], roles[PRODUCER]
    before, loop, behind = _parts(consumer.body)
    group = fresh_var("group")
    tiles = Buffer(fresh_name(f"{loop.var.name}_count"), (), INT32, Space.LOCAL)
    mine = compare("==", Load(tiles, ()) % count, group)
    order = Buffer(fresh_name("order"), (const(count),), BARRIER, Space.BARRIER)
    passed = Arrive(element(order, (group + 1) % count), count=const(consumer.warps), by="warps")
    began = Wait(element(order, group), (Load(tiles, ()) - 1) // count % 2)
    met = set(_barriers(producer.body))
    tile = (began, *_passed_on(loop.body, met, passed))
    body = (
        If(mine, tile, _skipped(kernel, before, loop, met)),
        Store(tiles, (), Load(tiles, ()) + 1),
    )
    applied = (*before, Alloc(tiles, const(0)), rebuild(loop, body=body), *behind)
    own = _own_memory(consumer, producer, count)
    for op in walk_ops(kernel):
        if isinstance(op, View) and own.keys() & {op.buffer.name, op.source.name}:
            raise NoPingPong(f"{op.buffer.name} shows a tile of theirs under another shape")
    kept, taken = registers_of(producer, consumer.body, count, target)
    warps = consumer.warps * count
    each = tuple(_for_group(op, own, group) for op in applied)
    new = {
        CONSUMER: replace(
            consumer, warps=warps, body=each, instances=count, var=group, registers=taken
        ),
        PRODUCER: replace(producer, first=warps, registers=kept),
    }
    init = BarrierInit(whole(order), const(consumer.warps))
    fence = next(op for op in kernel.body if isinstance(op, Fence) and op.kind == "barrier_init")
    rest: list[Op] = [Alloc(order)]
    for op in kernel.body:
        rest += [init] if op is fence else []
        rest.append(new[op.name] if isinstance(op, Role) else _widened(op, own))
    threads = ((warps + producer.warps) * WARP,)
    return rebuild(kernel, threads=threads, body=tuple(rest), ping_pong=1)


def _passed_on(body: Body, rings: set[str], passed: Op) -> Body:
    """`body` with `passed` after the last statement that waits for a slot, once on every path."""
    waits = [
        k
        for k, op in enumerate(body)
        if any(wait.barrier.buffer.name in rings for wait in walk_ops(op, Wait))
    ]
    end = waits[-1] + 1 if waits else 0
    if waits and isinstance(op := body[end - 1], If):
        both = map_bodies(op, lambda side: _passed_on(side, rings, passed))
        return (*body[: end - 1], both, *body[end:])
    return (*body[:end], passed, *body[end:])


def _parts(body: Body) -> tuple[Body, For, Body]:
    """What stands before the loop over tiles, the loop, what stands after it. All work must be a
    tile's."""
    loops = [op for op in body if isinstance(op, For) and op.kind == "persistent"]
    if len(loops) != 1:
        raise NoPingPong(
            "every block has one tile" if not loops else "several loops walk over tiles"
        )
    at = body.index(loops[0])
    before, behind = body[:at], body[at + 1 :]
    if not all(isinstance(op, (Alloc, Let, Hint)) for op in before):
        raise NoPingPong("something is computed before the first tile")
    if not all(isinstance(op, WaitGroup) for op in behind):
        raise NoPingPong("something is computed after the last tile")
    return before, loops[0], behind


def _skipped(kernel: Kernel, before: Body, loop: For, met: set[str]) -> Body:
    """What a tile does to the scalars that outlive it, and nothing else. Phases of barriers that
    each warpgroup has for itself (all but those `met` by the producer) stay as they are."""
    lasting = {op.buffer.name for op in before if isinstance(op, Alloc) and not op.buffer.shape}
    for op in walk_ops(loop.body):
        if isinstance(op, Wait) and op.barrier.buffer.name not in met:
            lasting -= {load.buffer.name for load in loads(op.phase)}
    scalars = _deciding(loop, lasting)
    part = Slice(scalars).body(loop.body)
    try:
        check_known(part, written_by(kernel), scalars)
    except NoProducer as error:
        raise NoPingPong(str(error)) from None
    return map_body(rename_unique(part), _fold)


def _deciding(loop: For, lasting: set[str]) -> set[str]:
    """`lasting` scalars, and those that decide what is stored to them."""
    found: set[str] = set()
    while found != lasting:
        found, asked = lasting, list[Expr]()
        for op in walk_ops(loop.body):
            if any(store.buffer.name in found for store in walk_ops(op, Store)):
                asked += [op.value] if isinstance(op, Store) else expressions(op)
        lasting = found | scalars_of(asked, loop.body)
    return found


def _fold(op: Op) -> Op | None:
    """A loop that only counts, as one step."""
    if not isinstance(op, For) or len(op.body) != 1:
        return None
    (each,) = op.body
    if isinstance(each, Store) and not each.indices:
        here = Load(each.buffer, ())
        more = simplify(each.value - here)
        if isinstance(more, Const):
            runs = binary("max", (op.stop - op.start + op.step - 1) // op.step, 0)
            return rebuild(each, value=here + cast(runs * more, here.dtype))
    return None


# ── memory ───────────────────────────────────────────────────────────────────────────────────


def _barrier(op: Op) -> Region | None:
    """The barrier that an op waits for, arrives at or has others arrive at."""
    return getattr(op, "barrier", None)


def _barriers(body: Body) -> dict[str, Buffer]:
    found = (_barrier(inner) for op in body for inner in walk_ops(op))
    return {r.buffer.name: r.buffer for r in found if r is not None}


def _own_memory(consumer: Role, producer: Role, count: int) -> dict[str, Buffer]:
    """Shared memory and barriers that only consumers touch: one for each warpgroup."""
    theirs, met = mentioned(producer), _barriers(producer.body)
    own = {
        buffer.name: slots_of(buffer, buffer.name, count)
        for op in consumer.body
        for buffer, _ in touched_within(op)
        if buffer.is_shared and buffer.name not in theirs
    }
    for name, barrier in _barriers(consumer.body).items():
        if name not in met:
            (size,) = barrier.shape
            own[name] = replace(barrier, shape=(size * count,))
    return own


def _for_group(op: Op, own: dict[str, Buffer], group: Var) -> Op:
    """`op` for one warpgroup: with its memory, and barriers of its own."""

    def one(each: Op) -> Op:
        if isinstance(each, Sync) and each.scope == "named":
            return rebuild(each, id=const(NAMED) + group)
        each = _widened(each, own)
        barrier = _barrier(each)
        if barrier is None or barrier.buffer.name not in own:
            return each
        (size,), (start,) = barrier.buffer.shape, barrier.starts
        moved = Region(
            own[barrier.buffer.name], (group * size + start,), barrier.extents, barrier.cta
        )
        return rebuild(each, barrier=moved)

    tiles = {name: buffer for name, buffer in own.items() if buffer.is_shared}
    return one(map_ops(slotted(op, tiles, group), one))


def _widened(op: Op, own: dict[str, Buffer]) -> Op:
    """What is said of memory that all warpgroups now have, said of all of it."""
    if isinstance(op, Alloc) and op.buffer.name in own:
        return rebuild(op, buffer=own[op.buffer.name])
    if isinstance(op, Hint) and op.buffer is not None and op.buffer.name in own:
        slots = own[op.buffer.name]
        layout = None if op.layout is None else slots.layout
        return rebuild(op, buffer=slots, layout=layout)
    if isinstance(op, BarrierInit) and op.barrier.buffer.name in own:
        return rebuild(op, barrier=whole(own[op.barrier.buffer.name]))
    return op


# ── the order of warpgroups ──────────────────────────────────────────────────────────────────


def order_warpgroups(kernel: Kernel, target: Target) -> Kernel:
    """Order the consumer warpgroups: one after the other runs the section with its GEMMs."""
    choice = target.schedule.order_warpgroups
    found: list[Op] = []
    for op in kernel.body:
        if isinstance(op, Role) and _is_derived(op, kernel):
            work = _Sections(per_thread(kernel), op.warps * WARP, choice is True)
            against = _against(op, choice)
            body = op.body if against else work.body(op.body)
            said = against or "; ".join(work.said) or "no products"
            because(kernel.name, f"warpgroups of {op.name}", said)
            op = rebuild(op, body=body)
        found.append(op)
    return rebuild(kernel, body=tuple(found))


def _is_derived(op: Role, kernel: Kernel) -> bool:
    """Whether `part_roles` has made this role: its warps hand slots back each for itself."""
    return (
        (op.name, op.first, op.instances) == (CONSUMER, 0, 1)
        and any(isinstance(i, Arrive) and i.by == "warps" for i in walk_ops(op.body))
        and any(isinstance(r, Role) and (r.name, r.first) == (PRODUCER, op.warps)
                for r in kernel.body)
    )  # fmt: skip


def _against(role: Role, choice: Switch) -> str:
    """What keeps a role from having turns at all."""
    if choice is False:
        return "unordered: switched off"
    if role.warps // GROUP < 2:
        return "unordered: there is only one warpgroup"
    for op in walk_ops(role.body):
        if isinstance(op, (While, Break, Continue)):
            return "unordered: loops are left early"
        if isinstance(op, Intrinsic) and INTRINSICS[op.name].opaque:
            return "unordered: foreign code may have barriers of its own"
    return ""


class _Run(NamedTuple):
    """Products in a row: `first` is the place of the fence before them, `last` that of the last
    commit."""

    first: int
    last: int


@dataclass
class _Sections:
    """Finds the loops of a role that get sections, and puts these in. `said`: what was decided."""

    differs: PerThread
    threads: int
    asked: bool
    said: list[str] = field(default_factory=list)

    def body(self, body: Body) -> Body:
        """Straight code, with sections in its loops and around products in front of them."""
        found = list(self.inner(body))
        ops = [op for op, _ in found]
        turned = [k for k, (_, turns) in enumerate(found) if turns]
        runs = [r for r in _runs(ops) if turned and r.first < turned[-1]]
        return _with_turns(ops, runs, runs)

    def inner(self, body: Body) -> Iterator[tuple[Op, bool]]:
        """The ops, loops inside them done; whether they are of a loop with sections."""
        for op in body:
            if isinstance(op, For) and any(map(is_matrix, op.body)):
                why = self.why_not(op)
                if not why:
                    yield from ((i, True) for i in self.loop(op))
                    continue
                self.said.append(f"unordered in loop {op.var.name}: {why}")
            yield map_bodies(op, self.body) if isinstance(op, (For, If)) else op, False

    def loop(self, loop: For) -> Body:
        """The loop with sections, and what stands around it where one reaches across its end."""
        ops = [op for op, _ in self.inner(loop.body)]
        runs = _runs(ops)
        outside = ops[: runs[0].first] + ops[runs[-1].last + 1 :]
        across = len(runs) > 1 and _is_brief(outside, ops[runs[-1].first : runs[-1].last + 1])
        count = len(runs) - across
        text = f"ordered: {count} section{'s' * (count != 1)} in an iteration of {loop.var.name}"
        if across:
            text += ", one from its last products to the next one's first"
        self.said.append(text)
        if not across:
            return (rebuild(loop, body=_with_turns(ops, runs, runs)),)
        body = _with_turns(ops, runs[1:], runs[:-1])
        return Turn("begin"), rebuild(loop, body=body), Turn("end")

    def why_not(self, loop: For) -> str:
        inside = list(walk_ops(loop.body))
        if any(isinstance(op, Sync) or meets_inside(op, self.threads) for op in inside):
            return "its warpgroups meet in every iteration"
        for op in (loop, *inside):
            differs = isinstance(op, (For, If)) and self.differs.source(expressions(op)) is not None
            if differs or id(op) in self.differs.controls:
                return "its control flow differs between threads"
        least = min(prod(op.c.static_tile) for op in loop.body if is_matrix(op))
        if not any(2 * _work(op) >= least for op in inside):
            return "threads have little to do between its gemms"
        return "" if self.asked else _no_turns(loop)


def _no_turns(loop: For) -> str:
    """What speaks against turns that nobody has asked for."""
    if len(_runs(list(loop.body))) != 2:  # chains of two are what was measured
        return "it has no chain of gemm, threads, gemm"
    products = sum(cycles(op) for op in loop.body if is_matrix(op))
    threads = sum(cycles(op) for op in loop.body if not is_matrix(op))
    if products < threads:
        return "threads are as busy as the tensor core"
    return ""


def _is_fence(op: Op) -> bool:
    return isinstance(op, Fence) and op.kind == "wgmma"


def _is_quiet(op: Op) -> bool:
    """What may stand between the products of a section: names, counters, waits for memory. Neither
    work nor anything that others may wait for."""
    if isinstance(op, Fence):
        return op.kind in ("wgmma", "proxy_async")
    if isinstance(op, Commit):
        return op.unit == "wgmma"
    if isinstance(op, Store):
        return op.buffer.is_local and not op.indices
    if isinstance(op, If):
        return all(_is_fence(i) or isinstance(i, (Let, Hint)) for i in (*op.then, *op.orelse))
    return is_matrix(op) or isinstance(op, (Let, Hint, Alloc, View, Wait))


def _is_brief(ops: list[Op], products: list[Op]) -> bool:
    """Whether `ops` are over before the products in front of them, and wait for nothing but memory:
    others lose nothing if they stand in a section."""
    work = [op for op in ops if not _is_quiet(op)]
    most = sum(cycles(op) for op in products if is_matrix(op))
    return all(map(_in_registers, work)) and sum(map(cycles, work)) < most


def _in_registers(op: Op) -> bool:
    """What each warp does with fragments and scalars alone."""
    if not isinstance(op, (Map, Reduce, Copy, Fill)):
        return False
    spaces = {buffer.space for buffer, _ in touched_within(op)}
    return spaces <= {Space.FRAGMENT, Space.LOCAL}


def _runs(body: list[Op]) -> list[_Run]:
    """The runs of products of straight code, in order."""
    found: list[_Run] = []
    going = False
    for k, op in enumerate(body):
        going = going and _is_quiet(op)
        if is_matrix(op) and not going:
            found.append(_Run(_fence_before(body, k), k))
            going = True
        if going and isinstance(op, (Gemm, Commit)):
            found[-1] = found[-1]._replace(last=k)
    return found


def _fence_before(body: list[Op], k: int) -> int:
    """The place of the fence of the product at `k`; the product's own where there is none."""
    first = k
    for at in reversed(range(k)):
        op = body[at]
        if _is_fence(op) or (isinstance(op, If) and _is_quiet(op)):
            first = at
        elif not isinstance(op, (Let, Hint)):
            break
    return first


def _with_turns(body: list[Op], begins: list[_Run], ends: list[_Run]) -> Body:
    """`body` with a section's begin before each of `begins`, and an end after each of `ends`."""
    before, behind = {r.first for r in begins}, {r.last for r in ends}
    found: list[Op] = []
    for k, op in enumerate(body):
        found += [Turn("begin", loc=op.loc)] if k in before else []
        found.append(op)
        found += [Turn("end", loc=op.loc)] if k in behind else []
    return tuple(found)


def _work(op: Op) -> int:
    """Elements of fragments that threads compute in an op."""
    if isinstance(op, Map):
        spaces = {buffer.space for buffer, _ in touched_within(op)}
        return prod(map(int, op.extents)) if Space.FRAGMENT in spaces else 0
    if isinstance(op, (Reduce, Scan)) and op.src.buffer.is_fragment:
        return prod(op.src.static_tile)
    return 0
