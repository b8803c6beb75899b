"""How operators are taken apart before formulas are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F

from tilewright.frameworks.torch import random

# PyTorch takes these apart, but formulas say them whole, or PyTorch has a kernel for them
_WHOLE = """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
    embedding_dense_backward _softmax_backward_data _log_softmax_backward_data _safe_softmax
    _fused_rms_norm roll logsumexp
""".split()
# and these it keeps, though their parts are what formulas say
_APART = """
    _native_batch_norm_legit_functional _native_batch_norm_legit native_batch_norm
    cudnn_batch_norm native_group_norm_backward native_batch_norm_backward
    cudnn_batch_norm_backward _adaptive_avg_pool2d_backward elu leaky_relu hardtanh index_select
    linalg_vector_norm dist ldexp.Tensor
""".split()


@cache
def decompositions() -> dict[Any, Any]:
    """By operator, the function that takes it apart."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    apart = [attrgetter(name)(aten) for name in _APART if hasattr(aten, name.partition(".")[0])]
    table |= get_decompositions(apart)
    table = {op: rule for op, rule in table.items() if _opname(op) not in _WHOLE}
    return table | random.DECOMPOSITIONS | _OWN


def _opname(op: Any) -> str:
    return str(op).partition(".")[2].partition(".")[0]


# ── the layers that PyTorch runs as one operator when no gradient is wanted ──────────────────


def _attention(
    query: Any, key: Any, value: Any, _width: int, heads: int, weight: Any, bias: Any,
    out_weight: Any, out_bias: Any, mask: Any = None, need_weights: bool = True,
    average: bool = True, mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`mask` is true, or not zero, where nothing is seen; of type 1 it has rows of keys."""
    if query is key is value:
        parts = F.linear(query, weight, bias).chunk(3, -1)
    else:
        sides = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
        parts = tuple(F.linear(x, w, b) for x, w, b in sides)
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in parts)
    weights = None
    if mask is None and not need_weights:
        found = F.scaled_dot_product_attention(q, k, v)
    else:
        scores = q * math.sqrt(1 / q.shape[-1]) @ k.mT
        if mask is not None:
            mask = mask[:, None, None] if mask_type == 1 else mask
            scores = scores.masked_fill(mask.bool(), -math.inf)
        weights = scores.softmax(-1)
        found = weights @ v
    found = F.linear(found.transpose(1, 2).flatten(2), out_weight, out_bias)
    if weights is not None and need_weights and average:
        weights = weights.mean(1)
    return found, weights if need_weights else None


def _encoder_layer(
    x: Any, width: int, heads: int, weight: Any, bias: Any, out_weight: Any, out_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, scale_1: Any, shift_1: Any, scale_2: Any,
    shift_2: Any, up: Any, up_bias: Any, down: Any, down_bias: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    norms: list[Callable[[Any], Any]] = [
        partial(F.layer_norm, normalized_shape=(width,), weight=scale, bias=shift, eps=eps)
        for scale, shift in ((scale_1, shift_1), (scale_2, shift_2))
    ]

    def attend(y: Any) -> Any:
        return _attention(y, y, y, width, heads, weight, bias, out_weight, out_bias, mask, False,
                          mask_type=mask_type)[0]  # fmt: skip

    def feed(y: Any) -> Any:
        y = F.linear(y, up, up_bias)
        return F.linear(F.gelu(y) if use_gelu else F.relu(y), down, down_bias)

    for part, norm in zip((attend, feed), norms, strict=True):
        x = x + part(norm(x)) if norm_first else norm(x + part(x))
    return x


def _full_like(x: Any, value: Any, *, dtype: Any = None, device: Any = None, **more: Any) -> Any:
    """It needs the shape alone: what gives `x` may be left out."""
    if more.get("layout") not in (None, torch.strided) or not x.is_contiguous():
        return NotImplemented
    return torch.full(x.shape, value, dtype=dtype or x.dtype, device=device or x.device)


def _cdist(x: Any, y: Any, p: float, _mode: int | None) -> Any:
    off = x.unsqueeze(-2) - y.unsqueeze(-3)
    return torch.linalg.vector_norm(off, p, -1) if off.numel() else off.sum(-1)


def _cdist_backward(grad: Any, x: Any, y: Any, p: float, found: Any) -> Any:
    """Rows that are equal have none, nor has an element that does not differ."""
    if p == 0:
        return torch.zeros_like(x)
    off, found = x.unsqueeze(-2) - y.unsqueeze(-3), found.unsqueeze(-1)
    if p == math.inf:
        slope = off.sign() * (off.abs() == found)
    else:
        slope = off.sign() * (off.abs() / found) ** (p - 1)
    return torch.where(off == 0, 0, grad.unsqueeze(-1) * slope).sum(-2)


_OWN: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._cdist_forward.default: _cdist,
    torch.ops.aten._cdist_backward.default: _cdist_backward,
    torch.ops.aten.full_like.default: _full_like,
    torch.ops.aten._native_multi_head_attention.default: _attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
