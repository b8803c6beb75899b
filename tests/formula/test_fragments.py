"""Kernels call functions of the math level with their tiles."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
import tilewright.math as tm

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 37)).astype(np.float32)
Q, K, V = (RNG.standard_normal((n, 16)).astype(np.float16) for n in (33, 20, 20))


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def first_larger(a, b):
    stays = a[0] >= b[0]
    return tm.where(stays, a[0], b[0]), tm.where(stays, a[1], b[1])


LARGER = tm.monoid((-tm.inf, 0), first_larger)


@tw.math
def norm(x, g, eps=1e-5):
    m = tm.mean(x, axis=-1, keepdims=True)
    return (x - m) * tm.rsqrt(tm.var(x, axis=-1, keepdims=True) + eps) * g


@tw.math
def folds(x, by):
    places = tm.reduce(LARGER, (x, tm.indices(x, -1)), axis=-1)[1]
    whole = {"sum": tm.sum(x * 0), "place": tm.argmin(x, axis=-1) + places}
    return whole, [tm.cumulative_sum(x, axis=-1) * by, tm.indices(x, -1) + tm.zeros(x.shape)]


@tw.math
def attention(q, k, v):
    return tm.softmax(q @ k.T * q.shape[-1] ** -0.5, axis=-1) @ v


@tw.math
def step(s, top):
    new = tm.maximum(top, tm.max(s, axis=-1))
    return tm.exp(s - new[:, None]), tm.exp(top - new), new


@tw.jit
def of_rows(X, G, half=0.5):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    G: T.Tensor((N,), "float32")
    Out = T.empty((M, N), "float32")
    for i in T.tile(M):
        x = T.load(X[i, :])
        found, (sums, index) = folds(x, half)
        Out[i, :] = norm(x, G[:]) + found["place"][:, None] + sums + index + found["sum"]
    return Out


@tw.jit
def of_whole_keys(Q, K, V):
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), "float16")
    K: T.Tensor((N, D), "float16")
    V: T.Tensor((N, D), "float16")
    Out = T.empty((M, D), "float32")
    for i in T.tile(M):
        Out[i, :] = attention(Q[i, :], K[:, :], V[:, :])
    return Out


@tw.jit
def of_tiles_of_keys(Q, K, V):
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), "float16")
    K: T.Tensor((N, D), "float16")
    V: T.Tensor((N, D), "float16")
    Out = T.empty((M, D), "float32")
    for i in T.tile(M):
        q = T.load(Q[i, :])
        top, total, acc = T.full((i,), -1e30), T.zeros((i,)), T.zeros((i, D))
        for j in T.tile(N):
            p, fix, top = step(T.where(j.index < N, q @ K[j, :].T * D**-0.5, -T.inf), top)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, "float16") @ V[j, :]
        Out[i, :] = acc / total[:, None]
    return Out


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
def test_kernels_call_formulas(target):
    g = X[0]
    want = (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5) * g
    want += (X.argmin(1) + X.argmax(1))[:, None] + X.cumsum(1) / 2 + np.arange(37)
    np.testing.assert_allclose(of_rows.on(target)(X, g), want, atol=1e-4)
    want = softmax(Q.astype(float) @ K.astype(float).T * 0.25) @ V.astype(float)
    for kernel in (of_whole_keys, of_tiles_of_keys):
        np.testing.assert_allclose(kernel.on(target)(Q, K, V), want, atol=3e-3)


@tw.math
def part(x):
    return x[:, 3:5] * 2


@tw.math
def added(x, y):
    return x + y


@tw.math
def placed(x):
    return x * tm.indices(x, 0)


WRONG = {
    "reads x": lambda x: part(x),
    "uses indices along i": lambda x: placed(x),
    r"the shapes \(i, N\) and \(i,\) do not": lambda x: added(x, T.sum(x, dim=1)),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_no_tile_does_is_refused(said):
    wrong = WRONG[said]

    @tw.jit
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Out = T.empty((M, N), "float32")
        for i in T.tile(M):
            Out[i, :] = wrong(X[i, :])
        return Out

    with pytest.raises(tw.CompileError, match=said):
        kernel.on("interp")(X)


def test_a_whole_axis_keeps_its_name():
    outer = tw.math(lambda x, y: x[:, None, ::1] * y[None, :, None])

    @tw.jit
    def products(X, Y):
        M, N, K = T.const("M, N, K")
        X: T.Tensor((M, K), "float32")
        Y: T.Tensor((N,), "float32")
        Out = T.empty((M, N, K), "float32")
        for i, k in T.tile(M, K):
            Out[i, :, k] = outer(X[i, k], Y[:])
        return Out

    y = X[0, :3]
    np.testing.assert_allclose(products.on("cpu")(X, y), X[:, None] * y[:, None], rtol=1e-6)
