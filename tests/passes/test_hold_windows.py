"""Loops over windows: what their places share is loaded once, by vectors, into registers."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from devtools.fuzz.formulas import by_threads

TARGET = "cuda -arch=sm_90a"


def stencil(taps, stride=(1, 1), apart=(1, 1), begin=(0, 0), dtype="bfloat16"):
    """Sums over windows of so many places, `apart` from each other, `stride` from window to window;
    the first begins at `begin`."""

    @tw.jit
    def sums(X, W):
        M, N, P, Q = T.const("M, N, P, Q")
        X: T.Tensor((M, N), dtype)
        W: T.Tensor((P, Q), "float32")
        Y = T.empty((M // stride[0], N // stride[1]), dtype)
        for m, n in T.tile(M // stride[0], N // stride[1]):
            found = T.zeros((m, n))
            for a in range(taps[0]):
                for b in range(taps[1]):
                    row = m.index * stride[0] + a * apart[0] + begin[0]
                    column = n.index * stride[1] + b * apart[1] + begin[1]
                    found += X[row[:, None], column] * W[a, b]
            Y[m, n] = found
        return Y

    return sums.on(TARGET)


def meant(x, w, stride, apart, begin):
    found = np.zeros([n // s for n, s in zip(x.shape, stride, strict=True)], np.float32)
    around = np.pad(x.astype(np.float32), 16)
    for (a, b), times in np.ndenumerate(w):
        rows = np.arange(found.shape[0]) * stride[0] + a * apart[0] + begin[0] + 16
        columns = np.arange(found.shape[1]) * stride[1] + b * apart[1] + begin[1] + 16
        found += around[np.ix_(rows, columns)] * times
    return found


CASES = [
    ((3, 3), (1, 1), (1, 1), (-1, -1)),
    ((2, 4), (2, 1), (1, 3), (0, -4)),
    ((3, 3), (2, 2), (1, 1), (-1, -1)),
    ((5, 1), (1, 2), (2, 1), (-5, 3)),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(37, 101), (32, 352)])
@pytest.mark.parametrize("taps, stride, apart, begin", CASES)
def test_threads_find_their_windows(taps, stride, apart, begin, shape, dtype):
    kind = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}[dtype]
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(kind)
    w = np.random.default_rng(1).integers(-2, 3, taps).astype(np.float32)
    kernel = stencil(taps, stride, apart, begin, dtype).compile(x, w)
    (found,) = by_threads(kernel.program, x, w)
    np.testing.assert_array_equal(found.astype(np.float32), meant(x, w, stride, apart, begin))


@pytest.mark.parametrize(
    "taps, stride, held",
    # of the 32 results of a thread, for a row of the window
    [((3, 3), (1, 1), 64), ((3, 3), (2, 2), 96), ((9, 9), (1, 1), 64), ((11, 11), (11, 11), 88)],
)
def test_neighbours_share_what_they_read(taps, stride, held):
    x = np.broadcast_to(ml_dtypes.bfloat16(0), (512, 256 * stride[1]))
    w = np.broadcast_to(np.float32(0), taps)
    text = stencil(taps, stride).compile(x, w).get_kernel_source()
    assert [*map(int, re.findall(r"bfloat16 X_window\w*\[(\d+)\]", text))] == [held]
    assert "tw::load_global<tw::bfloat16" in text


def test_parts_of_a_map_hold_theirs_one_after_the_other():
    taps, stride = (2, 11), (2, 11)
    x = np.random.default_rng(0).integers(-4, 5, (32, 256 * 11)).astype(ml_dtypes.bfloat16)
    w = np.random.default_rng(1).integers(-2, 3, taps).astype(np.float32)
    kernel = stencil(taps, stride).compile(x, w)
    assert re.search(r"int part\w* = 0", kernel.get_kernel_source())
    (found,) = by_threads(kernel.program, x, w)
    want = meant(x, w, stride, (1, 1), (0, 0)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found, want)


def test_runs_that_are_not_aligned_are_read_by_aligned_vectors():
    """Seven places of two neighbours: four loads of 4 bytes, not shifted ones of 16; places of one
    result share nothing, and stay loads of their own."""
    x = np.broadcast_to(ml_dtypes.bfloat16(0), (512, 250))
    text = stencil((1, 7)).compile(x, np.broadcast_to(np.float32(0), (1, 7))).get_kernel_source()
    assert "tw::load_global<tw::bfloat16, 2," in text and "load_across" not in text
    odd = np.broadcast_to(ml_dtypes.bfloat16(0), (512, 513))
    text = stencil((1, 8)).compile(odd, np.broadcast_to(np.float32(0), (1, 8))).get_kernel_source()
    assert "X_window" not in text


def test_places_that_are_read_between_loops_are_no_window():
    """What is loaded is loaded before the loops, where they know nothing of these."""

    @tw.jit
    def shifted(X, S):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        S: T.Tensor((3,), "int32")
        Y = T.empty((M, N), "float32")
        for m, n in T.tile(M, N):
            found = T.zeros((m, n))
            for a in range(3):
                s = S[a]
                for b in range(3):
                    found += X[(m.index + a + s)[:, None], n.index + b]
            Y[m, n] = found
        return Y

    x = np.random.default_rng(0).integers(-4, 5, (37, 101)).astype(np.float32)
    s = np.array([1, -2, 0], np.int32)
    (found,) = by_threads(shifted.on(TARGET).compile(x, s).program, x, s)
    around = np.pad(x, 4)
    rows = [around[4 + a + s[a] : 41 + a + s[a]] for a in range(3)]
    want = sum(row[:, 4 + b : 105 + b] for row in rows for b in range(3))
    np.testing.assert_array_equal(found, want)
