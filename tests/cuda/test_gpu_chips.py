"""Code for older chips on the GPU at hand: PTX of their architectures, which the driver finishes.
Features that they lack are switched off, and limits are theirs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.test_chips import narrow_product
from tests.roads import DEVICE
from zoo.attention.flash import flash_attention
from zoo.attention.flash import reference as attended
from zoo.gemm.gemm import gemm_relu
from zoo.gemm.gemm import reference as multiplied
from zoo.gemm.scaled import gemm_scaled
from zoo.gemm.scaled import reference as scaled
from zoo.softmax.softmax import reference as softmaxed
from zoo.softmax.softmax import softmax_rows

pytestmark = pytest.mark.gpu
KIND = DEVICE["gpu-sm_90a"].kind
OLDER = [f"{KIND} -arch=compute_{n}" for n in (80, 86, 89, 90)]


def normal(*shape, dtype="float16", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def close(got, want, bound):
    scale = np.abs(want).max()
    assert np.abs(got.astype(np.float64) - want).max() <= bound * scale


@pytest.mark.parametrize("target", OLDER)
@pytest.mark.parametrize("wide", [False, True])
def test_gemm(target, wide):
    sizes = {"block_N": 256, "threads": 256} if wide else {}
    a, b, c = normal(300, 256), normal(256, 520, seed=1), np.empty((300, 520), "float16")
    gemm_relu.on(target)(300, 520, 256, **sizes)(a, b, c)
    close(c, multiplied(a, b, relu=True), 2e-3)


@pytest.mark.parametrize("target", OLDER)
def test_attention(target):
    q, k, v = (normal(1, 2, 200, 64, seed=s) for s in range(3))
    o = np.empty_like(q)
    flash_attention.on(target)(1, 2, 2, 200, 200, 64, True)(q, k, v, o)
    close(o, attended(q, k, v, causal=True), 4e-3)


@pytest.mark.parametrize("target", OLDER)
@pytest.mark.parametrize("columns", [1000, 20000])
def test_softmax(target, columns):
    x = normal(5, columns, dtype=ml_dtypes.bfloat16)
    y = np.empty_like(x)
    softmax_rows(columns, target=target)(x, y)
    close(y, softmaxed(x), 1e-2)


FLOATS = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("target", OLDER)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_8_bit_floats(target, dtype):
    """By `mma` from sm_89 on. Small integers: every sum is exact."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (64, 128)).astype(FLOATS[dtype]) for _ in range(2))
    c = np.empty((64, 64), np.float32)
    narrow_product.on(target)(dtype)(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("target", OLDER)
def test_scaled_products(target):
    M, N, K, group = 200, 264, 384, 128
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((n, K)).astype(ml_dtypes.float8_e4m3fn) for n in (M, N))
    sa = rng.random((M, 3), np.float32) + 0.5
    sb = rng.random((-(-N // group), 3), np.float32) + 0.5
    c = np.empty((M, N), ml_dtypes.bfloat16)
    gemm_scaled.on(target)(M, N, K)(a, b, sa, sb, c)
    close(c, scaled(a, b, sa, sb, group), 8e-3)
