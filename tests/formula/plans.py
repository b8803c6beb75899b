"""Random plans of formulas: decisions and tiles drawn at random change no result beyond its bound.

python -m tests.formula.plans --count 2000
"""

from __future__ import annotations

import argparse
import random

import numpy as np

import tilewright as tw
from devtools.fuzz.formula_plans import drawn_plan
from tests.formula.cases import CASES
from tilewright.formula.meaning import evaluate


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
        plan = drawn_plan(f, arrays, random.Random(f"{args.seed} {n}"))
        by = worst(f.with_plan(plan), arrays)
        assert by <= 1, f"{name}, --seed {args.seed}, plan {n} is {by:.2g} of the bound\n{plan}"
        for d in plan.decisions:
            kinds[d.kind] = kinds.get(d.kind, 0) + 1
    print(f"{args.count} plans of {len(CASES)} formulas are within the bound; decisions: {kinds}")


if __name__ == "__main__":
    import tests.roads  # noqa: F401

    main()
