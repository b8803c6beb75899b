"""The cases that the demo shows and the benchmark times."""

from __future__ import annotations

import numpy as np

from zoo.attention import flash
from zoo.case import Case, normal
from zoo.elementwise import vector_add
from zoo.gemm import gemm
from zoo.mla import decode
from zoo.norm import rms_norm_silu as norm
from zoo.softmax import softmax


def gemm_relu(M: int, N: int, K: int, dtype: str = "float32") -> Case:
    a, b = normal(M, K, dtype=dtype, seed=1), normal(K, N, dtype=dtype, seed=2)
    c = np.empty((M, N), dtype)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)

    def build(target):
        kernel = gemm.gemm_relu.on(target)(M, N, K, dtype=dtype)
        return lambda: (kernel(a, b, c), c)[1]

    return Case(
        "GEMM + ReLU",
        f"{M}×{N}×{K} {dtype}",
        build,
        lambda: gemm.reference(a, b, relu=True),
        lambda: np.maximum(wide_a @ wide_b, 0),
        bound=1e-5 if dtype == "float32" else 1e-3,
    )


def row_softmax(M: int, N: int) -> Case:
    x, y = normal(M, N), np.empty((M, N), np.float32)

    def build(target):
        kernel = softmax.softmax.on(target)(M, N)
        return lambda: (kernel(x, y), y)[1]

    def numpy():
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    return Case(
        "softmax", f"{M}×{N} float32", build, lambda: softmax.reference(x), numpy, bound=1e-5
    )


def online_softmax(M: int, N: int) -> Case:
    x, y = normal(M, N), np.empty((M, N), np.float32)

    def build(target):
        kernel = softmax.online_softmax.on(target)(M, N)
        return lambda: (kernel(x, y), y)[1]

    return Case(
        "online softmax",
        f"{M}×{N} float32",
        build,
        lambda: softmax.reference(x),
        row_softmax(M, N).numpy,
        bound=1e-5,
    )


def rms_norm_silu(M: int, C: int) -> Case:
    x, w, y = normal(M, C), normal(C, seed=1), np.empty((M, C), np.float32)

    def build(target):
        kernel = norm.rms_norm_silu(M, C, target=target)
        return lambda: (kernel(x, w, y), y)[1]

    def numpy():
        n = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6)) * w
        return n / (1 + np.exp(-n))

    return Case(
        "RMSNorm + SiLU", f"{M}×{C} float32", build, lambda: norm.reference(x, w), numpy, bound=1e-5
    )


def flash_attention(
    heads: int, seq: int, dim: int, causal: bool = False, kv_heads: int | None = None
) -> Case:
    kv_heads = kv_heads or heads
    q = normal(1, heads, seq, dim, seed=1)
    k, v = (normal(1, kv_heads, seq, dim, seed=s) for s in (2, 3))
    o = np.empty_like(q)

    def build(target):
        make = flash.flash_attention.on(target)
        kernel = make(1, heads, kv_heads, seq, seq, dim, causal=causal, dtype="float32")
        return lambda: (kernel(q, k, v, o), o)[1]

    def numpy():
        s = q @ np.repeat(k, heads // kv_heads, 1).transpose(0, 1, 3, 2) * np.float32(dim**-0.5)
        if causal:
            s = np.where(np.tri(seq, dtype=bool), s, np.float32(-np.inf))
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True) @ np.repeat(v, heads // kv_heads, 1)

    return Case(
        "flash attention" + (" causal" if causal else ""),
        f"{heads}×{seq}×{dim} float32",
        build,
        lambda: flash.reference(q, k, v, causal),
        numpy,
        bound=1e-5,
    )


def vector_sum(N: int) -> Case:
    a, b, c = normal(N, seed=1), normal(N, seed=2), np.empty(N, np.float32)

    def build(target):
        kernel = vector_add.vector_add.on(target)(N)
        return lambda: (kernel(a, b, c), c)[1]

    return Case(
        "vector add", f"{N} float32", build, lambda: vector_add.reference(a, b), lambda: a + b, 1e-6
    )


def mla_decode(batch: int, heads: int, seq: int, splits: int = 1) -> Case:
    q, qr = normal(batch, heads, 512, seed=1), normal(batch, heads, 64, seed=2)
    kv, kr = normal(batch, seq, 512, seed=3), normal(batch, seq, 64, seed=4)
    o = np.empty_like(q)

    def build(target):
        kernel = decode.mla_decode.on(target)(batch, heads, seq, splits=splits, dtype="float32")
        return lambda: (kernel(q, qr, kv, kr, o), o)[1]

    def numpy():
        s = (q @ kv.transpose(0, 2, 1) + qr @ kr.transpose(0, 2, 1)) * np.float32(576**-0.5)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True) @ kv

    return Case(
        "MLA decode" + (f" split {splits}" if splits > 1 else ""),
        f"{batch}×{heads}×{seq} float32",
        build,
        lambda: decode.reference(q, qr, kv, kr),
        numpy,
        bound=1e-5,
    )


def demo_cases() -> list[Case]:
    return [
        gemm_relu(768, 768, 768),
        row_softmax(4096, 1024),
        flash_attention(8, 512, 64),
        rms_norm_silu(4096, 1024),
    ]


def bench_cases() -> list[Case]:
    return [
        vector_sum(1 << 22),
        gemm_relu(768, 768, 768),
        gemm_relu(1000, 1000, 1000),
        gemm_relu(768, 768, 768, "float16"),
        row_softmax(4096, 1024),
        row_softmax(4096, 4096),
        online_softmax(1024, 16384),
        rms_norm_silu(4096, 1024),
        rms_norm_silu(4096, 1056),
        flash_attention(8, 1024, 64),
        flash_attention(8, 1024, 64, causal=True),
        flash_attention(8, 1024, 128, kv_heads=2),
        mla_decode(2, 64, 1024),
        mla_decode(1, 64, 2048, splits=4),
    ]
