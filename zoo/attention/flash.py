"""Flash attention, forward: causal or not, with grouped heads, for any sequence length."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T

LOG2E = 1.4426950408889634


@tw.jit
def flash_attention(
    batch, heads, kv_heads, seq_q, seq_kv, dim, causal=False,
    block_M=64, block_N=64, threads=128, stages=2, dtype="float16", scale=None,
):  # fmt: skip
    """Q, O: (batch, heads, seq_q, dim); K, V: (batch, kv_heads, seq_kv, dim).

    A causal query row i sees keys up to i + seq_kv - seq_q.
    """
    factor = (scale or dim**-0.5) * LOG2E
    group = heads // kv_heads
    past = seq_kv - seq_q

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, seq_q, dim), dtype),
        K: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        V: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        O: T.Tensor((batch, heads, seq_q, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, h, b):
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            S = T.alloc_fragment((block_M, block_N), "float32")
            P = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, dim), "float32")
            top = T.alloc_fragment((block_M,), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            rescale = T.alloc_fragment((block_M,), "float32")
            part = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[b, h, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -1e30)  # not -inf: a row whose first keys are all masked stays finite
            last = T.min(seq_kv, (bx + 1) * block_M + past) if causal else seq_kv
            for k in T.Pipelined(T.ceildiv(last, block_N), num_stages=stages):
                T.copy(K[b, h // group, k * block_N : (k + 1) * block_N, :], K_shared)
                T.gemm(Q_shared, K_shared, S, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    key = k * block_N + j
                    seen = key < seq_kv
                    if causal:
                        seen = seen and key <= bx * block_M + i + past
                    S[i, j] = T.if_then_else(seen, S[i, j], -T.infinity("float32"))
                T.copy(top, before)
                T.reduce_max(S, top, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    rescale[i] = T.__exp2((before[i] - top[i]) * factor)
                for i, j in T.Parallel(block_M, block_N):
                    S[i, j] = T.__exp2(S[i, j] * factor - top[i] * factor)
                T.reduce_sum(S, part, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * rescale[i] + part[i]
                for i, j in T.Parallel(block_M, dim):
                    acc[i, j] = acc[i, j] * rescale[i]
                T.copy(S, P)
                T.copy(V[b, h // group, k * block_N : (k + 1) * block_N, :], V_shared)
                T.gemm(P, V_shared, acc)
            for i in T.Parallel(block_M):
                total[i] = 1.0 / total[i]
            for i, j in T.Parallel(block_M, dim):
                acc[i, j] = acc[i, j] * total[i]
            T.copy(acc, O[b, h, bx * block_M : (bx + 1) * block_M, :])

    return main


def reference(q, k, v, causal: bool = False, scale: float | None = None) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = q @ k.transpose(0, 1, 3, 2) * (scale or q.shape[-1] ** -0.5)
    if causal:
        past = k.shape[2] - q.shape[2]
        s = np.where(np.tri(q.shape[2], k.shape[2], past, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v
