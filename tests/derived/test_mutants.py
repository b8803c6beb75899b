"""Nothing in a derived program can be dropped, moved or miscounted unnoticed, and nothing that is
right is accused. `python -m tests.derived.run` judges every mutant, and each program under 20
interleavings; here it is a sample."""

from __future__ import annotations

import pytest

from tests.derived.cases import accused, cases, count

LEAST = 0.95
EVERY = 24
SEEDS = 5


@pytest.mark.slow
def test_what_is_right_is_not_accused():
    assert [said for name, target in cases() for said in accused(name, target, SEEDS)] == []


@pytest.mark.slow
def test_mutants_are_noticed():
    counts = [count(name, target, EVERY, i) for i, (name, target) in enumerate(cases())]
    said = "\n".join(line for c in counts for line in [str(c), *(f"  {m}" for m in c.missed)])
    print(said)
    assert not [w for c in counts for w in c.wronged]
    assert sum(c.caught for c in counts) >= LEAST * sum(c.broken for c in counts), said
