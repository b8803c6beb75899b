"""Ops that models are made of, for arrays of NumPy, PyTorch and JAX: docs/ops.md lists them.

    import tilewright.ops as ops

    y = ops.rms_norm(x, (4096,), weight)

Tensors of PyTorch go through operators that autograd and `torch.compile` know.
"""

from __future__ import annotations

from tilewright.ops.attention import (
    attention,
    attention_spans,
    attention_varlen,
    varlen_spans,
)
from tilewright.ops.convolution import conv2d
from tilewright.ops.decoding import attention_decode, mla_decode
from tilewright.ops.elementwise import rope, swiglu
from tilewright.ops.losses import cross_entropy, cross_entropy_rows, linear_cross_entropy
from tilewright.ops.matmul import linear, matmul
from tilewright.ops.moe import grouped_matmul, moe, moe_combine, moe_pack, moe_route
from tilewright.ops.norms import layer_norm, rms_norm, rms_norm_silu, softmax
from tilewright.ops.op import Array, Op, op
from tilewright.ops.quantize import (
    matmul_fp8,
    matmul_fp8_groupwise,
    matmul_int4,
    matmul_int8,
    quantize,
)
from tilewright.ops.record import OPS

__all__ = [
    "OPS", "Array", "Op", "attention", "attention_decode", "attention_spans", "attention_varlen",
    "conv2d", "cross_entropy",
    "cross_entropy_rows", "grouped_matmul", "layer_norm", "linear",
    "linear_cross_entropy", "matmul", "matmul_fp8",
    "matmul_fp8_groupwise", "matmul_int4", "matmul_int8", "mla_decode", "moe", "moe_combine",
    "moe_pack", "moe_route", "op", "quantize", "rms_norm", "rms_norm_silu", "rope", "softmax",
    "swiglu", "varlen_spans",
]  # fmt: skip
