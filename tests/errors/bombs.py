"""Small texts that would make enormous programs: refused at their line, and at once.

Every limit is in `support/limits.py`, or, where it is a chip's, in the target.
"""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "T.unroll makes too much code", "10000000 iterations", "T.serial")
def unrolled():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.unroll(10**7):
#                    ^^^^^^^^^^^^^^^
#+          for i in T.serial(1000):
                A[i % 8] = i


@case(CompileError, "T.unroll makes too much code", "1000 iterations", "T.serial")
def unrolled_nest():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.unroll(1000):
#                    ^^^^^^^^^^^^^^
#+          for i in T.serial(8):
                for j in T.unroll(1000):
#+              for j in T.serial(8):
                    A[i % 8] = j


@case(CompileError, "too many items for Python to make", "100 000 000", "range(n)")
def tuple_of_a_range():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in tuple(range(10**8)):
#                    ^^^^^^^^^^^^^^^^^^^
#+          for i in range(8):
                A[i % 8] = i


@case(CompileError, "too many items", "1 000 000", "range(n)", iteration=True)
def comprehension():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            table = [i * 2 for i in range(10**12)]
#                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          table = [i * 2 for i in range(8)]
            A[0] = table[3]


@case(CompileError, "too many items", "10 000 000 000", "fix:")
def list_that_is_repeated():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            table = [0] * 10**10
#                   ^^^^^^^^^^^^
#+          table = [0] * 8
            A[0] = table[3]


@case(CompileError, "main is too large", "10 000 statements", "TILEWRIGHT_LIMITS", iteration=True)
def statements():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in [*range(10**6)]:
#           ^^^^^^^^^^^^^^^^^^^^^^^^^
#+          for i in range(8):
                A[i % 8] = i


@case(CompileError, "main is too large", "`while`", "fix:", iteration=True)
def endless_while():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            n = 0
            while n >= 0:
#           ^^^^^^^^^^^^^
#+          while n < 8:
                n = n + 1
            A[0] = n


@case(CompileError, "main is too large", "fix:", iteration=True)
def kernels():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        for i in [*range(10**6)]:
#+      for i in (0, 1):
            with T.Kernel(1):
#                ^^^^^^^^^^^
                A[i] = 1


@case(CompileError, "main is too large", "macro", "fix:", "called from")
def macro_tree():
    @T.macro
    def again(x, n):
        if n > 0:
            again(x, n - 1)
            again(x, n - 1)
#           ^^^^^^^^^^^^^^^
        x[0] = n

    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            again(A, 40)
#+          again(A, 4)


@case(CompileError, "again recurses without end, or too far", "at most 64 macros", "fix:")
def deep_macro():
    @T.macro
    def again(x, n):
        if n > 0:
            again(x, n - 1)
#           ^^^^^^^^^^^^^^^
        x[0] = n

    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            again(A, 10**6)
#+          again(A, 8)


@case(CompileError, "functions recurse without end", "fix:", "called from")
def deep_helper():
    def again(n):
        return again(n + 1)
#              ^^^^^^^^^^^^
#+      return again(n + 1) if n < 8 else n

    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            A[0] = again(0)


@case(CompileError, "too many loops and branches inside each other", "64", "`and`")
def nested_branches():
    @T.macro
    def below(x, n):
        if n > 0:
            if x[0] > n:
#              ^^^^^^^^
                below(x, n - 1)
        else:
            x[1] = n

    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            below(A, 63)
            below(A, 64)
#+          below(A, 60)


@case(CompileError, "this expression is too large", "16 384 operations", "@T.macro")
def doubled_expression():
    def grown(x):
#+  @T.macro
#+  def grown(x):
        for _ in range(40):
#+      for _ in (0,) * 40:
            x = x * x + x
        return x

    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            A[1] = grown(n)
#           ^^^^


@case(CompileError, "this expression is too deep", "160 operations", "@T.macro")
def deep_expression():
    def grown(x):
#+  @T.macro
#+  def grown(x):
        for i in range(200):
#+      for i in tuple(range(200)):
            x = x * 3 + i
        return x

    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            A[1] = grown(n)
#           ^^^^


@case(CompileError, "this expression is too deep", "fix:", "called from", iteration=True)
def very_deep_expression():
    def grown(x):
