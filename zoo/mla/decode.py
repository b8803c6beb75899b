"""Multi-head latent attention, decoding: one query token per request, all heads share one KV.

A key is a 512-wide latent part and a 64-wide rotary part; the value is the latent part itself.
With `splits` > 1 the sequence is cut into runs that blocks handle side by side, and a second
kernel combines their results.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import chip

LOG2E = 1.4426950408889634


def _tiles(width: int, dtype: str) -> tuple[int, int]:
    """Heads and keys of a tile, `width` elements each: two slots of keys fit shared memory, or, of
    the smallest tiles, one."""
    size = 4 if dtype == "float32" else 2
    for heads, keys in ((64, 64), (32, 64)):
        taken = size * ((heads + 2 * keys) * width + heads * keys)
        if taken < chip.shared_bytes() and (heads <= 32 or chip.by_warpgroups()):
            return heads, keys
    return 32, 32


@tw.jit
def mla_decode(
    batch, heads, seq_kv, dim=512, rope=64, splits=1,
    block_H=None, block_N=None, dtype="float16", scale=None,
):  # fmt: skip
    """Q: (batch, heads, dim), Q_rope: (batch, heads, rope), KV: (batch, seq_kv, dim),
    K_rope: (batch, seq_kv, rope), O: (batch, heads, dim)."""
    factor = (scale or (dim + rope) ** -0.5) * LOG2E
    fits = _tiles(dim + rope, dtype)
    block_H, block_N = min(block_H or fits[0], heads), block_N or fits[1]
    run = -(-seq_kv // (splits * block_N)) * block_N  # keys per split, whole tiles

    @T.macro
    def attend(Q, Q_rope, KV, K_rope, b, hx, first, acc, top, total):
        """Softmax-weighted sum over keys first … first + run - 1 into acc, top, total."""
        Q_shared = T.alloc_shared((block_H, dim), dtype)
        Qr_shared = T.alloc_shared((block_H, rope), dtype)
        KV_shared = T.alloc_shared((block_N, dim), dtype)
        Kr_shared = T.alloc_shared((block_N, rope), dtype)
        P_shared = T.alloc_shared((block_H, block_N), dtype)
        S = T.alloc_fragment((block_H, block_N), "float32")
        before = T.alloc_fragment((block_H,), "float32")
        rescale = T.alloc_fragment((block_H,), "float32")
        part = T.alloc_fragment((block_H,), "float32")
        T.copy(Q[b, hx * block_H : (hx + 1) * block_H, :], Q_shared)
        T.copy(Q_rope[b, hx * block_H : (hx + 1) * block_H, :], Qr_shared)
        T.clear(acc)
        T.clear(total)
        T.fill(top, -1e30)
        for k in T.Pipelined(run // block_N, num_stages=2):
            start = first + k * block_N
            T.copy(KV[b, start : start + block_N, :], KV_shared)
            T.copy(K_rope[b, start : start + block_N, :], Kr_shared)
            T.gemm(
                Q_shared, KV_shared, S,
                transpose_B=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True,
            )  # fmt: skip
            T.gemm(Qr_shared, Kr_shared, S, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
            for i, j in T.Parallel(block_H, block_N):
                S[i, j] = T.if_then_else(start + j < seq_kv, S[i, j], -T.infinity("float32"))
            T.copy(top, before)
            T.reduce_max(S, top, dim=1, clear=False)
            for i in T.Parallel(block_H):
                rescale[i] = T.__exp2((before[i] - top[i]) * factor)
            for i, j in T.Parallel(block_H, block_N):
                S[i, j] = T.__exp2(S[i, j] * factor - top[i] * factor)
            T.reduce_sum(S, part, dim=1)
            for i in T.Parallel(block_H):
                total[i] = total[i] * rescale[i] + part[i]
            for i, j in T.Parallel(block_H, dim):
                acc[i, j] = acc[i, j] * rescale[i]
            T.copy(S, P_shared)
            T.gemm(P_shared, KV_shared, acc, policy=T.GemmWarpPolicy.FullCol)

    @T.prim_func
    def whole(
        Q: T.Tensor((batch, heads, dim), dtype),
        Q_rope: T.Tensor((batch, heads, rope), dtype),
        KV: T.Tensor((batch, seq_kv, dim), dtype),
        K_rope: T.Tensor((batch, seq_kv, rope), dtype),
        O: T.Tensor((batch, heads, dim), dtype),
    ):
        with T.Kernel(T.ceildiv(heads, block_H), batch, threads=256) as (hx, b):
            acc = T.alloc_fragment((block_H, dim), "float32")
            top = T.alloc_fragment((block_H,), "float32")
            total = T.alloc_fragment((block_H,), "float32")
            attend(Q, Q_rope, KV, K_rope, b, hx, 0, acc, top, total)
            for i, j in T.Parallel(block_H, dim):
                acc[i, j] = acc[i, j] / total[i]
            T.copy(acc, O[b, hx * block_H : (hx + 1) * block_H, :])

    @T.prim_func
    def split(
        Q: T.Tensor((batch, heads, dim), dtype),
        Q_rope: T.Tensor((batch, heads, rope), dtype),
        KV: T.Tensor((batch, seq_kv, dim), dtype),
        K_rope: T.Tensor((batch, seq_kv, rope), dtype),
        O: T.Tensor((batch, heads, dim), dtype),
    ):
        partial = T.alloc_global((batch, splits, heads, dim), "float32")
        weight = T.alloc_global((batch, splits, heads), "float32")  # log2 of each run's sum
        with T.Kernel(T.ceildiv(heads, block_H), splits, batch, threads=256) as (hx, s, b):
            acc = T.alloc_fragment((block_H, dim), "float32")
            top = T.alloc_fragment((block_H,), "float32")
            total = T.alloc_fragment((block_H,), "float32")
            attend(Q, Q_rope, KV, K_rope, b, hx, s * run, acc, top, total)
            for i, j in T.Parallel(block_H, dim):
                # a run past the end of the sequence has no keys: its sum is 0 and so is its part
                acc[i, j] = T.if_then_else(total[i] > 0, acc[i, j] / total[i], 0.0)
            for i in T.Parallel(block_H):
                total[i] = T.log2(total[i]) + top[i] * factor
            T.copy(acc, partial[b, s, hx * block_H : (hx + 1) * block_H, :])
            T.copy(total, weight[b, s, hx * block_H : (hx + 1) * block_H])
        with T.Kernel(heads, batch, threads=128) as (h, b):
            out = T.alloc_fragment((dim,), "float32")
            top = T.alloc_var("float32", init=-T.infinity("float32"))
            total = T.alloc_var("float32", init=0.0)
            T.clear(out)
            for s in T.serial(splits):
                top = T.max(top, weight[b, s, h])
            for s in T.serial(splits):
                total += T.exp2(weight[b, s, h] - top)
            for s in T.serial(splits):
                for j in T.Parallel(dim):
                    out[j] += partial[b, s, h, j] * T.exp2(weight[b, s, h] - top) / total
            T.copy(out, O[b, h, :])

    return split if splits > 1 else whole


def reference(q, q_rope, kv, k_rope, scale: float | None = None) -> np.ndarray:
    q, q_rope, kv, k_rope = (x.astype(np.float64) for x in (q, q_rope, kv, k_rope))
    s = q @ kv.transpose(0, 2, 1) + q_rope @ k_rope.transpose(0, 2, 1)
    s = s * (scale or (q.shape[-1] + q_rope.shape[-1]) ** -0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ kv
