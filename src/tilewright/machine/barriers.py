"""Meaning of barriers, groups and fences. `sync.py` has what they do, agents say for whom."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from functools import partial

import numpy as np

from tilewright.machine.core import *
from tilewright.support.errors import RunError

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
    party = agent.one(fr, op)
    if party is None:
        return
    block = agent.block
    number = uniform_int(fr, count(fr), "a barrier's count")
    if number <= 0:
        raise RunError("a barrier needs at least one arrival", got=str(number))
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
            raise RunError("a phase is 0 or 1", got=str(wanted))
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
            expected=str(meeting.threads),
            got=str(size),
        )
    mine = meeting.join(party)
    yield None
    if not op.arrive:
        yield from meeting.wait(party, mine)
        agent.apart = agent.apart and not party.whole


@tile_meaning(Turn)
def run_turn(op: Turn, fr: Frame) -> None:
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
