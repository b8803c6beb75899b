"""A mixture of experts: each expert multiplies its own rows."""

import tilewright as tw
import tilewright.language as T


@tw.jit
def grouped(A, B, offset, most: int):
    """The rows of A between two offsets, times the expert's matrix; `most` rows at the most."""
    S, E, K, N = T.const("S, E, K, N")
    A: T.Tensor((S, K), "bfloat16")
    B: T.Tensor((E, K, N), "bfloat16")
    offset: T.Tensor((E + 1,), "int32")
    C = T.empty((S, N), "bfloat16", partial=True)
    for e, m, n in T.tile(T.each(E), most, N):
        m = m.within(offset[e], offset[e + 1])
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[e, k, n]
        C[m, n] = acc
    return C
