"""FlashAttention-3 forward, scheduled by hand, against the sequential program and float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.schedules.harness import load, noticed, run, sync_ops, without
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const
from tilewright.ir.op import Alloc, walk_ops
from tilewright.ir.text import parse_program, print_op, print_program
from tilewright.ir.verify import Stage, verify

FULL, CAUSAL = "flash_attention", "flash_attention_causal"
FULL_64, CAUSAL_64 = "flash_attention_64", "flash_attention_64_causal"
NAMES = [FULL, CAUSAL, FULL_64, CAUSAL_64]
SHARED_BYTES = 232_448

# batch, heads, sq, sk, blocks
SIZES = {
    FULL: [
        (1, 1, 64, 100, 1),  # one tile, whose second consumer has no rows; no steady iteration
        (1, 1, 300, 100, 1),  # three tiles in a row without one
        (1, 1, 128, 352, 1),  # one steady iteration, no tail
        (2, 1, 130, 353, 3),  # odd; blocks that get one tile and two
        (1, 2, 256, 530, 1),  # a ring that runs on over four tiles of four key blocks
    ],
    CAUSAL: [
        (1, 1, 128, 128, 1),  # the diagonal block alone
        (1, 3, 128, 128, 1),  # three tiles of it
        (1, 2, 256, 256, 2),  # no masked iteration after the peeled one
        (1, 1, 300, 333, 2),  # odd: the diagonal crosses two blocks
        (1, 1, 130, 450, 1),  # more keys than queries: iterations of both kinds
        (1, 1, 300, 77, 2),  # more queries than keys: some see nothing
    ],
    FULL_64: [
        (1, 1, 100, 100, 1),  # one tile, whose last consumer has no rows; no steady iteration
        (1, 1, 400, 100, 1),  # three tiles in a row without one
        (2, 1, 194, 257, 3),  # odd; blocks that get one tile and two
        (1, 1, 384, 640, 1),  # rings that come round within a tile and run on over the next
    ],
    CAUSAL_64: [
        (1, 3, 192, 192, 1),  # three tiles that the diagonal crosses whole
        (1, 1, 400, 433, 2),  # odd: it crosses up to three blocks
        (1, 1, 194, 700, 1),  # more keys than queries: iterations of both kinds
        (1, 1, 400, 77, 2),  # more queries than keys: some see nothing
    ],
}
CASES = [(name, size) for name in NAMES for size in SIZES[name]]
# Twice as many key blocks a tile as slots bring every slot and phase round again; with just as
# many, nothing but its own wait orders a tile's first load of K after the tile before.
BROKEN = {
    FULL: [(1, 1, 256, 530, 1), (1, 1, 384, 352, 1)],
    CAUSAL: [(1, 1, 256, 620, 1), (1, 3, 128, 256, 1)],
    FULL_64: [(1, 1, 384, 900, 1), (1, 1, 384, 512, 1)],
    CAUSAL_64: [(1, 1, 384, 900, 1), (1, 2, 192, 512, 1)],
}


def head_of(name: str) -> int:
    size = load(name).params[0].shape[-1]
    assert isinstance(size, Const)
    return int(size.value)


@cache
def inputs(head: int, size: tuple[int, ...]) -> dict[str, Any]:
    batch, heads, sq, sk, blocks = size
    rng = np.random.default_rng(sq + sk)

    def tensor(length: int) -> np.ndarray:
        return rng.standard_normal((batch, heads, length, head)).astype(ml_dtypes.bfloat16)

    return {
        "Q": tensor(sq),
        "K": tensor(sk),
        "V": tensor(sk),
        "O": np.full((batch, heads, sq, head), np.nan, ml_dtypes.bfloat16),
        "scale": np.float32(np.log2(np.e) / np.sqrt(head)),
        "blocks": blocks,
    }


@cache
def sequential(name: str, size: tuple[int, ...]) -> np.ndarray:
    """What the program without a schedule gives."""
    args = {k: v for k, v in inputs(head_of(name), size).items() if k != "blocks"}
    return run(load(f"{name}_plain"), args)["O"]


def exact(args: dict[str, Any], causal: bool) -> np.ndarray:
    q, k, v = (args[x].astype(np.float64) for x in "QKV")
    scores = q @ k.swapaxes(-1, -2) * float(args["scale"])
    sq, sk = scores.shape[-2:]
    if causal:
        seen = np.arange(sk) <= np.arange(sq)[:, None] + sk - sq
        scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    p = np.exp2(scores - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return p @ v / np.where(total > 0, total, 1)


@pytest.mark.parametrize("name", [*NAMES, *(f"{n}_plain" for n in NAMES)])
def test_text_comes_back(name: str) -> None:
    program = load(name)
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert print_program(again) == text


@pytest.mark.parametrize("name", NAMES)
def test_verifies(name: str) -> None:
    verify(load(name), Stage.LAID_OUT)
    verify(load(f"{name}_plain"), Stage.TILE)


@pytest.mark.parametrize("name", NAMES)
def test_fits_shared_memory(name: str) -> None:
    barriers = shared = 0
    for op in walk_ops(load(name).kernels[0]):
        if isinstance(op, Alloc) and op.buffer.space is Space.SHARED:
            shared += op.buffer.bytes
        elif isinstance(op, Alloc) and op.buffer.space is Space.BARRIER:
            barriers += 8 * int(op.buffer.static_shape[0])
    # 1024 to align the swizzled tiles
    assert shared + barriers + 1024 <= SHARED_BYTES


@pytest.mark.parametrize(("name", "size"), CASES)
def test_sequential_program_is_attention(name: str, size: tuple[int, ...]) -> None:
    got = sequential(name, size).astype(np.float64)
    want = exact(inputs(head_of(name), size), name.endswith("causal"))
    # the probabilities and the result are rounded to 8 bits
    np.testing.assert_allclose(got, want, atol=2**-7, rtol=2**-7)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_every_interleaving_equals_the_sequential_program(name: str, size: tuple[int, ...]) -> None:
    args, want = inputs(head_of(name), size), sequential(name, size)
    for seed in range(10):
        got = run(load(name), args, seed)["O"]
        np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}")


def _dropped() -> list[Any]:
    return [
        pytest.param(name, i, id=f"{name}:{op.loc.line if op.loc else i}: {print_op(op)}")
        for name in NAMES
        for i, op in enumerate(sync_ops(load(name)))
    ]


@pytest.mark.parametrize(("name", "index"), _dropped())
def test_what_is_dropped_is_missed(name: str, index: int) -> None:
    mutant = without(load(name), index)
    assert any(
        noticed(mutant, inputs(head_of(name), size), {"O": sequential(name, size)})
        for size in BROKEN[name]
    )
