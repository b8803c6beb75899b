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
        "blocks": 2 * clusters,
        "counter": np.zeros(1, np.int32),
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
        assert got["counter"][0] == 0, "the next launch finds the counter as this one did"


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
    "one slot for all messages": (("pairs[turn", "pairs[0"),),
    "one slot for the next row": (("next[it % 2", "next[0"), ("next[(it + 1) % 2", "next[0")),
    "the block alone is in step": (("sync cluster", "sync block"),),
    "stale phase": (("phase it // 2 % 2", "phase it % 2"),),
    "stale row": (("phase (it - 1) // 2 % 2", "phase it // 2 % 2"),),
    "half the bytes": (("@peer bytes=8", "@peer bytes=4"),),
    "refilled while it is read": (
        ("        copy tile[g, :, :] -> x atom=threads\n", ""),
        ("        reduce max x -> part dim 0\n",
         "        copy tile[g, :, :] -> x atom=threads\n        reduce max x -> part dim 0\n"),
    ),
    "arrivals at home": (("arrive got[turn]@peer", "arrive got[turn]"),),
    "every other row": (("value=1", "value=2"),),
    "a row is left out": (("taken + 2 * clusters", "taken + 3 * clusters"),),
    "announced before the next row's number is read": (
        ("        for peer in 0 .. 2 kind=unroll { arrive got[turn]@peer bytes=8 }\n", ""),
        ("        wait full[g] phase it % 2\n",
         "        for peer in 0 .. 2 kind=unroll { arrive got[turn]@peer bytes=8 }\n"
         "        wait full[g] phase it % 2\n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_every_slip_shows(slip: str) -> None:
    text = (HERE / f"{NAMES[0]}.tw").read_text()
    for old, new in SLIPS[slip]:
        assert old in text
        text = text.replace(old, new)
    assert noticed(parse_program(text), *exact_case(*BREAKING), range(3))
