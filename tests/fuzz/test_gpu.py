"""A short run of the fuzzer on a GPU.

The long one: `python -m devtools fuzz --targets interp,cuda --count 500 --jobs 16 --out DIR`.
"""

from __future__ import annotations

import os

import pytest

from devtools.fuzz.run import Plan, fuzz

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(400)
def test_random_programs_agree_with_the_interpreter():
    jobs = min(os.cpu_count() or 2, 16)
    plan = Plan(count=60, seed=100_000, targets=("interp", "cuda"), seconds=240.0, jobs=jobs)
    report = fuzz(plan)
    words = "\n".join(report.lines(plan))
    assert report.clean and report.done == plan.count, words
    assert report.kinds["ok"] >= plan.count // 2, words
