"""Meaning of memory, compute and synchronisation ops, synchronous forms. Asynchronous ones are in
`events.py`; `sync.py` has what barriers and groups do, agents say for whom."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.machine import padding
from tilewright.machine.core import *

# ── copies ───────────────────────────────────────────────────────────────────────────────────


def copy_now(fr: Frame, op: Copy, src: Box, dst: Box) -> None:
    """dst = src, as one collective step."""
    if dst.is_empty and 0 not in dst.extents:
        return
    part = needed(src, dst)
    watch_overlap(fr, src, dst, in_place=True)
    if all(s.stop > s.start for s in part):
        watch(fr, READ, src, part)
    watch(fr, WRITE if op.reduce is None else ATOMIC, dst)
    if fr.agent.sanitize:
        padding.copied(op, src, dst)
    store_tile(op, dst, moved(src, dst))


def moved(src: Box, dst: Box) -> Array:
    """The tile that a copy stores, in the destination's type and shape."""
    value = fit(read_box(src), dst.extents)
    return np.asarray(cast_fn(src.mem.dtype, dst.mem.dtype)(value))


def store_tile(op: Copy, dst: Box, value: Array) -> None:
    if op.reduce is not None:
        value = np.asarray(atomic_fn(op.reduce, dst.mem.dtype)(read_box(dst), value))
    write_box(dst, value)


def each_lane(b: Builder, dst: Region, value: Callable[[Sequence[Expr]], Expr]) -> Run:
    """A tile whose place differs between lanes: each lane stores its elements one by one."""
    coords = [Var(f"{dim} of a tile", INT32) for dim in range(len(dst.tile))]
    store = run_store(b, Store(dst.buffer, dst.at(coords), value(coords)))
    extents = b.operands(*dst.tile)

    def run(fr: Frame) -> None:
        for point in np.ndindex(*(uniform_int(fr, e(fr), "an extent") for e in extents)):
            fr.vars.update((var.name, np.int32(i)) for var, i in zip(coords, point, strict=True))
            store(fr)

    return run


@tile_meaning(Copy)
def run_copy(b: Builder, op: Copy) -> Run:
    src, dst = b.operands(op.src, op.dst)
    if op.multicast is not None or op.barrier is not None:
        raise RunError("only bulk copies take a barrier or a multicast mask")
    by_lane = each_lane(b, op.dst, lambda at: Load(op.src.buffer, op.src.at(at)))

    def run(fr: Frame) -> None:
        there, here = locate(fr, src), locate(fr, dst)
        if there and here and not there.mem.lead and not here.mem.lead:
            require_collective(fr)
            copy_now(fr, op, there, here)
        elif op.reduce is not None or src.cta is not None or dst.cta is not None:
            raise RunError("a reducing or remote copy must have uniform coordinates")
        else:
            by_lane(fr)

    return run


@tile_meaning(Relayout)
def run_relayout(op: Relayout, src: TileRegion, dst: TileRegion, fr: Frame) -> None:
    require_collective(fr)
    copy_now(fr, Copy(op.src, op.dst), tile_box(fr, src), tile_box(fr, dst))
    watch_meeting(fr, op)


@tile_meaning(Fill)
def run_fill(b: Builder, op: Fill) -> Run:
    dst, value = b.operands(op.dst, op.value)
    to = cast_fn(op.value.dtype, op.dst.buffer.dtype)
    by_lane = each_lane(b, op.dst, lambda at: op.value)

    def run(fr: Frame) -> None:
        what, box = to(value(fr)), locate(fr, dst)
        if (
            what.ndim
            or box is None
            or box.mem.lead
            or (fr.is_partial and box.mem.space is Space.LOCAL)
        ):
            by_lane(fr)
            return
        require_collective(fr)
        watch(fr, WRITE, box)
        write_box(box, what)
        if fr.agent.sanitize and box.is_whole and not box.mem.is_global:
            padding.filled(box)

    return run


@meaning(Store)
def run_store(b: Builder, op: Store) -> Run:
    value, name = b.evaluate(op.value), op.buffer.name
    to = cast_fn(op.value.dtype, op.buffer.dtype)
    indices = [b.evaluate(i, index=True) for i in op.indices]
    marks = padding.Tracer(b.evaluate, op.value, op) if b.evaluate.sanitize else None

    def run(fr: Frame) -> None:
        idx = tuple(i(fr) for i in indices)
        fr.outside = False
        new = to(value(fr))
        if marks is not None:
            fr.storing = marks(fr)
        scatter(fr, fr.bufs[name], idx, new)
        fr.storing = None

    return run


