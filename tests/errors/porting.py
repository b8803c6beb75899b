"""What people bring along from Triton, TileLang, CUDA, NumPy and plain Python."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "T.alloc_fragmnt is not a word", "did you mean T.alloc_fragment?")
def misspelt_fragment():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragmnt((8,), "float32")
#               ^^^^^^^^^^^^^^^
            T.copy(A, f)


@case(CompileError, "T.Pipeline is not a word", "did you mean T.Pipelined?")
def misspelt_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for k in T.Pipeline(8, num_stages=2):
#                    ^^^^^^^^^^
                A[k] = 1


@case(CompileError, "T.parallel is not a word", "did you mean T.Parallel?")
def small_letter():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.parallel(8):
#                    ^^^^^^^^^^
                A[i] = 1


@case(CompileError, "T.Tensr is not a word", "did you mean T.Tensor?")
def misspelt_annotation():
    @T.prim_func
    def main(A: T.Tensr((8,), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "T.program_id is not a word", "with T.Kernel(grid) as bx")
def triton_program_id():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8):
#+      with T.Kernel(8) as pid:
            pid = T.program_id(0)
#                 ^^^^^^^^^^^^
#-
            A[pid] = 1


@case(CompileError, "T.load reads one place", "A[i] an element")
def triton_load():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            x = T.load(A, bx)
#               ^^^^^^^^^^^^^
#+          x = A[bx]
            B[bx] = x


@case(CompileError, "T.dot is not a word", "T.gemm(A, B, C)")
def triton_dot():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(c)
            c = T.dot(a, a)
#               ^^^^^
#+          T.gemm(a, a, c)
            T.copy(c, C)


@case(CompileError, "T.arange counts from 0", "T.arange(n) + start")
def triton_arange():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            i = T.arange(0, 8)
#               ^^^^^^^^^^^^^^
#+          for i in T.Parallel(8):
            A[i] = 1
#+              A[i] = 1


@case(CompileError, "T.syncthreads is not a word", "did you mean T.sync_threads?")
def cuda_syncthreads():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1
            T.syncthreads()
#           ^^^^^^^^^^^^^


@case(CompileError, "T.threadIdx is not a word", "T.get_thread_binding(0)")
def cuda_thread_index():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            A[T.threadIdx.x] = 1
#             ^^^^^^^^^^^
#+          A[T.get_thread_binding(0)] = 1


@case(CompileError, "T.atomicAdd is not a word", "did you mean T.atomic_add?")
def cuda_atomic():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8):
            T.atomicAdd(A[0], 1)
#           ^^^^^^^^^^^


@case(CompileError, "T.wobbly is not a word", "dir(T)")
def no_word_at_all():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            T.wobbly(A)
#           ^^^^^^^^
#-
            A[0] = 1


@case(CompileError, "np.exp cannot take a run-time value", "use T.exp")
def numpy_function():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            A[bx] = np.exp(A[bx])
#                   ^^^^^^^^^^^^^


@case(CompileError, "a tensor or tile has no attribute 'sum'", "T.reduce_sum(tile, out, dim)")
def numpy_method():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8, 8), "float32")
            T.copy(A, f)
            total = f.sum(1)
#                   ^^^^^
#+          total = T.alloc_fragment((8,), "float32")
#+          T.reduce_sum(f, total, 1)
            T.copy(total, B)


@case(CompileError, "a tensor or tile has no attribute 'T'", "transpose_B=True")
def numpy_transpose():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(c)
            T.gemm(a, a.T, c)
#                     ^^^
#+          T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C)


@case(CompileError, "for @", "T.gemm(A, B, C)")
def numpy_product():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            T.copy(A, a)
            c = a @ a
#               ^^^^^
#+          c = T.alloc_fragment((64, 64), "float32")
#+          T.clear(c)
#+          T.gemm(a, a, c)
            T.copy(c, C)


@case(CompileError, "has no setter", "T.reshape")
def numpy_shape():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8, 8), "float32")
            s.shape = (4, 16)
#           ^^^^^^^^^^^^^^^^^
#+          t = T.reshape(s, (4, 16))
            A[0, 0] = 1


@case(CompileError, "T.reduce_sum: got an unexpected keyword argument 'axis'", "'dim'?")
def numpy_axis():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8, 8), "float32")
            m = T.alloc_fragment((8,), "float32")
            T.reduce_sum(f, m, axis=1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "missing 1 required positional argument: 'dst'", "the tile that is written to")
def reduction_as_a_value():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8, 8), "float32")
            m = T.reduce_sum(f, dim=1)
#               ^^^^^^^^^^^^^^^^^^^^^^
#+          m = T.alloc_fragment((8,), "float32")
#+          T.reduce_sum(f, m, dim=1)


@case(CompileError, "'NoneType' object", "use the tile that they write to")
def copy_as_a_value():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            s = T.copy(A, T.alloc_shared((8,), "float32"))
#+          s = T.alloc_shared((8,), "float32")
#+          T.copy(A, s)
            A[0] = s[0]
#                  ^^^^


@case(CompileError, "T.reduce_mean is not a word", "divide by the number")
def mean():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8, 8), "float32")
            m = T.alloc_fragment((8,), "float32")
            T.reduce_mean(f, m, dim=1)
#           ^^^^^^^^^^^^^
#+          T.reduce_sum(f, m, dim=1)
#+          for i in T.Parallel(8):
#+              m[i] = m[i] / 8


@case(CompileError, "did you mean 'transpose_B'?")
def gemm_keyword():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c, trans_B=True)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "the shapes do not multiply", "a 64×32", "pass transpose_B=True")
def gemm_without_a_transpose():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c)
#           ^^^^^^^^^^^^^^^


@case(CompileError, "the shapes do not multiply", "pass transpose_B=False")
def gemm_with_a_transpose_too_many():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 16), "float16")
            c = T.alloc_fragment((64, 16), "float32")
            T.gemm(a, b, c, transpose_B=True)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "the accumulator comes last: T.gemm(a, b, c)")
def gemm_result_first():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 16), "float16")
            c = T.alloc_fragment((64, 16), "float32")
            T.gemm(c, a, b)
#           ^^^^^^^^^^^^^^^


@case(CompileError, "A is a in local memory", "shared memory or a fragment", "T.alloc_shared")
def gemm_of_a_threads_own():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16")):
        with T.Kernel(1):
            a = T.alloc_local((64, 32), "float16")
#+          a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c, transpose_B=True)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "the tile comes first, then the value", "write T.fill(A, 0)")
def fill_the_other_way_round():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            T.fill(0, A)
#           ^^^^^^^^^^^^


@case(CompileError, "T.copy needs a tensor, a tile or a region", "int: 0", "T.fill(tile, 0)")
def copy_of_a_number():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            T.copy(0, A)
#           ^^^^^^^^^^^^
#+          T.fill(A, 0)


@case(CompileError, "s and f have different shapes", "T.copy does not broadcast")
def copy_that_broadcasts():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            f = T.alloc_fragment((8, 8), "float32")
            T.copy(s, f)
#           ^^^^^^^^^^^^
#+          for i, j in T.Parallel(8, 8):
#+              f[i, j] = s[j]


@case(CompileError, "T.Tensor takes all sizes as one argument", "T.Tensor((8, 8)")
def sizes_without_a_tuple():
    @T.prim_func
    def main(A: T.Tensor(8, 8, "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "T.alloc_shared takes all sizes as one argument", "T.alloc_shared((8, 8)")
def tile_sizes_without_a_tuple():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared(8, 8, "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            T.copy(A, s)


@case(CompileError, "T.alloc_var takes a type first", 'T.alloc_var("float32", init=0.0)')
def variable_without_a_type():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            total = T.alloc_var(0.0)
#                   ^^^^^^^^^^^^^^^^
            A[0] = total


@case(CompileError, "parameter 'A' has no usable annotation", "T.Tensor", "fix:")
def annotation_without_a_shape():
    @T.prim_func
    def main(A: T.Tensor):
#            ^^^^^^^^^^^
#+  def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "dimension 0 of A must be positive", "-8", "fix:")
def negative_size():
    @T.prim_func
    def main(A: T.Tensor((-8,), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  def main(A: T.Tensor((T.ceildiv(3, 8),), "float32")):
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "grid axis 0 of T.Kernel is empty", "0", "T.ceildiv")
def empty_grid():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8 // 16) as bx:
#            ^^^^^^^^^^^^^^^^^
#+      with T.Kernel(T.ceildiv(8, 16)) as bx:
            A[bx] = 1


@case(CompileError, "T.Kernel takes at most three grid axes", "4", "fold two of them")
def four_grid_axes():
    @T.prim_func
    def main(A: T.Tensor((2, 2, 2, 2), "float32")):
        with T.Kernel(2, 2, 2, 2) as (a, b, c, d):
#            ^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(2, 2, 2 * 2) as (a, b, e):
#+          c, d = e // 2, e % 2
            A[a, b, c, d] = 1


@case(CompileError, "threads of T.Kernel must be at least 1", "0", "fix:")
def no_threads():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=0):
#            ^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(1, threads=32):
            A[0] = 1


@case(CompileError, "T.Kernel: got an unexpected keyword argument 'num_threads'", "'threads'?")
def keyword_of_the_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8, num_threads=128) as bx:
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            A[bx] = 1


@case(CompileError, "opened by `with`, not assigned", "with T.Kernel(...) as bx")
def kernel_that_is_assigned():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        bx = T.Kernel(8)
#       ^^^^^^^^^^^^^^^^
#+      with T.Kernel(8) as bx:
        A[bx] = 1
#+          A[bx] = 1


@case(CompileError, "T.Parallel outside a kernel", "T.Kernel", iteration=True)
def loop_outside_the_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        for i in T.Parallel(8):
#       ^^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(1):
#+          for i in T.Parallel(8):
            A[i] = 1
#+              A[i] = 1


@case(CompileError, "T.Pipelined(8, 3) counts from 8 to 3", "num_stages=3")
def stages_by_position():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for k in T.Pipelined(8, 3):
#                    ^^^^^^^^^^^^^^^^^
                A[k] = 1


@case(CompileError, "T.Pipelined inside T.Parallel", "T.serial", iteration=True)
def pipeline_in_parallel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                for k in T.Pipelined(8, num_stages=2):
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+              for k in T.serial(8):
                    A[i] = A[i] + k


@case(CompileError, "an extent of T.Parallel is negative", "-4", "fix:")
def negative_extent():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(4 - 8):
#                    ^^^^^^^^^^^^^^^^^
#+          for i in T.Parallel(8 - 4):
                A[i] = 1


@case(CompileError, "the extents of a T.Parallel loop", "the same in all threads", "tx", "fix:")
def extent_of_a_thread():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            for i in T.Parallel(tx):
#                    ^^^^^^^^^^^^^^
#+          for i in T.serial(tx):
                A[i] = 1


@case(CompileError, "T.vectorized needs compile-time bounds", "T.serial")
def run_time_lanes():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            for i in T.vectorized(n):
#                    ^^^^^^^^^^^^^^^
                A[i] = 1


@case(CompileError, "the parity of a barrier's phase must be an integer", "0.5", "0 or 1")
def parity_that_is_no_integer():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            bar = T.alloc_barrier(128)
            T.barrier_arrive(bar)
            T.barrier_wait(bar, 0.5)
#           ^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.barrier_wait(bar, 0)


@case(CompileError, "nobody arrives at barrier bar", "T.barrier_arrive(bar)")
def wait_without_an_arrival():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            bar = T.alloc_barrier(128)
            T.barrier_wait(bar, 0)
#           ^^^^^^^^^^^^^^^^^^^^^^
#+          T.barrier_arrive(bar)
#+          T.barrier_wait(bar, 0)


@case(CompileError, "T.barrier_wait needs a barrier", "global A", "T.alloc_barrier")
def wait_for_a_tensor():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            T.barrier_wait(A, 0)
#           ^^^^^^^^^^^^^^^^^^^^
#+          bar = T.alloc_barrier(128)
#+          T.barrier_arrive(bar)
#+          T.barrier_wait(bar, 0)


@case(CompileError, "T.atomic_addx2: a tile has no single previous value", "single elements")
def previous_values_of_neighbours():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            B[t] = T.atomic_addx2(A[2 * t], B[2 * t], return_prev=True)
#                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          B[t] = T.atomic_add(A[t], B[t], return_prev=True)


@case(CompileError, "T.atomic_add: a tile has no single previous value", "leave return_prev out")
def previous_values_of_the_copy_engine():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 64), "float32")
            T.clear(s)
            T.atomic_add(A, s, return_prev=True, use_tma=True)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.atomic_add(A, s, use_tma=True)


@case(CompileError, "one value for a tile of A", "T.atomic_add(A[i], value)", "T.Parallel")
def atomic_on_a_tile():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(4):
            T.atomic_add(A, 1)
#           ^^^^^^^^^^^^^^^^^^
#+          for i in T.Parallel(8):
#+              T.atomic_add(A[i], 1)


@case(CompileError, "'^' needs integers, got float32", "a power is **")
def power():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = A[0] ^ 2
#                  ^^^^^^^^


@case(CompileError, "'&' needs integers, got float32", "T.reinterpret", "T.cast")
def bits_of_a_float():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = A[0] & 1
#                  ^^^^^^^^
#+          A[0] = T.cast(A[0], "int32") & 1


@case(CompileError, "a str cannot be used as a value", "'one'", "use a number")
def string_in_a_tensor():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = "one"
#           ^^^^
#+          A[0] = 1


@case(CompileError, "a slice of A from the end", "-4:", "8 - 4")
def slice_from_the_end():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            T.copy(A[-4:], A[0:4])
#                  ^^^^^^


@case(CompileError, "a run-time value cannot be unpacked", "2 values", "A[0], A[1]")
def unpacking_an_element():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            a, b = A[0]
#           ^^^^^^^^^^^
#+          a, b = A[0], A[1]
            A[2] = a + b


@case(CompileError, "this assignment does not fit", "3 values", "2", "write 2 names")
def unpacking_a_shape():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            batch, m, n = A.shape
#           ^^^^^^^^^^^^^^^^^^^^^
#+          m, n = A.shape
            A[0, 0] = m + n


@case(CompileError, "a run-time value cannot be iterated", "T.serial", iteration=True)
def iterating_a_tensor():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for x in A:
#           ^^^^^^^^^^^
#+          for i in T.serial(8):
                B[0] = x
#+              B[0] = A[i]


@case(CompileError, "'values' is a Python list", "append", "at compile time", "T.alloc_local")
def list_that_grows():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            values = []
            for i in range(8):
#+          for i in tuple(range(8)):
                values.append(A[i])
#               ^^^^^^^^^^^^^^^^^^^
            A[0] = values[0]


@case(CompileError, "`is` asks for the same object", "==")
def identity():
    three = 3

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            if n is three:
#              ^^^^^^^^^^
                A[0] = 1


@case(CompileError, "a dict or a set is looked up with a run-time value", "int32", "index that")
def dictionary():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            table = {0: 1.0, 1: 2.0}
            A[0] = table[n]
#                  ^^^^^^^^
#+          if n == 0:
#+              A[0] = table[0]
#+          else:
#+              A[0] = table[1]


@case(CompileError, "print runs once, at compile time", "T.print")
def printing():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            print(A[0])
#           ^^^^^^^^^^^
            A[0] = 1


@case(CompileError, "context manager", "`with` opens T.Kernel")
def another_context():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with A:
#       ^^^^^^^
#+      with T.Kernel(1):
            A[0] = 1


@case(CompileError, "a run-time value", "True or False", "T.if_then_else")
def lambda_that_branches():
    relu = lambda x: x if x > 0 else 0
#                         ^^^^^
#+  relu = lambda x: T.if_then_else(x > 0, x, 0)

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = relu(A[0])


@case(CompileError, "`return` inside a run-time loop or branch", "a loop ends with `break`")
def return_in_a_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in range(8):
                A[i] = 1
                if A[i] > 3:
                    return
#                   ^^^^^^
#+                  break


@case(CompileError, "`else` of a run-time loop", "alloc_var")
def else_of_a_while():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            left = T.alloc_var("bool", init=False)
            while A[0] > 0:
                A[0] = A[0] - 1
            else:
#+          if not left:
                A[1] = 1
#               ^^^^^^^^


@case(CompileError, "a kernel cannot call itself", "@T.macro")
def kernel_that_calls_itself():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            main(A)
#           ^^^^
#+          for i in range(8):
#+              A[i] = 1


@case(CompileError, "parameter 'self' of main has no annotation", "outside the class")
def method():
    class Kernels:
#-
        @T.prim_func
#+  @T.prim_func
        def main(self, A: T.Tensor((8,), "float32")):
#                ^^^^
#+  def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
#+      with T.Kernel(1):
                A[0] = 1
#+          A[0] = 1


@case(CompileError, "a tile cannot be used as a value", "use an element of it: A[…]")
def choosing_a_tensor():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            C = A if n > 0 else B
#               ^^^^^^^^^^^^^^^^^
#+          c = A[0] if n > 0 else B[0]
            A[1] = C[0]
#+          A[1] = c


@case(CompileError, "nonlocal", "not part of the kernel language", "fix:")
def python_nonlocal():
    count = 0

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        nonlocal count
#       ^^^^^^^^^^^^^^
#-
        with T.Kernel(1):
            count = 1
            A[0] = 1


@case(CompileError, "f: got an unexpected keyword argument 'blok'", "did you mean 'block'?")
def keyword_of_a_factory():
    @tw.jit(target="interp")
    def f(n, block=4):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                A[0] = block

        return main

    f(8, blok=4)
#   ^^^^^^^^^^^^


@case(CompileError, "dimension 0 of A is an array", "x.shape[0]")
def array_for_a_factory():
    @tw.jit(target="interp")
    def f(n):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
#                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            with T.Kernel(1):
                A[0] = 1

        return main

    f(np.zeros(8, np.float32))
#+  f(8)(np.zeros(8, np.float32))


@case(CompileError, "main is a prim_func: it is compiled, then called", "return it", "fix:")
def factory_that_calls():
    @tw.jit(target="interp")
    def f(n):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                A[0] = 1

        return main()
#              ^^^^^^
#+      return main

    f(8)


@case(CompileError, "tw.jit takes a function", "int", "above the `def`")
def jit_of_a_number():
    tw.jit(8)
#   ^^^^^^^^^
#+  @tw.jit
#+  def f(n):
#+      return None


@case(CompileError, "unknown architecture 'sm_70' for cuda", "sm_90a", "leave -arch out")
def old_architecture():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    tw.compile(main, target="cuda -arch=sm_70")
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  tw.compile(main, target="cuda")


@case(CompileError, "unknown option '-rolls'", "-roles", "leave it out")
def option_of_a_target():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    tw.compile(main, target="cuda -rolls")
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  tw.compile(main, target="cuda")


@case(CompileError, "a target is named by a string", "5", 'target="auto"')
def target_by_number():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    tw.compile(main, target=5)
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  tw.compile(main, target="interp")


@case(CompileError, "A is a whole tile: comparisons work on its elements", "compare A[i]")
def comparing_tensors():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            if A == B:
#              ^^^^^^
#+          for i in T.Parallel(8):
                A[0] = 1
#+              if A[i] == B[i]:
#+                  A[i] = 1


@case(CompileError, "name 'tx' is not defined", "tx = T.get_thread_binding()")
def thread_index_without_asking():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            A[tx] = 1
#             ^^
#+          tx = T.get_thread_binding()
#+          A[tx] = 1


@case(CompileError, "have different shapes", "(n,)", "give the corner", "reads as zero")
def copy_of_a_run_time_size():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            T.copy(A[0:n], s)
#           ^^^^^^^^^^^^^^^^^
#+          T.copy(A[n], s)


@case(CompileError, "this is no layout for s", "'swizzled'", "leave it out")
def layout_by_name():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((64, 64), "float16")
            T.annotate_layout({s: "swizzled"})
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#-
            T.copy(A, s)


@case(CompileError, "`:=` in the condition of a while", "alloc_var before the loop")
def walrus():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            while (x := A[0]) > 0:
#                 ^^^^^^^^^^^^^^^
#+          x = T.alloc_var("float32", init=A[0])
#+          while x > 0:
                A[0] = x - 1
#+              A[0] = x - 1
#+              x = A[0]


@case(CompileError, "variable m is never defined", "sizes are known from the shapes of tensors")
def size_of_no_tensor():
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
#+  def main(A: T.Tensor((m,), "float32")):
        with T.Kernel(T.ceildiv(m, 8)) as bx:
#            ^^^^^^^^^^^^^^^^^^^^^^^^^
            A[bx] = 1


@case(CompileError, "the macro clear outside a kernel function", "@T.prim_func")
def macro_without_a_kernel():
    @T.macro
    def clear(x):
        x[0] = 0

    clear(np.zeros(8))
#   ^^^^^^^^^^^^^^^^^^
#+  @T.prim_func
#+  def main(A: T.Tensor((8,), "float32")):
#+      with T.Kernel(1):
#+          clear(A)


@case(CompileError, "A is declared as a tensor, and is none", "[1.0, 2.0]", "np.array")
def list_for_a_kernel():
    @tw.jit(target="interp")
    def scale(A):
        M = T.const("M")
        A: T.Tensor((M,), "float32")
#       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        with T.Kernel(1):
            A[0] = 1

    scale([1.0, 2.0])
#+  scale(np.array([1.0, 2.0], np.float32))


@case(CompileError, "T.empty inside a kernel", "before the kernel begins")
def output_inside_the_kernel():
    @tw.jit(target="interp")
    def double(A):
        A: T.Tensor((8,), "float32")
#+      A: T.Tensor((8,), "float32")
#+      B = T.empty((8,), "float32")
        with T.Kernel(1):
            B = T.empty((8,), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^
#-
            B[0] = A[0] * 2
        return B

    double(np.zeros(8, np.float32))
