"""The accesses of shared memory by tile code, and which of them have to be ordered.

Every access of shared memory leaves a record: which elements, by whom, at what time on whose
clock. An access that conflicts with an earlier one (one of them writes) must *know* of it: through
a chain of arrivals and waits, thread barriers, or the wait that an asynchronous op completes at.
Tile ops of one agent are ordered like those of two, unless the program leaves synchronisation to
the compiler (`strict=False`), or both touch an element from the same thread. A bulk copy's bytes
belong to the phase of the barrier that they were counted in.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.exchanges import meets_inside
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Copy, Op
from tilewright.machine.conflicts import ATOMIC, READ, UPDATE, WRITE, Touch
from tilewright.machine.memory import Array, Memory
from tilewright.machine.state import Block, Frame, Watch, Where
from tilewright.machine.tile_agents import TileAgent
from tilewright.support.errors import Loc, RunError


@dataclass(eq=False)
class Access:
    """Elements of some storage touched at one time."""

    agent: TileAgent
    mem: Memory
    where: InitVar[Where]
    kind: str
    op: Op | None
    entity: int
    clock: int
    proxy: str = "generic"
    unit: str = ""
    loc: Loc | None = None
    owners: Any = None
    threads: Any = None  # equal for accesses that take each element to the same thread
    nest: Any = None  # the run of a nest that it belongs to: iterations are independent
    # what all iterations of a nest would touch; the box, where it is all of it
    span: Any = None
    box: tuple[tuple[int, int], ...] | None = None
    mask: Array | None = None
    fence: int | None = None  # when the writer made it visible to the async proxy

    def __post_init__(self, where: Where) -> None:
        mem, owners, self.owners = self.mem, self.owners, None
        if self.loc is None and self.op is not None:
            self.loc = self.op.loc
        if all(isinstance(w, (int, np.integer, slice)) for w in where):
            self.box = self.span = tuple(_span(w) for w in where)
            return
        self.span = None if self.span is None else tuple(_span(w) for w in self.span)
        self.mask = np.zeros(mem.storage.units, np.bool_)
        mem.window(self.mask)[where] = True
        if owners is not None and mem.ratio == 1:
            self.owners = np.full(mem.storage.units, -1, np.int32)
            mem.window(self.owners)[where] = owners

    @property
    def writes(self) -> bool:
        return self.kind != READ

    def cells(self) -> Array:
        """The touched elements as a mask over the storage."""
        if self.mask is None:
            self.mask = np.zeros(self.mem.storage.units, np.bool_)
            if self.box is not None:
                where = tuple(slice(a, b) for a, b in self.box)
                self.mem.window(self.mask)[where if where else ...] = True
        return self.mask

    def overlaps(self, other: Access) -> bool:
        if self.box is not None and other.box is not None and self.mem is other.mem:
            return all(a < d and c < b for (a, b), (c, d) in zip(self.box, other.box, strict=True))
        return bool((self.cells() & other.cells()).any())

    def covers(self, other: Access) -> bool:
        if self.box is not None and other.box is not None and self.mem is other.mem:
            return all(
                a <= c and d <= b for (a, b), (c, d) in zip(self.box, other.box, strict=True)
            )
        return not (other.cells() & ~self.cells()).any()

    def forget(self, other: Access) -> None:
        """Drop what `other` overwrote."""
        self.mask = self.cells() & ~other.cells()
        self.box = None

    def known_to(self, agent: TileAgent, knowledge: Array) -> bool:
        """Whether `knowledge` of the agent says so; of other clusters it says nothing."""
        return self.agent.clocks is agent.clocks and bool(knowledge[self.entity] >= self.clock)

    def __str__(self) -> str:
        name = type(self.op).__name__ if self.op is not None else "an access"
        at = f" at {self.loc}" if self.loc is not None else ""
        verb = {READ: "reads", WRITE: "writes", ATOMIC: "updates"}[self.kind]
        return f"{name} by {self.agent}{at}, which {verb} {self.mem.name}"


def _span(w: Any) -> tuple[int, int]:
    return (w.start, w.stop) if isinstance(w, slice) else (int(w), int(w) + 1)


def _same_threads(old: Access, new: Access) -> bool:
    """Each element that both touch is touched by one and the same thread."""
    if old.owners is not None and new.owners is not None:
        both = old.cells() & new.cells()
        return bool((old.owners[both] == new.owners[both]).all())
    return (
        old.threads is not None
        and old.threads == new.threads
        and old.span is not None
        and old.span == new.span
        and old.mem is new.mem
    )


def check(new: Access, knowledge: Array, strict: bool) -> None:
    """`new` conflicts with nothing that it does not know to be over."""
    storage = new.mem.storage
    for old in storage.accesses:
        if not (old.writes or new.writes) or old.known_to(new.agent, knowledge):
            continue
        if old.kind == new.kind == ATOMIC:
            continue
        if old.unit and old.unit == new.unit == "wgmma" and old.agent is new.agent:
            continue  # matrix instructions of one agent run in order
        if old.agent is new.agent and not old.unit and not strict:
            continue
        if old.nest is not None and old.nest is new.nest:
            continue
        if not old.overlaps(new):
            continue
        if old.agent is new.agent and not old.unit and not new.unit and _same_threads(old, new):
            continue
        raise _race(old, new)


def _race(old: Access, new: Access) -> RunError:
    own = old.agent is new.agent
    if old.unit:
        what = "an asynchronous operation is still in flight"
        fix = {
            "wgmma": "wait for its group (wait_group wgmma) first",
            "bulk": "wait for its group (wait_group bulk), then synchronise the threads",
            "cp_async": "wait for its group (wait_group cp_async), then synchronise the threads",
        }.get(old.unit, "wait on the barrier that counts its bytes first")
    elif own:
        what = "threads of one role touch the same memory without a barrier between"
        fix = "put a Sync between the two"
    else:
        what = "two roles touch the same memory without a barrier between"
        fix = "let the first arrive on a barrier that the second waits for"
    return RunError(
        f"race on {new.mem.name}: {what}",
        loc=new.loc,
        notes=(f"first: {old}", f"then: {new}"),
        fix=fix,
    )


def check_proxy(new: Access, knowledge: Array) -> None:
    """What an async-proxy op reads or overwrites was written by it, or fenced by the writer
    before; what was only read may be overwritten."""
    for old in new.mem.storage.accesses:
        if old.kind == READ or old.proxy != "generic" or not old.overlaps(new):
            continue
        if old.fence is None or knowledge[old.agent.each] < old.fence:
            raise RunError(
                f"ordinary writes to {new.mem.name} are not visible to this asynchronous "
                f"{new.kind}",
                loc=new.loc,
                notes=(f"written: {old}", f"{new.kind}: {new}"),
                fix="let the writer execute `Fence proxy_async`, then synchronise, before the "
                f"{new.kind}",
            )


def record(new: Access, knowledge: Array) -> None:
    """Keep `new`, and drop what it makes superfluous."""
    storage = new.mem.storage
    kept: list[Access] = []
    for old in storage.accesses:
        if new.kind == WRITE and old.known_to(new.agent, knowledge) and old.overlaps(new):
            if new.covers(old):
                continue
            old.forget(new)
        elif (
            old.kind == new.kind == READ
            and old.entity == new.entity
            and old.clock <= new.clock
            and old.box is not None
            and old.box == new.box
            and old.mem is new.mem
        ):
            continue
        kept.append(old)
    kept.append(new)
    storage.accesses = kept


class HazardWatch(Watch):
    """Checks the ordinary accesses of an agent in a scheduled program."""

    def __init__(self, agent: TileAgent, strict: bool) -> None:
        self.agent = agent
        self.strict = strict
        self.nest: object | None = None

    def enter_map(self, fr: Frame) -> None:
        self.nest = object()

    def leave_map(self, fr: Frame) -> None:
        self.nest = None

    def met_inside(self, fr: Frame, op: Op) -> bool:
        if not meets_inside(op, self.agent.ids.size):
            return False
        self.agent.meet()
        return True

    def access(self, fr: Frame, t: Touch) -> None:
        mem, space, agent = t.mem, t.mem.space, self.agent
        if space is Space.LOCAL:
            return
        if space is not Space.SHARED:
            if space is Space.FRAGMENT:
                mem.storage.touched = agent.tick()
            if not mem.storage.accesses:
                return
        require_alive(mem, fr)
        new = Access(
            agent,
            mem,
            t.where,
            WRITE if t.kind == UPDATE else t.kind,  # conflicts with all that a read does
            fr.op,
            entity=agent.each,
            clock=agent.clocks.now,
            owners=None if fr.in_map or t.kind == ATOMIC else t.owners,
            loc=t.loc,
            threads=_pattern(fr),
            nest=self.nest,
            span=fr.pattern[1] if fr.pattern else None,
        )
        known = agent.known
        check(new, known, self.strict)
        if space is not Space.SHARED:
            return
        record(new, known)
        if new.writes:
            agent.unfenced.append(new)


def _pattern(fr: Frame) -> Any:
    """Equal for accesses of the same elements that take each of them to the same one thread."""
    if fr.layout is not None and fr.pattern:
        return fr.layout, fr.pattern[0]
    if isinstance(fr.op, Copy) and fr.op.atom == "threads":
        for side in (fr.op.src, fr.op.dst):
            layout = side.buffer.layout
            if isinstance(layout, Fragment) and side.is_whole and _is_bijective(layout):
                return layout
    return None


@lru_cache(maxsize=64)
def _is_bijective(layout: Fragment) -> bool:
    return layout.is_bijective


def require_alive(mem: Memory, fr: Frame) -> None:
    """The block that owns this shared memory has not ended."""
    if mem.storage.owner is not None:
        cast("Block", mem.storage.owner).require_alive(mem.storage.key, fr.loc())
