"""Attention: one formula, with what models add to it; and over packed requests."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, Function, op
from tilewright.support.errors import CompileError


def check_heads(name: str, queries: int, keys: int) -> None:
    if queries % keys:
        raise CompileError(
            f"{name}: {queries} heads of queries cannot share {keys} of keys",
            expected="heads of queries that heads of keys divide",
            fix="pass a key and value with a divisor of that many heads",
            code="arguments",
        )


@op(
    "query: float[b, h, s, d], key: query[b, g, l, d], value: query[b, g, l, e],"
    " attn_mask: bool|float[b|1, h|1, s, l], sinks: float[h], alibi_slopes: float[h],"
    " seqlens_k: int[b] -> query[b, h, s, e]",
    formula="softmax(mask(score(scale · query · keyᵀ))) · value",
    wrt=["query", "key", "value", "attn_mask", "sinks", "alibi_slopes"],
    error=8,
)
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    seqlens_k: Array | None = None,
    score_mod: Function | None = None,
    mask_mod: Function | None = None,
) -> Array:
    """Attention, as `torch.nn.functional.scaled_dot_product_attention`; heads of keys may serve
    several heads of queries. Shapes are [batch, heads, length, size of a head].

    `is_causal` means j ≤ i, as in PyTorch. FlashAttention's arguments count from the last key:
    `window_size` has how many keys a query sees to the left and right of place i + l − s, -1 is
    all of them, and (-1, 0) is causal; `softcap` is c · tanh(score / c); `alibi_slopes` times the
    distance is taken off. `sinks` are scores of one key more, without a value. Of each request,
    the first `seqlens_k` keys count. `score_mod(score, b, h, i, j)` and `mask_mod(b, h, i, j)` are
    FlexAttention's, over all scores at once, in words of `tilewright.math`. A row that sees
    nothing is NaN.

    >>> q, k = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 1, 3, 4), np.float32)
    >>> v = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    >>> attention(q, k, v, is_causal=True)[0, 1].tolist()
    [[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0], [4.0, 5.0, 6.0, 7.0]]
    """
    (b, h, s, d), (g, length) = query.shape, key.shape[1:3]
    check_heads("attention", h, g)

    def by_head(x: Array) -> Array:
        return tm.reshape(x, (g, h // g))[:, :, None, None]

    q = tm.reshape(query, (b, g, h // g, s, d))
    x = q @ tm.matrix_transpose(key)[:, :, None] * (d**-0.5 if scale is None else scale)
    batch, high, low, i, j = tm.indices(x)
    head, at = high * (h // g) + low, i + (length - s)
    if softcap:
        x = softcap * tm.tanh(x / softcap)
    if alibi_slopes is not None:
        x = x - by_head(alibi_slopes) * tm.abs(at - j)
    if score_mod is not None:
        x = score_mod(x, batch, head, i, j)
    seen = []
    if attn_mask is not None:
        each, heads = attn_mask.shape[:2]
        groups = (1, 1) if heads == 1 else (g, h // g)
        whole = tm.reshape(attn_mask, (each, *groups, s, length))
        if attn_mask.dtype == tm.bool:
            seen.append(whole)
        else:
            x = x + whole
    left, right = window_size
    if is_causal:
        seen.append(j <= i)
    if right >= 0:
        seen.append(j <= at + right)
    if left >= 0:
        seen.append(j >= at - left)
    if seqlens_k is not None:
        seen.append(j < seqlens_k[:, None, None, None, None])
    if mask_mod is not None:
        seen.append(mask_mod(batch, head, i, j))
    for each in seen[1:]:
        seen[0] = seen[0] & each
    x = tm.where(seen[0], x, -tm.inf) if seen else x
    v = value[:, :, None]
    if sinks is None:
        out = tm.softmax(x, axis=-1) @ v
    else:
        top = tm.max(x, axis=-1, keepdims=True)
        weights = tm.exp(x - top)
        sink = tm.exp(tm.minimum(by_head(sinks) - top, 80.0))  # not inf: its gradient is finite
        out = (weights / (tm.sum(weights, axis=-1, keepdims=True) + sink)) @ v
    return tm.astype(tm.reshape(out, (b, h, s, value.shape[-1])), query.dtype)


@op(
    "query: float[s, h, d], key: query[l, g, d], value: query[l, g, e], starts: int32[s],"
    " ends: int32[s] -> query[s, h, e]",
    formula="softmax over starts ≤ j < ends of (scale · query · keyᵀ) · value",
    wrt=["query", "key", "value"],
    error=8,
)
def attention_spans(
    query: Array, key: Array, value: Array, starts: Array, ends: Array, scale: float | None = None,
    *, softcap: float = 0.0,
) -> Array:  # fmt: skip
    """Attention in which query i sees the keys from `starts[i]` up to `ends[i]`, those without a
    key give zeros. Shapes are [length, heads, size of a head]; heads of keys may serve several
    heads of queries. Tiles of keys that no query of a tile sees are not read.

    >>> q, kv = np.ones((2, 1, 4), np.float32), np.arange(12, dtype=np.float32).reshape(3, 1, 4)
    >>> attention_spans(q, kv, kv, np.array([1, 3], np.int32), np.array([2, 3], np.int32)).tolist()
    [[[4.0, 5.0, 6.0, 7.0]], [[0.0, 0.0, 0.0, 0.0]]]
    """
    (s, h, d), (length, g, e) = query.shape, value.shape
    check_heads("attention_spans", h, g)
    q = tm.permute_dims(tm.reshape(query, (s, g, h // g, d)), (1, 2, 0, 3))
    k, v = (tm.permute_dims(x, (1, 0, 2))[:, None] for x in (key, value))
    x = q @ tm.matrix_transpose(k) * (d**-0.5 if scale is None else scale)
    if softcap:
        x = softcap * tm.tanh(x / softcap)
    j = tm.indices(x, -1)
    first = tm.clip(starts, 0, length - 1)
    last = tm.maximum(ends, first + 1)  # one key at least: its weight is finite
    x = tm.where((first[:, None] <= j) & (j < last[:, None]), x, -tm.inf)
    out = tm.where((starts < ends)[:, None], tm.softmax(x, axis=-1) @ v, 0)
    return tm.astype(tm.reshape(tm.permute_dims(out, (2, 0, 1, 3)), (s, h, e)), query.dtype)


@op(
    "cu_seqlens_q: int32[n], cu_seqlens_k: int32[n] -> int32[total_q], int32[total_q]",
    formula="for query i of request r: cu_seqlens_k[r] and cu_seqlens_k[r + 1], masked",
    error=0,
)
def varlen_spans(
    cu_seqlens_q: Array, cu_seqlens_k: Array, total_q: int, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> tuple[Array, Array]:  # fmt: skip
    """`starts` and `ends` of `attention_spans` for requests that lie one after the other: request
    r has the queries from `cu_seqlens_q[r]` up to `cu_seqlens_q[r + 1]`, and so its keys. `causal`
    and `window_size` count from the last key of a request, as in `attention`.

    >>> lengths = np.array([0, 2, 3], np.int32)
    >>> starts, ends = varlen_spans(lengths, lengths, 4, causal=True)
    >>> starts.tolist(), ends.tolist()
    ([0, 0, 2, 0], [1, 2, 3, 0])
    """
    requests, i = cu_seqlens_q.shape[0] - 1, tm.arange(total_q, dtype=tm.int32)
    if requests < 1:
        raise CompileError(
            "varlen_spans: there is no request", got="one number, where requests begin and end",
            fix="pass one more number than there are requests", code="arguments",
        )  # fmt: skip
    r = tm.searchsorted(cu_seqlens_q, i, side="right") - 1
    is_one = (r >= 0) & (r < requests)
    r = tm.clip(r, 0, requests - 1)
    first, end = cu_seqlens_k[r], cu_seqlens_k[r + 1]
    at = end - cu_seqlens_q[r + 1] + i  # the last key that a causal query sees
    left, right = window_size
    if causal:
        right = 0
    if left >= 0:
        first = tm.maximum(first, at - left)
    if right >= 0:
        end = tm.minimum(end, at + right + 1)
    starts, ends = (tm.astype(tm.where(is_one, x, 0), tm.int32) for x in (first, end))
    return starts, ends


def attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
) -> Array:  # fmt: skip
    """Attention of packed requests, in the order of FlashAttention's `flash_attn_varlen_func`:
    `varlen_spans`, then `attention_spans`. The longest lengths are not needed.

    >>> q, lengths = np.ones((3, 1, 4), np.float32), np.array([0, 2, 3], np.int32)
    >>> attention_varlen(q, q, q, lengths, lengths).tolist()[0]
    [[1.0, 1.0, 1.0, 1.0]]
    """
    if dropout_p:
        raise CompileError(
            "attention_varlen has no dropout", got=f"dropout_p={dropout_p}",
            fix="drop elements of its result", code="arguments",
        )  # fmt: skip
    starts, ends = varlen_spans(cu_seqlens_q, cu_seqlens_k, q.shape[0], causal, window_size)
    return attention_spans(q, k, v, starts, ends, softmax_scale, softcap=softcap)
