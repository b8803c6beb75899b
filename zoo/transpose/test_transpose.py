import numpy as np
import pytest

import tilewright as tw
from zoo.case import normal
from zoo.transpose.transpose import reference, transpose_rows


@pytest.mark.parametrize("through", ["shared", "registers"])
@pytest.mark.parametrize("M, N", [(1, 1), (64, 64), (70, 130), (3, 300)])
def test_transpose_rows(target, M, N, through):
    x = normal(M, N, dtype="bfloat16")
    y = np.zeros((N, M), x.dtype)
    transpose_rows(N, target=target, through=through)(x, y)
    np.testing.assert_array_equal(y, reference(x))


@pytest.mark.parametrize("N", [40, 256, 1160])
def test_aligned_rows(target, N):
    x = normal(136, N, dtype="bfloat16")
    y = np.zeros((N, 136), x.dtype)
    kernel = transpose_rows(N, aligned=True, target=target)
    kernel(x, y)
    np.testing.assert_array_equal(y, reference(x))
    with pytest.raises(tw.LaunchError, match="multiple of 8"):
        kernel(x[:9], y[:, :9].copy())


def test_tiles_that_are_not_square(target):
    x = normal(50, 90)
    y = np.zeros((90, 50), np.float32)
    transpose_rows(90, dtype="float32", target=target, block_M=32, block_N=16)(x, y)
    np.testing.assert_array_equal(y, reference(x))


@pytest.mark.parametrize("fronts", [(2, 1), (1, 3), (2, 2), (1, 8), (8, 1)])
def test_fronts(target, fronts):
    """Over columns of tiles, where these can be dealt, down them, and both; fronts that begin
    behind the last row."""
    for M, N in ((5, 3), (40, 32), (50, 90), (17, 130), (100, 16)):
        x = normal(M, N)
        y = np.full((N, M), np.nan, np.float32)
        sizes = {"block_M": 16, "block_N": 16, "threads": 64, "fronts": fronts}
        transpose_rows(N, dtype="float32", target=target, cache="evict_last", **sizes)(x, y)
        np.testing.assert_array_equal(y, reference(x))
