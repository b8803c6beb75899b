"""Programs that a target refuses: what passes, the emitters and CUDA's own compiler say."""

# The carets stand under the text, which a formatter would move.
# fmt: off
from __future__ import annotations

import tilewright as tw
import tilewright.language as T
from tests.errors.case import case
from tilewright import CompileError


@case(CompileError, "c does not fit the registers of 128 threads", "2048 for 512×512", "smaller")
def accumulator():
    @T.prim_func
    def main(A: T.Tensor((512, 32), "float16"), C: T.Tensor((512, 512), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((512, 32), "float16")
#+          a = T.alloc_shared((128, 32), "float16")
            c = T.alloc_fragment((512, 512), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          c = T.alloc_fragment((128, 128), "float32")
            T.copy(A, a)
#+          T.copy(A[0, 0], a)
            T.clear(c)
            T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C)
#+          T.copy(c, C[0, 0])

    tw.compile(main, target="cuda")


@case(CompileError, "f does not fit the registers of 32 threads", "3072", "smaller", "fix:")
def fragment_of_few_threads():
    @T.prim_func
    def main(A: T.Tensor((512, 192), "float32")):
        with T.Kernel(1, threads=32):
#+      with T.Kernel(1, threads=256):
            f = T.alloc_fragment((512, 192), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          f = T.alloc_fragment((128, 192), "float32")
            T.copy(A, f)
#+          T.copy(A[0, 0], f)
            T.copy(f, A)
#+          T.copy(f, A[0, 0])

    tw.compile(main, target="cuda")


@case(CompileError, "Insufficient registers (128)", "smaller fragments", "fix:")
def registers_of_many_threads():
    @T.prim_func
    def main(A: T.Tensor((256, 32), "float16"), C: T.Tensor((256, 256), "float32")):
        with T.Kernel(1, threads=512):
            a = T.alloc_shared((256, 32), "float16")
#+          a = T.alloc_shared((128, 32), "float16")
            c = T.alloc_fragment((256, 256), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          c = T.alloc_fragment((128, 128), "float32")
            T.copy(A, a)
#+          T.copy(A[0, 0], a)
            T.clear(c)
            T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C)
#+          T.copy(c, C[0, 0])

    tw.compile(main, target="cuda")


@case(CompileError, "s needs more shared memory than a block has", "232448", "262144", "smaller")
def shared_tile():
    @T.prim_func
    def main(A: T.Tensor((256, 256), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((256, 256), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          s = T.alloc_shared((128, 256), "float32")
            T.copy(A, s)
#+          T.copy(A[0, 0], s)
            T.copy(s, A)
#+          T.copy(s, A[0, 0])

    tw.compile(main, target="cuda")


@case(CompileError, "needs more shared memory than a block has", "a 131072", "8 stages of 16384")
def stages():
    @T.prim_func
    def main(A: T.Tensor((128, 512), "float16"), C: T.Tensor((128, 128), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((128, 64), "float16")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
            b = T.alloc_shared((128, 64), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=8):
#+          for k in T.Pipelined(8, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(A[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    tw.compile(main, target="cuda")


@case(CompileError, "x needs more memory than a thread has", "524288", "T.alloc_global")
def memory_of_a_thread():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_local((2**20,), "float32")
#               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          x = T.alloc_global((2**20,), "float32")
            x[0] = A[0]
            A[0] = x[0]

    tw.compile(main, target="cuda")


@case(CompileError, "grid axis 2 of main is too long for CUDA", "65535", "70000", "axis 0")
def grid_axis():
    @T.prim_func
    def main(A: T.Tensor((70000,), "float32")):
        with T.Kernel(1, 1, 70000) as (bx, by, bz):
#            ^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(70000, 1, 1) as (bz, by, bx):
            A[bz] = 1

    tw.compile(main, target="cuda")


@case(CompileError, "asks for a larger cluster than there is", "sm_80 has none", "leave it out")
def cluster_on_an_old_chip():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(8, threads=128, cluster_dims=2) as bx:
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(8, threads=128) as bx:
            A[bx] = 1

    tw.compile(main, target="cuda -arch=sm_80")


@case(CompileError, "the cluster does not fit", "at most 16 blocks", "(32,)", "fix:")
def cluster_size():
    @T.prim_func
    def main(A: T.Tensor((32,), "int32")):
        with T.Kernel(32, threads=128, cluster_dims=32) as bx:
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(32, threads=128, cluster_dims=2) as bx:
            A[bx] = 1


@case(CompileError, "clusters of main do not divide its grid", "a multiple of 2", "3", "T.ceildiv")
def cluster_and_grid():
    @T.prim_func
    def main(A: T.Tensor((3,), "int32")):
        with T.Kernel(3, threads=128, cluster_dims=2) as bx:
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+      with T.Kernel(T.ceildiv(3, 2) * 2, threads=128, cluster_dims=2) as bx:
            A[bx] = 1
#+          if bx < 3:
#+              A[bx] = 1

    tw.compile(main, target="cuda")


@case(CompileError, "does not divide into matrix instructions", "M a multiple of 64", "32×32×32")
def small_matrix_tile():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.copy(A, a)
            T.clear(c)
            T.wgmma_gemm(a, a, c)
#           ^^^^^^^^^^^^^^^^^^^^^
#+          T.gemm(a, a, c)
            T.wait_wgmma(0)
#-
            T.copy(c, C)

    tw.compile(main, target="cuda")


@case(CompileError, "a is a fragment and is read outside", "T.Parallel", "shared memory first")
def element_of_a_fragment():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), B: T.Tensor((1,), "float32"), n: T.int32):
        with T.Kernel(1, threads=64):
            a = T.alloc_fragment((64, 32), "float32")
#+          a = T.alloc_shared((64, 32), "float32")
            f = T.alloc_fragment((64,), "float32")
            T.copy(A, a)
            for i, j in T.Parallel(64, 32):
                a[i, j] += 1
            T.reduce_sum(a, f, dim=1)
            B[0] = a[n, 0]
#                  ^^^^^^^

    tw.compile(main, target="cuda")


@case(CompileError, "float6_e2m3fn has no CUDA form", "keep its bits in uint8")
def type_without_a_form():
    @T.prim_func
    def main(A: T.Tensor((128,), "float6_e2m3fn")):
#   ^^^^^^^^
#+  def main(A: T.Tensor((128,), "uint8")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(128):
                A[i] = 1

    tw.compile(main, target="cuda")


@case(CompileError, "does not assemble", ".snyc", "correct the instruction")
def misspelt_instruction():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=128):
            T.ptx("bar.snyc 0;")
#           ^^^^^^^^^^^^^^^^^^^^
#+          T.ptx("bar.sync 0;")
            A[0] = 1

    tw.compile(main, target="cuda")


@case(CompileError, '"triple" is undefined', "T.import_source")
def function_without_source():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            A[0] = T.call_extern("int32", "triple", 1)
#                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.import_source("__device__ int triple(int x) { return 3 * x; }")
#+          A[0] = T.call_extern("int32", "triple", 1)

    tw.compile(main, target="cuda")


@case(CompileError, "the CPU target has no barrier memory (bar)", "target='interp'")
def barrier_on_the_cpu():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=128):
            bar = T.alloc_barrier(128)
#                 ^^^^^^^^^^^^^^^^^^^^
            T.barrier_arrive(bar)
            T.barrier_wait(bar, 0)
            A[0] = 1

    tw.compile(main, target="cpu")
#+  tw.compile(main, target="interp")


@case(CompileError, "cannot split a block at this barrier (cluster)", "target='interp'")
def cluster_barrier_on_the_cpu():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(8, threads=128, cluster_dims=2) as bx:
            A[bx] = T.block_rank_in_cluster()
            T.cluster_sync()
#           ^^^^^^^^^^^^^^^^

    tw.compile(main, target="cpu")
#+  tw.compile(main, target="interp")


@case(CompileError, "T.set_max_nreg takes a multiple of 8 up to 256", "300", "240")
def register_count():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=128):
            T.set_max_nreg(300, 1)
#           ^^^^^^^^^^^^^^^^^^^^^^
#+          T.set_max_nreg(240, 1)
            A[0] = 1


@case(CompileError, "there is no such named barrier", "0 … 15", "20", "T.sync_threads()")
def named_barrier():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=128):
            T.sync_threads(20, 128)
#           ^^^^^^^^^^^^^^^^^^^^^^^
#+          T.sync_threads(1, 128)
            A[0] = 1


@case(CompileError, "wgmma", "96 threads", "fix:")
def threads_of_a_matrix_instruction():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=96):
#+      with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(c)
            T.wgmma_gemm(a, a, c)
#           ^^^^^^^^^^^^^^^^^^^^^
            T.wait_wgmma(0)
            T.copy(c, C)

    tw.compile(main, target="cuda")


@case(CompileError, "a copy to several blocks needs a barrier", "T.tma_copy", "leave the mask out")
def multicast_without_a_barrier():
    @T.prim_func
    def main(A: T.Tensor((256, 64), "float16"), B: T.Tensor((256, 64), "float16")):
        with T.ClusterKernel(2, threads=128, cluster_dims=2) as bx:
            s = T.alloc_shared((128, 64), "float16")
            T.copy_cluster(A[bx * 128, 0], s, cluster_mask=3)
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#+          T.copy(A[bx * 128, 0], s)
            T.copy(s, B[bx * 128, 0])

    tw.compile(main, target="cuda")
