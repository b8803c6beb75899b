"""A product whose K is split.

C = A · B, where M and N are small and K is long: too few tiles of C for all multiprocessors. So
`splits` blocks share one tile: each walks over its part of K, and they add up what they found. C
is zero before.
"""

import tilewright.language as T


def puzzle(M, N, K, splits):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        run = T.ceildiv(K, splits)
        # ── your part ──
        for m, n, s in T.tile(M, N, T.each(splits)):
            acc = T.zeros((m, n))
            for k in T.tile((s * run, T.min(s * run + run, K))):
                acc += A[m, k] @ B[k, n]
            T.atomic_add(C[m, n], acc)
        # ── end ──

    return main
