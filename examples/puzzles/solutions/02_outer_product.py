"""An outer product.

C[i, j] = A[i] * B[j]. Each block computes a tile of 32 × 64; the grid has two axes.
"""

import tilewright.language as T


def puzzle(M, N):
    @T.prim_func
    def main(
        A: T.Tensor((M,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((M, N), "float32")
    ):
        # ── your part ──
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            for i, j in T.Parallel(32, 64):
                C[by * 32 + i, bx * 64 + j] = A[by * 32 + i] * B[bx * 64 + j]
        # ── end ──

    return main
