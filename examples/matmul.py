"""The reference kernel of the language: C = relu(A · B), in tiles.

python examples/matmul.py
TILEWRIGHT_TARGET=cuda python examples/matmul.py
TILEWRIGHT_SANITIZE=1 python examples/matmul.py
python -m tilewright ir examples/matmul.py --stage tile
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def matmul(M, N, K, block_M, block_N, block_K, dtype="float16", accum_dtype="float"):
    @T.prim_func
    def matmul_relu_kernel(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.use_swizzle(panel_size=4, order="col")
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = T.max(C_local[i, j], 0)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return matmul_relu_kernel


kernel = matmul(1024, 1024, 1024, block_M=128, block_N=128, block_K=64)

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((1024, 1024), np.float32).astype(np.float16) for _ in "ab")
    c = np.full((1024, 1024), np.nan, np.float16)
    if kernel.target.kind == "cuda":  # a GPU reads its own memory
        import torch

        there = [torch.from_numpy(array).cuda() for array in (a, b, c)]
        kernel(*there)
        c = there[-1].cpu().numpy()
    else:
        kernel(a, b, c)
    want = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
    error = np.abs(c.astype(np.float32) - want).max() / want.max()
    print(f"largest error on {kernel.target}: {error:.1e}")
    assert error < 1e-3
