"""Matrix products: with ReLU, and with transposed operands."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def gemm_relu(
    M, N, K, block_M=128, block_N=128, block_K=64, threads=128, stages=3, panel=8,
    dtype="float16", accum="float32",
):  # fmt: skip
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum)
            T.use_swizzle(panel)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = T.max(C_local[i, j], 0)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@tw.jit
def gemm_transposed(
    M, N, K, transpose_A=False, transpose_B=True,
    block_M=64, block_N=64, block_K=32, dtype="float16", accum="float32",
):  # fmt: skip
    """C = op(A) · op(B), where op transposes the operands that are stored the other way round."""
    A_shape = (K, M) if transpose_A else (M, K)
    B_shape = (N, K) if transpose_B else (K, N)
    A_tile = (block_K, block_M) if transpose_A else (block_M, block_K)
    B_tile = (block_N, block_K) if transpose_B else (block_K, block_N)

    @T.prim_func
    def main(A: T.Tensor(A_shape, dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared(A_tile, dtype)
            B_shared = T.alloc_shared(B_tile, dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                m, n, k = by * block_M, bx * block_N, ko * block_K
                T.copy(A[k, m] if transpose_A else A[m, k], A_shared)
                T.copy(B[n, k] if transpose_B else B[k, n], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def reference(a: np.ndarray, b: np.ndarray, relu: bool = False) -> np.ndarray:
    product = a.astype(np.float64) @ b.astype(np.float64)
    return np.maximum(product, 0) if relu else product
