"""Sums of long rows.

S[i] = the sum of row i of X. Take the rows to be too long for a tile: walk over their columns,
and carry the sums.
"""

import tilewright.language as T


def puzzle(M, N):
    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32")):
        for m in T.tile(M):
            # ── your part ──
            total = T.zeros((m,))
            for n in T.tile(N, size=64):
                total += T.sum(X[m, n], dim=1)
            S[m] = total
            # ── end ──

    return main
