"""Softmax, and norms over the last axes."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, op


@op(
    "input: float[..., n] -> input[..., n]",
    formula="exp(x − max x) / Σ exp(x − max x)",
    wrt=["input"],
    error=4,
)
def softmax(input: Array, dim: int = -1) -> Array:
    """The softmax along an axis, as `torch.nn.functional.softmax`.

    >>> softmax(np.zeros((2, 4), np.float32)).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]
    """
    return tm.softmax(input, axis=dim)


def _normed(input: Array, axes: tuple[int, ...], weight: Array | None, eps: float | None) -> Array:
    axis = tuple(range(-len(axes), 0))
    if eps is None:
        eps = 2.0**-52 if input.dtype == tm.float64 else 2.0**-23
    y = input * tm.rsqrt(tm.mean(input * input, axis=axis, keepdims=True) + eps)
    return y if weight is None else y * weight


@op(
    "input: float[..., *normalized_shape], weight: float[*normalized_shape]"
    " -> input[..., *normalized_shape]",
    formula="x / √(mean x² + eps) · weight",
    wrt=["input", "weight"],
    error=4,
)
def rms_norm(
    input: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None = None,
    eps: float | None = None,
) -> Array:
    """The last axes divided by the root of their mean square, as `torch.nn.functional.rms_norm`.

    Without `eps`, it is that of float32, or float64.

    >>> rms_norm(np.full((1, 4), 3, np.float32), (4,)).tolist()
    [[1.0, 1.0, 1.0, 1.0]]
    """
    return tm.astype(_normed(input, normalized_shape, weight, eps), input.dtype)


@op(
    "input: float[..., *normalized_shape], weight: float[*normalized_shape]"
    " -> input[..., *normalized_shape]",
    formula="silu(x / √(mean x² + eps) · weight)",
    wrt=["input", "weight"],
    error=8,
)
def rms_norm_silu(
    input: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None = None,
    eps: float | None = None,
) -> Array:
    """`rms_norm`, then y · sigmoid(y).

    >>> rms_norm_silu(np.full((1, 2), 3, np.float32), (2,), eps=0.0).round().tolist()
    [[1.0, 1.0]]
    """
    return tm.astype(tm.silu(_normed(input, normalized_shape, weight, eps)), input.dtype)


@op(
    "input: float[..., *normalized_shape], weight: float[*normalized_shape],"
    " bias: float[*normalized_shape] -> input[..., *normalized_shape]",
    formula="(x − mean x) / √(var x + eps) · weight + bias",
    wrt=["input", "weight", "bias"],
    error=8,
)
def layer_norm(
    input: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """The last axes with mean 0 and variance 1, as `torch.nn.functional.layer_norm`.

    >>> layer_norm(np.array([[1, 3]], np.float32), (2,), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    axis = tuple(range(-len(normalized_shape), 0))
    centered = input - tm.mean(input, axis=axis, keepdims=True)
    y = centered * tm.rsqrt(tm.mean(centered * centered, axis=axis, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return tm.astype(y if bias is None else y + bias, input.dtype)
