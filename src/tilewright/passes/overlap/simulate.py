"""A scheduled kernel's blocks on one multiprocessor, event by event: who runs, who waits for whom.

Every warpgroup of every resident block is an agent that walks its ops in order: a Python generator
that yields the time, or the signal, at which it goes on. Agents share three units. The tensor core
runs products one after the other, as they are issued. Threads share issue slots: a warpgroup alone
fills `SOLO` of them. Copies come one after the other at the rate of memory, and are there after its
latency. Barriers, groups, turns and named barriers are what they are in the program; memory
has no contents. `unit_times` has the numbers, `steady_loop` the loop that is asked about: the walk
ends where every agent that has it has run `ROUNDS` of its iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.ir.buffer import Region, Space
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Arrive,
    Atomic,
    BarrierInit,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Program,
    Reduce,
    Relayout,
    Role,
    Scan,
    Store,
    Sync,
    Wait,
    bodies,
    walk_ops,
)
from tilewright.ir.target import Target
from tilewright.passes.layout.matrix_tiles import shape_of, split_of
from tilewright.passes.overlap import unit_times as rates
from tilewright.passes.overlap.simulated_agents import (
    COPIES,
    GROUP,
    WARP,
    Over,
    Span,
    Walk,
    Who,
    bytes_of,
)
from tilewright.passes.overlap.simulated_units import Barrier, Clock, Lane, Signal, Slots, Steps
from tilewright.passes.overlap.steady_loop import (
    ENOUGH,
    Env,
    computing_loops,
    sharing,
    steady_loop,
    trips,
    value,
)
from tilewright.support.errors import CompileError

EVENTS = 20_000  # give up


@dataclass(frozen=True)
class Run:
    """What a walk has found: of the `crew`, `agents` are those who run the loop. By an op's id,
    `sharing`: how many blocks read the same; `costs`: cycles of (tensor core, threads)."""

    loop: For
    crew: list[Who]
    agents: list[Who]
    spans: list[Span]
    end: float
    sharing: dict[int, float]
    costs: dict[int, tuple[float, float]]
    trip: int


class Simulation:
    """The multiprocessor: its units, barriers and agents, and what has happened."""

    def __init__(
        self,
        program: Program,
        kernel: Kernel,
        target: Target,
        blocks: int,
        sizes: Mapping[str, int],
    ) -> None:
        self.kernel, self.target, self.blocks = kernel, target, blocks
        self.chip, self.sizes = target.chip, sizes
        self.clock = Clock()
        self.tensor, self.memory = Lane(self.clock), Lane(self.clock)
        self.slots = Slots(self.clock)
        self.barriers: dict[tuple[int, str, int], Barrier] = {}
        self.counts: dict[str, float] = {}
        self.meetings: dict[tuple[Any, ...], tuple[float, Signal]] = {}
        self.turns: dict[tuple[int, str, int], list[int]] = {}
        self.turned = Signal()
        self.spans: list[Span] = []
        self.agents: list[Who] = []
        self.open: set[int] = set()  # agents that have iterations to go
        self.known: Env = {}
        self.costs: dict[int, tuple[float, float]] = {}
        self.quiet: dict[int, bool] = {}
        self.partners: dict[int, bool] = {}
        self.roles = list(walk_ops(kernel.body, Role))
        self.touches: dict[int, frozenset[str]] = {}
        self.sharing: dict[int, float] = {}
        for dim in program.dims:
            many = max(ENOUGH // max(dim.multiple_of, 1), 1) * max(dim.multiple_of, 1)
            self.known[dim.var] = sizes.get(dim.var.name, min(max(many, dim.min), dim.max or many))
        for op in walk_ops(kernel):
            if isinstance(op, BarrierInit):
                self.counts[op.barrier.buffer.name] = value(op.count, self.known)

    def run(self) -> Run | None:
        found = steady_loop(self.kernel, self.known)
        if found is None:
            return None
        self.loop, self.env, self.trip = found
        self.loops = {id(self.loop), *self.others()}
        running = self.chip.multiprocessors * self.blocks
        self.sharing = sharing(self.kernel, self.env, running, set(self.sizes))
        for block in range(self.blocks):
            for who in self.crew(block):
                self.agents.append(who)
                role = self.role_of(who)
                main = role is None or any(id(op) in self.loops for op in walk_ops(role))
                self.open |= {who.number} if main else set()
                self.clock.at(0.0, self.agent(who))
        while self.clock.queue and self.open and self.clock.count < EVENTS:
            self.clock.step()
        agents = [w for w in self.agents if len(w.starts) > 1]
        # instances of a role that others have run to the end may have their turn later
        over = {(w.block, w.role) for w in agents if w.number not in self.open}
        stuck = [w for w in self.agents if w.number in self.open and (w.block, w.role) not in over]
        if stuck or not agents:
            return None  # it waits for something that is not modelled
        return Run(
            self.loop, self.agents, agents, self.spans, self.clock.now, self.sharing, self.costs,
            self.trip,
        )  # fmt: skip

    def role_of(self, who: Who) -> Role | None:
        return next((r for r in self.roles if r.name == who.role), None)

    def others(self) -> Iterator[int]:
        """Of roles that compute in step with the loop, but in one of their own, that loop."""
        for role in self.roles:
            own = [loop for loop in computing_loops(role.body) if self.partner(loop)]
            if own and not _holds(role, self.loop):
                yield id(own[0])

    def partner(self, op: For) -> bool:
        """Whether a loop has to do with the one that is asked about: both name a barrier."""
        if id(op) not in self.partners:
            mine, asked = _barriers(op), _barriers(self.loop)
            self.partners[id(op)] = bool(mine & asked) or _holds(op, self.loop)
        return self.partners[id(op)]

    def crew(self, block: int) -> Iterator[Who]:
        parts: list[tuple[str, int, int]] = [(r.name, r.warps, r.instances) for r in self.roles]
        if not parts:
            parts = [("", max(1, prod(self.kernel.threads) // WARP), 1)]
        first = len(self.agents)
        for name, warps, instances in parts:
            each = max(1, warps // max(1, instances))
            peers = -(-each // GROUP)
            for instance in range(instances):
                for place in range(peers):
                    here = min(GROUP, each - place * GROUP)
                    yield Who(first, name, block, instance, place, peers, here, place == 0)
                    first += 1

    # what ops take

    def cost(self, op: Op) -> tuple[float, float]:
        """Cycles of (tensor core, threads), of the whole block's op."""
        if id(op) not in self.costs:
            self.costs[id(op)] = self._cost(op)
        return self.costs[id(op)]

    def _cost(self, op: Op) -> tuple[float, float]:
        if isinstance(op, Gemm):
            return self._product(op)
        if isinstance(op, (For, If)):
            turns = len(trips(op, self.env)) if isinstance(op, For) else 1
            inner = [self.cost(each) for body in bodies(op) for each in body]
            return turns * sum(t for t, _ in inner), turns * sum(h for _, h in inner)
        if isinstance(op, (Map, Reduce, Copy, Store, Fill, Scan, Relayout, Atomic, Intrinsic)):
            try:
                return 0.0, max(rates.cycles(op), self.through_shared(op))
            except (CompileError, TypeError, ValueError):
                return 0.0, 1.0
        return 0.0, 0.0

    def _product(self, op: Gemm) -> tuple[float, float]:
        m, n, k = shape_of(op)
        bits = op.a.dtype.bits
        if op.atom == "wgmma":
            held = op.c.buffer.layout
            threads = held.threads if isinstance(held, Fragment) else WARP * GROUP
            split = split_of(op, threads, self.target)
            width = split.n if split is not None else min(n, 256)
            a_shared = op.a.buffer.space is Space.SHARED
            return rates.warpgroup_cycles(m, n, k, bits, width, a_shared), 0.0
        if op.atom == "mma":
            return m * n * k * bits / 16 / self.chip.warp_products, 0.0
        return 0.0, m * n * k / rates.LANES

    def through_shared(self, op: Op) -> float:
        if not isinstance(op, Copy):
            return 0.0
        sides = [r for r in (op.src, op.dst) if r.buffer.space is Space.SHARED]
        return sum(bytes_of(r) for r in sides) / rates.SHARED_BYTES

    def move(self, who: Who, op: Op, size: float) -> tuple[float, float]:
        """From or to global memory: when it is through, and when it is there."""
        shared = self.sharing.get(id(op), 1.0)
        time = max(size / shared / self.chip.dram_bytes, size / self.chip.l2_bytes)
        start, end = self.memory.take(time)
        self.spans.append(Span(who.number, COPIES, op, start, end, end - start, size))
        return end, end + rates.LATENCY

    # agents

    def agent(self, who: Who) -> Steps:
        walk = Walk(self, who, dict(self.env))
        with suppress(Over):
            yield from walk.body(self.kernel.body)
        self.open.discard(who.number)

    def barrier(self, who: Who, region: Region, env: Env) -> Barrier:
        name = region.buffer.name
        sizes = [int(value(s, env)) for s in region.buffer.shape]
        index = 0
        for start, size in zip(region.starts, sizes, strict=True):
            index = index * size + int(value(start, env))
        key = (who.block, name, index)
        if key not in self.barriers:
            found = self.barriers[key] = Barrier()
            found.count = found.left = self.counts.get(name, 1)
        return self.barriers[key]

    def arrive(self, barrier: Barrier, count: float, size: float = 0.0) -> None:
        barrier.left -= count
        barrier.bytes += size
        if barrier.left <= 0.001 and abs(barrier.bytes) < 0.5:
            barrier.phases += 1
            barrier.left = barrier.count
            self.clock.fire(barrier)

    def meet(self, key: tuple[Any, ...], share: float, whole: float) -> Signal | None:
        """A meeting of agents that come with `share` each: what to wait for, or None for the one
        who completes it."""
        so_far, signal = self.meetings.get(key, (0.0, Signal()))
        if so_far + share >= whole - 0.001:
            self.meetings.pop(key, None)
            self.clock.fire(signal)
            return None
        self.meetings[key] = (so_far + share, signal)
        return signal


def _holds(op: Op, inner: Op) -> bool:
    return any(each is inner for each in walk_ops(op))


def _barriers(op: Op) -> set[str]:
    found = set()
    for inner in walk_ops(op):
        region = inner.barrier if isinstance(inner, (Wait, Arrive, Copy)) else None
        if region is not None:
            found.add(region.buffer.name)
        elif isinstance(inner, Sync) and inner.id is not None:
            found.add(f"named {inner.id}")
    return found


def simulate(
    program: Program,
    kernel: Kernel,
    target: Target,
    blocks: int = 1,
    sizes: Mapping[str, int] | None = None,
) -> Run | None:
    """`kernel` on one multiprocessor with `blocks` of its blocks; `sizes`: those known at launch.
    None where it has no loop to ask about, or waits for something that is not modelled."""
    return Simulation(program, kernel, target, blocks, sizes or {}).run()
