"""Mistakes with shapes, parts and numbers of tile values."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "T.reshape of a tile whose size is open", "(m, 8) as (8, m)")
def a_reshape_that_exchanges_a_tile():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32")):
        for m in T.tile(64):
            X[m, :] = T.reshape(X[m, :], (8, m)).T
#                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          X[m, :] = T.reshape(X[m, :], (m, 8))


@case(CompileError, "T.reshape keeps all elements", "product is 8", "product is 6")
def a_reshape_to_fewer_elements():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), Y: T.Tensor((64, 2), "float32")):
        for m in T.tile(64):
            Y[m, :] = T.sum(T.reshape(X[m, :], (m, 2, 3)), dim=2)
#                           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          Y[m, :] = T.sum(T.reshape(X[m, :], (m, 2, 4)), dim=2)


@case(CompileError, "(m, 4) and (8,)", "take the same part of both: x[:, 0:4] and v[0:4]")
def a_part_beside_the_whole():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), v: T.Tensor((8,), "float32")):
        for m in T.tile(64):
            X[m, 0:4] = X[m, 0:4] * v[:]
#                       ^^^^^^^^^^^^^^^^
#+          X[m, 0:4] = X[m, 0:4] * v[0:4]


@case(CompileError, "(m, m) and (8,)", "X[m.index, L[m]]")
def labels_beside_a_tile_index():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), L: T.Tensor((64,), "int32"),
             Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            X[m, :] = X[m, :] - X[m, L[m]] * Y[0:8]
#                               ^^^^^^^^^^^^^^^^^^^
#+          X[m, :] = X[m, :] - X[m.index, L[m]][:, None] * Y[0:8]


@case(CompileError, "a slice of X has no elements", "-1", "write 8 - 1 as the end")
def a_slice_up_to_the_last():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            Y[m] = T.sum(X[m, 0:-1], dim=1)
#                        ^^^^^^^^^^
#+          Y[m] = T.sum(X[m, 0:7], dim=1)


@case(CompileError, "a slice of X has no elements", "an end after the start, 2")
def a_slice_of_nothing():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            Y[m] = T.sum(X[m, 2:2], dim=1)
#                        ^^^^^^^^^
#+          Y[m] = 0


@case(CompileError, "a slice of a value along 8", "bounds between 0 and 8", "0:0")
def a_slice_of_nothing_of_a_value():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            x = T.load(X[m, :])
            Y[m] = T.sum(x[:, 0:0], dim=1)
#                        ^^^^^^^^^
#+          Y[m] = T.sum(x[:, 0:1], dim=1)


@case(CompileError, "T.tile() is a grid of one block", "leave the loop out")
def one_block_inside_a_kernel():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            for _ in T.tile():
#                    ^^^^^^^^
#-
                X[m] = 0
#+          X[m] = 0


@case(CompileError, "T.each is an axis of T.tile", "for m in T.tile(T.each(M))")
def an_axis_as_a_loop():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.each(64):
#       ^^^^^^^^^^^^^^^^^^^^
#+      for m in T.tile(T.each(64)):
            X[m] = 0


@case(CompileError, "300 does not fit int8", "-128…127")
def a_number_that_its_type_does_not_hold():
    @T.prim_func
    def main(X: T.Tensor((64,), "int8")):
        for m in T.tile(64):
            X[m] = T.full((m,), 300, "int8")
#                  ^^^^^^^^^^^^^^^^^^^^^^^^^
#+          X[m] = T.full((m,), 100, "int8")


@case(CompileError, "0.5 is not an integer")
def half_of_an_integer_outside():
    @T.prim_func
    def main(X: T.Tensor((64,), "int32")):
        for m in T.tile(64):
            X[m] = T.load(X[m + 1], fill=0.5)
#                  ^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          X[m] = T.load(X[m + 1], fill=1)


@case(CompileError, "fill= of T.load is a number", "T.where(m.index + 1 < M, X[m + 1], other)")
def a_tile_outside():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            X[m] = T.load(X[m + 1], fill=X[m])
#                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          X[m] = T.where(m.index + 1 < 64, X[m + 1], X[m])


@case(CompileError, "an index of X must be an integer", "T.where(cond, x, Y[m, n])")
def a_mask_as_an_index():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            X[X[m] > 0] = 1
#           ^^^^^^^^^^^
#+          X[m] = T.where(X[m] > 0, 1, X[m])


@case(CompileError, "m is a tile index", "m.index")
def a_tile_index_from_a_number():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            Y[m] = X[63 - m]
#                    ^^^^^^
#+          Y[m] = X[63 - m.index]


@case(CompileError, "a tile value inside T.Parallel", "X[m.start + i, j]")
def a_tile_in_a_nest_of_elements():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32")):
        for m in T.tile(64, size=16):
            for i, j in T.Parallel(16, 8):
                X[m, j] = X[m, j] + i
#                         ^^^^^^^
#+              X[m.start + i, j] = X[m.start + i, j] + i


@case(CompileError, "T.reduce_sum along a dimension of 1", "dst[:] = x[:, 0]")
def a_fold_of_nothing():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            row = T.alloc_fragment((m,), "float32")
            T.reduce_sum(X[m][:, None], row, dim=1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          row[:] = X[m][:, None][:, 0]
            X[m] = row[:]
