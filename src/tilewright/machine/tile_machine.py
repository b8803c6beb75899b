"""Running a program: kernels in order, blocks in some order, the agents of a block interleaved.

A block is run by *agents*. Where a kernel has roles, each outermost role instance is one agent, a
coroutine over the whole kernel body that passes over the roles of others; warps in no role form
agents too. Otherwise the block is one agent. The blocks of a cluster run together.

Block order is shuffled by the seed, except where results may depend on it: kernels with float
atomics or atomics with results run their blocks in linear order, which is what atomics mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Buffer
from tilewright.ir.messages import label_kernel
from tilewright.ir.op import (
    Arrive,
    Atomic,
    BarrierInit,
    Body,
    Commit,
    Copy,
    Gemm,
    Kernel,
    Op,
    Role,
    Sync,
    Wait,
    WaitGroup,
    bodies,
    walk_ops,
)
from tilewright.machine import events, flow, ops, threads  # noqa: F401  (fill the table)
from tilewright.machine.evaluate import Evaluator
from tilewright.machine.hazards import Clocks, HazardWatch
from tilewright.machine.lanes import Frame, Watch
from tilewright.machine.meaning import Blocked, Builder, Run, Step
from tilewright.machine.memory import Array, Memory
from tilewright.machine.postmortem import tell
from tilewright.machine.sanitizer import BlockRaces, Sanitizer
from tilewright.support.errors import RunError, SanitizerWarning

WARP = 32


@dataclass(frozen=True)
class Options:
    sanitize: bool = False
    nan: bool = False
    seed: int = 0
    explicit: bool | None = None


# ── what is known about a kernel before it runs ──────────────────────────────────────────────


def is_scheduled(kernel: Kernel) -> bool:
    """The kernel places asynchronous operations or roles itself."""
    return any(_schedules(op) for op in walk_ops(kernel))


def _schedules(op: Op) -> bool:
    if isinstance(op, (Role, BarrierInit, Arrive, Wait, Commit, WaitGroup)):
        return True
    if isinstance(op, Sync):
        return op.scope == "named"
    atom = getattr(op, "atom", None)
    return atom in ATOMS and ATOMS[atom].is_async


def is_explicit(kernel: Kernel) -> bool:
    """Every instruction is chosen, so every synchronisation must be there too."""
    tiles = [op for op in walk_ops(kernel) if isinstance(op, (Copy, Gemm))]
    return bool(tiles) and all(op.atom is not None for op in tiles)


def outer_roles(body: Body) -> Iterator[Role]:
    for op in body:
        if isinstance(op, Role):
            yield op
        else:
            for inner in bodies(op):
                yield from outer_roles(inner)


@dataclass(frozen=True)
class Crew:
    """The warps of one agent, and what to call it."""

    first: int
    warps: int
    name: str


def instances_of(role: Role) -> int:
    return role.instances


def find_crews(
    kernel: Kernel, explicit: bool, parts: Callable[[Role], int] = instances_of
) -> list[Crew]:
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
    edges = sorted(cuts)
    crews = []
    for first, last in pairwise(edges):
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


def needs_block_order(kernel: Kernel) -> bool:
    for op in walk_ops(kernel):
        if isinstance(op, Atomic) and (op.result is not None or op.dst.buffer.dtype.is_float):
            return True
        if isinstance(op, Copy) and op.reduce is not None and op.dst.buffer.dtype.is_float:
            return True
    return False


class CompiledKernel:
    """A kernel with its ops turned into steps."""

    def __init__(
        self, kernel: Kernel, options: Options, wrap: Callable[[Step], Step] | None = None
    ) -> None:
        kernel = label_kernel(kernel)
        self.kernel = kernel
        self.scheduled = is_scheduled(kernel) or prod(kernel.cluster) > 1
        explicit = options.explicit
        if explicit is None:
            explicit = self.scheduled and is_explicit(kernel)
        self.explicit = explicit
        self.scheduled = self.scheduled or explicit
        self.evaluate = Evaluator(sanitize=options.sanitize, nan=options.nan)
        builder = Builder(kernel, self.evaluate, explicit=explicit, wrap=wrap)
        self.grid = [self.evaluate(g) for g in kernel.grid]
        self.body: Run = builder.body(kernel.body)
        self.crews = find_crews(kernel, explicit)
        self.in_order = needs_block_order(kernel)
        self.families = builder.families


# ── what runs ────────────────────────────────────────────────────────────────────────────────


class Agent:
    """One coroutine over the kernel's body: a role instance, or a whole block."""

    def __init__(self, block: Block, crew: Crew, sanitize: bool) -> None:
        self.block = block
        self.crew = crew
        self.sanitize = sanitize
        self.first_warp = crew.first
        self.last_warp = crew.first + crew.warps - 1
        total = prod(block.cluster.compiled.kernel.threads)
        self.ids = np.arange(
            crew.first * WARP, min((crew.first + crew.warps) * WARP, total), dtype=np.int32
        )
        self.blocked: Blocked | None = None
        self.clocks = Clocks(self)
        self.frame = Frame(self, (self.ids.size,))
        self._time = 0
        self.flow: Iterator[Any] = iter(())
        self.done = False
        self.in_turn = False
        self.joint = False  # stands for several agents that came together

    def tick(self) -> int:
        """A moment later than all before, in this agent's life."""
        self._time += 1
        return self._time

    def lane_ids(self, fr: Frame) -> Array:
        own = fr.lanes[: len(fr.grid)]  # the rest are axes of a tile that each lane handles
        ids = np.arange(prod(own)).reshape(own) if fr.in_map else self.ids
        return np.broadcast_to(ids.reshape(own + (1,) * (len(fr.lanes) - len(own))), fr.lanes)

    def peer_memory(self, fr: Frame, rank: int, name: str) -> Memory:
        return self.block.cluster.block(rank, fr).existing(name, fr)

    def __str__(self) -> str:
        return f"{self.crew.name} of block {self.block.index}"


