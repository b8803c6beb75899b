"""Sums of segments.

Row i of X belongs to segment `ids[i]`; Y[s] is the sum of the rows of segment s. `ids` is not
sorted, rows of one segment are in many blocks, and Y is zero before.
"""

import tilewright.language as T


def puzzle(M, N, S):
    @T.prim_func
    def main(
        X: T.Tensor((M, N), "float32"), ids: T.Tensor((M,), "int32"), Y: T.Tensor((S, N), "float32")
    ):
        for m in T.tile(M, size=16):
            # ── your part ──
            T.atomic_add(Y[ids[m], :], X[m, :])
            # ── end ──

    return main
