"""Normalizations, with what their gradients need."""

from __future__ import annotations

from typing import Any

from tilewright.frameworks.torch.lowerings.table import FOLD, lower
from tilewright.frameworks.torch.lowerings.words import tm


def _moments(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    return tm.mean(x, axis=axes, keepdims=True), tm.var(x, axis=axes, keepdims=True)


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@lower("native_layer_norm.default", FOLD)
def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    mean, var = _moments(x, tuple(range(x.ndim - len(shape), x.ndim)))
    scale = tm.rsqrt(var + eps)
    return _scaled((x - mean) * scale, weight, bias), mean, scale


@lower("_fused_rms_norm.default", FOLD)
def rms_norm(x: Any, shape: Any, weight: Any, eps: float | None, *, out: Any) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    eps = out.epsilon if eps is None else eps
    scale = tm.rsqrt(tm.mean(x * x, axis=axes, keepdims=True) + eps)
    return _scaled(x * scale, weight, None), scale


@lower("native_group_norm.default", FOLD)
def group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, inner: int, groups: int, eps: float
) -> Any:
    rows = tm.reshape(x, (n, groups, c // groups, inner))
    mean, var = _moments(rows, (2, 3))
    scale = tm.rsqrt(var + eps)
    shape = (1, c, *[1] * (x.ndim - 2))
    weight, bias = (None if w is None else tm.reshape(w, shape) for w in (weight, bias))
    whole = tm.reshape((rows - mean) * scale, x.shape)
    return _scaled(whole, weight, bias), *(tm.reshape(m, (n, groups)) for m in (mean, scale))


def _by_channel(x: Any, w: Any) -> Any:
    return None if w is None else tm.reshape(w, (x.shape[1], *[1] * (x.ndim - 2)))


@lower("_native_batch_norm_legit_no_training.default", FOLD)
def batch_norm_known(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    scale = tm.rsqrt(var + eps)
    y = (x - _by_channel(x, mean)) * _by_channel(x, scale)
    none = tm.zeros((0,))
    return _scaled(y, _by_channel(x, weight), _by_channel(x, bias)), none, none
