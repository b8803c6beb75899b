"""A role over several agents: they come together, act as one, and part again.

Kernels that leave synchronisation to the compiler may place some statements on a part of the
block's warps and others on all of them. The latter are run once, by an agent made for the
occasion out of those whose warps the role spans; barriers of threads stand on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.op import Role
from tilewright.machine.barriers import Meeting
from tilewright.machine.lanes import Frame
from tilewright.machine.meaning import Flow, Run
from tilewright.machine.memory import Memory, allocate

if TYPE_CHECKING:
    from tilewright.machine.tile_machine import Agent


def together(fr: Frame, op: Role, body: Run, first: int, warps: int) -> Flow:
    """Run `body` once for all agents with warps `first` … `first + warps - 1`."""
    agent = fr.agent
    members = [
        a for a in agent.block.agents if first <= a.first_warp and a.last_warp < first + warps
    ]
    size = sum(a.ids.size for a in members)
    meetings: dict[Any, Meeting] = agent.block.meetings
    gates = []
    for side in ("enter", "leave"):
        key = (op, id(op), first, side)
        if key not in meetings:
            meetings[key] = Meeting(size, f"all warps of role {op.name} to {side}")
        gates.append(meetings[key])
    mine = gates[0].join(agent, op)
    yield from gates[0].wait(mine)
    agent.clocks.acquire(gates[0].known[mine])
    if agent is members[0]:
        joint = _join(members, first, warps, fr, op)
        joint.clocks.acquire(gates[0].known[mine])
        yield from body(joint.frame)
        _part(joint, members)
        agent.clocks.acquire(joint.clocks.release())
    mine = gates[1].join(agent, op)
    yield from gates[1].wait(mine)
    agent.clocks.acquire(gates[1].known[mine])


def _join(members: list[Agent], first: int, warps: int, fr: Frame, op: Role) -> Agent:
    from tilewright.machine.tile_machine import Agent, Crew

    leader = members[0]
    cluster = leader.block.cluster
    joint = Agent(leader.block, Crew(first, warps, op.name), leader.sanitize)
    joint.joint = True
    cluster.launch.enter(joint, cluster.compiled)
    new = joint.frame
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
            if new.lead:
                if not memory.lead:
                    memory.spread(agent.frame.lanes)
                memory.data[...] = new.data[start:stop]
            else:
                memory.data[...] = new.data
            if memory.storage.valid is not None and new.storage.valid is not None:
                part = new.window(new.storage.valid)
                memory.window(memory.storage.valid)[...] = part[start:stop] if new.lead else part
        start = stop
