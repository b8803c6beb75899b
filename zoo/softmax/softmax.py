"""Row softmax: a whole row in one block, and the online form that walks a row in pieces."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T

LOG2E = 1.4426950408889634


@tw.jit
def softmax(M, N, block_M=4, dtype="float32"):
    """Each block holds `block_M` whole rows in registers: one read, one write."""

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            top = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * block_M, 0])

    return main


@tw.jit
def online_softmax(M, N, block_M=4, block_N=1024, dtype="float32"):
    """Rows too long for registers: one pass finds maximum and sum together, a second one writes.

    A piece outside the row reads zero, so its elements are masked to minus infinity.
    """

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, block_N), "float32")
            top = T.alloc_fragment((block_M,), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            part = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.fill(top, -T.infinity("float32"))
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(N, block_N), num_stages=2):
                T.copy(X[bx * block_M, k * block_N], x)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(k * block_N + j < N, x[i, j], -T.infinity("float32"))
                T.copy(top, before)
                T.reduce_max(x, top, dim=1, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E)
                T.reduce_sum(x, part, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * T.exp2((before[i] - top[i]) * LOG2E) + part[i]
            for k in T.Pipelined(T.ceildiv(N, block_N), num_stages=2):
                T.copy(X[bx * block_M, k * block_N], x)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E) / total[i]
                T.copy(x, Y[bx * block_M, k * block_N])

    return main


def reference(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
