"""A matrix product over tile values."""

import tilewright as tw
import tilewright.language as T


@tw.jit
def matmul(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((K, N), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C
