"""Attention: one formula, with what models add to it."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, Function, op
from tilewright.support.errors import CompileError


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
    if h % g:
        raise CompileError(
            f"attention: {h} heads of queries cannot share {g} of keys",
            expected="heads of queries that heads of keys divide",
            got=f"query: {list(query.shape)}, key: {list(key.shape)}",
            fix="pass a key and value with a divisor of that many heads",
            code="arguments",
        )

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
