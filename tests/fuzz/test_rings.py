"""Random pipelined kernels: copies that run ahead, and the thread code that waits for them."""

from __future__ import annotations

import pytest

from devtools.fuzz.check import check_source, load
from devtools.fuzz.programs import make
from devtools.fuzz.recipe import render
from tilewright.ir.text import print_program
from tilewright.targets.cuda.backend import lower
from tilewright.tools.compare import THREADS


@pytest.mark.parametrize("seed", range(500, 516))
def test_rings(seed: int):
    source = render(make(seed, "rings"))
    verdict = check_source(
        source, ["interp", "threads", "threads-sm80", "threads-roles"], f"r{seed}.py"
    )
    assert verdict.kind == "ok", f"{verdict}\n{source}"


def test_most_of_them_have_rings():
    """Bulk copies on Hopper, `cp.async` elsewhere, and what consumes them."""
    kinds = {"bulk": 0, "cp_async": 0, "gemm": 0}
    for seed in range(500, 515):
        if min(kinds.values()) >= 5:
            break
        text = render(make(seed, "rings"))
        program = load(text, f"r{seed}.py")["program"].program
        code = print_program(lower(program, THREADS["threads"]).result)
        old = print_program(lower(program, THREADS["threads-sm80"]).result)
        kinds["bulk"] += "bulk_load" in code
        kinds["cp_async"] += "cp_async" in old
        kinds["gemm"] += "T.gemm(" in text
    assert min(kinds.values()) >= 5, kinds


def test_they_have_stages_counts_and_tails_of_all_kinds():
    text = "".join(render(make(seed, "rings")) for seed in range(200))
    for piece in (
        "num_stages=1", "num_stages=2", "num_stages=3", "num_stages=4", "T.Pipelined(0,",
        "T.Pipelined(1,", "T.Pipelined(3,", "T.Pipelined(n0", "T.Pipelined(1, 1 + ",
        'T.dynamic("m0")', 'prefer="cp_async"', 'prefer="sync"', "T.transpose(", "T.reduce_min(",
        "clear_accum=True", "transpose_B=True", "T.atomic_add(", "T.cummax(",
    ):  # fmt: skip
        assert piece in text, piece
