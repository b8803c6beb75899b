"""Stores into peers' shared memory, counted where they land.

What blocks of a cluster tell each other between two `sync cluster` is complete, for the one who
reads it, when all its bytes are there. So the second of the two becomes a wait for that many bytes,
on a barrier in the reader's block, and each store announces its own. A barrier of all blocks would
order all they ever wrote: on an H200 that is a wait for the whole GPU's memory.

Only where nothing else can depend on that sync: at the kernel's top level or in a loop there, tiles
that peers write once (in an iteration) and their owner reads afterwards, and no tensor that the
kernel both writes and reads. In a loop the first meeting of the next iteration orders those reads
and the stores that come then; it stays, and the barrier's phase is the iteration's.

Where every block tells every other one something in each iteration, small tiles get two slots and
two barriers, which take turns. In place of that meeting a block announces to its peers what it will
tell them, behind all that its threads have read. Who has heard from all in an iteration knows that
all have read what was told before it, and stores into that slot next. (The bytes of a store order
nothing but themselves: the announcement has to be the sender's.) Blocks meet once, before the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import prod
from typing import TypeGuard

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.bounds import linear
from tilewright.ir.buffer import Buffer, Region, Space, element, whole
from tilewright.ir.dtype import BARRIER, INT32
from tilewright.ir.expr import Const, Expr, Load, Select, Var, compare, const, loads
from tilewright.ir.op import (
    Alloc,
    Arrive,
    BarrierInit,
    Body,
    Break,
    Continue,
    Copy,
    Fence,
    For,
    Hint,
    Kernel,
    Let,
    Op,
    Program,
    Role,
    Store,
    Sync,
    View,
    Wait,
    While,
    bodies,
    read_buffers,
    regions,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.lower.cluster import passes_tensors
from tilewright.passes.overlap.rings import slots_of, slotted

WORD = 32  # bits of the least counted store
TWICE = 4096  # bytes of a loop's tiles that may get a second slot


def count_stores(program: Program, target: Target) -> Program:
    """`program` with waits for bytes in place of meetings of clusters, where that is enough."""
    names = program_names(program)
    return map_kernels(program, lambda kernel: _kernel(kernel, names))


@dataclass
class _Work:
    """What a kernel gets beside its counted stores: `start` at its beginning, two `slots` for some
    tiles, and meetings before some of its loops."""

    kernel: Kernel
    names: set[str]
    start: list[Op] = field(default_factory=list)
    slots: dict[str, Buffer] = field(default_factory=dict)
    met: dict[int, Op] = field(default_factory=dict)


def _kernel(kernel: Kernel, names: set[str]) -> Kernel:
    if prod(kernel.cluster or (1,)) == 1 or any(walk_ops(kernel, Role)):
        return kernel
    remote = [op for op in walk_ops(kernel) if _is_remote(op)]
    loops = [op for op in kernel.body if isinstance(op, (For, While))]
    places = [(kernel.body, None), *((op.body, op) for op in loops)]
    direct = sum(_is_meeting(op) for body, _ in places for op in body)
    inside = sum(map(_is_meeting, walk_ops(kernel))) - direct
    if not remote or inside or passes_tensors(kernel):
        return kernel
    work = _Work(kernel, names)
    made: dict[int, tuple[Op, ...]] = {}
    counted = 0
    for body, loop in places:
        found = _count(work, body, loop)
        if found is None:
            return kernel
        made[id(loop)], stores = found
        counted += stores
    if counted != len(remote):
        return kernel
    meets = (k for k, op in enumerate(kernel.body) if any(map(_is_meeting, walk_ops((op,)))))
    early = kernel.body[: next(meets)]
    if not any(isinstance(op, Fence) and op.kind == "barrier_init" for op in early):
        work.start.append(Fence("barrier_init", loc=kernel.loc))
    top: list[Op] = []
    met = False
    for op in made[id(None)]:
        met = met or _is_meeting(op)
        if id(op) in work.met and not met:
            top.append(work.met[id(op)])
            met = True
        top.append(rebuild(op, body=made[id(op)]) if id(op) in made else op)
    body = map_body(
        (*work.start, *top),
        lambda op: (
            (rebuild(op, buffer=work.slots[op.buffer.name]),)
            if isinstance(op, Alloc) and op.buffer.name in work.slots
            else None
        ),
    )
    return rebuild(kernel, body=body)


def _count(work: _Work, body: Body, loop: For | While | None) -> tuple[Body, int] | None:
    """`body`, of the kernel or a loop, with its stores counted, and how many they are."""
    kernel, start = work.kernel, work.start
    meetings = [k for k, op in enumerate(body) if _is_meeting(op)]
    exchanges: list[tuple[int, int, dict[int, Copy]]] = []
    for first, last in pairwise(meetings):
        stores = {k: op for k in range(first + 1, last) if _is_countable(op := body[k], kernel)}
        if not stores:
            continue
        behind = body[last + 1 :]
        if not _is_read_behind(kernel, stores.values(), behind) or not _are_apart(stores.values()):
            return None
        exchanges.append((first, last, stores))
    if not exchanges:
        return body, 0
    # an iteration has all of its exchanges or none: one number counts them
    if _jumps(body[meetings[0] : exchanges[-1][1]]):
        return None
    changes: dict[int, tuple[Op, ...]] = {}
    before: tuple[Op, ...] = ()
    turn: Expr = const(0)
    if isinstance(loop, For) and not (_jumps(body) or loads(loop.start) or loads(loop.step)):
        turn = (loop.var - loop.start) // loop.step
    elif loop is not None:
        counter = Buffer(fresh_name("exchange", work.names), (), INT32, Space.LOCAL)
        turn = Var(fresh_name("turn", work.names))
        start.append(Alloc(counter, const(0), loc=loop.loc))
        count = Store(counter, (), turn + 1, loc=loop.loc)
        before = (Let(turn, Load(counter, ()), loc=loop.loc), count)
    twice = loop is not None and _take_turns(work, loop, [e[2].values() for e in exchanges])
    slot, phase = (turn % 2, turn // 2 % 2) if twice else (const(0), turn % 2)
    tiles = {
        op.dst.buffer.name: op.dst.buffer for *_, stores in exchanges for op in stores.values()
    }
    slots: dict[str, Buffer] = {}
    if twice and loop is not None:
        slots = {name: slots_of(tile, name, 2) for name, tile in tiles.items()}
        work.slots |= slots
        work.met[id(loop)] = body[meetings[0]]
    changes[meetings[0]] = before if twice else (*before, body[meetings[0]])
    for first, last, stores in exchanges:
        tile = next(iter(stores.values())).dst.buffer.name
        name, count_of = fresh_name(f"{tile}_landed", work.names), const(2 if twice else 1)
        barrier = Buffer(name, (count_of,), BARRIER, Space.BARRIER)
        here, loc = element(barrier, slot), body[last].loc
        arrivals = const(prod(kernel.cluster) if twice else 1)
        start += [Alloc(barrier, loc=loc), BarrierInit(whole(barrier), arrivals, loc=loc)]
        for k, store in stores.items():
            there = Region(barrier, here.starts, here.extents, store.dst.cta)
            changes[k] = (rebuild(store, atom="remote_store", barrier=there),)
        # expected early, where no thread has to wait for others' accesses to say so
        expected: Op = Arrive(here, _bytes(kernel, stores.values()), loc=loc)
        if twice:
            peer = Var(fresh_name("peer", work.names))
            there = Region(barrier, here.starts, here.extents, peer)
            told = _bytes(kernel, stores.values(), peer) // prod(kernel.cluster)
            tell = (Arrive(there, simplify(told), loc=loc),)
            expected = For(
                peer, const(0), const(prod(kernel.cluster)), tell, kind="unroll", loc=loc
            )
        earlier = changes.get(first, (body[first],))
        changes[first] = (*earlier, expected)
        changes[last] = (Wait(here, phase, loc=loc),)
    found = tuple(op for k, each in enumerate(body) for op in changes.get(k, (each,)))
    if slots:
        found = tuple(slotted(op, slots, slot) for op in found)
    return found, sum(len(stores) for *_, stores in exchanges)


def _take_turns(work: _Work, loop: For | While, exchanges: list[Collection[Copy]]) -> bool:
    """Whether two slots for each of the tiles make the loop's first meeting needless: in every
    exchange each block tells all of them something."""
    kernel = work.kernel
    ranks = set(range(prod(kernel.cluster)))
    tiles = {op.dst.buffer for stores in exchanges for op in stores}
    ops = list(walk_ops(kernel))
    made = kernel.body[: next(k for k, op in enumerate(kernel.body) if op is loop)]
    return (
        sum(tile.bytes for tile in tiles) <= TWICE
        and all({_rank_told(op) for op in stores} == ranks for stores in exchanges)
        and all(any(isinstance(op, Alloc) and op.buffer == tile for op in made) for tile in tiles)
        and not any(isinstance(op, Hint) and op.buffer in tiles for op in ops)
        and not any(isinstance(op, View) and op.source in tiles for op in ops)
    )


def _jumps(body: Body) -> bool:
    """Whether something in the body of a loop ends its iteration, or the loop."""
    return any(
        isinstance(op, (Break, Continue))
        or (not isinstance(op, (For, While)) and any(map(_jumps, bodies(op))))
        for op in body
    )


def _is_meeting(op: Op) -> bool:
    return isinstance(op, Sync) and op.scope == "cluster" and not op.arrive


def _is_remote(op: Op) -> bool:
    """Whether it touches anything of peers. Copies to several blocks at once know by meetings that
    their tiles are free, and all that arrives there that barriers have been made."""
    if isinstance(op, Copy) and op.multicast is not None:
        return True
    at = [op.barrier] if isinstance(op, Arrive) else []
    return any(r.cta is not None for r in [*at, *regions(op, reads=True, writes=True)])


def _is_countable(op: Op, kernel: Kernel) -> TypeGuard[Copy]:
    """A store of registers, in whole words, into a block that is known."""
    return (
        isinstance(op, Copy)
        and isinstance(op.dst.cta, Const)
        and 0 <= op.dst.cta.value < prod(kernel.cluster)
        and op.src.cta is None
        and op.atom is None
        and op.barrier is None
        and op.reduce is None
        and op.src.buffer.space is Space.FRAGMENT
        and op.dst.buffer.space is Space.SHARED
        and op.src.dtype == op.dst.dtype
        and op.dst.dtype.bits % WORD == 0
        and all(isinstance(e, Const) for e in op.dst.extents)
    )


def _is_read_behind(kernel: Kernel, stores: Iterable[Copy], behind: Body) -> bool:
    """The tiles that are stored to are read, and only read, `behind` the meeting."""
    roots = aliases(kernel)
    tiles = {store.dst.buffer.name for store in stores}
    if tiles & set(roots):
        return False
    own = {id(store) for store in stores}
    everywhere, later = (Counter(map(id, walk_ops(ops))) for ops in (kernel, behind))
    for op in walk_ops(kernel):
        if id(op) in own or isinstance(op, (Alloc, Hint, View)):
            continue
        written = {roots[b.name] for b in written_buffers(op)}
        touched = written | {roots[b.name] for b in read_buffers(op)}
        if tiles & (written if later[id(op)] == everywhere[id(op)] else touched):
            return False
    return True


def _are_apart(stores: Iterable[Copy]) -> bool:
    """No two of them go to the same element: nothing says which lands last."""
    return all(a.dst.cta is not b.dst.cta or _apart(a, b) for a, b in combinations(stores, 2))


def _apart(a: Copy, b: Copy) -> bool:
    if a.dst.buffer != b.dst.buffer:
        return True
    for dim, (start, other) in enumerate(zip(a.dst.starts, b.dst.starts, strict=True)):
        gap = linear(other - start)
        if gap is None or gap.terms:
            continue
        if not -int(b.dst.extents[dim]) < gap.const < int(a.dst.extents[dim]):
            return True
    return False


def _rank_told(store: Copy) -> int:
    assert isinstance(store.dst.cta, Const)
    return int(store.dst.cta.value)


def _bytes(kernel: Kernel, stores: Iterable[Copy], rank: Expr | None = None) -> Expr:
    """What a block receives, this one or that of `rank`: of each store that goes to it, once from
    every block."""
    blocks = prod(kernel.cluster)
    totals = [0] * blocks
    for store in stores:
        size = store.dst.dtype.storage_bytes(prod(store.dst.static_tile))
        totals[_rank_told(store)] += size * blocks
    found: Expr = const(totals[0])
    rank = _rank(kernel) if rank is None else rank
    for number, total in enumerate(totals[1:], 1):
        if total != totals[0]:
            found = Select(compare("==", rank, number), const(total), found)
    return found


def _rank(kernel: Kernel) -> Expr:
    """The block's number in its cluster."""
    found: Expr = const(0)
    stride = 1
    for var, extent in zip(kernel.blocks, kernel.cluster, strict=False):
        found = found + var % extent * stride
        stride *= extent
    return found
