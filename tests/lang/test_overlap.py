"""What an operation writes must not overlap what it reads: refused where it can be seen, reported
by the sanitizer otherwise."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.lang.common import refused
from tilewright.machine import run
from tilewright.support.errors import SanitizerError

WRONG = {
    "gemm": lambda f, g: T.gemm(f, g, f),
    "gemm_right": lambda f, g: T.gemm(g, f, f, clear_accum=True),
    "transpose": lambda f, g: T.transpose(f, f),
    "copy_down": lambda f, g: T.copy(f[0:15, :], f[1:16, :]),
    "copy_up": lambda f, g: T.copy(f[4:12, 0:8], f[0:8, 4:12]),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused(name):
    def main(A: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=32):
            f = T.alloc_fragment((16, 16), "float32")
            g = T.alloc_shared((16, 16), "float32")
            T.copy(A, f)
            T.copy(A, g)
            WRONG[name](f, g)

    refused(main, f"T.{name.split('_')[0]}: what is written to f overlaps what is read from it")


def test_parts_that_lie_apart_and_whole_tiles_in_place():
    @T.prim_func
    def main(A: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=32):
            f = T.alloc_fragment((16, 16), "float32")
            T.copy(A, f)
            T.copy(f, f)
            T.copy(f[0:8, :], f[8:16, :])
            for k in T.serial(3):
                T.copy(f[k, :], f[k + 1, :])
            T.transpose(f[0:4, 0:4], f[4:8, 4:8])
            T.copy(f, A)

    a = np.random.default_rng(0).integers(0, 9, (16, 16)).astype(np.float32)
    want = a.copy()
    want[8:] = want[:8]
    want[1:4] = want[0]
    want[4:8, 4:8] = want[:4, :4].T
    run(main.program, {"A": a}, sanitize=True)
    np.testing.assert_array_equal(a, want)


@pytest.mark.parametrize("word", ["copy", "transpose"])
def test_reported(word):
    def function(N: T.Tensor((2,), "int32"), A: T.Tensor((16, 8), "float32")):
        with T.Kernel(1, threads=32):
            f = T.alloc_shared((16, 8), "float32")
            T.copy(A, f)
            getattr(T, word)(f[N[0] : N[0] + 8, :], f[N[1] : N[1] + 8, :])

    main = T.prim_func(function)
    for places in ((0, 8), (8, 0)):
        run(main.program, {"N": np.array(places, np.int32), "A": A}, sanitize=True)
    with pytest.raises(SanitizerError) as caught:
        run(main.program, {"N": np.array((0, 4), np.int32), "A": A}, sanitize=True)
    assert caught.value.kind == "parallel-conflict"
    assert caught.value.loc.line == function.__code__.co_firstlineno + 4


A = np.zeros((16, 8), np.float32)
