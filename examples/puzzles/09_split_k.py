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
        raise NotImplementedError  # write it here instead
        # ── end ──

    return main
