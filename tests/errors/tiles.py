"""Wrong tile words: copies, products, reductions, allocation, indices."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "s and A have different shapes", "(32, 64)", "(48, 64)", "fix:")
def copy_shapes():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((32, 64), "float16")
            T.copy(s, A[0:48, :])
#           ^^^^^^^^^^^^^^^^^^^^^
#+          T.copy(s, A[0:16, :])


@case(CompileError, "s and t have different shapes", "(32, 64)", "(16, 64)", "fix:")
def copy_shapes_of_tiles():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((32, 64), "float16")
            t = T.alloc_shared((16, 64), "float16")
            T.copy(A[0, 0], s)
            T.copy(s, t)
#           ^^^^^^^^^^^^
#+          T.copy(s[0:16, :], t)
            T.copy(t, A[0, 0])


@case(CompileError, "has 1 dimension", "(32, 64)", "fix:")
def copy_into_fewer_dimensions():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64,), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((32, 64), "float16")
            T.copy(A[0, 0], s)
            T.copy(s, B[0])
#           ^^^^^^^^^^^^^^^
#+          T.copy(s[0, :], B[0])


@case(CompileError, "T.copy needs a tensor, a tile or a region", "list", "fix:")
def copy_of_a_python_list():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            T.copy([0.0] * 8, A)
#           ^^^^^^^^^^^^^^^^^^^^
#+          T.fill(A, 0.0)


@case(CompileError, "T.copy leaves s in dimension 0", "0 … 32", "16 … 48", "fix:")
def copy_leaves_the_tile():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((32, 64), "float16")
            T.copy(A[0:32, :], s[16, 0])
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.copy(A[0:16, :], s[16, 0])


@case(CompileError, "unknown prefer", "'tma'", "'tam'", "fix:")
def copy_prefers_something_unknown():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((64, 64), "float16")
            T.copy(A, s, prefer="tam")
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.copy(A, s, prefer="tma")


@case(CompileError, "T.copy", "'num_stages'", "expected:", "fix:")
def unknown_keyword():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((64, 64), "float16")
            T.copy(A, s, num_stages=2)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "T.copy", "'dst'", "expected:")
def missing_argument():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            T.copy(A)
#           ^^^^^^^^^
#+          s = T.alloc_shared((64, 64), "float16")
#+          T.copy(A, s)


@case(CompileError, "the shapes do not multiply", "a 64×32", "b 64×64", "allocate b as (32, 64)")
def gemm_inner_dimensions():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 64), "float16")
#+          b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, b, c)
#           ^^^^^^^^^^^^^^^


@case(CompileError, "the shapes do not multiply", "b 32×128 (transposed)", "b as (32, 32)")
def gemm_transposed():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((128, 32), "float16")
#+          b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((64, 32), "float32")
            T.gemm(a, b, c, transpose_B=True)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "the shapes do not multiply", "a 1×32", "b 64×64", "allocate b as (32, 64)")
def gemm_of_one_row():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((1, 32), "float16")
            b = T.alloc_shared((64, 64), "float16")
#+          b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((1, 64), "float32")
            T.gemm(a, b, c)
#           ^^^^^^^^^^^^^^^


@case(CompileError, "A and B have different types", "float16", "bfloat16", "T.copy casts")
def gemm_operand_types():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "bfloat16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, b, c)
#           ^^^^^^^^^^^^^^^
#+          d = T.alloc_shared((64, 64), "float16")
#+          T.copy(b, d)
#+          T.gemm(a, d, c)


@case(CompileError, "C cannot accumulate", "int32", "float16 · float16 → int32", "allocate c")
def gemm_accumulator_type():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "int32")
#+          c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c)
#           ^^^^^^^^^^^^^^^


@case(CompileError, "C is C in global memory", "a fragment", "fix:")
def gemm_into_global():
    @T.prim_func
    def main(C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            T.gemm(a, a, C)
#           ^^^^^^^^^^^^^^^
#+          c = T.alloc_fragment((64, 64), "float32")
#+          T.gemm(a, a, c, clear_accum=True)
#+          T.copy(c, C)


@case(CompileError, "must be a matrix", "two dimensions", "(4, 64, 64)", "fix:")
def gemm_of_a_batch():
    @T.prim_func
    def main(C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((4, 64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c)
#           ^^^^^^^^^^^^^^^
#+          T.gemm(a[0, :, :], a[0, :, :], c)


@case(CompileError, "unknown GemmWarpPolicy", "FullRow", "'rows'", "fix:")
def gemm_policy():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c, policy="rows")
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.gemm(a, a, c, policy=T.GemmWarpPolicy.FullRow)


@case(CompileError, "GemmWarpPolicy", "'FullRows'", "did you mean 'FullRow'?")
def gemm_policy_misspelt():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c, policy=T.GemmWarpPolicy.FullRows)
#                                  ^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "transpose_A must be known at compile time", "fix:")
def gemm_run_time_flag():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), flag: T.int32):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c, transpose_A=flag > 0)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          if flag > 0:
#+              T.gemm(a, a, c, transpose_A=True)
#+          else:
#+              T.gemm(a, a, c)


@case(CompileError, "s has no dimension 2", "-2 … 1", "fix:")
def reduce_over_no_dimension():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1):
            s = T.alloc_fragment((64, 64), "float32")
            m = T.alloc_fragment((64,), "float32")
            T.reduce_max(s, m, dim=2)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.reduce_max(s, m, dim=-1)


@case(CompileError, "m does not fit s reduced over 1", "(64,)", "(32,)", "fix:")
def reduce_into_another_shape():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_fragment((64, 32), "float32")
            m = T.alloc_fragment((32,), "float32")
            T.reduce_max(s, m, dim=1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.reduce_max(s, m, dim=0)


@case(CompileError, "A lives in global memory", "fragments or shared", "T.copy")
def reduce_a_parameter():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            m = T.alloc_fragment((64,), "float32")
            T.reduce_sum(A, m, dim=1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^
#+          f = T.alloc_fragment((64, 32), "float32")
#+          T.copy(A, f)
#+          T.reduce_sum(f, m, dim=1)


@case(CompileError, "unknown kind", "sum", "'mean'", "divided afterwards")
def reduce_of_unknown_kind():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_fragment((64, 32), "float32")
            m = T.alloc_fragment((64,), "float32")
            T.reduce(s, m, "mean", dim=1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.reduce(s, m, "sum", dim=1)
#+          for i in T.Parallel(64):
#+              m[i] = m[i] / 32


@case(CompileError, "has another shape", "(64, 32)", "(64,)", "fix:")
def cumsum_shape():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_fragment((64, 32), "float32")
            m = T.alloc_fragment((64,), "float32")
            T.cumsum(s, m, dim=1)
#           ^^^^^^^^^^^^^^^^^^^^^
#+          T.cumsum(s, dim=1)


@case(CompileError, "unknown dtype 'flaot16'", "did you mean 'float16'?")
def unknown_dtype():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((64, 32), "flaot16")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "T.alloc_shared needs a compile-time shape", "dimension 0 of s", "fix:")
def run_time_shape():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), n: T.int32):
        with T.Kernel(1):
            s = T.alloc_shared((n, 32), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          s = T.alloc_shared((16, 32), "float32")
#+          for k in range(n // 16):
#+              T.copy(A[k * 16, 0], s)


@case(CompileError, "must be an integer", "16.0", "//")
def float_shape():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((32 / 2, 32), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "must be positive", "0", "fix:")
def empty_shape():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((32 // 64, 32), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          s = T.alloc_shared((T.ceildiv(32, 64), 32), "float32")


@case(CompileError, "not a shape", "'float16'", "fix:")
def dtype_before_shape():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared("float16", (64, 32))
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "packs 2 int4 elements into a byte", "a multiple of 2", "31", "fix:")
def odd_packed_tile():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8, 31), "int4")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "index 8 is outside dimension 0 of f", "0 … 7", "fix:")
def constant_index():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8,), "float32")
            A[0] = f[8]
#                  ^^^^
#+          A[0] = f[7]


@case(CompileError, "index -1 is outside dimension 1 of s", "0 … 31", "do not wrap")
def negative_index():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8, 32), "float32")
            s[0, -1] = 0
#           ^^^^^^^^
#+          s[0, 31] = 0


@case(CompileError, "A has 1 dimension", "at most 1", "2", "fix:")
def too_many_indices():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0, 1] = 1
#           ^^^^^^^
#+          A[0] = 1


@case(CompileError, "a region of A, not an element", "2 indices", "A[i, j]")
def too_few_indices():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
#+          for i, j in T.Parallel(8, 8):
                B[i] = A[i] * 2
#                      ^^^^^^^^
#+              A[i, j] = A[i, j] * 2


@case(CompileError, "an index of A must be an integer", "float32", "//")
def float_index():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), n: T.int32):
        with T.Kernel(1):
            A[n / 2, 0] = 1
#           ^^^^^^^^^^^


@case(CompileError, "a slice of A with a step", "step 2", "fix:")
def strided_slice():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((4, 8), "float32")
            T.copy(A[::2, :], s)
#                  ^^^^^^^^^
#+          for i, j in T.Parallel(4, 8):
#+              s[i, j] = A[2 * i, j]


@case(CompileError, "an empty slice of A", "fix:")
def empty_slice():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((4, 8), "float32")
            T.copy(A[4:0, :], s)
#                  ^^^^^^^^^
#+          T.copy(A[0:4, :], s)


@case(CompileError, "a shift by a negative constant: '<< -2'", "shift the other way: >> 2")
def negative_constant_shift():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = A[i] << -2
#                      ^^^^^^^^^^
#+              A[i] = A[i] >> 2


@case(CompileError, "s is a whole tile: arithmetic works on its elements", "T.Parallel")
def arithmetic_on_tiles():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8, 8), "float32")
            A[0, 0] = s * 2
#                     ^^^^^
#+          for i, j in T.Parallel(8, 8):
#+              A[i, j] = s[i, j] * 2


@case(CompileError, "s is a whole tile and cannot be stored in one element of A", "T.copy")
def tile_in_an_element():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8, 8), "float32")
            A[0, 0] = s
#           ^^^^^^^
#+          T.copy(s, A)


@case(CompileError, "s is a tile, not a condition", "T.any_of")
def tile_as_condition():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8, 8), "float32")
            if s:
#              ^
#+          if T.any_of(s):
                A[0, 0] = 1


@case(CompileError, "division by a constant zero", "fix:")
def division_by_zero():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            A[0] = n // (8 - 8)
#                  ^^^^^^^^^^^^
#+          A[0] = n // (8 - 7)


@case(CompileError, "int4 elements have no atomics", "int32")
def atomic_on_packed():
    @T.prim_func
    def main(A: T.Tensor((8,), "int4")):
#+  def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            T.atomic_add(A[0], 1)
#           ^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "f lives in fragment memory", "global or shared", "fix:")
def atomic_on_a_fragment():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8,), "int32")
            T.atomic_add(f[0], 1)
#           ^^^^^^^^^^^^^^^^^^^^^
#+          for i in T.Parallel(8):
#+              f[i] = f[i] + 1


@case(CompileError, "this layout is not for s", "T.Layout for shared memory", "fix:")
def layout_of_another_space():
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float16")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8, 64), "float16")
            T.annotate_layout({s: T.spatial(8, 4) * T.repeat(1, 16)})
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.copy(A, s)


@case(CompileError, "another size than s", "512 elements", "256 elements", "fix:")
def layout_of_another_shape():
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float16")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8, 64), "float16")
            T.annotate_layout({s: T.Layout((8, 32), (32, 1))})
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.annotate_layout({s: T.Layout((8, 64), (64, 1))})


@case(CompileError, "changes its size", "256 bytes", "128 bytes", "fix:")
def view_of_another_size():
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float16")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8, 8), "float32")
            t = T.reshape(s, (8, 4))
#               ^^^^^^^^^^^^^^^^^^^^
#+          t = T.reshape(s, (16, -1))


@case(CompileError, "unknown order", "'row'", "'diagonal'", "fix:")
def swizzle_order():
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float16")):
        with T.Kernel(8) as bx:
            T.use_swizzle(4, order="diagonal")
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.use_swizzle(4, order="row")
            A[bx, 0] = 1


@case(CompileError, "bar is a barrier, not data", "T.barrier_wait")
def copy_of_a_barrier():
    @T.prim_func
    def main(A: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            bar = T.alloc_barrier(128)
            T.copy(bar, A)
#           ^^^^^^^^^^^^^^
#+          T.barrier_arrive(bar)
#+          T.barrier_wait(bar, 0)


@case(CompileError, "index 8 is outside dimension 0 of s", "i = 7", "0 … 7", "fix:")
def index_of_a_neighbour():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8,), "int32")
#+          s = T.alloc_shared((9,), "int32")
            T.clear(s)
            for i in T.Parallel(8):
                A[i] = s[i] + s[i + 1]
#                             ^^^^^^^^

    tw.compile(main, target="cpu")


@case(CompileError, "index 2 is outside dimension 0 of f", "i = 2", "0 … 1", "fix:")
def a_fragment_smaller_than_its_loop():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            f = T.alloc_fragment((2,), "float32")
#+          f = T.alloc_fragment((64,), "float32")
            for i in T.Parallel(64):
                f[i] = A[1]
#               ^^^^
            for i in T.Parallel(64):
                A[i] = f[i]

    tw.compile(main, target="cuda")
