"""Whole dimensions side by side: one long row where a kernel uses them together, and right where it
does not."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads
from tilewright.ir.core import View, walk_ops

TARGETS = ["interp -sanitize", "cpu", *on_threads("threads-sm_90a"), *on_gpu()]
each_target = pytest.mark.parametrize("target", TARGETS)
H200 = "cuda -arch=sm_90a"


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def close(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-5)


def is_joined(kernel, *args):
    program = kernel.on(H200).compile(*args).program
    return any(any(walk_ops(kernel, View)) for kernel in program.kernels)


@tw.jit
def images(X, weight):
    N, C, H, W = T.const("N, C, H, W")
    X: T.Tensor((N, C, H, W), "float32")
    weight: T.Tensor((H, W), "float32")
    Y = T.empty((N, C, H, W), "float32")
    for n, c in T.tile(T.each(N), T.each(C)):
        x = T.load(X[n, c, :, :])
        mean, var = T.mean(x, dim=(0, 1)), T.var(x, dim=(0, 1))
        Y[n, c, :, :] = (x - mean) * T.rsqrt(var + 1e-5) * weight[:, :]
    return Y


@tw.jit
def volumes(X):
    N, C, H, W = T.const("N, C, H, W")
    X: T.Tensor((N, C, H, W), "float32")
    Y = T.empty((N,), "float32")
    for n in T.tile(N):
        Y[n] = T.max(X[n, :, :, :], dim=(1, 2, 3))
    return Y


@each_target
@pytest.mark.parametrize("shape", [(2, 2, 40, 130), (1, 2, 67, 63), (1, 1, 130, 200)])
def test_an_image_is_a_row(target, shape):
    x, w = drawn(0, *shape), drawn(1, *shape[2:])
    mean, var = (f(x, axis=(2, 3), keepdims=True) for f in (np.mean, np.var))
    close(images.on(target)(x, w), (x - mean) / np.sqrt(var + 1e-5) * w)
    assert is_joined(images, x, w)


@each_target
def test_three_dimensions(target):
    x = drawn(0, 3, 5, 30, 41)
    close(volumes.on(target)(x), x.max((1, 2, 3)))
    assert is_joined(volumes, x)


def each_use(name):
    """A kernel that uses H and W apart, and what it means."""

    def body(x, row, index):
        match name:
            case "sum":
                return T.sum(x, dim=1, keepdim=True) + x
            case "row":
                return x + row[None, :]
            case "index":
                return x * index
            case "part":
                return x + x[:, 3][:, None]
            case "shape":
                return x / (x.shape[0] * 10 + x.shape[1])
            case "argmax":
                return x + T.cast(T.argmax(x, dim=0, keepdim=True), "float32")
            case "scan":
                return T.cumsum(x, dim=0)

    @tw.jit
    def kernel(X, V):
        N, H, W = T.const("N, H, W")
        X: T.Tensor((N, H, W), "float32")
        V: T.Tensor((W,), "float32")
        Y = T.empty((N, H, W), "float32")
        for n in T.tile(T.each(N)):
            index = T.cast(T.arange(W), "float32")[None, :] if name == "index" else 0
            row = T.load(V[:]) if name == "row" else 0
            Y[n, :, :] = body(T.load(X[n, :, :]), row, index)
        return Y

    want = {
        "sum": lambda x, v: x.sum(2, keepdims=True) + x,
        "row": lambda x, v: x + v,
        "index": lambda x, v: x * np.arange(x.shape[2], dtype=np.float32),
        "part": lambda x, v: x + x[:, :, 3:4],
        "shape": lambda x, v: x / (x.shape[1] * 10 + x.shape[2]),
        "argmax": lambda x, v: x + x.argmax(1)[:, None].astype(np.float32),
        "scan": lambda x, v: np.cumsum(x, axis=1),
    }
    return kernel, want[name]


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
@pytest.mark.parametrize("name", ["sum", "row", "index", "part", "shape", "argmax", "scan"])
def test_dimensions_that_are_used_apart(target, name):
    kernel, want = each_use(name)
    x, v = drawn(0, 2, 70, 80), drawn(1, 80)
    np.testing.assert_allclose(kernel.on(target)(x, v), want(x, v), rtol=1e-4, atol=1e-4)


@tw.jit
def means(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M,), "float32")
    for m in T.tile(T.each(M)):
        x = T.load(X[m, :])
        Y[m] = T.sum(x, dim=0) / x.shape[0]
    return Y


@each_target
def test_rows_that_are_counted_lie_in_clusters(target):
    x = drawn(0, 3, 9000)
    kernel = means.on(target).with_schedule(cluster=4) if target != "cpu" else means.on(target)
    close(kernel(x), x.mean(1))


@each_target
def test_a_whole_tensor_in_one_block(target):
    @tw.jit
    def mean(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((), "float32")
        for _ in T.tile():
            Y[()] = T.mean(X[:], dim=0)
        return Y

    x = drawn(0, 40000)
    close(mean.on(target)(x), x.mean())


@each_target
def test_long_rows_of_several_lines(target):
    @tw.jit
    def channels(X):
        N, C, L = T.const("N, C, L")
        X: T.Tensor((N, C, L), "float32")
        Y = T.empty((N, C, L), "float32")
        for c in T.tile(T.each(C)):
            x = T.load(X[:, c, :])
            Y[:, c, :] = x - T.mean(x, dim=(0, 1))
        return Y

    x = drawn(0, 12, 2, 2000)
    close(channels.on(target)(x), x - x.mean((0, 2), keepdims=True))


@each_target
@pytest.mark.parametrize("reads", [False, True])
def test_one_block_of_a_cluster_has_an_effect(target, reads):
    @tw.jit
    def total(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M + 1,), "float32")
        for _ in T.tile():
            Y[M] = 0.0
        for m in T.tile(T.each(M)):
            found = T.sum(X[m, :], dim=0)
            Y[m] = found
            T.atomic_add(Y[M], Y[m] if reads else found)
        return Y

    x = np.ones((3, 20000), np.float32)
    assert np.asarray(total.on(target)(x)).tolist() == [20000.0] * 3 + [60000.0]
