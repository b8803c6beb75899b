"""Warpgroups with tiles of their own: one stores a result while another multiplies (ping-pong).

Consumer warpgroups usually share a tile and store it at the same time, so the tensor core rests.
`choose_ping_pong` gives each warpgroup a whole tile, as in a kernel of one warpgroup. After all
other passes, `apply_ping_pong` distributes the iterations of the persistent loop over several such
warpgroups. One ring feeds them all, in the order of the tiles.

    for tile in … {
      if turn % 2 == group { wait order[group]; products; arrive order[next]; store } else { skip }
      turn = turn + 1
    }

A warpgroup begins when the one before it has waited for its last slot. It keeps the tensor core to
one of them at a time, and it must: a phase has one bit, so a wait for a slot tells the fill that it
means from the one before it, not from earlier ones.

To skip a tile is to count what its owner uses of the rings: the loops and guards around the
counters, without the work. Tiles of shared memory that consumers fill are one per warpgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.ir.analysis.aliases import places
from tilewright.ir.analysis.effects import mentioned, written_by
from tilewright.ir.analysis.lifetimes import overwrites
from tilewright.ir.core import *
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
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
from tilewright.passes.reasons import because

ABOUT = "tiles of warpgroups"
PLAIN = 40  # registers of a thread for addresses and counters


class NotDealt(Exception):
    """What keeps warpgroups from having tiles of their own, in words."""


def choose_ping_pong(kernel: Kernel, target: Target) -> Kernel:
    """A kernel whose tiles are to be dealt out, as one of a single warpgroup."""
    told = target.schedule.ping_pong
    if told is False or not any(walk_ops(kernel, Gemm)):
        return kernel
    count = max(2, prod(kernel.threads) // WARPGROUP)
    dealt = replace(kernel, threads=(WARPGROUP,), ping_pong=count)
    against = placed(kernel) or why_not(kernel) or _spread(kernel) or _handed_on(kernel)
    if against is None and told == "auto":
        against = _not_worth(kernel, dealt, count, target)
    if against is not None:
        because(kernel.name, ABOUT, f"shared: {against}")
        return kernel
    because(kernel.name, ABOUT, f"dealt out to {count}: one multiplies while another stores")
    return dealt


def _not_worth(kernel: Kernel, dealt: Kernel, count: int, target: Target) -> str | None:
    """What speaks against it. On an H200, products of 128×128 and 128×192 tiles gain 1 to 3 % for
    long K, 5 to 15 % for K of 2048 and less. Single warpgroups of which two blocks share a
    multiprocessor store under each other's products anyway; with half the slots they would lose."""
    if not _walks(kernel) and not worth_it(dealt, target)[0]:
        return "blocks do not stay for a second tile"
    loops = [op for op in walk_ops(kernel, For) if op.kind == "pipelined"]
    inside = [op for loop in loops for op in walk_ops(loop.body)]
    if any(isinstance(op, (Map, Reduce, Scan, Relayout)) for op in inside):
        return "threads compute between products"
    for op in inside:
        split = split_of(op, WARPGROUP, target) if isinstance(op, Gemm) else None
        if isinstance(op, Gemm) and (split is None or split.atom != "wgmma"):
            return "one warpgroup has no instruction for a whole tile"
    allocs = [op.buffer for op in walk_ops(kernel, Alloc)]
    held = sum(b.bytes for b in allocs if b.space is Space.FRAGMENT and b.is_static)
    _, taken = handed_over(count, target.chip.registers)
    registers, room = held // (4 * WARPGROUP), (taken or 0) - PLAIN
    if registers > room:
        return f"a whole tile takes {registers} registers of a thread, {room} are free"
    said = all(loop.stages >= 0 for loop in loops)
    alone = prod(kernel.threads) <= WARPGROUP and said
    if alone and 2 * planned_bytes(kernel) <= target.chip.shared_per_sm:
        return "two blocks share a multiprocessor"
    return None


def _walks(kernel: Kernel) -> bool:
    """Whether the text has a loop over tiles (`T.Persistent`)."""
    return any(isinstance(op, For) and op.kind == "persistent" for op in kernel.body)


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
        if buffer.space is Space.GLOBAL and buffer.name in written:
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
            own = buffer.space is not Space.GLOBAL and buffer.shape
            if own and buffer.name not in fresh:
                if not overwrites(op, buffer.name):
                    yield buffer.name
                fresh.add(buffer.name)


