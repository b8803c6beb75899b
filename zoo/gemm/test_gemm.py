import ml_dtypes
import numpy as np
import pytest

from zoo.case import normal
from zoo.gemm.gemm import gemm_relu, gemm_transposed, reference


def small_integers(*shape, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("M, N, K", [(128, 128, 64), (200, 72, 100), (17, 33, 5), (128, 256, 192)])
def test_gemm_relu(target, M, N, K):
    a, b = normal(M, K, dtype=np.float16, seed=1), normal(K, N, dtype=np.float16, seed=2)
    c = np.full((M, N), np.nan, np.float16)
    gemm_relu.on(target)(M, N, K, 64, 64, 32)(a, b, c)
    want = reference(a, b, relu=True)
    np.testing.assert_allclose(c.astype(np.float64), want, atol=2e-3 * abs(want).max())


@pytest.mark.parametrize("block", [(64, 8, 16), (32, 24, 16), (64, 176, 32), (96, 208, 48)])
@pytest.mark.parametrize("K", [1, 40, 50])
def test_odd_tiles_are_exact_on_small_integers(target, block, K):
    a, b = small_integers(100, K, seed=1), small_integers(K, 90, seed=2)
    c = np.full((100, 90), np.nan, np.float16)
    gemm_relu.on(target)(100, 90, K, *block)(a, b, c)
    np.testing.assert_array_equal(c, reference(a, b, relu=True))


@pytest.mark.parametrize("transpose_A", [False, True])
@pytest.mark.parametrize("transpose_B", [False, True])
@pytest.mark.parametrize("M, N, K", [(64, 64, 64), (70, 50, 90)])
def test_transposed(target, transpose_A, transpose_B, M, N, K):
    a, b = small_integers(M, K, seed=1), small_integers(K, N, seed=2)
    c = np.full((M, N), np.nan, np.float16)
    kernel = gemm_transposed.on(target)(M, N, K, transpose_A, transpose_B)
    kernel(
        np.ascontiguousarray(a.T) if transpose_A else a,
        np.ascontiguousarray(b.T) if transpose_B else b,
        c,
    )
    np.testing.assert_array_equal(c, reference(a, b))


@pytest.mark.parametrize(
    "dtype, accum",
    [
        ("float32", "float32"),
        ("float64", "float64"),
        (ml_dtypes.bfloat16, "float32"),
        (ml_dtypes.float8_e4m3fn, "float32"),
        (ml_dtypes.float8_e5m2, "float32"),
        ("int8", "int32"),
    ],
)
def test_dtypes(target, dtype, accum):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-1, 2, (40, 24)).astype(dtype), rng.integers(-1, 2, (24, 48)).astype(dtype)
    c = np.zeros((40, 48), dtype)
    gemm_relu.on(target)(40, 48, 24, 32, 32, 16, dtype=dtype, accum=accum)(a, b, c)
    np.testing.assert_array_equal(
        c.astype(np.float64), reference(a, b, relu=True).astype(dtype).astype(np.float64)
    )
