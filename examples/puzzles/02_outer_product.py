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
        raise NotImplementedError  # write it here instead
        # ── end ──

    return main
