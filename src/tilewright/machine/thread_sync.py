"""Synchronisation of threads: barriers in shared memory, barriers of threads, groups, fences.

An op counts once for every thread that runs it: what one thread does for an instance stands under
a guard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.atoms import GROUP_UNITS
from tilewright.ir.op import (
    Arrive,
    BarrierInit,
    Commit,
    Fence,
    Intrinsic,
    Op,
    Sync,
    Wait,
    WaitGroup,
)
from tilewright.machine.lanes import Frame, TileRegion, extents_of
from tilewright.machine.meaning import Blocked, Flow, Step
from tilewright.machine.memory import Array
from tilewright.machine.thread_ops import (
    WARP,
    ThreadBuilder,
    active,
    agent_of,
    agreed,
    instruction,
    not_together,
    thread_meaning,
    warps_of,
    whole_groups,
)
from tilewright.support.errors import RunError

if TYPE_CHECKING:
    from tilewright.machine.thread_machine import ThreadAgent, ThreadBlock

# ── barriers in shared memory ────────────────────────────────────────────────────────────────


class Cell:
    """A barrier: a phase ends when all arrivals have come and all expected bytes."""

    def __init__(self, block: ThreadBlock, name: str, count: int, maker: int) -> None:
        self.block, self.name, self.count = block, name, count
        self.pending, self.bytes, self.phase = count, 0, 0
        clocks = block.cluster.clocks
        self.entity = clocks.entity()
        self.gathering, self.known = clocks.fresh(), clocks.fresh()
        self.maker, self.made = maker, clocks.now
        self.fence: int | None = None
        self.remote: list[tuple[int, int, Op]] = []

    def arrive(self, times: int, more: int, knowledge: Array, op: Op) -> None:
        if times > self.pending:
            raise RunError(
                f"too many arrivals on {self}",
                loc=op.loc,
                expected=f"{self.count} per phase, {self.pending} left in this one",
                got=f"{times} more",
            )
        self.pending -= times
        self.bytes += more
        clocks = self.block.cluster.clocks
        self.gathering = np.maximum(clocks.fit(self.gathering), knowledge)
        self.settle(op)

    def count_bytes(self, number: int, op: Op) -> None:
        self.bytes -= number
        self.settle(op)

    def settle(self, op: Op) -> None:
        if self.pending:
            return
        if self.bytes < 0:
            raise RunError(
                f"more bytes came to {self} than were expected",
                loc=op.loc,
                got=f"{-self.bytes} bytes too many",
                fix="expect the bytes of every copy that completes on the barrier",
            )
        if self.bytes == 0:
            clocks = self.block.cluster.clocks
            self.phase += 1
            self.pending = self.count
            self.known = np.maximum(clocks.fit(self.known), clocks.fit(self.gathering))
            if clocks.watching:
                self.known[self.entity] = self.phase
            self.gathering = clocks.fresh()

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def awaited(self, parity: int) -> str:
        return (
            f"phase {parity} of {self} ({self.phase} phases complete; the next lacks "
            f"{self.pending} of {self.count} arrivals and {self.bytes} bytes)"
        )

    def require_ready(self, fr: Frame, ids: Array, *, fenced: bool) -> None:
        """The threads `ids` know that the barrier has been initialised."""
        clocks, others = self.block.cluster.clocks, ids[ids != self.maker]
        if not clocks.all_have(others, self.maker, self.made):
            raise RunError(
                f"nothing orders the initialisation of {self} before this use of it",
                loc=fr.loc(),
                fix="synchronise the block after `barrier_init`",
            )
        if fenced and (self.fence is None or not clocks.all_have(others, self.maker, self.fence)):
            raise RunError(
                f"the initialisation of {self} is not visible to bulk copies and other blocks",
                loc=fr.loc(),
                fix="execute `fence barrier_init` between initialisation and synchronisation",
            )

    def __str__(self) -> str:
        where = "" if len(self.block.cluster.blocks) == 1 else f" of block {self.block.index}"
        return self.name + where


def cell_at(fr: Frame, tile: TileRegion, lane: int, rank: int | None = None) -> list[Cell]:
    """The barriers of a region as thread `lane` sees it, in its block or that of `rank`."""
    block = home(fr, tile, lane) if rank is None else agent_of(fr).block.cluster.block(rank, fr)
    if block.exited:
        raise RunError(
            f"{tile.region.buffer.name} is in block {block.index}, which has ended",
            loc=fr.loc(),
            fix="keep the block alive: synchronise the cluster, or drain its barriers, at the end",
        )
    cells = []
    for place in spots(fr, tile, lane):
        found = block.cells.get((tile.region.buffer.name, place))
        if found is None:
            raise RunError(
                f"barrier {_name(tile, place)} is used before anything initialised it",
                loc=fr.loc(),
                fix="initialise it, then `fence barrier_init`, then synchronise, before its use",
            )
        cells.append(found)
    return cells


def home(fr: Frame, tile: TileRegion, lane: int) -> ThreadBlock:
    """The block that a region's memory is in, for one thread."""
    block = agent_of(fr).block
    if tile.cta is None:
        return block
    return block.cluster.block(at(tile.cta(fr), lane), fr)