# ── compute ──────────────────────────────────────────────────────────────────────────────────


def gemm_boxes(fr: Frame, op: Gemm, *tiles: TileRegion) -> list[Box]:
    require_collective(fr)
    if op.meta is not None:
        raise RunError("sparse gemm is not interpreted yet")
    return [tile_box(fr, t) for t in tiles]


@tile_meaning(Gemm)
def run_gemm(
    builder: Builder, op: Gemm, a: TileRegion, b: TileRegion, c: TileRegion, clear: Eval, fr: Frame
) -> None:
    x, y, z = gemm_boxes(fr, op, a, b, c)
    fresh = bool(uniform_int(fr, clear(fr), "clear"))
    watch(fr, READ, x)
    watch(fr, READ, y)
    watch_overlap(fr, x, z)
    watch_overlap(fr, y, z)
    before = padding.box_marks(z) if fr.agent.sanitize else None
    watch(fr, WRITE if fresh else UPDATE, z)
    if fr.agent.sanitize:
        padding.mark_gemm(op, x, y, z, before, fresh)
    value = gemm_value(op, x, y, z, fresh)
    if builder.evaluate.nan:
        _no_new_nan("gemm", value, [read_box(x), read_box(y), *([read_box(z)] * (not fresh))])
    write_box(z, value)


def gemm_value(op: Gemm, x: Box, y: Box, c: Box, fresh: bool) -> Array:
    """What a gemm stores into c."""
    old = read_box(c)
    a2, b2 = matrix(read_box(x), "a"), matrix(read_box(y), "b")
    c2 = matrix(old, "c")
    types = (x.mem.dtype, y.mem.dtype, c.mem.dtype)
    start = np.zeros(c2.shape, c2.dtype) if fresh else c2
    return np.reshape(product(op, a2, b2, start, types), old.shape)


def _no_new_nan(what: str, value: Array, inputs: list[Array]) -> None:
    def nan(x: Array) -> bool:
        return bool(np.isnan(x.astype(np.float64)).any())

    if nan(value) and not any(map(nan, inputs)):
        raise SanitizerError("nan", f"NaN is born in this {what}")


@tile_meaning(Reduce)
def run_reduce(builder: Builder, op: Reduce, src: TileRegion, dst: TileRegion, fr: Frame) -> None:
    require_collective(fr)
    x, y = tile_box(fr, src), tile_box(fr, dst)
    watch(fr, READ, x)
    watch_meeting(fr, op)
    marks = (padding.box_marks(x), padding.box_marks(y)) if fr.agent.sanitize else (None, None)
    watch(fr, WRITE if op.clear else UPDATE, y)
    tile, axis = read_box(x), op.axis
    padding.mark_reduce(fr, op, tile, marks[0], y, marks[1], axis)
    out_shape = tile.shape[:axis] + tile.shape[axis + 1 :]
    old = None if op.clear else read_box(y).reshape(out_shape)
    value = reduced(op, tile, old, x.mem.dtype, y.mem.dtype, axis)
    if builder.evaluate.nan and y.mem.dtype.is_float:
        _no_new_nan("reduction", value, [tile] if old is None else [tile, old])
    write_box(y, value.reshape(y.extents))


@tile_meaning(Scan)
def run_scan(b: Builder, op: Scan) -> Run:
    sources, results, totals = (b.operands(*each) for each in (op.sources, op.results, op.totals))
    by = None
    if op.by is not None:  # a name of its own for each variable: fr.vars has those of the kernel
        names = [Var(f"{var.name} of an operator", var.dtype) for var in op.by.vars]
        by = names, b.operands(*op.by(*names))

    def run(fr: Frame) -> None:
        require_collective(fr)
        xs, ys, ends = ([tile_box(fr, t) for t in each] for each in (sources, results, totals))
        _watch_scan(fr, op, xs, ys, ends)
        tiles = [np.moveaxis(read_box(x), op.axis, 0) for x in xs]
        tiles = [tile[::-1] for tile in tiles] if op.reverse else tiles
        if by is None:
            lines = [scanned(op.op, tiles[0], xs[0].mem.dtype, ys[0].mem.dtype, 0)]
        else:
            lines = [np.empty_like(tile) for tile in tiles]
            total = [tile[0] for tile in tiles]
            for k in range(len(tiles[0])):
                if k:
                    elements = (*total, *(tile[k] for tile in tiles))
                    fr.vars.update((v.name, e) for v, e in zip(by[0], elements, strict=True))
                    total = [np.asarray(result(fr)) for result in by[1]]
                for line, value in zip(lines, total, strict=True):
                    line[k] = value
        for end, line in zip(ends, lines, strict=False):
            write_box(end, line[-1].reshape(end.extents))
        for y, line in zip(ys, lines, strict=True):
            line = line[::-1] if op.reverse else line
            write_box(y, fit(np.moveaxis(line, 0, op.axis), y.extents))

    return run


