"""Wrong thread-level code: values that differ between threads, barriers, foreign code."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError, RunError


@case(CompileError, "an operand of a copy must be the same in all threads", "tx", "fix:")
def copy_to_a_thread_place():
    @T.prim_func
    def main(A: T.Tensor((128, 8), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((1, 8), "float32")
#+          s = T.alloc_shared((128, 8), "float32")
            T.copy(A[tx, 0], s)
#           ^^^^^^^^^^^^^^^^^^^
#+          for j in range(8):
#+              s[tx, j] = A[tx, j]


@case(CompileError, "the bounds of a pipelined loop", "same in all threads", "tx", "fix:")
def pipelined_bounds():
    @T.prim_func
    def main(A: T.Tensor((128, 8), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            for k in T.Pipelined(tx, num_stages=2):
#                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          for k in T.serial(tx):
                A[k, 0] = 1


@case(CompileError, "same in all threads", "`n` is set at", "tx", "fix:")
def per_thread_variable_in_a_copy():
    @T.prim_func
    def main(A: T.Tensor((128, 8), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            n = T.alloc_var("int32", init=0)
            n = tx * 2
#+          n = 2
            s = T.alloc_shared((1, 8), "float32")
            T.copy(A[n, 0], s)
#           ^^^^^^^^^^^^^^^^^^


@case(CompileError, "a block barrier that not all of its threads reach", "tx", "fix:")
def divergent_barrier():
    @T.prim_func
    def main(A: T.Tensor((128, 8), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            if tx < 64:
                A[tx, 0] = 1
                T.sync_threads()
#               ^^^^^^^^^^^^^^^^
#+          T.sync_threads()


@case(CompileError, "a copy is done by all threads together", "tx", "fix:")
def divergent_copy():
    @T.prim_func
    def main(A: T.Tensor((128, 8), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((128, 8), "float32")
            if tx == 0:
#-
                T.copy(A, s)
#               ^^^^^^^^^^^^
#+          T.copy(A, s)


@case(CompileError, "f is a fragment and is indexed by thread, with tx", "T.Parallel", "fix:")
def fragment_by_thread():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            f = T.alloc_fragment((128,), "float32")
            T.copy(A, f)
            A[tx] = f[tx]
#                   ^^^^^
#+          for i in T.Parallel(128):
#+              A[i] = f[i]


@case(CompileError, "no thread axis 1", "0 … 0", "fix:")
def missing_thread_axis():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
#+      with T.Kernel(1, threads=(16, 8)):
            A[T.get_thread_binding(1)] = 1
#             ^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "this kernel has no clusters", "cluster_dims")
def rank_without_clusters():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
#+      with T.Kernel(2, threads=128, cluster_dims=(2, 1, 1)):
            A[T.block_rank_in_cluster()] = 1
#             ^^^^^^^^^^^^^^^^^^^^^^^^^


@case(CompileError, "whole warps", "mask=0xFFFFFFFF", "mask=15", "fix:")
def partial_shuffle():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            A[tx] = T.shfl_xor(A[tx], 1, mask=15)
#                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          A[tx] = T.shfl_xor(A[tx], 1)


@case(CompileError, "bar is a barrier: it has no value", "T.barrier_wait")
def barrier_as_value():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            bar = T.alloc_barrier(128)
            A[0] = bar[0] + 1
#                  ^^^^^^^^^^
#+          T.barrier_arrive(bar)
#+          T.barrier_wait(bar, 0)


@case(CompileError, "the CPU target cannot run ptx", "target='cuda'")
def ptx_on_the_cpu():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            T.ptx("bar.sync 0;")
#           ^^^^^^^^^^^^^^^^^^^^
            A[0] = 1

    tw.compile(main, target="cpu")
#+  tw.compile(main, target="cuda")


@case(CompileError, "the CPU target cannot run call_extern", "target='cuda'")
def extern_on_the_cpu():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            T.call_extern("handle", "my_device_function", 1)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.import_source("__device__ void my_device_function(int x) {}")
#+          T.call_extern("handle", "my_device_function", 1)
            A[0] = 1

    tw.compile(main, target="cpu")
#+  tw.compile(main, target="cuda")


@case(RunError, "ptx is foreign code, which the interpreter cannot run", 'target="cuda"')
def ptx_in_the_interpreter():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            T.ptx("bar.sync 0;")
#           ^^^^^^^^^^^^^^^^^^^^
            A[0] = 1

    tw.compile(main, target="interp")(np.zeros(128, np.int32))
#+  tw.compile(main, target="cuda")


@case(CompileError, "an instruction writes $1, which is not a variable", "T.alloc_var", "fix:")
def ptx_that_writes_a_value():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            T.ptx("mov.b32 $1, $2;", A[tx], 7)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          x = T.alloc_var("int32")
#+          T.ptx("mov.b32 $1, $2;", x, 7)
#+          A[tx] = x

    tw.compile(main, target="cuda")


@case(CompileError, "the text names $3, which there is none of", "$0 … $2", "fix:")
def ptx_operands_that_are_missing():
    @T.prim_func
    def main(A: T.Tensor((128,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            A[tx] = T.ptx("add.s32 $0, $2, $3;", A[tx], 1, dtype="int32")
#                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          A[tx] = T.ptx("add.s32 $0, $1, $2;", A[tx], 1, dtype="int32")

    tw.compile(main, target="cuda")


@case(CompileError, "the CPU target cannot run call_extern", "foreign code", "target='cuda'")
def extern_with_locals_on_the_cpu():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_local((4,), "float32")
            T.call_extern("void", "twice", T.access_ptr(a, "rw"))
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.import_source("__device__ void twice(float* a) { a[0] *= 2; }")
#+          T.call_extern("void", "twice", T.access_ptr(a, "rw"))
            A[0] = 1

    tw.compile(main, target="cpu")
#+  tw.compile(main, target="cuda")


@case(CompileError, "nobody waits on bar", "T.barrier_wait(bar, parity)")
def a_copy_nobody_waits_for():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            bar = T.alloc_barrier(128)
            tile = T.alloc_shared((64, 64), "float32")
            T.tma_copy(A, tile, barrier=bar)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            T.barrier_arrive(bar)
#+          T.barrier_arrive(bar)
#+          T.barrier_wait(bar, 0)
            T.copy(tile, B)

    tw.compile(main, target="cuda")


@case(CompileError, "asynchronous on wgmma, but nothing waits for it", "T.wait_wgmma(0)")
def a_product_nobody_waits_for():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, tile)
            T.clear(c)
            T.wgmma_gemm(tile, tile, c)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.wgmma_gemm(tile, tile, c)
#+          T.wait_wgmma(0)
            T.copy(c, B)

    tw.compile(main, target="cuda")
