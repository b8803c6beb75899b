"""500 random schedules, run twice or more: whatever is chosen, results are what the text says.

`make nightly` runs more of them. A failure names the command that repeats it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devtools.fuzz.check import WORDS
from devtools.schedules.run import Recipe, draw, judge, run_some

ZOO = str(Path(__file__).parents[2] / "zoo/schedules.py")
COUNT, PARTS = 500, 10
# A tenth as thread code too: lowering and running that takes as long as all else.
SHARE = 0.1


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_do_not_change_results(part):
    size = COUNT // PARTS
    report = run_some(range(part * size, (part + 1) * size), ZOO, SHARE)
    told = "\n".join(report.lines())
    print(told)
    assert not report.failures, told
    assert report.kinds["ok"] >= 0.9 * size and report.runs >= 1.9 * size, told


def test_every_choice_is_drawn():
    recipes = [draw(n) for n in range(500)]  # as many as are run above
    drawn = [recipe.target for recipe in recipes]
    for name, values in WORDS.items():
        for value in values:
            assert any(f"-{name}={value}" in target for target in drawn)
    assert {recipe.without for recipe in recipes} >= {"", "wgmma", "bulk_copy"}


def test_a_refusal_has_a_reason():
    program = "mla_decode(batch=1, heads=64, seq_kv=64, dim=512)"
    found = judge(Recipe(program, "cuda -arch=sm_80", threads=True, file=ZOO)).verdict
    assert found.kind == "refused" and "more shared memory than a block has" in found.detail


def test_a_failure_repeats_by_its_command():
    recipe = Recipe("rings(seed=1)", "cuda -arch=sm_90a -roles=on", "cp_async", 3, True, ZOO)
    words = recipe.command()
    assert (
        "--program 'rings(seed=1)'" in words and "--without cp_async --seed 3 --threads 1" in words
    )
    arguments = ["--program", "rings(seed=1)", "--target", recipe.target, "--seed", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "devtools", "schedules", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr
