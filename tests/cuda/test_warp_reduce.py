"""Reductions of a warp whose block ends before it does."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T


def folded(threads, kind):
    @T.prim_func
    def main(X: T.Tensor((threads,), kind), Y: T.Tensor((threads,), kind)):
        with T.Kernel(1, threads=threads):
            t = T.get_thread_binding()
            Y[t] = T.warp_reduce_max(X[t])

    return main


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
@pytest.mark.parametrize("threads", [50, 64])
def test_the_assembler_takes_it(threads, kind):
    """It has seven predicates: what folds the lanes that are there is a loop."""
    kernel = tw.compile(folded(threads, kind), target="cuda")
    assert kernel.resources["spill_bytes"] == 0
    assert "tw::warp_reduce<32>" in kernel.get_kernel_source()


def words(threads, kind):
    """Every reduction of a warp, of 32-bit integers."""

    @T.prim_func
    def main(X: T.Tensor((threads,), kind), Y: T.Tensor((5, threads), kind)):
        with T.Kernel(1, threads=threads):
            t = T.get_thread_binding()
            Y[0, t] = T.warp_reduce_sum(X[t])
            Y[1, t] = T.warp_reduce_max(X[t])
            Y[2, t] = T.warp_reduce_min(X[t])
            Y[3, t] = T.warp_reduce_bitand(X[t] | 5)
            Y[4, t] = T.warp_reduce_bitor(X[t] & 9)

    return main


@pytest.mark.parametrize("kind", ["int32", "uint32"])
def test_words_fold_in_one_instruction(kind):
    ptx = tw.compile(words(50, kind), target="cuda").ptx
    assert ptx.count("redux.sync") == 5 and "shfl" not in ptx


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [50, 64])
@pytest.mark.parametrize("kind", ["int32", "uint32"])
def test_words_on_gpu(kind, threads):
    main = words(threads, kind)
    x = np.random.default_rng(0).integers(0, 2**32, threads).astype(np.uint32).view(kind)
    want, got = np.zeros((5, threads), kind), np.zeros((5, threads), kind)
    tw.compile(main, target="interp")(x, want)
    tw.compile(main, target="cuda_arrays")(x, got)
    np.testing.assert_array_equal(got, want)


def test_narrow_numbers_keep_their_width():
    @T.prim_func
    def main(X: T.Tensor((64,), "int8"), Y: T.Tensor((64,), "int8")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.popcount(X[i]) + T.clz(X[i])

    source = tw.compile(main, target="cuda").get_kernel_source()
    assert "tw::popcount<int8_t>(" in source and "tw::clz<int8_t>(" in source
