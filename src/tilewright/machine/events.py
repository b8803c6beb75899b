"""Asynchronous operations: what is in flight, and the ops that wait for it.

An asynchronous op is a `Transfer`: its accesses are recorded when it is issued and its data moves
later, at a moment the scheduler picks, at the latest when a wait needs it. Barriers are in
`barriers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.atoms import ATOMS, GROUP_UNITS, Atom
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import const
from tilewright.ir.gather import gather_of
from tilewright.ir.op import Commit, Copy, Fence, Gemm, Map, WaitGroup
from tilewright.machine.barriers import Cell, Meeting, find_cells, require_initialised
from tilewright.machine.hazards import NEVER, Access, Knowledge, alive, check, check_proxy, record
from tilewright.machine.lanes import (
    NOTHING,
    Box,
    Frame,
    TileRegion,
    locate,
    narrow,
    uniform_int,
    write_box,
)
from tilewright.machine.meaning import Builder, Flow, Step, meaning
from tilewright.machine.memory import Array, Memory, make_poison
from tilewright.machine.numbers import Value
from tilewright.machine.ops import gemm_value, moved, require_collective, store_tile, tile_box
from tilewright.support.errors import RunError

if TYPE_CHECKING:
    from tilewright.machine.tile_machine import Agent

WARPGROUP = 4  # warps

__all__ = [
    "Cell",
    "Meeting",
    "Transfer",
    "agent_exits",
    "async_copy",
    "async_gemm",
    "async_nest",
    "complete",
]


@dataclass(eq=False)
class Transfer:
    """An asynchronous op in flight."""

    agent: Agent
    unit: str
    op: Copy | Map | Gemm
    fetch: Callable[[], Array]  # reads the source
    store: Callable[[Array], None]
    accesses: list[Access] = field(default_factory=list)
    targets: list[tuple[Cell, int, Access]] = field(default_factory=list)
    knowledge: Knowledge = field(default_factory=dict)  # of the one who issued it, then
    value: Array | None = None
    done: bool = False

    def read_source(self) -> None:
        if self.value is None:
            self.value = self.fetch().copy()


def complete(t: Transfer) -> None:
    """The op's effect happens now. Matrix instructions of one agent complete in order."""
    if t.done:
        return
    pending = t.agent.block.cluster.pending
    if t.unit == "wgmma":
        for other in [p for p in pending if p.agent is t.agent and p.unit == "wgmma"]:
            if other is t:
                break
            complete(other)
    t.done = True
    pending.remove(t)
    t.read_source()
    assert t.value is not None
    t.store(t.value)
    for cell, count, access in t.targets:
        access.clock = cell.phase + 1
        cell.count_bytes(count, t.op, t.knowledge)


def _launch(t: Transfer, knowledge: Knowledge, fr: Frame, strict: bool) -> None:
    """Check and record the accesses of `t`, and let it fly."""
    for access in t.accesses:
        storage = access.mem.storage
        alive(storage, fr)
        check(access, knowledge, strict)
        if strict and access.proxy == "async" and access.mem.space is Space.SHARED:
            check_proxy(access, knowledge)
    for access in t.accesses:
        record(access, knowledge)
    t.agent.block.cluster.pending.append(t)


# ── copies ───────────────────────────────────────────────────────────────────────────────────


def async_copy(b: Builder, op: Copy, src: TileRegion, dst: TileRegion) -> Step:
    """The meaning of a copy whose atom completes later."""
    atom = ATOMS[str(op.atom)]
    if atom.completion == "barrier":
        return _barrier_copy(b, op, src, dst, atom)
    if op.barrier is not None or op.multicast is not None:
        raise RunError(f"{op.atom} takes no barrier and no multicast mask", loc=op.loc)
    strict, unit = b.explicit, atom.completion

    def run(fr: Frame) -> None:
        elected = unit == "bulk"
        if not elected:
            require_collective(fr)
        agent = fr.agent
        there, here = tile_box(fr, src), tile_box(fr, dst)
        knowledge = agent.clocks.single() if elected else agent.clocks.known
        t = _copy_transfer(agent, op, unit, there, here)
        for box, kind, entity in (
            (there, "read", f"{unit}.read"),
            (here, "write" if op.reduce is None else "atomic", unit),
        ):
            if not box.is_empty and not (kind == "read" and box.mem.is_global):
                t.accesses.append(_access(t, box, kind, (agent, entity), atom.proxy, unit))
        _launch(t, knowledge, fr, strict)
        if op.reduce is None and not here.is_empty:
            make_poison(here.mem, here.where, here.mem.dtype)
        agent.clocks.open[unit].append(t)

    return Step(op, run)