def _watch_scan(fr: Frame, op: Scan, xs: list[Box], ys: list[Box], ends: list[Box]) -> None:
    in_place = [any(x.mem is y.mem and x.where == y.where for x in xs) for y in ys]
    alone = [x for x in xs if not any(x.mem is y.mem and x.where == y.where for y in ys)]
    for x in alone:
        watch(fr, READ, x)
    for y, same in zip(ys, in_place, strict=True):
        if same:
            watch(fr, UPDATE, y)
    met = watch_meeting(fr, op)
    for y, same in zip(ys, in_place, strict=True):
        if not same or met:
            watch(fr, UPDATE if same else WRITE, y)
    for end in ends:
        watch(fr, WRITE, end)


# ── atomics ──────────────────────────────────────────────────────────────────────────────────


@tile_meaning(Atomic)
def run_atomic(b: Builder, op: Atomic) -> Run:
    (dst, value, src), dtype = b.operands(op.dst, op.value, op.src), op.dst.buffer.dtype
    fn = atomic_fn(op.op, dtype)
    to = None if op.value is None else cast_fn(op.value.dtype, dtype)
    single = all(isinstance(e, Const) and e.value == 1 for e in op.dst.extents)

    def operand(fr: Frame) -> Value:
        return np.zeros((), dtype.numpy)[()] if value is None or to is None else to(value(fr))

    if single and op.src is None:
        result = None if op.result is None else op.result.name

        folds = b.evaluate.sanitize and op.op in ("max", "min") and op.value is not None
        marks = padding.Tracer(b.evaluate, op.value, op) if folds and op.value is not None else None

        def run_element(fr: Frame) -> None:
            idx = dst.index(fr)
            fr.outside = False
            given = operand(fr)
            fr.storing = None if marks is None else marks(fr)
            old = atomic_elements(fr, region_memory(fr, dst), idx, given, fn, op)
            fr.storing = None
            if result is not None:
                fr.vars[result] = old

        return run_element

    def run_tile(fr: Frame) -> None:
        require_collective(fr)
        box = tile_box(fr, dst)
        if src is None:
            got = np.asarray(np.broadcast_to(operand(fr), box.extents))
        else:
            there = tile_box(fr, src)
            watch(fr, READ, there, needed(there, box))
            got = fit(read_box(there), box.extents)
            got = np.asarray(cast_fn(there.mem.dtype, dtype)(got))
        if box.is_empty:
            return
        watch(fr, ATOMIC, box)
        write_box(box, np.asarray(fn(read_box(box), got)))

    return run_tile


def fold_in(mem: Memory, places: Where, given: Array, fn: Callable[[Any, Any], Any]) -> Array:
    """Elements become `fn` of what they were and what is given, one after another; what each one
    found."""
    data = mem.data
    if places and np.unique(np.ravel_multi_index(places, mem.shape)).size == given.size:
        old = data[places]
        data[places] = fn(old, given)
    else:
        old = np.empty(given.size, data.dtype)
        for k, new in enumerate(given):
            place = tuple(int(p[k]) for p in places)
            old[k] = data[place]
            data[place] = fn(old[k], new)
    mem.flush(data)
    return np.asarray(old)


