"""Wrong control flow, names and Python."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "T.aloc_shared is not a word of the language", "did you mean T.alloc_shared")
def misspelt_word():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            s = T.aloc_shared((8,), "float32")
#               ^^^^^^^^^^^^^


@case(CompileError, "'blok_M' is not defined", "did you mean 'block_M'?")
def misspelt_name():
    block_M = 4

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(T.ceildiv(8, block_M)) as bx:
            A[bx * blok_M] = 1
#                  ^^^^^^


@case(CompileError, "no attribute 'shap'", "did you mean 'shape'?")
def misspelt_attribute():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = A.shap[0]
#                  ^^^^^^


@case(CompileError, "'x' is used before it has a value", "assign to x")
def used_before_bound():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = x
#                  ^
#+          x = 1
#+          A[0] = x
            x = 1
#-


@case(CompileError, "'total' is rebound inside a run-time loop", "T.alloc_var", "line")
def rebinding_in_a_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            total = 0.0
            for i in T.serial(8):
                total = total + A[i]
#               ^^^^^^^^^^^^^^^^^^^^
            A[0] = total


@case(CompileError, "'total' is rebound inside a run-time loop", "T.alloc_var")
def adding_in_a_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            total = 0.0
            for i in range(8):
                total += A[i]
#               ^^^^^^^^^^^^^
            A[0] = total


@case(CompileError, "'x' is rebound inside a run-time branch", 'T.alloc_var("float32"')
def rebinding_in_a_branch():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            x = A[0]
            if n > 3:
                x = A[1]
#               ^^^^^^^^
            A[2] = x


@case(CompileError, "'x' was bound inside a run-time branch", "T.alloc_var")
def bound_only_in_a_branch():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            if n > 3:
#+          x = T.alloc_var("float32")
#+          if n > 3:
                x = A[1]
            else:
                x = A[0]
            A[2] = x + 1
#                  ^^^^^


@case(CompileError, "'i' was bound inside a run-time loop", "T.alloc_var")
def loop_variable_after_the_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in range(8):
#+          last = T.alloc_var("int32")
#+          for i in range(8):
#+              last = i
                A[i] = 1
            A[0] = i
#                  ^
#+          A[0] = last


@case(CompileError, "'A' is a tensor", "store nothing", "A[i] = …", "T.fill")
def rebinding_a_parameter():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A = B[0] + 1
#           ^^^^^^^^^^^^
#+          A[0] = B[0] + 1


@case(CompileError, "'sums' is a Python list", "T.alloc_local")
def store_in_a_list():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            sums = [0.0, 0.0]
#+          sums = T.alloc_local((2,), "float32")
            for i in range(8):
                sums[0] = A[i]
#               ^^^^^^^


@case(CompileError, "a run-time value", "compile-time integer", "int32", "T.alloc_local")
def list_indexed_at_run_time():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            table = [1.0, 2.0, 3.0, 4.0]
#+          table = T.alloc_local((4,), "float32")
#+          for k, value in enumerate((1.0, 2.0, 3.0, 4.0)):
#+              table[k] = value
            for i in range(4):
                A[i] = table[i]
#                      ^^^^^^^^


@case(CompileError, "run-time value", "range", "fix:")
def unrolling_a_run_time_range():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            for i in tuple(range(n)):
#                          ^^^^^^^^
#+          for i in range(n):
                A[i] = 1


@case(CompileError, "threads of T.Kernel must be a compile-time integer", "a run-time value")
def run_time_threads():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1, threads=n):
#            ^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(1, threads=128):
            A[0] = 1


@case(CompileError, "at most 1024 threads", "threads=2048", "fix:")
def too_many_threads():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=2048):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(2, threads=1024):
            A[0] = 1


@case(CompileError, "grid axis 0 of T.Kernel must be an integer", "2.0", "T.ceildiv")
def float_grid():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8 / 4) as bx:
#            ^^^^^^^^^^^^^^^
            A[bx] = 1


@case(CompileError, "T.Kernel's names do not fit its grid", "1 name", "bx, by", "fix:")
def grid_names():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8) as (bx, by):
#            ^^^^^^^^^^^
#+      with T.Kernel(8, 1) as (bx, by):
            A[bx] = 1


@case(CompileError, "num_stages of T.Pipelined must be a compile-time integer", "fix:")
def run_time_stages():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            for k in T.Pipelined(8, num_stages=n):
#                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          for k in T.Pipelined(8, num_stages=2):
                A[k] = 1


@case(CompileError, "T.clear outside a kernel", "T.Kernel")
def tile_word_outside_the_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        T.clear(A)
#       ^^^^^^^^^^
#-
        with T.Kernel(1):
#+      with T.Kernel(1):
#+          T.clear(A)
            A[0] = 1


@case(CompileError, "T.alloc_shared outside a kernel", "T.Kernel")
def allocation_outside_the_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        s = T.alloc_shared((8,), "float32")
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#-
        with T.Kernel(1):
#+      with T.Kernel(1):
#+          s = T.alloc_shared((8,), "float32")
            T.copy(A, s)


@case(CompileError, "main has no kernel", "T.Kernel")
def no_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
#   ^^^^^^^^
        pass
#+      with T.Kernel(1):
#+          A[0] = 1


@case(CompileError, "T.Kernel inside T.Kernel", "fix:")
def nested_kernels():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
#+      with T.Kernel(1):
#+          T.clear(A)
            with T.Kernel(2) as bx:
#                ^^^^^^^^^^^
#+      with T.Kernel(2) as bx:
                A[bx] = 1


@case(CompileError, "T.Kernel inside a run-time branch", "fix:")
def kernel_in_a_branch():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        if n > 2:
#+      with T.Kernel(2) as bx:
            with T.Kernel(2) as bx:
#                ^^^^^^^^^^^
#+          if n > 2:
                A[bx] = 1


@case(CompileError, "T.alloc_shared outside a kernel function", "@T.prim_func")
def word_outside_any_kernel_function():
    s = T.alloc_shared((8,), "float32")
#       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  @T.prim_func
#+  def main(A: T.Tensor((8,), "float32")):
#+      with T.Kernel(1):
#+          s = T.alloc_shared((8,), "float32")
#+          T.copy(A, s)


@case(CompileError, "tile belongs to another kernel", "T.alloc_global")
def tile_of_another_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((8,), "float32")
#+          tile = T.alloc_global((8,), "float32")
            T.copy(A, tile)
        with T.Kernel(1):
            T.copy(tile, A)
#           ^^^^^^^^^^^^^^^


@case(CompileError, "names do not fit its extents", "2 names", "3: i, j, k", "fix:")
def parallel_names():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            for i, j, k in T.Parallel(8, 8):
#                          ^^^^^^^^^^^^^^^^
#+          for i, j, k in T.Parallel(8, 8, 1):
                A[i, j] = k


@case(CompileError, "an index of A is a tuple of 2", "one number for each dimension", "for i, j in")
def parallel_with_one_name():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8, 8):
#+          for i, j in T.Parallel(8, 8):
                A[i, 0] = 1
#               ^^^^^^^
#+              A[i, j] = 1


@case(CompileError, "iterations of T.Parallel write the same element of A", "depends on j", "fix:")
def parallel_conflict():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            for i, j in T.Parallel(8, 8):
#+          for i in T.Parallel(8):
                A[i] = B[i, j]
#               ^^^^
#+              A[i] = B[i, 0]


@case(CompileError, "an extent of T.Parallel must be an integer", "2.0", "//")
def parallel_extent():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8 / 4):
#                    ^^^^^^^^^^^^^^^^^
                A[i] = 1


@case(CompileError, "T.copy inside T.Parallel", "fix:")
def tile_word_in_parallel():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            for i in T.Parallel(8):
#+          for i in T.serial(8):
                T.copy(A[i, 0:8], s)
#               ^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "T.sync_threads inside T.Parallel", "fix:")
def barrier_in_parallel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                A[i] = 1
                T.sync_threads()
#               ^^^^^^^^^^^^^^^^
#+          T.sync_threads()


@case(CompileError, "`break` inside T.Parallel", "independent", "`if`")
def break_in_parallel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                if A[i] > 3:
#+              if A[i] <= 3:
                    break
#                   ^^^^^
#+                  A[i] = 0


@case(CompileError, "a loop with step 0", "fix:")
def loop_without_a_step():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in range(0, 8, 0):
#                    ^^^^^^^^^^^^^^
#+          for i in range(0, 8):
                A[i] = 1


@case(CompileError, "the end of a loop must be an integer", "float32", "fix:")
def float_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in range(A[0]):
#                    ^^^^^^^^^^^
#+          for i in range(T.int32(A[0])):
                A[i] = 1


@case(CompileError, "`return` inside a run-time loop or branch", "fix:")
def return_in_a_branch():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            if bx > 4:
#+          if bx <= 4:
                return
#               ^^^^^^
#-
            A[bx] = 1
#+              A[bx] = 1


@case(CompileError, "`break` of an unrolled loop under a run-time `if`", "range(n)")
def break_of_an_unrolled_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in (0, 1, 2):
#+          for i in range(3):
                if A[i] > 0:
                    break
#                   ^^^^^


@case(CompileError, "`try` is not part of the kernel language", "`if`")
def python_try():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            try:
#           ^^^^
#+          if A[0] > 0:
                A[0] = 1
            except ValueError:
#+          else:
                A[1] = 1


@case(CompileError, "`yield` is not part of the kernel language", "fix:")
def python_yield():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1
            yield A
#           ^^^^^^^
#-


@case(CompileError, "`async`", "not part of the kernel language", "fix:")
def python_async():
    @T.prim_func
    async def main(A: T.Tensor((8,), "float32")):
#   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "`global` is not part of the kernel language", "fix:")
def python_global():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        global counter
#       ^^^^^^^^^^^^^^
#-
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "`del` is not part of the kernel language", "fix:")
def python_del():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            x = A[0]
            del x
#           ^^^^^
#-


@case(CompileError, "a class is not part of the kernel language", "outside")
def python_class():
    @T.prim_func
#+  class Point:
#+      pass
#+
#+  @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            class Point:
#           ^^^^^^^^^^^^
#+          A[0] = 1
                pass
#-


@case(CompileError, "a lambda", "fix:")
def prim_func_of_a_lambda():
    main = T.prim_func(lambda A: None)
#                      ^^^^^^^^^^^^^^
#+  @T.prim_func
#+  def main(A: T.Tensor((8,), "float32")):
#+      with T.Kernel(1):
#+          A[0] = 1


@case(CompileError, "ZeroDivisionError: division by zero", "ran at compile time")
def python_error():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1 / (A.shape[0] - 8)
#                  ^^^^^^^^^^^^^^^^^^^^
#+          A[0] = 1 / (A.shape[0] - 7)


@case(CompileError, "assertion failed: 8 rows")
def python_assertion():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
#+  def main(A: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            assert A.shape[0] % 16 == 0, f"{A.shape[0]} rows"
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "a run-time value", "True or False", "@T.macro", "called from")
def if_in_a_plain_helper():
    def relu(x):
#+  @T.macro
#+  def relu(x):
        if x > 0:
#          ^^^^^
#+      y = T.alloc_var("float32", init=0)
#+      if x > 0:
            return x
#+          y = x
        return 0
#+      return y

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = relu(A[0])


@case(CompileError, "run-time value", "@T.macro", "called from")
def and_in_a_plain_helper():
    def inside(i, n):
#+  @T.macro
#+  def inside(i, n):
        return i > 0 and i < n
#              ^^^^^^^^^^^^^^^

    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(8) as bx:
            if inside(bx, n):
                A[bx] = 1


@case(CompileError, "run-time value", "math.sqrt", "T.sqrt", "fix:")
def python_math():
    import math

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = math.sqrt(A[0])
#                  ^^^^^^^^^^^^^^^
#+          A[0] = T.sqrt(A[0])


@case(CompileError, "@T.macro", "called from", iteration=True)
def loop_in_a_plain_helper():
    def zero(A):
#+  @T.macro
#+  def zero(A):
        for i in T.Parallel(8):
#       ^^^^^^^^^^^^^^^^^^^^^^^
            A[i] = 0

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            zero(A)


@case(CompileError, "`for`", "range(n)", "fix:", iteration=True)
def loop_without_a_for():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = sum([A[i] for i in T.serial(8)])
#                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          A[0] = sum([A[i] for i in range(8)])


@case(CompileError, "'x' of scale must be a shared buffer", "fragment f", "shared memory", "fix:")
def macro_argument():
    @T.macro
    def scale(x: T.SharedBuffer):
        for i in T.Parallel(8):
            x[i] = x[i] * 2

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8,), "float32")
#+          f = T.alloc_shared((8,), "float32")
            T.copy(A, f)
            scale(f)
#           ^^^^^^^^


@case(CompileError, "scale", "missing", "'by'", "scale(x, by)")
def macro_argument_count():
    @T.macro
    def scale(x, by):
        for i in T.Parallel(8):
            x[i] = x[i] * by

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            scale(A)
#           ^^^^^^^^
#+          scale(A, 2)


@case(CompileError, "recurses without end", "fix:")
def endless_macro():
    @T.macro
    def again(x):
#+  def again(x, n):
        again(x)
#       ^^^^^^^^
#+      if n > 0:
#+          x[n] = n
#+          again(x, n - 1)

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            again(A)
#+          again(A, 7)


@case(CompileError, "main is a prim_func", "tw.compile")
def calling_a_prim_func():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    main([1.0] * 8)
#   ^^^^^^^^^^^^^^^
#+  import numpy as np
#+  import tilewright as tw
#+  tw.compile(main, target="interp")(np.ones(8, np.float32))


@case(CompileError, "'i' is a number", "fix:")
def storing_into_an_index():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                i[0] = 1
#               ^^^^
#+              A[i] = 1


@case(CompileError, "'total' is rebound", "T.alloc_var")
def rebinding_in_a_while():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            total = 0
            while A[0] > total:
                total = total + 1
#               ^^^^^^^^^^^^^^^^^


@case(CompileError, "a tensor outside a kernel", "T.Kernel")
def reading_outside_the_kernel():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        n = A[0]
#       ^^^^^^^^
#-
        with T.Kernel(1):
#+      with T.Kernel(1):
#+          n = A[0]
            A[1] = n


@case(CompileError, "`continue` inside T.Parallel", "`if`")
def continue_in_parallel():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                if A[i] > 3:
#+              if A[i] <= 3:
                    continue
#                   ^^^^^^^^
#+                      A[i] = 0
                A[i] = 0
#-


@case(CompileError, "`else` of a run-time loop", "alloc_var")
def else_of_a_loop():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in range(8):
#+          found = T.alloc_var("bool", init=False)
#+          for i in range(8):
                if A[i] > 3:
                    break
#+                  found = True
#+                  break
            else:
#+          if not found:
                A[0] = 0
#               ^^^^^^^^


@case(CompileError, "unknown dtype 'flot32'", "did you mean 'float32'?")
def é_is_one_character():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            größe, x = "größe", T.alloc_var("flot32")
#                               ^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "a run-time value is not subscriptable", "index a tensor")
def element_of_a_number():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            A[0] = n[0]
#                  ^^^^
#+          A[0] = A[n]


@case(CompileError, "v is read before this iteration of T.Parallel has written it", "T.reduce_sum")
def sum_of_iterations():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            v = T.alloc_var("float32", init=0.0)
            for i in T.Parallel(64):
#+          for i in T.serial(64):
                v = v + X[i]
#                   ^^^^^^^^
            Y[0] = v


@case(CompileError, "v is read after the T.Parallel whose iterations changed it", "changed at")
def last_of_iterations():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            v = T.alloc_var("float32", init=0.0)
            for i in T.Parallel(64):
#+          for i in T.serial(64):
                v = X[i]
            Y[0] = v
#           ^^^^
