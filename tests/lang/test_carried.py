"""Variables that iterations of `T.Parallel` may have to themselves, and what they may not do."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import CompileError


def test_a_variable_of_each_iteration():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            v = T.alloc_var("float32")
            for i in T.Parallel(64):
                v = X[i]
                for k in T.serial(3):
                    v += X[k]
                if X[i] > 5:
                    v = v * 2
                Y[i] = v
            v = 1.0
            Y[0] = v

    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    tw.compile(main, target="interp -sanitize")(x, y)
    want = (x + 3) * np.where(x > 5, 2, 1)
    want[0] = 1
    assert (y == want).all()


def test_a_variable_that_maps_only_read():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            v = T.alloc_var("float32", init=0.0)
            for k in T.serial(3):
                for i in T.Parallel(64):
                    X[i] = X[i] + v
                v += 1.0

    x = np.zeros(64, np.float32)
    tw.compile(main, target="interp -sanitize")(x)
    assert (x == 3).all()


def test_a_value_of_an_earlier_iteration_is_refused():
    with pytest.raises(CompileError, match="found is read before this iteration"):

        @T.prim_func
        def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "int32")):
            with T.Kernel(1, threads=32):
                found = T.alloc_var("int32", init=0)
                for i in T.Parallel(64):
                    if X[i] > 0:
                        found = 1
                    Y[i] = found


def test_a_value_from_the_loop_around_is_refused():
    with pytest.raises(CompileError, match="v is read after the T.Parallel"):

        @T.prim_func
        def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=32):
                v = T.alloc_var("float32", init=0.0)
                for k in T.serial(4):
                    Y[k] = v
                    for i in T.Parallel(64):
                        v = X[i]
                        Y[i] = v


def test_a_map_in_a_map_adds_up():
    @T.prim_func
    def main(X: T.Tensor((8, 8), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                total = T.alloc_var("float32", init=0.0)
                for j in T.Parallel(8):
                    total += X[i, j]
                Y[i] = total

    y = np.zeros(8, np.float32)
    tw.compile(main, target="interp -sanitize")(np.ones((8, 8), np.float32), y)
    assert (y == 8).all()
