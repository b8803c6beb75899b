"""Pipelines

After this page you can read the timeline of a loop, and say how far its loads run ahead.

While a block multiplies one pair of tiles, the next pair should be on its way. A `T.tile` loop
inside a kernel does that by itself. The compiler makes a ring of slots in shared memory, with its
barriers and waits, and gives the copies to warps of their own where that pays. None of it is in
the text, so none of it can be forgotten.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def matmul(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


fast = matmul.with_schedule(tiles={"m": 128, "n": 128, "k": 64}, threads=256)
told = fast.on("cuda").compile(M=4096, N=4096, K=4096).explain()
print(told[told.index("timeline") : told.index("  a block takes")])

#     A  line 26: acc += A[m, k] @ B[k, n]

# The picture is two iterations, by a model of the chip: one row for the warps that multiply (the
# *consumers*), one for those that copy (the *producer*), and what limits the loop. `explain()`
# also says how many slots the ring has, and why:

print(next(line.strip() for line in told.splitlines() if "stages:" in line))

# In the other form a loop says that it may run ahead, and how far. `T.Pipelined` means the same as
# `T.serial`, at every `num_stages`:


@tw.jit
def matmul_by_hand(A, B, stages=3):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float16")
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=stages):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])
    return C


rng = np.random.default_rng(0)
a, b = rng.integers(-2, 3, (130, 100)), rng.integers(-2, 3, (100, 90))
args = a.astype(np.float16), b.astype(np.float16)
assert (matmul(*args) == a @ b).all() and (matmul_by_hand(*args) == a @ b).all()

# **The trap.** Every slot is a tile of A and a tile of B in shared memory. Large tiles leave no
# room:

try:
    matmul.with_schedule(tiles={"m": 256, "n": 256, "k": 256}).on("cuda").compile(
        M=512, N=512, K=512
    )
except tw.CompileError as error:
    print(error)

#     kernel matmul needs more shared memory than a block has
#       expected: at most 232448 bytes on sm_90a

# **Try** `with_schedule(stages=2)` and compare the timelines; then `roles="off"`, where all warps
# copy and multiply. [What runs at the same time](../overlap.md) has the whole story.
