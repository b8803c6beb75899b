"""a · b + c, rounded once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

_SPLIT = float((1 << 27) + 1)  # Veltkamp: halves of 26 bits, whose products are exact


def fma(a: Any, b: Any, c: Any) -> Any:
    """`a · b + c` of float32 or float64 values, exactly rounded."""
    kind = np.asarray(a).dtype
    x, y, z = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (a, b, c)))
    with np.errstate(all="ignore"):
        if kind == np.float32:  # their product is exact in float64
            return _odd_sum(x * y, z).astype(np.float32)
        found = np.where((x == 0) | (y == 0), x * y + z, _fused(x, y, z))
        slow = ~(_ordinary(x, 400) & _ordinary(y, 400) & _ordinary(z, 800))
    if slow.any():
        found = np.array(found)
        found[slow] = [_exact(*each) for each in zip(x[slow], y[slow], z[slow], strict=True)]
    return found


def _ordinary(x: Any, power: int) -> Any:
    """Numbers whose products and errors stay clear of overflow and of subnormals."""
    size = np.abs(x)
    return (size < 2.0**power) & ((size > 2.0**-power) | (size == 0))


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum and what rounding took (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _odd_sum(a: Any, b: Any) -> Any:
    """a + b rounded to odd: a second rounding to fewer bits is then as good as one."""
    total, rest = _sum(a, b)
    bits = np.asarray(total).view(np.int64)
    even = (rest != 0) & np.isfinite(total) & np.isfinite(rest) & (bits & 1 == 0)
    away = (rest > 0) == (total > 0)  # in the direction of larger magnitudes
    return np.where(even, np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded product and what rounding took (Dekker)."""
    total = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    rest = a_low * b_low - (((total - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return total, rest


def _halves(a: Any) -> tuple[Any, Any]:
    scaled = a * _SPLIT
    high = scaled - (scaled - a)
    return high, a - high


def _fused(a: Any, b: Any, c: Any) -> Any:
    """Boldo and Melquiond: the low parts are added with rounding to odd."""
    high, low = _product(a, b)
    top, bottom = _sum(c, low)
    total, rest = _sum(high, top)
    return total + _odd_sum(bottom, rest)


def _exact(a: float, b: float, c: float) -> float:
    a, b, c = float(a), float(b), float(c)
    if not all(map(math.isfinite, (a, b, c))):
        return c if math.isinf(c) and math.isfinite(a) and math.isfinite(b) else a * b + c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:  # a zero that is the sum of zeros has their sign
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
