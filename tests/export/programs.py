"""Kernels that the tests export: run by `tilewright export`, and imported by the tests."""

import tilewright as tw
import tilewright.language as T
import tilewright.math as tm

n = T.dynamic("n", max=4096)


@T.prim_func
def scale(A: T.Tensor((n, 8), "float32"), s: T.float32, B: T.Tensor((n, 8), "float32")):
    with T.Kernel(T.ceildiv(n, 16), threads=128) as bx:
        for i, j in T.Parallel(16, 8):
            B[bx * 16 + i, j] = A[bx * 16 + i, j] * s


step = T.dynamic("step", min=8, multiple_of=4)


@T.prim_func
def rows(
    X: T.StridedTensor((n, 8), (step, 1), "float16"),
    stream: T.int32,  # names that C++ has, or that the launcher has
    new: T.Tensor((n,), "int8"),
    Y: T.StridedTensor((n, 8), (step, 1), "float16"),
):
    with T.Kernel(stream + 1, threads=64) as bx:
        for i, j in T.Parallel(64, 8):
            Y[bx * 64 + i, j] = X[bx * 64 + i, j] + stream


m, k = T.dynamic("m"), T.dynamic("k", min=1)


@T.prim_func
def pieces(A: T.Tensor((m * 4 + k,), "float32"), B: T.Tensor((k, 2), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(2):
            B[0, i] = A[i] + m


@tw.jit
def product(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float32")
    for i, j in T.tile(M, N):
        C[i, j] = A[i, :] @ B[:, j]
    return C


def any_product(size=64):
    rows, columns, inner = T.dynamic("rows"), T.dynamic("columns"), T.dynamic("inner")

    @T.prim_func
    def open_product(
        A: T.Tensor((rows, inner), "float16"),
        B: T.Tensor((columns, inner), "float16"),
        C: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(T.ceildiv(columns, size), T.ceildiv(rows, size), threads=128) as (bx, by):
            a = T.alloc_shared((size, 64), "float16")
            b = T.alloc_shared((size, 64), "float16")
            c = T.alloc_fragment((size, size), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(inner, 64), num_stages=3):
                T.copy(A[by * size, step * 64], a)
                T.copy(B[bx * size, step * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * size, bx * size])

    return open_product


open_product = any_product()


@tw.jit
def clustered(width):
    @T.prim_func
    def main(A: T.Tensor((width, width), "float16"), B: T.Tensor((width, width), "float16")):
        grid = width // 128, width // 128
        with T.Kernel(*grid, threads=128, cluster_dims=(2, 1, 1)) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for step in T.Pipelined(width // 64, num_stages=3):
                T.copy(A[by * 128, step * 64], a)
                T.copy(A[step * 64, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, B[by * 128, bx * 128])

    return main


@T.prim_func
def nibbles(A: T.Tensor((n, 64), "int4"), B: T.Tensor((n, 64), "int32")):
    with T.Kernel(T.ceildiv(n, 16), threads=64) as bx:
        for i, j in T.Parallel(16, 64):
            B[bx * 16 + i, j] = A[bx * 16 + i, j]


@tw.math
def softmax(x):
    return tm.softmax(x, axis=-1)


@tw.jit
def two_steps(A, rows: int = 16):
    N = T.const("N")
    A: T.Tensor((N, 64), "float16")
    B = T.alloc_global((N, 64), "float32")
    C = T.empty((N, 64), "float32")
    with T.Kernel(T.ceildiv(N, rows), threads=128) as bx:
        for i, j in T.Parallel(rows, 64):
            B[bx * rows + i, j] = A[bx * rows + i, j] * 2
    with T.Kernel(T.ceildiv(N, rows), threads=128) as bx:
        for i, j in T.Parallel(rows, 64):
            C[bx * rows + i, j] = B[N - 1 - (bx * rows + i), 63 - j] + 1
    return C
