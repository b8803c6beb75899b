"""Scheduled tile code: which accesses of shared memory have to be ordered, and copies and matrix
instructions that return before they are done.

Every access of shared memory leaves a record: which elements, by whom, at what time on whose
clock. An access that conflicts with an earlier one (one of them writes) must *know* of it: through
a chain of arrivals and waits, thread barriers, or the wait that an asynchronous op completes at.
Tile ops of one agent are ordered like those of two, unless the program leaves synchronisation to
the compiler (`strict=False`), or both touch an element from the same thread. A bulk copy's bytes
belong to the phase of the barrier that they were counted in.

Asynchronous ops record their accesses when they are issued; their data moves later, at a moment
the scheduler picks, at the latest when a wait needs it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilewright.ir.atoms import ATOMS
from tilewright.ir.exchanges import meets_inside
from tilewright.ir.gather import gather_of
from tilewright.machine.core import *
from tilewright.machine.ops import *
from tilewright.machine.sanitizer import require_written
from tilewright.machine.tile_agents import TileAgent, tile_agent


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
    map_run: Any = None  # the run of a map that it belongs to: iterations are independent
    # what all iterations of a map would touch; the box, where it is all of it
    span: Any = None
    box: tuple[tuple[int, int], ...] | None = None
    mask: Array | None = None
    fence: int | None = None  # when it was made visible to the async proxy; of a read, over

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
        if old.map_run is not None and old.map_run is new.map_run:
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
    """What an async-proxy op reads or overwrites was written by it, or fenced by the writer before;
    ordinary reads of what it overwrites are over."""
    for old in new.mem.storage.accesses:
        if old.proxy != "generic" or not (old.writes or new.writes) or not old.overlaps(new):
            continue
        if old.fence is None or knowledge[old.agent.each] < old.fence:
            what, who, how = "writes to", "writer", "are not visible to"
            if not old.writes:
                what, who, how = "reads of", "reader", "may be under way at"
            raise RunError(
                f"ordinary {what} {new.mem.name} {how} this asynchronous {new.kind}",
                loc=new.loc,
                notes=(f"{old.kind}: {old}", f"{new.kind}: {new}"),
                fix=f"let the {who} execute `Fence proxy_async`, then synchronise, before the "
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
        self.map_run: object | None = None

    def enter_map(self, fr: Frame) -> None:
        self.map_run = object()

    def leave_map(self, fr: Frame) -> None:
        self.map_run = None

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
        require_alive(mem)
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
            map_run=self.map_run,
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


def require_alive(mem: Memory) -> None:
    """The block that owns this shared memory has not ended."""
    if mem.storage.owner is not None:
        typing.cast("Block", mem.storage.owner).require_alive(mem.storage.key)


def _access(
    agent: TileAgent, op: Op, box: Box, kind: str, entity: int, unit: str, clock: int = NEVER
) -> Access:
    registers = box.mem.space is Space.FRAGMENT
    proxy = "generic" if registers else ATOMS[str(op.atom)].proxy  # type: ignore[attr-defined]
    return Access(
        agent, box.mem, box.where, kind, op, entity=entity, clock=clock, proxy=proxy, unit=unit
    )


def _launch(t: Transfer, accesses: list[Access], knowledge: Array, strict: bool) -> None:
    """Check and record the accesses of `t`, and let it fly."""
    for access in accesses:
        require_alive(access.mem)
        check(access, knowledge, strict)
        if strict and access.proxy == "async" and access.mem.space is Space.SHARED:
            check_proxy(access, knowledge)
    for access in accesses:
        record(access, knowledge)
    t.pending.append(t)


def _launch_in_group(
    builder: Builder, fr: Frame, op: Copy | Map | Gemm, parts: list[tuple[Box, str]],
    fetch: Callable[[], Array], store: Callable[[Box, Array], None],
) -> None:  # fmt: skip
    """Let an op fly that completes with its group; `parts`: what it touches, and how."""
    agent, unit = tile_agent(fr), ATOMS[str(op.atom)].completion
    groups = agent.groups_in(unit)
    accesses = []
    for box, kind in parts:
        if not box.is_empty and not (kind == READ and box.mem.is_global):
            only_read = kind == READ and box.mem.space is not Space.FRAGMENT
            entity = groups.reads if only_read else groups.entity
            accesses.append(_access(agent, op, box, kind, entity, unit, groups.number))
    written = [box for box, kind in parts if kind != READ]
    t = Transfer(op, agent.block.cluster.pending, fetch, _storing(written, store))
    _launch(t, accesses, agent.single if unit == "bulk" else agent.known, builder.explicit)

    def seen() -> None:
        # each thread wrote its part; the others see it after a thread barrier
        for access in accesses:
            if access.writes:
                access.entity, access.clock, access.unit = agent.each, agent.clocks.now, ""
                agent.unfenced.append(access)

    if accesses:
        t.seen = seen if unit == "cp_async" else None
        groups.add(t)
    for box, kind in parts:
        if kind == WRITE and not isinstance(op, Gemm):
            make_poison(box.mem, box.where, box.mem.dtype)


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
def async_copy(
    builder: Builder, op: Copy, src: TileRegion, dst: TileRegion, barrier: TileRegion | None,
    multicast: Eval | None, fr: Frame,
) -> Flow:  # fmt: skip
    """A copy whose atom completes later."""
    unit = ATOMS[str(op.atom)].completion
    if unit == "barrier":
        assert barrier is not None
        yield from _barrier_copy(builder, op, src, dst, barrier, multicast, fr)
        return
    if unit != "bulk":
        require_collective(fr)
    there, here = tile_box(fr, src), tile_box(fr, dst)
    parts = [(there, READ), (here, WRITE if op.reduce is None else ATOMIC)]
    _launch_in_group(
        builder, fr, op, parts, lambda: moved(there, here).copy(), partial(store_tile, op)
    )


def async_map(b: Builder, op: Map) -> Callable[[Frame], Flow]:
    """The meaning of a map whose atom completes later, at all of its points: where elements come
    from is found now, they are read and written then."""
    found = gather_of(op)
    assert found is not None
    cond = b.evaluate(found.cond)
    indices = [b.evaluate(i, index=True) for i in found.load.indices]
    outer = found.store.indices[: -len(op.vars)]
    starts = (*outer, *(const(0) for _ in op.vars))
    extents = (*(const(1) for _ in outer), *op.extents)
    tile = b.evaluate.region(Region(found.store.buffer, starts, extents))
    name = found.load.buffer.name

    def run(fr: Frame) -> Flow:
        lanes, outside = fr.lanes, fr.mask
        here, tensor = tile_box(fr, tile), fr.bufs[name]
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

        _launch_in_group(b, fr, op, [(here, WRITE)], fetch, write_box)
        yield from ()

    return run


def _barrier_copy(
    builder: Builder, op: Copy, src: TileRegion, dst: TileRegion, barrier: TileRegion,
    multicast: Eval | None, fr: Frame,
) -> Flow:  # fmt: skip
    elected = ATOMS[str(op.atom)].proxy == "async"
    if not elected:
        require_collective(fr)
    agent, cluster = tile_agent(fr), fr.agent.block.cluster
    there = tile_box(fr, src)
    owners = [home(fr, dst, 0)]
    if multicast is not None:
        ranks = ranks_of(fr, uniform_int(fr, multicast(fr), "a multicast mask"))
        owners = [cluster.block(rank) for rank in ranks]
    targets: list[tuple[Block, Cell, Box]] = []
    for start in barrier.starts:
        uniform_int(fr, start(fr), "a barrier's index")
    for owner in owners:
        block = owner if multicast is not None or barrier.cta is None else home(fr, barrier, 0)
        (cell,) = yield from find_cells(builder, fr, barrier, 0, block)
        if builder.explicit:
            knows = np.array([agent.elected if elected else agent.every])
            cell.require_ready(knows, fenced=True)
        name = op.dst.buffer.name
        memory = fr.bufs[name] if owner is agent.block else owner.existing(name)
        targets.append((block, cell, tile_box(fr, dst, memory)))
    knowledge = agent.single if elected else agent.known
    told = knowledge.copy()  # what the one who issues this knows now
    told[agent.each] = agent.clocks.now
    counted: list[tuple[Cell, int, Access]] = []
    boxes = [box for _, _, box in targets]
    fill = _storing(boxes, partial(store_tile, op))

    def store(value: Array) -> None:
        fill(value)
        for cell, count, access in counted:
            access.clock = cell.phase + 1
            cell.count_bytes(count, op, told)

    t = Transfer(op, cluster.pending, lambda: moved(there, boxes[0]).copy(), store)
    accesses: list[Access] = []
    first = targets[0][1]
    source = _access(agent, op, there, READ, first.entity, "barrier")
    if there.mem.space is Space.FRAGMENT:
        t.read_source()  # registers are read when the instruction issues
        there.mem.storage.touched = agent.tick()
    elif there.mem.is_global:
        check(source, knowledge, builder.explicit)
    else:  # it is free again when the bytes have been counted
        accesses.append(source)
        counted.append((first, 0, source))
    for block, cell, box in targets:
        access = _access(agent, op, box, WRITE, cell.entity, "barrier")
        accesses.append(access)
        size = box.mem.dtype.storage_bytes(int(np.prod(box.extents, dtype=np.int64)))
        counted.append((cell, size, access))
        block.incoming.append(access)
    _launch(t, accesses, knowledge, builder.explicit)
    for box in boxes:
        make_poison(box.mem, box.where, box.mem.dtype)
    yield None


# ── matrix instructions ──────────────────────────────────────────────────────────────────────


@tile_meaning(("async", Gemm))
def async_gemm(
    builder: Builder, op: Gemm, a: TileRegion, b: TileRegion, c: TileRegion, clear: Eval, fr: Frame
) -> None:
    """A gemm whose atom completes later."""
    agent = tile_agent(fr)
    x, y, z = gemm_boxes(fr, op, a, b, c)
    fresh = bool(uniform_int(fr, clear(fr), "clear"))
    for box in (x, y, z):
        if builder.explicit and box.mem.space is Space.FRAGMENT:
            agent.require_fenced(box.mem)
    if agent.sanitize:
        for box in (x, y, *(() if fresh else (z,))):
            if all(each.known_to(agent, agent.known) for each in box.mem.storage.accesses):
                require_written(box.mem, box.where, fr.loc())
    parts = [(x, READ), (y, READ), (z, WRITE)]
    _launch_in_group(builder, fr, op, parts, lambda: gemm_value(op, x, y, z, fresh), write_box)