def atomic_elements(
    fr: Frame, mem: Memory, idx: Where, value: Value, fn: Callable[[Any, Any], Any], op: Atomic
) -> Value:
    """One atomic per active lane, in lane order; the old values."""
    per_lane = fr.in_map or fr.mask is not None or value.ndim or any(i.ndim for i in idx)
    shape = fr.lanes if per_lane else ()
    at = tuple(np.broadcast_to(i, shape) for i in idx)
    _, live = inside(fr, mem, at, None)
    out = np.zeros(shape, mem.dtype.numpy)
    if live is NOTHING:
        return out[()]
    ok = np.broadcast_to(True if live is None else live, shape)
    places = tuple(i[ok].astype(np.int64) for i in at)
    given = np.broadcast_to(value, shape)[ok]
    if fr.watches:
        owners = fr.agent.lane_ids(fr)[ok] if per_lane else None
        if fr.agent.sanitize:
            found = 0 if fr.storing is None else np.broadcast_to(fr.storing, shape)[ok]
            padding.updated(fr, op, mem, places, found)
        fr.touch(ATOMIC, mem, places, owners)
    if op.result is None and op.op == "add" and mem.dtype.bits >= 32 and places:
        data = mem.data
        np.add.at(data, places, given)
        mem.flush(data)
    else:
        out[ok] = fold_in(mem, places, given, fn)
    return out[()]


# ── barriers, groups and fences ──────────────────────────────────────────────────────────────────


# ── barriers in shared memory ────────────────────────────────────────────────────────────────


def of_lane(value: Value, lane: int) -> int:
    return int(value[lane] if value.ndim else value)


def _places(fr: Frame, tile: TileRegion, lane: int) -> list[tuple[str, tuple[int, ...]]]:
    """The names and indices of a region's barriers, as thread `lane` sees it."""
    buffer = tile.buffer
    starts = [of_lane(s(fr), lane) for s in tile.starts]
    found = []
    for place in itertools.product(
        *(range(s, s + e) for s, e in zip(starts, extents_of(fr, tile), strict=True))
    ):
        name = buffer.name + (f"[{', '.join(map(str, place))}]" if place else "")
        if any(not 0 <= i < n for i, n in zip(place, buffer.static_shape, strict=True)):
            raise RunError(
                f"out-of-range: {name} is outside {buffer.name}, which has shape "
                f"{buffer.static_shape}",
            )
        found.append((name, place))
    return found


def home(fr: Frame, tile: TileRegion, lane: int) -> Block:
    """The block that a region's memory is in, for one thread."""
    block = fr.agent.block
    return block if tile.cta is None else block.cluster.block(of_lane(tile.cta(fr), lane))


def ranks_of(fr: Frame, mask: int) -> list[int]:
    """The blocks of the cluster that a multicast mask names."""
    blocks = len(fr.agent.block.cluster.blocks)
    ranks = [rank for rank in range(blocks) if mask >> rank & 1]
    if not ranks or mask >> blocks:
        raise RunError(f"multicast mask {mask:#x} names no block, or blocks outside the cluster")
    return ranks


def find_cells(
    builder: Builder, fr: Frame, tile: TileRegion, lane: int, block: Block | None = None
) -> Generator[Blocked | None, None, list[Cell]]:
    """The barriers of a region; waits for their initialisation where the compiler orders it."""
    block = home(fr, tile, lane) if block is None else block
    block.require_alive(tile.buffer.name)
    cells: list[Cell] = []
    for name, place in _places(fr, tile, lane):
        key = (tile.buffer.name, place)
        if key not in block.cells and not builder.explicit:
            yield Blocked(partial(block.cells.__contains__, key), lambda: "its initialisation")
        if key not in block.cells:
            raise RunError(
                f"barrier {name} is used before anything initialised it",
                fix="initialise it, then `fence barrier_init`, then synchronise, before its use",
            )
        cells.append(block.cells[key])
    return cells


def _where(fr: Frame, tile: TileRegion) -> list[tuple[Value, str]]:
    """What says which barriers a region stands for."""
    ranks = [] if tile.cta is None else [(tile.cta(fr), "a cluster rank")]
    return [*((s(fr), "a barrier's index") for s in tile.starts), *ranks]


@meaning(BarrierInit)
def run_barrier_init(op: BarrierInit, barrier: TileRegion, count: Eval, fr: Frame) -> None:
    agent = fr.agent
    party = agent.one(fr)
    if party is None:
        return
    block = agent.block
    number = uniform_int(fr, count(fr), "a barrier's count")
    if number <= 0:
        raise RunError("a barrier needs at least one arrival", got=number)
    where = "" if len(block.cluster.blocks) == 1 else f" of block {block.index}"
    for name, place in _places(fr, barrier, int(party.lanes[0])):
        cell = Cell(agent.clocks, name + where, number, int(party.ids[0]), block)
        block.cells[barrier.buffer.name, place] = cell
        agent.apart = True


