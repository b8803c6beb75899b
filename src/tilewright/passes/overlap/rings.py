"""What the pipelining of loops is planned with: rings of slots, fills, places, and the regions
that they turn buffers into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.ir.buffer import AnyLayout, Buffer, Region, Space, long_dims
from tilewright.ir.expr import (
    Const,
    Expr,
    Load,
    const,
    substitute,
    transform,
)
from tilewright.ir.gather import gather_of
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import ComposedLayout, Layout
from tilewright.ir.op import (
    Alloc,
    Body,
    Break,
    Continue,
    Copy,
    For,
    Kernel,
    Map,
    Op,
    Store,
    View,
    While,
    bodies,
    marked,
    touched_within,
    walk_ops,
)
from tilewright.ir.rewrite import map_ops, rebuild, rename_unique, substitute_vars

if TYPE_CHECKING:
    from tilewright.passes.overlap.skew import Skew

BULK, CP_ASYNC = "bulk_load", "cp_async"


# ── what a kernel does with its buffers ──────────────────────────────────────────────────────


def written_in(body: Iterable[Op]) -> set[str]:
    return {buffer.name for op in body for buffer, writes in touched_within(op) if writes}


def written_by(kernel: Kernel) -> set[str]:
    """Buffers that the kernel writes, tensors also under the names of their views."""
    found = written_in(kernel.body)
    shows: dict[str, str] = {}  # views of tensors, and the tensors
    for op in walk_ops(kernel):
        if isinstance(op, View) and op.source.space is Space.GLOBAL:
            shows[op.buffer.name] = shows.get(op.source.name, op.source.name)
    changed = {shows.get(name, name) for name in found}
    return found | changed | {view for view, tensor in shows.items() if tensor in changed}


def mentioned(op: Op) -> set[str]:
    return {buffer.name for buffer, _ in touched_within(op)}


def leaves_early(body: Body) -> bool:
    """Control may leave an iteration of the loop around `body` early."""
    return any(
        isinstance(op, (Break, Continue))
        or (not isinstance(op, (For, While)) and any(leaves_early(b) for b in bodies(op)))
        for op in body
    )


# ── plans ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Ring:
    """Slots for some buffers. `counter` counts the iterations that used them; `full` (bulk
    copies) and `free` (with a producer) have a barrier per slot."""

    stages: int
    how: str
    slots: dict[str, Buffer]
    counter: Buffer
    full: Buffer | None = None
    free: Buffer | None = None
    peers: int = 1  # blocks of a cluster that fill each other's slots

    def slot(self, ahead: Expr | int = 0) -> Expr:
        if self.stages == 1:
            return const(0)
        return (Load(self.counter, ()) + ahead) % self.stages

    def phase(self, behind: int = 0) -> Expr:
        turn = Load(self.counter, ())
        return (turn - behind if behind else turn) // self.stages % 2

    @property
    def bytes(self) -> int:
        return sum(b.bytes // self.stages for b in self.slots.values())


@dataclass
class Fill:
    """A copy, or a nest that gathers (`gathers`), that may run ahead in a loop: statement `at` of
    its body, the body's names resolved. `uses` are the statements that read what it brings, in
    order."""

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


@dataclass(frozen=True)
class Place:
    """Where a slot is filled again, or handed back to who does: behind (`ahead`: before) statement
    `at`, `lag` iterations after the one that read it."""

    at: int
    ahead: bool = False
    lag: int = 0


RingKey: TypeAlias = tuple[tuple[str, ...], int, str]


@dataclass
class Plan:
    """What of one loop runs ahead, and which of its statements run late."""

    loop: For
    fills: dict[str, Fill] = field(default_factory=dict)
    skew: Skew | None = None


Groups: TypeAlias = list[tuple[Ring, list[Fill]]]
Slots: TypeAlias = dict[Buffer, Expr]  # by counter


# ── regions and layouts ──────────────────────────────────────────────────────────────────────


def fill_groups(plan: Plan) -> list[list[Fill]]:
    groups: dict[tuple[str, int, int], list[Fill]] = {}
    for fill in plan.fills.values():
        key = (fill.how, fill.uses[0], fill.uses[-1])
        groups.setdefault((CP_ASYNC, 0, 0) if fill.how == CP_ASYNC else key, []).append(fill)
    return list(groups.values())


def ring_key(fills: list[Fill], stages: int) -> RingKey:
    return tuple(f.tile.name for f in fills), stages, fills[0].how


def filled_by(op: Copy | Map) -> Buffer:
    """The tile of a copy, or of a nest that gathers."""
    if isinstance(op, Copy):
        return op.dst.buffer
    found = gather_of(op)
    assert found is not None
    return found.store.buffer


def is_async_fill(op: Op) -> bool:
    """Whether shared memory is written behind the threads' back."""
    return isinstance(op, (Copy, Map)) and op.atom in (BULK, CP_ASYNC)


