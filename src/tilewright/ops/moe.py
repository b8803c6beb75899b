"""Mixtures of experts: routing, packing, products of groups of rows, and what they add up to."""

from __future__ import annotations

from typing import Any

import tilewright as tw
import tilewright.math as tm
from tilewright.ops import texts
from tilewright.ops.op import Array, op


@op(
    "gating_output: float[t, e] -> float32[t, topk], int32[t, topk]",
    formula="the topk largest of softmax(gating_output), and their experts",
    error=4,
)
def moe_route(gating_output: Array, topk: int, renormalize: bool = True) -> tuple[Array, Array]:
    """Weights and experts of each token, the largest weight first; with `renormalize`, the weights
    of a token have the sum 1.

    >>> weights, experts = moe_route(np.eye(2, 4, dtype=np.float32), 1)
    >>> weights.tolist(), experts.tolist()
    ([[1.0], [1.0]], [[0], [1]])
    """
    weights, experts = tm.top_k(tm.softmax(tm.astype(gating_output, tm.float32), axis=-1), topk)
    if renormalize:
        weights = weights / tm.sum(weights, axis=-1, keepdims=True)
    return weights, tm.astype(experts, tm.int32)


@op(
    "experts: int32[t, k] -> int32[t * k], int32[t, k], int32[num_experts + 1]",
    formula="the stable order of entries by expert, its inverse, and where experts begin",
    error=0,
    text=True,
)
def moe_pack(experts: Array, num_experts: int) -> tuple[Array, Array, Array]:
    """The entries (token, choice) in the order of their experts: which entry each packed row is,
    where each entry is packed, and the first row of each expert, with the end after them. Numbers
    of no expert, as of those on another device, are not packed: their place is -1, which
    `moe_combine` takes as zero.

    >>> entry, place, offset = moe_pack(np.array([[1], [0], [1]], np.int32), 3)
    >>> entry.tolist(), place.tolist(), offset.tolist()
    ([1, 0, 2], [[1], [0], [2]], [0, 1, 3, 3])
    """
    entry, place, offset = texts.pack(experts.reshape(-1), num_experts)
    return entry, place.reshape(experts.shape), offset


@op(
    "input: float[s, k], weight: input[e, n, k], offset: int32[e + 1] -> input[s, n]",
    formula="input[r] · weight[e]ᵀ for offset[e] ≤ r < offset[e + 1]",
    error=16,
    text=True,
)
def grouped_matmul(input: Array, weight: Array, offset: Array, max_rows: int = 0) -> Array:
    """Rows of each group times the group's weights, which have a row for each output. Groups follow
    one another and have all rows: `offset` begins with 0 and ends with their number. No group has
    more than `max_rows` rows, if that is given.

    >>> x, w = np.ones((3, 2), np.float32), np.array([[[1, 1]], [[2, 2]]], np.float32)
    >>> grouped_matmul(x, w, np.array([0, 1, 3], np.int32)).tolist()
    [[2.0], [4.0], [4.0]]
    """
    kind = str(input.dtype).rpartition(".")[2]
    return texts.grouped(input, weight, offset, kind, min(max_rows or len(input), len(input)))


@op(
    "input: float[s, n], place: int32[t, k], weights: float[t, k] -> input[t, n]",
    formula="Σ over a token's choices: weights · input[place]",
    error=4,
)
def moe_combine(input: Array, place: Array, weights: Array) -> Array:
    """What the experts of a token give, weighed.

    >>> y, place = np.array([[1], [2]], np.float32), np.array([[1, 0]], np.int32)
    >>> moe_combine(y, place, np.array([[1, 10]], np.float32)).tolist()
    [[12.0]]
    """
    (t, k), n = place.shape, input.shape[1]

    def added(i: Array, j: Array) -> Array:
        return tm.sum((k,), lambda c: input[place[i, c], j] * weights[i, c])

    return tm.astype(tm.array((t, n), added), input.dtype)


@tw.math
def _rows(hidden: Any, entry: Any, topk: int) -> Any:
    return tm.take(hidden, entry // topk, axis=0)


@tw.math
def _gated(both: Any) -> Any:
    half = both.shape[-1] // 2
    return tm.astype(tm.silu(both[:, :half]) * both[:, half:], both.dtype)


@op(
    "hidden_states: float16|bfloat16|float32[t, k], w2: hidden_states[e, k, n],"
    " w1: hidden_states[e, 2 * n, k], gating_output: float[t, e] -> hidden_states[t, k]",
    formula="Σ over a token's experts: weight · (silu(x · gateᵀ) ⊙ (x · upᵀ)) · w2ᵀ",
    error=16,
    text=True,
)
def moe(
    hidden_states: Array, w1: Array, w2: Array, gating_output: Array, topk: int,
    renormalize: bool = True,
) -> Array:  # fmt: skip
    """A layer of experts, as vLLM's `fused_moe`: `moe_route`, `moe_pack`, two `grouped_matmul` with
    SwiGLU between them, whose gate is the first half of `w1`, and `moe_combine`.

    >>> x, w1 = np.ones((1, 2), np.float32), np.zeros((2, 4, 2), np.float32)
    >>> moe(x, w1, np.ones((2, 2, 2), np.float32), np.ones((1, 2), np.float32), 1).tolist()
    [[0.0, 0.0]]
    """
    weights, experts = moe_route.run(gating_output, topk, renormalize)
    entry, place, offset = moe_pack.run(experts, len(w1))
    rows, most = _rows(hidden_states, entry, topk), len(hidden_states)
    inner = _gated(grouped_matmul.run(rows, w1, offset, most))
    return moe_combine.run(grouped_matmul.run(inner, w2, offset, most), place, weights)