@meaning(Arrive)
def run_arrive(
    builder: Builder, op: Arrive, barrier: TileRegion, count: Eval, bytes: Eval | None, fr: Frame
) -> Flow:
    agent, clocks = fr.agent, fr.agent.clocks
    times, size = count(fr), np.int64(0) if bytes is None else bytes(fr)
    given = [(times, "an arrival count"), (size, "a byte count")]
    for party in agent.parties(fr, [*_where(fr, barrier), *given]):
        many, lane = party.lanes.size, int(party.lanes[0])
        if builder.threads or op.by == "warps" or agent.partition.warps == 1:
            agent.end_reads(party)
        for cell in (yield from find_cells(builder, fr, barrier, lane)):
            remote = cell.home is not agent.block
            if builder.explicit:
                cell.require_ready(party.knows, fenced=remote)
            if remote:
                cell.remote.append((party, clocks.now, op))
            knowledge = clocks.release(party.ids, party.shares)
            cell.arrive(many * of_lane(times, lane), many * of_lane(size, lane), knowledge, op)
    yield None


@meaning(Wait)
@thread_meaning("wait_cluster")
def run_wait(builder: Builder, op: Op, barrier: TileRegion, phase: Eval, fr: Frame) -> Flow:
    agent, parity = fr.agent, phase(fr)
    for party in agent.parties(fr, [*_where(fr, barrier), (parity, "a phase")]):
        lane = int(party.lanes[0])
        wanted = of_lane(parity, lane)
        if wanted not in (0, 1):
            raise RunError("a phase is 0 or 1", got=wanted)
        for cell in (yield from find_cells(builder, fr, barrier, lane)):
            if builder.explicit:
                cell.require_ready(party.knows, fenced=False)
            yield None
            yield from cell.wait(wanted)
            if not builder.threads:
                cell.passed.append((party, agent.clocks.now, op))
            agent.clocks.learn(party.learns, cell.known)
            agent.apart = agent.apart or not party.whole


# ── barriers of threads ──────────────────────────────────────────────────────────────────────


@meaning(Sync)
def run_sync(op: Sync, id: Eval, fr: Frame) -> Flow:
    agent, cluster = fr.agent, fr.agent.block.cluster
    if agent.syncs_alone(fr, op):
        return
    party, meetings = agent.party(fr), agent.block.meetings
    if op.scope == "named":
        name = f"named barrier {uniform_int(fr, id(fr), 'an id')}"
        size = op.threads or party.size
    else:
        blocks = cluster.blocks if op.scope == "cluster" else [agent.block]
        size = sum(a.ids.size for block in blocks for a in block.agents)
        meetings = cluster.meetings if op.scope == "cluster" else meetings
        name = f"the {op.scope}'s barrier"
    meeting = meetings.get(name)
    if meeting is None:
        meeting = meetings[name] = Meeting(agent.clocks, size, name)
    if meeting.here == 0:
        meeting.threads = size
    if meeting.threads != size:
        raise RunError(
            f"{name} is used with different numbers of threads",
            expected=meeting.threads,
            got=size,
        )
    mine = meeting.join(party)
    yield None
    if not op.arrive:
        yield from meeting.wait(party, mine)
        agent.apart = agent.apart and not party.whole


@tile_meaning(Turn)
def run_turn(fr: Frame) -> None:
    """One agent stands for all warpgroups of the role: they come to it together."""
    if fr.is_partial:
        raise RunError("some threads of a role do not reach its turn")


# ── groups and fences ────────────────────────────────────────────────────────────────────────


@meaning(Commit)
def run_commit(op: Commit, fr: Frame) -> None:
    for groups in fr.agent.groups_of(fr, op.unit, "a commit of matrix instructions"):
        groups.commit()


@meaning(WaitGroup)
def run_wait_group(builder: Builder, op: WaitGroup, fr: Frame) -> Flow:
    agent = fr.agent
    for groups in agent.groups_of(fr, op.unit, "a wait for matrix instructions"):
        over = groups.wait(op.pending, op.read)
        agent.note_over(groups, over, read=op.read, strict=builder.explicit)
    yield None


@meaning(Fence)
def run_fence(op: Fence, fr: Frame) -> None:
    agent = fr.agent
    if op.kind == "proxy_async":
        agent.show_writes(fr)
    elif op.kind == "wgmma":
        agent.fenced = agent.tick()
    elif op.kind == "barrier_init":
        ids = agent.party(fr).ids
        for cell in agent.block.cells.values():
            if cell.fence is None and cell.maker in ids:
                cell.fence = agent.clocks.now
