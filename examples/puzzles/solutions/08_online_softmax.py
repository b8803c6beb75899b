"""Softmax of long rows, reading them twice.

Y = softmax(X) along rows. A block has one row and takes 128 columns at a time. Reading three
times is easy: for the maximum, for the sum, for the result. Do the first two in one: when the
maximum grows from m to n, the sum so far counts exp(m - n) of what it did.
"""

import tilewright.language as T


def puzzle(M, N):
    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(M, threads=128) as row:
            x = T.alloc_fragment((1, 128), "float32")
            top = T.alloc_fragment((1,), "float32")
            before = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.fill(top, -T.infinity("float32"))
            T.clear(total)
            for k in T.serial(T.ceildiv(N, 128)):
                for i, j in T.Parallel(1, 128):  # what is outside must not count
                    inside = k * 128 + j < N
                    x[i, j] = T.if_then_else(inside, X[row, k * 128 + j], -T.infinity("float32"))
                # ── your part ──
                T.copy(top, before)
                T.reduce_max(x, top, dim=1, clear=False)
                for i in T.Parallel(1):
                    total[i] = total[i] * T.exp(before[i] - top[i])
                for i, j in T.Parallel(1, 128):
                    x[i, j] = T.exp(x[i, j] - top[i])
                T.reduce_sum(x, total, dim=1, clear=False)
                # ── end ──
            for k in T.serial(T.ceildiv(N, 128)):
                for i, j in T.Parallel(1, 128):
                    Y[row, k * 128 + j] = T.exp(X[row, k * 128 + j] - top[0]) / total[0]

    return main
