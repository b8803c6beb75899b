"""Mixtures of experts: routing, packing, products of groups of rows, and what they add up to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import tilewright as tw
import tilewright.math as tm
from tilewright.ops import texts
from tilewright.ops.op import Array, op
from tilewright.ops.shapes import type_name


@op(
    "gating_output: float[t, e] -> float32[t, topk], int32[t, topk]",
    formula="the topk largest of softmax(gating_output), and their experts",
    wrt=["gating_output"],
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


def _grouped_back(
    wrt: Collection[str], d: Array, input: Array, weight: Array, offset: Array, max_rows: int = 0
) -> dict[str, Array]:
    kind, found = type_name(input), dict[str, Array]()
    if "input" in wrt:
        most = min(max_rows or len(input), len(input))
        found["input"] = texts.grouped(d, weight, offset, kind, most, flipped=True)
    if "weight" in wrt:
        found["weight"] = texts.grouped_outer(d, input, offset, kind, len(weight))
    return found


@op(
    "input: float[s, k], weight: input[e, n, k], offset: int32[e + 1] -> input[s, n]",
    formula="input[r] · weight[e]ᵀ for offset[e] ≤ r < offset[e + 1]",
    wrt=["input", "weight"],
    error=16,
    text=True,
    pull=_grouped_back,
)
def grouped_matmul(input: Array, weight: Array, offset: Array, max_rows: int = 0) -> Array:
    """Rows of each group times the group's weights, which have a row for each output. Groups follow
    one another and have all rows: `offset` begins with 0 and ends with their number. No group has
    more than `max_rows` rows, if that is given.

    >>> x, w = np.ones((3, 2), np.float32), np.array([[[1, 1]], [[2, 2]]], np.float32)
    >>> grouped_matmul(x, w, np.array([0, 1, 3], np.int32)).tolist()
    [[2.0], [4.0], [4.0]]
    """
    most = min(max_rows or len(input), len(input))
    return texts.grouped(input, weight, offset, type_name(input), most)


@tw.math
def _spread(d: Any, entry: Any, weights: Any) -> Any:
    """The rows that entries stand in, times their weights."""
    t, c = entry // weights.shape[1], entry % weights.shape[1]
    return tm.astype(tm.take(d, t, axis=0) * weights[t, c][:, None], d.dtype)


@tw.math
def _alike(d: Any, input: Any, place: Any, weights: Any) -> Any:
    """How far rows point where their cotangents do."""

    def far(i: Any, c: Any) -> Any:
        return tm.sum((input.shape[1],), lambda j: d[i, j] * input[place[i, c], j])

    return tm.astype(tm.array(place.shape, far), weights.dtype)


def _combine_back(
    wrt: Collection[str], d: Array, input: Array, place: Array, weights: Array
) -> dict[str, Array]:
    found = dict[str, Array]()
    if "input" in wrt:
        entry = texts.inverse(place.reshape(-1), len(input))
        found["input"] = _spread(d, entry, weights)
    if "weights" in wrt:
        found["weights"] = _alike(d, input, place, weights)
    return found


@op(
    "input: float[s, n], place: int32[t, k], weights: float[t, k] -> input[t, n]",
    formula="Σ over a token's choices: weights · input[place]",
    wrt=["input", "weights"],
    error=4,
    pull=_combine_back,
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


@tw.math
def _added(rows: Any, place: Any) -> Any:
    return moe_combine.function(rows, place, tm.ones(place.shape, dtype=rows.dtype))


@tw.math
def _weights(gating: Any, topk: int, renormalize: bool) -> Any:
    return moe_route.function(gating, topk, renormalize)[0]


_gated_back, _weights_back = tm.vjp(_gated), tm.vjp(_weights)


class _Parts(NamedTuple):
    """What a layer of experts computes on its way."""

    weights: Array
    place: Array
    offset: Array
    rows: Array
    both: Array
    inner: Array
    out: Array


def _parts(
    hidden: Array, w1: Array, w2: Array, gating: Array, topk: int, renormalize: bool
) -> _Parts:
    weights, experts = moe_route.run(gating, topk, renormalize)
    entry, place, offset = moe_pack.run(experts, len(w1))
    rows, most = _rows(hidden, entry, topk), len(hidden)
    both = grouped_matmul.run(rows, w1, offset, most)
    inner = _gated(both)
    out = grouped_matmul.run(inner, w2, offset, most)
    return _Parts(weights, place, offset, rows, both, inner, out)


def _moe_back(
    wrt: Collection[str], d: Array, hidden_states: Array, w1: Array, w2: Array,
    gating_output: Array, topk: int, renormalize: bool,
) -> dict[str, Array]:  # fmt: skip
    """What `moe` computes, once more, and then the gradients of its parts from the last one on."""
    p = _parts(hidden_states, w1, w2, gating_output, topk, renormalize)
    whole, most = ("input", "weight", "weights"), len(hidden_states)
    sums = _combine_back(whole, d, p.out, p.place, p.weights)
    down = _grouped_back(whole, sums["input"], p.inner, w2, p.offset, most)
    up = _grouped_back(whole, _gated_back(p.both, down["input"]), p.rows, w1, p.offset, most)
    found = {"w1": up["weight"], "w2": down["weight"]}
    if "hidden_states" in wrt:
        found["hidden_states"] = _added(up["input"], p.place)
    if "gating_output" in wrt:
        d_weights = sums["weights"]
        found["gating_output"] = _weights_back(gating_output, topk, renormalize, d_weights)
    return found


@op(
    "hidden_states: float16|bfloat16|float32[t, k], w2: hidden_states[e, k, n],"
    " w1: hidden_states[e, 2 * n, k], gating_output: float[t, e] -> hidden_states[t, k]",
    formula="Σ over a token's experts: weight · (silu(x · gateᵀ) ⊙ (x · upᵀ)) · w2ᵀ",
    wrt=["hidden_states", "w1", "w2", "gating_output"],
    error=16,
    text=True,
    pull=_moe_back,
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
    p = _parts(hidden_states, w1, w2, gating_output, topk, renormalize)
    return moe_combine.run(p.out, p.place, p.weights)
