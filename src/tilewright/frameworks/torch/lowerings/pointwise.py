"""Element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.frameworks.torch.lowerings.table import CONSTANT, POINTWISE, lower
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.support.errors import CompileError

_SAME = (
    "acos acosh asin asinh atan atanh ceil cos cosh erf exp expm1 floor isfinite isinf isnan log "
    "log10 log1p log2 logical_not reciprocal relu round rsqrt sigmoid signbit silu sin sinh sqrt "
    "tan tanh trunc"
)
_OTHER = {"neg": "negative", "bitwise_not": "bitwise_invert", "abs": "abs"}
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                "gt": "greater", "ge": "greater_equal"}  # fmt: skip
_TWO = "atan2 copysign hypot logical_and logical_or logical_xor maximum minimum remainder"


def _by_name(name: str) -> Callable[..., Any]:
    def say(*arrays: Any) -> Any:
        return getattr(tm, name)(*arrays)

    return say


for _name in _SAME.split():
    lower(f"{_name}.default", POINTWISE)(_by_name(_name))
for _name, _word in _OTHER.items():
    lower(f"{_name}.default", POINTWISE)(_by_name(_word))
for _name, _word in _COMPARISONS.items():
    lower(f"{_name}.Tensor {_name}.Scalar", POINTWISE)(_by_name(_word))
for _name in _TWO.split():
    _forms = f"{_name}.default {_name}.Tensor {_name}.Scalar"
    lower(_forms, POINTWISE)(_by_name(_name))
for _name in ("and", "or", "xor"):
    _forms = f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar"
    lower(_forms, POINTWISE)(_by_name(f"bitwise_{_name}"))


@lower("__lshift__.Scalar bitwise_left_shift.Tensor_Scalar", POINTWISE)
def left_shift(x: Any, by: int) -> Any:
    return x << _places(x, by)


@lower("__rshift__.Scalar bitwise_right_shift.Tensor_Scalar", POINTWISE)
def right_shift(x: Any, by: int) -> Any:
    return x >> _places(x, by)


def _places(x: Any, by: int) -> int:
    if not x.dtype.is_int or not 0 <= by < x.dtype.bits:
        raise CompileError(f"{x.dtype} shifted by {by}", fix="multiply by a power of two")
    return by


@lower("add.Tensor add.Scalar", POINTWISE)
def add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return tm.add(a, b if alpha == 1 else tm.multiply(b, alpha))


@lower("sub.Tensor sub.Scalar", POINTWISE)
def subtract(a: Any, b: Any, alpha: Any = 1) -> Any:
    return tm.subtract(a, b if alpha == 1 else tm.multiply(b, alpha))


@lower("mul.Tensor mul.Scalar", POINTWISE)
def multiply(a: Any, b: Any) -> Any:
    return tm.multiply(a, b)


@lower("div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", POINTWISE)
def divide(a: Any, b: Any, *, rounding_mode: str | None = None, out: Any) -> Any:
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode is None:
        return tm.divide(a, b)
    if _is_float(a) or _is_float(b):
        return tm.trunc(tm.astype(tm.divide(a, b), out.dtype))  # rounded before, as eager does
    down = tm.floor_divide(a, b)
    return tm.where((down < 0) & (down * b != a), down + 1, down)


def _is_float(x: Any) -> bool:
    return x.dtype.is_float if hasattr(x, "dtype") else isinstance(x, float)


@lower("floor_divide.default floor_divide.Scalar", POINTWISE)
def floor_divide(a: Any, b: Any) -> Any:
    """From the remainder, as PyTorch has it: a rounded quotient may be the next integer."""
    if not (_is_float(a) or _is_float(b)):
        return tm.floor_divide(a, b)
    rest = tm.remainder(a, b)
    return tm.where(tm.equal(b, 0) if hasattr(b, "dtype") else rest != rest, tm.divide(a, b),
                    tm.round(tm.divide(tm.subtract(a, rest), b)))  # fmt: skip


@lower("fmod.Tensor fmod.Scalar", POINTWISE)
def fmod(a: Any, b: Any) -> Any:
    """The remainder with the sign of `a`; the least integer has no absolute value."""
    if not (_is_float(a) or _is_float(b)):
        rest = tm.remainder(a, b)
        return tm.where(tm.not_equal(rest, 0) & ((a < 0) ^ (rest < 0)), rest - b, rest)
    rest = tm.remainder(tm.abs(a), tm.abs(b) if hasattr(b, "dtype") else abs(b))
    return tm.where(a < 0, -rest, rest)


@lower("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", POINTWISE)
def power(a: Any, b: Any) -> Any:
    if isinstance(b, float) and b == 0.5:
        return tm.sqrt(a)
    return tm.pow(a, b)


@lower("square.default", POINTWISE)
def square(x: Any) -> Any:
    return tm.multiply(x, x)


@lower("exp2.default", POINTWISE)
def exp2(x: Any) -> Any:
    return tm.pow(2.0, x)


@lower("sign.default sgn.default", POINTWISE)
def sign(x: Any) -> Any:
    """Of NaN it is 0."""
    if x.dtype.is_bool:
        return x
    return tm.where(x > 0, 1, tm.where(tm.less(x, 0), -1, 0))


@lower("clamp.default clamp.Tensor", POINTWISE)
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return tm.clip(x, min, max)


@lower("clamp_min.default clamp_min.Tensor", POINTWISE)
def clamp_min(x: Any, min: Any) -> Any:
    return tm.clip(x, min, None)


@lower("clamp_max.default clamp_max.Tensor", POINTWISE)
def clamp_max(x: Any, max: Any) -> Any:
    return tm.clip(x, None, max)


@lower("fmax.default", POINTWISE)
def fmax(a: Any, b: Any) -> Any:
    return tm.where(tm.isnan(a), b, tm.where(tm.isnan(b), a, tm.maximum(a, b)))


@lower("fmin.default", POINTWISE)
def fmin(a: Any, b: Any) -> Any:
    return tm.where(tm.isnan(a), b, tm.where(tm.isnan(b), a, tm.minimum(a, b)))


@lower("where.self where.ScalarSelf where.ScalarOther where.Scalar", POINTWISE)
def where(condition: Any, a: Any, b: Any) -> Any:
    return tm.where(condition, a, b)


@lower("masked_fill.Scalar masked_fill.Tensor", POINTWISE)
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return tm.where(mask, value, x)


@lower("gelu.default", POINTWISE)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    return tm.gelu(x, approximate)


@lower("threshold_backward.default", POINTWISE)
def threshold_backward(grad: Any, x: Any, threshold: Any) -> Any:
    return tm.where(x <= threshold, 0, grad)


@lower("leaky_relu.default", POINTWISE)
def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    return tm.where(x > 0, x, x * negative_slope)


@lower("elu.default", POINTWISE)
def elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return tm.where(x > 0, x * scale, tm.expm1(x * input_scale) * (alpha * scale))


@lower("hardtanh.default", POINTWISE)
def hardtanh(x: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return tm.clip(x, min_val, max_val)


@lower("softplus.default", POINTWISE)
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return tm.where(x * beta > threshold, x, tm.log1p(tm.exp(x * beta)) / beta)


@lower("addcmul.default", POINTWISE)
def addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    product = tm.multiply(a, b)
    return tm.add(x, product if value == 1 else tm.multiply(product, value))


@lower("addcdiv.default", POINTWISE)
def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    return tm.add(x, tm.multiply(tm.divide(a, b), value))


@lower("nan_to_num.default", POINTWISE)
def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None, *, out: Any) -> Any:
    if not x.dtype.is_float:
        return x
    high = out.finite[1] if posinf is None else posinf
    low = out.finite[0] if neginf is None else neginf
    finite = tm.where(tm.equal(x, math.inf), high, tm.where(tm.equal(x, -math.inf), low, x))
    return tm.where(tm.isnan(x), 0.0 if nan is None else nan, finite)


@lower(
    "clone.default _to_copy.default copy.default lift_fresh_copy.default "
    "prims.convert_element_type.default",
    POINTWISE,
)
def copied(x: Any, source: Any = None, *, out: Any, **_: Any) -> Any:
    given = source if hasattr(source, "ndim") else x
    return tm.astype(tm.broadcast_to(given, out.shape), out.dtype)


@lower("tril.default", POINTWISE)
def tril(x: Any, diagonal: int = 0) -> Any:
    return tm.tril(x, k=diagonal)


@lower("triu.default", POINTWISE)
def triu(x: Any, diagonal: int = 0) -> Any:
    return tm.triu(x, k=diagonal)


# ── of no array ──────────────────────────────────────────────────────────────────────────────


@lower("full.default full_like.default fill.Scalar new_full.default", CONSTANT)
def full(_x: Any, *given: Any, out: Any, **_: Any) -> Any:
    return tm.full(out.shape, given[-1], dtype=out.dtype)


@lower("scalar_tensor.default", CONSTANT)
def scalar(value: Any, *, out: Any, **_: Any) -> Any:
    return tm.full((), value, dtype=out.dtype)


@lower(
    "zeros.default zeros_like.default new_zeros.default empty.memory_format empty_like.default "
    "empty_permuted.default new_empty.default new_empty_strided.default",
    CONSTANT,
)
def zeros(*_x: Any, out: Any, **_: Any) -> Any:
    return tm.full(out.shape, 0, dtype=out.dtype)


@lower("ones.default ones_like.default new_ones.default", CONSTANT)
def ones(*_x: Any, out: Any, **_: Any) -> Any:
    return tm.full(out.shape, 1, dtype=out.dtype)


@lower("arange.default arange.start arange.start_step", CONSTANT)
def arange(*bounds: Any, out: Any, **_: Any) -> Any:
    start, end, step = (0, *bounds, 1)[-3:] if len(bounds) == 1 else (*bounds, 1)[:3]
    return tm.arange(start, end, step, dtype=out.dtype)


@lower("prims.iota.default", CONSTANT)
def iota(length: Any, *, start: Any, step: Any, out: Any, **_: Any) -> Any:
    return tm.arange(start, start + length * step, step, dtype=out.dtype)


@lower("eye.default eye.m", CONSTANT)
def eye(n: int, m: int | None = None, *, out: Any, **_: Any) -> Any:
    return tm.eye(n, m, dtype=out.dtype)
