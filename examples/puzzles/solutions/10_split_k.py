"""A product whose K is split.

C = A · B, where M and N are small and K is long: too few tiles of C for all multiprocessors. So
`splits` blocks share one tile: each walks over its part of K, and they add up what they found. C
is zero before. The loop should be pipelined.
"""

import tilewright.language as T


def puzzle(M, N, K, splits):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        # ── your part ──
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), splits, threads=128) as (bx, by, bz):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            steps = T.ceildiv(T.ceildiv(K, 32), splits)  # of one block
            for k in T.Pipelined(steps, num_stages=3):
                T.copy(A[by * 64, (bz * steps + k) * 32], a)
                T.copy(B[(bz * steps + k) * 32, bx * 64], b)
                T.gemm(a, b, c)
            T.atomic_add(C[by * 64 : by * 64 + 64, bx * 64 : bx * 64 + 64], c)
        # ── end ──

    return main
