"""From where to where in a kernel's text a buffer's contents matter.

Ops are numbered in the order of the text. A buffer lives from its first access to its last; where
contents go round a loop, or in and out of it, through the whole loop; where an asynchronous op
touches it, until that op has been waited for. Between two buffers whose lives do not meet there is
no order yet: who lays one over the other has to see to it that threads meet in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.ir.analysis.uniform import PerThread, per_thread
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import TRUE
from tilewright.ir.gather import filled_by
from tilewright.ir.op import (
    Alloc,
    BarrierInit,
    Body,
    Break,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Reduce,
    Relayout,
    Scan,
    Store,
    View,
    Wait,
    WaitGroup,
    While,
    expressions,
    marked,
    op_loads,
    operands,
    read_buffers,
    regions,
    walk_ops,
    written_buffers,
)

Span = tuple[int, int]
Chain = tuple[tuple[int, str], ...]  # the ops around, outermost first, and which body of theirs


@dataclass
class Lifetimes:
    """`spans` by buffer, views counted with what they show; `ops` by number; `together`: buffers
    that the whole block touches in the order of the text, and nobody else."""

    ops: list[Op] = field(default_factory=list)
    spans: dict[str, Span] = field(default_factory=dict)
    together: set[str] = field(default_factory=set)

    def apart(self, a: str, b: str) -> bool:
        """Whether the contents of one never matter while those of the other do."""
        if a not in self.spans or b not in self.spans:
            return True
        (first, last), (start, end) = self.spans[a], self.spans[b]
        return last < start or end < first

    def peak(self, sizes: Mapping[str, int]) -> tuple[int, list[str]]:
        """The op at which the buffers of `sizes` that live are largest together, and those."""
        change: dict[int, int] = {}
        spans = {n: self.spans[n] for n in sizes if n in self.spans}
        for name, (first, last) in spans.items():
            change[first] = change.get(first, 0) + sizes[name]
            change[last + 1] = change.get(last + 1, 0) - sizes[name]
        best, at, total = -1, 0, 0
        starts = {first for first, _ in spans.values()}
        for position in sorted(change):
            total += change[position]
            if position in starts and total > best:
                best, at = total, position
        return at, [n for n in spans if self.lives(n, at)]

    def lives(self, name: str, position: int) -> bool:
        span = self.spans.get(name)
        return span is not None and span[0] <= position <= span[1]


def lifetimes(code: Kernel | Body, spaces: Iterable[Space] = (Space.SHARED,)) -> Lifetimes:
    """The lives of the buffers in `spaces`; those of the kernel, or of a part of one."""
    if not isinstance(code, Kernel):
        found = _Walk(frozenset(spaces), None)
        found.body(code, ())
        return found.settled()
    found = _Walk(frozenset(spaces), per_thread(code), _rings(code))
    found.body(code.body, ())
    return found.settled()


def _rings(kernel: Kernel) -> frozenset[str]:
    """Barriers that `pipeline_loops` made: they begin where the kernel does. Each load on one of
    them is waited for; what authors do with theirs is not known."""
    return frozenset(
        op.barrier.buffer.name
        for op in walk_ops(kernel)
        if isinstance(op, BarrierInit) and op.loc is not None and op.loc == kernel.loc
    )


@dataclass(frozen=True)
class _Touch:
    position: int
    chain: Chain
    op: Op
    unit: str = ""  # of an asynchronous op: whose groups to wait for


@dataclass
class _Walk:
    spaces: frozenset[Space]
    differs: PerThread | None
    rings: frozenset[str] = frozenset()
    ops: list[Op] = field(default_factory=list)
    touches: dict[str, list[_Touch]] = field(default_factory=dict)
    loops: dict[int, Span] = field(default_factory=dict)
    homes: dict[str, Chain] = field(default_factory=dict)  # where a buffer is allocated
    views: dict[str, str] = field(default_factory=dict)
    waits: list[tuple[int, Chain, str]] = field(default_factory=list)  # for an engine or barrier
    breaks: list[Chain] = field(default_factory=list)
    alone: set[str] = field(default_factory=set)  # buffers that some threads touch for themselves

    def root(self, name: str) -> str:
        while name in self.views:
            name = self.views[name]
        return name

    # ── walking ──────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, chain: Chain) -> None:
        for op in body:
            self.op(op, chain)

    def op(self, op: Op, chain: Chain) -> None:
        position = len(self.ops)
        self.ops.append(op)
        if isinstance(op, View):
            self.views[op.buffer.name] = op.source.name
            return
        if isinstance(op, Alloc):
            self.homes.setdefault(op.buffer.name, chain)
        elif isinstance(op, WaitGroup) and op.pending == 0:
            self.waits.append((position, chain, op.unit))
        elif isinstance(op, Wait):
            self.waits.append((position, chain, op.barrier.buffer.name))
        elif isinstance(op, Break):
            self.breaks.append(chain)
        self.touch(op, position, chain)
        if isinstance(op, Map):
            return
        for f in marked(op, "body"):
            self.body(getattr(op, f.name), (*chain, (position, f.name)))
        if isinstance(op, (For, While)):
            self.loops[position] = (position, len(self.ops) - 1)

    def touch(self, op: Op, position: int, chain: Chain) -> None:
        units = {b.name: unit for b, unit in _engines(op)}
        if isinstance(op, Copy) and op.barrier is not None:
            ring = op.barrier.buffer.name in self.rings
            units[op.dst.buffer.name] = "ring" if ring else "barrier"
        for inner in walk_ops(op) if isinstance(op, Map) else (op,):
            strange = {
                r.buffer.name
                for r in operands(inner)
                if isinstance(r, Region) and r.cta is not None
            }
            if isinstance(inner, Intrinsic):
                strange |= {a.buffer.name for a in inner.args if isinstance(a, Region)}
            if isinstance(inner, Copy) and inner.multicast is not None:
                strange.add(inner.dst.buffer.name)
            for buffer in dict.fromkeys((*read_buffers(inner), *written_buffers(inner))):
                if buffer.space not in self.spaces:
                    continue
                name = self.root(buffer.name)
                self.touches.setdefault(name, []).append(
                    _Touch(position, chain, op, units.get(buffer.name, ""))
                )
                if buffer.name in strange or self.by_some(op):
                    self.alone.add(name)

    def by_some(self, op: Op) -> bool:
        """Whether threads run `op` each for itself."""
        if self.differs is None or isinstance(op, (Copy, Gemm, Map, Reduce, Scan, Fill, Relayout)):
            return False
        found = self.differs
        return id(op) in found.controls or found.source(expressions(op)) is not None

    # ── what follows ─────────────────────────────────────────────────────────────────────────

    def settled(self) -> Lifetimes:
        spans = {name: self.span(name) for name in self.touches}
        return Lifetimes(self.ops, spans, set(spans) - self.alone)

    def span(self, name: str) -> Span:
        touches = self.touches[name]
        first = min(t.position for t in touches)
        last = max([t.position for t in touches] + [self.over(t, touches) for t in touches])
        home = self.homes.get(name, ())
        around = {at for t in touches for at, _ in t.chain if at in self.loops}
        # conditions are read again behind every turn
        asked = {t.position for t in touches if isinstance(self.ops[t.position], While)}
        around |= asked
        # the innermost first: what a loop inside makes longer may reach out of the one around
        for loop in sorted(around, reverse=True):
            start, end = self.loops[loop]
            if any(at == loop for at, _ in home):
                continue  # made anew in every turn
            inside = [t for t in touches if start < t.position <= end]
            kept = loop in asked or first < start or last > end
            if kept or not _made_anew(inside, loop, name):
                first, last = min(first, start), max(last, end)
        return first, last

    def over(self, touch: _Touch, touches: list[_Touch]) -> int:
        """Where the op of an asynchronous access has certainly ended."""
        if not touch.unit:
            return touch.position
        never = len(self.ops)
        if touch.unit == "ring":
            # every load is waited for by its readers, unless they leave before
            read = any(not t.unit or t.unit == "wgmma" for t in touches)
            loops = {at for at, _ in touch.chain if at in self.loops}
            left = any(at in loops for chain in self.breaks for at, _ in chain)
            if left or not read:
                return never
        for position, chain, unit in self.waits:
            after = position > touch.position and touch.chain[: len(chain)] == chain
            if unit == _waited_for(touch) and after:
                return position
        return never if touch.unit != "ring" else touch.position  # waited for in the next turn


def _waited_for(touch: _Touch) -> str:
    """What a wait names that ends an asynchronous access: its engine, or its barrier."""
    if touch.unit != "ring":
        return touch.unit
    assert isinstance(touch.op, Copy) and touch.op.barrier is not None
    return touch.op.barrier.buffer.name


def _engines(op: Op) -> Iterator[tuple[Buffer, str]]:
    """Buffers that `op` goes on using when the next op begins, and what ends that."""
    if isinstance(op, Copy):
        if op.atom == "bulk_load":
            yield op.dst.buffer, "barrier"  # which may be the author's: never known to have ended
        elif op.atom == "bulk_store":
            yield op.src.buffer, "bulk"
        elif op.atom == "cp_async":
            yield op.dst.buffer, "cp_async"
    elif isinstance(op, Map) and op.atom == "cp_async":
        yield filled_by(op), "cp_async"
    elif isinstance(op, Gemm) and op.atom == "wgmma":
        for region in (op.a, op.b, op.c):
            yield region.buffer, "wgmma"


def _made_anew(touches: list[_Touch], loop: int, name: str) -> bool:
    """Whether every turn of the loop writes the whole buffer before anything else touches it."""
    first = min(touches, key=lambda t: t.position)
    return first.chain[-1][0] == loop and overwrites(first.op, name)


def overwrites(op: Op, name: str) -> bool:
    """Whether `op` gives all of a buffer new contents and does not read the old ones."""
    if isinstance(op, Map):
        return _map_overwrites(op, name)
    if any(b.name == name for b in (x.buffer for x in op_loads(op))):
        return False
    if isinstance(op, (Copy, Fill, Scan, Relayout)):
        region = op.dst
        if isinstance(op, Copy) and op.reduce is not None:
            return False
    elif isinstance(op, Reduce) and op.clear:
        region = op.dst
    elif isinstance(op, Gemm) and op.clear is TRUE:
        region = op.c
    else:
        return False
    others = [r.buffer.name for r in regions(op, reads=True) if r is not region]
    return region.buffer.name == name and region.is_whole and name not in others


def _map_overwrites(op: Map, name: str) -> bool:
    stores = [s for s in op.body if isinstance(s, Store) and s.buffer.name == name]
    if not stores or any(x.buffer.name == name for i in walk_ops(op.body) for x in op_loads(i)):
        return False
    if any(isinstance(inner, If) for inner in op.body[: op.body.index(stores[0])]):
        return False
    store = stores[0]
    extents = dict(zip(op.vars, op.extents, strict=True))
    return len(set(store.indices)) == len(store.indices) and all(
        extents.get(i) is size  # type: ignore[call-overload]
        for i, size in zip(store.indices, store.buffer.shape, strict=True)
    )


__all__ = ["Lifetimes", "lifetimes", "overwrites"]
