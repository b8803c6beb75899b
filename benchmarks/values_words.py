"""Texts of allocations and copies for kernels that the zoo has only over tile values, to race these
against."""

from __future__ import annotations

import tilewright as tw
import tilewright.language as T


@tw.jit
def product(batch, M, N, K, block_M=128, block_N=256, block_K=64, threads=256):
    """C = A · B, for each of a batch."""

    @T.prim_func
    def product(
        A: T.Tensor((batch, M, K), "bfloat16"), B: T.Tensor((batch, K, N), "bfloat16"),
        C: T.Tensor((batch, M, N), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(
            T.ceildiv(N, block_N), T.ceildiv(M, block_M), batch, threads=threads
        ) as (bx, by, bz):  # fmt: skip
            a = T.alloc_shared((block_M, block_K), "bfloat16")
            b = T.alloc_shared((block_K, block_N), "bfloat16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K)):
                T.copy(A[bz, by * block_M, k * block_K], a)
                T.copy(B[bz, k * block_K, bx * block_N], b)
                T.gemm(a, b, c)
            T.copy(c, C[bz, by * block_M, bx * block_N])

    return product


@tw.jit
def grouped(S, E, K, N, most, block_M=128, block_N=256, block_K=64, threads=256):
    """The rows of A between two offsets, times the expert's matrix."""

    @T.prim_func
    def grouped(
        A: T.Tensor((S, K), "bfloat16"), B: T.Tensor((E, K, N), "bfloat16"),
        offset: T.Tensor((E + 1,), "int32"), C: T.Tensor((S, N), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(
            T.ceildiv(N, block_N), T.ceildiv(most, block_M), E, threads=threads
        ) as (bx, by, e):  # fmt: skip
            a = T.alloc_shared((block_M, block_K), "bfloat16")
            b = T.alloc_shared((block_K, block_N), "bfloat16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            start = offset[e] + by * block_M
            stop = offset[e + 1]
            if start < stop:
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, block_K)):
                    T.copy(A[start, k * block_K], a)
                    T.copy(B[e, k * block_K, bx * block_N], b)
                    T.gemm(a, b, c)
                for i, j in T.Parallel(block_M, block_N):
                    if start + i < stop:
                        C[start + i, bx * block_N + j] = c[i, j]

    return grouped


@tw.jit
def convolution(N, H, W, C, O, block_P=128, block_O=128, block_C=64, threads=256):
    """3×3, with zeros around."""

    @T.prim_func
    def convolution(
        X: T.Tensor((N, H, W, C), "bfloat16"), F: T.Tensor((3, 3, C, O), "bfloat16"),
        Y: T.Tensor((N, H, W, O), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(
            T.ceildiv(O, block_O), T.ceildiv(N * H * W, block_P), threads=threads
        ) as (bo, bp):  # fmt: skip
            x = T.alloc_shared((block_P, block_C), "bfloat16")
            f = T.alloc_shared((block_C, block_O), "bfloat16")
            y = T.alloc_fragment((block_P, block_O), "float32")
            T.clear(y)
            pieces = T.ceildiv(C, block_C)
            for k in T.Pipelined(9 * pieces):
                dy, dx, c = k // pieces // 3, k // pieces % 3, k % pieces * block_C
                for i, j in T.Parallel(block_P, block_C):
                    p = bp * block_P + i
                    n, h, w = p // (H * W), p // W % H + dy - 1, p % W + dx - 1
                    inside = n < N and h >= 0 and h < H and w >= 0 and w < W and c + j < C
                    x[i, j] = T.if_then_else(inside, X[n, h, w, c + j], 0)
                T.copy(F[dy, dx, c, bo * block_O], f)
                T.gemm(x, f, y)
            for i, j in T.Parallel(block_P, block_O):
                p = bp * block_P + i
                if p < N * H * W and bo * block_O + j < O:
                    Y[p // (H * W), p // W % H, p % W, bo * block_O + j] = y[i, j]

    return convolution
