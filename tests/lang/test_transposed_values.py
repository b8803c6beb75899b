"""`.T` of what is read from a tensor."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T


@tw.jit
def weighted(X, W):
    B, S, N = T.const("B, S, N")
    X: T.Tensor((B, S, N), "float32")
    W: T.Tensor((B, S), "float32")
    Y = T.empty((B, N), "float32")
    for b, n in T.tile(T.each(B), N):
        Y[b, n] = T.sum(T.load(W[b, :]) * X[b, :, n].T, dim=1)
    return Y


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("size", [1, 7])
def test_a_whole_dimension_may_have_one_element(size, target):
    rng = np.random.default_rng(size)
    x, w = rng.random((3, size, 16), np.float32), rng.random((3, size), np.float32)
    want = np.einsum("bsn,bs->bn", x, w)
    np.testing.assert_allclose(weighted.on(target)(x, w), want, rtol=1e-5)
