"""Time, and the units of a multiprocessor that simulated agents share (`simulate`)."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Any, TypeAlias

from tilewright.passes.overlap import unit_times as rates


class Signal:
    """What agents wait for."""

    def __init__(self) -> None:
        self.waiting: list[Agent] = []


Steps: TypeAlias = "Generator[float | Signal, None, None]"
Agent: TypeAlias = Steps


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.queue: list[tuple[float, int, Any]] = []
        self.count = 0

    def at(self, time: float, what: Any) -> None:
        """Call `what`, or let that agent go on."""
        self.count += 1
        heapq.heappush(self.queue, (time, self.count, what))

    def fire(self, signal: Signal) -> None:
        for agent in signal.waiting:
            self.at(self.now, agent)
        signal.waiting = []

    def step(self) -> None:
        self.now, _, what = heapq.heappop(self.queue)
        if callable(what):
            what()
            return
        asked = next(what, None)
        if isinstance(asked, Signal):
            asked.waiting.append(what)
        elif asked is not None:
            self.at(asked, what)


class Lane:
    """A unit that takes one after the other."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.free = 0.0

    def take(self, time: float) -> tuple[float, float]:
        start = max(self.clock.now, self.free)
        self.free = start + time
        return start, self.free


class Slots:
    """Issue slots that those who compute share evenly; nobody gets more than `rates.SOLO`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done = 0.0  # work that each job has had so far
        self.since = 0.0
        self.jobs: list[tuple[float, int, Signal]] = []
        self.version = 0

    def _advance(self) -> float:
        share = min(rates.SOLO, 1 / len(self.jobs)) if self.jobs else rates.SOLO
        self.done += (self.clock.now - self.since) * share
        self.since = self.clock.now
        return share

    def run(self, work: float) -> Signal:
        self._advance()
        signal = Signal()
        self.version += 1
        heapq.heappush(self.jobs, (self.done + work, self.version, signal))
        self._plan()
        return signal

    def _plan(self) -> None:
        self.version += 1
        version = self.version
        if self.jobs:
            share = min(rates.SOLO, 1 / len(self.jobs))
            rest = max(0.0, self.jobs[0][0] - self.done) / share
            self.clock.at(self.clock.now + rest, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version == self.version:
            self._advance()
            self.clock.fire(heapq.heappop(self.jobs)[2])
            self._plan()


class Barrier(Signal):
    """One of a block's, in shared memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.left = 1.0
        self.bytes = 0.0
        self.phases = 0
