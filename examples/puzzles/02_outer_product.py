"""An outer product.

C[i, j] = A[i] * B[j]. The grid has two axes, and a value of one dimension has to become one of
two.
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
