"""Judge every mutant of every derived program: python -m tests.derived.run [--jobs N] [NAME ...]"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.derived.cases import PROGRAMS, Count, accused, cases, count
from tests.derived.test_mutants import LEAST

SEEDS = 20


def judged(name: str, target: str, every: int) -> Count:
    found = count(name, target, every)
    found.wronged += accused(name, target, SEEDS)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(PROGRAMS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="Only each so-many-th mutant.")
    given = parser.parse_args()
    chosen = [c for c in cases() if not given.names or c[0] in given.names]
    counts: list[Count] = []
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        for found in pool.map(judged, *zip(*chosen), [given.every] * len(chosen)):
            counts.append(found)
            print(found, flush=True)
            for text in (*(f"harmless: {m}" for m in found.missed), *found.wronged):
                print(f"  {text}", flush=True)
    reasons: Counter[str] = sum((c.reasons for c in counts), Counter())
    for reason, n in reasons.most_common():
        print(f"{n:>6}  {reason}")
    caught, broken = sum(c.caught for c in counts), sum(c.broken for c in counts)
    print(
        f"{caught} of {broken} caught ({caught / broken:.1%}); {sum(c.made for c in counts)} made"
    )
    return int(caught < LEAST * broken or any(c.wronged for c in counts))


if __name__ == "__main__":
    sys.exit(main())
