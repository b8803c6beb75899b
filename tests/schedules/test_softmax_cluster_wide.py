"""Softmax of long rows over a cluster: the schedule against a sequential program, float64 and its
mutants."""

from __future__ import annotations

from functools import cache
from math import log2

import ml_dtypes
import numpy as np
import pytest

from tests.schedules.harness import HERE, load, mutants, noticed, run
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify

NAMES = ("softmax_cluster_wide", "softmax_cluster_wide_plain")
# rows, groups of 2048 columns, clusters. Rows: fewer than instances, and enough to go round ring
# and slots twice; groups: all, a tail in the last block, blocks that hold nothing
SIZES = ((1, 32, 1), (9, 32, 2), (13, 27, 1), (5, 1, 1))
LOG2_E = log2(np.e)
bf16 = ml_dtypes.bfloat16


def arguments(m: int, groups: int, clusters: int, exact: bool) -> dict[str, object]:
    rng = np.random.default_rng(m * groups)
    shape = (m, groups, 8, 256)
    # integers and powers of two: every sum is exact, in any order
    x = rng.integers(-2, 3, shape) if exact else rng.standard_normal(shape) * 3
    return {
        "X": x.astype(bf16),
        "Y": np.full(shape, 7, bf16),
        "scale": 1.0 if exact else LOG2_E,
        "blocks": 4 * clusters,
    }


@cache
def exact_case(m: int, n: int, clusters: int) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    args = arguments(m, n, clusters, exact=True)
    return args, {"Y": run(load(NAMES[1]), args)["Y"]}


@pytest.mark.parametrize("name", NAMES)
def test_text_round_trip(name: str) -> None:
    program = load(name)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_verifies() -> None:
    verify(load(NAMES[1]), Stage.TILE)
    verify(load(NAMES[0]), Stage.LAID_OUT)


@pytest.mark.parametrize(("m", "groups", "clusters"), SIZES)
def test_cluster_equals_the_sequential_program(m: int, groups: int, clusters: int) -> None:
    args, want = exact_case(m, groups, clusters)
    for seed in range(4):
        got = run(load(NAMES[0]), args, seed)
        np.testing.assert_array_equal(got["Y"], want["Y"], err_msg=f"seed {seed}")


@pytest.mark.parametrize("name", NAMES)
def test_against_float64(name: str) -> None:
    args = arguments(3, 11, 1, exact=False)
    x = np.asarray(args["X"]).astype(np.float64).reshape(3, -1)
    want = np.exp(x - x.max(axis=1, keepdims=True))
    want /= want.sum(axis=1, keepdims=True)
    got = run(load(name), args)["Y"].astype(np.float64).reshape(3, -1)
    np.testing.assert_allclose(got, want, rtol=2**-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_warp_that_sees_nothing_but_minus_infinity(name: str) -> None:
    args = arguments(1, 8, 1, exact=True)
    np.asarray(args["X"])[:, 3:5] = -np.inf
    got = run(load(name), args)["Y"].astype(np.float64)
    assert not got[:, 3:5].any()
    np.testing.assert_allclose(got.sum(), 1, rtol=2**-8)


BREAKING = (13, 27, 1)
MUTANTS = list(mutants(load(NAMES[0])))


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[name for name, _ in MUTANTS])
def test_every_dropped_synchronisation_shows(index: int) -> None:
    name, mutant = MUTANTS[index]
    assert noticed(mutant, *exact_case(*BREAKING), range(3)), name


# what a slip of the pen would do: what stands there, and what stands there instead
SLIPS = {
    "one slot for all messages": (
        ("pairs[g, turn, 0, rank", "pairs[g, 0, 0, rank"),
        ("pairs[g, turn, 1, rank", "pairs[g, 0, 1, rank"),
        ("pairs[g, turn, 0, :]", "pairs[g, 0, 0, :]"),
        ("pairs[g, turn, 1, :]", "pairs[g, 0, 1, :]"),
    ),
    "the instances share their slots": (("pairs[g, turn", "pairs[0, turn"),),
    "the block alone is in step": (("sync cluster", "sync block"),),
    "stale phase": (("phase it // 2 % 2", "phase it % 2"),),
    "half the bytes": (("@peer bytes=64", "@peer bytes=32"),),
    "refilled while the store reads": (("bulk pending 1", "bulk pending 2"),),
    "refilled a row early": (
        ("(it + 2) % 3", "it % 3"), ("row + 4 * clusters", "row + 6 * clusters"),
        ("it > 0", "it >= 0"),
    ),
    "arrivals at home": (("arrive got[g, turn]@peer", "arrive got[g, turn]"),),
    "announced before the row behind is read": (
        ("        for peer in 0 .. 4 kind=unroll { arrive got[g, turn]@peer bytes=64 }\n", ""),
        ("        wait got[g, turn] phase it // 2 % 2\n",
         "        wait got[g, turn] phase it // 2 % 2\n        for peer in 0 .. 4 kind=unroll "
         "{ arrive got[g, 1 - turn]@peer bytes=64 }\n"),
        ("      for j in 0 .. 3 {\n",
         "      for peer in 0 .. 4 kind=unroll { arrive got[g, 0]@peer bytes=64 }\n"
         "      for j in 0 .. 3 {\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_every_slip_shows(slip: str) -> None:
    text = (HERE / f"{NAMES[0]}.tw").read_text()
    for old, new in SLIPS[slip]:
        assert old in text
        text = text.replace(old, new)
    assert noticed(parse_program(text), *exact_case(*BREAKING), range(3))
