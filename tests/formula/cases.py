"""Formulas as people write them, and arrays to try them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright.math as tm

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
Array = Any


def _drawn(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.startswith("int"):
        return rng.integers(0, shape[-1], shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def case(*shapes: tuple[int, ...], dtype: str = "float32", last: str | None = None) -> Any:
    """`shapes` of the arguments, all of `dtype` but the last, if `last` is another type."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        kinds = [dtype] * len(shapes)
        if last is not None:
            kinds[-1] = last
        arrays = [_drawn(s, k, n) for n, (s, k) in enumerate(zip(shapes, kinds, strict=True))]
        CASES[function.__name__] = function, tuple(arrays)
        return function

    return keep


@case((4, 5, 6), (6,))
def scale_and_shift(x, b):
    return x * 2 + b


@case((5, 7), (7, 5))
def plus_transposed(x, y):
    return x + y.T


@case((3, 7, 50))
def softmax(x):
    return tm.softmax(x, axis=-1)


@case((6, 9, 10))
def softmax_of_the_middle(x):
    return tm.softmax(x, axis=1)


@case((3, 7, 50), (50,), (50,))
def layer_norm(x, g, b):
    mean = tm.mean(x, axis=-1, keepdims=True)
    var = tm.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / (var + 1e-5) ** 0.5 * g + b


@case((9, 33))
def moments(x):
    mean = tm.mean(x, axis=-1)
    return mean, tm.var(x, axis=-1)


@case((13, 40), (13,), last="int32")
def cross_entropy(x, label):
    rows = tm.arange(x.shape[0])
    return tm.logsumexp(x, axis=-1) - x[rows, label]


@case((33, 40), (40, 24), (24,))
def linear(x, w, b):
    return tm.gelu(x @ w + b)


@case((2, 3, 20, 16), (2, 3, 16, 24), dtype="float16")
def batched_product(x, w):
    return x @ w


@case((33, 40), (24, 40), (24, 40))
def gated(x, up, gate):
    return tm.silu(x @ gate.T) * (x @ up.T)


@case((33, 40), (40,), (40, 24))
def norm_and_product(x, g, w):
    r = tm.mean(x * x, axis=-1, keepdims=True)
    return (x / (r + 1e-6) ** 0.5 * g) @ w


_HEADS = ((2, 3, 40, 16), (2, 3, 50, 16), (2, 3, 50, 8))


@case(*_HEADS, dtype="float16")
def attention(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    return tm.softmax(s, axis=-1) @ v


@case(*_HEADS, dtype="float16")
def causal_attention(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    i, j = tm.indices(s, -2, -1)
    s = tm.where(j <= i + 10, s, -tm.inf)
    return tm.softmax(s, axis=-1) @ v


@case((2, 40, 16), (2, 40, 16), (2, 40, 8), dtype="float16")
def window_attention(q, k, v):
    s = q @ tm.matrix_transpose(k) * 0.25
    i, j = tm.indices(s, -2, -1)
    s = tm.where((j <= i) & (j > i - 8), s, -tm.inf)
    return tm.softmax(s, axis=-1) @ v


@case(*_HEADS, dtype="float16")
def soft_capped_attention(q, k, v):
    s = 20 * tm.tanh(q @ tm.matrix_transpose(k) * 0.25 / 20)
    return tm.softmax(s, axis=-1) @ v


@case(*_HEADS, dtype="float16")
def sigmoid_attention(q, k, v):
    return tm.sigmoid(q @ tm.matrix_transpose(k) * 0.25) @ v


@case((2, 6, 9, 10))
def mean_of_images(x):
    return tm.mean(x, axis=(2, 3))


@case((7, 33))
def running_sum(x):
    return tm.cumulative_sum(x, axis=-1)


@case((7, 33))
def largest(x):
    return tm.argmax(x, axis=-1)


@case((12, 10))
def total(x):
    return tm.sum(x)


@case((2, 3, 6, 7), (4, 3, 3, 3))
def convolution(x, f):
    n, c, h, w = x.shape
    return tm.array(
        (n, f.shape[0], h, w),
        lambda b, o, i, j: tm.sum(
            (c, 3, 3), lambda k, r, s: x[b, k, i + r - 1, j + s - 1] * f[o, k, r, s]
        ),
    )
