import ml_dtypes
import numpy as np
import pytest

from zoo.gemm.scaled import gemm_scaled, reference


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, np.float16])
@pytest.mark.parametrize("M, N, K", [(128, 128, 128), (200, 72, 160), (128, 256, 96)])
def test_gemm_scaled(target, M, N, K, dtype):
    rng = np.random.default_rng(0)
    group = 32
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in [(M, K), (N, K)])
    groups = -(-K // group)
    a_scale = rng.integers(1, 4, (M, groups)).astype(np.float32)
    b_scale = rng.integers(1, 4, (-(-N // group), groups)).astype(np.float32)
    c = np.full((M, N), np.nan, np.float32)
    name = "float16" if dtype is np.float16 else "float8_e4m3fn"
    kernel = gemm_scaled.on(target)(
        M, N, K, block_M=64, block_N=64, group=group, threads=128, dtype=name, out="float32"
    )
    kernel(a, b, a_scale, b_scale, c)
    np.testing.assert_array_equal(c, reference(a, b, a_scale, b_scale, group))
