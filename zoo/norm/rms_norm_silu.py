"""y = silu(rms_norm(x) * w), for any channel count that is a multiple of 32."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T

FAST_CHANNELS = (256, 512, 1024, 2048, 4096)


@tw.jit
def rms_norm_silu_rows(M, C, block_M=4, eps=1e-6, dtype="float32"):
    """The fast path: whole rows in registers, read once."""

    @T.prim_func
    def main(X: T.Tensor((M, C), dtype), W: T.Tensor((C,), dtype), Y: T.Tensor((M, C), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, C), "float32")
            square = T.alloc_fragment((block_M, C), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            for i, j in T.Parallel(block_M, C):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / C + eps)
            for i, j in T.Parallel(block_M, C):
                x[i, j] = x[i, j] * scale[i] * W[j]
            for i, j in T.Parallel(block_M, C):
                x[i, j] = x[i, j] * T.sigmoid(x[i, j])
            T.copy(x, Y[bx * block_M, 0])

    return main


@tw.jit
def rms_norm_silu_pieces(M, C, block_M=4, block_C=256, eps=1e-6, dtype="float32"):
    """Any number of channels: walk the row twice in pieces of `block_C`, the last one partial."""

    @T.prim_func
    def main(X: T.Tensor((M, C), dtype), W: T.Tensor((C,), dtype), Y: T.Tensor((M, C), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, block_C), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.clear(scale)
            for k in T.serial(T.ceildiv(C, block_C)):
                T.copy(X[bx * block_M, k * block_C], x)
                for i, j in T.Parallel(block_M, block_C):
                    x[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(x, scale, dim=1, clear=False)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / C + eps)
            for k in T.serial(T.ceildiv(C, block_C)):
                T.copy(X[bx * block_M, k * block_C], x)
                for i, j in T.Parallel(block_M, block_C):
                    x[i, j] = x[i, j] * scale[i] * W[k * block_C + j]
                for i, j in T.Parallel(block_M, block_C):
                    x[i, j] = x[i, j] * T.sigmoid(x[i, j])
                T.copy(x, Y[bx * block_M, k * block_C])

    return main


def rms_norm_silu(M, C, eps=1e-6, dtype="float32", target="auto"):
    """The kernel for this channel count: rows at once where they fit well, pieces otherwise."""
    if C % 32:
        raise ValueError(f"the channel count must be a multiple of 32, got {C}")
    make = rms_norm_silu_rows if C in FAST_CHANNELS else rms_norm_silu_pieces
    return make.on(target)(M, C, eps=eps, dtype=dtype)


def reference(x: np.ndarray, w: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w
    return y / (1 + np.exp(-y))
