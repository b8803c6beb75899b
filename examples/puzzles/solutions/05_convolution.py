"""A convolution.

Y[i] = the sum over k of X[i + k - K // 2] * W[k]; outside of X there are zeros.
"""

import tilewright.language as T


def puzzle(N, K):
    @T.prim_func
    def main(
        X: T.Tensor((N,), "float32"), W: T.Tensor((K,), "float32"), Y: T.Tensor((N,), "float32")
    ):
        for n in T.tile(N):
            # ── your part ──
            acc = T.zeros((n,))
            for k in range(K):
                acc += X[n + (k - K // 2)] * W[k]
            Y[n] = acc
            # ── end ──

    return main
