"""A role over several agents: they come together, act as one, and part again.

Kernels that leave synchronisation to the compiler may place some statements on a part of the
block's warps and others on all of them. The latter are run once, by an agent made for the
occasion out of those whose warps the role spans; barriers of threads stand on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.op import Role
from tilewright.machine.engine import enter
from tilewright.machine.memory import Memory, allocate
from tilewright.machine.state import Agent, Crew, Frame
from tilewright.machine.sync import Flow, Meeting
from tilewright.machine.tile_agents import TileAgent, TileBlock


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
        mine = meetings[key].join(party, op)
        yield from meetings[key].wait(party, mine)
        if side == "enter" and agent is members[0]:
            joint = _join(members, first, warps, fr, op)
            mutual = joint.party(joint.frame)
            agent.clocks.learn(mutual.learns, meetings[key].known[mine])
            yield from body(joint.frame)
            _part(joint, members)
            agent.clocks.learn(party.learns, agent.clocks.release(mutual.ids, mutual.shares))


def _join(members: list[Agent], first: int, warps: int, fr: Frame, op: Role) -> TileAgent:
    leader, block = members[0], cast("TileBlock", members[0].block)
    key = (id(op), first)
    if key not in block.joint:
        joint = TileAgent(block, Crew(first, warps, op.name), leader.sanitize)
        joint.joint = True
        block.joint[key] = joint
    joint = block.joint[key]
    new = joint.frame = Frame(joint, (joint.ids.size,), (joint.positions,))
    enter(joint)
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
