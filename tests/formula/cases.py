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


@case((2, 6, 40, 16), (2, 2, 50, 16), (2, 2, 50, 16), dtype="float16")
def attention_of_grouped_heads(q, k, v):
    b, h, n, d = q.shape
    g = k.shape[1]
    q = tm.reshape(q, (b, g, h // g, n, d))
    s = q @ tm.matrix_transpose(k)[:, :, None] * d**-0.5
    return tm.reshape(tm.softmax(s, axis=-1) @ v[:, :, None], (b, h, n, d))


_SELF = ((2, 40, 16),) * 3


@case(*_SELF, (40,), dtype="float16", last="int32")
def attention_in_documents(q, k, v, ids):
    s = q @ tm.matrix_transpose(k) * 0.25
    i, j = tm.indices(s, -2, -1)
    ids = ids // 8
    s = tm.where((ids[:, None] == ids[None, :]) | (i == j), s, -tm.inf)
    return tm.softmax(s, axis=-1) @ v


@case(*_SELF, (2,), dtype="float16", last="float32")
def attention_with_distances(q, k, v, slope):
    s = q @ tm.matrix_transpose(k) * 0.25
    i, j = tm.indices(s, -2, -1)
    s = s + slope[:, None, None] * (j - i)
    return tm.softmax(tm.where(j <= i, s, -tm.inf), axis=-1) @ v


@case(*_SELF, (79,), dtype="float16", last="float32")
def attention_with_a_table(q, k, v, table):
    s = q @ tm.matrix_transpose(k) * 0.25
    i, j = tm.indices(s, -2, -1)
    return tm.softmax(s + table[j - i + 39], axis=-1) @ v


@case(*_SELF, *_SELF[:2], dtype="float16")
def differential_attention(q1, q2, k1, k2, v):
    a = tm.softmax(q1 @ tm.matrix_transpose(k1) * 0.25, axis=-1)
    b = tm.softmax(q2 @ tm.matrix_transpose(k2) * 0.25, axis=-1)
    return (a - 0.3 * b) @ v


@case((3, 8, 16), (3, 100, 16), (3, 100, 16), dtype="float16")
def decoding(q, k, v):
    s = tm.einsum("bhd,bnd->bhn", q, k) * 0.25
    return tm.einsum("bhn,bnd->bhd", tm.softmax(s, axis=-1), v)


@case((2, 8, 16), (2, 2100, 16), (2, 2100, 16), dtype="float16")
def decoding_of_many_keys(q, k, v):
    s = tm.einsum("bhd,bnd->bhn", q, k) * 0.25
    i, j = tm.indices(s, -2, -1)
    s = tm.where(j <= 200 * i + 900, s, -tm.inf)
    return tm.einsum("bhn,bnd->bhd", tm.softmax(s, axis=-1), v)


@case((40, 32), (32, 24), (32, 4), (4, 24), dtype="float16")
def low_rank_update(x, w, a, b):
    return x @ w + (x @ a) @ b


@case((40, 32), (32, 24), (24, 16), dtype="float16")
def two_layers(x, first, second):
    return tm.relu(x @ first) @ second


@case((40, 32), (32, 50), (40,), dtype="float16", last="int32")
def linear_cross_entropy(x, w, label):
    s = x @ w
    return tm.logsumexp(s, axis=-1) - s[tm.arange(x.shape[0]), label]


@case((40, 32), (24,), (32, 24), dtype="float16", last="int8")
def product_of_small_integers(x, scale, w):
    return x @ (tm.astype(w, tm.float16) * scale)


@case((40, 32), (32, 24), (24,), (24,), dtype="float16")
def product_norm_and_gelu(x, w, g, b):
    h = x @ w
    mean, var = tm.mean(h, axis=-1, keepdims=True), tm.var(h, axis=-1, keepdims=True)
    return tm.gelu((h - mean) * tm.rsqrt(var + 1e-5) * g + b)


@case((3, 4, 5, 6), (4,), (4,))
def batch_norm(x, g, b):
    mean, var = (f(x, axis=(0, 2, 3), keepdims=True) for f in (tm.mean, tm.var))
    return (x - mean) / tm.sqrt(var + 1e-5) * g[:, None, None] + b[:, None, None]


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


def _larger(a, b):
    first = (a[0] >= b[0]) | tm.isnan(a[0])
    return tuple(tm.where(first, x, y) for x, y in zip(a, b, strict=True))


def _two_largest(a, b):
    return tm.maximum(a[0], b[0]), tm.maximum(tm.minimum(a[0], b[0]), tm.maximum(a[1], b[1]))


def _averaged(a, b):
    count = a[1] + b[1]
    return a[0] + (b[0] - a[0]) * b[1] / tm.maximum(count, 1), count


def _shifted(a, b):
    top = tm.maximum(a[0], b[0])
    return top, a[1] * tm.exp(a[0] - top) + b[1] * tm.exp(b[0] - top)


def _then(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


LARGER = tm.monoid((-tm.inf, 0), _larger)
TWO_LARGEST = tm.monoid((-tm.inf, -tm.inf), _two_largest)
AVERAGED = tm.monoid((0.0, 0), _averaged)
SHIFTED = tm.monoid((-1e30, 0.0), _shifted)
THEN = tm.monoid((1.0, 0.0), _then)


@case((33, 16), (50, 16))
def nearest(x, y):
    s = x @ y.T
    return tm.argmax(s, axis=-1), tm.max(s, axis=-1), tm.argmin(s, axis=-1)


@case((13, 16), (50, 16))
def nearest_before(x, y):
    s = x @ y.T
    i, j = tm.indices(s, -2, -1)
    return tm.argmax(tm.where(j <= i + 20, s, -tm.inf), axis=-1)


@case((33, 16), (50, 16))
def likeliest(x, y):
    p = tm.softmax(x @ y.T, axis=-1)
    return tm.argmax(p, axis=-1), tm.max(p, axis=-1)


@case((7, 33))
def largest_and_its_place(x):
    return tm.reduce(LARGER, (x, tm.indices(x, -1)), axis=-1)


@case((33, 16), (50, 16))
def two_largest_scores(x, y):
    return tm.stack(tm.reduce(TWO_LARGEST, (x @ y.T, -tm.inf), axis=-1), axis=-1)


@case((33, 16), (50, 16))
def pairs_of_scores(x, y):
    s = x @ y.T
    top, total = tm.reduce(SHIFTED, (s, 1.0), axis=-1)
    return top + tm.log(total), tm.max(s, axis=-1)


@case((5, 4, 9))
def running_means(x):
    return tm.reduce(AVERAGED, (x, 1), axis=(0, 2), keepdims=True)[0]


@case((7, 33), (7, 33))
def recurrence(a, b):
    return tm.scan(THEN, (tm.tanh(a), b), axis=-1)[1]


@case((9, 5), (9, 5))
def steps_one_after_the_other(a, b):
    return tm.array((5,), lambda i: tm.reduce(THEN, (9, 2), lambda j, r: (a[j, i], b[j, i] + r))[1])


@case((21, 16), (16, 8))
def routing(x, w):
    p = tm.softmax(x @ w, axis=-1)
    weight, expert = tm.top_k(p, 2)
    return weight / tm.sum(weight, axis=-1, keepdims=True), expert


@case((11, 6), dtype="float16")
def top_of_columns(x):
    return tm.top_k(x, 3, axis=0)
