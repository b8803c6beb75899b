"""Gradients of attention: causal or not, with grouped heads, for any sequence length.

Four kernels: attention that also leaves what its softmax divided by, D = rowsum(dO · O), then dK
and dV for blocks of keys, and dQ for blocks of queries. Both recompute the probabilities:

    P = exp(Q Kᵀ · scale) / sums      dP = dO Vᵀ      dS = P · (dP − D)
    dV = Pᵀ dO      dK = dSᵀ Q · scale      dQ = dS K · scale

Rows of Q and dO behind the end are zero and so is what they add. `rows` is the length of the two
vectors of a head: a multiple of four, for copies move 16 bytes.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T

LOG2E = 1.4426950408889634


def rows(seq_q: int) -> int:
    """How long `sums` and `D` are."""
    return -(-seq_q // 4) * 4


@tw.jit
def attention_with_sums(
    batch, heads, kv_heads, seq_q, seq_kv, dim, causal=False,
    block_M=64, block_N=64, threads=128, stages=2, dtype="float16", scale=None,
):  # fmt: skip
    """`flash_attention` with one output more: the logarithm to base 2 of each row's sum of
    exponentials, as (batch, heads, rows(seq_q))."""
    factor = (scale or dim**-0.5) * LOG2E
    group = heads // kv_heads
    past = seq_kv - seq_q

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, seq_q, dim), dtype),
        K: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        V: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        O: T.Tensor((batch, heads, seq_q, dim), dtype),
        sums: T.Tensor((batch, heads, rows(seq_q)), "float32"),
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
                top[i] = top[i] * factor + T.log2(total[i])
                total[i] = 1.0 / total[i]
            for i, j in T.Parallel(block_M, dim):
                acc[i, j] = acc[i, j] * total[i]
            T.copy(acc, O[b, h, bx * block_M : (bx + 1) * block_M, :])
            T.copy(top, sums[b, h, bx * block_M : (bx + 1) * block_M])

    return main


@tw.jit
def row_products(batch, heads, seq_q, dim, block_M=64, threads=128, dtype="float16"):
    """D[i] = Σ dO[i, :] · O[i, :], what the softmax takes off every dP of a row."""

    @T.prim_func
    def main(
        dO: T.Tensor((batch, heads, seq_q, dim), dtype),
        O: T.Tensor((batch, heads, seq_q, dim), dtype),
        D: T.Tensor((batch, heads, rows(seq_q)), "float32"),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, h, b):
            left = T.alloc_fragment((block_M, dim), dtype)
            right = T.alloc_fragment((block_M, dim), dtype)
            product = T.alloc_fragment((block_M, dim), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(dO[b, h, bx * block_M : (bx + 1) * block_M, :], left)
            T.copy(O[b, h, bx * block_M : (bx + 1) * block_M, :], right)
            for i, j in T.Parallel(block_M, dim):
                product[i, j] = T.cast(left[i, j], "float32") * T.cast(right[i, j], "float32")
            T.reduce_sum(product, total, dim=1)
            T.copy(total, D[b, h, bx * block_M : (bx + 1) * block_M])

    return main


@tw.jit
def keys_gradient(
    batch, heads, kv_heads, seq_q, seq_kv, dim, causal=False,
    block_M=64, block_N=64, threads=128, stages=2, dtype="float16", scale=None,
):  # fmt: skip
    """dK and dV for blocks of `block_N` keys, from all blocks of `block_M` queries that see them.

    Tiles are transposed, keys along rows: what the softmax leaves is then the left operand of the
    next products, and stays in registers.
    """
    scale = scale or dim**-0.5
    group = heads // kv_heads
    past = seq_kv - seq_q

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, seq_q, dim), dtype),
        K: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        V: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        dO: T.Tensor((batch, heads, seq_q, dim), dtype),
        sums: T.Tensor((batch, heads, rows(seq_q)), "float32"),
        D: T.Tensor((batch, heads, rows(seq_q)), "float32"),
        dK: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        dV: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(seq_kv, block_N), kv_heads, batch, threads=threads) as (bx, h, b):
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            dO_shared = T.alloc_shared((block_M, dim), dtype)
            sums_shared = T.alloc_shared((block_M,), "float32")
            D_shared = T.alloc_shared((block_M,), "float32")
            P = T.alloc_fragment((block_N, block_M), "float32")
            dP = T.alloc_fragment((block_N, block_M), "float32")
            P_half = T.alloc_fragment((block_N, block_M), dtype)
            dS = T.alloc_fragment((block_N, block_M), dtype)
            dk = T.alloc_fragment((block_N, dim), "float32")
            dv = T.alloc_fragment((block_N, dim), "float32")
            T.copy(K[b, h, bx * block_N : (bx + 1) * block_N, :], K_shared)
            T.copy(V[b, h, bx * block_N : (bx + 1) * block_N, :], V_shared)
            T.clear(dk)
            T.clear(dv)
            first = T.max(bx * block_N - past, 0) // block_M if causal else 0
            for g in T.serial(group):
                for q in T.Pipelined(first, T.ceildiv(seq_q, block_M), num_stages=stages):
                    T.copy(Q[b, h * group + g, q * block_M : (q + 1) * block_M, :], Q_shared)
                    T.copy(dO[b, h * group + g, q * block_M : (q + 1) * block_M, :], dO_shared)
                    T.copy(sums[b, h * group + g, q * block_M : (q + 1) * block_M], sums_shared)
                    T.copy(D[b, h * group + g, q * block_M : (q + 1) * block_M], D_shared)
                    T.gemm(K_shared, Q_shared, P, transpose_B=True, clear_accum=True)
                    T.gemm(V_shared, dO_shared, dP, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(block_N, block_M):
                        P[i, j] = T.__exp2(P[i, j] * (scale * LOG2E) - sums_shared[j])
                        if causal:
                            seen = bx * block_N + i <= q * block_M + j + past
                            P[i, j] = T.if_then_else(seen, P[i, j], 0.0)
                    T.copy(P, P_half)
                    T.gemm(P_half, dO_shared, dv)
                    for i, j in T.Parallel(block_N, block_M):
                        dS[i, j] = P[i, j] * (dP[i, j] - D_shared[j])
                    T.gemm(dS, Q_shared, dk)
            for i, j in T.Parallel(block_N, dim):
                dk[i, j] = dk[i, j] * scale
            T.copy(dv, dV[b, h, bx * block_N : (bx + 1) * block_N, :])
            T.copy(dk, dK[b, h, bx * block_N : (bx + 1) * block_N, :])

    return main


@tw.jit
def queries_gradient(
    batch, heads, kv_heads, seq_q, seq_kv, dim, causal=False,
    block_M=64, block_N=64, threads=128, stages=2, dtype="float16", scale=None,
):  # fmt: skip
    """dQ for blocks of `block_M` queries, from all blocks of `block_N` keys that they see."""
    scale = scale or dim**-0.5
    group = heads // kv_heads
    past = seq_kv - seq_q

    @T.prim_func
    def main(
        Q: T.Tensor((batch, heads, seq_q, dim), dtype),
        K: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        V: T.Tensor((batch, kv_heads, seq_kv, dim), dtype),
        dO: T.Tensor((batch, heads, seq_q, dim), dtype),
        sums: T.Tensor((batch, heads, rows(seq_q)), "float32"),
        D: T.Tensor((batch, heads, rows(seq_q)), "float32"),
        dQ: T.Tensor((batch, heads, seq_q, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(seq_q, block_M), heads, batch, threads=threads) as (bx, h, b):
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            dO_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            log_sum = T.alloc_fragment((block_M,), "float32")
            d = T.alloc_fragment((block_M,), "float32")
            P = T.alloc_fragment((block_M, block_N), "float32")
            dP = T.alloc_fragment((block_M, block_N), "float32")
            dS = T.alloc_fragment((block_M, block_N), dtype)
            dq = T.alloc_fragment((block_M, dim), "float32")
            T.copy(Q[b, h, bx * block_M : (bx + 1) * block_M, :], Q_shared)
            T.copy(dO[b, h, bx * block_M : (bx + 1) * block_M, :], dO_shared)
            T.copy(sums[b, h, bx * block_M : (bx + 1) * block_M], log_sum)
            T.copy(D[b, h, bx * block_M : (bx + 1) * block_M], d)
            T.clear(dq)
            last = T.min(seq_kv, (bx + 1) * block_M + past) if causal else seq_kv
            for k in T.Pipelined(T.ceildiv(last, block_N), num_stages=stages):
                T.copy(K[b, h // group, k * block_N : (k + 1) * block_N, :], K_shared)
                T.copy(V[b, h // group, k * block_N : (k + 1) * block_N, :], V_shared)
                T.gemm(Q_shared, K_shared, P, transpose_B=True, clear_accum=True)
                T.gemm(dO_shared, V_shared, dP, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    key = k * block_N + j
                    seen = key < seq_kv
                    if causal:
                        seen = seen and key <= bx * block_M + i + past
                    P[i, j] = T.__exp2(P[i, j] * (scale * LOG2E) - log_sum[i])
                    P[i, j] = T.if_then_else(seen, P[i, j], 0.0)
                for i, j in T.Parallel(block_M, block_N):
                    dS[i, j] = P[i, j] * (dP[i, j] - d[i])
                T.gemm(dS, K_shared, dq)
            for i, j in T.Parallel(block_M, dim):
                dq[i, j] = dq[i, j] * scale
            T.copy(dq, dQ[b, h, bx * block_M : (bx + 1) * block_M, :])

    return main


def reference(q, k, v, do, causal: bool = False, scale: float | None = None):
    """dQ, dK, dV in float64."""
    q, k, v, do = (x.astype(np.float64) for x in (q, k, v, do))
    kv_heads, scale = k.shape[1], scale or q.shape[-1] ** -0.5
    group = q.shape[1] // kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = q @ k.transpose(0, 1, 3, 2) * scale
    if causal:
        past = k.shape[2] - q.shape[2]
        s = np.where(np.tri(q.shape[2], k.shape[2], past, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    dp = do @ v.transpose(0, 1, 3, 2)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * scale

    def summed(x: np.ndarray) -> np.ndarray:
        batch, _, length, dim = x.shape
        return x.reshape(batch, kv_heads, group, length, dim).sum(axis=2)

    dk, dv = ds.transpose(0, 1, 3, 2) @ q, p.transpose(0, 1, 3, 2) @ do
    return ds @ k, summed(dk), summed(dv)
