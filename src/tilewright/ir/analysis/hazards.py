"""Accesses of memory that threads of a block must not make out of order, and where they do.

`Hazards` walks a kernel the way it runs, loops to a fixed point, and keeps what has been accessed
since the threads last met. An access that conflicts with one of those is a hazard: `first` gives
the place, and what is missing there. It only looks; `insert_syncs` adds what is missing.

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
only after a fence by the writers and a barrier after it. Ordinary reads are over after a fence,
too: threads meet at `__syncthreads` while their loads are under way, and on an H200 a bulk load
that was issued then has overwritten what they had not read yet. A barrier in shared memory
(`mbarrier`) is served after the loads that stand before it, and needs no fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import or_
from typing import NamedTuple

from tilewright.ir.analysis.accesses import ASYNC, Access, Accesses, asks, meet
from tilewright.ir.analysis.flow import Flow, Loop, Path, paths
from tilewright.ir.analysis.uniform import per_thread
from tilewright.ir.core import *
from tilewright.ir.exchanges import meets_inside

# where accesses of groups under way are kept, by their kind
GROUPS = {"cp_async": "cp_async", "matrix": "matrix", "bulk_read": "bulk", "bulk_put": "puts"}
OLDEST = 3  # groups of bulk stores are told apart up to this age
AGAIN = Var(" again")  # what a `while` counts, as far as accesses go


def multibuffer(kernel: Kernel) -> set[str]:
    """Buffers whose slots alternate (`multibuffer`): no product reads one while it is written,
    whatever the code between the two says."""
    return {op.buffer.name for op in walk_ops(kernel, Alloc) if op.multibuffer}


@dataclass(frozen=True)
class Hazard:
    """Between `old`, an access of the op at `before`, and the op at `path` something is missing:
    'sync', 'fence' (and a sync), 'bulk' (a wait until bulk stores have read) or 'done' (until they
    have written)."""

    missing: str
    path: Path
    before: Path
    old: Access


class _Found(Exception):
    """`missing` before `op`, because of the accesses `old`."""

    def __init__(self, missing: str, op: Op, old: list[tuple[Access, int]]) -> None:
        self.missing, self.op, self.old = missing, op, old


class State(NamedTuple):
    """Accesses that may still be out of order, as bits of `Hazards.known`: by threads; unfenced
    ordinary writes; fenced ones that no barrier follows yet; and those of groups under way."""

    pending: int = 0
    raw: int = 0
    fenced: int = 0
    cp_async: int = 0
    matrix: int = 0
    bulk: int = 0
    puts: int = 0


class Hazards(Flow[State]):
    """Of a kernel, each of whose ops is an object of its own (`distinct`), and of those that it
    becomes with other barriers, fences and waits: what is known of an op, and of what a state is
    after it, is found once. `only`: hazards that miss this, all when empty; `role`: those between
    the threads of its warps, which run it and others like it."""

    def __init__(
        self, kernel: Kernel, only: tuple[str, ...] = (), role: Role | None = None
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.only = only
        self.differs = per_thread(kernel)
        self.accesses = Accesses(kernel)
        self.turning = multibuffer(kernel)
        self.role = role
        self.block = kernel.thread_count
        self.threads = self.block if role is None else role.warps * WARP
        self.known: list[tuple[Access, int]] = []  # accesses, and the ids of the ops that make them
        self.bits: dict[tuple[Access, int], int] = {}
        self.tensors = 0  # bits of accesses outside shared memory
        self.found: dict[int, tuple[Op, list[int]]] = {}  # by id of an op: its accesses
        self.after: dict[tuple[int, State], tuple[Op, State, list[State]]] = {}
        self.met: dict[int, tuple[int, int]] = {}  # by access: those asked about, those in conflict
        self.conflicts: dict[tuple[Access, Access, bool], bool] = {}

    @cached_property
    def defined(self) -> dict[Var, frozenset[Var]]:
        """The loops that variables are defined in."""
        found: dict[Var, frozenset[Var]] = {}
        for loop in walk_ops(self.kernel):
            if isinstance(loop, (For, While)):
                for each in (v for op in loop.body for v in bound_within(op)):
                    found[each] = found.get(each, frozenset()) | {_counter(loop)}
        return found

    def first(self, kernel: Kernel) -> Hazard | None:
        """The hazard that a walk of `kernel` comes to first."""
        try:
            self.run(kernel)
        except _Found as found:
            at = paths(kernel)
            new = at[id(found.op)]
            order = sorted(
                ((a.age, at[op], a.buffer, a.kind, a.writes), k)
                for k, (a, op) in enumerate(found.old)
            )
            # one fence after the last write in front serves all of them
            before = [x for x in order if found.missing == "fence" and x[0][1] < new]
            old, op = found.old[(before[-1] if before else order[0])[1]]
            return Hazard(found.missing, new, at[op], old)
        return None

    def run(self, kernel: Kernel) -> State:
        if self.differs.controls:
            self.differs = per_thread(kernel)  # it names ops by identity
        self.loops, self.jumps = [], []
        return self.body(kernel.body, State())[1]

    # ── control ──────────────────────────────────────────────────────────────────────────────

    def join(self, a: State, b: State) -> State:
        return State(*map(or_, a, b))

    def op(self, op: Op, state: State, out: list[Op]) -> State:
        key = id(op), state
        if key not in self.after:
            outer, self.jumps = self.jumps, [[]]
            after = super().op(op, state, [])
            self.after[key] = op, after, self.jumps[0]
            self.jumps = outer
        out.append(op)
        _, after, left = self.after[key]
        if self.jumps:
            self.jumps[-1] += left
        return after

    def again(self, loop: Loop, state: State, out: list[Op]) -> State:
        return super().again(loop, self.iterate(state, _counter(loop)), out)

    def runs(self, role: Role) -> bool:
        mine = self.role
        return mine is not None and (role.first, role.warps) == (mine.first, mine.warps)

    def carried(self, loop: Loop, state: State) -> State:
        # tiles might as well be other blocks': none waits for what another does to tensors
        apart = isinstance(loop, For) and loop.kind == "persistent"
        return State(*(part & ~self.tensors for part in state)) if apart else state

    # ── accesses that become others ──────────────────────────────────────────────────────────

    def bit(self, access: Access, op: int) -> int:
        """The number of an access."""
        found = self.bits.setdefault((access, op), len(self.known))
        if found == len(self.known):
            self.known.append((access, op))
            self.tensors |= 0 if access.shared else 1 << found
        return found

    def moved(self, accesses: int, change: Callable[[Access], Access], op: Op | None = None) -> int:
        """These accesses changed, and made by `op` where one is given."""
        new = 0
        for k in _bits(accesses):
            access, at = self.known[k]
            new |= 1 << self.bit(change(access), at if op is None else id(op))
        return new

    def tensor_moved(self, state: State, change: Callable[[Access], Access]) -> State:
        tensors = self.tensors
        return State(*(p & ~tensors | self.moved(p & tensors, change) for p in state))

    def iterate(self, state: State, loop: Var) -> State:
        """Another iteration of `loop` has begun."""

        def one(access: Access) -> Access:
            again = access.turned | {loop} if loop in access.loops else access.turned
            return replace(access, fresh=False, turned=again)

        return self.tensor_moved(state, one)

    def stale(self, state: State, scalar: Buffer) -> State:
        """`scalar` has changed."""

        def one(access: Access) -> Access:
            return replace(access, fresh=access.fresh and not asks(access.box, scalar))

        return self.tensor_moved(state, one)

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def visit(self, op: Op, state: State, out: list[Op]) -> State:
        match op:
            case Sync():
                meets = not op.arrive and self.is_block_wide(op)
                return state._replace(pending=0, fenced=0) if meets else state
            case Role() if self.role is not None and not self.runs(op):
                mine, end = self.role, op.first + op.warps
                joint = op.first <= mine.first and mine.first + mine.warps <= end
                return state._replace(pending=0, fenced=0) if joint else state
            case Fence(kind="proxy_async"):
                return state._replace(fenced=state.fenced | state.raw, raw=0)
            case WaitGroup():
                return self.wait(op, state)
            case Commit(unit="bulk"):
                older = self.moved(state.bulk, lambda a: replace(a, age=min(a.age + 1, OLDEST)))
                return state._replace(bulk=older)
        new = self.accesses_of(op)
        for access in new:
            self.check(op, access, state)
        if meets_inside(op, self.threads) and id(op) not in self.differs.controls:
            state = state._replace(pending=0, fenced=0)
        for access in new:
            state = self.record(access, state)
        for scalar in written_buffers(op):
            if scalar.is_local:
                state = self.stale(state, scalar)
        return state

    def accesses_of(self, op: Op) -> list[int]:
        if id(op) not in self.found:
            around = [*self.loops, op] if isinstance(op, While) else self.loops
            found = self.accesses.find(op, tuple(map(_counter, around)), self.differs)
            self.found[id(op)] = op, [self.bit(access, id(op)) for access in found]
        return self.found[id(op)][1]

    def is_block_wide(self, op: Sync) -> bool:
        if op.scope == "named":
            return op.threads in (self.threads, self.block)
        return op.scope in ("block", "cluster")

    def wait(self, op: WaitGroup, state: State) -> State:
        part = {"cp_async": "cp_async", "wgmma": "matrix", "bulk": "bulk"}[op.unit]
        group: int = getattr(state, part)
        left = group if op.pending else 0
        if op.unit == "bulk":
            left = sum(1 << k for k in _bits(group) if self.known[k][0].age < op.pending)
            group &= ~left
            if not op.read and not op.pending:
                state = state._replace(puts=0)
        state = state._replace(**{part: left})
        # as if it happened here: a barrier before this wait orders nothing
        ended = self.moved(group, lambda a: a, op)
        if op.unit != "wgmma" or self.threads > WARPGROUP:
            state = state._replace(pending=state.pending | ended)
        if op.unit == "cp_async":
            state = state._replace(raw=state.raw | ended)
        return state

    def check(self, op: Op, new: int, state: State) -> None:
        access, _ = self.known[new]
        watched = [("bulk", state.bulk), ("sync", state.pending)]
        if access.kind == "bulk_put":
            watched = [("done", state.puts)]
        elif access.kind in ASYNC:
            watched = [("fence", state.raw), ("sync", state.fenced), *watched]
        for missing, group in watched:
            if self.only and missing not in self.only:
                continue
            hits = [self.known[k] for k in _bits(self.in_conflict(new, group))]
            if hits:
                raise _Found(missing, op, hits)

    def in_conflict(self, new: int, group: int) -> int:
        """Those of a group that an access conflicts with."""
        asked, hits = self.met.get(new, (0, 0))
        access, op = self.known[new]
        for k in _bits(group & ~asked):
            old, at = self.known[k]
            key = old, access, at == op
            if key not in self.conflicts:
                conflict = not self.alternate(old, access) and meet(*key, self.defined)
                self.conflicts[key] = conflict
            hits |= self.conflicts[key] << k
        self.met[new] = asked | group, hits
        return hits & group

    def alternate(self, old: Access, new: Access) -> bool:
        """Slots that alternate are free where they are written; their bytes are not."""
        return old.kind == "matrix" and old.buffer == new.buffer and new.buffer in self.turning

    def record(self, new: int, state: State) -> State:
        access, op = self.known[new]
        bit = 1 << new
        if access.kind == "bulk_write":
            return state  # its barrier orders it
        if access.kind == "cp_async":
            bit = 1 << self.bit(replace(access, kind="threads"), op)
        if (part := GROUPS.get(access.kind)) is not None:
            return state._replace(**{part: getattr(state, part) | bit})
        state = state._replace(pending=state.pending | bit)
        return state._replace(raw=state.raw | bit) if access.shared else state


def _counter(loop: Op) -> Var:
    return loop.var if isinstance(loop, For) else AGAIN


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def distinct(kernel: Kernel) -> Kernel:
    """`kernel` with ops that are objects of their own, wherever it has one of them twice."""
    seen: dict[int, Op] = {}

    def rule(op: Op) -> Op | None:
        if id(op) not in seen:
            seen[id(op)] = op
            return None
        new = with_loc(op, op.loc)
        return seen.setdefault(id(new), new)

    return rebuild(kernel, body=map_body(kernel.body, rule))
