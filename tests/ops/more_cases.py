"""Cases of norms, losses, narrow numbers, decoding, experts and convolutions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tilewright.ops as ops
from tests.ops.cases import case, normal, odd, rms_norm, silu, some_rows, to_norm

FP8 = ml_dtypes.float8_e4m3fn


@case("rms_norm_silu", ops.rms_norm_silu, to_norm)
def rms_norm_silu(**given: Any) -> np.ndarray:
    return silu(rms_norm(**given))


def to_layer_norm(rng: np.random.Generator) -> dict[str, Any]:
    found = to_norm(rng)
    return found | {"bias": normal(rng, found["input"].shape[-1])}


@case("layer_norm", ops.layer_norm, to_layer_norm)
def layer_norm(
    input: np.ndarray, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> np.ndarray:
    centered = input - input.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps) * weight + bias


def two_halves(rng: np.random.Generator) -> dict[str, Any]:
    gate = some_rows(rng)
    return {"gate": gate, "up": normal(rng, *gate.shape)}


@case("swiglu", ops.swiglu, two_halves)
def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return silu(gate) * up


def to_rotate(rng: np.random.Generator) -> dict[str, Any]:
    b, s, h, half = odd(rng, 1, 3), odd(rng), odd(rng, 1, 4), odd(rng, 1, 12)
    angle = normal(rng, s, half)
    return {"x": normal(rng, b, s, h, 2 * half), "cos": np.cos(angle), "sin": np.sin(angle)}


@case("rope", ops.rope, to_rotate)
@case("rope interleaved", ops.rope, lambda rng: to_rotate(rng) | {"interleaved": True})
def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool = False) -> np.ndarray:
    cos, sin = cos[:, None], sin[:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    both = a * cos - b * sin, b * cos + a * sin
    return np.stack(both, -1).reshape(x.shape) if interleaved else np.concatenate(both, -1)


# ── losses ───────────────────────────────────────────────────────────────────────────────────


def classes(rng: np.random.Generator) -> dict[str, Any]:
    n, c = odd(rng, 2), odd(rng, 2, 60)
    target = rng.integers(0, c, n)
    target[1:][rng.random(n - 1) < 0.3] = -100
    return {"input": normal(rng, n, c), "target": target}


def smooth(rng: np.random.Generator) -> dict[str, Any]:
    return classes(rng) | {"label_smoothing": 0.1, "reduction": "sum"}


@case("cross_entropy_rows", ops.cross_entropy_rows, classes)
def cross_entropy_rows(
    input: np.ndarray, target: np.ndarray, label_smoothing: float = 0.0
) -> np.ndarray:
    log_p = input - np.log(np.exp(input).sum(-1, keepdims=True))
    wanted = np.take_along_axis(log_p, np.maximum(target, 0)[:, None], 1)[:, 0]
    loss = -(1 - label_smoothing) * wanted - label_smoothing * log_p.mean(-1)
    return np.where(target == -100, 0, loss)


@case("cross_entropy", ops.cross_entropy, classes)
@case("cross_entropy smooth", ops.cross_entropy, smooth)
def cross_entropy(
    input: np.ndarray, target: np.ndarray, reduction: str = "mean", **more: Any
) -> np.ndarray:
    total = cross_entropy_rows(input, target, **more).sum()
    return total / (target != -100).sum() if reduction == "mean" else total


def from_hidden(rng: np.random.Generator) -> dict[str, Any]:
    found = classes(rng)
    (n, c), k = found["input"].shape, odd(rng)
    return {"input": normal(rng, n, k), "weight": normal(rng, c, k), "target": found["target"]}


@case("linear_cross_entropy", ops.linear_cross_entropy, from_hidden)
def linear_cross_entropy(input: np.ndarray, weight: np.ndarray, target: np.ndarray) -> np.ndarray:
    return cross_entropy(input @ weight.T, target)


# ── narrow numbers ───────────────────────────────────────────────────────────────────────────


def whole(rng: np.random.Generator) -> dict[str, Any]:
    """Rows whose quantized numbers are integers, so that no rounding is near a half."""
    x = rng.integers(-126, 127, (odd(rng), 2 * odd(rng))).astype(np.float64)
    x[:, 0] = 127
    return {"input": x, "dtype": "int8", "group_size": 0}


@case("quantize", ops.quantize, whole, floats=("float16", "bfloat16", "float32"))
def quantize(input: np.ndarray, dtype: str, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    return input.astype(np.int8), np.ones((len(input), 1), np.float32)


def eighths(rng: np.random.Generator, block: bool = False) -> dict[str, Any]:
    m, n, k = odd(rng), odd(rng, 1, 150), odd(rng, 1, 300)
    up = lambda x: -(-x // 128)
    shapes = ((m, up(k)), (up(n), up(k))) if block else ((m,), (n,))
    a, b = (rng.random(shape).astype(np.float32) + 0.5 for shape in shapes)
    return {
        "input": normal(rng, m, k).astype(FP8),
        "weight": normal(rng, n, k).astype(FP8),
        "input_scale": a,
        "weight_scale": b,
        "out_dtype": "float32",
    }


@case("matmul_fp8", ops.matmul_fp8, eighths, floats=("float32",))
def matmul_fp8(
    input: np.ndarray, weight: np.ndarray, input_scale: np.ndarray, weight_scale: np.ndarray,
    out_dtype: str,
) -> np.ndarray:  # fmt: skip
    product = input.astype(np.float64) @ weight.astype(np.float64).T
    return product * input_scale[:, None] * weight_scale


@case("matmul_fp8_groupwise", ops.matmul_fp8_groupwise, lambda rng: eighths(rng, True),
      floats=("float32",))  # fmt: skip
def matmul_fp8_groupwise(
    input: np.ndarray, weight: np.ndarray, input_scale: np.ndarray, weight_scale: np.ndarray,
    out_dtype: str,
) -> np.ndarray:  # fmt: skip
    (m, k), n = input.shape, len(weight)
    a = input.astype(np.float64) * input_scale.repeat(128, 1)[:, :k]
    return a @ (weight.astype(np.float64) * weight_scale.repeat(128, 0)[:n].repeat(128, 1)[:, :k]).T


def bytes_of(rng: np.random.Generator) -> dict[str, Any]:
    n, k = odd(rng), odd(rng, 2, 60)
    return {
        "input": normal(rng, 3, odd(rng), k),
        "weight": rng.integers(-128, 128, (n, k)).astype(np.int8),
        "scale": rng.random(n).astype(np.float32),
    }


@case("matmul_int8", ops.matmul_int8, bytes_of)
def matmul_int8(input: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return input @ weight.T.astype(np.float64) * scale


def nibbles(rng: np.random.Generator) -> dict[str, Any]:
    n, groups, half = odd(rng), odd(rng, 1, 4), odd(rng)
    return {
        "input": normal(rng, odd(rng), 2 * half * groups),
        "weight": rng.integers(0, 256, (n, half * groups)).astype(np.uint8),
        "scale": 2.0 ** rng.integers(-3, 3, (n, groups)).astype(np.float32),
        "bias": normal(rng, n),
    }


@case("matmul_int4", ops.matmul_int4, nibbles)
def matmul_int4(
    input: np.ndarray, weight: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    n = len(weight)
    numbers = np.stack([weight & 15, weight >> 4], -1).reshape(n, scale.shape[1], -1) - 8.0
    return input @ (numbers * scale[..., None]).reshape(n, -1).T + bias


# ── decoding ─────────────────────────────────────────────────────────────────────────────────


def pages(rng: np.random.Generator) -> dict[str, Any]:
    b, g, group, d, e = odd(rng, 1, 4), odd(rng, 1, 3), odd(rng, 1, 4), odd(rng, 2), odd(rng, 2)
    p, most = odd(rng, 1, 8), odd(rng, 1, 5)
    lens = rng.integers(0, p * most + 1, b)
    return {
        "q": normal(rng, b, g * group, d),
        "k_cache": normal(rng, b * most, p, g, d),
        "v_cache": normal(rng, b * most, p, g, e),
        "cache_seqlens": lens.astype(np.int32),
        "block_table": rng.permutation(b * most).reshape(b, most).astype(np.int32),
    }


@case("attention_decode", ops.attention_decode, pages, floats=("float16", "bfloat16", "float32"))
def attention_decode(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, cache_seqlens: np.ndarray,
    block_table: np.ndarray,
) -> np.ndarray:  # fmt: skip
    b, h, d = q.shape
    out = np.zeros((b, h, v_cache.shape[-1]))
    for n in np.flatnonzero(cache_seqlens):
        k, v = (c[block_table[n]].reshape(-1, *c.shape[2:]) for c in (k_cache, v_cache))
        k, v = (x[: cache_seqlens[n]].repeat(h // x.shape[1], 1) for x in (k, v))
        e = np.exp(np.einsum("hd,lhd->hl", q[n], k) / np.sqrt(d))
        out[n] = np.einsum("hl,lhe->he", e / e.sum(-1, keepdims=True), v)
    return out


def latent(rng: np.random.Generator) -> dict[str, Any]:
    b, h, d, r, n = odd(rng, 1, 4), odd(rng, 1, 6), odd(rng, 2), odd(rng, 1, 8), odd(rng, 2, 40)
    return {
        "q_nope": normal(rng, b, h, d),
        "q_pe": normal(rng, b, h, r),
        "ckv": normal(rng, b, n, d),
        "kpe": normal(rng, b, n, r),
        "cache_seqlens": rng.integers(1, n + 1, b),
    }


@case("mla_decode", ops.mla_decode, latent)
def mla_decode(
    q_nope: np.ndarray, q_pe: np.ndarray, ckv: np.ndarray, kpe: np.ndarray,
    cache_seqlens: np.ndarray,
) -> np.ndarray:  # fmt: skip
    s = q_nope @ ckv.swapaxes(1, 2) + q_pe @ kpe.swapaxes(1, 2)
    seen = np.arange(ckv.shape[1]) < cache_seqlens[:, None, None]
    e = np.where(seen, np.exp(s / np.sqrt(q_nope.shape[-1] + q_pe.shape[-1])), 0)
    return e / e.sum(-1, keepdims=True) @ ckv


# ── experts ──────────────────────────────────────────────────────────────────────────────────


def tokens(rng: np.random.Generator) -> dict[str, Any]:
    t, e = odd(rng), odd(rng, 3, 12)
    scores = rng.permuted(np.tile(np.arange(e) / 4, (t, 1)), axis=1)  # no two are near
    return {"gating_output": scores, "topk": 2}


@case("moe_route", ops.moe_route, tokens, floats=("float16", "bfloat16", "float32"))
def moe_route(gating_output: np.ndarray, topk: int) -> tuple[np.ndarray, np.ndarray]:
    experts = np.argsort(-gating_output, axis=1)[:, :topk]
    e = np.exp(np.take_along_axis(gating_output, experts, 1))
    return e / e.sum(1, keepdims=True), experts


def choices(rng: np.random.Generator) -> dict[str, Any]:
    e = odd(rng, 2, 9)
    numbers = rng.integers(-1, e + 1, (odd(rng), 2))  # -1 and e are nobody's
    return {"experts": numbers.astype(np.int32), "num_experts": e}


@case("moe_pack", ops.moe_pack, choices, floats=("float32",))
def moe_pack(experts: np.ndarray, num_experts: int) -> tuple[np.ndarray, ...]:
    flat = experts.ravel()
    packed = np.concatenate([np.flatnonzero(flat == e) for e in range(num_experts)])
    entry, place = np.full(flat.size, -1), np.full(flat.size, -1)
    entry[: packed.size], place[packed] = packed, np.arange(packed.size)
    offset = np.searchsorted(np.sort(flat[packed]), np.arange(num_experts + 1))
    return entry, place.reshape(experts.shape), offset


def groups_of_rows(rng: np.random.Generator) -> dict[str, Any]:
    e, k, n, s = odd(rng, 1, 6), odd(rng), odd(rng), odd(rng)
    ends = np.sort(rng.integers(0, s + 1, e - 1))
    return {
        "input": normal(rng, s, k),
        "weight": normal(rng, e, n, k),
        "offset": np.array([0, *ends, s], np.int32),
    }


@case("grouped_matmul", ops.grouped_matmul, groups_of_rows)
def grouped_matmul(input: np.ndarray, weight: np.ndarray, offset: np.ndarray) -> np.ndarray:
    group = np.searchsorted(offset[1:], np.arange(len(input)), side="right")
    return np.einsum("sk,snk->sn", input, weight[group])


def to_combine(rng: np.random.Generator) -> dict[str, Any]:
    t, k = odd(rng), odd(rng, 1, 4)
    return {
        "input": normal(rng, t * k, odd(rng)),
        "place": (rng.permutation(t * k).reshape(t, k) - 1).astype(np.int32),  # one is -1: zero
        "weights": normal(rng, t, k),
    }


@case("moe_combine", ops.moe_combine, to_combine)
def moe_combine(input: np.ndarray, place: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.einsum("tkn,tk,tk->tn", input[place], weights, place >= 0)


def experts_of(rng: np.random.Generator) -> dict[str, Any]:
    found = tokens(rng)
    (t, e), k, n = found["gating_output"].shape, odd(rng), odd(rng)
    more = {"w1": normal(rng, e, 2 * n, k), "w2": normal(rng, e, k, n)}
    return found | {"hidden_states": normal(rng, t, k)} | more


@case("moe", ops.moe, experts_of, floats=("float16", "bfloat16", "float32"))
def moe(
    hidden_states: np.ndarray, w1: np.ndarray, w2: np.ndarray, gating_output: np.ndarray, topk: int
) -> np.ndarray:
    weights, experts = moe_route(gating_output, topk)
    both = np.einsum("tk,tcnk->tcn", hidden_states, w1[experts])
    gate, up = np.split(both, 2, -1)
    return np.einsum("tcn,tckn,tc->tk", silu(gate) * up, w2[experts], weights)


# ── convolution ──────────────────────────────────────────────────────────────────────────────


def planes(rng: np.random.Generator) -> dict[str, Any]:
    n, c, o, rows = (odd(rng, 1, 4) for _ in range(4))
    groups, h, w = 2, odd(rng, 5), odd(rng, 5)
    return {
        "input": normal(rng, n, groups * c, h, w),
        "weight": normal(rng, groups * o, c, rows, 2),
        "bias": normal(rng, groups * o),
        "stride": (2, 1),
        "padding": (1, 2),
        "dilation": (1, 2),
        "groups": groups,
    }


@case("conv2d", ops.conv2d, planes)
def conv2d(
    input: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: Any, padding: Any,
    dilation: Any, groups: int,
) -> np.ndarray:  # fmt: skip
    o, c, rows, columns = weight.shape
    x = np.pad(input, [(0, 0), (0, 0), *((p, p) for p in padding)])
    high = (x.shape[2] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    wide = (x.shape[3] - dilation[1] * (columns - 1) - 1) // stride[1] + 1
    x = x.reshape(len(x), groups, c, *x.shape[2:])
    out = np.zeros((len(x), groups, o // groups, high, wide))
    for r, q in np.ndindex(rows, columns):
        y, z = r * dilation[0], q * dilation[1]
        part = x[..., y : y + high * stride[0] : stride[0], z : z + wide * stride[1] : stride[1]]
        out += np.einsum(
            "bgcyz,goc->bgoyz",
            part[..., :high, :wide],
            weight.reshape(groups, -1, c, rows, columns)[..., r, q],
        )
    return out.reshape(len(x), o, high, wide) + bias[:, None, None]
