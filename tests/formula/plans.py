"""Random plans of formulas: decisions and tiles drawn at random change no result beyond its bound.

python -m tests.formula.plans --count 2000
"""

from __future__ import annotations

import argparse
import random
import re

import numpy as np

import tilewright as tw
from tests.formula.cases import CASES
from tilewright.formula.meaning import evaluate
from tilewright.formula.plan import Step, digest
from tilewright.formula.search.decisions import Decided, alternatives, decided
from tilewright.formula.tiles.program import TileProgram, program_of
from tilewright.ir.schedule import Schedule

SIZES = (4, 8, 16, 24, 32)
MOST = 3  # decisions


def drawn(f, arrays, rng: random.Random) -> tw.Plan:
    """A plan with some decisions of those that there are, and tiles of any size."""
    made, _ = f._of(arrays, {})
    at, program = _decided(decided(made.formula, made.normal), rng)
    steps = []
    for n, arrays_of in enumerate(program.computes):
        tiles = {name: rng.choice(SIZES) for name in loops_of(program.text)}
        tiles |= {name: rng.choice((1, 2, 5)) for name in program.numbers if n == 0}
        steps.append(Step(f"kernel{n}", arrays_of, Schedule(tiles=tiles)))
    return tw.Plan(
        made.formula.name, digest(made.formula), "cpu", at.normal.laws, at.decisions,
        tuple(steps), program.rounded,
    )  # fmt: skip


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
        except tw.CompileError:  # there is no such program
            continue
    return at, program


def worst(f, arrays) -> float:
    """The largest error of results, by its bound."""
    got, want = f(*arrays), evaluate(f.formula(*arrays), arrays, exactly=True)
    bounds = f.error_bound(*arrays)
    got, bounds = (x if isinstance(x, tuple) else (x,) for x in (got, bounds))
    found = 0.0
    for g, w, b in zip(got, want, bounds, strict=True):
        assert g.shape == b.shape == w.shape
        g = np.asarray(g, float)
        assert (np.isfinite(g) == np.isfinite(w)).all()
        known = np.isfinite(w)
        with np.errstate(all="ignore"):
            by = np.abs(g - w)[known] / b[known]
        found = max(found, float(np.nan_to_num(by, posinf=np.inf).max(initial=0.0)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds: dict[str, int] = {}
    for n in range(args.count):
        name = list(CASES)[n % len(CASES)]
        function, arrays = CASES[name]
        f = tw.math(function, target="cpu")
        plan = drawn(f, arrays, random.Random(f"{args.seed} {n}"))
        by = worst(f.with_plan(plan), arrays)
        assert by <= 1, f"{name}, --seed {args.seed}, plan {n} is {by:.2g} of the bound\n{plan}"
        for d in plan.decisions:
            kinds[d.kind] = kinds.get(d.kind, 0) + 1
    print(f"{args.count} plans of {len(CASES)} formulas are within the bound; decisions: {kinds}")


if __name__ == "__main__":
    import tests.roads  # noqa: F401

    main()
