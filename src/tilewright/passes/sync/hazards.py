"""Accesses of memory that threads of a block must not make out of order, and where they do.

`Walk` walks a kernel the way it runs, loops to a fixed point, and keeps what has been accessed
since the threads last met. An access that conflicts with one of those is a hazard, which it raises
as `Found`: the place, and what is missing there. It only looks; `insert_syncs` adds what it asks
for.

Who touches memory, and when that is over:

- ordinary tile ops (*threads*): until the next barrier of the block, or the next exchange between
  its warps, which has one inside (`ir.exchanges`);
- thread-level code (*lanes*): the same, but its order among itself is its author's business;
- `cp.async`: ordinary writes, made at the wait for their group;
- matrix instructions read shared memory until the wait for their group, which each warpgroup does
  for itself: with one warpgroup that is enough, with several they have to meet;
- bulk stores read until the one thread that waits for their group has told the others; two that
  may write the same elements of a tensor need the wait for the first between them.

What reads through the asynchronous proxy, and a bulk load that overwrites, sees ordinary writes
only behind a fence by the writers and a barrier after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeAlias, TypeVar

from tilewright.ir.analysis.uniform import PerThread
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.exchanges import meets_inside
from tilewright.ir.expr import Const, Expr, Var, loads
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Arrive,
    Atomic,
    Body,
    Break,
    Commit,
    Continue,
    Copy,
    Fence,
    Fill,
    For,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Let,
    Map,
    Op,
    Role,
    Store,
    Sync,
    View,
    Wait,
    WaitGroup,
    While,
    bodies,
    bound_within,
    expressions,
    marked,
    regions,
    walk_ops,
    written_buffers,
)
from tilewright.passes.memory.place_shared import sharing
from tilewright.passes.overlap.rings import multibuffer
from tilewright.passes.sync.accesses import Access, Box, Path, asks, meet, span

WARPGROUP = 128
ASYNC = ("matrix", "bulk_read", "bulk_write")
OLDEST = 3  # groups of bulk stores are told apart up to this age
AGAIN = Var(" again")  # what a `while` counts, as far as accesses go
OpT = TypeVar("OpT", bound=Op)


@dataclass(frozen=True)
class Hazard:
    """At `path`, after `old`, something is missing: 'sync', 'fence' (and a sync), 'bulk' (a wait
    until bulk stores have read) or 'done' (until they have written)."""

    missing: str
    path: Path
    old: Access


class Found(Exception):
    """A hazard; `where` something goes against it, and what, once somebody has asked."""

    def __init__(self, missing: str, path: Path, old: Access) -> None:
        self.hazard = Hazard(missing, path, old)
        self.where: Path | None = None
        self.new: list[Op] = []


@dataclass
class State:
    """Accesses that may still be out of order: by threads; unfenced ordinary writes; fenced ones
    that no barrier follows yet; and those of groups under way."""

    pending: set[Access] = field(default_factory=set)
    raw: set[Access] = field(default_factory=set)
    fenced: set[Access] = field(default_factory=set)
    cp_async: set[Access] = field(default_factory=set)
    matrix: set[Access] = field(default_factory=set)
    bulk: set[Access] = field(default_factory=set)
    puts: set[Access] = field(default_factory=set)

    def parts(self) -> tuple[set[Access], ...]:
        return (
            self.pending, self.raw, self.fenced, self.cp_async, self.matrix, self.bulk, self.puts,
        )  # fmt: skip

    def copy(self) -> State:
        return State(*(set(p) for p in self.parts()))

    def become(self, other: State) -> None:
        for mine, its in zip(self.parts(), other.parts(), strict=True):
            mine.clear()
            mine |= its

    def in_shared_memory(self) -> State:
        return State(*({a for a in p if a.shared} for p in self.parts()))

    def stale(self, scalar: Buffer) -> None:
        """`scalar` has changed."""

        def one(access: Access) -> Access:
            if not access.fresh or not asks(access.box, scalar):
                return access
            return access.but(fresh=False)

        self.change(one)

    def turn(self, loop: Var) -> None:
        """Another iteration of `loop` has begun."""

        def one(access: Access) -> Access:
            again = access.turned | {loop} if loop in access.loops else access.turned
            if access.shared or (not access.fresh and again == access.turned):
                return access
            return access.but(fresh=False, turned=again)

        self.change(one)

    def change(self, one: Callable[[Access], Access]) -> None:
        for part in self.parts():
            changed = {one(access) for access in part}
            part.clear()
            part.update(changed)

    def join(self, other: State) -> None:
        for mine, more in zip(self.parts(), other.parts(), strict=True):
            mine |= more


# by id of an op and the loops around it: the op, and what it accesses wherever it stands in them
Looked: TypeAlias = dict[tuple[int, tuple[Var, ...]], tuple[Op, tuple[Access, ...]]]


class Walk:
    """`only`: hazards that miss this, all when empty. `looked` keeps what ops access, for other
    walks with the same `found` of the same kernel less or more barriers, fences and waits."""

    def __init__(
        self,
        kernel: Kernel,
        found: PerThread,
        only: tuple[str, ...],
        looked: Looked | None = None,
    ) -> None:
        self.looked: Looked = {} if looked is None else looked
        self.kernel = kernel
        self.found = found
        self.only = only
        self.roots = {
            op.buffer.name: op.source.name for op in walk_ops(kernel) if isinstance(op, View)
        }
        self.aliased = {self.root(name) for name in self.roots}
        self.sharing = sharing(kernel)
        self.turning = multibuffer(kernel)
        self.changed = {
            self.root(b.name) for op in walk_ops(kernel.body) for b in written_buffers(op)
        }
        self.threads = prod(kernel.threads)
        self.groups = self.threads > WARPGROUP
        self.jumps: list[State] = []
        self.accesses: dict[int, tuple[Op, Path, tuple[Access, ...]]] = {}
        self.conflicts: dict[tuple[int, int, bool], tuple[bool, Access, Access]] = {}
        self.gone: set[int] = set()  # ids of ops that are passed over
        self.idle: dict[int, Op] = {}  # by their ids, ops that change no state
        self.later = 0  # loops around that are not in their first round

    @cached_property
    def defined(self) -> Mapping[Var, frozenset[Var]]:
        """The loops that variables are defined in."""
        found: dict[Var, frozenset[Var]] = {}
        for loop in walk_ops(self.kernel):
            if isinstance(loop, (For, While)):
                var = frozenset({loop.var if isinstance(loop, For) else AGAIN})
                for each in (v for op in loop.body for v in bound_within(op)):
                    found[each] = found.get(each, frozenset()) | var
        return found

    def root(self, name: str) -> str:
        while name in self.roots:
            name = self.roots[name]
        return name

    def run(self) -> State:
        state = State()
        self.body(self.kernel.body, (), (), state)
        return state

    # ── control ──────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, at: Path, loops: tuple[Var, ...], state: State) -> None:
        for k, op in enumerate(body):
            if id(op) not in self.gone and id(op) not in self.idle:
                self.op(op, (*at, (k, "")), loops, state)

    def current(self, op: OpT, path: Path) -> OpT:
        """The op at `path` as it is by now."""
        return op

    def op(self, op: Op, path: Path, loops: tuple[Var, ...], state: State) -> None:
        if isinstance(op, While):
            self.loop(op, path, (*loops, AGAIN), state)
            return
        self.touch(op, path, loops, state)
        if isinstance(op, For):
            self.loop(op, path, (*loops, op.var), state)
        elif isinstance(op, If):
            other = state.copy()
            self.body(op.then, _into(path, "then"), loops, state)
            self.body(op.orelse, _into(path, "orelse"), loops, other)
            state.join(other)
        elif isinstance(op, (Break, Continue)):
            if self.jumps:
                self.jumps[-1].join(state)
        elif goes_into(op):
            for f in marked(op, "body"):
                self.body(getattr(op, f.name), _into(path, f.name), loops, state)

    def loop(self, op: For | While, path: Path, loops: tuple[Var, ...], state: State) -> None:
        again = 0
        while True:
            if isinstance(op, While):
                self.touch(op, path, loops, state)
            before = state.copy()
            inner = state.copy()
            self.jumps.append(State())
            self.later += again
            try:
                self.body(op.body, _into(path, "body"), loops, inner)
            finally:
                self.later -= again
                jumped = self.jumps.pop()
            again, op = 1, self.current(op, path)
            inner.join(jumped)
            inner.turn(loops[-1])
            # tiles might as well be other blocks': none waits for what another does to tensors
            apart = isinstance(op, For) and op.kind == "persistent"
            state.join(inner.in_shared_memory() if apart else inner)
            if state == before:
                state.join(inner)
                return

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def touch(self, op: Op, path: Path, loops: tuple[Var, ...], state: State) -> None:
        match op:
            case Sync():
                if not op.arrive and self.is_block_wide(op):
                    state.pending.clear()
                    state.fenced.clear()
                return
            case Fence(kind="proxy_async"):
                state.fenced |= state.raw
                state.raw.clear()
                return
            case WaitGroup():
                self.wait(op, path, state)
                return
            case Commit():
                if op.unit == "bulk":
                    state.bulk = {a.but(age=min(a.age + 1, OLDEST)) for a in state.bulk}
                return
        new = self.accesses_of(op, path, loops)
        for access in new:
            self.check(access, state)
        if self.meets_inside(op):
            state.pending.clear()
            state.fenced.clear()
        for access in new:
            self.record(access, state)
        scalars = [b for b in written_buffers(op) if b.space is Space.LOCAL]
        for buffer in scalars:
            state.stale(buffer)
        if not (new or scalars) and isinstance(op, _MOSTLY_IDLE):
            self.idle[id(op)] = op

    def meets_inside(self, op: Op) -> bool:
        return meets_inside(op, self.threads) and id(op) not in self.found.controls

    def is_block_wide(self, op: Sync) -> bool:
        if op.scope == "named":
            return op.threads == self.threads
        return op.scope in ("block", "cluster")

    def wait(self, op: WaitGroup, path: Path, state: State) -> None:
        group = {"cp_async": state.cp_async, "wgmma": state.matrix, "bulk": state.bulk}[op.unit]
        if op.unit == "bulk":
            group = {access for access in state.bulk if access.age >= op.pending}
            state.bulk -= group
            if not op.read and not op.pending:
                state.puts.clear()
        # as if it happened here: a barrier before this wait orders nothing
        ended = {access.at(path) for access in group}
        if op.unit != "wgmma" or self.groups:
            state.pending |= ended
        if op.unit == "cp_async":
            state.raw |= ended
        if op.pending == 0:
            group.clear()

    def check(self, new: Access, state: State) -> None:
        watched = [("bulk", state.bulk), ("sync", state.pending)]
        if new.kind == "bulk_put":
            watched = [("done", state.puts)]
        elif new.kind in ASYNC:
            watched = [("fence", state.raw), ("sync", state.fenced), *watched]
        for missing, group in watched:
            if self.only and missing not in self.only:
                continue
            low, high = new.first
            hits = [
                old
                for old in group
                if old.root == new.root
                and old.first[0] < high
                and low < old.first[1]
                and self.conflict(old, new)
            ]
            # slots that take turns are free where they are written; their bytes are not
            hits = [old for old in hits if not self.takes_turns(old, new)]
            if missing == "fence":
                # reads matter only where the bytes become another buffer's
                hits = [old for old in hits if old.writes or old.buffer != new.buffer]
            if hits:
                order = sorted(hits, key=lambda a: (a.age, a.path, a.buffer, a.kind, a.writes))
                # one fence behind the last write in front serves all of them
                before = [old for old in order if missing == "fence" and old.path < new.path]
                raise Found(missing, new.path, before[-1] if before else order[0])

    def conflict(self, old: Access, new: Access) -> bool:
        """`meet`, asked once of all that are alike; it asks of places whether they are one."""
        one, other = old.anywhere, new.anywhere
        key = id(one), id(other), old.path == new.path
        found = self.conflicts.get(key)
        if found is None:
            conflict = meet(old, new, self.defined)
            found = self.conflicts[key] = (conflict, one, other)  # ids stay theirs
        return found[0]

    def takes_turns(self, old: Access, new: Access) -> bool:
        return old.kind == "matrix" and old.buffer == new.buffer and new.buffer in self.turning

    def record(self, new: Access, state: State) -> None:
        if new.kind == "bulk_write":
            return  # its barrier orders it
        if new.kind == "cp_async":
            state.cp_async.add(new.but(kind="threads"))
        elif new.kind == "matrix":
            state.matrix.add(new)
        elif new.kind == "bulk_read":
            state.bulk.add(new)
        elif new.kind == "bulk_put":
            state.puts.add(new)
        else:
            state.pending.add(new)
            if new.shared and (new.writes or new.root in self.sharing.values()):
                state.raw.add(new)

    # ── accesses ─────────────────────────────────────────────────────────────────────────────

    def accesses_of(self, op: Op, path: Path, loops: tuple[Var, ...]) -> tuple[Access, ...]:
        known = self.accesses.get(id(op))
        if known is None or known[1] != path:
            anywhere = self.looked.get((id(op), loops))
            if anywhere is None:
                found = tuple(dict.fromkeys(self.find_accesses(op, (), loops)))
                anywhere = self.looked[id(op), loops] = (op, found)
            here = tuple(access.at(path) for access in anywhere[1])
            known = self.accesses[id(op)] = (op, path, here)
        return known[2]

    def find_accesses(self, op: Op, path: Path, loops: tuple[Var, ...]) -> Iterator[Access]:
        general = "lanes" if self.is_per_thread(op) else "threads"
        if isinstance(op, Map):
            yield from self.nest_accesses(op, path, loops)
            return
        engine = _KINDS.get(getattr(op, "atom", None) or "", {})
        for reads in (True, False):
            for region in regions(op, reads=reads, writes=not reads):
                kind = engine.get("reads" if reads else "writes", general)
                if isinstance(op, Atomic) and region is op.dst:
                    kind = "atomic"
                pattern = _copy_pattern(op) if region.buffer.space is Space.SHARED else None
                box = tuple(
                    (s, int(e.value)) if isinstance(e, Const) else None
                    for s, e in zip(region.starts, region.extents, strict=True)
                )
                for found in self.access(region.buffer, kind, not reads, box, pattern, path, loops):
                    yield found.but(block=region.cta)
        for load in (x for e in expressions(op) for x in loads(e)):
            box = tuple((i, 1) for i in load.indices)
            yield from self.access(load.buffer, general, False, box, None, path, loops)
        if isinstance(op, Store):
            box = tuple((i, 1) for i in op.indices)
            yield from self.access(op.buffer, general, True, box, None, path, loops)
        if isinstance(op, Intrinsic):
            for arg in op.args:
                if isinstance(arg, Region):
                    yield from self.access(arg.buffer, general, True, None, None, path, loops)

    def nest_accesses(self, op: Map, path: Path, loops: tuple[Var, ...]) -> Iterator[Access]:
        extents = {
            v: int(e.value) if isinstance(e, Const) else None
            for v, e in zip(op.vars, op.extents, strict=True)
        }
        inner = {v for each in op.body for v in bound_within(each)}
        writes_by = _KINDS.get(op.atom or "", {}).get("writes", "threads")
        for each in walk_ops(op.body):
            found: list[tuple[Buffer, tuple[Expr, ...], str, bool]] = [
                (x.buffer, x.indices, "threads", False) for e in expressions(each) for x in loads(e)
            ]
            if isinstance(each, Store):
                found.append((each.buffer, each.indices, writes_by, True))
            for region in regions(each, reads=True, writes=True):
                atomic = isinstance(each, Atomic) and region is each.dst
                yield from self.access(
                    region.buffer, "atomic" if atomic else "threads", True, None, None, path, loops
                )
            for buffer, indices, kind, writes in found:
                box = tuple(span(i, extents, inner) for i in indices)
                pattern = None
                plain = kind == "threads" and all(i in extents for i in indices)
                if _is_one_to_one(op.layout) and plain:
                    axes = tuple(op.vars.index(i) for i in indices if isinstance(i, Var))
                    pattern = ("nest", op.layout, axes, tuple(extents.values()))
                yield from self.access(buffer, kind, writes, box, pattern, path, loops)

    def access(
        self,
        buffer: Buffer,
        kind: str,
        writes: bool,
        box: Box | None,
        pattern: Any,
        path: Path,
        loops: tuple[Var, ...],
    ) -> Iterator[Access]:
        root = self.root(buffer.name)
        if buffer.space not in (Space.SHARED, Space.GLOBAL):
            return
        if buffer.space is Space.GLOBAL and (kind in ASYNC or root not in self.changed):
            return
        if root in self.aliased:
            box = pattern = None
        root = self.sharing.get(root, root)
        shared = buffer.space is Space.SHARED
        yield Access(
            buffer.name, root, kind, writes, path, box, pattern, loops, shared, fresh=not shared
        )

    def is_per_thread(self, op: Op) -> bool:
        return id(op) in self.found.controls or self.found.source(expressions(op)) is not None


_KINDS: Mapping[str, Mapping[str, str]] = {
    "bulk_load": {"writes": "bulk_write"},
    "bulk_store": {"reads": "bulk_read", "writes": "bulk_put"},
    "wgmma": {"reads": "matrix"},
    "cp_async": {"writes": "cp_async"},
    "remote_store": {"writes": "bulk_write"},
}


# where these access nothing it is as if they were not there
_MOSTLY_IDLE = (Alloc, Arrive, Fill, Hint, Let, Map, Store, Wait)


def goes_into(op: Op) -> bool:
    """Whether ops inside are looked at one by one. A producer is ordered by its barriers."""
    return not isinstance(op, (Map, Role)) and bool(bodies(op))


def _into(path: Path, name: str) -> Path:
    return (*path[:-1], (path[-1][0], name))


def _is_one_to_one(layout: Any) -> bool:
    return isinstance(layout, Fragment) and layout.is_bijective


def _copy_pattern(op: Op) -> Any:
    """Which thread touches which element of the shared side of a copy by threads."""
    if isinstance(op, Copy) and op.atom == "threads":
        for side in (op.src, op.dst):
            layout = side.buffer.layout
            if side.is_whole and _is_one_to_one(layout):
                return ("copy", layout)
    return None


__all__ = ["Access", "Found", "Hazard", "Path", "State", "Walk", "goes_into"]
