"""Reductions of a warp whose block ends before it does."""

from __future__ import annotations

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


def test_narrow_numbers_keep_their_width():
    @T.prim_func
    def main(X: T.Tensor((64,), "int8"), Y: T.Tensor((64,), "int8")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.popcount(X[i]) + T.clz(X[i])

    source = tw.compile(main, target="cuda").get_kernel_source()
    assert "tw::popcount<int8_t>(" in source and "tw::clz<int8_t>(" in source
