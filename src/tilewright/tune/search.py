"""Which candidate of a kernel is fastest: the model's first ones are compiled side by side, run,
checked and timed in turn; those that lose are dropped early, and what is near the best is tried as
well. What was measured is kept, also when the search is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.choose import measured
from tilewright.choose.candidates import Candidate
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.runtime.direct import Outline
from tilewright.runtime.jit import Jit
from tilewright.targets.cuda.detect import gpu_target
from tilewright.targets.entries import lines_of
from tilewright.tune.pool import LocalPool, Pool

MOST = 24  # candidates that are measured before what is near the best of them
NEAR = 8  # and of those in a turn
TURNS = 2  # as long as the best gains this much on what was chosen
GAIN = 1.02
FIRST = (3, 4e-4)  # rounds and seconds of a burst when a candidate is there
LATER = ((1.15, 4, 1e-3), (1.04, 7, 2e-3))  # of those that take at most so many times the least


@dataclass
class Tuned:
    """What a search found: the times of each kernel's candidates, the fastest first, that of what
    had been chosen before, and why others have none."""

    name: str
    times: measured.Times = field(default_factory=dict)
    before: float = 0.0
    best: float = 0.0
    tried: int = 0
    failures: dict[Candidate, str] = field(default_factory=dict)
    is_kept: bool = True  # on disk

    @property
    def gain(self) -> float:
        return self.before / self.best if self.best else 1.0

    def __str__(self) -> str:
        if not self.times:
            return f"{self.name}: nothing is left open"
        chosen = "; ".join(str(found[0][0]) for found in self.times.values() if found)
        if not self.tried:
            took = min(found[0][1] for found in self.times.values() if found)
            return f"{self.name}: {chosen}: {1e6 * took:.1f} µs, as measured before"
        gained = f"{self.gain:.2f} × the speed of what was chosen before"
        return f"{self.name}: {chosen}: {1e6 * self.best:.1f} µs, {gained} ({self.tried} tried)"


Watch = Callable[[Tuned, int, int], None]  # what is known, how many of how many are measured


def tune(
    jit: Jit,
    bound: dict[str, Any],
    sizes: Mapping[str, int],
    *,
    most: int = MOST,
    again: bool = False,
    pool: Pool | None = None,
    watch: Watch = lambda *_: None,
) -> Tuned:
    """Measure the candidates of the kernel for these arguments. Those whose times are known are
    not measured, unless `again`; where as many were asked for before, nothing is done."""
    opened, target = jit.calls.opened(bound, sizes), jit.compile_target
    found = Tuned(opened.program.name)
    given = _inputs(opened.program, {**bound, **sizes})
    if not opened.found:
        return found
    machine = pool.begin(str(target)) if pool is not None else measured.machine_of(target.kind)
    entry = None if again else measured.entry_of(opened, machine)
    found.times = measured.known(opened, machine) if entry is not None else {}
    searched = {int(n): asked for n, asked in (entry or {}).get("searched", {}).items()}
    missing = [n for n in opened.found if searched.get(n, 0) < most]
    if not missing:
        return found
    own = pool is None
    if pool is None:
        check_here(target)
        pool = LocalPool()
        pool.begin(str(target))
    try:
        ranked = jit.calls.opened(bound, sizes, ranked=True).found
        known = {n: each for n, each in found.times.items() if each}
        chosen = {n: known[n][0][0] if n in known else each[0] for n, each in ranked.items()}
        for number in missing:
            if number in ranked:
                search = _Search(jit, bound, sizes, number, dict(chosen), pool, given, found, watch)
                search.run(ranked[number], most)
            searched[number] = most
            if found.times.get(number):
                chosen[number] = found.times[number][0][0]
    finally:
        if own:
            pool.close()
        if any(found.times.values()):
            found.is_kept = measured.keep(
                opened, found.times, searched, found.failures, machine, again
            )
    if not any(found.times.values()):
        raise RunError(
            f"no candidate for {found.name} could be measured",
            notes=tuple(f"{name}: {why}" for name, why in [*found.failures.items()][:4]),
            fix="if it does not take the inputs that were made (integers are 0), tune it by a call "
            "of @tw.autotune with arrays of its own",
        )
    return found


def check_here(target: Target) -> None:
    """Kernels for the CPU, and for this machine's GPU, can be measured."""
    here = gpu_target()
    if target.kind == "cuda" and (here is None or Target.parse(here).arch != target.arch):
        raise LaunchError(
            f"tuning for {target.arch} needs such a GPU",
            got=f"one for {Target.parse(here).arch}" if here else "no GPU on this machine",
            fix="tune where the kernel will run; until then it takes the model's choice",
        )


