"""From where to where in a kernel's text a buffer's contents matter.

Ops are numbered in the order of the text. A buffer lives from its first access to its last; where
contents go round a loop, or in and out of it, through the whole loop; where an asynchronous op
touches it, until that op has been waited for. Between two buffers whose lives do not meet there is
no order yet: who lays one over the other has to see to it that threads meet in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.uniform import TILE_OPS, PerThread, per_thread
from tilewright.ir.atoms import ATOMS
from tilewright.ir.core import *
from tilewright.ir.gather import filled_by

Span = tuple[int, int]
Chain = tuple[tuple[int, str], ...]  # the ops around, outermost first, and which body of theirs


def fragment_words(code: Kernel | Body) -> dict[str, int]:
    """Registers of a thread by fragment."""
    return {
        op.buffer.name: -(-op.buffer.layout.values * op.buffer.dtype.bits // 32)
        for op in walk_ops(code, Alloc)
        if isinstance(op.buffer.layout, Fragment)
    }


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

    def in_place(self, kernel: Kernel, sizes: Mapping[str, int]) -> Lifetimes:
        """After loops, what an elementwise op reads for the last time and what it makes share
        registers, where that takes no more. Inside, neighbouring iterations may overlap."""
        inside = {id(op) for loop in walk_ops(kernel, For) for op in walk_ops(loop.body, Map)}
        born: dict[int, int] = {}
        for name, (first, _) in self.spans.items():
            if name in sizes:
                born[first] = min(sizes[name], born.get(first, sizes[name]))
        spans = dict(self.spans)
        for name, (first, last) in self.spans.items():
            is_map = isinstance(self.ops[last], Map) and id(self.ops[last]) not in inside
            if is_map and name in sizes and 0 < born.get(last, 0) <= sizes[name]:
                spans[name] = (first, max(first, last - 1))
        return replace(self, spans=spans)

    def lives(self, name: str, position: int) -> bool:
        span = self.spans.get(name)
        return span is not None and span[0] <= position <= span[1]


def lifetimes(code: Kernel | Body, spaces: Iterable[Space] = (Space.SHARED,)) -> Lifetimes:
    """The lives of the buffers in `spaces`; those of the kernel, or of a part of one."""
    found = _Walk(code, frozenset(spaces))
    spans = {name: found.span(name) for name in found.touches}
    return Lifetimes(found.ops, spans, set(spans) - found.alone)


class _Touch(NamedTuple):
    position: int
    chain: Chain
    op: Op
    unit: str  # of an asynchronous op: whose groups, or which barrier, to wait for
    ring: bool  # that barrier is a ring's


class _Walk:
    def __init__(self, code: Kernel | Body, spaces: frozenset[Space]) -> None:
        self.spaces = spaces
        self.roots = aliases(code)
        self.differs: PerThread | None = None
        self.rings: set[str] = set()
        self.ops: list[Op] = []
        self.touches: dict[str, list[_Touch]] = {}
        self.loops: dict[int, Span] = {}
        self.homes: dict[str, Chain] = {}  # where a buffer is allocated
        self.waits: list[tuple[int, Chain, str]] = []  # for an engine or barrier
        self.breaks: list[Chain] = []
        self.alone: set[str] = set()  # buffers that some threads touch for themselves
        if isinstance(code, Kernel):
            self.differs = per_thread(code)
            # barriers that `pipeline_loops` made begin where the kernel does. Each load on one of
            # them is waited for; what authors do with theirs is not known
            self.rings = {
                op.barrier.buffer.name
                for op in walk_ops(code, BarrierInit)
                if op.loc is not None and op.loc == code.loc
            }
            code = code.body
        self.body(code, ())

    # ── walking ──────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, chain: Chain) -> None:
        for op in body:
            position = len(self.ops)
            self.ops.append(op)
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
                continue
            for f in marked(op, "body"):
                self.body(getattr(op, f.name), (*chain, (position, f.name)))
            if isinstance(op, (For, While)):
                self.loops[position] = (position, len(self.ops) - 1)

    def touch(self, op: Op, position: int, chain: Chain) -> None:
        unit, used = _engine(op)
        barrier = op.barrier if isinstance(op, Copy) else None
        ring = barrier is not None and barrier.buffer.name in self.rings
        if ring and barrier is not None:
            unit = barrier.buffer.name
        differs = None if isinstance(op, tuple(TILE_OPS)) else self.differs
        apart = differs is not None and differs.runs_apart(op)
        for inner in walk_ops(op) if isinstance(op, Map) else (op,):
            given = [x for x in operands(inner) if isinstance(x, Region)]
            strange = {r.buffer for r in given if r.cta is not None or isinstance(inner, Intrinsic)}
            if isinstance(inner, Copy) and inner.multicast is not None:
                strange.add(inner.dst.buffer)
            for buffer in dict.fromkeys((*read_buffers(inner), *written_buffers(inner))):
                if buffer.space not in self.spaces:
                    continue
                name = self.roots[buffer.name]
                touch = _Touch(position, chain, op, unit if buffer in used else "", ring)
                self.touches.setdefault(name, []).append(touch)
                if buffer in strange or apart:
                    self.alone.add(name)

    # ── what follows ─────────────────────────────────────────────────────────────────────────

    def span(self, name: str) -> Span:
        touches = self.touches[name]
        first = min(t.position for t in touches)
        last = max(max(t.position, self.over(t, touches)) for t in touches)
        home = self.homes.get(name, ())
        # conditions are read again after every iteration
        asked = {t.position for t in touches if isinstance(self.ops[t.position], While)}
        around = {at for t in touches for at, _ in t.chain if at in self.loops} | asked
        # the innermost first: what a loop inside makes longer may reach out of the one around
        for loop in sorted(around, reverse=True):
            start, end = self.loops[loop]
            if any(at == loop for at, _ in home):
                continue  # made anew in every iteration
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
        if touch.ring:
            # every load is waited for by its readers, unless they leave before
            read = any(t.unit in ("", "wgmma") for t in touches)
            loops = {at for at, _ in touch.chain if at in self.loops}
            left = any(at in loops for chain in self.breaks for at, _ in chain)
            if left or not read:
                return never
        for position, chain, unit in self.waits:
            after = position > touch.position and touch.chain[: len(chain)] == chain
            if unit == touch.unit and after:
                return position
        return touch.position if touch.ring else never  # a ring's: in the next iteration


def _engine(op: Op) -> tuple[str, list[Buffer]]:
    """What ends an asynchronous op, and the buffers that it goes on using when the next begins."""
    if isinstance(op, Copy) and op.barrier is not None:
        return "barrier", [op.dst.buffer]  # which may be the author's: never known to have ended
    atom = op.atom if isinstance(op, (Copy, Gemm, Map)) else None
    unit = ATOMS[atom].completion if atom is not None else ""
    if not unit:
        return "", []
    if isinstance(op, Gemm):
        return unit, [op.a.buffer, op.b.buffer, op.c.buffer]
    if isinstance(op, Copy) and unit == "bulk":
        return unit, [op.src.buffer]
    assert isinstance(op, (Copy, Map))
    return unit, [filled_by(op)]


def _made_anew(touches: list[_Touch], loop: int, name: str) -> bool:
    """Whether each iteration writes the whole buffer before anything else touches it."""
    first = min(touches, key=lambda t: t.position)
    return first.chain[-1][0] == loop and overwrites(first.op, name)


def overwrites(op: Op, name: str) -> bool:
    """Whether `op` gives all of a buffer new contents and does not read the old ones."""
    if isinstance(op, Map):
        return _map_overwrites(op, name)
    if any(x.buffer.name == name for x in op_loads(op)):
        return False
    match op:
        case Copy(reduce=None) | Fill() | Scan() | Relayout() | Reduce(clear=True):
            region = op.dst
        case Gemm(clear=clear) if clear is TRUE:
            region = op.c
        case _:
            return False
    others = [r.buffer.name for r in regions(op, reads=True) if r is not region]
    return region.buffer.name == name and region.is_whole and name not in others


def _map_overwrites(op: Map, name: str) -> bool:
    stores = [s for s in op.body if isinstance(s, Store) and s.buffer.name == name]
    if not stores or any(x.buffer.name == name for x in loads_within(op.body)):
        return False
    if any(isinstance(inner, If) for inner in op.body[: op.body.index(stores[0])]):
        return False
    store = stores[0]
    extents = dict(zip(op.vars, op.extents, strict=True))
    return len(set(store.indices)) == len(store.indices) and all(
        extents.get(i) is size  # type: ignore[call-overload]
        for i, size in zip(store.indices, store.buffer.shape, strict=True)
    )


__all__ = ["Lifetimes", "fragment_words", "lifetimes", "overwrites"]