def at(value: Any, lane: int) -> int:
    return int(value[lane] if value.ndim else value)


def spots(fr: Frame, tile: TileRegion, lane: int) -> list[tuple[int, ...]]:
    starts = [at(s(fr), lane) for s in tile.starts]
    extents = extents_of(fr, tile)
    buffer = tile.region.buffer
    found = list(product(*(range(s, s + e) for s, e in zip(starts, extents, strict=True))))
    for place in found:
        if any(not 0 <= i < n for i, n in zip(place, buffer.static_shape, strict=True)):
            raise RunError(
                f"out-of-range: {_name(tile, place)} is outside {buffer.name}, which has shape "
                f"{buffer.static_shape}",
                loc=fr.loc(),
            )
    return found


def _name(tile: TileRegion, place: tuple[int, ...]) -> str:
    return tile.region.buffer.name + (f"[{', '.join(map(str, place))}]" if place else "")


def _varies(fr: Frame, tile: TileRegion) -> bool:
    values = [s(fr) for s in tile.starts] + ([] if tile.cta is None else [tile.cta(fr)])
    mine = active(fr)
    return any(v.ndim and (v[mine] != v[mine[0]]).any() for v in values)


@thread_meaning(BarrierInit)
def run_barrier_init(b: ThreadBuilder, op: BarrierInit) -> Step:
    barrier, count = b.evaluate.region(op.barrier), b.evaluate(op.count)

    def run(fr: Frame) -> None:
        agent, threads = agent_of(fr), active(fr)
        if threads.size != 1:
            raise RunError(
                "one thread initialises a barrier",
                loc=op.loc,
                got=f"{threads.size} threads",
                fix="put it under a guard that one thread passes",
            )
        number = agreed(fr, count(fr), "a barrier's count")
        if number <= 0:
            raise RunError("a barrier needs at least one arrival", loc=op.loc, got=str(number))
        lane = int(threads[0])
        for place in spots(fr, barrier, lane):
            cell = Cell(agent.block, _name(barrier, place), number, int(agent.gids[lane]))
            agent.block.cells[barrier.region.buffer.name, place] = cell
            agent.apart = True

    return Step(op, run)


@thread_meaning(Arrive)
def run_arrive(b: ThreadBuilder, op: Arrive) -> Step:
    barrier, count = b.evaluate.region(op.barrier), b.evaluate(op.count)
    more = None if op.bytes is None else b.evaluate(op.bytes)

    def run(fr: Frame) -> Flow:
        agent, clocks = agent_of(fr), agent_of(fr).clocks
        threads = active(fr)
        together = not _varies(fr, barrier)
        for group in [threads] if together else np.split(threads, threads.size):
            lane = int(group[0])
            times = count(fr)
            total = int(np.broadcast_to(times, fr.lanes)[group].sum())
            size = 0 if more is None else int(np.broadcast_to(more(fr), fr.lanes)[group].sum())
            for cell in cell_at(fr, barrier, lane):
                remote = cell.block is not agent.block
                cell.require_ready(fr, agent.gids[group], fenced=remote)
                knowledge = clocks.release(agent.gids[group])
                if remote:
                    cell.remote.append((int(agent.gids[lane]), clocks.now - 1, op))
                cell.arrive(total, size, knowledge, op)
        yield None

    return Step(op, run, waits=True)


def _wait(b: ThreadBuilder, op: Op, barrier: TileRegion, phase: Callable[[Frame], Any]) -> Step:
    def run(fr: Frame) -> Flow:
        agent = agent_of(fr)
        threads = active(fr)
        parities = np.broadcast_to(phase(fr), fr.lanes)
        together = not _varies(fr, barrier) and (parities[threads] == parities[threads[0]]).all()
        for group in [threads] if together else np.split(threads, threads.size):
            lane = int(group[0])
            parity = int(parities[lane])
            if parity not in (0, 1):
                raise RunError("a phase is 0 or 1", loc=op.loc, got=str(parity))
            for cell in cell_at(fr, barrier, lane):
                cell.require_ready(fr, agent.gids[group], fenced=False)
                yield None
                while not cell.passes(parity):
                    yield Blocked(partial(cell.passes, parity), partial(cell.awaited, parity))
                agent.clocks.learn(agent.gids[group], cell.known)
                agent.apart = agent.apart or group.size != agent.gids.size

    return Step(op, run, waits=True)


