"""What the stamps of a traced launch say (`passes/lower/stamp_ops`): who came to which op when, how
long an iteration of the main loop took, and where the model is off most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.inspect.simulate import *
from tilewright.passes.lower.stamp_ops import BACK, BLOCKS, END, Plan, computes, waits
from tilewright.passes.overlap import unit_times as rates
from tilewright.passes.overlap.unit_times import THREADS

UNWRITTEN = 0xCDCDCDCD
MOST = 4  # differences that are named
LONG = 0.05  # of an iteration: differences of less are not


@dataclass(frozen=True)
class Agent:
    """A warpgroup of a traced block: numbers of stamps, and at which cycle it came to each, from
    the block's first. The number is negative where it goes on with an op after a wait."""

    block: int
    role: str
    name: str
    sm: int
    began: int  # nanoseconds, of 32 bits
    sites: tuple[int, ...]
    clocks: tuple[int, ...]

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Stamp, start and end of each op that has ended, or waits; how often it began before."""
        seen: Counter[int] = Counter()
        for n, site in enumerate(self.sites[:-1]):
            seen[site] += 1
            if site != END:
                yield abs(site), self.clocks[n], self.clocks[n + 1], seen[abs(site)] - 1


def read(kernel: Kernel, grid: Sequence[int], words: np.ndarray[Any, Any]) -> list[Agent]:
    """The agents of a launch, block by block."""
    warps, total = kernel.warps, prod(grid)
    step = -(-total // BLOCKS)
    found: list[Agent] = []
    for index, block in enumerate(range(0, total, step)):
        first: int | None = None  # the block's first clock
        for role, name, warp in _agents(kernel, warps):
            section = words[index * warps + warp + 1]
            pairs = section[2:].reshape(-1, 2, 2)[::-1].reshape(-1, 2).astype(np.int64)
            sites, clocks = pairs[pairs[:, 0] != UNWRITTEN].T
            if not len(sites):
                continue
            # waits are stored before the op that they interrupt
            since = _signed(np.diff(clocks, prepend=clocks[0])).cumsum()
            order = since.argsort(kind="stable")
            first = int(clocks[order[0]]) if first is None else first
            since = since[order] + _signed(clocks[0] - first)
            told = tuple(_resumed(sites[order].tolist())), tuple(since.tolist())
            began, sm = map(int, section[0])
            found.append(Agent(block, role, name, sm, began, *told))
    return found


def _signed(cycles: Any) -> Any:
    """Differences of clocks, which have 32 bits and go round."""
    return (cycles + 2**31) % 2**32 - 2**31


def _resumed(sites: Sequence[int]) -> list[int]:
    """Numbers of stamps, where a wait ends that of the op before it."""
    found: list[int] = []
    for site in sites:
        before = -abs(found[-2]) if len(found) > 1 else END
        found.append(before if site == BACK else site)
    return found


def _agents(kernel: Kernel, warps: int) -> Iterator[tuple[str, str, int]]:
    """Role, name and first warp of each warpgroup, named as the model does."""
    seen: set[int] = set()
    parts = [(r.name, r.first, r.warps, r.instances) for r in walk_ops(kernel, Role)]
    for role, first, count, instances in parts or [("", 0, warps, 1)]:
        each = count // instances
        starts = [first + i * each + n for i in range(instances) for n in range(0, each, GROUP)]
        for number, warp in enumerate(starts):
            name = role or "warpgroup"
            if warp not in seen:
                seen.add(warp)
                yield role, f"{name} {number}" if len(starts) > 1 else name, warp


def about(op: Op) -> str:
    """What the time of an op counts as: what is waited for, or the line that is computed. Threads
    wait for products where they issue more of them, too."""
    match op:
        case Wait():
            return f"waits for {op.barrier.buffer.name}"
        case WaitGroup():
            return f"waits for {PRODUCTS if op.unit == 'wgmma' else MEMORY}"
        case Gemm(atom="wgmma"):
            return f"waits for {PRODUCTS}"
        case Sync():
            return f"waits for {EACH_OTHER}"
        case Turn():
            return f"waits for {TURNS}"
    return f"line {op.loc.line}" if op.loc is not None else type(op).__name__.lower()


def about_all(ops: Sequence[Op]) -> str:
    """The same of ops that share a stamp."""
    lines = sorted({op.loc.line for op in ops if op.loc is not None})
    alike = len(set(map(about, ops))) == 1 or len(lines) < 2
    return about(ops[0]) if alike else f"lines {lines[0]} … {lines[-1]}"


def longest(ops: Sequence[Op]) -> Op:
    """The op that stands for those that share its stamp."""
    return max(ops, key=rates.cycles)


class Loop:
    """The iterations of the modelled loop, as they were measured."""

    def __init__(self, run: Simulation, plan: Plan, agents: Sequence[Agent]) -> None:
        self.run, self.plan, self.agents = run, plan, agents
        self.chains: list[tuple[Agent, list[tuple[int, int]]]] = []
        for loop in walk_ops(run.kernel, For):
            if id(loop) in run.loops and id(loop) in plan.first:
                ops = {id(op) for op in walk_ops(loop)}
                inside = {n for n, site in enumerate(plan.sites, 1) if id(site[0]) in ops}
                for agent in agents:
                    self.chains += [
                        (agent, chain) for chain in _chains(agent, plan.first[id(loop)], inside)
                    ]

    def data(self, letter: Callable[[Op], str]) -> dict[str, Any] | None:
        """Plain data: an iteration's cycles, two of them as spans, and the differences."""
        steady = [(a, c[min(WARM, len(c) // 2) :]) for a, c in self.chains if c]
        if not steady:
            return None
        count = sum(len(chain) for _, chain in steady)
        total = sum(a.clocks[c[-1][1]] - a.clocks[c[0][0]] for a, c in steady)
        agent, chain = max(steady, key=lambda each: len(each[1]))
        middle = (len(chain) - 1) // 2
        start = agent.clocks[chain[middle][0]]
        end = agent.clocks[chain[min(middle + 1, len(chain) - 1)][1]]
        end = end if len(chain) > 1 else 2 * end - start
        return {
            "interval": round(total / count),
            "iterations": count,
            "blocks": len({a.block for a, _ in steady}),
            "block": agent.block,
            "length": end - start,
            "spans": drawn(self.agents, self.plan.sites, agent.block, (start, end), letter),
            "differences": self.differences(steady, total / count),
        }

    def differences(
        self, steady: Sequence[tuple[Agent, list[tuple[int, int]]]], interval: float
    ) -> list[dict[str, Any]]:
        """What takes longer, or less long, than modelled, in cycles of an iteration."""
        counts: dict[str, int] = {}
        took: dict[tuple[str, str], float] = {}
        for agent, chain in steady:
            counts[agent.role] = counts.get(agent.role, 0) + len(chain)
            for n in range(chain[0][0], chain[-1][1]):
                if agent.sites[n] != END:
                    key = agent.role, about_all(self.plan.sites[abs(agent.sites[n]) - 1])
                    took[key] = took.get(key, 0.0) + agent.clocks[n + 1] - agent.clocks[n]
        found: list[tuple[float, dict[str, Any]]] = []
        modelled = self.modelled()
        for role, what in {**took, **modelled}:
            if role not in counts:
                continue
            got = took.get((role, what), 0.0) / counts[role]
            want = modelled.get((role, what), 0.0)
            if abs(got - want) >= LONG * interval:
                figures = {"modelled": round(want), "measured": round(got)}
                each = {"role": role or "warpgroup", "what": what, **figures}
                found.append((abs(got - want), each))
        found.sort(key=lambda one: -one[0])
        return [each for _, each in found[:MOST]]

    def modelled(self) -> dict[tuple[str, str], float]:
        """Cycles of an iteration that the model's threads spend on ops, by role."""
        found: dict[tuple[str, str], float] = {}
        names = {
            id(inner): about_all(site)
            for site in self.plan.sites
            for op in site
            for inner in (walk_ops(op) if computes(op) else (op,))
        }
        agents = [who for who in self.run.agents if who.block == 0]
        for who in agents:
            window = steady_window(who.starts)
            same = sum(other.role == who.role for other in agents)
            for span in self.run.spans:
                if span.who == who.number and span.unit in (THREADS, WAITS):
                    inside = min(span.end, window[1]) - max(span.start, window[0])
                    key = who.role, names.get(id(span.op), about(span.op))
                    found[key] = found.get(key, 0.0) + max(0.0, inside) / window[2] / same
        return found


def steady_window(starts: Sequence[float]) -> tuple[float, float, int]:
    """From the start of one iteration to that of another, and how many lie between: not the first
    ones, where there are enough."""
    last = len(starts) - 1
    first = WARM if last > WARM else min(1, last - 1)
    return starts[first], starts[last], last - first


def _chains(agent: Agent, first: int, inside: set[int]) -> Iterator[list[tuple[int, int]]]:
    """Iterations without a pause, as places of the stamps that begin and end them."""
    chain: list[tuple[int, int]] = []
    begun: int | None = None
    for n, site in enumerate(agent.sites):
        if site == first:
            if begun is not None:
                chain.append((begun, n))
            begun = n
        elif site != END and abs(site) not in inside:
            yield chain
            chain, begun = [], None
    yield chain


def drawn(
    agents: Sequence[Agent],
    sites: Sequence[Sequence[Op]],
    block: int,
    window: tuple[int, int],
    letter: Callable[[Op], str],
) -> list[dict[str, Any]]:
    """What a block's warpgroups were at in a window, as the model's spans are told."""
    start, end = window
    return [
        {
            "role": agent.name,
            "unit": "clock",
            "statement": "." if waits(op := longest(sites[site - 1])) else letter(op),
            "for": about_all(sites[site - 1]),
            "start": since - start,
            "end": until - start,
        }
        for agent in agents
        if agent.block == block
        for site, since, until, _ in agent.spans()
        if until > start and since < end
    ]
