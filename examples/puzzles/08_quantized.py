"""A product with 4-bit weights.

C = A · Wᵀ, where W[n, k] = (Q[n, k] - 8) * scale[n, k // 32]. Q has 4 bits an element.
"""

import tilewright.language as T


def puzzle(M, N, K):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        Q: T.Tensor((N, K), "uint4"),
        scale: T.Tensor((N, K // 32), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        for m, n in T.tile(M, N):
            acc = T.zeros((m, n))
            for k in T.tile(K, size=32):
                # ── your part ──
                raise NotImplementedError  # write it here instead
                # ── end ──
            C[m, n] = acc

    return main
