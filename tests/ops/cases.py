"""Arguments of ops at sizes that are drawn, and what NumPy makes of them in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tilewright.ops as ops

TYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}


@dataclass(frozen=True)
class Case:
    """`draw(rng)` gives arguments by name, floats in float64; `want` what comes out."""

    op: ops.Op
    draw: Callable[[np.random.Generator], dict[str, Any]]
    want: Callable[..., Any]
    floats: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
    tolerance: float = 1.0  # of gradients, times the op's error

    def given(self, seed: int, dtype: str) -> dict[str, Any]:
        """The arguments in a type."""
        found = self.draw(np.random.default_rng(seed))
        return {n: cast(v, dtype) for n, v in found.items()}


def cast(value: Any, dtype: str) -> Any:
    is_float = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(TYPES[dtype]) if is_float else value


def exact(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments with floats in float64."""
    return {
        n: v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype in TYPES.values() else v
        for n, v in given.items()
    }


CASES: dict[str, Case] = {}


def case(
    name: str, op: ops.Op, draw: Callable[[np.random.Generator], dict[str, Any]], **more: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(want: Callable[..., Any]) -> Callable[..., Any]:
        CASES[name] = Case(op, draw, want, **more)
        return want

    return keep


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def odd(rng: np.random.Generator, low: int = 1, high: int = 20) -> int:
    return int(rng.integers(low, high))


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


def some_rows(rng: np.random.Generator) -> np.ndarray:
    return normal(rng, odd(rng, 1, 4), odd(rng), odd(rng, 2, 70))


@case("softmax", ops.softmax, lambda rng: {"input": some_rows(rng)})
@case("softmax over columns", ops.softmax, lambda rng: {"input": some_rows(rng), "dim": 1})
def softmax(input: np.ndarray, dim: int = -1) -> np.ndarray:
    e = np.exp(input - input.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


EPS = {"eps": 1e-5}


def to_norm(rng: np.random.Generator) -> dict[str, Any]:
    x = some_rows(rng)
    return {"input": x, "normalized_shape": x.shape[-1:], "weight": normal(rng, x.shape[-1])} | EPS


def to_norm_whole(rng: np.random.Generator) -> dict[str, Any]:
    x = some_rows(rng)
    return {"input": x, "normalized_shape": x.shape[-2:]} | EPS


@case("rms_norm", ops.rms_norm, to_norm)
@case("rms_norm of two axes", ops.rms_norm, to_norm_whole)
def rms_norm(
    input: np.ndarray, normalized_shape: Any, weight: Any = 1.0, eps: float = 0.0
) -> np.ndarray:
    axis = tuple(range(-len(normalized_shape), 0))
    return input / np.sqrt((input**2).mean(axis, keepdims=True) + eps) * weight


# ── products ─────────────────────────────────────────────────────────────────────────────────


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


NUMPY = {None: lambda x: x, "silu": silu, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


def to_multiply(rng: np.random.Generator) -> dict[str, Any]:
    b, m, n, k = odd(rng, 1, 4), odd(rng), odd(rng), odd(rng, 2, 40)
    return {"input": normal(rng, b, m, k), "other": normal(rng, k, n)}


def gated(rng: np.random.Generator) -> dict[str, Any]:
    found = to_multiply(rng)
    (b, m, _), (k, n) = found["input"].shape, found["other"].shape
    more = {"bias": normal(rng, n), "gate": normal(rng, k, n), "residual": normal(rng, b, m, n)}
    return found | more | {"activation": "silu"}


@case("matmul", ops.matmul, to_multiply)
@case("matmul gated", ops.matmul, gated, tolerance=4)
def matmul(
    input: np.ndarray, other: np.ndarray, bias: Any = 0.0, activation: Any = None,
    gate: Any = None, residual: Any = 0.0,
) -> np.ndarray:  # fmt: skip
    x = NUMPY[activation](input @ other + bias)
    return (x if gate is None else x * (input @ gate)) + residual


def weighed(rng: np.random.Generator) -> dict[str, Any]:
    found = gated(rng)
    return {
        "input": found["input"],
        "weight": found["other"].T.copy(),
        "bias": found["bias"],
        "activation": "tanh",
    }


@case("linear", ops.linear, weighed)
def linear(input: np.ndarray, weight: np.ndarray, **more: Any) -> np.ndarray:
    return matmul(input, weight.T, **more)


# ── attention ────────────────────────────────────────────────────────────────────────────────


def heads(rng: np.random.Generator, same: bool = False) -> dict[str, Any]:
    b, g, group = (odd(rng, 1, 4) for _ in range(3))
    d, e = odd(rng, 2, 20), odd(rng, 1, 20)
    s, n = odd(rng, 2, 24), odd(rng, 2, 24)
    n = s if same else n
    return {
        "query": normal(rng, b, g * group, s, d),
        "key": normal(rng, b, g, n, d),
        "value": normal(rng, b, g, n, e),
    }


def with_heads(
    same: bool = False, **make: Callable[..., Any]
) -> Callable[[np.random.Generator], dict[str, Any]]:
    def draw(rng: np.random.Generator) -> dict[str, Any]:
        found = heads(rng, same)
        return found | {n: f(rng, *found["query"].shape[:2]) for n, f in make.items()}

    return draw


LENGTHS = with_heads(seqlens_k=lambda rng, b, h: rng.integers(1, 3, b).astype(np.int32))


@case("attention", ops.attention, heads)
@case("attention causal", ops.attention, with_heads(is_causal=lambda *_: True))
@case("attention window", ops.attention, with_heads(True, window_size=lambda *_: (3, 1)))
@case("attention soft cap", ops.attention, with_heads(softcap=lambda *_: 3.0))
@case("attention lengths", ops.attention, LENGTHS)
@case("attention ALiBi", ops.attention, with_heads(alibi_slopes=lambda rng, b, h: rng.random(h)))
@case("attention sinks", ops.attention, with_heads(sinks=lambda rng, b, h: normal(rng, h)))
def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, is_causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, sinks: Any = None,
    seqlens_k: Any = None,
) -> np.ndarray:  # fmt: skip
    (_, h, s, d), (g, n) = query.shape, key.shape[1:3]
    key, value = (x.repeat(h // g, 1) for x in (key, value))
    x = query @ key.swapaxes(-1, -2) / np.sqrt(d)
    i, j = np.arange(s)[:, None], np.arange(n)
    at, (left, right) = i + n - s, window_size
    x = softcap * np.tanh(x / softcap) if softcap else x
    x = x if alibi_slopes is None else x - alibi_slopes[:, None, None] * abs(at - j)
    seen = np.ones((s, n), bool)
    seen &= (j <= i) | (not is_causal)
    seen &= ((left < 0) | (j >= at - left)) & ((right < 0) | (j <= at + right))
    if seqlens_k is not None:
        seen = seen & (j < seqlens_k[:, None, None, None])
    e = np.where(seen, np.exp(x), 0)
    more = 0 if sinks is None else np.exp(sinks)[:, None, None]
    return e / (e.sum(-1, keepdims=True) + more) @ value


def spans(rng: np.random.Generator) -> dict[str, Any]:
    found = heads(rng)
    s, n = found["query"].shape[2], found["key"].shape[2]
    starts, lengths = rng.integers(0, n, s), rng.integers(0, n, s)
    ends = np.minimum(starts + lengths, n)  # some see nothing
    packed = {name: x[0].swapaxes(0, 1) for name, x in found.items()}
    return packed | {"starts": starts.astype(np.int32), "ends": ends.astype(np.int32)}


@case("attention_spans", ops.attention_spans, spans)
@case("attention_spans soft cap", ops.attention_spans, lambda rng: spans(rng) | {"softcap": 3.0})
def attention_spans(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, starts: np.ndarray, ends: np.ndarray,
    softcap: float = 0.0,
) -> np.ndarray:  # fmt: skip
    group, j = query.shape[1] // key.shape[1], np.arange(len(key))
    x = np.einsum("shd,lhd->shl", query, key.repeat(group, 1)) / np.sqrt(query.shape[-1])
    x = softcap * np.tanh(x / softcap) if softcap else x
    e = np.where(((starts[:, None] <= j) & (j < ends[:, None]))[:, None], np.exp(x), 0)
    p = e / np.maximum(e.sum(-1, keepdims=True), 1e-30)
    return np.einsum("shl,lhe->she", p, value.repeat(group, 1))


def requests(rng: np.random.Generator, **more: Any) -> dict[str, Any]:
    lengths = rng.integers(0, 7, (2, odd(rng, 1, 6)))
    q, k = (np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in lengths)
    return {"cu_seqlens_q": q, "cu_seqlens_k": k, "total_q": int(q[-1]) + 2} | more


@case("varlen_spans", ops.varlen_spans, lambda rng: requests(rng, causal=True), floats=("float32",))
@case(
    "varlen_spans of a window", ops.varlen_spans,
    lambda rng: requests(rng, window_size=(2, 1)), floats=("float32",),
)  # fmt: skip
def varlen_spans(
    cu_seqlens_q: np.ndarray, cu_seqlens_k: np.ndarray, total_q: int, causal: bool = False,
    window_size: Any = (-1, -1),
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    starts, ends = np.zeros((2, total_q), np.int32)
    left, right = (-1, 0) if causal else window_size
    for q, end_q, k, end_k in zip(
        cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False
    ):
        for i in range(q, end_q):
            at = i - q + (end_k - k) - (end_q - q) + k
            starts[i] = k if left < 0 else max(k, at - left)
            ends[i] = end_k if right < 0 else min(end_k, at + right + 1)
    return starts, ends
