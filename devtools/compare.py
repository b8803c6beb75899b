"""Targets that a fuzzer draws: `threads -roles=on -shared=32`, thread code with choices of its own,
on a small chip. `tools.compare` says what is right."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tilewright import machine
from tilewright.ir.chips import CHIPS
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.passes.cuda_passes import SCHEDULE
from tilewright.passes.run import Trace
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.remedies import SHARED
from tilewright.tools import compare
from tilewright.tools.compare import THREADS, Run, thread_code

UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-23, "float64": 2.0**-52}


@contextmanager
def small_chips(multiprocessors: int, shared: int = 0) -> Iterator[None]:
    """Chips that are small enough for blocks to walk over several tiles of small grids; with
    `shared` bytes for a block, if not 0."""
    whole = dict(CHIPS)
    for arch, chip in whole.items():
        chip = replace(chip, multiprocessors=multiprocessors)
        if shared:
            chip = replace(chip, shared=shared, shared_per_sm=2 * shared)
        CHIPS[arch] = chip
    try:
        yield
    finally:
        CHIPS.update(whole)


def lowered(program: Program, target: str) -> Trace:
    """A program on its way to the thread code of one of `THREADS`, or of a target that was
    drawn."""
    if target in THREADS:
        return lower(program, THREADS[target])
    flags = target.split()[1:]
    shared = next((f.partition("=")[2] for f in flags if f.startswith("-shared=")), "0")
    flags = [f for f in flags if not f.startswith("-shared=")]
    asked = Target.parse(" ".join(["cuda", *flags]))
    with small_chips(2, int(shared) * 1024):
        try:
            return lower(program, asked)
        except CompileError as error:
            plain = asked
            for remedy in SHARED.remedies:
                plain = remedy.on(plain) or plain
            with suppress(CompileError):
                lower(program, plain)
                raise AssertionError(f"refused, and yet it compiles: {error.message}") from error
            raise


def runs(program: Program, target: str) -> list[tuple[str, Run]]:
    """With choices of its own (`drawn`) the schedule of thread code, too, under two
    interleavings."""
    if target == "cpu":
        return [("", partial(_by_all_roads, CompiledKernel(program, target=target), program))]
    if target in THREADS or target.split()[0] not in THREADS:
        return compare.runs(program, target)
    trace = lowered(program, target)
    # a program of plain statements is scheduled as it is
    scheduled = next((s.program for s in trace if s.name == SCHEDULE[-1].name), program)
    ways: list[tuple[str, Run]] = []
    if scheduled.params == program.params:  # elements of less than a byte become bytes
        ways += [(f"schedule {n}, ", partial(_schedule, scheduled, n)) for n in range(2)]
    return [*ways, ("", thread_code(trace.result))]


def _by_all_roads(
    kernel: CompiledKernel, program: Program, given: dict[str, Any]
) -> Mapping[str, Any]:
    """Calls like those before are checked less, and the fourth by machine code alone."""
    for _ in range(3):
        kernel(*[copy.copy(given[p.name]) for p in program.params])
    kernel(*[given[p.name] for p in program.params])
    return {name: array for name, array in given.items() if isinstance(array, np.ndarray)}


def _schedule(program: Program, seed: int, given: dict[str, Any]) -> Mapping[str, Any]:
    machine.run(program, given, seed=seed, explicit=True)
    return given


@dataclass
class Verdict(compare.Verdict):
    """A verdict that a report counts, with what each target took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether this is something to look at."""
        return self.kind not in ("ok", "illegal")

    def same(self, other: Verdict) -> bool:
        """The same failure, also if its numbers differ."""
        if (self.kind, self.target) != (other.kind, other.target):
            return False
        return self.kind == "mismatch" or self.headline == other.headline

    def __str__(self) -> str:
        return f"{self.kind} {self.target}: {self.detail.partition(chr(10))[0]}"

    @property
    def headline(self) -> str:
        """The detail without what changes from program to program."""
        first = self.detail.split("\n")[0]
        return "".join("#" if c.isdigit() else c for c in first)


def against(*given: Any) -> Verdict | None:
    """`tools.compare.against`, for these targets."""
    found = partial(compare.against, runs=runs)(*given)
    return None if found is None else Verdict(**vars(found))
