"""Row softmax over a cluster: the schedule against a sequential program, NumPy and its mutants."""

from __future__ import annotations

from functools import cache
from math import log2

import numpy as np
import pytest
from harness import load, mutants, noticed, run

from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify

# rows: less than a tile, one tile, tails, and enough for one and for two clusters to go round
# their slots twice; columns: all, a tail in the last block, blocks that hold nothing
SIZES = ((3, 1024), (8, 4), (13, 900), (40, 260), (52, 1024), (70, 512))
LOG2_E = log2(np.e)


def arguments(m: int, n: int, clusters: int, exact: bool) -> dict[str, object]:
    rng = np.random.default_rng(m * n)
    # integers and powers of two: every sum is exact, in any order
    x = rng.integers(-6, 7, (m, n)) if exact else rng.standard_normal((m, n)) * 3
    return {
        "X": x.astype(np.float32),
        "Y": np.full((m, n), 7, np.float32),
        "scale": 1.0 if exact else LOG2_E,
        "blocks": 4 * clusters,
    }


@cache
def exact_case(m: int, n: int, clusters: int) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    args = arguments(m, n, clusters, exact=True)
    return args, {"Y": run(load("softmax_plain"), args)["Y"]}


@pytest.mark.parametrize("name", ["softmax_cluster", "softmax_plain"])
def test_text_round_trip(name: str) -> None:
    program = load(name)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_verifies() -> None:
    verify(load("softmax_plain"), Stage.TILE)
    verify(load("softmax_cluster"), Stage.LAID_OUT)


@pytest.mark.parametrize("clusters", [1, 2])
@pytest.mark.parametrize(("m", "n"), SIZES)
def test_cluster_equals_the_sequential_program(m: int, n: int, clusters: int) -> None:
    args, want = exact_case(m, n, clusters)
    for seed in range(10):
        got = run(load("softmax_cluster"), args, seed)
        np.testing.assert_array_equal(got["Y"], want["Y"], err_msg=f"seed {seed}")


@pytest.mark.parametrize("name", ["softmax_cluster", "softmax_plain"])
def test_against_float64(name: str) -> None:
    args = arguments(19, 772, 1, exact=False)
    x = np.asarray(args["X"]).astype(np.float64)
    want = np.exp(x - x.max(axis=1, keepdims=True))
    want /= want.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run(load(name), args)["Y"], want, rtol=4e-6)


MUTANTS = list(mutants(load("softmax_cluster")))


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[name for name, _ in MUTANTS])
def test_every_dropped_synchronisation_shows(index: int) -> None:
    name, mutant = MUTANTS[index]
    args, want = exact_case(40, 260, 1)
    assert noticed(mutant, args, want, range(3)), f"nobody notices without {name}"
