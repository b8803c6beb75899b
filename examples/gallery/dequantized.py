"""A product with weights of 4 bits, unpacked and scaled on their way to the tensor core."""

import tilewright as tw
import tilewright.language as T


@tw.jit
def dequantized(A, Q, scale):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    Q: T.Tensor((N, K), "uint4")
    scale: T.Tensor((N, K // 32), "float16")
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K, size=32):
            w = (Q[n, k] - 8) * scale[n, k.index // 32]
            acc += A[m, k] @ T.cast(w, "float16").T
        C[m, n] = acc
    return C
