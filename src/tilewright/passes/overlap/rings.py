"""Rings: slots for tiles that are filled ahead of their readers.

One record serves all fillers (`how`): the bulk engine and `cp.async` bring tiles of tensors,
threads compute tiles for products, and a producer hands on numbers that it fetches by atomics. A
ring's `counter` counts the iterations that used it, across loops around and after; slot and phase
come from there. Where a producer fills, each slot has two barriers, *full* and *free*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import TypeAlias

from tilewright.ir.gather import filled_by, gather_of
from tilewright.passes.core import *

BULK, CP_ASYNC, THREADS, FETCHED = "bulk_load", "cp_async", "threads", "fetched"
MOST_ROWS = 1024  # elements of what is loaded before the loop


@dataclass
class Ring:
    """`slots` for some buffers, by their names. `full` (bulk copies, or a producer) and `free`
    (with a producer) have a barrier per slot."""

    stages: int
    how: str
    slots: Mapping[str, Buffer]
    counter: Buffer
    full: Buffer | None = None
    free: Buffer | None = None
    peers: int = 1  # blocks of a cluster that fill each other's slots

    def slot(self, ahead: Expr | int = 0) -> Expr:
        if self.stages == 1:
            return const(0)
        return (Load(self.counter, ()) + ahead) % self.stages

    def phase(self, behind: int = 0) -> Expr:
        uses = Load(self.counter, ())
        return (uses - behind if behind else uses) // self.stages % 2

    @property
    def bytes(self) -> int:
        return sum(b.bytes // self.stages for b in self.slots.values())

    def full_at(self, slot: Expr) -> Region:
        assert self.full is not None
        return element(self.full, slot)

    def expect(self, slot: Expr) -> Op:
        """The bytes of a slot are under way."""
        return Arrive(self.full_at(slot), const(self.bytes))

    def wait(self, slot: Expr, behind: int = 0) -> Op:
        """A reader waits for the slot that the iteration `behind` this one uses."""
        return Wait(self.full_at(slot), self.phase(behind))

    def acquire(self, slot: Expr) -> Op:
        """The producer waits for a slot. A barrier that nobody has arrived at lets it pass."""
        assert self.free is not None
        return Wait(element(self.free, slot), (self.phase() + 1) % 2)

    def release(self, slot: Expr, warps: int) -> list[Op]:
        """Readers hand a slot back, to all blocks that fill it."""
        assert self.free is not None
        ranks = [const(p) for p in range(self.peers)] if self.peers > 1 else [None]
        places = [element(self.free, slot, cta=rank) for rank in ranks]
        return [Arrive(place, count=const(warps), by="warps") for place in places]

    def advance(self) -> Op:
        return Store(self.counter, (), Load(self.counter, ()) + 1)


@dataclass
class RingFill:
    """A copy, or a map that gathers, that may run ahead in a loop: statement `at` of its body, the
    body's names resolved. `uses` are the statements that read what it brings, in order."""

    at: int
    copy: Copy | Map
    how: str
    uses: list[int]
    peers: int = 1  # blocks of a cluster that need the same, and load a part each
    width: int = 0  # bytes that one `cp.async` moves

    @property
    def tile(self) -> Buffer:
        """What it fills."""
        return filled_by(self.copy)

    def into(self, ring: Ring, slot: Expr, loop: For, value: Expr, rank: Var | None = None) -> Op:
        """What fills `slot` for the iteration in which the loop's variable is `value`."""
        (op,) = rename_unique((substitute_vars(self.copy, {loop.var: value}),))
        assert isinstance(op, (Copy, Map))
        if isinstance(op, Copy) and self.peers > 1 and rank is not None:
            size = op.dst.static_tile[0] // self.peers
            src, dst = (along(r, 0, rank * size, size) for r in (op.src, op.dst))
            op = rebuild(op, src=src, dst=dst, multicast=const((1 << self.peers) - 1))
        if isinstance(op, Copy) and ring.how == BULK:
            op = rebuild(op, barrier=ring.full_at(slot))
        return slotted(rebuild(op, atom=ring.how), ring.slots, slot)


@dataclass(frozen=True)
class Skew:
    """`order`: the loop's statements as an iteration runs them; `late`: those of the iteration
    before. `interval`: modelled cycles of an iteration, `plain` without. `copies`: tiles that an
    iteration fills anew while the one before still reads its own."""

    order: tuple[int, ...]
    late: frozenset[int]
    interval: float
    plain: float
    copies: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class ThreadFill:
    """A tile of a pipelined loop that threads have filled at statement `last`; `numbers` are the
    products that read it."""

    tile: Buffer
    last: int
    numbers: tuple[int, ...]
    slots: int


