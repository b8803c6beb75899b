"""A product with 4-bit weights.

C = A · Wᵀ, where W[n, k] = (Q[n, k] - 8) * scale[n, k // 32]. Q has 4 bits an element. Turn a
tile of it into float16 in shared memory, and multiply.
"""

import tilewright.language as T


def puzzle(M, N, K):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        Q: T.Tensor((N, K), "uint4"),
        scale: T.Tensor((N, K // 32), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, 32), "float16")
            q = T.alloc_shared((64, 32), "uint4")
            w = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(K // 32, num_stages=2):
                T.copy(A[by * 64, k * 32], a)
                T.copy(Q[bx * 64, k * 32], q)
                # ── your part ──
                raise NotImplementedError  # write it here instead
                # ── end ──
            T.copy(c, C[by * 64, bx * 64])

    return main