def nest_at(nest: Map, loop: For, value: Expr, names: set[str]) -> Map:
    """`nest` in the iteration in which the loop's variable is `value`."""
    (new,) = rename_unique((substitute_vars(nest, {loop.var: value}),), names)
    assert isinstance(new, Map)
    return new


def copy_at(copy: Copy, loop: For, value: Expr) -> Copy:
    """`copy` in the iteration in which the loop's variable is `value`."""
    values = {loop.var: value}
    starts = tuple(substitute(s, values) for s in copy.src.starts)
    extents = tuple(substitute(e, values) for e in copy.src.extents)
    return rebuild(copy, src=Region(copy.src.buffer, starts, extents, copy.src.cta))


ROWS = 8  # of a swizzle's pattern: parts begin at whole ones


def part_of(copy: Copy, count: int, which: Expr) -> Copy | None:
    """One of `count` equal parts of a copy, cut along its rows; None where they cannot be."""
    places = [next(iter(long_dims(r.extents)), 0) for r in (copy.src, copy.dst)]
    sizes = [r.extents[d] for r, d in zip((copy.src, copy.dst), places, strict=True)]
    if not all(isinstance(e, Const) for e in sizes) or int(sizes[0]) != int(sizes[1]):
        return None
    last = len(copy.dst.extents) - 1
    if places[1] == last or int(sizes[0]) % (count * ROWS):
        return None
    size = int(sizes[0]) // count

    def cut(r: Region, d: int) -> Region:
        starts = tuple(s + which * size if k == d else s for k, s in enumerate(r.starts))
        extents = tuple(const(size) if k == d else e for k, e in enumerate(r.extents))
        return Region(r.buffer, starts, extents, r.cta)

    return rebuild(copy, src=cut(copy.src, places[0]), dst=cut(copy.dst, places[1]))


def slot_region(region: Region, ring: Buffer, slot: Expr) -> Region:
    return Region(ring, (slot, *region.starts), (const(1), *region.extents), region.cta)


def slotted(op: Op, slots: dict[str, Buffer], slot: Expr) -> Op:
    """`op`, and what stands in it, with the buffers of a ring replaced by one of its slots."""

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name in slots:
            return Load(slots[e.buffer.name], (slot, *e.indices), e.loc)
        return None

    def value(x: Any) -> Any:
        if isinstance(x, Expr):
            return transform(x, node)
        if isinstance(x, Region):
            starts = tuple(transform(s, node) for s in x.starts)
            extents = tuple(transform(e, node) for e in x.extents)
            new = Region(x.buffer, starts, extents, x.cta)
            if x.buffer.name in slots:
                return slot_region(new, slots[x.buffer.name], slot)
            return x if new == x else new
        if isinstance(x, tuple):
            new_items = tuple(value(item) for item in x)
            same = all(a is b for a, b in zip(new_items, x, strict=True))
            return x if same else new_items
        return x

    def one(each: Op) -> Op:
        if slots.keys().isdisjoint(mentioned(each)):
            return each
        if isinstance(each, Store) and each.buffer.name in slots:
            place = (slot, *(transform(i, node) for i in each.indices))
            stored = transform(each.value, node)
            return rebuild(each, buffer=slots[each.buffer.name], indices=place, value=stored)
        return rebuild(each, **{f.name: value(getattr(each, f.name)) for f in marked(each, "arg")})

    return one(map_ops(op, one))


def slots_of(buffer: Buffer, name: str, stages: int) -> Buffer:
    """A ring of `stages` slots, each like `buffer`."""
    layout = None if buffer.layout is None else staged(buffer.layout, stages)
    return replace(buffer, name=name, shape=(const(stages), *buffer.shape), layout=layout)


def multibuffer(kernel: Kernel) -> set[str]:
    """Buffers whose slots take turns (`multibuffer`): no product reads one while it is written,
    whatever the code between the two says."""
    allocs = (op for op in walk_ops(kernel) if isinstance(op, Alloc))
    return {op.buffer.name for op in allocs if op.multibuffer}


def staged(layout: AnyLayout, stages: int) -> AnyLayout:
    """`layout` for each slot of a ring, one behind the other."""
    if isinstance(layout, Fragment):
        return layout
    inner = layout.layout if isinstance(layout, ComposedLayout) else layout
    shape = inner.shape if isinstance(inner.shape, tuple) else (inner.shape,)
    stride = inner.stride if isinstance(inner.stride, tuple) else (inner.stride,)
    ring = Layout((stages, *shape), (layout.cosize(), *stride))
    return layout.with_layout(ring) if isinstance(layout, ComposedLayout) else ring
