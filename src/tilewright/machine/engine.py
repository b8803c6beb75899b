"""Running kernels: blocks in some order, the agents of a cluster interleaved.

Block order is shuffled by the seed, except where results may depend on it: those kernels run their
blocks in linear order, which is what atomics mean. The blocks of a cluster run together.
Asynchronous ops complete at moments of the scheduler's choice, mostly as late as waits allow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod
from typing import Any

from tilewright.ir.op import Body, Kernel, Role, bodies
from tilewright.machine.conflicts import BlockRaces
from tilewright.machine.postmortem import describe, tell
from tilewright.machine.state import WARP, Agent, Cluster, Compiled, Crew, Frame, Launch
from tilewright.support.errors import RunError

NOBODY: Any = None

# ── crews ────────────────────────────────────────────────────────────────────────────────────


def outer_roles(body: Body) -> Iterator[Role]:
    for op in body:
        if isinstance(op, Role):
            yield op
        else:
            for inner in bodies(op):
                yield from outer_roles(inner)


def find_crews(kernel: Kernel, explicit: bool, parts: Callable[[Role], int]) -> list[Crew]:
    """The block's warps, cut wherever an outermost role or one of its parts begins or ends."""
    total = -(-prod(kernel.threads) // WARP)
    roles = list(outer_roles(kernel.body))
    cuts = {0, total}
    for role in roles:
        if role.first + role.warps > total:
            raise RunError(
                f"role {role.name} uses warps up to {role.first + role.warps - 1}",
                loc=role.loc,
                got=f"a kernel of {total} warps",
            )
        share = max(role.warps // parts(role), 1)
        cuts |= {role.first + k * share for k in range(parts(role) + 1)}
    crews = []
    for first, last in pairwise(sorted(cuts)):
        names = []
        for role in roles:
            if role.first <= first < role.first + role.warps:
                share = role.warps // parts(role)
                if last - first < share:
                    if explicit:
                        raise RunError(
                            f"role {role.name} is cut in two by another role's warps",
                            loc=role.loc,
                            fix="let roles cover equal or disjoint ranges of warps",
                        )
                    continue  # its agents come together for it (joint.py)
                number = (first - role.first) // share
                label = role.name if parts(role) == 1 else f"{role.name}[{number}]"
                names += [label] if label not in names else []
        idle = "warps outside roles" if roles else "all threads"
        crews.append(Crew(first, last - first, "/".join(names) or idle))
    return crews


# ── launches ─────────────────────────────────────────────────────────────────────────────────


def run_kernel(launch: Launch, compiled: Compiled, rng: random.Random) -> None:
    probe = Frame(NOBODY, ())
    probe.vars = dict(launch.values)
    grid = tuple(int(g(probe)) for g in compiled.grid)
    if any(n <= 0 for n in grid):
        return
    kernel = compiled.kernel
    shape = ((kernel.cluster or ()) + (1,) * len(grid))[: len(grid)]
    if any(n % c for n, c in zip(grid, shape, strict=True)):
        raise RunError(f"a grid of {grid} does not divide into clusters of {shape}", loc=kernel.loc)
    counts = tuple(n // c for n, c in zip(grid, shape, strict=True))
    order = list(range(prod(counts)))
    if not compiled.in_order:
        rng.shuffle(order)
    launch.races = BlockRaces(prod(grid))
    for number in order:
        run_cluster(_cluster(launch, compiled, _unravel(number, counts), shape, grid), rng)
    for memory in (*launch.memories.values(), *launch.made.values()):
        memory.storage.accesses.clear()  # the end of a kernel is the end of all that it began


def _cluster(
    launch: Launch, compiled: Compiled, corner: tuple[int, ...], shape: tuple[int, ...],
    grid: tuple[int, ...],
) -> Cluster:  # fmt: skip
    cluster = Cluster(launch, compiled, prod(shape))
    for rank in range(prod(shape)):
        inner = _unravel(rank, shape)
        index = tuple(c * s + i for c, s, i in zip(corner, shape, inner, strict=True))
        block = compiled.make_block(cluster, index, rank, _ravel(index, grid))
        cluster.blocks.append(block)
        block.agents = [compiled.make_agent(block, crew) for crew in compiled.crews]
        for agent in block.agents:
            enter(agent)
            agent.flow = compiled.body(agent.frame)
    return cluster


def enter(agent: Agent) -> None:
    """Give the agent what it knows at the start: indices, tensors, watchers."""
    block, fr = agent.block, agent.frame
    launch, compiled = block.cluster.launch, block.cluster.compiled
    kernel = compiled.kernel
    fr.vars.update(launch.values)
    for var, i in zip(kernel.blocks, block.index, strict=True):
        fr.vars[var.name] = var.dtype.numpy.type(i)
    rest = agent.ids
    for var, n in zip(kernel.thread_vars, kernel.threads, strict=True):
        fr.vars[var.name] = (rest % n).astype(var.dtype.numpy)
        rest = rest // n
    if kernel.rank is not None:
        fr.vars[kernel.rank.name] = kernel.rank.dtype.numpy.type(block.rank)
    fr.bufs.update(launch.memories)
    fr.watches = compiled.watches(agent)


def _unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a linear number, axis 0 fastest."""
    out = []
    for n in shape:
        out.append(number % n)
        number //= n
    return tuple(out)


def _ravel(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    number = 0
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        number = number * n + i
    return number


# ── clusters ─────────────────────────────────────────────────────────────────────────────────


def run_cluster(cluster: Cluster, rng: random.Random) -> None:
    """Interleave the agents until all are done."""
    try:
        _interleave(cluster, rng)
    except RunError as error:
        if cluster.running is not None:
            tell(error, cluster.running)
        raise


def _interleave(cluster: Cluster, rng: random.Random) -> None:
    live = [agent for block in cluster.blocks for agent in block.agents]
    if len(live) == 1 and not cluster.compiled.scheduled:
        cluster.running = live[0]
        for why in live[0].flow:
            if why is not None and not why.ready():
                raise _deadlock(cluster, live)
        return
    pending = cluster.pending
    while live:
        ready = [a for a in live if a.blocked is None or a.blocked.ready()]
        # mostly as late as the waits allow, so that nothing works by luck
        if pending and (not ready or rng.random() < 0.1):
            pending[rng.randrange(len(pending))].complete()
            continue
        if not ready:
            raise _deadlock(cluster, live)
        agent = ready[rng.randrange(len(ready))] if len(ready) > 1 else ready[0]
        agent.blocked = None
        cluster.running = agent
        try:
            agent.blocked = next(agent.flow)
        except StopIteration:
            agent.done = True
            live.remove(agent)
            agent.leave()
        cluster.running = None
    while pending:
        pending[0].complete()


def _deadlock(cluster: Cluster, live: list[Agent]) -> RunError:
    cluster.running = None
    notes = []
    for agent in live:
        why = agent.blocked.why() if agent.blocked is not None else "nothing"
        notes.append(f"{agent} stands in {describe(agent.frame.op)}, waiting for {why}")
    first = live[0].frame.op
    return RunError(
        "deadlock: no agent can go on",
        loc=first.loc if first is not None else None,
        notes=tuple(notes),
    )
