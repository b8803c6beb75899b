"""The cases that the demo shows and the benchmark times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import tilewright as tw
from zoo.attention import flash
from zoo.case import Case, normal, with_torch
from zoo.elementwise import swiglu, vector_add
from zoo.gemm import gemm
from zoo.loss import cross_entropy
from zoo.mla import decode
from zoo.norm import layer_norm, rms_norm
from zoo.norm import rms_norm_silu as norm
from zoo.softmax import softmax
from zoo.transpose import transpose


def on_cpu(target: str) -> bool:
    return bool(tw.resolve(target).kind == "cpu")


def gemm_relu(
    M: int, N: int, K: int, dtype: str = "float32", cpu: tuple[int, int, int] = (256, 256, 256)
) -> Case:
    """`cpu`: the tile where blocks are not bound by shared memory. Packed factors and the result
    should fit the second-level cache, and the blocks divide evenly among the cores."""
    a, b = normal(M, K, dtype=dtype, seed=1), normal(K, N, dtype=dtype, seed=2)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)

    def build(target, dtype=dtype, a=a, b=b):
        tile = cpu if on_cpu(target) else ()
        kernel = gemm.gemm_relu.on(target)(M, N, K, *tile, dtype=dtype)
        c = np.empty((M, N), dtype)
        return lambda: (kernel(a, b, c), c)[1]

    def numpy():
        return np.maximum(wide_a @ wide_b, 0)

    def torch(torch, a, b):
        return torch.relu(a @ b)

    narrow = {"our float32": lambda target: build(target, "float32", wide_a, wide_b)}
    return Case(
        "GEMM + ReLU",
        f"{M}×{N}×{K} {dtype}",
        build,
        lambda: gemm.reference(a, b, relu=True),
        numpy,
        bound={"float32": 1e-5, "bfloat16": 4e-3}.get(dtype, 1e-3),
        others=({"torch": with_torch(torch, a, b)} if dtype == "float32" else narrow),
    )


def row_softmax(M: int, N: int) -> Case:
    x, y = normal(M, N), np.empty((M, N), np.float32)

    def build(target):
        # a row at a time stays in a CPU's first-level cache
        rows = {"block_M": 1} if on_cpu(target) else {}
        kernel = softmax.softmax.on(target)(M, N, **rows)
        return lambda: (kernel(x, y), y)[1]

    def numpy():
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def torch(torch, x):
        return torch.softmax(x, dim=1)

    return Case(
        "softmax",
        f"{M}×{N} float32",
        build,
        lambda: softmax.reference(x),
        numpy,
        bound=1e-5,
        others={"torch": with_torch(torch, x)},
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
        # a CPU's cache holds whole rows of any length
        whole = rms_norm.rms_norm_whole.on(target) if on_cpu(target) else None
        kernel = whole(M, C, silu=True) if whole else norm.rms_norm_silu(M, C, target=target)
        return lambda: (kernel(x, w, y), y)[1]

    def numpy():
        n = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-6)) * w
        return n / (1 + np.exp(-n))

    def torch(torch, x, w):
        functional = torch.nn.functional
        return functional.silu(functional.rms_norm(x, (C,), w, 1e-6))

    return Case(
        "RMSNorm + SiLU",
        f"{M}×{C} float32",
        build,
        lambda: norm.reference(x, w),
        numpy,
        bound=1e-5,
        others={"torch": with_torch(torch, x, w)},
    )


def layer_norm_rows(M: int, N: int) -> Case:
    x, w, b = normal(M, N), normal(N, seed=1), normal(N, seed=2)
    y = np.empty_like(x)

    def build(target):
        kernel = layer_norm.layer_norm_rows(N, dtype="float32", target=target)
        return lambda: (kernel(x, w, b, y), y)[1]

    def numpy():
        far = x - x.mean(axis=1, keepdims=True)
        return far / np.sqrt((far * far).mean(axis=1, keepdims=True) + np.float32(1e-5)) * w + b

    return Case(
        "LayerNorm", f"{M}×{N} float32", build, lambda: layer_norm.reference(x, w, b), numpy, 1e-5
    )


def row_losses(M: int, N: int) -> Case:
    x, labels = normal(M, N), np.arange(M) * 7919 % N
    y = np.empty(M, np.float32)

    def build(target):
        kernel = cross_entropy.cross_entropy_rows(N, dtype="float32", target=target)
        return lambda: (kernel(x, labels, y), y)[1]

    def numpy():
        top = x.max(axis=1)
        total = np.log(np.exp(x - top[:, None]).sum(axis=1)) + top
        return total - x[np.arange(M), labels]

    return Case(
        "cross entropy",
        f"{M}×{N} float32",
        build,
        lambda: cross_entropy.reference(x, labels),
        numpy,
        bound=1e-5,
    )


def gated(M: int, N: int) -> Case:
    a, b = normal(M, N, seed=1), normal(M, N, seed=2)
    y = np.empty_like(a)

    def build(target):
        kernel = swiglu.swiglu_rows(N, dtype="float32", target=target)
        return lambda: (kernel(a, b, y), y)[1]

    return Case(
        "SwiGLU",
        f"{M}×{N} float32",
        build,
        lambda: swiglu.reference(a, b),
        lambda: a / (1 + np.exp(-a)) * b,
        bound=1e-5,
    )


def transposed(M: int, N: int) -> Case:
    x, y = normal(M, N), np.empty((N, M), np.float32)

    def build(target):
        kernel = transpose.transpose_rows(N, dtype="float32", target=target)
        return lambda: (kernel(x, y), y)[1]

    return Case(
        "transpose",
        f"{M}×{N} float32",
        build,
        lambda: transpose.reference(x),
        lambda: np.ascontiguousarray(x.T),
        bound=0.0,
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
        tile = {"block_M": 128, "block_N": 128} if on_cpu(target) else {}
        kernel = make(1, heads, kv_heads, seq, seq, dim, causal=causal, dtype="float32", **tile)
        return lambda: (kernel(q, k, v, o), o)[1]

    def numpy():
        s = q @ np.repeat(k, heads // kv_heads, 1).transpose(0, 1, 3, 2) * np.float32(dim**-0.5)
        if causal:
            s = np.where(np.tri(seq, dtype=bool), s, np.float32(-np.inf))
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True) @ np.repeat(v, heads // kv_heads, 1)

    def torch(torch, q, k, v):
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

    return Case(
        "flash attention" + (" causal" if causal else ""),
        f"{heads}×{seq}×{dim} float32",
        build,
        lambda: flash.reference(q, k, v, causal),
        numpy,
        bound=1e-5,
        others={"torch": with_torch(torch, q, k, v)},
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
    def barred(case: Case, **bars: float) -> Case:
        return replace(case, bars={name.replace("_", " "): bar for name, bar in bars.items()})

    small, even = (256, 192, 256), (200, 200, 200)
    return [
        vector_sum(1 << 22),
        barred(gemm_relu(768, 768, 768, cpu=small), numpy=0.85),
        barred(gemm_relu(2048, 2048, 2048), numpy=0.85),
        gemm_relu(1000, 1000, 1000, cpu=even),
        gemm_relu(1021, 1021, 1021),
        barred(gemm_relu(768, 768, 768, "float16", cpu=small), our_float32=0.5),
        barred(gemm_relu(768, 768, 768, "bfloat16", cpu=small), our_float32=0.5),
        row_softmax(4096, 1024),
        barred(row_softmax(4096, 4096), numpy=3),
        online_softmax(1024, 16384),
        barred(rms_norm_silu(4096, 1024), numpy=3, torch=0.8),
        rms_norm_silu(4096, 1056),
        layer_norm_rows(4096, 1024),
        row_losses(4096, 1024),
        gated(4096, 1024),
        transposed(4096, 1024),
        barred(flash_attention(8, 2048, 64), numpy=3, torch=0.7),
        flash_attention(8, 1024, 64, causal=True),
        flash_attention(8, 1024, 128, kv_heads=2),
        mla_decode(2, 64, 1024),
        mla_decode(1, 64, 2048, splits=4),
    ]