class Block:
    """One block: its shared memory and its agents."""

    def __init__(self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int) -> None:
        self.cluster = cluster
        self.index = index
        self.rank = rank
        self.linear = linear
        self.shared: dict[str, Memory] = {}
        self.spread: dict[str, Memory] = {}
        self.cells: dict[tuple[str, tuple[int, ...]], events.Cell] = {}
        self.meetings: dict[Any, events.Meeting] = {}
        self.incoming: list[Any] = []
        self.exited = False
        self.agents: list[Agent] = []

    def shared_memory(self, buffer: Buffer, make: Callable[[], Memory]) -> Memory:
        found = self.shared.get(buffer.name)
        if found is None:
            found = self.shared[buffer.name] = make()
            found.storage.owner = self
        return found

    def spread_memory(self, buffer: Buffer, make: Callable[[], Memory]) -> Memory:
        """A fragment over all threads of the block."""
        if buffer.name not in self.spread:
            self.spread[buffer.name] = make()
        return self.spread[buffer.name]

    def existing(self, name: str, fr: Frame) -> Memory:
        if name not in self.shared:
            raise RunError(
                f"{name} does not exist yet in block {self.index}", loc=fr.loc(),
                fix="synchronise the cluster before using another block's memory",
            )  # fmt: skip
        return self.shared[name]


class Cluster:
    """Blocks that run together; a cluster of one where the kernel has none."""

    def __init__(self, launch: Launch, compiled: CompiledKernel) -> None:
        self.launch = launch
        self.compiled = compiled
        self.blocks: list[Block] = []
        self.pending: list[events.Transfer] = []
        self.meetings: dict[Any, events.Meeting] = {}
        self.running: Agent | None = None  # who is to be asked when something fails

    def block(self, rank: int, fr: Frame) -> Block:
        if not 0 <= rank < len(self.blocks):
            raise RunError(
                f"there is no block {rank} in a cluster of {len(self.blocks)}", loc=fr.loc()
            )
        return self.blocks[rank]

    def run(self, rng: random.Random) -> None:
        """Interleave the agents until all are done."""
        try:
            self._run(rng)
        except RunError as error:
            if self.running is not None:
                tell(error, self.running)
            raise

    def _run(self, rng: random.Random) -> None:
        live = [agent for block in self.blocks for agent in block.agents]
        if len(live) == 1 and not self.compiled.scheduled:
            agent = self.running = live[0]
            for why in agent.flow:
                if why is not None and not why.ready():
                    raise self.deadlock(live)
            return
        while live:
            ready = [a for a in live if a.blocked is None or a.blocked.ready()]
            # mostly as late as the waits allow, so that nothing works by luck
            if self.pending and (not ready or rng.random() < 0.1):
                events.complete(self.pending[rng.randrange(len(self.pending))])
                continue
            if not ready:
                raise self.deadlock(live)
            agent = ready[rng.randrange(len(ready))] if len(ready) > 1 else ready[0]
            agent.blocked = None
            self.running = agent
            try:
                agent.blocked = next(agent.flow)
            except StopIteration:
                agent.done = True
                live.remove(agent)
                events.agent_exits(agent)
            self.running = None
        while self.pending:
            events.complete(self.pending[0])

    def deadlock(self, live: list[Agent]) -> RunError:
        self.running = None
        notes = []
        for agent in live:
            op = agent.frame.op
            what = type(op).__name__ if op is not None else "?"
            where = f" at {op.loc}" if op is not None and op.loc is not None else ""
            why = agent.blocked.why() if agent.blocked is not None else "nothing"
            notes.append(f"{agent} stands in {what}{where}, waiting for {why}")
        first = live[0].frame.op
        return RunError(
            "deadlock: no agent can go on",
            loc=first.loc if first is not None else None,
            notes=tuple(notes),
        )