def _copy_transfer(agent: Agent, op: Copy, unit: str, there: Box, here: Box) -> Transfer:
    def store(value: Array) -> None:
        store_tile(op, here, value)
        _mark_written(here)

    return Transfer(agent, unit, op, lambda: moved(op, there, here), store)


def async_nest(b: Builder, op: Map) -> Callable[[Frame], Flow]:
    """The meaning of a nest whose atom completes later, at all of its points: where elements come
    from is found now, they are read and written then."""
    found = gather_of(op)
    if found is None or op.atom is None:
        raise RunError(f"{op.atom} does not make what this nest does", loc=op.loc)
    strict, atom = b.explicit, ATOMS[op.atom]
    unit = atom.completion
    cond = b.evaluate(found.cond)
    indices = [b.evaluate(i, index=True) for i in found.load.indices]
    outer = found.store.indices[: -len(op.vars)]
    starts = (*outer, *(const(0) for _ in op.vars))
    extents = (*(const(1) for _ in outer), *op.extents)
    tile = b.evaluate.region(Region(found.store.buffer, starts, extents))
    name = found.load.buffer.name

    def run(fr: Frame) -> Flow:
        agent, lanes, outside = fr.agent, fr.lanes, fr.mask
        here, tensor = tile_box(fr, tile), fr.memory(name)
        wanted = cond(fr)
        valid = np.broadcast_to(wanted, lanes).copy()
        fr.mask = narrow(None, wanted)
        places: list[Array] = []
        if fr.mask is not NOTHING:
            places = [np.broadcast_to(i(fr), lanes) for i in indices]
        fr.mask = outside
        for place, size in zip(places, tensor.shape, strict=bool(places)):
            valid &= (place >= 0) & (place < size)
        where = tuple(place[valid].copy() for place in places)

        def fetch() -> Array:
            value = np.zeros(lanes, tensor.dtype.numpy)
            if valid.any():
                value[valid] = tensor.data[where]
            return value.reshape(here.extents)

        def store(value: Array) -> None:
            write_box(here, value)
            _mark_written(here)

        t = Transfer(agent, unit, op, fetch, store)
        t.accesses.append(_access(t, here, "write", (agent, unit), atom.proxy, unit))
        _launch(t, agent.clocks.known, fr, strict)
        make_poison(here.mem, here.where, here.mem.dtype)
        agent.clocks.open[unit].append(t)
        yield from ()

    return run


def _mark_written(box: Box) -> None:
    valid = box.mem.storage.valid
    if valid is not None:
        box.mem.window(valid)[box.where] = True


def _access(t: Transfer, box: Box, kind: str, entity: Any, proxy: str, unit: str) -> Access:
    return Access(
        t.agent, box.mem, box.where, kind, t.op, entity=entity, clock=NEVER, proxy=proxy, unit=unit
    )


