"""Wrong arguments at a launch: refused before anything runs."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import LaunchError


def twice(out_idx=None):
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((4, 8), "float32"), s: T.int32):
        with T.Kernel(4, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] * s

    return tw.compile(main, target="interp", out_idx=out_idx)


def dynamic(**contract):
    m = T.dynamic("m", **contract)

    @T.prim_func
    def main(X: T.Tensor((m,), "float32"), Y: T.Tensor((m,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(m):
                Y[i] = X[i]

    return tw.compile(main, target="interp")


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@case(LaunchError, "main takes 3 arguments, got 1", "(X, Y, s)", "fix:")
def count():
    twice()(zeros(4, 8))
#   ^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), zeros(4, 8), 2)


@case(LaunchError, "main takes 2 arguments, got 3", "(X, s)", "out_idx", "leave them out")
def output_given():
    twice(out_idx=[1])(zeros(4, 8), zeros(4, 8), 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice(out_idx=[1])(zeros(4, 8), 2)


@case(LaunchError, "no free parameter named 'S'", "(X, Y, s)", "did you mean 's'?")
def keyword():
    twice()(zeros(4, 8), zeros(4, 8), S=2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), zeros(4, 8), s=2)


@case(LaunchError, "X has the wrong dtype", "float32", "float64", "convert it")
def dtype():
    twice()(zeros(4, 8, dtype=np.float64), zeros(4, 8), 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8, dtype=np.float64).astype(np.float32), zeros(4, 8), 2)


@case(LaunchError, "X must have 2 dimensions", "(4, 8)", "(32,)", "fix:")
def rank():
    twice()(zeros(32), zeros(4, 8), 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(32).reshape(4, 8), zeros(4, 8), 2)


@case(LaunchError, "Y has the wrong size in dimension 1", "(4, 8)", "(4, 9)", "fix:")
def size():
    twice()(zeros(4, 8), zeros(4, 9), 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), zeros(4, 8), 2)


@case(LaunchError, "X must be contiguous", "strides of (1, 4)", "ascontiguousarray")
def strides():
    twice()(zeros(8, 4).T, zeros(4, 8), 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(np.ascontiguousarray(zeros(8, 4).T), zeros(4, 8), 2)


@case(LaunchError, "Y is written by the kernel, but the array is read-only", "writable copy")
def read_only():
    y = zeros(4, 8)
    y.flags.writeable = False
    twice()(zeros(4, 8), y, 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), y.copy(), 2)


@case(LaunchError, "Y is written and overlaps X", "shares no memory", "a copy of X")
def overlap():
    x = zeros(4, 8)
    twice()(x, x, 2)
#   ^^^^^^^^^^^^^^^^
#+  twice()(x.copy(), x, 2)


@case(LaunchError, "Y must be an array", "list", "fix:")
def not_an_array():
    twice()(zeros(4, 8), [[0.0] * 8] * 4, 2)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), np.array([[0.0] * 8] * 4, np.float32), 2)


@case(LaunchError, "s must be a number of type int32", "2.5", "fix:")
def scalar_type():
    twice()(zeros(4, 8), zeros(4, 8), 2.5)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), zeros(4, 8), int(2.5))


@case(LaunchError, "s = 4294967296 does not fit int32", "-2147483648 … 2147483647", "fix:")
def scalar_range():
    twice()(zeros(4, 8), zeros(4, 8), 2**32)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  twice()(zeros(4, 8), zeros(4, 8), 2**30)


@case(LaunchError, "dimension 0 of Y and dimension 0 of X are both m but differ", "m = 8", "fix:")
def sizes_that_differ():
    dynamic()(zeros(8), zeros(9))
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  dynamic()(zeros(8), zeros(8))


@case(LaunchError, "breaks the contract of m", "at most 16", "17", "fix:")
def contract_maximum():
    dynamic(max=16)(zeros(17), zeros(17))
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  dynamic(max=16)(zeros(16), zeros(16))


@case(LaunchError, "breaks the contract of m", "a multiple of 8", "12", "fix:")
def contract_multiple():
    dynamic(multiple_of=8)(zeros(12), zeros(12))
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  dynamic(multiple_of=8)(zeros(16), zeros(16))