@kernel_pass
def apply_ping_pong(at: Facts) -> Kernel:
    """Kernels that `choose_ping_pong` has chosen: their tiles dealt out."""
    if at.kernel.ping_pong == 1:
        return at.kernel
    dealt = _dealt(at.kernel, at.kernel.ping_pong, at.names, at.target)
    _, taken = stacked(dealt)
    if taken > at.target.chip.shared:
        raise NotDealt(f"with tiles for each, {taken} bytes of shared memory")
    return dealt


def _dealt(kernel: Kernel, count: int, names: set[str], target: Target) -> Kernel:
    roles = {op.name: op for op in kernel.body if isinstance(op, Role)}
    if roles.keys() != {CONSUMER, PRODUCER}:
        raise NotDealt("no producer fills their rings")
    if places(kernel):
        raise NotDealt("shared tiles lie over one another")
    consumer, producer = roles[CONSUMER], roles[PRODUCER]
    before, loop, behind = _parts(consumer.body)
    group = Var(fresh_name("group", names))
    turn = Buffer(fresh_name(f"{loop.var.name}_turn", names), (), INT32, Space.LOCAL)
    mine = compare("==", Load(turn, ()) % count, group)
    order = Buffer(fresh_name("order", names), (const(count),), BARRIER, Space.BARRIER)
    passed = Arrive(
        element(order, (group + 1) % count), count=const(consumer.warps), by="warps", loc=loop.loc
    )
    began = Wait(element(order, group), (Load(turn, ()) - 1) // count % 2, loc=loop.loc)
    met = set(_barriers(producer.body))
    tile = (began, *_passed_on(loop.body, met, passed))
    body = (
        If(mine, tile, _skipped(kernel, before, loop, met, names), loc=loop.loc),
        Store(turn, (), Load(turn, ()) + 1, loc=loop.loc),
    )
    dealt = (*before, Alloc(turn, const(0), loc=loop.loc), rebuild(loop, body=body), *behind)
    own = _own_memory(consumer, producer, count)
    for op in walk_ops(kernel):
        if isinstance(op, View) and own.keys() & {op.buffer.name, op.source.name}:
            raise NotDealt(f"{op.buffer.name} shows a tile of theirs under another shape")
    kept, taken = registers_of(producer, consumer.body, count, target)
    warps = consumer.warps * count
    each = tuple(_for_group(op, own, group) for op in dealt)
    new = {
        CONSUMER: replace(
            consumer, warps=warps, body=each, instances=count, var=group, registers=taken
        ),
        PRODUCER: replace(producer, first=warps, registers=kept),
    }
    init = BarrierInit(whole(order), const(consumer.warps), loc=kernel.loc)
    fence = next(op for op in kernel.body if isinstance(op, Fence) and op.kind == "barrier_init")
    rest: list[Op] = [Alloc(order, loc=kernel.loc)]
    for op in kernel.body:
        rest += [init] if op is fence else []
        rest.append(new[op.name] if isinstance(op, Role) else _widened(op, own))
    threads = ((warps + producer.warps) * WARP,)
    return rebuild(kernel, threads=threads, body=tuple(rest), ping_pong=1)


def _passed_on(body: Body, rings: set[str], passed: Op) -> Body:
    """`body` with `passed` behind the last statement that waits for a slot, once on every path."""
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
    """What stands before the loop over tiles, the loop, what stands behind it. All work must be a
    tile's."""
    loops = [op for op in body if isinstance(op, For) and op.kind == "persistent"]
    if len(loops) != 1:
        raise NotDealt("every block has one tile" if not loops else "several loops walk over tiles")
    at = body.index(loops[0])
    before, behind = body[:at], body[at + 1 :]
    if not all(isinstance(op, (Alloc, Let, Hint)) for op in before):
        raise NotDealt("something is computed before the first tile")
    if not all(isinstance(op, WaitGroup) for op in behind):
        raise NotDealt("something is computed behind the last tile")
    return before, loops[0], behind


def _skipped(kernel: Kernel, before: Body, loop: For, met: set[str], names: set[str]) -> Body:
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
        raise NotDealt(str(error)) from None
    return map_body(rename_unique(part, names), _fold)


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
        if buffer.space is Space.SHARED and buffer.name not in theirs
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

    tiles = {name: buffer for name, buffer in own.items() if buffer.space is Space.SHARED}
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
