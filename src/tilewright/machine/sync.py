"""What agents wait for, and what they then know: vector clocks, barriers in shared memory, barriers
of threads, groups of async ops.

Time is one counter that goes on at every release. Entities are the knowers (threads; three for an
agent that runs tiles), then barriers and groups of asynchronous ops: a barrier's clock counts
phases, a group's counts commits. `u` knows of what `t` did at time `g` when `known[u, t] >= g`.
Whether an access knows of a conflicting one before it follows from the program, not from the
interleaving that happened to run, so a missing barrier is found whatever the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tilewright.ir.core import *
from tilewright.machine.numbers import Array
from tilewright.support.errors import at

NEVER = np.int32(2**31 - 1)


class Party(NamedTuple):
    """Threads of an agent that do something together, as the clocks see them."""

    agent: object
    size: int
    lanes: Array  # those that count: an agent that runs tiles counts once
    ids: Array  # whose time goes on when they release
    shares: Array  # whose knowledge they release
    knows: Array  # whose knowledge counts where something must be known
    learns: Array  # who learns what they wait for
    whole: bool  # all threads of the agent


class Clocks:
    """What the knowers of a cluster know."""

    def __init__(self, knowers: int, *, watching: bool) -> None:
        self.entities = self.knowers = knowers
        self.watching = watching  # or nobody keeps account
        rows = knowers if self.watching else 1
        self.known: Array = np.zeros((rows, rows + 32), np.int32)
        self.now = 1

    def entity(self, *, knows: bool = False) -> int:
        """A new column, for a barrier or a group; with a row where it `knows` something."""
        self.entities += 1
        rows, columns = self.known.shape
        need = max(rows, self.entities if knows else 0)
        if self.watching and (need > rows or self.entities > columns):
            wider = np.zeros((need, max(columns, 2 * self.entities)), np.int32)
            wider[:rows, :columns] = self.known
            self.known = wider
        return self.entities - 1

    def fresh(self) -> Array:
        return np.zeros(self.known.shape[1], np.int32)

    def fit(self, vector: Array) -> Array:
        """`vector`, from a time when there were fewer entities, as wide as rows are now."""
        if vector.size < self.known.shape[1]:
            wide = self.fresh()
            wide[: vector.size] = vector
            return wide
        return vector

    def union(self, a: Array, b: Array) -> Array:
        """The later of both, entry by entry."""
        out: Array = np.maximum(self.fit(a), self.fit(b))
        return out

    def release(self, ids: Array, rows: Array | None = None) -> Array:
        """What `ids` did, and they (or `rows`) know, for others to learn."""
        if not self.watching:
            return self.fresh()
        self.known[ids, ids] = self.now
        self.now += 1
        out: Array = self.known[ids if rows is None else rows].max(axis=0)
        return out

    def learn(self, rows: Array, more: Array) -> None:
        if self.watching:
            self.known[rows] = np.maximum(self.known[rows], self.fit(more))

    def note(self, rows: Array, entity: int, time: int) -> None:
        if self.watching:
            self.known[rows, entity] = np.maximum(self.known[rows, entity], time)

    def meet(self, groups: list[Array]) -> None:
        """The threads of each group learn what the group knows."""
        if not self.watching:
            return
        for ids in groups:
            self.known[ids, ids] = self.now
        self.now += 1
        for ids in groups:
            self.known[ids] = self.known[ids].max(axis=0)

    def common(self, rows: Array) -> Array:
        """What every one of them knows."""
        if not self.watching:
            return self.fresh()
        out: Array = self.known[rows].min(axis=0)
        return out

    def has(self, rows: Array, entity: int, time: int) -> bool:
        """Whether any of them knows of that."""
        return not self.watching or bool((self.known[rows, entity] >= time).any())

    def all_have(self, rows: Array, entity: int, time: int) -> bool:
        """Whether each of them knows of that."""
        return not self.watching or bool((self.known[rows, entity] >= time).all())


@dataclass
class Blocked:
    """Why an agent waits, and whether it still has to."""

    ready: Callable[[], bool]
    why: Callable[[], str]


Flow = Generator["Blocked | None", None, None]  # None: others may go first


class Cell:
    """A barrier in shared memory.

    A phase completes when all arrivals have come and the bytes expected equal the bytes counted.
    Bytes may be counted before they are expected, as long as an arrival is still to come.
    """

    def __init__(self, clocks: Clocks, name: str, count: int, maker: int, home: object) -> None:
        self.clocks, self.name, self.count, self.home = clocks, name, count, home
        self.pending: int | Fraction = count
        self.bytes = 0
        self.phase = 0  # phases completed
        self.entity = clocks.entity()
        self.gathering = clocks.fresh()
        self.before = clocks.fresh()  # what came before the bytes of this phase were asked for
        self.known = clocks.fresh()  # what a completed phase tells those who wait
        self.maker, self.made = maker, clocks.now
        self.fence: int | None = None
        self.remote: list[tuple[Party, int, Op]] = []
        self.passed: list[tuple[Party, int, Op]] = []  # waits for the phase that is complete

    def arrive(self, times: int | Fraction, more: int, knowledge: Array, op: Op) -> None:
        if times > self.pending:
            raise RunError(
                f"too many arrivals on {self.name}",
                expected=f"{self.count} per phase, {self.pending} left in this one",
                got=f"{times} more",
            )
        self.pending -= times
        self.bytes += more
        self.gathering = self.clocks.union(self.gathering, knowledge)
        self.settle(op)

    def count_bytes(self, number: int, op: Op, knowledge: Array | None = None) -> None:
        """Bytes came; `knowledge` is what the one who asked for them knew then. They hand none of
        it on to those who wait."""
        self.bytes -= number
        if knowledge is not None:
            self.before = self.clocks.union(self.before, knowledge)
        self.settle(op)

    def settle(self, op: Op) -> None:
        if self.pending:
            return
        if self.bytes < 0:
            raise RunError(
                f"more bytes came to {self.name} than were expected",
                got=f"{-self.bytes} bytes too many",
                fix="expect the bytes of every copy that completes on the barrier",
            )
        if self.bytes == 0:
            self.require_passed(op)
            self.phase += 1
            self.pending = self.count
            self.known = self.clocks.union(self.known, self.gathering)
            if self.clocks.watching:
                self.known[self.entity] = self.phase
            self.gathering = self.clocks.fresh()

    def require_passed(self, op: Op) -> None:
        """Who waited for the last phase did so before this one could complete: of a phase only the
        parity is seen, so a wait that comes too late would take the new one for the one before."""
        if not self.passed:
            return
        told = self.clocks.union(self.gathering, self.before)
        for party, time, wait in self.passed:
            if told[party.ids[0]] < time:
                raise RunError(
                    f"a phase of {self.name} may be over before it has been waited for",
                    loc=wait.loc,
                    notes=(f"waits: {party.agent}", f"completes the next phase: {op.loc}"),
                    fix="let those who arrive know that the last phase has been waited for",
                )
        self.passed, self.before = [], self.clocks.fresh()

    def require_ready(self, knows: Array, *, fenced: bool) -> None:
        """Those who use the barrier know that it has been initialised; `fenced`: and that bulk
        copies and other blocks see it."""
        others = knows[knows != self.maker]
        if not self.clocks.all_have(others, self.maker, self.made):
            raise RunError(
                f"nothing orders the initialisation of {self.name} before this use of it",
                fix="synchronise the block after `barrier_init`",
            )
        seen = self.fence is not None and self.clocks.all_have(others, self.maker, self.fence)
        if fenced and not seen:
            raise RunError(
                f"the initialisation of {self.name} is not visible to bulk copies and other blocks",
                fix="execute `fence barrier_init` between initialisation and synchronisation",
            )

    def wait(self, parity: int) -> Flow:
        while not self.passes(parity):
            yield Blocked(partial(self.passes, parity), partial(self.awaited, parity))

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def awaited(self, parity: int) -> str:
        return (
            f"phase {parity} of {self.name} ({self.phase} phases complete; the next lacks "
            f"{self.pending} of {self.count} arrivals and {self.bytes} bytes)"
        )


class Meeting:
    """A barrier of threads: all who come learn what all who came know."""

    def __init__(self, clocks: Clocks, threads: int, name: str) -> None:
        self.clocks, self.threads, self.name = clocks, threads, name
        self.entity = clocks.entity()
        self.here = self.generation = 0
        self.members: list[object] = []
        self.gathering = clocks.fresh()
        self.known: dict[int, Array] = {}

    def join(self, party: Party) -> int:
        """Come; the generation to wait for."""
        mine, agent = self.generation, party.agent
        if agent in self.members:
            raise RunError(
                f"{agent} comes to {self.name} a second time before the others have come once",
                fix="let the others wait there (sync) between the two arrivals",
            )
        # an agent is many warps: unless the last phase is known to be over, some of them may still
        # be counted in it while others are counted in the next
        if not self.clocks.all_have(party.knows, self.entity, mine):
            raise RunError(
                f"{agent} comes to {self.name} without knowing that its last phase is over",
                fix="use another barrier id, or wait for something that follows that phase",
            )
        self.here += party.size
        self.members.append(agent)
        knowledge = self.clocks.release(party.ids, party.shares)
        self.gathering = self.clocks.union(self.gathering, knowledge)
        if self.here > self.threads:
            raise RunError(
                f"too many threads come to {self.name}",
                expected=f"{self.threads} threads",
                got=self.here,
            )
        if self.here == self.threads:
            if self.clocks.watching:
                self.gathering[self.entity] = mine + 1
            self.known[mine] = self.gathering
            self.known.pop(mine - 8, None)
            self.gathering, self.here, self.members = self.clocks.fresh(), 0, []
            self.generation += 1
        return mine

    def wait(self, party: Party, mine: int) -> Flow:
        """Until that generation is complete; `party` then knows what all who came know."""
        while mine not in self.known:
            yield Blocked(
                lambda: mine in self.known,
                lambda: f"{self.name} ({self.here} of {self.threads} threads have come)",
            )
        self.clocks.learn(party.learns, self.known[mine])


@dataclass(eq=False)
class Transfer:
    """An asynchronous op in flight: its data moves at some moment before a wait needs it."""

    op: Op
    pending: list[Transfer]  # all that are in flight
    fetch: Callable[[], Any]  # reads the source
    store: Callable[[Any], None]
    number: int = 0  # of its group
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
        self.pending.remove(self)
        with at(self.op.loc):
            self.read_source()
            self.store(self.value)


@dataclass
class Groups:
    """The groups of asynchronous ops of one agent, warpgroup or thread."""

    unit: str
    owners: Array  # who knows of their end
    entity: int
    reads: int  # the entity that says that sources have been read
    committed: int = 0
    open: list[Transfer] = field(default_factory=list)
    closed: list[list[Transfer]] = field(default_factory=list)
    last: Transfer | None = None

    @property
    def number(self) -> int:
        """Of the group that is open."""
        return self.committed + 1

    def add(self, t: Transfer) -> None:
        t.number = self.number
        if self.unit == "wgmma":  # they complete in order
            t.before, self.last = self.last, t
        self.open.append(t)

    def commit(self) -> None:
        self.committed += 1
        self.closed.append(self.open)
        self.open = []

    def over(self, pending: int, read: bool) -> list[Transfer]:
        """What is in all but the last `pending` groups; forgotten, unless only `read`."""
        over = max(len(self.closed) - pending, 0)
        found = [t for group in self.closed[:over] for t in group]
        if not read:
            del self.closed[:over]
        return found

    def wait(self, pending: int, read: bool) -> int:
        """Let all but the last `pending` groups be over; the number of those that are."""
        for t in self.over(pending, read):
            if read:
                t.read_source()
            else:
                t.complete()
                if t.seen is not None:
                    t.seen()
        return self.committed - pending

    def require_over(self, agent: object, clocks: Clocks) -> None:
        """Nothing that the agent started outlives it."""
        for t in [t for group in [*self.closed, self.open] for t in group]:
            if not clocks.has(self.owners, self.reads, t.number):
                raise RunError(
                    f"{agent} ends while an asynchronous operation is open",
                    loc=t.op.loc,
                    fix=f"commit it, and wait for its group (wait_group {self.unit}) before the "
                    "end",
                )
