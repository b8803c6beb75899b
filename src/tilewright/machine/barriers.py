"""Barriers: those in shared memory that count arrivals and bytes, and those where threads meet."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.op import Arrive, BarrierInit, Op, Sync, Turn, Wait
from tilewright.machine.hazards import Knowledge, learn
from tilewright.machine.lanes import Frame, TileRegion, extents_of, uniform_int
from tilewright.machine.meaning import Blocked, Builder, Flow, Step, meaning
from tilewright.support.errors import RunError, SanitizerError

if TYPE_CHECKING:
    from tilewright.machine.tile_machine import Agent, Block

WARP = 32


class Cell:
    """A barrier in shared memory.

    A phase completes when all arrivals have come and the bytes expected equal the bytes counted.
    Bytes may be counted before they are expected, as long as an arrival is still to come.
    """

    def __init__(self, block: Block, name: str, count: int, agent: Agent) -> None:
        self.block = block
        self.name = name
        self.count = count
        self.pending = count
        self.bytes = 0
        self.phase = 0  # phases completed
        self.gathering: Knowledge = {}
        self.before: Knowledge = {}  # what came before the bytes of this phase were asked for
        self.known: Knowledge = {}  # what a completed phase tells those who wait
        self.maker = agent
        self.made = agent.clocks.now
        self.fence: float | None = None
        self.remote: list[tuple[Agent, float, Op]] = []
        self.passed: list[tuple[Agent, float, Op]] = []  # waits for the phase that is complete

    def arrive(self, times: int, more: int, knowledge: Knowledge, op: Op) -> None:
        if times > self.pending:
            raise RunError(
                f"too many arrivals on {self}",
                loc=op.loc,
                expected=f"{self.count} per phase, {self.pending} left in this one",
                got=f"{times} more",
            )
        self.pending -= times
        self.bytes += more
        learn(self.gathering, knowledge)
        self.settle(op)

    def count_bytes(self, number: int, op: Op, knowledge: Knowledge) -> None:
        """Bytes came; `knowledge` is what the one who asked for them knew then. They hand none of
        it on to those who wait."""
        self.bytes -= number
        learn(self.before, knowledge)
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
            self.require_passed(op)
            self.phase += 1
            self.pending = self.count
            learn(self.known, self.gathering)
            self.known[self] = self.phase
            self.gathering = {}

    def require_passed(self, op: Op) -> None:
        """Who waited for the last phase did so before this one could complete: of a phase only the
        parity is seen, so a wait that comes too late would take the new one for the one before."""
        for agent, time, wait in self.passed:
            if max(self.gathering.get(agent, 0), self.before.get(agent, 0)) < time:
                raise RunError(
                    f"a phase of {self} may be over before it has been waited for",
                    loc=wait.loc,
                    notes=(f"waits: {agent}", f"completes the next phase: {op.loc}"),
                    fix="let those who arrive know that the last phase has been waited for",
                )
        self.passed, self.before = [], {}

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def require_drained(self, block: Block) -> None:
        """No arrival from another block may come after this one has ended."""
        for agent, time, op in self.remote:
            if not any(a.clocks.single().get(agent, 0) >= time for a in block.agents):
                raise RunError(
                    f"block {block.index} ends without knowing of an arrival on {self}",
                    loc=op.loc,
                    notes=(f"by {agent}",),
                    fix="wait for the barrier's last phase, or synchronise the cluster, first",
                )

    def awaited(self, parity: int) -> str:
        return (
            f"phase {parity} of {self} ({self.phase} phases complete; the next lacks "
            f"{self.pending} of {self.count} arrivals and {self.bytes} bytes)"
        )

    def __str__(self) -> str:
        where = "" if len(self.block.cluster.blocks) == 1 else f" of block {self.block.index}"
        return self.name + where


def _places(fr: Frame, tile: TileRegion) -> list[tuple[int, ...]]:
    starts = [uniform_int(fr, s(fr), "a barrier's index") for s in tile.starts]
    extents = extents_of(fr, tile)
    memory = fr.memory(tile.region.buffer.name)
    places = list(product(*(range(s, s + e) for s, e in zip(starts, extents, strict=True))))
    for place in places:
        if any(not 0 <= i < n for i, n in zip(place, memory.shape, strict=True)):
            raise RunError(
                f"out-of-range: {memory.name}{list(place)} is outside {memory.name}, which has "
                f"shape {memory.shape}",
                loc=fr.loc(),
            )
    return places


def _name(tile: TileRegion, place: tuple[int, ...]) -> str:
    return tile.region.buffer.name + (f"[{', '.join(map(str, place))}]" if place else "")


def find_cells(
    b: Builder, fr: Frame, tile: TileRegion, block: Block
) -> Generator[Blocked | None, None, list[Cell]]:
    """The barriers of a region; waits for their initialisation where the compiler orders it."""
    if block.exited:
        raise RunError(
            f"{tile.region.buffer.name} is in block {block.index}, which has ended",
            loc=fr.loc(),
            fix="keep the block alive: synchronise the cluster, or drain its barriers, at the end",
        )
    cells: list[Cell] = []
    for place in _places(fr, tile):
        key = (tile.region.buffer.name, place)
        if key not in block.cells and not b.explicit:
            yield Blocked(partial(block.cells.__contains__, key), lambda: "its initialisation")
        if key not in block.cells:
            raise RunError(
                f"barrier {_name(tile, place)} is used before anything initialised it",
                loc=fr.loc(),
                fix="initialise it, then `Fence barrier_init`, then synchronise, before its use",
            )
        cells.append(block.cells[key])
    return cells


def require_initialised(
    b: Builder, cell: Cell, knowledge: Knowledge, fr: Frame, *, fenced: bool
) -> None:
    """The agent knows that the barrier is ready, and that others' copies see it."""
    if not b.explicit:
        return
    if knowledge.get(cell.maker, 0) < cell.made:
        raise RunError(
            f"nothing orders the initialisation of {cell} before this use of it",
            loc=fr.loc(),
            fix="synchronise the block after `barrier_init`",
        )
    if fenced and (cell.fence is None or knowledge.get(cell.maker, 0) < cell.fence):
        raise RunError(
            f"the initialisation of {cell} is not visible to bulk copies and other blocks",
            loc=fr.loc(),
            fix="execute `Fence barrier_init` between initialisation and synchronisation",
        )


