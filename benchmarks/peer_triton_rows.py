"""Row kernels in Triton, written as its tutorials write them: a program takes a row whole, padded
to a power of two, or walks it in pieces; the fastest of a few warp counts and pieces is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from race import load

WARPS = (4, 8, 16, 32)
WHOLE = 65536  # columns that a program of 32 warps holds
MOST = 128  # values of a thread; more take a minute to compile and spill
PIECES = (4096, 16384)


@triton.jit
def _softmax(x, y, rows, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = row.to(tl.int64) * N
        v = tl.load(x + at + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(y + at + cols, (e / tl.sum(e, axis=0)).to(tl.bfloat16), mask=cols < N)


@triton.jit
def _softmax_pieces(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * N
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        cols = k + tl.arange(0, BLOCK)
        v = tl.load(x + at + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, v)
        total = total * tl.exp(top - new) + tl.exp(v - new)
        top = new
    most = tl.max(top, axis=0)
    whole = tl.sum(total * tl.exp(top - most), axis=0)
    for k in range(0, N, BLOCK):
        cols = k + tl.arange(0, BLOCK)
        v = tl.load(x + at + cols, mask=cols < N, other=0.0).to(tl.float32)
        tl.store(y + at + cols, (tl.exp(v - most) / whole).to(tl.bfloat16), mask=cols < N)


@triton.jit
def _norm(
    x, w, b, y, N, eps, BLOCK: tl.constexpr, CENTRE: tl.constexpr, SILU: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * N
    mean = 0.0
    if WHOLE:
        cols = tl.arange(0, BLOCK)
        v = tl.load(x + at + cols, mask=cols < N, other=0.0).to(tl.float32)
        if CENTRE:
            mean = tl.sum(v, axis=0) / N
            far = tl.where(cols < N, v - mean, 0.0)
            scale = 1 / tl.sqrt(tl.sum(far * far, axis=0) / N + eps)
        else:
            scale = 1 / tl.sqrt(tl.sum(v * v, axis=0) / N + eps)
        n = (v - mean) * scale * tl.load(w + cols, mask=cols < N, other=0.0).to(tl.float32)
        if CENTRE:
            n += tl.load(b + cols, mask=cols < N, other=0.0).to(tl.float32)
        if SILU:
            n = n * tl.sigmoid(n)
        tl.store(y + at + cols, n.to(tl.bfloat16), mask=cols < N)
    else:
        if CENTRE:
            part = tl.zeros((BLOCK,), tl.float32)
            for k in range(0, N, BLOCK):
                cols = k + tl.arange(0, BLOCK)
                part += tl.load(x + at + cols, mask=cols < N, other=0.0).to(tl.float32)
            mean = tl.sum(part, axis=0) / N
        part = tl.zeros((BLOCK,), tl.float32)
        for k in range(0, N, BLOCK):
            cols = k + tl.arange(0, BLOCK)
            v = tl.load(x + at + cols, mask=cols < N, other=0.0).to(tl.float32)
            far = tl.where(cols < N, v - mean, 0.0)
            part += far * far
        scale = 1 / tl.sqrt(tl.sum(part, axis=0) / N + eps)
        for k in range(0, N, BLOCK):
            cols = k + tl.arange(0, BLOCK)
            v = tl.load(x + at + cols, mask=cols < N, other=0.0).to(tl.float32)
            n = (v - mean) * scale * tl.load(w + cols, mask=cols < N, other=0.0).to(tl.float32)
            if CENTRE:
                n += tl.load(b + cols, mask=cols < N, other=0.0).to(tl.float32)
            if SILU:
                n = n * tl.sigmoid(n)
            tl.store(y + at + cols, n.to(tl.bfloat16), mask=cols < N)


@triton.jit
def _cross_entropy(x, labels, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        cols = k + tl.arange(0, BLOCK)
        v = tl.load(x + row * N + cols, mask=cols < N, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, v)
        total = total * tl.exp(top - new) + tl.exp(v - new)
        top = new
    most = tl.max(top, axis=0)
    whole = tl.log(tl.sum(total * tl.exp(top - most), axis=0)) + most
    label = tl.load(labels + row)
    tl.store(y + row, whole - tl.load(x + row * N + label).to(tl.float32))


@triton.jit
def _swiglu(a, b, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(a + at, mask=at < size).to(tl.float32)
    w = tl.load(b + at, mask=at < size).to(tl.float32)
    tl.store(y + at, (v * tl.sigmoid(v) * w).to(tl.bfloat16), mask=at < size)


@triton.jit
def _transpose(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    across = tl.cdiv(N, BN)
    rows = (tl.program_id(0) // across).to(tl.int64) * BM + tl.arange(0, BM)
    cols = (tl.program_id(0) % across).to(tl.int64) * BN + tl.arange(0, BN)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    v = tl.load(x + rows[:, None] * N + cols[None, :], mask=mask)
    there = (cols < N)[:, None] & (rows < M)[None, :]
    tl.store(y + cols[:, None] * M + rows[None, :], tl.trans(v), mask=there)


Call = Callable[[], None]


def _softmaxes(x: Any, y: Any) -> Iterator[tuple[str, Call]]:
    M, N = x.shape
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    block = triton.next_power_of_2(N)
    for warps in WARPS:
        if block <= min(WHOLE, 32 * warps * MOST):
            for blocks, stages in ((M, 1), (sms * 2, 2), (sms * 4, 4)):
                yield (
                    f"whole {warps} {blocks}",
                    lambda warps=warps, blocks=blocks, stages=stages: _softmax[(min(M, blocks),)](
                        x, y, M, N, block, stages, num_warps=warps
                    ),
                )
        for piece in PIECES:
            if piece < N and piece <= 32 * warps * MOST:
                yield (
                    f"pieces {warps} {piece}",
                    lambda warps=warps, piece=piece: _softmax_pieces[(M,)](
                        x, y, N, piece, num_warps=warps
                    ),
                )


def _norms(
    x: Any, w: Any, b: Any, y: Any, eps: float, centre: bool, silu: bool
) -> Iterator[tuple[str, Call]]:
    M, N = x.shape
    block = triton.next_power_of_2(N)
    for warps in WARPS:
        for size in (block, *PIECES):
            whole = size == block
            if (whole and block > WHOLE) or (not whole and size >= N) or size > 32 * warps * MOST:
                continue
            yield (
                f"{size} {warps}",
                lambda warps=warps, size=size: _norm[(M,)](
                    x, w, b, y, N, eps, size, centre, silu, size >= N, num_warps=warps
                ),
            )


def _losses(x: Any, labels: Any, y: Any) -> Iterator[tuple[str, Call]]:
    M, N = x.shape
    for warps in WARPS:
        for size in sorted({min(triton.next_power_of_2(N), s) for s in (1024, *PIECES)}):
            if size > 32 * warps * MOST:
                continue
            yield (
                f"{size} {warps}",
                lambda warps=warps, size=size: _cross_entropy[(M,)](
                    x, labels, y, N, size, num_warps=warps
                ),
            )


def _products(a: Any, b: Any, y: Any) -> Iterator[tuple[str, Call]]:
    size = a.numel()
    for block in (1024, 2048, 4096):
        for warps in WARPS[:2]:
            yield (
                f"{block} {warps}",
                lambda block=block, warps=warps: _swiglu[(triton.cdiv(size, block),)](
                    a, b, y, size, block, num_warps=warps
                ),
            )


def _transposes(x: Any, y: Any) -> Iterator[tuple[str, Call]]:
    M, N = x.shape
    for bm in (32, 64, 128):
        for bn in (32, 64, 128):
            grid = triton.cdiv(M, bm) * triton.cdiv(N, bn)
            for warps in WARPS[:2]:
                yield (
                    f"{bm}x{bn} {warps}",
                    lambda bm=bm, bn=bn, grid=grid, warps=warps: _transpose[(grid,)](
                        x, y, M, N, bm, bn, num_warps=warps
                    ),
                )


# family → calls on its inputs and output, each with the name of its configuration
FAMILIES: dict[str, Callable[..., Iterator[tuple[str, Call]]]] = {
    "softmax": _softmaxes,
    "rms_norm": lambda x, w, y: _norms(x, w, w, y, 1e-6, False, False),
    "rms_norm_silu": lambda x, w, y: _norms(x, w, w, y, 1e-6, False, True),
    "layer_norm": lambda x, w, b, y: _norms(x, w, b, y, 1e-5, True, False),
    "cross_entropy": _losses,
    "swiglu": _products,
    "transpose": _transposes,
}


def best_rows(family: str, *arrays: Any) -> tuple[Call, str]:
    """The fastest configuration on these arrays (inputs, then the output), and its name."""
    found: list[tuple[float, str, Call]] = []
    why = "no configuration"
    for name, run in FAMILIES[family](*arrays):
        try:
            run()
            torch.cuda.synchronize()
            times = [triton.testing.do_bench(run, warmup=2, rep=8) for _ in range(2)]
        except Exception as e:  # too large, or not for this compiler: it does not count
            why = f"{type(e).__name__}: {e}"
            continue
        found.append((statistics.median(times), name, run))
    if not found:
        raise RuntimeError(why)
    _, name, run = min(found, key=lambda entry: entry[0])
    return run, name


@cache
def tutorial(path: str) -> ModuleType:
    """A tutorial's file, without the benchmark that it runs when it is imported."""
    kept = triton.testing.perf_report
    triton.testing.perf_report = lambda *_: lambda fn: SimpleNamespace(run=lambda **_: None)
    try:
        return load(path, f"triton_tutorial_{path.rpartition('/')[2][:2]}")
    finally:
        triton.testing.perf_report = kept


def tutorial_call(family: str, path: str, *inputs: Any) -> Callable[[], Any]:
    """The tutorial's softmax or layer norm on these inputs."""
    module = tutorial(path)
    if family == "softmax":
        return lambda: module.softmax(*inputs)
    x, w, b = inputs
    return lambda: module.layer_norm(x, (x.shape[1],), w, b, 1e-5)
