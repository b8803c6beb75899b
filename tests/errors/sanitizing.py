"""Programs that go wrong when they run, reported by the sanitizer."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import SanitizerError


def check(main, *arrays):
    tw.compile(main, target="interp -sanitize")(*arrays)


def ints(*values):
    return np.array(values, np.int32)


@case(SanitizerError, "out-of-range", "s[9]", "(8,)", "fix:")
def index_out_of_range():
    @T.prim_func
    def main(N: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8,), "int32")
            T.clear(s)
            s[N[0]] = 1
#           ^^^^^^^
#+          s[T.min(N[0], 7)] = 1

    check(main, ints(9, 0, 0, 0, 0, 0, 0, 0))


@case(SanitizerError, "out-of-range", "s[8]", "fix:")
def index_from_data():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8,), "int32")
#+          s = T.alloc_shared((9,), "int32")
            T.clear(s)
            for i in T.Parallel(8):
                A[i] = s[i] + s[A[i] + 8]
#                             ^^^^^^^^^^^

    check(main, np.zeros(8, np.int32))


@case(SanitizerError, "uninitialized", "s[0, 0] is read, but nothing wrote it", "T.clear(s)")
def uninitialized_tile():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8, 8), "float32")
            T.copy(s, A)
#           ^^^^^^^^^^^^
#+          T.clear(s)
#+          T.copy(s, A)

    check(main, np.zeros((8, 8), np.float32))


@case(SanitizerError, "uninitialized", "c[0, 0]", "T.clear")
def uncleared_accumulator():
    @T.prim_func
    def main(A: T.Tensor((16, 16), "float16"), C: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.gemm(a, a, c)
#           ^^^^^^^^^^^^^^^
#+          T.clear(c)
#+          T.gemm(a, a, c)
            T.copy(c, C)

    check(main, np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float32))


# equal expressions of all kernels are one object, with the place of the first: a name of its own
@case(SanitizerError, "uninitialized", "never_set is read", "T.alloc_var(…, init=…)")
def uninitialized_variable():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            never_set = T.alloc_var("float32")
#+          never_set = T.alloc_var("float32", init=0)
            A[0] = never_set + 1
#                  ^^^^^^^^^^^^^

    check(main, np.zeros(8, np.float32))


@case(SanitizerError, "parallel-conflict", "A[0]", "fix:")
def parallel_conflict():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), N: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
#+          for i in T.serial(8):
                A[N[i]] = i
#               ^^^^^^^

    check(main, np.zeros(8, np.int32), np.zeros(8, np.int32))


@case(SanitizerError, "parallel-conflict", "A[1]", "fix:")
def parallel_shift():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(7):
#+          for i in T.serial(7):
                A[i] = A[i + 1]
#               ^^^^

    check(main, np.zeros(8, np.int32))


@case(SanitizerError, "race", "s[", "T.sync_threads")
def missing_barrier():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            s[t] = A[t]
#+          s[t] = A[t]
#+          T.sync_threads()
            A[t] = s[63 - t]
#                  ^^^^^^^^^

    check(main, np.zeros(64, np.int32))


@case(SanitizerError, "block-race", "A[0]", "fix:")
def block_race():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            A[0] = bx
#           ^^^^
#+          A[bx] = bx

    check(main, np.zeros(8, np.int32))


@case(SanitizerError, "divergent-barrier", "fix:")
def divergent_barrier():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            x = T.alloc_var("int32", init=0)
            x = A[t]
            while x < 5:
                x += 1
                T.sync_warp()
#               ^^^^^^^^^^^^^
#+          T.sync_warp()

    check(main, np.arange(64, dtype=np.int32))


@case(SanitizerError, "negative-shift", "fix:")
def negative_shift():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                A[i] = 64 >> (A[i] - 4)
#               ^^^^
#+              A[i] = T.if_then_else(A[i] >= 4, 64 >> (A[i] - 4), 64 << (4 - A[i]))

    check(main, np.arange(8, dtype=np.int32))


@case(SanitizerError, "zero-step", "fix:")
def zero_step():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), step: T.int32):
        with T.Kernel(1, threads=32):
            for i in range(0, 8, step):
#                    ^^^^^^^^^^^^^^^^^
#+          for i in range(0, 8, T.max(step, 1)):
                A[i] = i

    check(main, np.arange(8, dtype=np.int32), 0)


@case(SanitizerError, "division-by-zero", "fix:")
def division_by_zero():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                A[i] = 64 // A[i]
#               ^^^^
#+              A[i] = T.if_then_else(A[i] != 0, 64 // A[i], 0)

    check(main, np.arange(8, dtype=np.int32))


@case(SanitizerError, "index-overflow", "int32", "int64", "fix:")
def index_overflow():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            A[n * n % 8] = 1
#           ^^^^^^^^^^^^
#+          A[T.cast(n, "int64") * n % 8] = 1

    check(main, np.arange(8, dtype=np.int32), 70000)


@case(tw.RunError, "device_assert failed in block", "too small")
def device_assert():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            T.device_assert(A[0] > 3, "too small")
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.device_assert(A[0] >= 0, "too small")
            A[0] = 1

    check(main, np.zeros(8, np.int32))


@case(SanitizerError, "parallel-conflict", "Y[0]", "Y is updated atomically at", "T.atomic_load")
def atomic_and_plain():
    @T.prim_func
    def main(X: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                T.atomic_add(Y[0], 1)
                X[i] = Y[0]
#                      ^^^^
#+              X[i] = T.atomic_load(Y[0])

    check(main, np.zeros(8, np.int32), np.zeros(8, np.int32))


@case(SanitizerError, "shuffle-lane", "lane 0", "lane 16, which does not run this", "0 … 15")
def shuffle_from_a_lane_that_is_not_there():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            if t < 16:
                Y[t] = T.shfl_sync(X[t], t + 16)
#                      ^^^^^^^^^^^^^^^^^^^^^^^^^
#+              Y[t] = T.shfl_sync(X[t], t + 1, width=16)

    check(main, np.zeros(64, np.float32), np.zeros(64, np.float32))


@case(SanitizerError, "uninitialized", "B[0] is updated atomically", "in a kernel of its own")
def output_that_nothing_cleared():
    @tw.jit
    def sums(A):
        A: T.Tensor((8, 8), "float32")
        B = T.empty((8,), "float32")
#+      B = T.empty((8,), "float32")
#+      with T.Kernel(1):
#+          T.clear(B)
        with T.Kernel(8) as bx:
            for j in T.Parallel(8):
                T.atomic_add(B[j], A[bx, j])
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        return B

    sums.on("interp -sanitize")(np.zeros((8, 8), np.float32))