@dataclass
class _Search:
    """One kernel of a text, the others as they were chosen."""

    jit: Jit
    bound: dict[str, Any]
    sizes: Mapping[str, int]
    number: int
    chosen: Mapping[int, Candidate]  # of all kernels, before this search
    pool: Pool
    given: Mapping[str, Any]
    found: Tuned
    watch: Watch
    seconds: dict[str, float] = field(default_factory=dict)
    named: dict[str, Candidate] = field(default_factory=dict)  # those that were tried

    def run(self, ranked: Sequence[Candidate], most: int) -> None:
        first, self.found.tried = self.chosen[self.number], 0
        known = {each for each, _ in self.found.times.pop(self.number, [])} | {first}
        batch = [first, *(each for each in ranked[:most] if each not in known)]
        for _ in range(1 + TURNS):
            self._measure(batch)
            if not self.seconds or not batch or self.found.gain < GAIN:
                return
            best = self.named[min(self.seconds, key=self.seconds.__getitem__)]
            known |= set(batch)
            batch = [each for each in ranked if each not in known and _is_near(each, best)][:NEAR]

    def _measure(self, batch: Sequence[Candidate]) -> None:
        jobs = {}
        for each in batch:
            self.named[str(each)] = each
            try:
                jobs[str(each)] = self._job(each)
            except CompileError as error:
                self.found.failures[each] = error.message
        ready = []
        for name, told in self.pool.load(jobs, self.given):
            if told:
                self.found.failures[self.named[name]] = told
            else:
                ready.append(name)
            if ready and self.jit.compile_target.kind == "cuda":  # a CPU compiles meanwhile
                self._time([ready.pop()], *FIRST)
            self.watch(self.found, len(self.seconds) + len(self.found.failures), len(self.named))
        self._time(ready, *FIRST)
        for limit, rounds, burst in LATER if jobs else ():
            most = limit * min(self.seconds.values(), default=0.0)
            first = str(self.chosen[self.number])
            self._time(
                [n for n, t in self.seconds.items() if t <= most or n == first], rounds, burst
            )

    def _job(self, chosen: Candidate) -> dict[str, Any]:
        given = {**self.chosen, self.number: chosen}
        program = self.jit.calls.trace(self.bound, self.sizes, given=given).program
        target = str(self.jit.compile_target)
        return {"program": print_program(program), "lines": lines_of(program), "target": target}

    def _time(self, names: Sequence[str], rounds: int, burst: float) -> None:
        found, first = self.found, str(self.chosen[self.number])
        times = self.pool.times(names, rounds, burst)
        self.seconds |= times
        for name in {*names} - {*times}:
            self.seconds.pop(name, None)
            found.failures[self.named[name]] = "it was lost while it was timed"
        ordered = sorted(self.seconds.items(), key=lambda each: each[1])
        if ordered:
            found.times[self.number] = [(self.named[name], seconds) for name, seconds in ordered]
            found.best, found.tried = ordered[0][1], len(self.named)
            found.before = self.seconds.get(first, found.best)


def _inputs(program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, sizes that are known at launch, and arrays of integers, which may be indices, in
    host memory; floats may be any."""
    found: dict[str, Any] = {}
    shapes = {name: value.shape for name, value in given.items() if hasattr(value, "shape")}
    for tensor in program.tensors:
        for size, extent in zip(shapes.get(tensor.name, ()), tensor.shape, strict=False):
            if isinstance(extent, Var):
                found[extent.name] = int(size)
    for dim in program.dims:
        if dim.var.name not in found:
            raise RunError(
                f"the size {dim.var.name} of {program.name} is known at launch only",
                expected="arrays, which have it",
                fix="decorate the kernel with @tw.autotune and call it",
            )
    for name, value in given.items():
        dtype = str(getattr(value, "dtype", ""))
        if isinstance(value, (int, float)) or (hasattr(value, "item") and shapes.get(name) == ()):
            found[name] = value.item() if hasattr(value, "item") else value
        elif dtype and "float" not in dtype and not isinstance(value, Outline):
            brought = getattr(value, "cpu", None) or getattr(value, "get", None)  # PyTorch, CuPy
            found[name] = np.asarray(value if brought is None else brought())
    return found


def _is_near(a: Candidate, b: Candidate) -> bool:
    """They differ in one size, or in something else."""
    sizes = sum(x != y for x, y in zip(a.tiles, b.tiles, strict=True))
    others = replace(a, tiles=b.tiles) != b
    return sizes + others == 1
