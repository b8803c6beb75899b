"""A tensor that a kernel writes and reads: threads read what another one wrote before a barrier."""

import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

each_target = pytest.mark.parametrize("target", [*on_threads("threads-sm_90a"), *on_gpu()])


@tw.jit
def add_and_read(Z, X):
    B, N = T.const("B, N")
    Z: T.Tensor((B,), "int32")
    X: T.Tensor((B, N), "int32")
    Y, V = T.empty((B,), "int32"), T.empty((B, N), "int32")
    for b in T.tile(T.each(B)):
        Z[b] += T.max(X[b, :], dim=0)
        z = T.load(Z[b])
        Y[b] = z
        V[b, :] = X[b, :] + z
    return Y, V


@each_target
def test_other_threads_see_the_sum(target):
    rng = np.random.default_rng(0)
    z, x = rng.integers(0, 9, 5, np.int32), rng.integers(0, 9, (5, 300), np.int32)
    want = z + x.max(1)
    y, v = add_and_read.on(target)(z, x)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(v, x + want[:, None])


def test_the_load_stays_behind_the_barrier():
    kernel = add_and_read.on("cuda -arch=sm_90a").compile(B=5, N=300)
    (head,) = re.findall(r"__global__[^{]*", kernel.get_kernel_source())
    assert "int* Z" in head and "int* __restrict__ X" in head
    steps = re.findall(r"bar\.sync|ld\.global\.(?!nc)|st\.global", kernel.ptx)
    behind = steps[steps.index("st.global") :]
    assert "ld.global." in behind and behind.index("bar.sync") < behind.index("ld.global.")


@tw.jit
def scale(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    for n in T.tile(N):
        Y[n] = X[n] * 2
    return Y


def test_tensors_that_are_only_read_or_only_written_are_restricted():
    source = scale.on("cuda -arch=sm_90a").compile(N=1000).get_kernel_source()
    assert source.count("* __restrict__ ") == 2
