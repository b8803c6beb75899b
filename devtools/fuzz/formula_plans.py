"""Random plans: some decisions of those that there are about a formula, and schedules.

A plan changes no result beyond its bound, whatever it decides."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.choose.candidates import Candidate
from tilewright.formula.empty import without_empty
from tilewright.formula.function import Made, MathFunction
from tilewright.formula.plan import Plan, digest, steps
from tilewright.formula.search.decisions import Decided, alternatives, decided
from tilewright.formula.tiles.program import TileProgram, program_of
from tilewright.support.errors import CompileError

SIZES = (4, 8, 16, 24, 32)
MOST = 3  # decisions


def drawn_plan(f: MathFunction, arrays: Sequence[Any], rng: random.Random) -> Plan:
    """A plan for arguments like these. The CPU has tiles of any size; on a GPU sizes, threads,
    clusters and shared loops are of those that could be chosen."""
    made = f.made_for(*arrays)
    if not made.has_kernel:
        return made.plan()
    at, program = _decided(decided(without_empty(made.formula), made.normal), rng)
    plan = Plan(
        made.formula.name, digest(made.formula), str(f.target), at.normal.laws, at.decisions,
        rounded=program.rounded,
    )  # fmt: skip
    if f.target == "cpu":
        loops = loops_of(program.text)
        chosen = [Candidate(tuple((name, rng.choice(SIZES)) for name in loops), 0)
                  for _ in program.computes]  # fmt: skip
    else:
        chosen = _candidates(f.with_plan(plan).made_for(*arrays), rng)
    numbers = tuple((name, rng.choice((1, 2, 5))) for name in program.numbers)
    chosen[0] = replace(chosen[0], numbers=numbers)
    names = [(f"kernel{n}", computed) for n, computed in enumerate(program.computes)]
    return replace(plan, kernels=steps(names, dict(enumerate(chosen))))


def _candidates(made: Made, rng: random.Random) -> list[Candidate]:
    """What could be chosen for each kernel."""
    calls = made.kernel.calls
    found = calls.opened(calls.bind(tuple(made.examples()), {}), {}).found
    nothing = [Candidate((), 0)]
    return [rng.choice(found.get(n, nothing)) for n, _ in enumerate(made.program.computes)]


def loops_of(text: str) -> list[str]:
    """The variables of the loops over tiles, whose sizes are open."""
    found = []
    for names, sizes in re.findall(r"for ([\w, ]+) in T\.tile\((.*)\):", text):
        axes = re.findall(r"T\.each\([^()]*\)|\([^()]*(?:\([^()]*\)[^()]*)*\)|[^,()]+", sizes)
        axes = [a.strip() for a in axes if a.strip()]
        if names != "_" and len(axes) == len(names.split(", ")):
            pairs = zip(names.split(", "), axes, strict=True)
            found += [name for name, axis in pairs if not axis.startswith("T.each")]
    return list(dict.fromkeys(found))


def _decided(at: Decided, rng: random.Random) -> tuple[Decided, TileProgram]:
    program = program_of(at.normal)
    for _ in range(rng.randrange(MOST + 1)):
        options = [d for d in alternatives(at, program.kernels) if d not in at.decisions]
        if not options:
            break
        try:
            more = at.and_then(rng.choice(options))
            at, program = more, program_of(more.normal, (), more.grouping)
        except CompileError:  # there is no such program
            continue
    return at, program