@meaning(BarrierInit)
def run_barrier_init(b: Builder, op: BarrierInit) -> Step:
    barrier, count = b.evaluate.region(op.barrier), b.evaluate(op.count)

    def run(fr: Frame) -> None:
        agent = fr.agent
        if agent.first_warp != 0:
            return
        number = uniform_int(fr, count(fr), "a barrier's count")
        if number <= 0:
            raise RunError("a barrier needs at least one arrival", loc=op.loc, got=str(number))
        for place in _places(fr, barrier):
            cell = Cell(agent.block, _name(barrier, place), number, agent)
            agent.block.cells[barrier.region.buffer.name, place] = cell
            agent.clocks.unfenced_cells.append(cell)

    return Step(op, run)


def _home(fr: Frame, tile: TileRegion) -> Block:
    block = fr.agent.block
    if tile.cta is None:
        return block
    return block.cluster.block(uniform_int(fr, tile.cta(fr), "a cluster rank"), fr)


@meaning(Arrive)
def run_arrive(b: Builder, op: Arrive) -> Step:
    barrier, count = b.evaluate.region(op.barrier), b.evaluate(op.count)
    more = None if op.bytes is None else b.evaluate(op.bytes)

    def run(fr: Frame) -> Flow:
        clocks, home = fr.agent.clocks, _home(fr, barrier)
        remote = home is not fr.agent.block
        cells = yield from find_cells(b, fr, barrier, home)
        for cell in cells:
            require_initialised(b, cell, clocks.known, fr, fenced=remote)
            if remote:
                cell.remote.append((fr.agent, clocks.now, op))
            cell.arrive(
                uniform_int(fr, count(fr), "an arrival count"),
                0 if more is None else uniform_int(fr, more(fr), "a byte count"),
                clocks.release(),
                op,
            )
        yield None

    return Step(op, run, waits=True)


@meaning(Wait)
def run_wait(b: Builder, op: Wait) -> Step:
    barrier, phase = b.evaluate.region(op.barrier), b.evaluate(op.phase)

    def run(fr: Frame) -> Flow:
        clocks = fr.agent.clocks
        cells = yield from find_cells(b, fr, barrier, _home(fr, barrier))
        parity = uniform_int(fr, phase(fr), "a phase")
        if parity not in (0, 1):
            raise RunError("a phase is 0 or 1", loc=op.loc, got=str(parity))
        for cell in cells:
            require_initialised(b, cell, clocks.known, fr, fenced=False)
            yield None
            while not cell.passes(parity):
                yield Blocked(partial(cell.passes, parity), partial(cell.awaited, parity))
            cell.passed.append((fr.agent, clocks.now, op))
            if fr.mask is None or fr.mask.all():
                clocks.acquire(cell.known)
            else:
                # threads that did not wait learn of it at the next thread barrier
                learn(clocks.single(), cell.known)

    return Step(op, run, waits=True)


# ── barriers of threads ──────────────────────────────────────────────────────────────────────


