"""Agents and blocks that run tile code.

An agent is many threads, so what it knows is kept three times: what every thread knows; what the
thread knows that issues bulk copies; and what each warpgroup knows of its own matrix instructions
only. What an agent knows of *itself* lags too: one tile op sees another's shared writes only after
a thread barrier. A bulk group's end is seen by the elected thread that waits for it; other threads
learn of it at the next thread barrier. A group of matrix instructions is waited for by each
warpgroup for its own part: an agent of several knows that none reads shared memory any more at its
next barrier or arrival.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.machine.core import *

KNOWERS = 3  # of an agent
_FIRST: Array = np.zeros(1, np.int64)


class TileAgent(Agent):
    def __init__(
        self, block: Block, partition: Partition, sanitize: bool, first: int | None = None
    ) -> None:
        super().__init__(block, partition)
        self.sanitize = sanitize
        if first is None:  # came when the cluster had begun
            first, *_ = (self.clocks.entity(knows=True) for _ in range(KNOWERS))
        self.every, self.elected, self.each = range(first, first + KNOWERS)
        self.unfenced: list[Any] = []  # accesses that the async proxy does not see
        rows: Array = np.arange(first, first + KNOWERS)
        self.witnesses = rows[1:2]
        self._all = Party(self, self.ids.size, _FIRST, rows[2:], rows, rows[:1], rows[:2], True)

    @property
    def known(self) -> Array:
        """What every thread knows."""
        out: Array = self.clocks.known[self.every]
        return out

    @property
    def single(self) -> Array:
        """What the elected thread knows."""
        out: Array = self.clocks.known[self.elected]
        return out

    def meet(self) -> None:
        """All threads learn what any of them knows."""
        self.clocks.learn(self._all.learns, self.clocks.release(self._all.ids, self._all.shares))

    def party(self, fr: Frame) -> Party:
        if fr.is_partial:  # threads that do not run this learn of it at the next thread barrier
            return self._all._replace(learns=self._all.learns[1:], whole=False)
        return self._all

    def parties(self, fr: Frame, values: Sequence[tuple[Value, str]]) -> list[Party]:
        for value, what in values:
            uniform_int(fr, value, what)
        return [self.party(fr)]

    def one(self, fr: Frame) -> Party | None:
        return self._all if self.first_warp == 0 else None

    def syncs_alone(self, fr: Frame, op: Sync) -> bool:
        self._require_all(fr, op)
        for watch in fr.watches:
            watch.synced(fr, "warp" if op.scope == "warp" else "block")
        if not self.block.cluster.compiled.scheduled or (op.scope == "named" and fr.is_partial):
            return True  # lanes run in step, so those that reach it are all here
        if op.scope == "warp" and self.first_warp == self.last_warp:
            self.meet()
        return op.scope == "warp"

    def _require_all(self, fr: Frame, op: Sync) -> None:
        if not fr.is_partial:
            return
        threads = fr.active(fr.lanes)
        if op.scope == "warp":
            warps = [threads[s : s + WARP] for s in range(0, threads.size, WARP)]
            if all(w.all() or not w.any() for w in warps):
                return
        if op.scope == "named" and int(threads.sum()) == op.threads:
            return
        raise self.divergent(fr, op)

    def forget(self) -> None:
        super().forget()
        del self._all

    def groups_in(self, unit: str) -> Groups:
        if unit not in self.groups:
            entity, reads = self.clocks.entity(), self.clocks.entity()
            self.groups[unit] = Groups(unit, self._all.shares, entity, reads)
        return self.groups[unit]

    def groups_of(self, fr: Frame, unit: str, what: str) -> list[Groups]:
        return [self.groups_in(unit)]

    def note_over(self, groups: Groups, over: int, *, read: bool, strict: bool) -> None:
        rows = self._all.learns[strict and groups.unit == "bulk" :]
        # of matrix instructions this is the shared memory that they read
        each = groups.unit == "wgmma" and strict and self.partition.warps > GROUP
        self.clocks.note(self._all.ids if each else rows, groups.reads, over)
        if not read:
            self.clocks.note(rows, groups.entity, over)

    def show_writes(self, fr: Frame) -> None:
        for access in self.unfenced:
            access.fence = self.clocks.now
        self.unfenced = []
        self.end_reads(self._all)

    def end_reads(self, party: Party) -> None:
        for memory in self.block.memories.values():
            for access in memory.storage.accesses:
                if access.agent is self and access.kind == READ and access.fence is None:
                    access.fence = self.clocks.now


def tile_agent(fr: Frame) -> TileAgent:
    return typing.cast("TileAgent", fr.agent)


class TileBlock(Block):
    def __init__(self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int) -> None:
        super().__init__(cluster, index, rank, linear)
        self.joint: dict[Any, TileAgent] = {}

    def end(self) -> None:
        held = [a for m in self.memories.values() for a in m.storage.accesses]
        for access in [*self.incoming, *(a for a in held if a.agent.block is not self)]:
            if not self.knows(access.entity, access.clock):
                raise RunError(
                    f"block {self.index} ends while {access.mem.name} may still be used",
                    loc=access.loc,
                    notes=(f"by {access}",),
                    fix="wait on the barrier that counts the copy, or synchronise the cluster, "
                    "first",
                )
        super().end()


def together(fr: Frame, op: Role, body: Callable[[Frame], Flow], first: int, warps: int) -> Flow:
    """Run `body` once for all agents with warps `first` … `first + warps - 1`."""
    agent = fr.agent
    members = [
        a for a in agent.block.agents if first <= a.first_warp and a.last_warp < first + warps
    ]
    size = sum(a.ids.size for a in members)
    meetings = agent.block.meetings
    for side in ("enter", "leave"):
        key = (id(op), first, side)
        if key not in meetings:
            name = f"all warps of role {op.name} to {side}"
            meetings[key] = Meeting(agent.clocks, size, name)
        party = agent.party(fr)
        mine = meetings[key].join(party)
        yield from meetings[key].wait(party, mine)
        if side == "enter" and agent is members[0]:
            joint = _join(members, first, warps, fr, op)
            mutual = joint.party(joint.frame)
            agent.clocks.learn(mutual.learns, meetings[key].known[mine])
            agent.current = joint.frame
            yield from body(joint.frame)
            agent.current = agent.frame
            _part(joint, members)
            agent.clocks.learn(party.learns, agent.clocks.release(mutual.ids, mutual.shares))


def _join(members: list[Agent], first: int, warps: int, fr: Frame, op: Role) -> TileAgent:
    leader, block = members[0], typing.cast("TileBlock", members[0].block)
    key = (id(op), first)
    if key not in block.joint:
        joint = TileAgent(block, Partition(first, warps, op.name), leader.sanitize)
        joint.joint = True
        block.joint[key] = joint
    joint = block.joint[key]
    new = joint.frame = Frame(joint, (joint.ids.size,), (joint.positions,))
    joint.enter()
    for name, value in fr.vars.items():
        # what only some of them know is out of scope here
        if name in new.vars or not all(name in a.frame.vars for a in members):
            continue
        parts = [a.frame.vars[name] for a in members]
        if not value.ndim:
            new.vars[name] = value
        elif all(p.shape == a.frame.lanes for p, a in zip(parts, members, strict=True)):
            new.vars[name] = np.concatenate(parts)
    for name, memory in fr.bufs.items():
        new.bufs[name] = memory
        held = [a.frame.bufs[name] for a in members if name in a.frame.bufs]
        if memory.space is Space.LOCAL and len(held) == len(members):
            new.bufs[name] = _concatenated(held, members)
    return joint


def _concatenated(parts: list[Memory], members: list[Agent]) -> Memory:
    first = parts[0]
    private = any(p.lead for p in parts)
    for part, agent in zip(parts, members, strict=True):
        if private and not part.lead:
            part.spread(agent.frame.lanes)
    lanes = (sum(p.lead[0] for p in parts),) if private else ()
    track = first.storage.valid is not None
    whole = allocate(first.buffer, first.shape, lead=lanes, track=track)
    whole.data[...] = np.concatenate([p.data for p in parts]) if private else first.data
    if whole.storage.valid is not None:
        valid = [p.storage.valid for p in parts if p.storage.valid is not None]
        whole.storage.valid[...] = np.concatenate(valid) if private else valid[0]
    return whole


def _part(joint: Agent, members: list[Agent]) -> None:
    """Scalars and locals as the joint agent left them."""
    start = 0
    for agent in members:
        stop = start + agent.ids.size
        for name, memory in agent.frame.bufs.items():
            new = joint.frame.bufs.get(name)
            if memory.space is not Space.LOCAL or new is memory or new is None:
                continue
            if new.lead and not memory.lead:
                memory.spread(agent.frame.lanes)
            memory.copy(new, slice(start, stop) if new.lead else ...)
        start = stop
