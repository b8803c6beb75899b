"""A matrix product, tile by tile

Each block computes one tile of C. It walks along K: a tile of A and a tile of B into shared
memory, and `T.gemm` adds their product to an accumulator in registers.
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
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.serial(T.ceildiv(K, 32)):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 64, bx * 64])  # casts to float16
    return C


# Products accumulate in the accumulator's type, float32 here, whatever the operands are. Sizes
# that no tile divides are fine: the zeros from outside add nothing.

rng = np.random.default_rng(0)
a, b = rng.integers(-2, 3, (100, 70)), rng.integers(-2, 3, (70, 90))
assert (matmul(a.astype(np.float16), b.astype(np.float16)) == a @ b).all()

# The same text for a GPU, without one: `.on("cuda")` compiles for Hopper. Which matrix
# instruction `T.gemm` becomes is chosen there; look for `wgmma` in the source.

kernel = matmul.on("cuda").compile(M=1024, N=1024, K=1024)
source = kernel.get_kernel_source()
print("\n".join(line.strip() for line in source.splitlines() if "wgmma" in line))
assert "wgmma" in source

# **Try** `.on("cuda -arch=sm_80")`: there products are `mma` instructions of single warps. Or print
# the whole source.
