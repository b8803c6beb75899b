"""The fuzzer itself, and a short run of it. The long one: `python -m devtools fuzz`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from devtools.compare import Verdict
from devtools.fuzz.check import check_source, load
from devtools.fuzz.programs import make
from devtools.fuzz.recipe import Ex, Growth, Inexact, Stmt, Tile, render, statements
from devtools.fuzz.run import Plan, fuzz, judge, reduce_program
from devtools.fuzz.shrink import shrink
from tests.fuzz.bugs import BUGS
from tests.fuzz.plant import SOURCE, Hunt, hunt
from tilewright.ir.expr import const
from tilewright.targets.cpu import emit_tile
from tilewright.tools.compare import difference

COUNT, PARTS = 60, 4


@pytest.mark.parametrize("part", range(PARTS))
def test_a_short_run_finds_nothing(part):
    kinds = {"ok": 0}
    for seed in range(part, COUNT, PARTS):
        verdict = judge(seed, ["interp", "cpu"])
        assert not verdict.found, f"seed {seed}: {verdict}\n{render(make(seed))}"
        kinds[verdict.kind] = kinds.get(verdict.kind, 0) + 1
    assert kinds["ok"] >= 0.9 * COUNT / PARTS, kinds


def test_a_seed_is_a_program():
    assert render(make(7)) == render(make(7)) != render(make(8))


def test_programs_use_the_whole_language():
    text = "".join(render(make(seed)) for seed in range(400))
    words = """copy fill clear gemm Parallel serial unroll Pipelined reduce_sum reduce_max
        reduce_min reduce_absmax reduce_abssum reduce_bitand reduce_bitor reduce_bitxor cumsum
        cummax view transpose alloc_shared alloc_fragment alloc_local alloc_var alloc_global clamp
        if_then_else atomic_add atomic_max sync_threads shfl_xor shfl_up shfl_down warp_reduce_sum
        any_of dynamic ceildiv get_thread_binding use_swizzle"""
    assert [w for w in words.split() if f"T.{w}(" not in text] == []
    for piece in ("while ", "break", "else:", "clear=False", "transpose_A=True", "clear_accum=True",
                  "GemmWarpPolicy.FullRow", "num_stages=4", "T.Pipelined(0,", "reverse=True",
                  "threads=96", "float8_e4m3fn", "bfloat16", "bool", "prefer="):  # fmt: skip
        assert piece in text, piece


def test_sums_that_may_not_be_exact_are_seen():
    recipe = make(3)
    wide = Tile("huge", "shared", ("4",), "float16")
    value = Ex("known", "float16", "2000", size=2000.0)
    twice = Ex("add", "float16", "({0} + {1})", (value, value))
    store = Stmt("huge[0] = {0}", (twice,), effect=("store", "huge", False))
    total = Stmt("T.reduce_sum(huge, one)", effect=("sum", "huge", "huge", "4", True))
    launch = recipe.launches[0]
    tiles = (*launch.tiles, wide)
    Growth(replace(recipe, launches=(replace(launch, tiles=tiles, body=(store,)),))).check()
    with pytest.raises(Inexact) as caught:
        Growth(
            replace(recipe, launches=(replace(launch, tiles=tiles, body=(store, total)),))
        ).check()
    assert caught.value.stmt is total


def test_differences_are_told():
    a = np.array([1.0, np.nan, 0.0], np.float32)
    assert difference(a, np.array([1.0, np.nan, -0.0], np.float32)) == ""
    assert "2 of 3 differ, first at (0,): 2.0, not 1.0" in difference(
        a, np.array([2.0, 0.0, 0.0], np.float32)
    )
    assert difference(a, a + np.float32(1e-6), 2.0**-23) == ""


@pytest.fixture
def wrong_minimum(monkeypatch):
    """The CPU target's minimum starts from 0."""
    right = emit_tile.identity

    def wrong(op, kind):
        return const(0, kind) if op == "min" else right(op, kind)

    monkeypatch.setattr(emit_tile, "identity", wrong)


def test_a_planted_bug_is_found_and_shrunk(wrong_minimum, tmp_path):
    texts = {seed: render(make(seed)) for seed in range(300)}
    for seed in sorted(texts, key=lambda seed: len(texts[seed])):
        if "reduce_min" not in texts[seed]:
            continue
        verdict = judge(seed, ["interp", "cpu"])
        if verdict.found:
            break
    assert (verdict.kind, verdict.target) == ("mismatch", "cpu")
    text = reduce_program(seed, verdict, ("interp", "cpu"), 10.0)
    assert "T.reduce_min(" in text
    assert len(text.splitlines()) < len(texts[seed].splitlines()), text
    assert check_source(text, ["cpu"]).kind == "mismatch"
    # what is printed is a file that runs; without the bug, in its own process, all is well
    path = tmp_path / "kernel.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(path), "cpu"], capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": f"{SOURCE}:{SOURCE.parent}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr


def test_shrinking_keeps_the_failure():
    recipe = make(5)
    word = "T.copy("
    small = shrink(recipe, lambda r: word in render(r), 5.0)
    left = [s for launch in small.launches for s in statements(launch.body)]
    assert len(left) == 1 and word in left[0].head


def test_a_program_without_tiles_has_thread_code():
    source = """import tilewright.language as T


@T.prim_func
def program():
    with T.Kernel(1, threads=32) as bx:
        pass


def arguments():
    return {}


CASES, EXACT = [{}], True
"""
    assert check_source(source, ["interp", "threads"]).kind == "ok"


def test_a_worker_that_dies_or_hangs_is_a_finding():
    from tests.fuzz import faults

    report = fuzz(Plan(count=2, jobs=1, each=1.0, shrinking=0.0), setup=faults.die)
    assert [v.kind for _, v, _ in report.findings] == ["crash", "crash"]
    assert "exit code 3" in str(report.findings[0][1])


def test_verdicts_of_one_failure_are_the_same():
    a = Verdict("crash", "cpu", "KeyError: 'x12'")
    assert a.same(Verdict("crash", "cpu", "KeyError: 'x7'")) is False  # other digits count
    assert a.same(Verdict("crash", "cpu", "KeyError: 'x34'"))
    assert not a.same(Verdict("mismatch", "cpu", "O1: 3 of 4 differ"))


def test_a_printed_program_has_arguments_of_its_own():
    space = load(render(make(11)), "<fuzz test>")
    for case in space["CASES"]:
        given = space["arguments"](**case)
        assert list(given) == [p.name for p in space["program"].program.params]


def test_planted_bugs_have_names_and_places(tmp_path):
    for road in ("cpu", "threads"):
        assert len([b for b in BUGS if b.target.startswith(road)]) >= 20
    assert len({b.name for b in BUGS}) == len(BUGS)
    for bug in BUGS:
        text = (SOURCE / "tilewright" / bug.file).read_text(encoding="utf-8")
        assert text.count(bug.old) == 1, f"{bug.name}: its place in {bug.file} has changed"
        assert bug.old != bug.new


def test_a_planted_bug_is_hunted_down():
    """All of them: `python -m tests.fuzz.plant`."""
    bug = next(b for b in BUGS if b.name == "idle slots visited")
    outcome = hunt(bug, Hunt(count=12), {})
    assert outcome.seed is not None, outcome
