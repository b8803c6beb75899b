"""Attention of one new query to each request."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops import texts
from tilewright.ops.attention import check_heads
from tilewright.ops.op import Array, op


@op(
    "q: float16|bfloat16|float32[b, h, d], k_cache: q[pages, p, g, d], v_cache: q[pages, p, g, e],"
    " cache_seqlens: int32[b], block_table: int32[b, most] -> q[b, h, e]",
    formula="softmax(scale · q · keysᵀ) · values, keys and values in pages",
    error=16,
    text=True,
)
def attention_decode(
    q: Array, k_cache: Array, v_cache: Array, cache_seqlens: Array, block_table: Array,
    softmax_scale: float | None = None,
) -> Array:  # fmt: skip
    """One query of each request against its pages of keys, as FlashAttention's
    `flash_attn_with_kvcache` with q of [batch, heads, size]. Key j of request b lies in page
    `block_table[b, j // p]`, at place j % p. A request without keys gives zeros. Blocks share the
    keys of a request. Keys that do not lie in pages are `attention`'s, with `seqlens_k`.

    >>> keys = np.arange(4, dtype=np.float32).reshape(2, 2, 1, 1)
    >>> pages, lens = np.array([[1, 0]], np.int32), np.array([3], np.int32)
    >>> attention_decode(np.zeros((1, 1, 1), np.float32), keys, keys, lens, pages).round().item()
    2.0
    """
    (b, h, d), g = q.shape, k_cache.shape[2]
    check_heads("attention_decode", h, g)
    kind = str(q.dtype).rpartition(".")[2]
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    grouped = q.reshape(b, g, h // g, d)
    out = texts.paged(grouped, k_cache, v_cache, block_table, cache_seqlens, kind, scale)
    return out.reshape(b, h, v_cache.shape[-1])


@op(
    "q_nope: float[b, h, d], q_pe: q_nope[b, h, r], ckv: q_nope[b, l, d], kpe: q_nope[b, l, r],"
    " cache_seqlens: int[b] -> q_nope[b, h, d]",
    formula="softmax(scale · (q_nope · ckvᵀ + q_pe · kpeᵀ)) · ckv",
    wrt=["q_nope", "q_pe", "ckv", "kpe"],
    error=16,
)
def mla_decode(
    q_nope: Array, q_pe: Array, ckv: Array, kpe: Array, cache_seqlens: Array | None = None,
    sm_scale: float | None = None,
) -> Array:  # fmt: skip
    """Multi-head latent attention of one query, in the order of FlashInfer's: a key is a latent
    part, which is the value too, and a rotary part; all heads share it. Of each request, the first
    `cache_seqlens` keys count. Without `sm_scale` it is 1 / √(d + r).

    >>> q, kv = np.ones((1, 2, 4), np.float32), np.ones((1, 3, 4), np.float32)
    >>> mla_decode(q, q, kv, kv)[0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    scale = (q_nope.shape[-1] + q_pe.shape[-1]) ** -0.5 if sm_scale is None else sm_scale
    s = q_nope @ tm.matrix_transpose(ckv) + q_pe @ tm.matrix_transpose(kpe)
    s = s * scale
    if cache_seqlens is not None:
        s = tm.where(tm.indices(s, -1) < cache_seqlens[:, None, None], s, -tm.inf)
    return tm.astype(tm.softmax(s, axis=-1) @ ckv, q_nope.dtype)
