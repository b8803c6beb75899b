"""Sets of integers as an interval and a residue class, and arithmetic on them.

Every function returns a set that holds all results; `held` says what a type makes of one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import NamedTuple

from tilewright.ir.core import *


class Value(NamedTuple):
    """lo … hi, congruent to `rem` modulo `mod`; mod 0 is the single value `rem`."""

    lo: int
    hi: int
    mod: int = 1
    rem: int = 0

    @property
    def multiple(self) -> int:
        """The largest known divisor of all values; 0, a multiple of everything, for 0 alone."""
        return gcd(self.mod, self.rem)


_new = tuple.__new__  # what `Value(…)` does, in a third of the time
BIT = Value(0, 1)
ANYTHING = Value(-(1 << 64), 1 << 64)


def limits(dtype: DType) -> Value:
    return Value(int(dtype.min_value), int(dtype.max_value))


def fits(v: Value, dtype: DType) -> bool:
    return dtype.min_value <= v.lo and v.hi <= dtype.max_value


def wraps(dtype: DType, index: bool) -> bool:
    """Overflow in this type has a meaning (it wraps), so nobody may assume it away."""
    return not (index and dtype.kind == "int" and dtype.bits >= 32)


def held(v: Value, dtype: DType, index: bool) -> Value:
    """An exact result as the type holds it."""
    if fits(v, dtype):
        return v
    full = limits(dtype)
    if wraps(dtype, index):
        return tight(full.lo, full.hi, gcd(v.mod, 1 << dtype.bits), v.rem)
    return meet(full, v)


def single(c: int) -> Value:
    return _new(Value, (c, c, 0, c))


def tight(lo: int, hi: int, mod: int, rem: int) -> Value:
    """The interval cut to the residue class. An empty one (dead code) stays uncut."""
    if mod == 0:
        return _new(Value, (rem, rem, 0, rem))
    rem %= mod
    low, high = lo + (rem - lo) % mod, hi - (hi - rem) % mod
    if low > high:
        return Value(lo, hi)
    return _new(Value, (low, high, mod, rem) if low < high else (low, low, 0, low))


def add(a: Value, b: Value) -> Value:
    return tight(a.lo + b.lo, a.hi + b.hi, gcd(a.mod, b.mod), a.rem + b.rem)


def multiply(a: Value, b: Value) -> Value:
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    mod = gcd(a.mod * b.mod, a.mod * b.rem, b.mod * a.rem)
    return tight(min(corners), max(corners), mod, a.rem * b.rem)


def join(a: Value, b: Value) -> Value:
    mod = gcd(a.mod, b.mod, a.rem - b.rem)
    return tight(min(a.lo, b.lo), max(a.hi, b.hi), mod, a.rem)


def meet(a: Value, b: Value) -> Value:
    """Both hold. Where they contradict each other (dead code) `a` stands."""
    lo, hi = max(a.lo, b.lo), min(a.hi, b.hi)
    g = gcd(a.mod, b.mod)
    if lo > hi or (a.rem - b.rem) % (g or 1) or (g == 0 and a.rem != b.rem):
        return a
    if a.mod == 0 or b.mod == 0:
        return a if a.mod == 0 else b
    # the residue modulo the least common multiple, by the Chinese remainder theorem
    step = b.mod // g
    k = (b.rem - a.rem) // g * pow(a.mod // g, -1, step) if step > 1 else 0
    return tight(lo, hi, a.mod * step, a.rem + a.mod * k)


def twos(v: Value) -> int:
    """A power of two that divides every value (a large one for zero)."""
    return v.multiple & -v.multiple or 1 << 64


def _floordiv(a: Value, b: Value) -> Value:
    """Quotients, division by zero left out as undefined."""
    segments = [(max(b.lo, 1), b.hi), (b.lo, min(b.hi, -1))]
    ends = [y for lo, hi in segments if lo <= hi for y in (lo, hi)]
    if not ends:
        return ANYTHING
    corners = [x // y for x in (a.lo, a.hi) for y in ends]
    mod, rem = 1, 0
    if b.mod == 0 and a.mod % b.rem == 0 and a.mod:
        mod, rem = a.mod // abs(b.rem), a.rem // b.rem
    return tight(min(corners), max(corners), mod, rem)


def _floormod(a: Value, b: Value) -> Value:
    if b.mod == 0 and b.rem > 0:
        c = b.rem
        if a.lo // c == a.hi // c:
            return add(a, single(-(a.lo // c) * c))
        return tight(0, c - 1, gcd(a.mod, c), a.rem)
    if b.lo == b.hi == 0:
        return ANYTHING
    hi = max(b.hi - 1, 0)
    if a.lo >= 0 and b.lo >= 0:
        hi = min(hi, a.hi)
    return tight(min(b.lo + 1, 0), hi, 1, 0)


def _and(a: Value, b: Value) -> Value:
    for x, y in ((a, b), (b, a)):
        if y.mod == 0 and y.rem >= 0 and y.rem & (y.rem + 1) == 0:
            return _floormod(x, single(y.rem + 1))
    highs = [v.hi for v in (a, b) if v.lo >= 0]
    if not highs:
        bits = max(v.bit_length() for x in (a, b) for v in x[:2])
        return Value(-(1 << bits), max(a.hi, b.hi))
    return tight(0, min(highs), max(twos(a), twos(b)), 0)


def _or_xor(a: Value, b: Value) -> Value:
    bits = max(v.bit_length() for x in (a, b) for v in x[:2])
    low = 0 if a.lo >= 0 and b.lo >= 0 else -(1 << bits)
    return tight(low, (1 << bits) - 1, min(twos(a), twos(b)), 0)


def _shift(a: Value, b: Value, left: bool) -> Value:
    # a count below 0 is a large unsigned one
    ends = [min(y, 64) for y in (b.lo, b.hi)]
    if b.lo < 0:
        ends = [0 if b.hi >= 0 else 64, 64]
    corners = [x << y if left else x >> y for x in (a.lo, a.hi) for y in ends]
    return tight(min(corners), max(corners), twos(a) << ends[0] if left else 1, 0)


BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "//": _floordiv,
    "%": _floormod,
    "&": _and,
    "|": _or_xor,
    "^": _or_xor,
    "<<": lambda a, b: _shift(a, b, True),
    ">>": lambda a, b: _shift(a, b, False),
}
