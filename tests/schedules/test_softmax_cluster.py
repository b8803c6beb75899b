"""Row softmax over a cluster: the schedule against a sequential program, NumPy and its mutants."""

from __future__ import annotations

from functools import cache
from math import log2

import numpy as np
import pytest

from tests.schedules.harness import HERE, load, mutants, noticed, run
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify

# rows: less than a tile, one tile, tails, and enough to go round the slots more than twice;
# columns: all, a tail in the last block, blocks that hold nothing; clusters
SIZES = ((3, 1024, 1), (8, 4, 1), (13, 900, 2), (40, 260, 1), (52, 512, 2))
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


@pytest.mark.parametrize(("m", "n", "clusters"), SIZES)
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


BREAKING = (40, 260, 1)
MUTANTS = list(mutants(load("softmax_cluster")))


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[name for name, _ in MUTANTS])
def test_every_dropped_synchronisation_shows(index: int) -> None:
    name, mutant = MUTANTS[index]
    assert noticed(mutant, *exact_case(*BREAKING), range(3)), name


# what a slip of the pen would do: what stands there, and what stands there instead
SLIPS = {
    "one slot for all messages": (
        ("slots[s, rank", "slots[0, rank"), ("slots[s, peer", "slots[0, peer"),
        ("slots[s, 0", "slots[0, 0"),
    ),
    "bytes announced by the receiver": (
        ("barrier_init got count 4", "barrier_init got count 1"),
        ("          arrive got[s]@peer bytes=64\n", ""),
        ("for peer in 0 .. 4 kind=unroll {\n          copy",
         "arrive got[s] bytes=256\n        for peer in 0 .. 4 kind=unroll {\n          copy"),
    ),
    "the block alone is in step": (("sync cluster", "sync block"),),
    "stale phase": (("wait got[s] phase phase", "wait got[s] phase 1 - phase"),),
    "half the bytes": (("@peer bytes=64", "@peer bytes=32"),),
    "one staging tile": (
        ("-> out[s,", "-> out[0,"), ("copy out[s,", "copy out[0,"),
    ),
    "output in place of the next input": (("copy x -> out[s", "copy x -> in[s"),),
    "arrivals at home": (("arrive got[s]@peer", "arrive got[s]"),),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_every_slip_shows(slip: str) -> None:
    text = (HERE / "softmax_cluster.tw").read_text()
    for old, new in SLIPS[slip]:
        assert old in text
        text = text.replace(old, new)
    assert noticed(parse_program(text), *exact_case(*BREAKING), range(3))