def _barrier_copy(b: Builder, op: Copy, src: TileRegion, dst: TileRegion, atom: Atom) -> Step:
    if op.barrier is None:
        raise RunError(f"a {op.atom} needs the barrier that counts its bytes", loc=op.loc)
    barrier = b.evaluate.region(op.barrier)
    mask = None if op.multicast is None else b.evaluate(op.multicast)
    strict = b.explicit

    def run(fr: Frame) -> Flow:
        if atom.proxy != "async":
            require_collective(fr)
        agent, block = fr.agent, fr.agent.block
        there = tile_box(fr, src)
        ranks: list[int | None] = [None]
        if dst.cta is not None:
            ranks = [uniform_int(fr, dst.cta(fr), "a cluster rank")]
        if mask is not None:
            bits = uniform_int(fr, mask(fr), "a multicast mask")
            ranks = [r for r in range(len(block.cluster.blocks)) if bits >> r & 1]
            if not ranks or bits >> len(block.cluster.blocks):
                raise RunError(
                    f"multicast mask {bits:#x} names no block, or blocks outside the cluster",
                    loc=op.loc,
                )
        knowledge = agent.clocks.single() if atom.proxy == "async" else agent.clocks.known
        boxes: list[Box] = []
        cells: list[Cell] = []
        for rank in ranks:
            owner = block if rank is None else block.cluster.block(rank, fr)
            home = owner
            if mask is None and barrier.cta is not None:
                home = block.cluster.block(uniform_int(fr, barrier.cta(fr), "a cluster rank"), fr)
            (cell,) = yield from find_cells(b, fr, barrier, home)
            require_initialised(b, cell, knowledge, fr, fenced=True)
            if rank is None:
                memory: Memory = fr.memory(op.dst.buffer.name)
            else:
                memory = owner.existing(op.dst.buffer.name, fr)
            box = locate(fr, dst, memory)
            if box is None:
                raise RunError("a bulk copy needs uniform coordinates", loc=op.loc)
            boxes.append(box)
            cells.append(cell)

        def store(value: Array) -> None:
            for box in boxes:
                store_tile(op, box, value)
                _mark_written(box)

        t = Transfer(agent, "barrier", op, lambda: moved(op, there, boxes[0]), store)
        t.knowledge = {**knowledge, agent: agent.clocks.now}
        if there.mem.space is Space.FRAGMENT:
            t.read_source()  # registers are read when the instruction issues
            there.mem.storage.touched = agent.tick()
        elif not there.mem.is_global:
            t.accesses.append(_access(t, there, "read", cells[0], atom.proxy, "barrier"))
        elif there.mem.storage.accesses:
            probe = _access(t, there, "read", cells[0], atom.proxy, "barrier")
            check(probe, knowledge, strict)
        for box, cell in zip(boxes, cells, strict=True):
            access = _access(t, box, "write", cell, atom.proxy, "barrier")
            t.accesses.append(access)
            count = 1
            for n in box.extents:
                count *= n
            t.targets.append((cell, box.mem.dtype.storage_bytes(count), access))
            cell.block.incoming.append(access)
        if not there.mem.is_global and there.mem.space is not Space.FRAGMENT:
            # the source is free again when the bytes have been counted
            t.targets.append((cells[0], 0, t.accesses[0]))
        _launch(t, knowledge, fr, strict)
        for box in boxes:
            make_poison(box.mem, box.where, box.mem.dtype)
        yield None

    return Step(op, run, waits=True)


# ── matrix instructions ──────────────────────────────────────────────────────────────────────


def async_gemm(
    b: Builder, op: Gemm, tiles: list[TileRegion], clear: Callable[[Frame], Value]
) -> Step:
    """The meaning of a gemm whose atom completes later."""
    atom = ATOMS[str(op.atom)]
    strict, unit = b.explicit, atom.completion

    def run(fr: Frame) -> None:
        require_collective(fr)
        agent = fr.agent
        x, y, c = (tile_box(fr, t) for t in tiles)
        fresh = bool(uniform_int(fr, clear(fr), "clear"))

        def store(value: Array) -> None:
            write_box(c, value)
            _mark_written(c)

        t = Transfer(agent, unit, op, lambda: gemm_value(op, x, y, c, fresh), store)
        for box, kind in ((x, "read"), (y, "read"), (c, "write")):
            registers = box.mem.space is Space.FRAGMENT
            if strict and registers and box.mem.storage.touched >= agent.clocks.fenced:
                raise RunError(
                    f"ordinary code touched the registers of {box.mem.name}, and no fence orders "
                    "that before this matrix instruction",
                    loc=op.loc,
                    fix="execute `Fence wgmma` between the two",
                )
            proxy = "generic" if registers else atom.proxy
            entity = unit if registers else f"{unit}.shared"
            t.accesses.append(_access(t, box, kind, (agent, entity), proxy, unit))
        if fr.agent.sanitize:
            _check_valid(fr, x, y, *(() if fresh else (c,)))
        _launch(t, agent.clocks.known, fr, strict)
        agent.clocks.open[unit].append(t)

    return Step(op, run)


def _check_valid(fr: Frame, *boxes: Box) -> None:
    from tilewright.machine.sanitizer import require_written

    for box in boxes:
        if not any(not a.known_to(fr.agent.clocks.known) for a in box.mem.storage.accesses):
            require_written(box.mem, box.where, fr.loc())


# ── groups and fences ────────────────────────────────────────────────────────────────────────


