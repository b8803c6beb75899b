"""Attention as PyTorch's graphs have it, for the CPU and for CUDA, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def _over_shared(x: Any, times: int) -> Any:
    """Sums over the heads of queries that share one of keys."""
    batch, heads, *rest = x.shape
    return x if times == 1 else tm.sum(tm.reshape(x, (batch, heads // times, times, *rest)), axis=2)


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
    k, v = _repeated(k, times), _repeated(v, times)
    by = q.shape[-1] ** -0.5 if scale is None else scale
    p = tm.exp(_scores(q, k, is_causal, mask, scale) - tm.expand_dims(sums, axis=-1))
    dv = tm.matmul(tm.matrix_transpose(p), grad)
    delta = tm.sum(grad * result, axis=-1, keepdims=True)
    ds = p * (tm.matmul(grad, tm.matrix_transpose(v)) - delta) * by
    dk = tm.matmul(tm.matrix_transpose(ds), q)
    return tm.matmul(ds, k), _over_shared(dk, times), _over_shared(dv, times)


def _with_rest(out: Any, *found: Any) -> tuple[Any, ...]:
    """The seed and offset of a generator that is not used, and other numbers, are zero."""
    rest = [
        tm.full(out[i].shape, 0, dtype=out[i].dtype) if out.wants(i) else None
        for i in range(len(found), len(out))
    ]
    return (*(x if out.wants(i) else None for i, x in enumerate(found)), *rest)


def _padded(sums: Any, shape: Any) -> Any:
    """Rows beyond the end are not read."""
    return tm.array(shape, lambda *i: sums[i])


# by operator: its positional arguments, those of its gradient, and how sums of rows lie there
_ATTENTIONS: dict[str, tuple[str, str, Callable[..., Any] | None, Callable[..., Any] | None]] = {
    "flash_attention_for_cpu": (
        "q k v dropout is_causal", "grad q k v result sums dropout is_causal", None, None,
    ),
    "flash_attention": (
        "q k v dropout is_causal",
        "grad q k v result sums cq ck mq mk dropout is_causal", None, None,
    ),
    "efficient_attention": (
        "q k v mask wanted dropout is_causal",
        "grad q k v mask result sums seed offset dropout wanted is_causal",
        _padded, lambda sums, q: sums[..., : q.shape[-2]],
    ),
    "cudnn_attention": (
        "q k v mask wanted dropout is_causal",
        "grad q k v result sums seed offset mask cq ck mq mk dropout is_causal",
        tm.reshape, lambda sums, q: tm.reshape(sums, q.shape[:-1]),
    ),
}  # fmt: skip


def _define(op: str) -> None:
    names, names_back, laid_out, rows = _ATTENTIONS[op]
    plain = {"dropout": 0.0, "is_causal": False, "mask": None}

    @lower(f"_scaled_dot_product_{op}.default", ALONE)
    def forward(*args: Any, scale: Any = None, attn_mask: Any = None, out: Any) -> Any:
        given = {**plain, "mask": attn_mask, **dict(zip(names.split(), args, strict=False))}
        given.pop("wanted", None)
        result, sums = _attention(**given, scale=scale)
        if laid_out is not None and out.wants(1):
            sums = laid_out(sums, out[1].shape)
        return _with_rest(out, result, sums)

    @lower(f"_scaled_dot_product_{op}_backward.default", ALONE)
    def backward(*args: Any, scale: Any = None, attn_mask: Any = None) -> Any:
        given = {**plain, "mask": attn_mask, **dict(zip(names_back.split(), args, strict=False))}
        wanted = given.get("wanted")
        if wanted is not None and wanted[3]:
            raise CompileError("the gradient of an attention's mask", fix="compute it apart")
        if rows is not None:
            given["sums"] = rows(given["sums"], given["q"])
        own = "grad q k v result sums dropout is_causal mask"
        found = _backward(**{name: given[name] for name in own.split()}, scale=scale)
        return found if wanted is None else (*found, None)


for _op in _ATTENTIONS:
    _define(_op)
