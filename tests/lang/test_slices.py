"""Slices whose begin is known at run time only, and their length when the kernel is traced."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

TARGETS = ["interp -sanitize", "cpu", *on_threads("threads-sm_90a"), *on_gpu()]


@tw.jit
def group_norm(X, weight, groups: int):
    N, C, L = T.const("N, C, L")
    X: T.Tensor((N, C, L), "float32")
    weight: T.Tensor((C,), "float32")
    Y = T.empty((N, C, L), "float32")
    per = C // groups
    for n, g in T.tile(T.each(N), T.each(groups)):
        low = g * per
        x = T.load(X[n, low : low + per, :])
        mean, var = T.mean(x, dim=(0, 1)), T.var(x, dim=(0, 1))
        x = (x - mean) * T.rsqrt(var + 1e-5)
        Y[n, low : low + per, :] = x * weight[low : low + per, None]
    return Y


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape, groups", [((2, 6, 50), 2), ((1, 6, 1500), 3), ((2, 3, 40), 3)])
def test_a_group_of_channels(target, shape, groups):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in (shape, shape[1]))
    rows = x.reshape(shape[0], groups, -1)
    mean, var = (f(rows, axis=2, keepdims=True) for f in (np.mean, np.var))
    want = ((rows - mean) / np.sqrt(var + 1e-5)).reshape(shape) * w[:, None]
    np.testing.assert_allclose(group_norm.on(target)(x, w, groups), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
def test_outside_is_zero(target):
    @tw.jit
    def shifted(X, by):
        N = T.const("N")
        X: T.Tensor((N,), "int32")
        by: T.Tensor((2,), "int32")
        Y = T.empty((2, 4), "int32")
        for k in T.tile(T.each(2)):
            Y[k, :] = X[by[k] : by[k] + 4]
        return Y

    got = shifted.on(target)(np.arange(1, 6, dtype=np.int32), np.array([-2, 3], np.int32))
    assert got.tolist() == [[0, 0, 1, 2], [4, 5, 0, 0]]


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
def test_the_shape_of_a_tensor_keeps_the_names_of_sizes(target):
    @tw.jit
    def doubled(X):
        N, H, W = T.const("N, H, W")
        X: T.Tensor((N, H, W), "int32")
        Y = T.empty(X.shape, "int32")
        for n in T.tile(N):
            Y[n, :, :] = X[n, :, :] * 2
        return Y

    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert (doubled.on(target)(x) == 2 * x).all()