RingKey: TypeAlias = tuple[tuple[str, ...], int, str]  # tiles, stages, how
Groups: TypeAlias = list[tuple[Ring, list[RingFill]]]


@dataclass
class Plan:
    """What of one loop runs ahead, and which of its statements run late. `groups`: its rings and
    what fills them; `threaded`: those that threads fill."""

    loop: For
    fills: dict[str, RingFill] = field(default_factory=dict)
    skew: Skew | None = None
    groups: Groups = field(default_factory=list)
    threaded: list[tuple[Ring, ThreadFill]] = field(default_factory=list)

    def shared_fills(self) -> dict[RingKey, list[RingFill]]:
        """The fills of each ring: tiles with the same first and last reader share one, and so does
        all that `cp.async` brings, whose groups complete in order."""
        groups: dict[tuple[str, tuple[int, int] | None], list[RingFill]] = {}
        for fill in self.fills.values():
            ends = None if fill.how == CP_ASYNC else (fill.uses[0], fill.uses[-1])
            groups.setdefault((fill.how, ends), []).append(fill)
        return {
            (tuple(fill.tile.name for fill in fills), self.loop.stages, fills[0].how): fills
            for fills in groups.values()
        }


@dataclass
class Fetches:
    """The kernel's `atomics` whose old values a producer hands on, and the ring of those. Such is
    the next tile of a dynamic scheduler:

        tile = atomic add counter, 1
        while tile < count { …; tile = atomic add counter, 1 }

    An effect happens once, so one role has it: the producer, which needs the number first.
    Consumers wait for it where the text has the atomic, take it and give the slot back.
    """

    atomics: list[Atomic]
    ring: Ring

    def has(self, op: Op) -> bool:
        return any(op is each for each in self.atomics)

    @property
    def values(self) -> Buffer:
        (values,) = self.ring.slots.values()
        return values

    def received(self, op: Atomic, slot: Var, warps: int) -> list[Op]:
        """What a consumer has in the place of the atomic."""
        assert op.result is not None
        return [
            Let(slot, self.ring.slot()),
            self.ring.wait(slot),
            Let(op.result, Load(self.values, (slot,))),
            *self.ring.release(slot, warps),
            self.ring.advance(),
        ]

    def sent(self, op: Atomic, slot: Var) -> list[Op]:
        """What the producer does: `op`, and its old value handed on."""
        assert op.result is not None
        return [
            Let(slot, self.ring.slot()),
            self.ring.acquire(slot),
            op,
            Store(self.values, (slot,), op.result),
            Arrive(self.ring.full_at(slot)),
            self.ring.advance(),
        ]


# ── gathers ──────────────────────────────────────────────────────────────────────────────────


def own_vars(e: Expr, op: Map) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """The variables of a map that `e` asks for, and their extents."""
    own = tuple(v for v in op.vars if v in variables(e))
    return own, tuple(op.extents[op.vars.index(v)] for v in own)


def load_into(into: Buffer, value: Expr, own: tuple[Var, ...]) -> Op:
    """What loads `value`, at every point over the variables `own` of a map."""
    store = Store(into, own, value)
    return rename_unique(Map(own, into.shape, (store,))) if own else store


def rows_before(fill: RingFill, loop: For, before: list[Op]) -> RingFill:
    """`fill`, what it loads from tensors to find its elements in every iteration loaded `before`
    the loop, into registers.

        for k { map i, j { tile[i, j] = X[table[i], k * 64 + j] } … }

        map i { rows[i] = table[i] }
        for k { map i, j { tile[i, j] = X[rows[i], k * 64 + j] } … }
    """
    if not isinstance(op := fill.copy, Map):
        return fill
    found = gather_of(op)
    assert found is not None

    @cache
    def held(load: Load) -> Expr | None:
        if loop.var in variables(load):
            return None
        if any(not x.buffer.is_global for x in loads(load)):
            return None
        own, extents = own_vars(load, op)
        if not own:
            var = fresh_var("row", dtype=load.dtype)
            before.append(Let(var, load))
            return var
        if own[-1] is op.vars[-1] or prod(int(e) for e in extents) > MOST_ROWS:
            return None
        rows = Buffer(fresh_name("row"), extents, load.dtype, Space.FRAGMENT)
        before.extend((Alloc(rows), load_into(rows, load, own)))
        return Load(rows, own, load.loc)

    def swap(e: Expr) -> Expr:
        new = held(e) if isinstance(e, Load) and e is not found.load else None
        return map_children(e, swap) if new is None else new

    store = rebuild(found.store, value=swap(found.store.value))
    return replace(fill, copy=rebuild(op, body=(store,)))


