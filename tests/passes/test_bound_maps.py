"""Extents that are known only at launch: loops, fills and copies of them, on every target."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine

TARGETS = pytest.mark.parametrize("target", ["interp", "cpu", "threads"])


def run(kernel, target, **arrays):
    if target == "threads":
        code = tw.parse_ir(tw.compile(kernel, target="cuda").ir("lower_threads"))
        machine.run_threads(code, arrays)
    else:
        tw.compile(kernel, target=target)(**arrays)


def filled():
    n = T.dynamic("n")

    @T.prim_func
    def main(x: T.Tensor((n,), "int64"), y: T.Tensor((n, 8), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(x[0:n], 7)
            T.clear(y[0:n, :])

    return main


def looped():
    n = T.dynamic("n")

    @T.prim_func
    def main(x: T.Tensor((n,), "int32"), y: T.Tensor((n, n), "int32"), m: T.int32):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((64,), "int32")
            f = T.alloc_fragment((64,), "int32")
            T.clear(s)
            T.clear(f)
            for i in T.Parallel(n):
                x[i] = i * 3
            for i, j in T.Parallel(n, n):
                y[i, j] = i * 100 + j
            for i in T.Parallel(m):
                s[i] = i + 1
                f[i] = 2
            for i in T.Parallel(m):
                y[0, i] = s[i] + f[i]

    return main


def copied():
    n = T.dynamic("n")

    @T.prim_func
    def main(x: T.Tensor((n, 4), "float32"), y: T.Tensor((n, 4), "float16")):
        with T.Kernel(1, threads=32):
            T.copy(x[0:n, :], y[0:n, :])

    return main


@TARGETS
@pytest.mark.parametrize("n", [1, 5, 32, 33])
def test_fills(target, n):
    x, y = np.zeros(n, np.int64), np.ones((n, 8), np.float32)
    run(filled(), target, x=x, y=y)
    assert (x == 7).all() and not y.any()


@TARGETS
@pytest.mark.parametrize("n", [5, 33])
def test_loops(target, n):
    x, y = np.zeros(n, np.int32), np.zeros((n, n), np.int32)
    run(looped(), target, x=x, y=y, m=5)
    i, j = np.indices((n, n))
    want = i * 100 + j
    want[0, :5] = np.arange(5) + 3
    np.testing.assert_array_equal(x, np.arange(n) * 3)
    np.testing.assert_array_equal(y, want)


def beyond_a_tile(choose, alloc):
    n = T.dynamic("n")

    @T.prim_func
    def main(x: T.Tensor((n,), "int32"), y: T.Tensor((n,), "int32")):
        with T.Kernel(1, threads=32):
            s = alloc((16,), "int32")
            T.fill(s, 7)
            for i in T.Parallel(n):
                choose(x, y, s, i)

    return main


@T.macro
def branch(x, y, s, i):
    if i < 16:
        y[i] = s[i]
    else:
        y[i] = x[i]


@T.macro
def select(x, y, s, i):
    y[i] = T.if_then_else(i < 16, s[i], x[i])


@TARGETS
@pytest.mark.parametrize("alloc", [T.alloc_shared, T.alloc_fragment])
@pytest.mark.parametrize("choose", [branch, select])
def test_loops_go_beyond_a_tile_that_is_read_under_a_condition(target, choose, alloc):
    x, y = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    run(beyond_a_tile(choose, alloc), target, x=x, y=y)
    np.testing.assert_array_equal(y, np.where(x < 16, 7, x))


@TARGETS
def test_copies(target):
    x = np.arange(44, dtype=np.float32).reshape(11, 4)
    y = np.zeros((11, 4), np.float16)
    run(copied(), target, x=x, y=y)
    np.testing.assert_array_equal(x, y)


@pytest.mark.gpu
def test_on_a_gpu():
    import torch

    x = torch.zeros(33, dtype=torch.int32, device="cuda")
    y = torch.zeros((33, 33), dtype=torch.int32, device="cuda")
    tw.compile(looped(), target="cuda")(x, y, 5)
    assert torch.equal(x.cpu(), torch.arange(33, dtype=torch.int32) * 3)