@meaning(Commit)
def run_commit(b: Builder, op: Commit) -> Step:
    _known_unit(op.unit, op)

    def run(fr: Frame) -> None:
        clocks = fr.agent.clocks
        clocks.committed[op.unit] += 1
        number = clocks.committed[op.unit]
        group = clocks.open[op.unit]
        clocks.open[op.unit] = []
        clocks.groups[op.unit].append(group)
        for t in group:
            for access in t.accesses:
                access.clock = number

    return Step(op, run)


def _known_unit(unit: str, op: Commit | WaitGroup) -> None:
    if unit not in GROUP_UNITS:
        raise RunError(f"unknown unit {unit!r}", loc=op.loc, expected=", ".join(GROUP_UNITS))


@meaning(WaitGroup)
def run_wait_group(b: Builder, op: WaitGroup) -> Step:
    unit, strict = op.unit, b.explicit
    _known_unit(unit, op)

    def run(fr: Frame) -> Flow:
        agent, clocks = fr.agent, fr.agent.clocks
        groups = clocks.groups[unit]
        closed = len(groups) - op.pending
        for group in groups[: max(closed, 0)]:
            for t in group:
                if op.read:
                    t.read_source()
                else:
                    complete(t)
        upto = clocks.committed[unit] - op.pending
        if unit == "cp_async":
            for group in groups[: max(closed, 0)]:
                for access in (a for t in group for a in t.accesses if a.writes):
                    # each thread wrote its part; the others see it after a thread barrier
                    access.entity, access.clock, access.unit = agent, clocks.now, ""
                    clocks.unfenced.append(access)
        gained: Knowledge = {(agent, f"{unit}.read"): upto}
        if unit == "wgmma":
            shared = agent.clocks.each if strict and agent.crew.warps > WARPGROUP else gained
            shared[(agent, "wgmma.shared")] = max(shared.get((agent, "wgmma.shared"), 0), upto)
        if not op.read:
            gained[(agent, unit)] = upto
            del groups[: max(closed, 0)]
        if unit == "bulk" and strict:
            for key, time in gained.items():
                clocks.elected[key] = max(clocks.elected.get(key, 0), time)
        else:
            clocks.acquire(gained)
        yield None

    return Step(op, run, waits=True)


@meaning(Fence)
def run_fence(b: Builder, op: Fence) -> Step:
    def run(fr: Frame) -> None:
        clocks = fr.agent.clocks
        if op.kind == "proxy_async":
            for access in clocks.unfenced:
                access.fence = clocks.now
            clocks.unfenced = []
        elif op.kind == "wgmma":
            clocks.fenced = fr.agent.tick()
        elif op.kind == "barrier_init":
            for cell in clocks.unfenced_cells:
                cell.fence = clocks.now
            clocks.unfenced_cells = []
        elif op.kind not in ("cluster", "cluster_shared", "gpu"):
            raise RunError(f"unknown fence {op.kind!r}", loc=op.loc)

    return Step(op, run)


# ── the end ──────────────────────────────────────────────────────────────────────────────────


def agent_exits(agent: Agent) -> None:
    """Nothing the agent started may outlive what it uses."""
    clocks = agent.clocks
    known = clocks.single()
    for unit in GROUP_UNITS:
        key = (agent, f"{unit}.read")
        left = [t for group in clocks.groups[unit] for t in group] + clocks.open[unit]
        for t in left:
            if any(a.clock > known.get(key, 0) for a in t.accesses):
                raise RunError(
                    f"{agent} ends while an asynchronous operation is open",
                    loc=t.op.loc,
                    fix=f"commit it, and wait for its group (wait_group {unit}) before the end",
                )
    block = agent.block
    if not all(a.done for a in block.agents):
        return
    for access in [
        *block.incoming,
        *(
            a
            for m in block.shared.values()
            for a in m.storage.accesses
            if a.agent.block is not block
        ),
    ]:
        if not any(access.known_to(a.clocks.single()) for a in block.agents):
            raise RunError(
                f"block {block.index} ends while {access.mem.name} may still be used",
                loc=access.loc,
                notes=(f"by {access}",),
                fix="wait on the barrier that counts the copy, or synchronise the cluster, first",
            )
    for cell in block.cells.values():
        cell.require_drained(block)
    block.exited = True
