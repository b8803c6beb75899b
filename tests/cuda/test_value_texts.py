"""Value texts of the zoo at the tiles of a GPU: their thread code, and their instructions."""

import re
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from tests.roads import on_gpu, on_threads
from zoo.attention import backward, flash
from zoo.attention import values as attention
from zoo.case import normal
from zoo.gemm import scaled
from zoo.gemm import values as gemm
from zoo.mla import decode
from zoo.mla import values as mla

BF16 = ml_dtypes.bfloat16
each_target = pytest.mark.parametrize("target", [*on_threads("threads-sm_90a"), *on_gpu()])


def close(got, want, bound):
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), want, rtol=bound, atol=bound)


@each_target
def test_a_scaled_product_in_pieces(target):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(ml_dtypes.float8_e4m3fn) for s in [(128, 64), (256, 64)])
    scales = [rng.integers(1, 4, s).astype(np.float32) for s in [(128, 2), (8, 2)]]
    kernel = gemm.matmul_scaled.on(target).with_schedule(tiles={"m": 128, "n": 256}, threads=256)
    close(kernel(a, b, *scales, 32), scaled.reference(a, b, *scales, 32), 4e-3)


@each_target
def test_gradients(target):
    q, do, k, v = (normal(1, 1, 132, 16, dtype=BF16, seed=s) for s in range(4))
    o, sums = map(np.asarray, attention.attention_with_sums.on("cpu")(q, k, v))
    close(o, flash.reference(q, k, v, causal=True), 2e-2)
    tiles = {"m": 64, "n": 128, "i": 128, "j": 64, "r": 64}
    kernel = attention.attention_gradients.on(target).with_schedule(tiles=tiles, threads=256)
    found = kernel(q, k, v, o, do, sums)
    for got, want in zip(found, backward.reference(q, k, v, do, causal=True), strict=True):
        close(got, want, 4e-2)


@each_target
def test_warpgroups_share_heads(target):
    q, qr = normal(1, 64, 64, dtype=BF16, seed=1), normal(1, 64, 16, dtype=BF16, seed=2)
    kv, kr = normal(1, 150, 64, dtype=BF16, seed=3), normal(1, 150, 16, dtype=BF16, seed=4)
    tiles = {"h": 64, "j": 64, "runs": 2}
    kernel = mla.mla_decode.on(target).with_schedule(tiles=tiles, threads=256)
    close(kernel(q, qr, kv, kr), decode.reference(q, qr, kv, kr), 1e-2)


@each_target
def test_gathered_operands(target):
    x, f = normal(1, 9, 8, 32, dtype=BF16, seed=1), normal(3, 3, 32, 64, dtype=BF16, seed=2)
    wide = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = ((y, z) for y in range(3) for z in range(3))
    want = sum(wide[:, y : y + 9, z : z + 8] @ f[y, z].astype(np.float64) for y, z in taps)
    tiles = {"p": 64, "o": 64, "c": 32}
    close(gemm.convolution.on(target).with_schedule(tiles=tiles)(x, f), want, 2e-2)


GRADIENTS = {"m": 64, "n": 128, "i": 128, "j": 64, "r": 64}
HOPPER = "cuda -arch=sm_90a"
INSTRUCTION = re.compile(r"\b(wgmma_\w+|bulk_(?:load|store)\w*|(?:st|ld)matrix\w*|cp_async\w*)\(")


def instructions(*kernels):
    """Of products and copies, how often each stands in the code."""
    texts = [kernel.get_kernel_source().partition('extern "C"')[2] for kernel in kernels]
    return Counter(name for text in texts for name in INSTRUCTION.findall(text))


def value_text(kernel, tiles, threads, sizes, **schedule):
    made = kernel.on(HOPPER).with_schedule(tiles=tiles, threads=threads, **schedule)
    return made.compile(**sizes)


def scaled_texts():
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    yield value_text(gemm.matmul_scaled, {"m": 128, "n": 256}, 256, sizes, stages=3)
    yield scaled.gemm_scaled.on(HOPPER).with_schedule(stages=3)(4096, 4096, 4096)


def attention_texts():
    sizes = dict(zip("BHGSLD", (1, 2, 2, 8192, 8192, 64), strict=True))
    yield value_text(attention.attention, {"i": 192, "j": 128}, 384, sizes)
    yield flash.flash_attention.on(HOPPER)(
        1,
        2,
        2,
        8192,
        8192,
        64,
        causal=True,
        block_M=192,
        block_N=128,
        threads=384,
        dtype="bfloat16",
    )


def gradient_texts():
    shape = (1, 2, 2, 4096, 4096, 128)
    sizes = dict(zip("BHGSLD", shape, strict=True))
    yield value_text(attention.attention_gradients, GRADIENTS, 256, sizes, stages=2)
    for factory, rows, columns in (
        (backward.keys_gradient, 64, 128),
        (backward.queries_gradient, 128, 64),
    ):
        yield factory.on(HOPPER)(
            *shape, causal=True, block_M=rows, block_N=columns, threads=256, dtype="bfloat16"
        )


def decode_texts():
    sizes = {"B": 4, "H": 128, "L": 8192, "D": 512, "R": 64}
    yield value_text(mla.mla_decode, {"h": 64, "j": 64, "runs": 2}, 256, sizes)
    yield decode.mla_decode.on(HOPPER)(4, 128, 8192, splits=2, dtype="bfloat16")


@pytest.mark.parametrize(
    "texts",
    [
        scaled_texts,
        attention_texts,
        pytest.param(gradient_texts, marks=pytest.mark.slow),
        pytest.param(decode_texts, marks=pytest.mark.slow),
    ],
)
def test_the_same_instructions_as_of_words(texts):
    ours, *words = texts()
    found = instructions(ours)
    assert found == instructions(*words)
    assert any(name.startswith("wgmma") for name in found)
