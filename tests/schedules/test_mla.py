"""MLA decode: the seesaw schedule against a sequential program, float64 and its own mutants."""

from __future__ import annotations

from functools import cache
from math import log2

import ml_dtypes
import numpy as np
import pytest

from tests.schedules.harness import HERE, load, mutants, noticed, run
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, walk_ops
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify

# no key at all; one block, whole and partial; pairs and odd counts, whole and with a tail
SEQS = (0, 1, 64, 65, 128, 150, 192, 257, 320)
SHARED_BYTES = 232_448
LOG2_E = log2(np.e)


def arguments(seq: int, batch: int, exact: bool, groups: int = 1) -> dict[str, object]:
    rng = np.random.default_rng(seq + 1)
    heads = 64 * groups
    if exact:
        # two entries a row, spread over all nine column tiles: scores are integers in ±4, so every
        # power of two, product and sum is exact and any order of work gives the same bits
        q = np.zeros((batch, heads, 576))
        row = np.arange(heads)
        for shift in (0, 5):
            col = (row + shift) % 9 * 64 + rng.integers(0, 64, (batch, heads))
            q[np.arange(batch)[:, None], row, col] = rng.choice((-1, 1), (batch, heads))
        k = rng.integers(-2, 3, (batch, seq, 576))
    else:
        q = rng.standard_normal((batch, heads, 576))
        k = rng.standard_normal((batch, seq, 576))
    bf16 = ml_dtypes.bfloat16
    return {
        "Q": q.astype(bf16).reshape(batch, groups, 64, 576),
        "K": k.astype(bf16),
        "O": np.full((batch, groups, 64, 512), 7, bf16),
        "LSE": np.full((batch, groups, 64), 7, np.float32),
        "scale": 1.0 if exact else LOG2_E / 24,
    }


@cache
def exact_case(
    seq: int, batch: int, groups: int = 1
) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    args = arguments(seq, batch, exact=True, groups=groups)
    got = run(load("mla_plain"), args)
    return args, {name: got[name] for name in ("O", "LSE")}


def reference(args: dict[str, object]) -> tuple[np.ndarray, np.ndarray]:
    q, k = (np.asarray(args[name]).astype(np.float64) for name in "QK")
    scores = np.einsum("bghd,btd->bght", q, k) * args["scale"]
    if scores.shape[-1] == 0:
        return np.zeros((*q.shape[:3], 512)), np.full(q.shape[:3], -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp2(scores - top)
    total = p.sum(axis=-1, keepdims=True)
    return p @ k[:, None, :, :512] / total, (top + np.log2(total))[..., 0]


@pytest.mark.parametrize("name", ["mla_seesaw", "mla_plain"])
def test_text_round_trip(name: str) -> None:
    program = load(name)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_verifies() -> None:
    verify(load("mla_plain"), Stage.TILE)
    verify(load("mla_seesaw"), Stage.LAID_OUT)


def test_shared_memory_fits() -> None:
    used = 0
    for op in walk_ops(load("mla_seesaw").kernels):
        if isinstance(op, Alloc) and op.buffer.space is Space.SHARED:
            used += op.buffer.bytes
        elif isinstance(op, Alloc) and op.buffer.space is Space.BARRIER:
            used += 8 * int(np.prod(op.buffer.static_shape))
    assert used == 231_064
    assert used + 1024 <= SHARED_BYTES  # the swizzle wants 1024-byte alignment


@pytest.mark.parametrize("seq", SEQS)
def test_seesaw_equals_the_sequential_program(seq: int) -> None:
    args, want = exact_case(seq, *((2, 2) if seq == 150 else (1, 1)))
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
    args, want = exact_case(150, 2, 2)
    out, lse = reference(args)
    np.testing.assert_array_equal(want["O"], out.astype(np.float32).astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(want["LSE"], lse, rtol=1e-6)


BREAKING = [(seq, 1) for seq in (320, 192, 128)]  # five blocks, three, and one pair
MUTANTS = list(mutants(load("mla_seesaw")))


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[name for name, _ in MUTANTS])
def test_every_dropped_synchronisation_shows(index: int) -> None:
    name, mutant = MUTANTS[index]
    assert any(noticed(mutant, *exact_case(*case), range(3)) for case in BREAKING), name


# what a slip of the pen would do: what stands there, and what stands there instead
SLIPS = {
    "one group too few, P1·V1": (("pending 1         # P1", "pending 2         # P1"),),
    "one group too few, P0·V0": (("pending 1           # P0", "pending 2           # P0"),),
    "stale phase, wg0": (("wait full[0, c] phase (i + 1) % 2", "wait full[0, c] phase i % 2"),),
    "stale phase, wg1": (("wait full[1, c] phase (i + 1) % 2", "wait full[1, c] phase i % 2"),),
    "phase that does not turn": (("wait full[0, 8] phase (i + 1) % 2", "wait full[0, 8] phase 1"),),
    "half the bytes": (("arrive full[1, c] bytes=8192", "arrive full[1, c] bytes=4096"),),
    "wrong id": (("named id=3 threads=256 arrive", "named id=4 threads=256 arrive"),),
    "arrival before the fence, P0": (
        ("fence proxy_async\n        sync named id=3 threads=256 arrive",
         "sync named id=3 threads=256 arrive\n        fence proxy_async"),
    ),
    "store after the arrival, P1": (
        ("          sync named id=4 threads=256 arrive\n", ""),
        ("copy s -> ps[1", "sync named id=4 threads=256 arrive\n          copy s -> ps[1"),
    ),
    "P1 where P0 goes": (("copy s -> ps[1, :, :]", "copy s -> ps[0, :, :]"),),
    "P1 before the rope columns are read": (
        ("sync named id=1 threads=256\n", "\n"), ("named id=1 threads=256 arrive", "warp"),
    ),
    "result staged where the other still reads": (
        ("copy o -> k[0, :, 0:+256]", "copy o -> k[0, :, 256:+256]"),
    ),
    "each first waits for the tiles that the other refills": (
        ("wait_group wgmma pending 1         # P1",
         "wait full[0, 4] phase (i + 1) % 2\n            wait_group wgmma pending 1 # P1"),
        ("wait_group wgmma pending 1           # P0",
         "wait full[1, 0] phase (i + 1) % 2\n          wait_group wgmma pending 1 # P0"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_every_slip_shows(slip: str) -> None:
    text = (HERE / "mla_seesaw.tw").read_text()
    for old, new in SLIPS[slip]:
        assert old in text
        text = text.replace(old, new)
    broken = parse_program(text)
    assert any(noticed(broken, *exact_case(*case), range(3)) for case in BREAKING)