#+  @T.macro
#+  def grown(x):
        for i in range(5000):
#+      for i in tuple(range(50)):
            x = x * 3 + i
#               ^^^^^^^^^
        return x

    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            A[1] = grown(n)


@case(CompileError, "this number is too large", "bits", "fix:")
def power():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = 10 ** (10 ** 10)
#                  ^^^^^^^^^^^^^^^^
#+          A[0] = 10 ** 10


@case(CompileError, "T.Parallel is too large for one block", "1048576 × 1048576", "more blocks")
def parallel():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
#+      with T.Kernel(2) as bx:
            for i, j in T.Parallel(2**20, 2**20):
#                       ^^^^^^^^^^^^^^^^^^^^^^^^
#+          for i, j in T.Parallel(2, 8):
                A[i, j] = i
#+              A[bx * 2 + i, j] = i

    tw.compile(main, target="cpu")


@case(CompileError, "f is too large for a tile", "268 435 456 bytes", "4 294 967 296", "smaller")
def fragment():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((2**15, 2**15), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          f = T.alloc_fragment((2**5, 2**5), "float32")
            T.clear(f)


@case(CompileError, "s is too large for a tile", "T.alloc_global")
def shared():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((2**20, 2**20), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          s = T.alloc_global((2**4, 2**4), "float32")
            T.clear(s)


@case(CompileError, "c does not fit the registers of 128 threads", "2048 for 512×512", "smaller")
def accumulator():
    @T.prim_func
    def main(A: T.Tensor((512, 32), "float16"), C: T.Tensor((512, 512), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((512, 32), "float16")
#+          a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((512, 512), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
#+          T.copy(A[0, 0], a)
            T.clear(c)
            T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C)
#+          T.copy(c, C[0, 0])

    tw.compile(main, target="cuda")


@case(CompileError, "f does not fit the registers of 128 threads", "262144", "smaller")
def reduction():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            f = T.alloc_fragment((8, 2**22), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          f = T.alloc_fragment((8, 2**8), "float32")
            g = T.alloc_fragment((8,), "float32")
            T.clear(f)
            T.reduce_sum(f, g, dim=1)
            T.copy(g, A)

    tw.compile(main, target="cuda")


@case(CompileError, "num_stages of T.Pipelined is too large", "64", "1000000", "2 to 4")
def stages():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((64, 64), "float16")
            for _ in T.Pipelined(10, num_stages=10**6):
#                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          for _ in T.Pipelined(10, num_stages=2):
                T.copy(A, s)
                T.copy(s, A)


@case(CompileError, "grid axis 0 of T.Kernel is too long", "2**31", "1 099 511 627 776", "loop")
def grid():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(2**40) as bx:
#            ^^^^^^^^^^^^^^^
#+      with T.Kernel(2**2) as bx:
            A[bx % 8] = 1
#+          for i in range(8):
#+              A[(bx + i) % 8] = 1


@case(CompileError, "grid axis 0 of T.Kernel is too long", "2**31", "1 099 511 627 776", "loop")
def grid_of_tiles():
    @tw.jit
    def main(A):
        A: T.Tensor((8,), "float32")
        B = T.empty((8,), "float32")
        for i, j in T.tile(T.each(2**20), T.each(2**20)):
#                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+      for i, j in T.tile(T.each(2), T.each(2)):
            B[i % 8] = A[j % 8]
        return B

    main.on("cuda").compile(np.ones(8, np.float32))


@case(CompileError, "A is too large: no address reaches its end", "2**63 bytes", "fix:")
def tensor():
    @T.prim_func
    def main(A: T.Tensor((2**40, 2**40), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  def main(A: T.Tensor((2**4, 2**4), "float32")):
        with T.Kernel(1):
            A[0, 0] = 1


@case(CompileError, "9223372036854775808 does not fit int64", "fix:")
def size():
    @T.prim_func
    def main(A: T.Tensor((2**63,), "float32")):
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+  def main(A: T.Tensor((2**3,), "float32")):
        with T.Kernel(1):
            A[0] = 1


@case(CompileError, "main is too large", "fix:")
def variables():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            x = [T.alloc_var("float32", init=0) for _ in range(200000)]
#                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          x = [T.alloc_var("float32", init=0) for _ in range(20)]
            A[0] = x[0]
