"""Asynchronous ops of tile code: copies and matrix instructions that return before they are done.

Their accesses are recorded when they are issued; their data moves later, at a moment the scheduler
picks, at the latest when a wait needs it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import const
from tilewright.ir.gather import gather_of
from tilewright.ir.op import Copy, Gemm, Map, Op
from tilewright.machine.barriers import find_cells, home, ranks_of
from tilewright.machine.clocks import NEVER
from tilewright.machine.conflicts import ATOMIC, READ, WRITE
from tilewright.machine.hazards import Access, check, check_proxy, record, require_alive
from tilewright.machine.lanes import (
    NOTHING,
    Box,
    TileRegion,
    locate,
    narrow,
    uniform_int,
    write_box,
)
from tilewright.machine.meaning import Builder, Run, tile_meaning
from tilewright.machine.memory import Array, make_poison
from tilewright.machine.ops import (
    gemm_operands,
    gemm_value,
    moved,
    require_collective,
    store_tile,
    tile_box,
)
from tilewright.machine.sanitizer import require_written
from tilewright.machine.state import Block, Frame
from tilewright.machine.sync import Cell, Flow, Transfer
from tilewright.machine.tile_agents import TileAgent, tile_agent
from tilewright.support.errors import RunError


def _access(
    agent: TileAgent, op: Op, box: Box, kind: str, entity: int, unit: str, clock: int = NEVER
) -> Access:
    registers = box.mem.space is Space.FRAGMENT
    proxy = "generic" if registers else ATOMS[str(op.atom)].proxy  # type: ignore[attr-defined]
    return Access(
        agent, box.mem, box.where, kind, op, entity=entity, clock=clock, proxy=proxy, unit=unit
    )


def _launch(fr: Frame, t: Transfer, accesses: list[Access], knowledge: Array, strict: bool) -> None:
    """Check and record the accesses of `t`, and let it fly."""
    for access in accesses:
        require_alive(access.mem, fr)
        check(access, knowledge, strict)
        if strict and access.proxy == "async" and access.mem.space is Space.SHARED:
            check_proxy(access, knowledge)
    for access in accesses:
        record(access, knowledge)
    t.pending.append(t)


def _launch_in_group(
    fr: Frame, t: Transfer, accesses: list[Access], knowledge: Array, strict: bool
) -> None:
    """`_launch` for what completes with its group."""
    agent, unit = tile_agent(fr), accesses[0].unit if accesses else ""
    _launch(fr, t, accesses, knowledge, strict)

    def seen() -> None:
        # each thread wrote its part; the others see it after a thread barrier
        for access in accesses:
            if access.writes:
                access.entity, access.clock, access.unit = agent.each, agent.clocks.now, ""
                agent.unfenced.append(access)

    if accesses:
        t.seen = seen if unit == "cp_async" else None
        agent.groups_in(unit).add(t)


def _storing(boxes: list[Box], store: Callable[[Box, Array], None]) -> Callable[[Array], None]:
    """Store a value in all boxes, which then hold something."""

    def run(value: Array) -> None:
        for box in boxes:
            store(box, value)
            valid = box.mem.storage.valid
            if valid is not None:
                box.mem.window(valid)[box.where] = True

    return run


# ── copies ───────────────────────────────────────────────────────────────────────────────────


@tile_meaning(("async", Copy))
def async_copy(b: Builder, op: Copy) -> Run:
    """A copy whose atom completes later."""
    src, dst = b.operands(op.src, op.dst)
    unit = ATOMS[str(op.atom)].completion
    if unit == "barrier":
        return _barrier_copy(b, op, src, dst)
    if op.barrier is not None or op.multicast is not None:
        raise RunError(f"{op.atom} takes no barrier and no multicast mask", loc=op.loc)

    def run(fr: Frame) -> None:
        elected, agent = unit == "bulk", tile_agent(fr)
        if not elected:
            require_collective(fr)
        there, here = tile_box(fr, src), tile_box(fr, dst)
        groups = agent.groups_in(unit)
        store = _storing([here], lambda box, value: store_tile(op, box, value))
        pending = agent.block.cluster.pending
        t = Transfer(op, pending, lambda: moved(op, there, here).copy(), store)
        accesses = [
            _access(agent, op, box, kind, entity, unit, groups.number)
            for box, kind, entity in (
                (there, READ, groups.reads),
                (here, WRITE if op.reduce is None else ATOMIC, groups.entity),
            )
            if not box.is_empty and not (kind == READ and box.mem.is_global)
        ]
        _launch_in_group(fr, t, accesses, agent.single if elected else agent.known, b.explicit)
        if op.reduce is None and not here.is_empty:
            make_poison(here.mem, here.where, here.mem.dtype)

    return run


def async_nest(b: Builder, op: Map) -> Callable[[Frame], Flow]:
    """The meaning of a nest whose atom completes later, at all of its points: where elements come
    from is found now, they are read and written then."""
    found = gather_of(op)
    if found is None or op.atom is None:
        raise RunError(f"{op.atom} does not make what this nest does", loc=op.loc)
    unit = ATOMS[op.atom].completion
    cond = b.evaluate(found.cond)
    indices = [b.evaluate(i, index=True) for i in found.load.indices]
    outer = found.store.indices[: -len(op.vars)]
    starts = (*outer, *(const(0) for _ in op.vars))
    extents = (*(const(1) for _ in outer), *op.extents)
    tile = b.evaluate.region(Region(found.store.buffer, starts, extents))
    name = found.load.buffer.name

    def run(fr: Frame) -> Flow:
        agent, lanes, outside = tile_agent(fr), fr.lanes, fr.mask
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

        groups = agent.groups_in(unit)
        t = Transfer(op, agent.block.cluster.pending, fetch, _storing([here], write_box))
        access = _access(agent, op, here, WRITE, groups.entity, unit, groups.number)
        _launch_in_group(fr, t, [access], agent.known, b.explicit)
        make_poison(here.mem, here.where, here.mem.dtype)
        yield from ()

    return run


def _barrier_copy(b: Builder, op: Copy, src: TileRegion, dst: TileRegion) -> Run:
    if op.barrier is None:
        raise RunError(f"a {op.atom} needs the barrier that counts its bytes", loc=op.loc)
    barrier, mask = b.operands(op.barrier, op.multicast)
    elected = ATOMS[str(op.atom)].proxy == "async"

    def run(fr: Frame) -> Flow:
        if not elected:
            require_collective(fr)
        agent, cluster = tile_agent(fr), fr.agent.block.cluster
        there = tile_box(fr, src)
        ranks: list[int | None] = [None]
        if dst.cta is not None:
            ranks = [uniform_int(fr, dst.cta(fr), "a cluster rank")]
        if mask is not None:
            ranks = [*ranks_of(fr, uniform_int(fr, mask(fr), "a multicast mask"))]
        targets: list[tuple[Block, Cell, Box]] = []
        for rank in ranks:
            owner = agent.block if rank is None else cluster.block(rank, fr)
            for start in barrier.starts:
                uniform_int(fr, start(fr), "a barrier's index")
            there_too = mask is None and barrier.cta is not None
            block = home(fr, barrier, 0) if there_too else owner
            (cell,) = yield from find_cells(b, fr, barrier, 0, block)
            if b.explicit:
                knows = np.array([agent.elected if elected else agent.every])
                cell.require_ready(knows, fr.loc(), fenced=True)
            name = op.dst.buffer.name
            memory = fr.memory(name) if rank is None else owner.existing(name, fr)
            box = locate(fr, dst, memory)
            if box is None:
                raise RunError("a bulk copy needs uniform coordinates", loc=op.loc)
            targets.append((block, cell, box))
        knowledge = agent.single if elected else agent.known
        told = knowledge.copy()  # what the one who issues this knows now
        told[agent.each] = agent.clocks.now
        counted: list[tuple[Cell, int, Access]] = []

        def store(value: Array) -> None:
            fill(value)
            for cell, count, access in counted:
                access.clock = cell.phase + 1
                cell.count_bytes(count, op, told)

        boxes = [box for _, _, box in targets]
        fill = _storing(boxes, lambda box, value: store_tile(op, box, value))
        t = Transfer(op, cluster.pending, lambda: moved(op, there, boxes[0]).copy(), store)
        accesses: list[Access] = []
        source = _access(agent, op, there, READ, targets[0][1].entity, "barrier")
        if there.mem.space is Space.FRAGMENT:
            t.read_source()  # registers are read when the instruction issues
            there.mem.storage.touched = agent.tick()
        elif not there.mem.is_global:
            accesses.append(source)
        elif there.mem.storage.accesses:
            check(source, knowledge, b.explicit)
        for block, cell, box in targets:
            access = _access(agent, op, box, WRITE, cell.entity, "barrier")
            accesses.append(access)
            size = box.mem.dtype.storage_bytes(int(np.prod(box.extents, dtype=np.int64)))
            counted.append((cell, size, access))
            block.incoming.append(access)
        if accesses[0] is source:
            # the source is free again when the bytes have been counted
            counted.append((targets[0][1], 0, source))
        _launch(fr, t, accesses, knowledge, b.explicit)
        for box in boxes:
            make_poison(box.mem, box.where, box.mem.dtype)
        yield None

    return run


# ── matrix instructions ──────────────────────────────────────────────────────────────────────


@tile_meaning(("async", Gemm))
def async_gemm(b: Builder, op: Gemm) -> Run:
    """A gemm whose atom completes later."""
    tiles, clear = gemm_operands(b, op)
    strict, unit = b.explicit, ATOMS[str(op.atom)].completion

    def run(fr: Frame) -> None:
        require_collective(fr)
        agent = tile_agent(fr)
        x, y, c = (tile_box(fr, t) for t in tiles)
        fresh = bool(uniform_int(fr, clear(fr), "clear"))
        groups = agent.groups_in(unit)
        pending, store = agent.block.cluster.pending, _storing([c], write_box)
        t = Transfer(op, pending, lambda: gemm_value(op, x, y, c, fresh), store)
        accesses = []
        for box, kind in ((x, READ), (y, READ), (c, WRITE)):
            registers = box.mem.space is Space.FRAGMENT
            if strict and registers and box.mem.storage.touched >= agent.fenced:
                raise RunError(
                    f"ordinary code touched the registers of {box.mem.name}, and no fence orders "
                    "that before this matrix instruction",
                    loc=op.loc,
                    fix="execute `fence wgmma` between the two",
                )
            entity = groups.entity if registers else groups.reads
            accesses.append(_access(agent, op, box, kind, entity, unit, groups.number))
        if agent.sanitize:
            for box in (x, y, *(() if fresh else (c,))):
                if all(a.known_to(agent, agent.known) for a in box.mem.storage.accesses):
                    require_written(box.mem, box.where, fr.loc())
        _launch_in_group(fr, t, accesses, agent.known, strict)

    return run
