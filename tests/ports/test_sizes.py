"""Sizes that are expressions of sizes known at launch, and names for the axes of a grid."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

TARGETS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
each_target = pytest.mark.parametrize("target", TARGETS)


@each_target
def test_one_name_in_parentheses(target):
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(2, threads=64) as (bx,):
            for i in T.Parallel(64):
                A[bx * 64 + i] = bx

    a = np.zeros(128, np.int32)
    tw.compile(main, target=target)(a)
    assert a.tolist() == [0] * 64 + [1] * 64


def test_names_that_do_not_fit_the_grid():
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(2, 2, threads=64) as (bx,):
            A[bx] = 1

    with pytest.raises(tw.CompileError, match="names do not fit its grid") as caught:
        T.prim_func(main)
    assert caught.value.diagnostic.expected == "2 names"


def multiples(shape, grid):
    """A tensor of `shape` whose first n · 4 elements are numbered."""

    @T.prim_func
    def main(A: T.Tensor(shape, "int32")):
        with T.Kernel(grid, threads=32) as bx:
            for i in T.Parallel(4):
                A[bx * 4 + i] = bx * 4 + i

    return main


@each_target
@pytest.mark.parametrize("size", ["n * 4", "4 * n", "2 * (n + n)", "n + n + 2 * n"])
def test_a_size_is_solved_for(target, size):
    n = T.dynamic("n")
    kernel = tw.compile(multiples((eval(size, {"n": n}),), n), target=target)
    for count in (4, 128, 4):
        a = np.zeros(count, np.int32)
        kernel(a)
        assert a.tolist() == list(range(count))
    with pytest.raises(tw.LaunchError, match="no n gives dimension 0 of A its size") as caught:
        kernel(np.zeros(130, np.int32))
    assert caught.value.diagnostic.got == "130"


@each_target
def test_sizes_that_follow_one_another(target):
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((n * m + 2,), "int32"), B: T.Tensor((m * 2 - 1,), "int32")):
        with T.Kernel(1, threads=32):
            A[0] = n
            B[0] = m

    kernel = tw.compile(main, target=target)
    a, b = np.zeros(5 * 3 + 2, np.int32), np.zeros(5, np.int32)
    kernel(a, b)
    assert (a[0], b[0]) == (5, 3)


@each_target
def test_the_contract_of_a_size_that_is_solved_for(target):
    n = T.dynamic("n", min=2, multiple_of=2)
    kernel = tw.compile(multiples((n * 4,), n), target=target)
    kernel(np.zeros(16, np.int32))
    with pytest.raises(tw.LaunchError, match="breaks the contract of n"):
        kernel(np.zeros(12, np.int32))
    with pytest.raises(tw.LaunchError, match="breaks the contract of n"):
        kernel(np.zeros(0, np.int32))


@each_target
def test_a_size_known_from_another_tensor_checks_the_larger_one(target):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), B: T.Tensor((T.ceildiv(n, 4), n * 2), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                B[0, i] = A[i]

    kernel = tw.compile(main, target=target)
    a, b = np.arange(6, dtype=np.int32), np.zeros((2, 12), np.int32)
    kernel(a, b)
    assert b[0, :4].tolist() == [0, 1, 2, 3]
    with pytest.raises(tw.LaunchError):
        kernel(a, np.zeros((2, 10), np.int32))


def test_outputs_of_a_size_that_is_solved_for():
    @tw.jit(target="cpu")
    def halves(A):
        n = T.dynamic("n")
        A: T.Tensor((n * 2,), "int32")
        B = T.empty((n + 1,), "int32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[2 * i]
            B[n] = -1
        return B

    assert halves(np.arange(10, dtype=np.int32)).tolist() == [0, 2, 4, 6, 8, -1]


def test_a_size_that_nothing_gives():
    n = T.dynamic("n")
    with pytest.raises(tw.CompileError, match="nothing determines the size n") as caught:
        multiples((n // 4,), 1)
    assert "n: T.int32" in caught.value.diagnostic.fix
    assert caught.value.diagnostic.loc is not None


@each_target
def test_clamp_by_keywords(target):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = T.clamp(A[i], min_val=-1.0, max_val=1.0)

    a = np.linspace(-3, 3, 64, dtype=np.float32)
    want = a.clip(-1, 1)
    tw.compile(main, target=target)(a)
    np.testing.assert_array_equal(a, want)
