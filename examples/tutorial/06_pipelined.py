"""Copies that run ahead

In step 5 each copy is waited for before the product begins. `T.Pipelined` says that copies may
run ahead, `num_stages` deep. It means the same as `T.serial`: the compiler makes the ring of
slots, its barriers and its waits, and none of them can be forgotten.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def matmul(A, B, stages=3):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float16")
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 128), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[k * 64, bx * 128], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 128, bx * 128])
    return C


rng = np.random.default_rng(0)
a, b = rng.integers(-2, 3, (130, 200)), rng.integers(-2, 3, (200, 150))
got = matmul(a.astype(np.float16), b.astype(np.float16))
assert (got == a @ b).all()

# What became of the loop is explained: the timeline of two iterations, by a model of the chip,
# and what limits it. One warpgroup only copies (the *producer*), two multiply.

told = matmul.on("cuda").compile(M=4096, N=4096, K=4096).explain()
print(told[told.index("timeline") : told.index("  a block takes")])

# **Try** `stages=1` and compare the timelines; then `.on("cuda -roles=off")`.
