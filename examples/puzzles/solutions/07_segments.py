"""Sums of segments.

Row i of X belongs to segment `ids[i]`; Y[s] is the sum of the rows of segment s. `ids` is not
sorted, rows of one segment are in many blocks, and Y is zero before. A block has 16 rows.
"""

import tilewright.language as T


def puzzle(M, N, S):
    @T.prim_func
    def main(
        X: T.Tensor((M, N), "float32"), ids: T.Tensor((M,), "int32"), Y: T.Tensor((S, N), "float32")
    ):
        with T.Kernel(T.ceildiv(M, 16), threads=128) as bx:
            # ── your part ──
            for i, j in T.Parallel(16, N):
                if bx * 16 + i < M:
                    T.atomic_add(Y[ids[bx * 16 + i], j], X[bx * 16 + i, j])
            # ── end ──

    return main
