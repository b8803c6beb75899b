"""Element by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.frameworks.torch.lowerings.table import CONSTANT, POINTWISE, lower, lower_all
from tilewright.frameworks.torch.lowerings.words import tm

_SAME = (
    "acos acosh asin asinh atan atanh ceil cos cosh erf exp expm1 floor isinf isnan log "
    "log10 log1p log2 logical_not reciprocal relu round rsqrt sigmoid signbit sin sinh sqrt "
    "tan tanh trunc"
)
_OTHER = {"neg": "negative", "bitwise_not": "bitwise_invert", "abs": "abs"}
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                "gt": "greater", "ge": "greater_equal"}  # fmt: skip
_TWO = (
    "atan2 copysign hypot logical_and logical_or logical_xor maximum minimum remainder "
    "bitwise_and bitwise_or bitwise_xor"
)


for _name in _SAME.split():
    lower(f"{_name}.default", POINTWISE)(getattr(tm, _name))
for _name, _word in _OTHER.items():
    lower(f"{_name}.default", POINTWISE)(getattr(tm, _word))
for _name, _word in _COMPARISONS.items():
    lower(f"{_name}.Tensor {_name}.Scalar", POINTWISE)(getattr(tm, _word))
for _name in _TWO.split():
    lower(f"{_name}.default {_name}.Tensor {_name}.Scalar", POINTWISE)(getattr(tm, _name))


def _shifted(x: Any, by: Any, word: str) -> Any:
    """Nothing but the sign is left where `by` is negative, or as many bits as a number has."""
    last, number = x.dtype.bits - 1, not hasattr(by, "dtype")
    kept = min(max(by, 0), last) if number else tm.clip(by, 0, last)
    found = x << kept if word == "left" else x >> kept
    gone = x >> last if word == "right" and x.dtype.kind == "int" else x ^ x
    beyond = (by < 0) | (by > last)
    return (gone if beyond else found) if number else tm.where(beyond, gone, found)


def _scaled(word: str) -> Callable[..., Any]:
    """`a` and `alpha` times `b`."""
    return lambda a, b, alpha=1: getattr(tm, word)(a, b if alpha == 1 else tm.multiply(b, alpha))


def _extreme(word: str) -> Callable[..., Any]:
    """The other one of a NaN."""
    return lambda a, b: tm.where(tm.isnan(a), b, tm.where(tm.isnan(b), a, getattr(tm, word)(a, b)))


for _word in ("left", "right"):
    _names = f"__{_word[0]}shift__.Scalar __{_word[0]}shift__.Tensor bitwise_{_word}_shift.Tensor "
    lower(_names + f"bitwise_{_word}_shift.Tensor_Scalar", POINTWISE)(partial(_shifted, word=_word))

lower_all(
    POINTWISE,
    {
        "add.Tensor add.Scalar": _scaled("add"),
        "sub.Tensor sub.Scalar": _scaled("subtract"),
        "mul.Tensor mul.Scalar": tm.multiply,
        "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar": lambda a, b: (
            tm.sqrt(a) if isinstance(b, float) and b == 0.5 else tm.pow(a, b)
        ),
        "prims.fma.default": lambda a, b, c: tm.add(tm.multiply(a, b), c),
        "remainder.Scalar_Tensor": tm.remainder,
        "exp2.default": lambda x: tm.pow(2.0, x),
        "clamp.default clamp.Tensor": lambda x, min=None, max=None: tm.clip(x, min, max),
        "fmax.default": _extreme("maximum"),
        "fmin.default": _extreme("minimum"),
        "where.self": tm.where,
        "gelu.default": lambda x, approximate="none": tm.gelu(x, approximate),
    },
)


@lower("div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode true_divide.Tensor", POINTWISE)
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


def floor_divide(a: Any, b: Any) -> Any:
    """From the remainder, as PyTorch has it: a rounded quotient may be the next integer."""
    if not (_is_float(a) or _is_float(b)):
        return tm.floor_divide(a, b)
    rest, exact = fmod(a, b), tm.divide(a, b)
    if not hasattr(b, "dtype") and b == 0:
        return exact
    found = tm.divide(tm.subtract(a, rest), b)
    found = tm.where(tm.not_equal(rest, 0) & ((rest < 0) ^ (b < 0)), found - 1, found)
    found = tm.copysign(tm.round(found), exact)
    return tm.where(tm.equal(b, 0), exact, found) if hasattr(b, "dtype") else found


@lower("fmod.Tensor fmod.Scalar", POINTWISE)
def fmod(a: Any, b: Any) -> Any:
    """The remainder with the sign of `a`; the least integer has no absolute value."""
    if not (_is_float(a) or _is_float(b)):
        rest = tm.remainder(a, b)
        return tm.where(tm.not_equal(rest, 0) & ((a < 0) ^ (rest < 0)), rest - b, rest)
    rest = tm.remainder(tm.abs(a), tm.abs(b) if hasattr(b, "dtype") else abs(b))
    return tm.where(a < 0, -rest, rest)


@lower("sign.default", POINTWISE)
def sign(x: Any) -> Any:
    """Of NaN it is 0."""
    if x.dtype.is_bool:
        return x
    return tm.where(x > 0, 1, tm.where(tm.less(x, 0), -1, 0))


@lower(
    "clone.default _to_copy.default copy.default lift_fresh_copy.default "
    "prims.convert_element_type.default",
    POINTWISE,
)
def copied(x: Any, source: Any = None, *, out: Any, **_: Any) -> Any:
    given = source if hasattr(source, "ndim") else x
    if given.dtype.is_float and str(out.dtype) == "uint8":
        given = tm.astype(given, "int64")  # what is negative wraps
    return tm.astype(tm.broadcast_to(given, out.shape), out.dtype)


# ── of no array ──────────────────────────────────────────────────────────────────────────────


lower_all(
    CONSTANT,
    {
        "full.default full_like.default": lambda _x, *given, out, **_: tm.full(
            out.shape, given[-1], dtype=out.dtype
        ),
        "scalar_tensor.default": lambda value, *, out, **_: tm.full((), value, dtype=out.dtype),
        (
            "empty.memory_format empty_permuted.default new_empty_strided.default"
        ): lambda *_x, out, **_: tm.full(out.shape, 0, dtype=out.dtype),
        "arange.start_step": lambda start, end, step=1, *, out, **_: tm.arange(
            start, end, step, dtype=out.dtype
        ),
        "prims.iota.default": lambda length, *, start, step, out, **_: tm.arange(
            start, start + length * step, step, dtype=out.dtype
        ),
    },
)
