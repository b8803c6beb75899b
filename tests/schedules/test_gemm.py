"""The warp-specialized GEMMs equal the plain one under every interleaving, and every
synchronising op in them is needed."""

import ml_dtypes
import numpy as np
import pytest

from tests.schedules.harness import load, mutants, noticed, run
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify

SCHEDULES = ["gemm_cooperative", "gemm_pingpong"]


def problem(m, n, k, blocks=2):
    """Small integers, so that sums are exact in any order."""
    rng = np.random.default_rng([m, n, k])
    a, b = (rng.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, ml_dtypes.bfloat16)
    return {"A": a, "B": b, "C": c, "blocks": blocks}


def plain(args):
    tensors = {name: args[name] for name in "ABC"}
    return run(load("gemm_plain"), tensors)["C"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_round_trip_and_verify(name):
    program = load(name)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text
    verify(program, Stage.LAID_OUT)


def test_plain_is_a_product():
    args = problem(130, 70, 100)
    want = args["A"].astype(np.float64) @ args["B"].astype(np.float64)
    np.testing.assert_array_equal(plain(args).astype(np.float64), want)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "m, n, k, blocks",
    [(128, 128, 64, 2), (256, 512, 640, 2), (300, 300, 200, 4), (520, 260, 72, 2), (1, 1, 1, 2)],
)
def test_equals_plain(name, m, n, k, blocks):
    args = problem(m, n, k, blocks)
    want = plain(args)
    for seed in range(10):
        np.testing.assert_array_equal(run(load(name), args, seed)["C"], want)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_mutant_is_noticed(name):
    args = problem(512, 512, 384, 2)
    want = {"C": plain(args)}
    survivors = [what for what, mutant in mutants(load(name)) if not noticed(mutant, args, want)]
    assert survivors == []
