"""Numbers that a producer fetches for the whole block: the next tile of a dynamic scheduler.

    tile = atomic add counter, 1
    while tile < count { …; tile = atomic add counter, 1 }

An effect happens once, so one role has it: the producer, which needs the number first and runs
ahead. It hands the old value on through a ring of scalars; consumers wait for it where the text
has the atomic, take it and give the slot back.

Scalars (`alloc_var`) that only such numbers, other scalars and tensors that nobody writes decide
are computed by both roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.buffer import Buffer, Space, element
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Load, Var, const, walk
from tilewright.ir.op import (
    Alloc,
    Arrive,
    Atomic,
    For,
    Kernel,
    Let,
    Map,
    Op,
    Store,
    Wait,
    bound,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.passes.overlap.rings import Ring

AHEAD = 2  # numbers that are under way: the producer is a tile ahead
FETCHED = "fetched"  # how such a ring is filled


def find_fetches(kernel: Kernel) -> list[Atomic]:
    """Atomics whose old value somebody uses, of elements that nothing else touches."""
    ops = list(walk_ops(kernel.body))
    found = [
        op
        for op in ops
        if isinstance(op, Atomic)
        and op.result is not None
        and op.src is None
        and not op.dst.tile
        and op.dst.buffer.space is Space.GLOBAL
        and op.order == "relaxed"
    ]
    inside = {id(op) for nest in ops if isinstance(nest, Map) for op in walk_ops(nest.body)}
    chosen = {id(op) for op in found} - inside
    touched = {
        b.name
        for op in ops
        if id(op) not in chosen
        for b in (*read_buffers(op), *written_buffers(op))
    }
    # memory under several names may be touched under another
    touched |= aliases(kernel).viewed
    kinds = {op.dst.dtype for op in found}
    if len(kinds) > 1 or any(op.dst.buffer.name in touched for op in found):
        return []
    return [op for op in found if id(op) in chosen]


def known_scalars(kernel: Kernel, fetches: Iterable[Atomic], written: set[str]) -> set[str]:
    """Scalars that a producer can compute for itself."""
    ops = list(walk_ops(kernel.body))
    allocs = {
        op.buffer.name: op
        for op in ops
        if isinstance(op, Alloc) and op.buffer.space is Space.LOCAL and not op.buffer.shape
    }
    stores: dict[str, list[Op]] = {name: [] for name in allocs}
    for op in ops:
        for buffer in written_buffers(op):
            if buffer.name in stores:
                stores[buffer.name].append(op)
    lets = {op.var: op.value for op in ops if isinstance(op, Let)}
    fetched = {op.result for op in fetches}
    given = {var for op in ops for var in bound(op)} - fetched - set(lets)
    unknown = given - {op.var for op in ops if isinstance(op, For)}
    known = set(allocs)

    def is_known(e: Expr) -> bool:
        for node in walk(e):
            if isinstance(node, Var) and node in unknown:
                return False
            if isinstance(node, Var) and node in lets and not is_known(lets[node]):
                return False
            if isinstance(node, Load):
                space, name = node.buffer.space, node.buffer.name
                fixed = space is Space.GLOBAL and name not in written
                if not fixed and name not in known:
                    return False
        return True

    while True:
        lost = set()
        for name in known:
            values = [op.value for op in stores[name] if isinstance(op, Store)]
            init = allocs[name].init
            values += [] if init is None else [init]
            if len(values) < len(stores[name]) or not all(map(is_known, values)):
                lost.add(name)
        if not lost:
            return known
        known -= lost


@dataclass
class Fetches:
    """The kernel's `atomics` whose values a producer hands on, and the ring they go through."""

    atomics: list[Atomic]
    ring: Ring
    values: Buffer

    def has(self, op: Op) -> bool:
        return any(op is each for each in self.atomics)

    def turn(self, op: Op) -> Op:
        return Store(self.ring.counter, (), Load(self.ring.counter, ()) + 1, loc=op.loc)

    def received(self, op: Atomic, slot: Var, warps: int) -> list[Op]:
        """What a consumer has in the place of the atomic."""
        assert op.result is not None and self.ring.full is not None and self.ring.free is not None
        return [
            Let(slot, self.ring.slot(), loc=op.loc),
            Wait(element(self.ring.full, slot), self.ring.phase(), loc=op.loc),
            Let(op.result, Load(self.values, (slot,)), loc=op.loc),
            Arrive(element(self.ring.free, slot), count=const(warps), by="warps", loc=op.loc),
            self.turn(op),
        ]

    def sent(self, op: Atomic, slot: Var) -> list[Op]:
        """What the producer does: `op`, and its old value handed on."""
        assert op.result is not None and self.ring.full is not None and self.ring.free is not None
        fresh = (self.ring.phase() + 1) % 2
        return [
            Let(slot, self.ring.slot(), loc=op.loc),
            Wait(element(self.ring.free, slot), fresh, loc=op.loc),
            op,
            Store(self.values, (slot,), op.result, loc=op.loc),
            Arrive(element(self.ring.full, slot), loc=op.loc),
            self.turn(op),
        ]


def make_fetches(
    atomics: list[Atomic],
    barrier: Callable[[str, int], Buffer],
    counter: Callable[[str], Buffer],
    name: str,
) -> Fetches:
    kind: DType = atomics[0].dst.dtype
    values = Buffer(name, (const(AHEAD),), kind, Space.SHARED)
    full, free = barrier(f"{name}_full", AHEAD), barrier(f"{name}_free", AHEAD)
    ring = Ring(AHEAD, FETCHED, {name: values}, counter(f"{name}_turn"), full, free)
    return Fetches(atomics, ring, values)


__all__ = ["Fetches", "find_fetches", "known_scalars", "make_fetches"]
