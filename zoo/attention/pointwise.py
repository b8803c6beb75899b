"""Attention whose weights are a function of each score alone, in place of a softmax: no row has a
maximum or a sum, so nothing is rescaled."""

from __future__ import annotations

from math import log

import numpy as np

import tilewright as tw
import tilewright.language as T

# weights of scores that are scaled; n keys: their weights sum up to about one
WEIGHTS = {
    "sigmoid": lambda score, n: T.__sigmoid(score - log(n)),
    "relu_squared": lambda score, n: T.max(score, 0.0) * T.max(score, 0.0) / n,
}


@tw.jit
def pointwise_attention(
    batch, heads, seq_q, seq_kv, dim, causal=False, weight="sigmoid",
    block_M=64, block_N=64, threads=128, stages=2, dtype="float16", scale=None,
):  # fmt: skip
    """Q, O: (batch, heads, seq_q, dim); K, V: (batch, heads, seq_kv, dim).

    `weight` names one of WEIGHTS. A causal query row i sees keys up to i + seq_kv - seq_q.
    """
    factor, past = scale or dim**-0.5, seq_kv - seq_q
    function = WEIGHTS[weight]

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
                    P[i, j] = T.if_then_else(seen, function(S[i, j] * factor, seq_kv), 0.0)
                T.gemm(P, V_shared, acc)
            T.copy(acc, O[b, h, bx * block_M : (bx + 1) * block_M, :])

    return main


def reference(q, k, v, causal: bool = False, weight: str = "sigmoid") -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    n = k.shape[2]
    s = q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    p = {"sigmoid": 1 / (1 + n * np.exp(-s)), "relu_squared": np.maximum(s, 0) ** 2 / n}[weight]
    if causal:
        p = p * np.tri(q.shape[2], n, n - q.shape[2])
    return p @ v
