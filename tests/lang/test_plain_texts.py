"""Texts that a newcomer writes mean what NumPy means."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T

each_target = pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])


@tw.jit
def loaded(X):
    M = T.const("M")
    X: T.Tensor((M,), "float32")
    scalars = T.empty((M,), "float32")
    tiles = T.empty((M,), "float32")
    before = T.empty((M,), "float32")
    for m in T.tile(T.each(M)):
        scalars[m] = T.load(X[m + 1], fill=-1) + T.load(X[m - 1], fill=T.inf)
    for m in T.tile(M):
        x = X[m + 1]
        tiles[m] = T.load(x, fill=-1)
    for m in T.tile(M):
        x = X[m]
        X[m] = x + 5
        before[m] = T.load(x)
    return scalars, tiles, before


@each_target
def test_a_load_fills_scalars_too_and_keeps_what_was_read(target):
    x = np.arange(5, dtype=np.float32)
    given = x.copy()
    scalars, tiles, before = loaded.on(target)(given)
    assert scalars.tolist() == [np.inf, 2, 4, 6, 2]
    assert tiles.tolist() == [1, 2, 3, 4, -1]
    assert before.tolist() == x.tolist() and given.tolist() == (x + 5).tolist()


@tw.jit
def of_both_signs(X, Y):
    N = T.const("N")
    X: T.Tensor((N,))
    Y: T.Tensor((N,))
    larger = T.empty((N,), "int64")
    chosen = T.empty((N,), "int64")
    is_more = T.empty((N,), "bool")
    for n in T.tile(N):
        x, y = X[n], Y[n]
        larger[n] = T.maximum(x, y)
        chosen[n] = T.where(n.index % 2 == 0, x, y)
        is_more[n] = x > y
    return larger, chosen, is_more


@each_target
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_integers_of_both_signs_keep_their_numbers(target, bits):
    most = np.uint64(2**bits - 1)
    x = np.array([most, 2, most - np.uint64(1), 0, 7], f"uint{bits}")
    y = np.array([-1, 1, 100, -100, 7], f"int{bits}")
    a, b = x.astype(np.int64), y.astype(np.int64)
    larger, chosen, is_more = of_both_signs.on(target)(x, y)
    assert larger.tolist() == np.maximum(a, b).tolist()
    assert chosen.tolist() == np.where(np.arange(5) % 2 == 0, a, b).tolist()
    assert is_more.tolist() == (a > b).tolist()


@tw.jit
def folded(X, B):
    M, N, K = T.const("M, N, K")
    X: T.Tensor((M, N), "float32")
    B: T.Tensor((N, K), "float32")
    sums = T.empty((M,), "float32")
    rising = T.empty((M, N), "float32")
    product = T.empty((M, K), "float32")
    for m in T.tile(M):
        sums[m] = T.sum(X[m, :], dim=1)
        rising[m, :] = T.scan(X[m, :], "max", dim=1)
    for m, k in T.tile(M, K):
        acc = T.zeros((m, k))
        for n in T.tile(N):
            acc += X[m, n] @ B[n, k]
        product[m, k] = acc
    return sums, rising, product


@each_target
def test_arrays_may_be_empty(target):
    for m, n, k in ((0, 3, 2), (3, 0, 2), (3, 2, 0), (2, 3, 2), (0, 0, 0)):
        x = np.arange(m * n, dtype=np.float32).reshape(m, n)
        b = np.ones((n, k), np.float32)
        sums, rising, product = folded.on(target)(x, b)
        assert sums.tolist() == x.sum(1).tolist()
        assert rising.tolist() == x.tolist() and rising.shape == x.shape
        assert product.tolist() == (x @ b).tolist() and product.shape == (m, k)
