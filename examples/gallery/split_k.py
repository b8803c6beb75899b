"""A product of few tiles and a long K: blocks share a tile, each walks over a part of K."""

import tilewright as tw
import tilewright.language as T


@tw.jit
def split_k(A, B, parts=8):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        C[m, n] = T.zeros((m, n))
    run = T.ceildiv(K, parts)
    for m, n, s in T.tile(M, N, T.each(parts)):
        acc = T.zeros((m, n))
        for k in T.tile((s * run, T.min(s * run + run, K))):
            acc += A[m, k] @ B[k, n]
        T.atomic_add(C[m, n], acc)
    return C
