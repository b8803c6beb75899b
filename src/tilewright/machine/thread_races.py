"""Shadows of shared memory and tensors that hold the last accesses of every unit by thread code.

Ordinary accesses bear the time of the thread that made them. Asynchronous ones bear the clock of
what tells of their end instead: a barrier's counts phases, a group's counts commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.machine.core import *
from tilewright.support.errors import RunError

SEVERAL = -1  # in place of a reader: more than one lane of the warp


class Marks:
    """The latest accesses of one kind of each unit: per warp of the cluster, and per group of
    asynchronous ops, the time and the lane, or `SEVERAL`. Made when the first one is noted."""

    def __init__(self, clocks: Clocks, units: int, slots: int = 0) -> None:
        self.clocks, self.units = clocks, units
        self.warps = -(-clocks.knowers // WARP)
        self.slots: dict[int, int] = {}  # of asynchronous ones
        self.columns = self.warps + slots
        self.used = False
        self.who: Array = np.zeros((0, self.columns), np.int32)
        self.at: Array = np.zeros((0, self.columns), np.int32)

    def _make(self) -> None:
        if not self.used:
            self.used = True
            self.who = np.zeros((self.units, self.columns), np.int32)
            self.at = np.zeros((self.units, self.columns), np.int32)

    def note(self, units: Array, actors: Array) -> None:
        self._make()
        known, slots = self.clocks.known, actors // WARP
        old, at = self.who[units, slots], self.at[units, slots]
        # one lane stands for all of them where it knows of the others' accesses
        alone = (at == 0) | (old == actors)
        alone |= (old != SEVERAL) & (known[actors, old] >= at)
        past = np.flatnonzero(~alone & (at < self.clocks.now))
        if past.size:
            alone[past] = self.least_known(actors[past], slots[past]) >= at[past]
        new = np.where(alone, actors, SEVERAL)
        self.who[units, slots] = new
        self.at[units, slots] = self.clocks.now
        lost = self.who[units, slots] != new
        if lost.any():
            self.who[units[lost], slots[lost]] = SEVERAL

    def note_async(self, units: Array, entity: int, time: int) -> None:
        self._make()
        slot = self.slots.get(entity)
        if slot is None:
            slot = self.slots[entity] = self.warps + len(self.slots)
            if slot >= self.who.shape[1]:
                pad = ((0, 0), (0, self.who.shape[1]))
                self.who, self.at = np.pad(self.who, pad), np.pad(self.at, pad)
        self.who[units, slot], self.at[units, slot] = entity, time

    def clear(self, units: Array) -> None:
        if self.used:
            self.at[units] = 0

    def over(self, units: Array, actors: Array) -> Array:
        """Where the actors know of all of these accesses."""
        over = np.ones(units.size, np.bool_)
        if not self.used:
            return over
        known, at = self.clocks.known, self.at[units]
        used = np.flatnonzero(at.any(axis=0))
        if not used.size:
            return over
        who, at = self.who[units][:, used], at[:, used]
        actor = actors[:, None]
        fine = (at == 0) | (who == actor)
        fine |= (who != SEVERAL) & (known[actor, who] >= at)
        if fine.all():
            return over
        warps = used < self.warps
        least = self.least_known(actor, np.where(warps, used, 0))
        fine |= (who == SEVERAL) & (np.where(warps, least, 0) >= at)
        out: Array = fine.all(axis=1)
        return out

    def least_known(self, actors: Array, warps: Array) -> Array:
        """The time up to which each actor knows of all other threads of a warp."""
        people, place = np.unique(actors, return_inverse=True)
        rows = self.clocks.known[people, : self.clocks.knowers].copy()
        rows[np.arange(people.size), people] = NEVER
        least = np.minimum.reduceat(rows, np.arange(0, self.clocks.knowers, WARP), axis=1)
        out: Array = least[place.reshape(actors.shape), warps]
        return out

    def is_async(self, unit: int) -> bool:
        return any(self.at[unit, s] > 0 for s in self.slots.values())


class Shadow:
    """The last accesses of each unit of one block's shared memory, or of a tensor.

    Of plain writes: who, when, by what op, and for ordinary ones whether (and when) a fence has
    shown them to the async proxy. Of reads, and of atomic updates since the last plain write:
    `Marks`. Atomics may meet each other; plain accesses may meet nothing that changes the unit.
    """

    def __init__(
        self, clocks: Clocks, units: int, unit: int, slots: int, name: Callable[[int], str]
    ) -> None:
        self.clocks, self.unit, self.name = clocks, unit, name
        self.writer: Array = np.full(units, -1, np.int32)
        self.wrote: Array = np.zeros(units, np.int32)
        self.last: Array = np.full(units, -1, np.int32)  # who changed it, plainly or atomically
        self.fence: Array = np.zeros(units, np.int32)
        self.generic: Array = np.zeros(units, np.bool_)
        self.by: Array = np.zeros(units, np.int32)
        self.updated: Array = np.zeros(units, np.int32)  # by what op, atomically
        self.reads, self.updates = Marks(clocks, units, slots), Marks(clocks, units)
        self.ops: list[Op] = []
        self.numbers: dict[int, int] = {}

    def units(self, addresses: Array, size: int) -> Array:
        """The units of `size` bytes at each address, in one row."""
        first = addresses.reshape(-1) // self.unit
        each = max(size // self.unit, 1)
        return first if each == 1 else (first[:, None] + np.arange(each)).reshape(-1)

    def number(self, op: Op) -> int:
        found = self.numbers.get(id(op))
        if found is None:
            found = self.numbers[id(op)] = len(self.ops)
            self.ops.append(op)
        return found

    # ── ordinary accesses: `actors` are threads, one per unit ────────────────────────────────

    def read(self, units: Array, actors: Array, op: Op) -> None:
        if not self.clocks.watching:
            return
        self.require_over(units, actors, op, "reads")
        self.reads.note(units, actors)

    def write(self, units: Array, actors: Array, op: Op) -> None:
        if not self.clocks.watching:
            return
        self._overwrite(units, actors, op, actors, self.clocks.now)
        self.fence[units], self.generic[units] = 0, True

    def _overwrite(self, units: Array, actors: Array, op: Op, writer: Any, time: Any) -> None:
        self.require_over(units, actors, op, "writes")
        self.writer[units], self.wrote[units], self.last[units] = writer, time, writer
        self.by[units] = self.number(op)
        self.reads.clear(units)
        self.updates.clear(units)

    def update(self, units: Array, actors: Array, op: Op) -> None:
        """An update in one step, which others of its kind may meet."""
        if not self.clocks.watching:
            return
        self.require_over(units, actors, op, "updates")
        self.updates.note(units, actors)
        self.updated[units] = self.number(op)
        self.last[units], self.fence[units], self.generic[units] = actors, 0, True

    def require_over(self, units: Array, actors: Array, op: Op, verb: str) -> None:
        """The threads that are about to touch the units know of what happened to them."""
        writer = self.writer[units]
        over = (writer < 0) | (writer == actors)
        over |= self.clocks.known[actors, writer] >= self.wrote[units]
        self.require(over, units, op, verb, "written")
        if verb != "updates":
            self.require(self.updates.over(units, actors), units, op, verb, "updated")
        if verb != "reads":
            self.require(self.reads.over(units, actors), units, op, verb, "read")

    # ── asynchronous accesses: `row` is what those know who issue them ───────────────────────

    def async_read(
        self, units: Array, row: Array, issuer: int, entity: int, time: int, op: Op
    ) -> None:
        """A read by an async-proxy op, over when `entity` reaches `time`."""
        if not self.clocks.watching:
            return
        row = self.clocks.fit(row)
        writer, wrote = self.writer[units], self.wrote[units]
        over = (writer < 0) | (writer == issuer) | (row[writer] >= wrote)
        self.require(over, units, op, "reads", "written")
        if self.updates.used and self.updates.at[units].any():
            over = self.updates.over(units, np.full(units.size, max(issuer, 0)))
            self.require(over, units, op, "reads", "updated")
        fence = self.fence[units]
        last = self.last[units]
        shown = ~self.generic[units] | ((fence > 0) & ((last == issuer) | (row[last] >= fence)))
        if not shown.all():
            at = int(units[np.argmin(shown)])
            raise RunError(
                f"ordinary writes to {self.name(at * self.unit)} are not visible to this "
                "asynchronous read",
                notes=(f"written by {describe_op(self.ops[self.by[at]])}",),
                fix="let the writer execute `fence proxy_async`, then synchronise, before the read",
            )
        self.reads.note_async(units, entity, time)

    def async_write(self, units: Array, actors: Array, entity: int, op: Op) -> None:
        """A write issued by `actors` that is over when `landed` says so."""
        if not self.clocks.watching:
            return
        self._overwrite(units, actors, op, entity, NEVER)
        self.generic[units] = False

    def landed(self, units: Array, entity: int, time: int) -> None:
        """What an asynchronous write brought belongs to `time` of `entity`."""
        mine = units[(self.writer[units] == entity) & (self.wrote[units] == NEVER)]
        self.wrote[mine] = time

    def became(self, units: Array, entity: int, actors: Array) -> None:
        """What an asynchronous write brought is from now on an ordinary write by `actors`."""
        mine = (self.writer[units] == entity) & (self.wrote[units] == NEVER)
        units, actors = units[mine], actors[mine]
        self.writer[units], self.wrote[units] = actors, self.clocks.now
        self.last[units], self.generic[units], self.fence[units] = actors, True, 0

    def shown(self, units: Array, ids: Array) -> None:
        """The threads `ids` have fenced what they wrote among `units`."""
        mine = self.generic[units] & (self.fence[units] == 0) & np.isin(self.last[units], ids)
        self.fence[units[mine]] = self.clocks.now

    # ── errors ───────────────────────────────────────────────────────────────────────────────

    def require(self, over: Array, units: Array, op: Op, verb: str, before: str) -> None:
        """`over`: where what another thread did to a unit `before` is known."""
        if over.all():
            return
        at = int(units[np.argmin(over)])
        under_way = before == "written" and int(self.writer[at]) >= self.clocks.knowers
        if under_way or (before == "read" and self.reads.is_async(at)):
            what = "an asynchronous operation may still be under way there"
            fix = "wait for its barrier or its group first, then synchronise the threads"
        else:
            what = "another thread touched it, and no barrier stands between"
            fix = "put a barrier that both threads reach, or an arrival and a wait, between the two"
        notes = []
        if before != "read":
            first = self.ops[(self.by if before == "written" else self.updated)[at]]
            notes.append(f"first {before} by {describe_op(first)}")
        done = {"reads": "read", "writes": "written", "updates": "updated atomically"}[verb]
        notes.append(f"now {done} by {describe_op(op)}")
        raise RunError(
            f"race on {self.name(at * self.unit)}: this {verb} it, but {what}",
            notes=tuple(notes),
            fix=fix,
        )