@thread_meaning(Wait)
def run_wait(b: ThreadBuilder, op: Wait) -> Step:
    return _wait(b, op, b.evaluate.region(op.barrier), b.evaluate(op.phase))


@instruction("wait_cluster")
def run_wait_cluster(b: ThreadBuilder, op: Intrinsic) -> Step:
    barrier, phase = (b.operand(a) for a in op.args)
    return _wait(b, op, barrier, phase)


# ── barriers of threads ──────────────────────────────────────────────────────────────────────


class Meeting:
    """A barrier of threads: all who come learn what all who came know."""

    def __init__(self, threads: int, name: str, entity: int) -> None:
        self.threads, self.name, self.entity = threads, name, entity
        self.here = self.generation = 0
        self.members: list[ThreadAgent] = []
        self.gathering: Array | None = None
        self.known: dict[int, Array] = {}

    def join(self, agent: ThreadAgent, ids: Array, op: Op) -> int:
        """Come; the generation to wait for."""
        mine, clocks = self.generation, agent.clocks
        if agent in self.members:
            raise RunError(
                f"{agent} comes to {self.name} a second time before the others have come once",
                loc=op.loc,
                fix="let the others wait there (sync) between the two arrivals",
            )
        if clocks.watching and clocks.known[ids, self.entity].min() < self.generation:
            raise RunError(
                f"{agent} comes to {self.name} without knowing that its last phase is over",
                loc=op.loc,
                fix="use another barrier id, or wait for something that follows that phase",
            )
        self.here += ids.size
        self.members.append(agent)
        knowledge = clocks.release(ids)
        old = clocks.fresh() if self.gathering is None else clocks.fit(self.gathering)
        self.gathering = np.maximum(old, knowledge)
        if self.here > self.threads:
            raise RunError(
                f"too many threads come to {self.name}",
                loc=op.loc,
                expected=f"{self.threads} threads",
                got=str(self.here),
            )
        if self.here == self.threads:
            if clocks.watching:
                self.gathering[self.entity] = mine + 1
            self.known[mine] = self.gathering
            self.known.pop(mine - 8, None)
            self.gathering, self.here, self.members = None, 0, []
            self.generation += 1
        return mine

    def wait(self, mine: int) -> Flow:
        while mine not in self.known:
            yield Blocked(
                lambda: mine in self.known,
                lambda: f"{self.name} ({self.here} of {self.threads} threads have come)",
            )


