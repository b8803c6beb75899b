"""Mistakes with tile values and loops over tiles."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError

N = T.dynamic("N")


@case(CompileError, "the shapes do not broadcast", "(m, n) and (m,)", "v[:, None]")
def bias_along_the_wrong_axis():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32"), b: T.Tensor((64,), "float32")):
        for m, n in T.tile(64, 64):
            X[m, n] = X[m, n] + b[m]
#                     ^^^^^^^^^^^^^^
#+          X[m, n] = X[m, n] + b[n]


@case(CompileError, "'acc' changes its type", "float32", "bfloat16", "T.cast")
def carried_type():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            acc = T.zeros((m,), "bfloat16")
#+          acc = T.zeros((m,), "float32")
            for n in T.tile(64):
                acc = acc + T.sum(X[m, n], dim=1)
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            Y[m] = acc


@case(CompileError, "'acc' changes its shape", "(m,) float32, as before", "(m, n)")
def carried_shape():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            acc = T.zeros((m,))
            for n in T.tile(64):
                acc = acc[:, None] + X[m, n]
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+              acc = acc + T.sum(X[m, n], dim=1)
            Y[m] = acc


@case(CompileError, "a tile is no condition", "T.where(cond, a, b)")
def a_tile_as_condition():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            x = T.load(X[m])
            if x > 0:
#              ^^^^^
#+          X[m] = T.where(x > 0, -x, x)
                X[m] = -x
#-


@case(CompileError, "a tile is no condition", "(0 < x) & (x < 1)")
def a_chain_of_comparisons():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            x = T.load(X[m])
            X[m] = T.where(0 < x < 1, x, 0)
#                          ^^^^^^^^^
#+          X[m] = T.where((0 < x) & (x < 1), x, 0)


@case(CompileError, "'n' was bound inside a run-time loop", "use n inside its loop")
def a_tile_index_after_its_loop():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32")):
        for m in T.tile(64):
            for n in T.tile(64):
                X[m, n] = 1
            X[m, n] = 2
#           ^^^^^^^
#-


@case(CompileError, "'x' was bound", "has no value after it", "store it to a tensor")
def a_value_of_another_grid():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            x = X[m] * 2
        for n in T.tile(64):
            X[n] = x
#                  ^
#+          X[n] = X[n] * 2


@case(CompileError, "the shapes do not multiply", "(m, k) @ (n, k)", "B[n, k].T")
def a_product_that_is_not_transposed():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        for m, n in T.tile(64, 64):
            acc = T.zeros((m, n))
            for k in T.tile(64):
                acc += A[m, k] @ A[n, k]
#                      ^^^^^^^^^^^^^^^^^
#+              acc += A[m, k] @ A[n, k].T
            C[m, n] = acc


@case(CompileError, "the sides have different types", "float32 @ float16", "T.cast")
def a_product_of_two_types():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        for m, n in T.tile(64, 64):
            acc = T.zeros((m, n))
            for k in T.tile(64):
                acc += C[m, k] @ A[k, n]
#                      ^^^^^^^^^^^^^^^^^
#+              acc += T.cast(C[m, k], "float16") @ A[k, n]
            C[m, n] = acc


@case(CompileError, "T.max of tiles folds along a dimension", "T.maximum(a, b)")
def two_meanings_of_max():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            X[m] = T.max(X[m], 0)
#                  ^^^^^^^^^^^^^^
#+          X[m] = T.maximum(X[m], 0)


@case(CompileError, "`:` over a size that is known only at launch", "for i in T.tile(N)", "max=")
def a_whole_dimension_of_unknown_size():
    @T.prim_func
    def main(X: T.Tensor((64, N), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            Y[m] = T.sum(X[m, :], dim=1)
#                        ^^^^^^^
#+          total = T.zeros((m,))
#+          for n in T.tile(N):
#+              total += T.sum(X[m, n], dim=1)
#+          Y[m] = total


@case(CompileError, "integer values that index X are not adjacent")
def index_values_apart():
    @T.prim_func
    def main(X: T.Tensor((64, 4, 64), "float32"), Y: T.Tensor((64, 4), "float32")):
        for m in T.tile(64):
            Y[m, :] = X[m.index, :, m.index]
#                     ^^^^^^^^^^^^^^^^^^^^^^
#+          Y[m, :] = X[m.index[:, None], T.arange(4), m.index[:, None]]


@case(CompileError, "a bound of T.tile is a tile index", "T.tile(i.stop)")
def a_tile_index_as_bound():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32")):
        for i in T.tile(64):
            for j in T.tile(i):
#                    ^^^^^^^^^
#+          for j in T.tile(i.stop):
                X[i, j] = 0


@case(CompileError, "`continue` in the grid", "under an `if`")
def a_block_that_is_left():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            if m.start > 16:
#+          if m.start <= 16:
                continue
#               ^^^^^^^^
#+              X[m] = 0
            X[m] = 0
#-


@case(CompileError, "names do not fit its axes", "2 names")
def names_and_axes():
    @tw.jit
    def main(X):
        M = T.const("M")
        X: T.Tensor((M, M), "float32")
        Y = T.empty((M, M), "float32")
        for a, b, c in T.tile(M, M):
#                      ^^^^^^^^^^^^
#+      for a, b in T.tile(M, M):
            Y[a, b] = X[a, b]
        return Y
    main(np.ones((4, 4), np.float32))


@case(CompileError, "T.gemm writes to memory, and this is a value", "acc += a @ b")
def a_value_as_accumulator():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        for m, n in T.tile(64, 64):
            acc = T.zeros((m, n))
            for k in T.tile(64):
                T.gemm(A[m, k], A[k, n], acc)
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+              acc += A[m, k] @ A[k, n]
            C[m, n] = acc


@case(CompileError, "T.copy writes to memory, and this is a value", "Y[m, n] = x")
def a_copy_into_a_tile_of_a_tensor():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        for m in T.tile(64):
            T.copy(A[m, :], C[m, :])
#           ^^^^^^^^^^^^^^^^^^^^^^^^
#+          C[m, :] = A[m, :]


@case(CompileError, "'C' is a tensor or a tile", "C[:] = …")
def a_name_in_place_of_a_store():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C = A[m] * 2
#           ^^^^^^^^^^^^
#+          C[m] = A[m] * 2


@case(CompileError, "A is a whole tile", "A[:], or with tile indices")
def a_tensor_without_an_index():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C[m] = A * 2
#                  ^^^^^
#+          C[m] = A[m] * 2


@case(CompileError, "a value has no elements to store to", "T.where(cond, new, x)")
def a_store_to_a_value():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            x = A[m] * 2
            x[0] = 1
#           ^^^^
#+          x = T.where(m.index == m.start, 1, x)
            A[m] = x


@case(CompileError, "a value has no attribute 'sum'", "T.sum(x, dim=1)")
def a_method_of_arrays():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C[m] = A[m, :].sum(1)
#                  ^^^^^^^^^^^
#+          C[m] = T.sum(A[m, :], dim=1)


@case(CompileError, "does not support", "NumPy runs at compile time", "T.exp(x)")
def a_function_of_numpy():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            A[m] = np.exp(A[m])
#                  ^^^^^^^^^^^^
#+          A[m] = T.exp(A[m])


@case(CompileError, "NumPy's sum cannot take a tile", "NumPy runs at compile time", "T.sum(x")
def a_reduction_of_numpy():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C[m] = A[m, 0] / np.sum(A[m, :])
#                            ^^^^^^^^^^^^^^^
#+          C[m] = A[m, 0] / T.sum(A[m, :], dim=1)


@case(CompileError, "'k' was bound inside a run-time loop", "use k inside its loop")
def a_part_of_a_tile_index_after_its_loop():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            for k in T.tile(8):
                C[m] = T.sum(A[m, k], dim=1)
            C[m] = A[m, k.start]
#                       ^^^^^^^
#+          C[m] = A[m, 0]


@case(CompileError, "Python's max takes numbers", "T.maximum(a, b)")
def a_function_of_python():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            A[m] = max(A[m], 0)
#                  ^^^^^^^^^^^^
#+          A[m] = T.maximum(A[m], 0)


@case(CompileError, "unexpected keyword argument 'axis'", "did you mean 'dim'?")
def a_dimension_by_its_name_in_numpy():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C[m] = T.max(A[m, :], axis=1)
#                  ^^^^^^^^^^^^^^^^^^^^^^
#+          C[m] = T.max(A[m, :], dim=1)


@case(CompileError, "the schedule has a size for 'rows'", "r", "the variable of a loop over tiles")
def a_size_for_a_loop_that_is_not_there():
    @tw.jit
    def main(X):
        M = T.const("M")
        X: T.Tensor((M,), "float32")
        Y = T.empty((M,), "float32")
        for r in T.tile(M):
            Y[r] = X[r]
        return Y
    main.with_schedule(tiles={"rows": 4})(np.ones(4, np.float32))
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  main.with_schedule(tiles={"r": 4})(np.ones(4, np.float32))


@case(CompileError, "m is a tile index: it is shifted by + and -", "m.index")
def a_tile_index_that_is_multiplied():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((32,), "float32")):
        for m in T.tile(32):
            Y[m] = X[m * 2]
#                    ^^^^^
#+          Y[m] = X[m.index * 2]


@case(CompileError, "T.atomic_add writes to memory, and this is a value", "Y[m, n] = x")
def an_atomic_update_of_a_value():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            x = X[m] * 2
            T.atomic_add(x, 1)
#           ^^^^^^^^^^^^^^^^^^
#+          T.atomic_add(Y[m], x + 1)


@case(CompileError, "takes 1 positional argument but 2 were given", "T.sum(x, *, dim", "dim=…")
def a_dimension_without_its_name():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64,), "float32")):
        for m, n in T.tile(64, 64):
            Y[m] = T.sum(X[m, n], 1)
#                  ^^^^^^^^^^^^^^^^^
#+          Y[m] = T.sum(X[m, n], dim=1)


@case(CompileError, "an atomic update of Y: the value has more dimensions", "(m, n)", "T.sum")
def an_update_of_fewer_elements():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64,), "float32")):
        for m, n in T.tile(64, 64):
            T.atomic_add(Y[n], X[m, n])
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.atomic_add(Y[n], T.sum(X[m, n], dim=0))


@case(CompileError, "a value has no attribute 'reshape'", "T.reshape(x, shape)")
def a_word_as_a_method():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((8, 8), "float32")):
        for _ in T.tile():
            x = T.load(X[:])
            Y[:, :] = x.reshape((8, 8))
#                     ^^^^^^^^^
#+          Y[:, :] = T.reshape(x, (8, 8))


@case(CompileError, "a bound of a grid is an element of a tensor", "m.within(first, last)")
def a_grid_over_data():
    @T.prim_func
    def main(L: T.Tensor((1,), "int32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(L[0]):
#                ^^^^^^^^^^^^
#+      for m in T.tile(64):
            Y[m] = 1


@case(CompileError, "an element of a value along m, whose tiles may have any size", "T.max")
def an_element_of_a_tile():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            Y[m] = X[m][0]
#                  ^^^^^^^
#+          Y[m] = X[m]


@case(CompileError, "a part of tile that got a name is read after tile has been written", "T.load")
def a_name_for_a_part_of_a_tile():
    @T.prim_func
    def main(X: T.Tensor((64, 4), "float32"), Y: T.Tensor((64, 4), "float32")):
        for m in T.tile(64, size=8):
            tile = T.alloc_shared((m, 4), "float32")
            tile[:, :] = X[m, :]
            x = tile[:, :]
#+          x = T.load(tile[:, :])
            tile[:, :] = x + 1
            Y[m, :] = x
#           ^^^^^^^


@case(CompileError, "a tile value outside a kernel", "for … in T.tile(…)")
def a_value_outside_a_grid():
    @tw.jit(target="cpu")
    def main(X):
        X: T.Tensor((4,), "float32")
        Y = T.empty((4,), "float32")
        Y[:] = X[:] + 1
#              ^^^^^^^^
#+      for _ in T.tile():
#+          Y[:] = X[:] + 1
        return Y

    main(np.ones(4, np.float32))


@case(CompileError, "a slice of X whose length is known only at run time", "(low, high)")
def a_slice_with_bounds_of_data():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), L: T.Tensor((1,), "int32"), Y: T.Tensor((64,))):
        for m in T.tile(64):
            Y[m] = T.sum(X[m, L[0]:], dim=1)
#                        ^^^^^^^^^^^
#+          Y[m] = T.sum(X[m, 0:8], dim=1)


@case(CompileError, "the shapes do not broadcast", "what `within` gives is another one")
def a_tile_index_beside_what_within_gives():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            cut = m.within(1, 5)
            Y[cut] = X[cut] + X[m]
#                    ^^^^^^^^^^^^^
#+          Y[cut] = X[cut] + X[cut]


@case(CompileError, "an index of a value is a tile", "X[m, L[:]]")
def a_value_indexed_by_a_tile():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), L: T.Tensor((8,), "int32"), Y: T.Tensor((64, 8))):
        for m in T.tile(64):
            x = T.load(X[m, :])
            Y[m, :] = x[:, L[:]]
#                     ^^^^^^^^^^
#+          Y[m, :] = X[m, L[:]]


@case(CompileError, "a slice of X from the end", "8 - 2 as the start")
def a_slice_from_the_end():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), Y: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            Y[m] = T.sum(X[m, -2:], dim=1)
#                        ^^^^^^^^^
#+          Y[m] = T.sum(X[m, 6:8], dim=1)


@case(CompileError, "the right side of @ is no matrix", "(64,)", "T.sum(A[m, :] * x[:], dim=1)")
def a_matrix_times_a_vector():
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float32"), x: T.Tensor((64,), "float32"), Y: T.Tensor((8,))):
        for m in T.tile(8):
            Y[m] = A[m, :] @ x[:]
#                  ^^^^^^^^^^^^^^
#+          Y[m] = T.sum(A[m, :] * x[:], dim=1)


@case(CompileError, "the left side of @ is no matrix", "T.sum(x[:, None] * A[:, n], dim=0)")
def a_vector_times_a_matrix():
    @T.prim_func
    def main(x: T.Tensor((64,), "float32"), A: T.Tensor((64, 8), "float32"), Y: T.Tensor((8,))):
        for n in T.tile(8):
            Y[n] = x[:] @ A[:, n]
#                  ^^^^^^^^^^^^^^
#+          Y[n] = T.sum(x[:, None] * A[:, n], dim=0)


@case(CompileError, "the left side of @ is no matrix", "T.sum(x[:] * y[:], dim=0)")
def a_vector_times_a_vector():
    @T.prim_func
    def main(x: T.Tensor((64,), "float32"), Y: T.Tensor((1,), "float32")):
        for _ in T.tile():
            Y[0] = x[:] @ x[:]
#                  ^^^^^^^^^^^
#+          Y[0] = T.sum(x[:] * x[:], dim=0)


@case(CompileError, "the left side of @ is no matrix", "(s, m, k)", "for s, m, n in T.tile(T.each(")
def a_tile_of_a_batch_under_a_product():
    @T.prim_func
    def main(A: T.Tensor((4, 64, 64), "float32"), C: T.Tensor((4, 64, 64), "float32")):
        for s, m, n in T.tile(4, 64, 64):
#+      for s, m, n in T.tile(T.each(4), 64, 64):
            acc = T.zeros((s, m, n))
#+          acc = T.zeros((m, n))
            for k in T.tile(64):
                acc += A[s, m, k] @ A[s, k, n]
#                      ^^^^^^^^^^^^^^^^^^^^^^^
            C[s, m, n] = acc


@case(CompileError, "an index of a value is a tile", "X[m.index, L[m]] takes an element")
def an_element_of_each_row_of_a_value():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), L: T.Tensor((64,), "int64"), Y: T.Tensor((64,))):
        for m in T.tile(64):
            x = T.load(X[m, :])
            Y[m] = x[m.index, L[m]]
#                  ^^^^^^^^^^^^^^^^
#+          Y[m] = X[m.index, L[m]]


@case(CompileError, "more dimensions than the place", "(m, m)", "X[m.index, L[m]]")
def a_tile_index_beside_an_integer_value():
    @T.prim_func
    def main(X: T.Tensor((64, 8), "float32"), L: T.Tensor((64,), "int64"), Y: T.Tensor((64,))):
        for m in T.tile(64):
            Y[m] = X[m, L[m]]
#           ^^^^
#+          Y[m] = X[m.index, L[m]]


@case(CompileError, "`<`: the shapes do not broadcast", "T.where(cond, a, b)", "takes one number")
def a_branch_over_indices():
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64, 64), "float32")):
        for m, n in T.tile(64, 64):
            if m.index < n.index:
#              ^^^^^^^^^^^^^^^^^
#+          Y[m, n] = T.where(m.index[:, None] < n.index, X[m, n], 0)
                Y[m, n] = X[m, n]
#-


@case(CompileError, "'total' is rebound inside a run-time loop", "total = T.full((), 0.0)")
def a_carried_float():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((1,), "float32")):
        for _ in T.tile():
            total = 0.0
            for m in T.tile(64):
                total += T.sum(X[m], dim=0)
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^
            Y[0] = total


@case(CompileError, "'count' is rebound inside a run-time loop", 'count = T.full((), 0, "int32")')
def a_carried_integer():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((1,), "int32")):
        for _ in T.tile():
            count = 0
            for m in T.tile(64):
                count += T.sum(X[m] > 0, dim=0)
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            Y[0] = count


@case(CompileError, "Y has 0 dimensions", "write Y[()]")
def a_colon_of_a_scalar():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((), "float32")):
        for _ in T.tile():
            Y[:] = T.sum(X[:], dim=0)
#           ^^^^
#+          Y[()] = T.sum(X[:], dim=0)


@case(CompileError, "argument 'X' is used before it is declared", 'M, N = T.const("M, N")')
def sizes_from_a_shape():
    @tw.jit(target="interp")
    def double(X):
        M, N = X.shape
#              ^^^^^^^
#+      M, N = T.const("M, N")
#+      X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for m, n in T.tile(M, N):
            Y[m, n] = X[m, n] * 2
        return Y

    double(np.ones((4, 4), np.float32))


@case(CompileError, "name 'M' is not defined", 'M, K = T.const("M, K")')
def sizes_without_names():
    @tw.jit(target="interp")
    def double(X):
        X: T.Tensor((M, 4, K), "float32")
#                    ^
#+      M, K = T.const("M, K")
#+      X: T.Tensor((M, 4, K), "float32")
        Y = T.empty((M, 4, K), "float32")
        for m in T.tile(M):
            Y[m, :, :] = X[m, :, :] * 2
        return Y

    double(np.ones((4, 4, 4), np.float32))


@case(CompileError, "index -1 is outside dimension 1 of A", "0 … 7", "do not wrap: write 8 - 1")
def an_index_from_the_end():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C[m] = A[m, -1]
#                  ^^^^^^^^
#+          C[m] = A[m, 8 - 1]


@case(CompileError, "T.cumsum of a value needs a dimension", "1 in place of dst", "dim=1")
def a_scan_without_a_name_for_its_dimension():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32")):
        for m in T.tile(64):
            A[m, :] = T.cumsum(A[m, :], 1)
#                     ^^^^^^^^^^^^^^^^^^^^
#+          A[m, :] = T.cumsum(A[m, :], dim=1)


@case(CompileError, "m is a tile index: it is shifted by + and -", "m.index")
def arithmetic_with_a_tile_index():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            A[m] = m + A[m]
#                  ^^^^^^^^
#+          A[m] = m.index + A[m]


@case(CompileError, "T.load fills what it reads outside", "load first, then compute")
def a_fill_of_what_was_computed():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            C[m] = T.load(A[m + 1] * 2, fill=-1)
#                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          C[m] = T.load(A[m + 1], fill=-1) * 2


@case(CompileError, "cannot be unpacked", "T.argmax(x, dim=1)")
def a_maximum_and_its_place():
    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), C: T.Tensor((64,), "int32")):
        for m in T.tile(64):
            best, C[m] = T.max(A[m, :], dim=1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          best, C[m] = T.max(A[m, :], dim=1), T.argmax(A[m, :], dim=1)


@case(CompileError, "sums", "would happen once", "names of their own")
def values_in_a_list():
    @T.prim_func
    def main(A: T.Tensor((64, 80), "float32"), C: T.Tensor((64,), "float32")):
        for m in T.tile(64):
            sums = [T.zeros((m,))]
#+          total = T.zeros((m,))
            for n in T.tile(80):
                sums[0] = sums[0] + T.sum(A[m, n], dim=1)
#               ^^^^^^^
#+              total = total + T.sum(A[m, n], dim=1)
            C[m] = sums[0]
#+          C[m] = total


@case(CompileError, "an index of A is a tuple of 2", "for i, j in T.tile(m, n)", "size=64")
def a_size_that_reads_as_an_axis():
    @T.prim_func
    def main(A: T.Tensor((64, 80), "float32")):
        for m in T.tile(64, 16):
#+      for m in T.tile(64, size=16):
            A[m, :] = A[m, :] * 2
#                     ^^^^^^^


@case(CompileError, "A has 1 dimension", "T.tile(n, size=64)")
def a_size_that_reads_as_an_axis_of_a_vector():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        for m in T.tile(64, 16):
#+      for m in T.tile(64, size=16):
            A[m] = A[m] * 2
#                  ^^^^


@case(CompileError, "a store to C", "(n, m) and (m, n)", "transpose one: x.T")
def a_store_in_another_order():
    @T.prim_func
    def main(A: T.Tensor((64, 80), "float32"), C: T.Tensor((80, 64), "float32")):
        for m, n in T.tile(64, 80):
            C[n, m] = A[m, n]
#           ^^^^^^^
#+          C[n, m] = A[m, n].T
