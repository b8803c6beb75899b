"""What an operation writes must not overlap what it reads: refused where it can be seen, reported
by the sanitizer otherwise."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.lang.common import refused
from tests.roads import on_gpu, on_threads
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


TARGETS = ["interp -sanitize", "cpu", *on_threads("threads-sm_90a"), *on_gpu()]


@pytest.mark.parametrize("target", TARGETS)
def test_a_store_reads_all_of_its_right_side_first(target):
    """`s[a:b] = s[c:d]`, as values: the old elements, wherever the two parts lie."""

    @tw.jit
    def moved(X, by: T.int32):
        X: T.Tensor((40,), "float32")
        Y = T.empty((3, 40), "float32")
        for _ in T.tile():
            s, t = T.alloc_shared((40,), "float32"), T.alloc_fragment((40,), "float32")
            for n, tile in enumerate((s, s, t)):
                T.copy(X, tile)
                if n == 1:
                    tile[by : by + 20] = tile[0:20]
                else:
                    tile[1:40] = tile[0:39]
                Y[n, :] = tile[:]
            X[0:30] = X[10:40]
        return Y

    x = np.arange(40, dtype=np.float32)
    given = x.copy()
    got = moved.on(target)(given, 3)
    down = np.r_[x[:1], x[:-1]]
    np.testing.assert_array_equal(got, [down, np.r_[x[:3], x[:20], x[23:]], down])
    np.testing.assert_array_equal(given, np.r_[x[10:], x[30:]])


@pytest.mark.parametrize("target", TARGETS)
def test_parts_that_change_places(target):
    @tw.jit
    def swapped(X):
        X: T.Tensor((2, 8), "float32")
        Y = T.empty((3, 8), "float32")
        for _ in T.tile():
            X[0, :], X[1, :] = X[1, :], X[0, :]
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((2, 8), "float32")
            a, b = T.alloc_fragment((8,), "float32"), T.alloc_fragment((8,), "float32")
            T.copy(X, s)
            s[0, 0:4], s[1, 0:4] = s[1, 0:4], s[0, 0:4]
            a[:], b[:] = s[0, :], s[1, :]
            a[:], b[:], Y[0, :] = b, a[:], b[:]
            Y[1, :], Y[2, :] = a[:], b[:]
            places = [a, b]
            places[0], places[1] = places[1], places[0]
            T.copy(X[0, :], places[0])
            a, Y[0, :] = b[:], b[:]
        return Y

    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    given = x.copy()
    got = swapped.on(target)(given)
    np.testing.assert_array_equal(given, x[::-1])
    one, two = np.r_[x[0, :4], x[1, 4:]], np.r_[x[1, :4], x[0, 4:]]
    np.testing.assert_array_equal(got, [x[1], two, one])


def test_a_part_that_got_a_name_is_no_copy():
    def main(A: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((16,), "float32")
            T.copy(A, s)
            old = s[0:8]
            s[0:8] = s[8:16]
            A[8:16] = old

    refused(main, "a part of s that got a name is read after s has been written")
