"""Agents and blocks that run thread code, the shared memory of a block as bytes, and shadows of it
and of tensors that hold the last accesses of every unit.

A shared buffer is a typed window on the block's bytes where its place is, so buffers that share
memory see each other's bits. What nothing has written is 0xFF: NaN in every float type that has
one, -1 in integers.

Values are vectors over the threads of an agent, which run in step under a mask. An op counts once
for every thread that runs it: what one thread does for an instance stands under a guard.

In shadows, ordinary accesses bear the time of the thread that made them. Asynchronous ones bear the
clock of what tells of their end instead: a barrier's counts phases, a group's counts commits.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.analysis.aliases import places
from tilewright.machine.core import *

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

    def ended(self, units: Array, ended: Array) -> Array:
        """Where none is later than the time that its thread has ended."""
        if not self.used:
            return np.ones(units.size, np.bool_)
        who, at = self.who[units, : self.warps], self.at[units, : self.warps]
        least = np.minimum.reduceat(ended, np.arange(0, self.clocks.knowers, WARP))
        out: Array = ((at == 0) | (np.where(who == SEVERAL, least, ended[who]) >= at)).all(axis=1)
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
        self.ended: Array = np.zeros(clocks.knowers, np.int32)  # when threads ended their reads
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

    def require_ended(self, units: Array, op: Op) -> None:
        """Threads that have read the units, which the engine is about to write, have fenced that,
        or signalled a barrier since."""
        ended = self.reads.ended(units, self.ended)
        if self.clocks.watching and not ended.all():
            raise RunError(
                f"ordinary reads of {self.name(int(units[np.argmin(ended)]) * self.unit)} may be "
                "under way at this asynchronous write",
                notes=(f"now written by {describe_op(op)}",),
                fix="let the reader execute `fence proxy_async`, then synchronise, before the "
                "write",
            )

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


# ── agents and blocks ────────────────────────────────────────────────────────────────────────────


POISON = 0xFF
_ALIGNMENT = 1024  # of a block's shared memory, and the period of the widest swizzle


class Plan:
    """Where the shared buffers and barriers of a kernel lie."""

    def __init__(self, kernel: Kernel) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.places: dict[str, int] = {}
        given = places(kernel)
        end = max((place + buffer.bytes for buffer, place in given.items()), default=0)
        for op in walk_ops(kernel, Alloc, View):
            buffer = op.buffer
            if buffer.space not in (Space.SHARED, Space.BARRIER):
                continue
            if isinstance(op, View):
                place = self.places[op.source.name] + int(op.offset) * buffer.dtype.bytes
            elif op.place is not None:
                place = op.place
            else:
                place = -(-end // _ALIGNMENT) * _ALIGNMENT
                end = place + buffer.bytes
            self.buffers[buffer.name], self.places[buffer.name] = buffer, place
        self.bytes = -(-max(end, 1) // _ALIGNMENT) * _ALIGNMENT
        tiles = [b for b in self.buffers.values() if b.is_shared]
        for buffer in tiles:
            if self.places[buffer.name] % buffer.dtype.bytes:
                raise RunError(
                    f"{buffer.name} lies at {self.places[buffer.name]}, which is no multiple of "
                    f"the {buffer.dtype.bytes} bytes of its elements",
                    loc=kernel.loc,
                )
        self.unit = min((b.dtype.bytes for b in tiles), default=1)

    def owner(self, address: int) -> str:
        """The buffer at an address, in words."""
        for name, buffer in self.buffers.items():
            start = self.places[name]
            if buffer.is_shared and start <= address < start + buffer.bytes:
                return f"{name}[{(address - start) // buffer.dtype.bytes}]"
        return f"shared memory at byte {address}"


class SharedBytes:
    """One block's shared memory."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.bytes: Array = np.full(plan.bytes, POISON, np.uint8)
        self.memories: dict[str, Memory] = {}
        for name, buffer in plan.buffers.items():
            if buffer.is_shared:
                start = plan.places[name]
                part = self.bytes[start : start + buffer.bytes].view(buffer.dtype.numpy)
                shape = buffer.static_shape
                self.memories[name] = allocate(buffer, shape, array=part.reshape(shape))

    def read(self, addresses: Array, dtype: np.dtype[Any]) -> Array:
        """The elements of `dtype` at these addresses."""
        found: Array = self.bytes.view(dtype)[addresses // dtype.itemsize]
        return found

    def write(self, addresses: Array, values: Array) -> None:
        self.bytes.view(values.dtype)[addresses // values.itemsize] = values

    def poison(self, addresses: Array, size: int) -> None:
        self.bytes[addresses[..., None] + np.arange(size)] = POISON

    def address(self, name: str, element: Any) -> Any:
        """The byte address of an element (or of many) of a buffer."""
        buffer = self.plan.buffers[name]
        return self.plan.places[name] + np.asarray(element, np.int64) * buffer.dtype.bytes


@dataclass
class Registers:
    """Registers that a matrix instruction under way uses."""

    name: str
    start: int
    stop: int
    lanes: Array
    written: bool
    groups: Groups
    number: int


class ThreadAgent(Agent):
    joint = True  # a thread runs its code whoever else does

    def __init__(self, block: ThreadBlock, partition: Partition) -> None:
        super().__init__(block, partition)
        self.gids: Array = self.ids.astype(np.int64) + block.first
        self.witnesses = self.gids
        self.warps = [self.gids[n : n + WARP] for n in range(0, self.gids.size, WARP)]
        self.in_flight: list[Registers] = []
        self.unfenced: list[Array] = []  # units of shared memory

    def party(self, fr: Frame, lanes: Array | None = None) -> Party:
        lanes = active(fr) if lanes is None else lanes
        ids = self.gids[lanes]
        return Party(self, lanes.size, lanes, ids, ids, ids, ids, lanes.size == self.gids.size)

    def parties(self, fr: Frame, values: Sequence[tuple[Value, str]]) -> list[Party]:
        mine = active(fr)
        if any(v.ndim and (v[mine] != v[mine[0]]).any() for v, _ in values):
            return [self.party(fr, lane) for lane in np.split(mine, mine.size)]
        return [self.party(fr, mine)]

    def one(self, fr: Frame) -> Party:
        party = self.party(fr)
        if party.size != 1:
            raise RunError(
                "one thread initialises a barrier",
                got=f"{party.size} threads",
                fix="put it under a guard that one thread passes",
            )
        return party

    def syncs_alone(self, fr: Frame, op: Sync) -> bool:
        if op.scope == "warp":
            converge(fr, "a barrier of the warp")
        elif op.scope != "named" and fr.is_partial:
            raise self.divergent(fr, op)
        return op.scope == "warp"

    def groups_in(self, unit: str, owners: Array) -> Groups:
        """Those of one thread, of a warpgroup, or of all threads."""
        key = (unit, int(owners[0]))
        if key not in self.groups:
            entity = self.clocks.entity()
            self.groups[key] = Groups(unit, owners, entity, entity)
        return self.groups[key]

    def groups_of(self, fr: Frame, unit: str, what: str) -> list[Groups]:
        if unit == "wgmma":
            whole_groups(fr, WARPGROUP, what)
        threads = set(self.gids[active(fr)].tolist())
        return [g for (u, first), g in self.groups.items() if u == unit and first in threads]

    def note_over(self, groups: Groups, over: int, *, read: bool, strict: bool) -> None:
        self.clocks.note(groups.owners, groups.entity, over)
        if groups.unit == "wgmma":
            self.in_flight = [
                r for r in self.in_flight if r.groups is not groups or r.number > over
            ]
        elif groups.owners.size != self.gids.size:
            self.apart = True

    def show_writes(self, fr: Frame) -> None:
        party = self.party(fr)
        for units in self.unfenced:
            agent_block(fr).shadow.shown(units, party.ids)
        if party.whole:
            self.unfenced = []
        self.end_reads(party)

    def end_reads(self, party: Party) -> None:
        """A warp's loads are served before what one of its lanes signals after them."""
        shadow, warps = typing.cast("ThreadBlock", self.block).shadow, np.unique(party.ids // WARP)
        threads = (warps[:, None] * WARP + np.arange(WARP)).reshape(-1)
        shadow.ended[threads[threads < shadow.ended.size]] = self.clocks.now


class ThreadBlock(Block):
    def __init__(
        self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int, plan: Plan,
        written: set[str],
    ) -> None:  # fmt: skip
        super().__init__(cluster, index, rank, linear)
        self.first = rank * cluster.compiled.knowers  # of its threads
        self.shared = SharedBytes(plan)
        self.memories.update(self.shared.memories)
        slots = 2 * len(cluster.compiled.partitions)
        self.shadow = Shadow(cluster.clocks, plan.bytes // plan.unit, plan.unit, slots, plan.owner)
        self.written = written  # tensors of which two threads may disturb each other
        self.incoming: list[tuple[Cell, Array, Op]] = []
        self.tensors: dict[str, Shadow] = {}

    def tensor_shadow(self, mem: Memory) -> Shadow:
        """What threads of this cluster did to a tensor, element by element."""
        tensors = typing.cast("ThreadBlock", self.cluster.blocks[0]).tensors
        if mem.name not in tensors:

            def name(at: int) -> str:
                return describe_index(mem, tuple(map(int, np.unravel_index(at, mem.shape))))

            tensors[mem.name] = Shadow(self.cluster.clocks, mem.data.size, 1, 0, name)
        return tensors[mem.name]

    def end(self) -> None:
        shadow = self.shadow
        for cell, units, op in self.incoming if self.cluster.clocks.watching else ():
            mine = units[shadow.writer[units] == cell.entity]
            if mine.size and not self.knows(cell.entity, int(shadow.wrote[mine].max())):
                raise RunError(
                    f"block {self.index} ends while an asynchronous write of its memory may be "
                    "under way",
                    loc=op.loc,
                    fix="wait on the barrier that counts its bytes first",
                )
        super().end()


# ── threads ──────────────────────────────────────────────────────────────────────────────────


def agent_of(fr: Frame) -> ThreadAgent:
    return typing.cast("ThreadAgent", fr.agent)


def agent_block(fr: Frame) -> ThreadBlock:
    return typing.cast("ThreadBlock", fr.agent.block)


def active(fr: Frame) -> Array:
    """The positions of the threads that run this."""
    return fr.agent.positions if fr.mask is None else fr.active(fr.lanes).nonzero()[0]


def in_threads(fr: Frame, value: Value, lanes: Array) -> Array:
    """`value` in the threads at these positions."""
    return spread(fr, value)[lanes]


def spread(fr: Frame, value: Value) -> Array:
    """`value` in every thread of the agent."""
    return np.broadcast_to(value, fr.lanes)


def whole_groups(fr: Frame, size: int, what: str) -> Array:
    """The running threads in groups of `size` consecutive ones, each of which is complete."""
    lanes = active(fr)
    groups: Array | None = lanes.reshape(-1, size) if lanes.size % size == 0 else None
    if groups is None or (
        (groups[:, 0] % size).any() or (groups[:, -1] - groups[:, 0] != size - 1).any()
    ):
        raise _not_together(fr, "a warp" if size == WARP else "a warpgroup", what)
    return groups


def converge(fr: Frame, what: str, *, some: bool = False) -> None:
    """The running warps come together: what a lane did, the others of its warp know. `some`: the
    lanes of a warp that run, not all of them."""
    agent = agent_of(fr)
    if fr.mask is None:
        if agent.apart:
            agent.clocks.meet(agent.warps)
            agent.apart = False
        return
    lanes = active(fr)
    groups = np.split(lanes, np.flatnonzero(np.diff(lanes // WARP)) + 1)
    for warp in groups if not some else ():
        if warp.size != min(WARP, fr.lanes[0] - int(warp[0]) // WARP * WARP):
            raise _not_together(fr, "a warp", what)
    if not agent.apart:
        return
    agent.clocks.meet([agent.gids[g] for g in groups])
    # threads of different warps may still be apart, but no barrier of a warp changes that
    agent.apart = lanes.size != fr.lanes[0]


def _not_together(fr: Frame, group: str, what: str) -> RunError:
    return RunError(
        f"{what} is for all threads of {group} together",
        got=f"{active(fr).size} threads of {fr.lanes[0]}",
        fix="move it out of the guard that differs between threads",
    )