class Meeting:
    """A barrier of threads: all who come learn what all who came know."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self.name = name
        self.here = 0
        self.members: list[Agent] = []
        self.generation = 0
        self.gathering: Knowledge = {}
        self.known: dict[int, Knowledge] = {}
        self.key: Any = object()  # names the count of completed phases in what agents know

    def join(self, agent: Agent, op: Op) -> int:
        """Come; the generation to wait for."""
        mine = self.generation
        if agent in self.members:
            raise RunError(
                f"{agent} comes to {self.name} a second time before the others have come once",
                loc=op.loc,
                fix="let the others wait there (sync) between the two arrivals",
            )
        # an agent is many warps: unless the last phase is known to be over, some of them may still
        # be counted in it while others are counted in the next
        if agent.clocks.known.get(self.key, 0) < self.generation:
            raise RunError(
                f"{agent} comes to {self.name} without knowing that its last phase is over",
                loc=op.loc,
                fix="use another barrier id, or wait for something that follows that phase",
            )
        self.here += agent.ids.size
        self.members.append(agent)
        learn(self.gathering, agent.clocks.release())
        if self.here > self.threads:
            raise RunError(
                f"too many threads come to {self.name}",
                loc=op.loc,
                expected=f"{self.threads} threads",
                got=f"{self.here}",
            )
        if self.here == self.threads:
            self.gathering[self.key] = mine + 1
            self.known[mine] = self.gathering
            self.known.pop(mine - 8, None)
            self.gathering, self.here, self.members = {}, 0, []
            self.generation += 1
        return mine

    def wait(self, mine: int) -> Flow:
        """Until that generation is complete."""
        while mine not in self.known:
            yield Blocked(
                lambda: mine in self.known,
                lambda: f"{self.name} ({self.here} of {self.threads} threads have come)",
            )


@meaning(Sync)
def run_sync(b: Builder, op: Sync) -> Step:
    number = None if op.id is None else b.evaluate(op.id)
    if op.scope not in ("block", "warp", "cluster", "named"):
        raise RunError(f"unknown scope {op.scope!r}", loc=op.loc)

    def run(fr: Frame) -> Flow:
        agent = fr.agent
        cluster = agent.block.cluster
        _require_all(fr, op)
        if fr.watch is not None:
            fr.watch.synced(fr, "warp" if op.scope == "warp" else "block")
        if not cluster.compiled.scheduled or (op.scope == "named" and _is_partial(fr)):
            return  # lanes run in step, so those that reach it are all here
        if op.scope == "warp":
            if agent.first_warp == agent.last_warp:
                agent.clocks.acquire(agent.clocks.release())
            return
        if op.scope == "named":
            if number is None:
                raise RunError("a named barrier needs an id", loc=op.loc)
            which = uniform_int(fr, number(fr), "a barrier's id")
            size = op.threads or agent.ids.size
            meetings: dict[Any, Meeting] = agent.block.meetings
            key: Any = which
            name = f"named barrier {which}"
        else:
            blocks = cluster.blocks if op.scope == "cluster" else [agent.block]
            size = sum(a.ids.size for block in blocks for a in block.agents)
            meetings = cluster.meetings if op.scope == "cluster" else agent.block.meetings
            key = name = f"the {op.scope}'s barrier"
        meeting = meetings.get(key)
        if meeting is None or (meeting.here == 0 and meeting.threads != size):
            fresh = Meeting(size, name)
            if meeting is not None:
                fresh.generation, fresh.known = meeting.generation, meeting.known
                fresh.key = meeting.key
            meeting = meetings[key] = fresh
        if meeting.threads != size:
            raise RunError(
                f"{name} is used with different numbers of threads",
                loc=op.loc,
                expected=str(meeting.threads),
                got=str(size),
            )
        mine = meeting.join(agent, op)
        yield None
        if op.arrive:
            return
        yield from meeting.wait(mine)
        agent.clocks.acquire(meeting.known[mine])

    return Step(op, run, waits=True)


@meaning(Turn)
def run_turn(b: Builder, op: Turn) -> Step:
    """One agent stands for all warpgroups of the role: they come to it together."""

    def run(fr: Frame) -> None:
        agent = fr.agent
        if _is_partial(fr):
            raise RunError("some threads of a role do not reach its turn", loc=op.loc)
        if agent.in_turn == (op.edge == "begin"):
            word = "begins inside another" if agent.in_turn else "ends that has not begun"
            raise RunError(f"a turn {word}", loc=op.loc)
        agent.in_turn = not agent.in_turn

    return Step(op, run)


def _is_partial(fr: Frame) -> bool:
    return fr.mask is not None and not fr.mask.all()


def _require_all(fr: Frame, op: Sync) -> None:
    """A barrier that only some of the threads reach hangs."""
    if fr.mask is None or fr.mask.all():
        return
    if op.scope == "warp":
        threads = np.broadcast_to(fr.mask, fr.lanes)
        starts = range(0, threads.size, WARP)
        if all(threads[s : s + WARP].all() or not threads[s : s + WARP].any() for s in starts):
            return
    if op.scope == "named" and int(np.broadcast_to(fr.mask, fr.lanes).sum()) == op.threads:
        return
    missing = int((~np.broadcast_to(fr.mask, fr.lanes)).sum())
    message = f"{missing} threads do not reach this barrier of the {op.scope}"
    fix = "move the barrier out of the guard that differs between threads"
    if fr.agent.sanitize:
        raise SanitizerError("divergent-barrier", message, loc=fr.loc(), fix=fix)
    raise RunError(f"divergent-barrier: {message}", loc=fr.loc(), fix=fix)
