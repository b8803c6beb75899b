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
two barriers, which alternate. In place of that meeting a block announces to its peers what it will
tell them, after all that its threads have read. Who has heard from all in an iteration knows that
all have read what was told before it, and stores into that slot next. (The bytes of a store order
nothing but themselves: the announcement has to be the sender's.) Blocks meet once, before the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from math import prod
from typing import NamedTuple, TypeGuard

from tilewright.ir.analysis.accesses import Box, apart
from tilewright.passes.core import *
from tilewright.passes.lower.cluster import passes_tensors
from tilewright.passes.overlap.rings import slots_of, slotted

WORD = 32  # bits of the least counted store
TWICE = 4096  # bytes of a loop's tiles that may get a second slot


@kernel_pass
def count_stores(at: Facts) -> Kernel:
    """Replace cluster barriers by waits for the bytes that blocks of a cluster store to each other
    (`T.copy_cluster`), where that is enough."""
    kernel = at.kernel
    if kernel.cluster_size == 1 or at.has_roles:
        return kernel
    loops = [op for op in kernel.body if isinstance(op, (For, While))]
    direct = [op for body in (kernel.body, *(loop.body for loop in loops)) for op in body]
    nested = sum(map(_is_meeting, walk_ops(kernel))) > sum(map(_is_meeting, direct))
    remote = sum(map(_is_remote, walk_ops(kernel)))
    if not remote or nested or passes_tensors(kernel):
        return kernel
    work = _Counted(kernel)
    body, *inner = (work.count(part) for part in (kernel, *loops))
    if work.stores != remote:
        return kernel
    met = [any(map(_is_meeting, walk_ops(op))) for op in kernel.body]
    early = kernel.body[: met.index(True)]
    if not any(isinstance(op, Fence) and op.kind == "barrier_init" for op in early):
        work.start.append(Fence("barrier_init"))
    made = dict(zip(map(id, loops), inner, strict=True))
    top: list[Op] = []
    for op in body:
        if id(op) in work.met and not any(map(_is_meeting, top)):
            top.append(work.met[id(op)])
        top.append(rebuild(op, body=made[id(op)]) if id(op) in made else op)

    def rule(op: Op) -> Op | None:
        slots = work.slots.get(op.buffer.name) if isinstance(op, Alloc) else None
        return None if slots is None else rebuild(op, buffer=slots)

    return rebuild(kernel, body=map_body((*work.start, *top), rule))


class _Exchange(NamedTuple):
    """What blocks tell each other between the meetings `first` and `last` of a body: `stores`, by
    their places."""

    first: int
    last: int
    stores: dict[int, Copy]


@dataclass
class _Counted:
    """What a kernel gets beside its counted `stores`: `start` at its beginning, two `slots` for
    some tiles, and meetings (`met`) before some of its loops."""

    kernel: Kernel
    stores: int = 0
    start: list[Op] = field(default_factory=list)
    slots: dict[str, Buffer] = field(default_factory=dict)
    met: dict[int, Op] = field(default_factory=dict)

    def count(self, part: Kernel | For | While) -> Body:
        """The body of the kernel or of a loop, with its stores counted; as it is where it has none,
        or something keeps one from being counted."""
        body, blocks = part.body, self.kernel.cluster_size
        meetings = [k for k, op in enumerate(body) if _is_meeting(op)]
        exchanges: list[_Exchange] = []
        for first, last in pairwise(meetings):
            between = range(first + 1, last)
            stores = {k: op for k in between if _is_countable(op := body[k], self.kernel)}
            if not self.is_read_behind(stores.values(), body[last + 1 :]):
                return body
            exchanges += [_Exchange(first, last, stores)] if stores else []
        # an iteration has all of its exchanges or none: one number counts them
        if not exchanges or leaves_early(body[meetings[0] : exchanges[-1].last]):
            return body
        round_: Expr = const(0)
        before: Body = ()
        if isinstance(part, For) and not (
            leaves_early(body) or loads(part.start) or loads(part.step)
        ):
            round_ = (part.var - part.start) // part.step
        elif not isinstance(part, Kernel):
            counter = Buffer(fresh_name("exchange"), (), INT32, Space.LOCAL)
            round_ = var = fresh_var("round")
            self.start.append(Alloc(counter, const(0)))
            count = Store(counter, (), round_ + 1)
            before = (Let(var, Load(counter, ())), count)
        slots = self.alternate(part, [e.stores.values() for e in exchanges])
        slot, phase = (round_ % 2, round_ // 2 % 2) if slots else (const(0), round_ % 2)
        meeting = body[meetings[0]]
        if slots:
            self.slots |= slots
            self.met[id(part)] = meeting
        changes: dict[int, Body] = {meetings[0]: before if slots else (*before, meeting)}
        for first, last, stores in exchanges:
            with errors.at(body[last].loc):
                self.stores += len(stores)
                tile = next(iter(stores.values())).dst.buffer.name
                name, count_of = fresh_name(f"{tile}_landed"), const(2 if slots else 1)
                barrier = Buffer(name, (count_of,), BARRIER, Space.BARRIER)
                here, arrivals = element(barrier, slot), const(blocks if slots else 1)
                self.start += [Alloc(barrier), BarrierInit(whole(barrier), arrivals)]
                for k, store in stores.items():
                    there = replace(here, cta=store.dst.cta)
                    changes[k] = (rebuild(store, atom="remote_store", barrier=there),)
                # expected early, where no thread has to wait for others' accesses to say so
                rank = fresh_var("peer") if slots else _rank(self.kernel)
                told = _bytes(stores.values(), rank, blocks)
                expected: Op = Arrive(here, told)
                if slots:
                    tell = Arrive(replace(here, cta=rank), simplify(told // blocks))
                    assert isinstance(rank, Var)
                    expected = For(rank, const(0), const(blocks), (tell,), kind="unroll")
                changes[first] = (*changes.get(first, (body[first],)), expected)
                changes[last] = (Wait(here, phase),)
        found = tuple(op for k, each in enumerate(body) for op in changes.get(k, (each,)))
        return tuple(slotted(op, slots, slot) for op in found) if slots else found

    def alternate(
        self, loop: Kernel | For | While, exchanges: list[Iterable[Copy]]
    ) -> dict[str, Buffer]:
        """Two slots for each of the tiles, where they make the loop's first meeting needless: in
        every exchange each block tells all of them something."""
        ops, tiles = self.kernel.body, {op.dst.buffer for stores in exchanges for op in stores}
        at = next((k for k, op in enumerate(ops) if op is loop), 0)
        made = {op.buffer for op in ops[:at] if isinstance(op, Alloc)}
        hinted = {op.buffer for op in walk_ops(self.kernel, Hint)}
        ranks = set(range(self.kernel.cluster_size))
        told = [{_rank_told(op) for op in stores} for stores in exchanges]
        if sum(tile.bytes for tile in tiles) > TWICE or any(each != ranks for each in told):
            return {}
        if not tiles <= made - hinted or {b.name for b in tiles} & aliases(self.kernel).viewed:
            return {}
        return {tile.name: slots_of(tile, tile.name, 2) for tile in tiles}

    def is_read_behind(self, stores: Iterable[Copy], behind: Body) -> bool:
        """The tiles that are stored to are read, and only read, `behind` the meeting; and no two
        stores go to the same element: nothing says which lands last."""
        roots = aliases(self.kernel)
        tiles, own = {store.dst.buffer.name for store in stores}, set(map(id, stores))
        everywhere, later = (Counter(map(id, walk_ops(ops))) for ops in (self.kernel, behind))
        for op in walk_ops(self.kernel):
            if id(op) in own or isinstance(op, (Alloc, Hint, View)):
                continue
            touched = {roots[b.name] for b in written_buffers(op)}
            if later[id(op)] < everywhere[id(op)]:
                touched |= {roots[b.name] for b in read_buffers(op)}
            if tiles & touched:
                return False
        return not tiles & roots.keys() and all(
            a.cta is not b.cta or a.buffer != b.buffer or apart(_box(a), _box(b), fresh=True)
            for a, b in combinations([store.dst for store in stores], 2)
        )


def _box(region: Region) -> Box:
    return tuple((s, int(e)) for s, e in zip(region.starts, region.extents, strict=True))


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
        and 0 <= op.dst.cta.value < kernel.cluster_size
        and all(x is None for x in (op.src.cta, op.atom, op.barrier, op.reduce))
        and op.src.buffer.is_fragment
        and op.dst.buffer.is_shared
        and op.src.dtype == op.dst.dtype
        and op.dst.dtype.bits % WORD == 0
        and all(isinstance(e, Const) for e in op.dst.extents)
    )


def _rank_told(store: Copy) -> int:
    assert isinstance(store.dst.cta, Const)
    return int(store.dst.cta.value)


def _bytes(stores: Iterable[Copy], rank: Expr, blocks: int) -> Expr:
    """What the block of `rank` receives: of each store that goes to it, once from every block."""
    totals = [0] * blocks
    for store in stores:
        size = store.dst.dtype.storage_bytes(prod(store.dst.static_tile))
        totals[_rank_told(store)] += size * blocks
    found: Expr = const(totals[0])
    for number, total in enumerate(totals):
        if total != totals[0]:
            found = Select(compare("==", rank, number), const(total), found)
    return found


def _rank(kernel: Kernel) -> Expr:
    """The block's number in its cluster."""
    places = [var % n for var, n in zip(kernel.blocks, kernel.cluster, strict=False)]
    return number_in(places, kernel.cluster[: len(places)])
