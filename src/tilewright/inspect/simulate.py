"""A scheduled kernel's blocks on one multiprocessor, event by event: who runs, who waits for whom.

Every warpgroup of every resident block is an agent that walks its ops in order: a Python generator
that yields the time, or the signal, at which it goes on. Barriers, groups, turns and named barriers
are what they are in the program; memory has no contents. `unit_times` has the numbers,
`multiprocessor` the units and the loop that is asked about: the walk ends where every agent that
has it has run `rounds` of its iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from tilewright.inspect.multiprocessor import *
from tilewright.ir.core import *
from tilewright.ir.gather import filled_by
from tilewright.ir.layout.fragment import reach
from tilewright.ir.target import Target
from tilewright.machine.sync import Blocked, Groups, Meeting, Party, Transfer
from tilewright.passes.layout.matrix_tiles import RUN
from tilewright.passes.lower.stamp_ops import is_quiet
from tilewright.passes.overlap import unit_times as rates
from tilewright.passes.overlap.unit_times import TENSOR, THREADS

NOBODY = np.zeros(0, np.int64)
WARM = 4  # iterations before the steady state
SECTOR, NEAR = 32, 40  # bytes that a load gets at least; cycles until it has them from the L1 cache
MANY, CAP = 32, 3  # of loops that have nothing to do with it, longer than many, so few are walked
EACH_OTHER, PRODUCTS, MEMORY, TURNS = "each other", "products", "memory", "their turn"


class Over(Exception):
    """An agent has seen enough."""


class _Again(Exception):
    """`continue`."""


class _Left(Exception):
    """`break`."""


class Walk:
    """One agent's way through the kernel."""

    def __init__(self, sim: Multiprocessor, who: Who, env: Env) -> None:
        self.sim, self.who, self.env = sim, who, env
        self.loaded: dict[str, float] = {}  # when what threads load of global memory is there
        self.sectors: dict[tuple[int, str], Any] = {}  # of what they have loaded last, by op
        self.groups: dict[str, Groups] = {}  # values are ends: (read, whole)

    def body(self, body: Body) -> Steps:
        for op in body:
            yield from self.op(op)

    def op(self, op: Op) -> Steps:
        """By the method that is named after its class."""
        rule = getattr(self, f"on_{type(op).__name__.lower()}", None)
        steps = None if rule is None else rule(op)
        if steps is not None:
            yield from steps

    @property
    def now(self) -> float:
        return self.sim.clock.now

    def issue(self, work: float, solo: float = rates.SOLO) -> Blocked:
        """Instructions; a warpgroup alone fills `solo` of the slots."""
        return self.sim.slots.run(work, solo * self.who.warps / GROUP)

    def wait(self, op: Op, since: float, what: str) -> None:
        if self.now > since:
            self.sim.spans.append(Span(self.who.number, WAITS, op, since, self.now, what=what))

    # structure

    def on_alloc(self, op: Alloc) -> None:
        if op.init is not None:
            self.env[op.buffer.name] = value(op.init, self.env)

    def on_let(self, op: Let) -> None:
        self.env[op.var] = value(op.value, self.env)

    def on_role(self, op: Role) -> Steps:
        if op.name == self.who.role:
            if op.var is not None:
                self.env[op.var] = self.who.instance
            yield from self.body(op.body)

    def on_if(self, op: If) -> Steps:
        yield from self.body(op.then if value(op.cond, self.env) else op.orelse)

    def on_for(self, op: For) -> Steps:
        sim = self.sim
        if is_quiet(op):
            yield from self.compute(op)
            return
        values = trips(op, self.env)
        if len(values) > MANY and not sim.partner(op):
            values = values[:CAP]
        for each in values:
            if id(op) in sim.loops:
                self.who.starts.append(self.now)
                if len(self.who.starts) > sim.rounds:
                    raise Over
            self.env[op.var] = each
            yield self.now + rates.TURN
            try:
                yield from self.body(op.body)
            except _Again:
                continue
            except _Left:
                break
        if id(op) in sim.loops:
            self.who.starts.append(self.now)
            if not sim.whole:
                raise Over

    def on_while(self, op: While) -> Steps:
        for _ in range(CAP):
            if not value(op.cond, self.env):
                break
            yield from self.body(op.body)

    def on_continue(self, op: Op) -> None:
        raise _Again

    def on_break(self, op: Op) -> None:
        raise _Left

    # work

    def needs(self, op: Op) -> Steps:
        """Until what threads have loaded for this op is there."""
        if not self.loaded:
            return
        names = {b.name for i in walk_ops(op) for b in (*read_buffers(i), *written_buffers(i))}
        there = max((self.loaded.pop(n) for n in names if n in self.loaded), default=0.0)
        if there > self.now:
            since = self.now
            yield there
            self.wait(op, since, MEMORY)

    def compute(self, op: Op) -> Steps:
        """Ordinary instructions, and what keeps other units busy besides: products of warps,
        special functions, shared memory."""
        sim, who = self.sim, self.who
        yield from self.needs(op)
        cost, start = sim.cost(op), self.now
        ends = {}
        for unit, lane, each, latency, what in (
            (TENSOR, sim.tensor, cost.tensor, rates.PRODUCT_LATENCY, PRODUCTS),
            (SHARED, sim.shared, cost.shared, 0, SHARED),
        ):
            if each:
                begun, over = lane.take(each / who.peers)
                sim.spans.append(Span(who.number, unit, op, begun, over, over - begun))
                ends[what] = over, max(over, start + cost.chain * (unit == TENSOR)) + latency
        if cost.threads:
            work = cost.threads / who.peers
            yield self.issue(work, cost.solo)
            sim.spans.append(Span(who.number, THREADS, op, start, self.now, work))
            if cost.special:  # what threads wait for them is part of their work
                work = cost.special / who.peers
                sim.spans.append(Span(who.number, SPECIAL, op, start, self.now, work))
        for what, (over, there) in ends.items():
            if over > self.now:
                since = self.now
                yield there
                self.wait(op, since, what)

    on_fill = on_scan = on_relayout = on_atomic = on_intrinsic = compute

    def on_map(self, op: Map) -> Steps:
        """With loads and stores of global memory as they stand in it."""
        points = prod(int(value(e, self.env)) for e in op.extents) / self.who.peers
        inner = list(walk_ops(op.body))
        if op.atom == "cp_async":
            tile = filled_by(op).dtype
            size = points * tile.bits / 8
            yield self.now + size / RUN * rates.GATHER
            self.joins(op, "cp_async", self.sim.move(self.who, op, size))
            return
        reads = {x.buffer.name: x.dtype.bits / 8 for i in inner for x in op_loads(i)
                 if x.buffer.is_global}  # fmt: skip
        writes = {i.buffer.name: i.buffer.dtype.bits / 8 for i in inner
                  if isinstance(i, Store) and i.buffer.is_global}  # fmt: skip
        yield from self.needs(op)
        if reads:
            there = self.fetch(op, points * sum(reads.values()))
            if all(isinstance(i, Store) and _only_loads(i) for i in inner):
                # nobody waits until what is loaded is used
                self.loaded.update((i.buffer.name, there) for i in inner if isinstance(i, Store))
                yield self.issue(self.sim.cost(op).threads / self.who.peers)
                return
            since = self.now
            yield there
            self.wait(op, since, MEMORY)
        yield from self.compute(op)
        if writes:
            self.sim.move(self.who, op, points * sum(writes.values()))

    def fetch(self, op: Op, size: float) -> float:
        """When what threads load is there: from near, where they have loaded its sectors before."""
        known = [self.has(op, *each) for each in _pieces(op)]
        if all(known):
            return self.now + NEAR
        return self.sim.move(self.who, op, size)[1]

    def has(self, op: Op, buffer: Buffer, first: Sequence[Expr], last: Sequence[Expr]) -> bool:
        """Whether the op loads the sectors from one element to another again."""
        found = []
        for at in (first, last):
            *outer, inner = (value(e, self.env) for e in at)
            found.append((*outer, inner * buffer.dtype.bits // 8 // SECTOR))
        known = self.sectors.get((id(op), buffer.name))
        self.sectors[id(op), buffer.name] = found
        return known == found

    def on_store(self, op: Store) -> None:
        if op.buffer.is_local and not op.indices:
            self.env[op.buffer.name] = value(op.value, self.env)

    def on_reduce(self, op: Reduce) -> Steps:
        yield from self.compute(op)
        if self.who.peers > 1 and _across_groups(op):
            for _ in range(2):  # partial results there, and read before they are overwritten
                yield from self.gather(op)

    def meet(self, key: Any, share: int, whole: int) -> tuple[Meeting, Party, int]:
        """Come to a barrier of threads with `share` of them: what to wait for."""
        meetings, who = self.sim.meetings, self.who
        if key not in meetings:
            meetings[key] = Meeting(self.sim.clocks, max(share, whole), "a barrier of threads")
        party = Party(who, share, *(NOBODY,) * 5, whole=True)
        return meetings[key], party, meetings[key].join(party)

    def gather(self, op: Op) -> Steps:
        since, who = self.now, self.who
        key = (who.block, who.role, who.instance, id(op))
        meeting, party, mine = self.meet(key, 1, who.peers)
        yield from meeting.wait(party, mine)
        yield self.now + rates.SYNC
        self.wait(op, since, EACH_OTHER)

    def on_gemm(self, op: Gemm) -> Steps:
        if op.atom != "wgmma":
            yield from self.compute(op)
            return
        sim = self.sim
        yield from self.needs(op)
        start, end = sim.tensor.take(sim.cost(op).tensor / self.who.peers)
        sim.spans.append(Span(self.who.number, TENSOR, op, start, end, end - start))
        self.joins(op, "wgmma", (end, end + rates.PRODUCT_LATENCY))

    def groups_in(self, unit: str) -> Groups:
        return self.groups.setdefault(unit, Groups(unit, NOBODY, 0, 0))

    def joins(self, op: Op, unit: str, ends: tuple[float, float]) -> None:
        self.groups_in(unit).add(Transfer(op, [], tuple, lambda _: None, value=ends))

    def on_copy(self, op: Copy) -> Steps:
        sim, who = self.sim, self.who
        if op.atom in ("bulk_load", "bulk_store"):
            if not who.leader:
                return
            ends = sim.move(who, op, bytes_of(op.src))
            if op.barrier is None:
                self.joins(op, "bulk", ends)
            else:
                size = bytes_of(op.src)
                if op.multicast is not None:  # peers send as much
                    size *= prod(sim.kernel.cluster or (1,))
                barrier = sim.barrier(who, op.barrier, self.env)

                def landed() -> None:
                    sim.shared.take(bytes_of(op.src) / rates.SHARED_BYTES)
                    barrier.count_bytes(int(size), op)

                sim.clock.at(ends[1], landed)
            since = self.now
            yield since + ISSUE * boxes_of(op)
            sim.spans.append(Span(who.number, THREADS, op, since, self.now))
        elif op.atom == "cp_async":
            # an instruction moves 16 bytes
            yield self.issue(sim.cost(op).threads / who.peers / 8)
            self.joins(op, "cp_async", sim.move(who, op, bytes_of(op.src) / who.peers))
        elif op.src.buffer.is_global:
            yield from self.needs(op)
            self.loaded[op.dst.buffer.name] = self.fetch(op, bytes_of(op.src) / who.peers)
            yield self.issue(sim.cost(op).threads / who.peers / 4)
        else:
            yield from self.compute(op)
            if op.dst.buffer.is_global:
                sim.move(who, op, bytes_of(op.dst) / who.peers)

    # synchronisation

    def on_arrive(self, op: Arrive) -> Steps:
        sim, who = self.sim, self.who
        count: int | Fraction = int(value(op.count, self.env))
        size = 0 if op.bytes is None else int(value(op.bytes, self.env))
        comes = True
        if op.bytes is not None:
            comes = who.leader
        elif op.by == "warps":
            count = Fraction(count, who.peers)
        else:  # the last of them
            key = ("arrive", who.block, who.role, who.instance, id(op))
            meeting, _, mine = self.meet(key, 1, who.peers)
            comes = meeting.generation > mine
        if comes:
            barrier = sim.barrier(who, op.barrier, self.env)
            barrier.arrive(count, size, sim.clocks.fresh(), op)
        yield self.now + rates.ARRIVE

    def on_wait(self, op: Wait) -> Steps:
        barrier = self.sim.barrier(self.who, op.barrier, self.env)
        since = self.now
        yield from barrier.wait(int(value(op.phase, self.env)))
        yield self.now + rates.ARRIVE
        self.wait(op, since, op.barrier.buffer.name)

    def on_commit(self, op: Commit) -> None:
        self.groups_in(op.unit).commit()

    def on_waitgroup(self, op: WaitGroup) -> Steps:
        done = self.groups_in(op.unit).over(op.pending, op.read)
        until = max((t.value[0 if op.read else 1] for t in done), default=0.0)
        since = self.now
        if until > since:
            yield until
            self.wait(op, since, PRODUCTS if op.unit == "wgmma" else MEMORY)

    def on_sync(self, op: Sync) -> Steps:
        sim, who = self.sim, self.who
        if op.scope == "warp":
            return
        since = self.now
        everybody = sum(w.warps for w in sim.partitions if w.block == who.block)
        name, warps = "block", everybody
        if op.scope == "named":
            name = str(value(op.id, self.env)) if op.id is not None else "0"
            warps = (op.threads or everybody * WARP) // WARP
        meeting, party, mine = self.meet(("sync", who.block, name), who.warps, warps)
        if op.arrive:
            return
        yield from meeting.wait(party, mine)
        yield self.now + rates.SYNC
        self.wait(op, since, EACH_OTHER)

    def on_turn(self, op: Turn) -> Steps:
        sim, who = self.sim, self.who
        ended = sim.turns.setdefault((who.block, who.role, who.instance), [0] * who.peers)
        if op.edge == "end":
            ended[who.place] += 1
            return
        since, mine = self.now, ended[who.place]
        least = mine + 1 if who.place else mine  # of the one before
        if ended[who.place - 1] < least:
            yield Blocked(lambda: ended[who.place - 1] >= least, lambda: TURNS)
        self.wait(op, since, TURNS)


def _pieces(op: Op) -> Iterator[tuple[Buffer, Sequence[Expr], Sequence[Expr]]]:
    """Tensors that an op reads, with the first and the last element of each."""
    if isinstance(op, Copy):
        ends = [s + e - 1 for s, e in zip(op.src.starts, op.src.extents, strict=True)]
        yield op.src.buffer, op.src.starts, ends
    elif isinstance(op, Map):
        starts: dict[Var, Expr] = dict.fromkeys(op.vars, const(0))
        corners = starts, {v: e - 1 for v, e in zip(op.vars, op.extents, strict=True)}
        for load in loads_within(op.body):
            if load.buffer.is_global:
                first, last = ([substitute(e, at) for e in load.indices] for at in corners)
                yield load.buffer, first, last


def _only_loads(op: Store) -> bool:
    """Whether a store fills registers with what it reads, as it is."""
    value = op.value.a if isinstance(op.value, Select) else op.value
    return isinstance(value, Load) and op.buffer.is_fragment


def _across_groups(op: Reduce) -> bool:
    """Whether warpgroups share rows of what is reduced: their results meet in shared memory."""
    layout = op.src.buffer.layout
    if not isinstance(layout, Fragment):
        return False
    return reach(layout, op.axis) > WARPGROUP


EVENTS = 20_000  # give up


class Simulation(Multiprocessor):
    """The agents of a kernel on the multiprocessor: of the `partitions`, those who run the loop."""

    agents: list[Who]

    def run(self) -> Simulation | None:
        """None where there is no loop, or it waits for something that is not modelled."""
        found = steady_loop(self.kernel, self.known)
        if found is None:
            return None
        self.loop, self.env, self.trip = found
        self.loops = {id(self.loop), *self.others()}
        self.walk()
        self.agents = [w for w in self.partitions if len(w.starts) > 1]
        # instances of a role that others have run to the end may have their turn later
        over = {(w.block, w.role) for w in self.agents if w.number not in self.open}
        stuck = any(
            w.number in self.open and (w.block, w.role) not in over for w in self.partitions
        )
        return self if self.agents and not stuck else None

    def walk(self) -> None:
        """Until every agent has seen enough, or nobody can go on."""
        there = self.chip.multiprocessors
        running = there * self.blocks
        sizes = [value(size, self.known) for size in self.kernel.grid]
        self.busy = min(1.0, prod(max(1, int(size)) for size in sizes) / there)
        self.sharing = sharing(self.kernel, self.env, running, set(self.sizes))
        for block in range(self.blocks):
            for who in self.members(block):
                self.partitions.append(who)
                roles = [role for role in self.roles if role.name == who.role]
                if not roles or any(id(op) in self.loops for op in walk_ops(roles[0])):
                    self.open.add(who.number)
                self.clock.at(0.0, self.agent(who))
        with suppress(RunError):  # barriers that are not modelled
            while self.clock.queue and self.open and self.clock.count < EVENTS:
                self.clock.step()
                self.stepped()

    def stepped(self) -> None:
        """Time went on."""

    def others(self) -> Iterator[int]:
        """Of roles that compute in step with the loop, but in one of their own, that loop."""
        for role in self.roles:
            own = [loop for loop in computing_loops(role.body) if self.partner(loop)]
            if own and not holds(role, self.loop):
                yield id(own[0])

    def members(self, block: int) -> Iterator[Who]:
        parts: list[tuple[str, int, int]] = [(r.name, r.warps, r.instances) for r in self.roles]
        if not parts:
            parts = [("", max(1, self.kernel.thread_count // WARP), 1)]
        first = len(self.partitions)
        for name, warps, instances in parts:
            each = max(1, warps // max(1, instances))
            peers = -(-each // GROUP)
            for instance in range(instances):
                for place in range(peers):
                    here = min(GROUP, each - place * GROUP)
                    yield Who(first, name, block, instance, place, peers, here)
                    first += 1

    # agents

    def agent(self, who: Who) -> Steps:
        walk = Walk(self, who, dict(self.env))
        with suppress(Over):
            yield from walk.body(self.kernel.body)
        self.open.discard(who.number)


def simulate(
    program: Program,
    kernel: Kernel,
    target: Target,
    blocks: int = 1,
    sizes: Mapping[str, int] | None = None,
) -> Simulation | None:
    """`kernel` on one multiprocessor with `blocks` of its blocks; `sizes`: those known at launch.
    None where it has no loop to ask about, or waits for something that is not modelled."""
    return Simulation(program, kernel, target, blocks, sizes or {}).run()
