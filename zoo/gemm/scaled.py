"""Matrix multiplication of narrow numbers with scales for blocks of them."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import chip


@tw.jit
def gemm_scaled(
    M, N, K, block_M=128, block_N=None, group=128, threads=256, stages=3,
    dtype="float8_e4m3fn", out="bfloat16",
):  # fmt: skip
    """C = A · Bᵀ, where a row of A has a scale for every `group` of K, and B one for every square
    of `group`. The product of a group begins anew, and is scaled in float32 as it is added.

    There are two accumulators: where single warps multiply, registers hold those of a narrower tile
    (128 columns spill on sm_100)."""
    block_N = block_N or (256 if chip.by_warpgroups() else 64)

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        A_scale: T.Tensor((M, -(-K // group)), "float32"),
        B_scale: T.Tensor((-(-N // group), -(-K // group)), "float32"),
        C: T.Tensor((M, N), out),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, group), dtype)
            B_shared = T.alloc_shared((block_N, group), dtype)
            part = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, group), num_stages=stages):
                T.copy(A[by * block_M, k * group], A_shared)
                T.copy(B[bx * block_N, k * group], B_shared)
                T.gemm(A_shared, B_shared, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    scale = A_scale[by * block_M + i, k] * B_scale[(bx * block_N + j) // group, k]
                    total[i, j] += part[i, j] * scale
            T.copy(total, C[by * block_M, bx * block_N])

    return main


def reference(a, b, a_scale, b_scale, group: int) -> np.ndarray:
    M, N, K = len(a), len(b), a.shape[1]
    a = a.astype(np.float64) * a_scale.repeat(group, 1)[:, :K]
    b = b.astype(np.float64) * b_scale.repeat(group, 0)[:N].repeat(group, 1)[:, :K]
    return a @ b.T


__all__ = ["gemm_scaled", "reference"]