def converge(fr: Frame, what: str, *, some: bool = False) -> None:
    """The running warps come together: what a lane did, the others of its warp know. `some`: the
    lanes of a warp that run, not all of them."""
    agent, groups = agent_of(fr), warps_of(fr)
    for lanes in groups if not some else ():
        if lanes.size != min(WARP, fr.lanes[0] - int(lanes[0]) // WARP * WARP):
            raise not_together(fr, "a warp", what)
    if not agent.apart:
        return
    agent.clocks.meet([agent.gids[g] for g in groups])
    # threads of different warps may still be apart, but no barrier of a warp changes that
    agent.apart = sum(g.size for g in groups) != fr.lanes[0]


@thread_meaning(Sync)
def run_sync(b: ThreadBuilder, op: Sync) -> Step:
    number = None if op.id is None else b.evaluate(op.id)
    if op.scope not in ("block", "warp", "cluster", "named"):
        raise RunError(f"unknown scope {op.scope!r}", loc=op.loc)

    def run(fr: Frame) -> Flow:
        agent = agent_of(fr)
        if op.scope == "warp":
            converge(fr, "a barrier of the warp")
            return
        cluster, threads = agent.block.cluster, active(fr)
        if op.scope == "named":
            if number is None:
                raise RunError("a named barrier needs an id", loc=op.loc)
            which = agreed(fr, number(fr), "a barrier's id")
            size = op.threads or threads.size
            meetings, key = agent.block.meetings, str(which)
            name = f"named barrier {which}"
        else:
            if threads.size != fr.lanes[0]:
                raise RunError(
                    f"divergent-barrier: {fr.lanes[0] - threads.size} threads do not reach this "
                    f"barrier of the {op.scope}",
                    loc=fr.loc(),
                    fix="move the barrier out of the guard that differs between threads",
                )
            blocks = cluster.blocks if op.scope == "cluster" else [agent.block]
            size = sum(a.gids.size for block in blocks for a in block.agents)
            meetings = cluster.meetings if op.scope == "cluster" else agent.block.meetings
            key = name = f"the {op.scope}'s barrier"
        meeting = meetings.get(key)
        if meeting is None:
            meeting = meetings[key] = Meeting(size, name, agent.clocks.entity())
        if meeting.here == 0:
            meeting.threads = size
        if meeting.threads != size:
            raise RunError(
                f"{name} is used with different numbers of threads",
                loc=op.loc,
                expected=str(meeting.threads),
                got=str(size),
            )
        mine = meeting.join(agent, agent.gids[threads], op)
        yield None
        if op.arrive:
            return
        yield from meeting.wait(mine)
        agent.clocks.learn(agent.gids[threads], meeting.known[mine])
        if threads.size == fr.lanes[0]:
            agent.apart = False

    return Step(op, run, waits=True)


# ── asynchronous operations in groups ────────────────────────────────────────────────────────


@dataclass(eq=False)
class Transfer:
    """An asynchronous op in flight: its data moves at some moment before a wait needs it."""

    agent: ThreadAgent
    op: Op
    fetch: Callable[[], Any]
    store: Callable[[Any], None]
    before: Transfer | None = None  # completes first
    seen: Callable[[], None] | None = None  # when its group has been waited for
    value: Any = None
    fetched: bool = False
    done: bool = False

    def read_source(self) -> None:
        if not self.fetched:
            self.value, self.fetched = self.fetch(), True

    def complete(self) -> None:
        if self.done:
            return
        if self.before is not None:
            self.before.complete()
        self.done, self.before = True, None
        self.agent.block.cluster.pending.remove(self)
        self.read_source()
        self.store(self.value)


@dataclass
class Groups:
    """The groups of asynchronous ops of one thread or warpgroup."""

    unit: str
    owners: Array  # who waits for them: thread ids
    entity: int
    committed: int = 0
    open: list[Transfer] = field(default_factory=list)
    closed: list[list[Transfer]] = field(default_factory=list)
    last: Transfer | None = None

    def commit(self) -> None:
        self.committed += 1
        self.closed.append(self.open)
        self.open = []

    def wait(self, pending: int, read: bool) -> int:
        """Let all but the last `pending` groups be over; the number of those that are."""
        over = max(len(self.closed) - pending, 0)
        for group in self.closed[:over]:
            for t in group:
                if read:
                    t.read_source()
                else:
                    t.complete()
                    if t.seen is not None:
                        t.seen()
        if not read:
            del self.closed[:over]
        return self.committed - pending


def groups_of(fr: Frame, unit: str) -> list[Groups]:
    """Those of the running threads that have any."""
    agent = agent_of(fr)
    threads = set(agent.gids[active(fr)].tolist())
    return [g for (u, first), g in agent.groups.items() if u == unit and first in threads]


def _known_unit(op: Commit | WaitGroup) -> None:
    if op.unit not in GROUP_UNITS:
        raise RunError(f"unknown unit {op.unit!r}", loc=op.loc, expected=", ".join(GROUP_UNITS))


@thread_meaning(Commit)
def run_commit(b: ThreadBuilder, op: Commit) -> Step:
    _known_unit(op)

    def run(fr: Frame) -> None:
        if op.unit == "wgmma":
            whole_groups(fr, 4 * WARP, "a commit of matrix instructions")
        for groups in groups_of(fr, op.unit):
            groups.commit()

    return Step(op, run)


@thread_meaning(WaitGroup)
def run_wait_group(b: ThreadBuilder, op: WaitGroup) -> Step:
    _known_unit(op)

    def run(fr: Frame) -> Flow:
        agent = agent_of(fr)
        if op.unit == "wgmma":
            whole_groups(fr, 4 * WARP, "a wait for matrix instructions")
        for groups in groups_of(fr, op.unit):
            over = groups.wait(op.pending, op.read)
            agent.clocks.note(groups.owners, groups.entity, over)
            if op.unit == "wgmma":
                agent.in_flight = [
                    r for r in agent.in_flight if r.groups is not groups or r.number > over
                ]
            elif groups.owners.size != agent.gids.size:
                agent.apart = True
        yield None

    return Step(op, run, waits=True)


@thread_meaning(Fence)
def run_fence(b: ThreadBuilder, op: Fence) -> Step:
    if op.kind not in ("proxy_async", "wgmma", "barrier_init", "cluster", "cluster_shared", "gpu"):
        raise RunError(f"unknown fence {op.kind!r}", loc=op.loc)

    def run(fr: Frame) -> None:
        agent = agent_of(fr)
        ids = agent.gids[active(fr)]
        if op.kind == "proxy_async":
            for units in agent.unfenced:
                agent.block.shadow.shown(units, ids)
            if ids.size == agent.gids.size:
                agent.unfenced = []
        elif op.kind == "wgmma":
            agent.fenced = agent.tick()
        elif op.kind == "barrier_init":
            for cell in agent.block.cells.values():
                if cell.fence is None and cell.maker in ids:
                    cell.fence = agent.clocks.now

    return Step(op, run)
