"""A scheduled kernel's blocks on one multiprocessor, event by event: who runs, who waits for whom.

Every warpgroup of every resident block is an agent that walks its ops in order: a Python generator
that yields the time, or the signal, at which it goes on. Barriers, groups, turns and named barriers
are what they are in the program; memory has no contents. `unit_times` has the numbers,
`multiprocessor` the units, `steady_loop` the loop that is asked about: the walk ends where every
agent that has it has run `ROUNDS` of its iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from tilewright.inspect.multiprocessor import GROUP, WARP, Multiprocessor, Span, Steps, Who, holds
from tilewright.inspect.simulated_agents import Over, Walk
from tilewright.inspect.steady_loop import computing_loops, sharing, steady_loop
from tilewright.ir.op import For, Kernel, Program, Role, walk_ops
from tilewright.ir.target import Target

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


class Simulation(Multiprocessor):
    """The agents of a kernel on the multiprocessor."""

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
            if own and not holds(role, self.loop):
                yield id(own[0])

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

    # agents

    def agent(self, who: Who) -> Steps:
        walk = Walk(self, who, dict(self.env))
        with suppress(Over):
            yield from walk.body(self.kernel.body)
        self.open.discard(who.number)


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
