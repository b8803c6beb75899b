"""Attention as PyTorch's graphs have it, for the CPU and for CUDA, and its gradients."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frameworks.torch.lowerings.table import ALONE, lower
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.support.errors import CompileError


def _groups(q: Any, k: Any) -> int:
    """How many heads of queries share one of keys."""
    heads: int = q.shape[1] // k.shape[1]
    return heads


def _repeated(x: Any, times: int) -> Any:
    return x if times == 1 else tm.repeat(x, times, axis=1)


def _scores(q: Any, k: Any, is_causal: bool, mask: Any, scale: float | None) -> Any:
    by = q.shape[-1] ** -0.5 if scale is None else scale
    s = tm.matmul(q, tm.matrix_transpose(k)) * by
    if mask is not None:
        s = tm.where(mask, s, -math.inf) if mask.dtype.is_bool else s + mask
    if is_causal:
        i, j = tm.indices(s, -2, -1)
        s = tm.where(j <= i, s, -math.inf)
    return s


def _attention(
    q: Any, k: Any, v: Any, dropout: float, is_causal: bool, mask: Any, scale: float | None
) -> tuple[Any, Any]:
    """The result, and the logarithm of each row's sum of exponentials; both are zero where a mask
    leaves nothing of a row."""
    _check(dropout)
    times = _groups(q, k)
    s = _scores(q, _repeated(k, times), is_causal, mask, scale)
    top = tm.max(s, axis=-1, keepdims=True)
    e = tm.exp(s - top)
    total = tm.sum(e, axis=-1, keepdims=True)
    result, sums = tm.matmul(e / total, _repeated(v, times)), top + tm.log(total)
    if mask is not None:
        result, sums = (tm.where(tm.equal(top, -math.inf), 0.0, x) for x in (result, sums))
    return result, tm.reshape(sums, s.shape[:-1])


def _check(dropout: float) -> None:
    if dropout:
        raise CompileError("dropout inside attention", fix="its numbers are PyTorch's")


def _backward(
    grad: Any, q: Any, k: Any, v: Any, result: Any, sums: Any, dropout: float, is_causal: bool,
    mask: Any, scale: float | None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    _check(dropout)
    times = _groups(q, k)
    if times != 1:
        raise CompileError("gradients of shared heads of keys", fix="repeat them before")
    by = q.shape[-1] ** -0.5 if scale is None else scale
    p = tm.exp(_scores(q, k, is_causal, mask, scale) - tm.expand_dims(sums, axis=-1))
    dv = tm.matmul(tm.matrix_transpose(p), grad)
    delta = tm.sum(grad * result, axis=-1, keepdims=True)
    ds = p * (tm.matmul(grad, tm.matrix_transpose(v)) - delta) * by
    return tm.matmul(ds, k), tm.matmul(tm.matrix_transpose(ds), q), dv


@lower("_scaled_dot_product_flash_attention_for_cpu.default", ALONE)
def attention_cpu(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None, out: Any,
) -> Any:  # fmt: skip
    result, sums = _attention(q, k, v, dropout_p, is_causal, attn_mask, scale)
    return result, sums if out.wants(1) else None


@lower("_scaled_dot_product_flash_attention_for_cpu_backward.default", ALONE)
def attention_cpu_backward(
    grad: Any, q: Any, k: Any, v: Any, result: Any, sums: Any, dropout_p: float, is_causal: bool,
    *, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    return _backward(grad, q, k, v, result, sums, dropout_p, is_causal, attn_mask, scale)


def _with_rest(out: Any, *found: Any) -> tuple[Any, ...]:
    """The seed and offset of a generator that is not used, and other numbers, are zero."""
    rest = [
        tm.full(out[i].shape, 0, dtype=out[i].dtype) if out.wants(i) else None
        for i in range(len(found), len(out))
    ]
    return (*(x if out.wants(i) else None for i, x in enumerate(found)), *rest)


@lower("_scaled_dot_product_flash_attention.default", ALONE)
def attention_flash(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None, out: Any,
) -> Any:  # fmt: skip
    return _with_rest(out, *_attention(q, k, v, dropout_p, is_causal, None, scale))


@lower("_scaled_dot_product_flash_attention_backward.default", ALONE)
def attention_flash_backward(
    grad: Any, q: Any, k: Any, v: Any, result: Any, sums: Any, _cq: Any, _ck: Any, _mq: Any,
    _mk: Any, dropout_p: float, is_causal: bool, _seed: Any, _offset: Any, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    return _backward(grad, q, k, v, result, sums, dropout_p, is_causal, None, scale)


@lower("_scaled_dot_product_efficient_attention.default", ALONE)
def attention_efficient(
    q: Any, k: Any, v: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, out: Any,
) -> Any:  # fmt: skip
    result, sums = _attention(q, k, v, dropout_p, is_causal, attn_bias, scale)
    if out.wants(1):
        sums = tm.array(out[1].shape, lambda *i: sums[i])  # rows beyond the end are not read
    return _with_rest(out, result, sums)


@lower("_scaled_dot_product_efficient_attention_backward.default", ALONE)
def attention_efficient_backward(
    grad: Any, q: Any, k: Any, v: Any, attn_bias: Any, result: Any, sums: Any, _seed: Any,
    _offset: Any, dropout_p: float, grad_input_mask: Any, is_causal: bool = False, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    if grad_input_mask[3]:
        raise CompileError("the gradient of an attention's mask", fix="compute it apart")
    rows = sums[..., : q.shape[-2]]
    return *_backward(grad, q, k, v, result, rows, dropout_p, is_causal, attn_bias, scale), None


@lower("_scaled_dot_product_cudnn_attention.default", ALONE)
def attention_cudnn(
    q: Any, k: Any, v: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
    out: Any,
) -> Any:  # fmt: skip
    result, sums = _attention(q, k, v, dropout_p, is_causal, attn_bias, scale)
    if out.wants(1):
        sums = tm.reshape(sums, out[1].shape)
    return _with_rest(out, result, sums)


@lower("_scaled_dot_product_cudnn_attention_backward.default", ALONE)
def attention_cudnn_backward(
    grad: Any, q: Any, k: Any, v: Any, result: Any, sums: Any, _seed: Any, _offset: Any,
    attn_bias: Any, _cq: Any, _ck: Any, _mq: Any, _mk: Any, dropout_p: float, is_causal: bool, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    rows = tm.reshape(sums, q.shape[:-1])
    return _backward(grad, q, k, v, result, rows, dropout_p, is_causal, attn_bias, scale)
