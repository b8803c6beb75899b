"""MLA decode: the seesaw schedule against a sequential program, a NumPy reference and its mutants."""

from __future__ import annotations

from functools import cache
from math import log2

import ml_dtypes
import numpy as np
import pytest
from harness import load, mutants, noticed, run

from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify

# no key at all; one block, whole and partial; pairs and odd counts, whole and with a tail
SEQS = (0, 1, 64, 65, 128, 150, 192, 257, 320)
LOG2_E = log2(np.e)


def arguments(seq: int, batch: int, exact: bool) -> dict[str, object]:
    rng = np.random.default_rng(seq + 1)
    if exact:
        # two entries a row, spread over all nine column tiles: scores are integers in ±4, so every
        # power of two, product and sum is exact and any order of work gives the same bits
        q = np.zeros((batch, 64, 576))
        row = np.arange(64)
        for shift in (0, 5):
            col = (row + shift) % 9 * 64 + rng.integers(0, 64, (batch, 64))
            q[np.arange(batch)[:, None], row, col] = rng.choice((-1, 1), (batch, 64))
        k = rng.integers(-2, 3, (batch, seq, 576))
    else:
        q = rng.standard_normal((batch, 64, 576))
        k = rng.standard_normal((batch, seq, 576))
    bf16 = ml_dtypes.bfloat16
    return {
        "Q": q.astype(bf16),
        "K": k.astype(bf16),
        "O": np.full((batch, 64, 512), 7, bf16),
        "LSE": np.full((batch, 64), 7, np.float32),
        "scale": 1.0 if exact else LOG2_E / 24,
    }


@cache
def exact_case(seq: int, batch: int) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    args = arguments(seq, batch, exact=True)
    got = run(load("mla_plain"), args)
    return args, {name: got[name] for name in ("O", "LSE")}


def reference(args: dict[str, object]) -> tuple[np.ndarray, np.ndarray]:
    q, k = (np.asarray(args[name]).astype(np.float64) for name in "QK")
    scores = np.einsum("bhd,btd->bht", q, k) * args["scale"]
    if scores.shape[2] == 0:
        return np.zeros((len(q), 64, 512)), np.full((len(q), 64), -np.inf)
    top = scores.max(axis=2, keepdims=True)
    p = np.exp2(scores - top)
    total = p.sum(axis=2, keepdims=True)
    return p @ k[:, :, :512] / total, (top + np.log2(total))[:, :, 0]


@pytest.mark.parametrize("name", ["mla_seesaw", "mla_plain"])
def test_text_round_trip(name: str) -> None:
    program = load(name)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_verifies() -> None:
    verify(load("mla_plain"), Stage.TILE)
    verify(load("mla_seesaw"), Stage.LAID_OUT)


@pytest.mark.parametrize("seq", SEQS)
def test_seesaw_equals_the_sequential_program(seq: int) -> None:
    args, want = exact_case(seq, 2)
    for seed in range(10):
        got = run(load("mla_seesaw"), args, seed)
        for name, expected in want.items():
            np.testing.assert_array_equal(got[name], expected, err_msg=f"{name}, seed {seed}")


@pytest.mark.parametrize("name", ["mla_seesaw", "mla_plain"])
@pytest.mark.parametrize("seq", [0, 40, 130, 200])
def test_against_float64(name: str, seq: int) -> None:
    args = arguments(seq, 1, exact=False)
    got = run(load(name), args)
    out, lse = reference(args)
    # P is rounded to bfloat16, O once more: 2^-9 each, of values up to about 4
    np.testing.assert_allclose(got["O"].astype(np.float64), out, rtol=2**-7, atol=2**-7)
    np.testing.assert_allclose(got["LSE"], lse, rtol=1e-5, atol=1e-5)


def test_exact_data_is_exact() -> None:
    args, want = exact_case(150, 2)
    out, lse = reference(args)
    np.testing.assert_array_equal(want["O"], out.astype(np.float32).astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(want["LSE"], lse, rtol=1e-6)


MUTANTS = list(mutants(load("mla_seesaw")))


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[name for name, _ in MUTANTS])
def test_every_dropped_synchronisation_shows(index: int) -> None:
    name, mutant = MUTANTS[index]
    for seq in (320, 192):  # an odd number of blocks, five and three
        args, want = exact_case(seq, 1)
        if noticed(mutant, args, want, range(3)):
            return
    pytest.fail(f"nobody notices without {name}")
