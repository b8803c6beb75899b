"""Attention whose weights are sigmoids of the scores instead of a softmax: no row needs another's
maximum or sum, so nothing is rescaled."""

from __future__ import annotations

from math import log

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def sigmoid_attention(
    batch, heads, seq_q, seq_kv, dim, causal=False,
    block_M=64, block_N=64, threads=128, stages=2, dtype="float16", scale=None, bias=None,
):  # fmt: skip
    """Q, O: (batch, heads, seq_q, dim); K, V: (batch, heads, seq_kv, dim).

    `bias` is added to the scores; -log(seq_kv) by default, so that weights sum up to about one. A
    causal query row i sees keys up to i + seq_kv - seq_q.
    """
    factor, shift = scale or dim**-0.5, -log(seq_kv) if bias is None else bias
    past = seq_kv - seq_q

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, seq_q, dim), dtype),
        K: T.Tensor((batch, heads, seq_kv, dim), dtype),
        V: T.Tensor((batch, heads, seq_kv, dim), dtype),
        O: T.Tensor((batch, heads, seq_q, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, h, b):
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            S = T.alloc_fragment((block_M, block_N), "float32")
            P = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, dim), "float32")
            T.copy(Q[b, h, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.clear(acc)
            last = T.min(seq_kv, (bx + 1) * block_M + past) if causal else seq_kv
            for k in T.Pipelined(T.ceildiv(last, block_N), num_stages=stages):
                T.copy(K[b, h, k * block_N : (k + 1) * block_N, :], K_shared)
                T.copy(V[b, h, k * block_N : (k + 1) * block_N, :], V_shared)
                T.gemm(Q_shared, K_shared, S, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    key = k * block_N + j
                    seen = key < seq_kv
                    if causal:
                        seen = seen and key <= bx * block_M + i + past
                    weight = T.__sigmoid(S[i, j] * factor + shift)
                    P[i, j] = T.if_then_else(seen, weight, 0.0)
                T.gemm(P, V_shared, acc)
            T.copy(acc, O[b, h, bx * block_M : (bx + 1) * block_M, :])

    return main


def reference(q, k, v, causal: bool = False, scale: float | None = None) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.transpose(0, 1, 3, 2) * (scale or q.shape[-1] ** -0.5) - log(k.shape[2])
    p = 1 / (1 + np.exp(-s))
    if causal:
        p = p * np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2])
    return p @ v
