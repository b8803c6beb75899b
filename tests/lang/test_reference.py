"""The kernels of the language's description, and what tracing makes of them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.lang.common import same, text
from tilewright.lang.trace import PrimFunc, is_direct, trace_direct
from tilewright.support.errors import CompileError


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


def test_matmul():
    kernel = matmul(1024, 1024, 1024, block_M=128, block_N=128, block_K=64)
    assert isinstance(kernel, PrimFunc)
    same(
        text(kernel.program),
        """
        program matmul_relu_kernel {
          param A: float16[1024, 1024] global
          param B: float16[1024, 1024] global
          param C: float16[1024, 1024] global
          kernel matmul_relu_kernel grid (bx, by) in (8, 8) threads tx in 128 {
            alloc A_shared: float16[128, 64] shared
            alloc B_shared: float16[64, 128] shared
            alloc C_local: float32[128, 128] fragment
            hint swizzle detail=(4, "col")
            fill C_local = 0.0
            for ko in 0 .. 16 kind=pipelined stages=3 {
              copy A[by * 128:+128, ko * 64:+64] -> A_shared
              copy B[ko * 64:+64, bx * 128:+128] -> B_shared
              gemm A_shared, B_shared -> C_local
            }
            map (i, j) in (128, 128) {
              C_local[i, j] = max(C_local[i, j], 0.0)
            }
            copy C_local -> C[by * 128:+128, bx * 128:+128]
          }
        }
        """,
    )


def test_factory_is_not_direct():
    assert not is_direct(matmul)
    assert is_direct(rms_norm)


def rms_norm(A, blk_m, eps=1e-6):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, blk_m), threads=128) as bx:
        tile = T.alloc_fragment((blk_m, N), "float32")
        squares = T.alloc_fragment((blk_m, N), "float32")
        total = T.alloc_fragment((blk_m,), "float32")
        T.copy(A[bx * blk_m : (bx + 1) * blk_m, :], tile)
        for i, j in T.Parallel(blk_m, N):
            squares[i, j] = tile[i, j] * tile[i, j]
        T.reduce_sum(squares, total, dim=1)
        for i, j in T.Parallel(blk_m, N):
            tile[i, j] *= T.rsqrt(total[i] / N + eps)
        T.copy(tile, B[bx * blk_m, 0])
    return B


def test_direct():
    traced = trace_direct(rms_norm, (np.zeros((64, 128), np.float32),), {"blk_m": 4})
    assert traced.arguments == ("A",)
    assert traced.outputs == ("B",)
    same(
        text(traced.program),
        """
        program rms_norm {
          param A: float32[64, 128] global
          param B: float32[64, 128] global
          kernel rms_norm grid bx in 16 threads tx in 128 {
            alloc tile: float32[4, 128] fragment
            alloc squares: float32[4, 128] fragment
            alloc total: float32[4] fragment
            copy A[bx * 4:+4, :] -> tile
            map (i, j) in (4, 128) {
              squares[i, j] = tile[i, j] * tile[i, j]
            }
            reduce sum squares -> total dim 1
            map (i_1, j_1) in (4, 128) {
              tile[i_1, j_1] = tile[i_1, j_1] * rsqrt(total[i_1] / 128.0 + 1e-06)
            }
            copy tile -> B[bx * 4:+4, :]
          }
        }
        """,
    )


def scaled(A, B, n, factor: T.float32):
    K, M = T.const("K M")
    shape = (M, K)
    m = T.dynamic("m", multiple_of=8)
    A: T.Tensor(shape, "float16")
    B: T.Tensor[(m, K * 2), "float16"]
    C, D = T.empty(M, K, dtype="float16"), T.empty([m], T.int32)
    with T.Kernel(T.ceildiv(m, n)) as bx:
        C[bx, 0] = A[bx, 0] * factor
        D[bx] = 1
    return D, C


def test_direct_sizes_outputs_scalars():
    a, b = np.zeros((8, 16), np.float16), np.zeros((24, 32), np.float16)
    traced = trace_direct(scaled, (a, b, 4, 2.0))
    assert traced.arguments == ("A", "B", "factor")
    assert traced.outputs == ("D", "C")
    assert [p.name for p in traced.program.params] == ["A", "B", "factor", "C", "D"]
    (dim,) = traced.program.dims
    assert (dim.var.name, dim.multiple_of) == ("m", 8)
    assert "grid bx in (m + 3) // 4" in text(traced.program)


def wrong_rank(A):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    with T.Kernel(1):
        A[0] = 1


def undeclared(A):
    with T.Kernel(1):
        A[0] = 1


def undetermined(A):
    M, N = T.const("M, N")
    A: T.Tensor((M,), "float32")
    with T.Kernel(N):
        A[0] = 1


def unreturned(A):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B = T.empty((N,), "float32")
    with T.Kernel(1):
        B[0] = A[0]


@pytest.mark.parametrize(
    ("function", "shape", "said"),
    [
        (wrong_rank, (4, 4), "A is declared with 1 dimensions"),
        (undeclared, (4,), "array argument 'A' is used before it is declared"),
        (undetermined, (4,), "nothing determines the size 'N'"),
        (unreturned, (4,), "B comes from T.empty but is not returned"),
    ],
)
def test_direct_refuses(function, shape, said):
    with pytest.raises(CompileError, match=said):
        trace_direct(function, (np.zeros(shape, np.float32),))


def test_a_prim_func_is_not_called():
    with pytest.raises(CompileError, match="compiled, then called"):
        matmul(128, 128, 128, 128, 128, 64)(1, 2, 3)
