"""Only one axis of a grid may be long on CUDA: tiles of others that are lie along it, too."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.ir.bind import bind_sizes

CUDA = "cuda -arch=sm_90a"


@tw.jit
def numbered(X):
    A, B, C, N = T.const("A, B, C, N")
    X: T.Tensor((A, B, C, N), "int32")
    Y = T.empty((A, B, C, N), "int32")
    for a, b, c, n in T.tile(T.each(A), T.each(B), T.each(C), N):
        Y[a, b, c, n] = X[a, b, c, n] + (a * B + b) * C + c
    return Y


@tw.jit
def doubled(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "int32")
    Y = T.empty((M, N), "int32")
    for m, n in T.tile(T.each(M), N):
        Y[m, n] = X[m, n] * 2
    return Y


@tw.jit
def copied(X):
    n = T.const("n")
    X: T.Tensor((n,), "int8")
    Y = T.empty((n,), "int8")
    for i in T.tile(n):
        Y[i] = X[i]
    return Y


@pytest.mark.parametrize("shape", [(3, 2, 5, 4), (300, 300, 2, 1)])
def test_every_block_has_its_place(shape):
    got = numbered(np.zeros(shape, np.int32))
    want = np.arange(np.prod(shape[:3])).reshape(shape[:3])
    np.testing.assert_array_equal(got, np.broadcast_to(want[..., None], shape))


@pytest.mark.parametrize("kernel", [numbered, doubled])
def test_grids_that_fit(kernel):
    shape = (300, 300, 2, 999) if kernel is numbered else (70_000, 999)
    grid = kernel.on(CUDA).compile(np.broadcast_to(np.int32(0), shape)).program.kernels[0].grid
    assert len(grid) == 1 and int(grid[0]) >= 70_000
    x = np.arange(140_000, dtype=np.int32).reshape(70_000, 2)
    np.testing.assert_array_equal(doubled(x), x * 2)


@pytest.mark.parametrize("n", [2**31 - 1, 2**31, 2**32 + 1, 10**13])
def test_an_axis_that_int32_does_not_count_is_refused(n):
    """Wrapped around, its bound left tiles out: nothing, or a part, was written."""
    with pytest.raises(tw.CompileError, match="a bound of T.tile is") as caught:
        copied.on("interp").compile(n=n)
    assert "reshape" in caught.value.diagnostic.fix and caught.value.diagnostic.loc is not None
    copied.on("interp").compile(n=2**31 - 2**20)


@pytest.mark.parametrize("most", [None, 2**31 - 1])
def test_a_launch_refuses_what_int32_does_not_count(most):
    n = T.dynamic("n", max=most)

    @tw.jit
    def doubled(X):
        X: T.Tensor((n,), "int8")
        Y = T.empty((n,), "int8")
        for i in T.tile(n):
            Y[i] = X[i] * 2
        return Y

    program = doubled.on("interp").compile().program
    longest = {t.name: (2**31 - 2**20,) for t in program.tensors}
    bind_sizes(program, longest)
    for size in (2**31 - 2**20 + 1, 2**31 - 1, 2**33):
        with pytest.raises(tw.LaunchError, match="breaks the contract of n") as caught:
            bind_sizes(program, dict.fromkeys(longest, (size,)))
        assert "reshape" in caught.value.diagnostic.fix