# ── fetched numbers ──────────────────────────────────────────────────────────────────────────


def find_fetches(kernel: Kernel) -> list[Atomic]:
    """Atomics whose old value somebody uses, of elements that nothing else touches."""
    found = [
        op
        for op in walk_ops(kernel.body, Atomic)
        if op.result is not None
        and op.src is None
        and not op.dst.tile
        and op.dst.buffer.is_global
        and op.order == "relaxed"
    ]
    own, plain = set(map(id, found)), set(map(id, outside_maps(kernel.body)))
    touched = {
        b.name
        for op in walk_ops(kernel.body)
        if id(op) not in own
        for b in (*read_buffers(op), *written_buffers(op))
    }
    # memory under several names may be touched under another
    touched |= aliases(kernel).viewed
    alone = all(id(op) in plain and op.dst.buffer.name not in touched for op in found)
    return found if alone and len({op.dst.dtype for op in found}) < 2 else []


def known_scalars(kernel: Kernel, fetches: Iterable[Atomic], written: set[str]) -> set[str]:
    """Scalars (`alloc_var`) that a producer can compute for itself: only fetched numbers, other
    such scalars and tensors that nobody writes decide them."""
    ops = list(walk_ops(kernel.body))
    lets, fetched = let_values(ops), {op.result for op in fetches}
    unknown = {v for op in ops if not isinstance(op, (For, Let)) for v in bound(op)} - fetched
    writers = [(buffer.name, op) for op in ops for buffer in written_buffers(op)]
    known = {
        op.buffer.name
        for op in walk_ops(kernel.body, Alloc)
        if op.buffer.is_local and not op.buffer.shape
    }

    def is_known(op: Op) -> bool:
        value = op.value if isinstance(op, Store) else op.init if isinstance(op, Alloc) else None
        if value is None:
            return False
        value = substitute(value, lets)
        return not variables(value) & unknown and all(
            x.buffer.name in known or (x.buffer.is_global and x.buffer.name not in written)
            for x in loads(value)
        )

    while lost := {name for name, op in writers if name in known and not is_known(op)}:
        known -= lost
    return known


def plain_loop(loop: For) -> For:
    """`loop` with nothing ahead by itself: what runs ahead is said in its body, or elsewhere."""
    kind = "persistent" if loop.kind == "persistent" else "serial"
    return rebuild(loop, kind=kind, stages=0, order=None, stage=None)


# ── slots ────────────────────────────────────────────────────────────────────────────────────


def is_async_fill(op: Op) -> bool:
    """Whether `op` fills shared memory asynchronously."""
    return isinstance(op, (Copy, Map)) and op.atom in (BULK, CP_ASYNC)


def slotted(op: Op, slots: Mapping[str, Buffer], slot: Expr) -> Op:
    """`op`, and what stands in it, with the buffers of a ring replaced by one of its slots."""

    def element_of(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name in slots:
            return Load(slots[e.buffer.name], (slot, *e.indices), e.loc)
        return None

    def tile_of(region: Region) -> Region:
        ring = slots.get(region.buffer.name)
        if ring is None:
            return region
        return Region(ring, (slot, *region.starts), (const(1), *region.extents), region.cta)

    def one(each: Op) -> Op:
        if slots.keys().isdisjoint(mentioned(each)):
            return each
        new = map_operands(each, lambda e: transform(e, element_of), region=tile_of)
        if isinstance(new, Store) and new.buffer.name in slots:
            return rebuild(new, buffer=slots[new.buffer.name], indices=(slot, *new.indices))
        return new

    return one(map_ops(op, one))


def slots_of(buffer: Buffer, name: str, stages: int) -> Buffer:
    """A ring of `stages` slots, each like `buffer`."""
    layout = None if buffer.layout is None else staged(buffer.layout, stages)
    return replace(buffer, name=name, shape=(const(stages), *buffer.shape), layout=layout)


def staged(layout: AnyLayout, stages: int) -> AnyLayout:
    """`layout` for each slot of a ring, one after the other."""
    if isinstance(layout, Fragment):
        return layout
    inner = layout.layout if isinstance(layout, ComposedLayout) else layout
    shape = inner.shape if isinstance(inner.shape, tuple) else (inner.shape,)
    stride = inner.stride if isinstance(inner.stride, tuple) else (inner.stride,)
    ring = Layout((stages, *shape), (layout.cosize(), *stride))
    return layout.with_layout(ring) if isinstance(layout, ComposedLayout) else ring