@dataclass
class Launch:
    """One run of a program."""

    memories: dict[str, Memory]
    values: dict[str, Any]
    options: Options
    say: Callable[[str], None]
    races: BlockRaces | None = None
    made: dict[str, Memory] = field(default_factory=dict)
    warnings: dict[Any, SanitizerWarning] = field(default_factory=dict)  # once per op

    def global_memory(self, buffer: Buffer, make: Callable[[], Memory]) -> Memory:
        if buffer.name not in self.made:
            self.made[buffer.name] = make()
        return self.made[buffer.name]

    def run(self, compiled: CompiledKernel, rng: random.Random) -> None:
        probe = Frame(_NOBODY, ())
        probe.vars = dict(self.values)
        grid = tuple(int(g(probe)) for g in compiled.grid)
        if any(n <= 0 for n in grid):
            return
        shape = compiled.kernel.cluster or (1,) * len(grid)
        shape = shape + (1,) * (len(grid) - len(shape))
        if any(n % c for n, c in zip(grid, shape, strict=False)):
            raise RunError(
                f"a grid of {grid} does not divide into clusters of {shape}",
                loc=compiled.kernel.loc,
            )
        counts = tuple(n // c for n, c in zip(grid, shape, strict=False))
        order = list(range(prod(counts)))
        if not compiled.in_order:
            rng.shuffle(order)
        if self.options.sanitize:
            self.races = BlockRaces(prod(grid))
        for number in order:
            corner = unravel(number, counts)
            self.cluster(compiled, corner, shape[: len(grid)], grid).run(rng)
        for memory in (*self.memories.values(), *self.made.values()):
            memory.storage.accesses.clear()  # the end of a kernel is the end of all that it began

    def cluster(
        self, compiled: CompiledKernel, corner: tuple[int, ...], shape: tuple[int, ...],
        grid: tuple[int, ...],
    ) -> Cluster:  # fmt: skip
        cluster = Cluster(self, compiled)
        for rank in range(prod(shape)):
            inner = unravel(rank, shape)
            index = tuple(c * s + i for c, s, i in zip(corner, shape, inner, strict=True))
            linear = ravel(index, grid)
            block = Block(cluster, index, rank, linear)
            cluster.blocks.append(block)
            block.agents = [Agent(block, c, self.options.sanitize) for c in compiled.crews]
            for agent in block.agents:
                self.prepare(agent, compiled)
        return cluster

    def prepare(self, agent: Agent, compiled: CompiledKernel) -> None:
        self.enter(agent, compiled)
        agent.flow = compiled.body(agent.frame)

    def enter(self, agent: Agent, compiled: CompiledKernel) -> None:
        """Give the agent what it knows at the start: indices, tensors, watchers."""
        kernel, block, fr = compiled.kernel, agent.block, agent.frame
        fr.vars.update(self.values)
        for var, i in zip(kernel.blocks, block.index, strict=True):
            fr.vars[var.name] = var.dtype.numpy.type(i)
        rest = agent.ids
        for var, n in zip(kernel.thread_vars, kernel.threads, strict=True):
            fr.vars[var.name] = (rest % n).astype(var.dtype.numpy)
            rest = rest // n
        if kernel.rank is not None:
            fr.vars[kernel.rank.name] = kernel.rank.dtype.numpy.type(block.rank)
        fr.bufs.update(self.memories)
        watches: list[Watch] = []
        if compiled.scheduled:
            watches.append(HazardWatch(agent, strict=compiled.explicit))
        if self.options.sanitize and self.races is not None:
            watches.append(Sanitizer(agent, self.races, threads=not compiled.scheduled))
        if watches:
            fr.watch = watches[0] if len(watches) == 1 else Both(watches)


class Both(Watch):
    """Several watchers at once."""

    def __init__(self, watches: list[Watch]) -> None:
        self.watches = watches
        self.exact = any(w.exact for w in watches)

    def read(self, *args: Any) -> None:
        for w in self.watches:
            w.read(*args)

    def write(self, *args: Any) -> None:
        for w in self.watches:
            w.write(*args)

    def update(self, *args: Any) -> None:
        for w in self.watches:
            w.update(*args)

    def atomic(self, *args: Any) -> None:
        for w in self.watches:
            w.atomic(*args)

    def enter_map(self, fr: Frame) -> None:
        for w in self.watches:
            w.enter_map(fr)

    def leave_map(self, fr: Frame) -> None:
        for w in self.watches:
            w.leave_map(fr)

    def synced(self, fr: Frame, scope: str) -> None:
        for w in self.watches:
            w.synced(fr, scope)

    def met_inside(self, fr: Frame, op: Op) -> bool:
        return any(tuple(w.met_inside(fr, op) for w in self.watches))


_NOBODY: Any = None


def unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a linear number, axis 0 fastest."""
    out = []
    for n in shape:
        out.append(number % n)
        number //= n
    return tuple(out)


def ravel(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    number = 0
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        number = number * n + i
    return number
