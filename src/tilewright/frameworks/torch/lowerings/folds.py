"""Reductions, scans, the largest elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frameworks.torch.lowerings.table import ALONE, FOLD, lower
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.support.errors import CompileError


def _axes(x: Any, dim: Any) -> Any:
    """Axes as `tilewright.math` takes them: none named are all."""
    if dim is None or dim == []:
        return None
    return tuple(d % max(x.ndim, 1) for d in (dim if isinstance(dim, Sequence) else [dim]))


def _axis(x: Any, dim: Any) -> Any:
    return None if dim is None else dim % max(x.ndim, 1)


def _is_number(x: Any) -> bool:
    return not x.shape


@lower("sum.default sum.dim_IntList", FOLD)
def sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    x = x if dtype is None else tm.astype(x, dtype)
    return tm.astype(x, out.dtype) if _is_number(x) else tm.sum(
        x, axis=_axes(x, dim), keepdims=keepdim, dtype=out.dtype)  # fmt: skip


@lower("mean.default mean.dim", FOLD)
def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    x = tm.astype(x, out.dtype) if dtype is not None else x
    return x if _is_number(x) else tm.mean(x, axis=_axes(x, dim), keepdims=keepdim)


@lower("prod.default prod.dim_int", FOLD)
def prod(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    x = tm.astype(x, out.dtype)
    return x if _is_number(x) else tm.prod(
        x, axis=_axes(x, dim), keepdims=keepdim, dtype=out.dtype)  # fmt: skip


@lower("var.correction", FOLD)
def var(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    found: Any = var_mean(x, dim, correction=correction, keepdim=keepdim)
    return found[0]


@lower("var_mean.correction", FOLD)
def var_mean(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    axes, by = _axes(x, dim), 1 if correction is None else correction
    return (
        tm.var(x, axis=axes, correction=by, keepdims=keepdim),
        tm.mean(x, axis=axes, keepdims=keepdim),
    )


def _place(x: Any, word: str, dim: Any, keepdim: bool) -> Any:
    """The first place of the extreme; of a NaN, if there is one. Numbers may be equal as they are
    stored only: what is computed is rounded before."""
    return getattr(tm, f"arg{word}")(tm.astype(x, x.dtype), axis=_axis(x, dim), keepdims=keepdim)


def _folded(word: str) -> Callable[..., Any]:
    fold = getattr(tm, word)
    return lambda x, dim=None, keepdim=False: fold(x, axis=_axes(x, dim), keepdims=keepdim)


def _with_place(word: str) -> Callable[..., Any]:
    """The extreme along an axis, and its place."""
    fold = getattr(tm, word)
    return lambda x, dim, keepdim=False: (
        fold(x, axis=_axis(x, dim), keepdims=keepdim), _place(x, word, dim, keepdim)
    )  # fmt: skip


def _scanned(word: str) -> Callable[..., Any]:
    def say(x: Any, dim: int, *, dtype: Any = None, out: Any) -> Any:
        return getattr(tm, word)(tm.astype(x, out.dtype), axis=_axis(x, dim), dtype=out.dtype)

    return say


def _scanned_extreme(word: str) -> Callable[..., Any]:
    """The extreme up to each element, and its last place; a NaN is one. No element has place −1."""

    def later(a: Any, b: Any) -> Any:
        better = b[0] >= a[0] if word == "max" else b[0] <= a[0]
        new = (b[1] >= 0) & (tm.isnan(b[0]) | (~tm.isnan(a[0]) & better))
        return tm.where(new, b[0], a[0]), tm.where(new, b[1], a[1])

    def say(x: Any, dim: int) -> Any:
        if not x.dtype.is_float:
            raise CompileError(f"extremes of {x.dtype} up to each element", fix="scan floats")
        along = _axis(x, dim)
        none = -math.inf if word == "max" else math.inf
        return tm.scan(tm.monoid((none, -1), later), (x, tm.indices(x, along)), axis=along)

    return say


def _log_of_sum(a: Any, b: Any) -> Any:
    """log(eᵃ + eᵇ)"""
    high, low = tm.maximum(a, b), tm.minimum(a, b)
    return tm.where(tm.isinf(high), high, high + tm.log1p(tm.exp(low - high)))


@lower("logcumsumexp.default", ALONE)
def scanned_logsumexp(x: Any, dim: int) -> Any:
    return tm.scan(tm.monoid(-math.inf, _log_of_sum), x, axis=_axis(x, dim))


for _word in ("max", "min"):
    lower(f"cum{_word}.default", ALONE)(_scanned_extreme(_word))
    lower(f"a{_word}.default {_word}.default", FOLD)(_folded(_word))
    lower(f"{_word}.dim", FOLD)(_with_place(_word))
for _word in ("any", "all"):
    lower(f"{_word}.default {_word}.dim {_word}.dims", FOLD)(_folded(_word))
lower("argmax.default", FOLD)(lambda x, dim=None, keepdim=False: _place(x, "max", dim, keepdim))
lower("argmin.default", FOLD)(lambda x, dim=None, keepdim=False: _place(x, "min", dim, keepdim))
lower("cumsum.default", FOLD)(_scanned("cumulative_sum"))
lower("cumprod.default", FOLD)(_scanned("cumulative_prod"))
lower("_softmax.default", FOLD)(lambda x, dim, half_to_float: tm.softmax(x, axis=_axis(x, dim)))
lower("_log_softmax.default", FOLD)(
    lambda x, dim, half_to_float: tm.log_softmax(x, axis=_axis(x, dim))
)


@lower("logsumexp.default", FOLD)
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return tm.logsumexp(x, axis=_axes(x, dim), keepdims=keepdim)


@lower("topk.default", ALONE)
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not largest:
        raise CompileError("the least elements", fix="negate them")
    return tm.top_k(x, k, axis=_axis(x, dim))


# ── softmax ──────────────────────────────────────────────────────────────────────────────────


@lower("_safe_softmax.default", FOLD)
def safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Rows of which nothing is left are zero."""
    masked = tm.all(tm.equal(x, -math.inf), axis=_axis(x, dim), keepdims=True)
    return tm.where(masked, 0.0, tm.softmax(x, axis=_axis(x, dim)))


@lower("_softmax_backward_data.default", FOLD)
def softmax_backward(grad: Any, y: Any, dim: int, input_dtype: Any) -> Any:
    part = grad * y
    return part - y * tm.sum(part, axis=_axis(y, dim), keepdims=True)


@lower("_log_softmax_backward_data.default", FOLD)
def log_softmax_backward(grad: Any, y: Any, dim: int, input_dtype: Any) -> Any:
    return grad - tm.exp(y) * tm.sum(grad, axis=_axis(y, dim), keepdims=True)
