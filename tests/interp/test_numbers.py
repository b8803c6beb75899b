"""Arithmetic by the rules: rounding, saturation, wrapping, flooring."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.dtype import DTYPES, dtype
from tilewright.machine.numbers import bin_fn, call_fn, cast_fn, cmp_fn, from_bits, raw_bits

F16, F32, F64, BF16 = (dtype(n) for n in ("float16", "float32", "float64", "bfloat16"))
I8, I32, I64, U8 = (dtype(n) for n in ("int8", "int32", "int64", "uint8"))


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def nearest_even(x: float, bits: int, emin: int) -> float:
    """x rounded to `bits` of mantissa (with the hidden one), exponents from emin."""
    if x == 0 or not math.isfinite(x):
        return x
    e = max(math.frexp(x)[1] - 1, emin)
    ulp = math.ldexp(1.0, e - bits + 1)
    return float(round(x / ulp) * ulp)  # x / ulp is exact: ulp is a power of two


@given(st.floats(-3e38, 3e38, allow_subnormal=False))
def test_double_to_bfloat16_rounds_once(x):
    with np.errstate(all="ignore"):
        got = float(cast_fn(F64, BF16)(np.float64(x)))
    want = nearest_even(x, 8, -126)
    assert got == want or math.isinf(got)


@given(st.integers(-(2**31), 2**31 - 1))
def test_int_to_small_floats_rounds_once(n):
    assert float(cast_fn(I32, BF16)(np.int32(n))) == nearest_even(float(n), 8, -126)


def test_the_tie_that_double_rounding_gets_wrong():
    x = np.float64(1 + 2.0**-8 + 2.0**-40)  # just above the tie in bfloat16
    assert float(cast_fn(F64, BF16)(x)) == 1 + 2.0**-7


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "float6_e3m2fn"])
def test_narrow_casts_saturate(name):
    to = dtype(name)
    x = np.array([1e9, -1e9, np.inf, -np.inf, 1.0], np.float32)
    top = float(to.max_value)
    got = cast_fn(F32, to)(x).astype(np.float32)
    np.testing.assert_array_equal(got, [top, -top, top, -top, 1])
    if to.bits == 8:
        assert np.isnan(cast_fn(F32, to)(np.float32(np.nan)).astype(np.float32))


@pytest.mark.parametrize("to", [I8, I32, I64, U8, dtype("uint64"), dtype("int4"), dtype("uint2")])
def test_float_to_int(to):
    x = np.array([1.9, -1.9, 1e30, -1e30, np.nan, np.inf], np.float32)
    low, high = int(to.min_value), int(to.max_value)
    got = [int(v) for v in cast_fn(F32, to)(x)]
    assert got == [1, max(-1, low), high, low, 0, high]


@given(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from(["int8", "uint8", "int4", "uint2", "int32"])
)
def test_int_to_int_wraps(n, name):
    to = dtype(name)
    got = int(cast_fn(I64, to)(np.int64(n)))
    assert (got - n) % (1 << to.bits) == 0 and to.min_value <= got <= to.max_value


def test_small_floats_round_once_per_operation():
    a, b = np.float16(2049.0), np.float16(1.0)
    assert bin_fn("+", F16)(a, b) == np.float16(np.float32(a) + np.float32(b))
    big = cast_fn(F32, dtype("float8_e4m3fn"))(np.float32(448))
    assert float(bin_fn("+", dtype("float8_e4m3fn"))(big, big)) == 448


def test_floor_division_and_modulo():
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    np.testing.assert_array_equal(bin_fn("//", I32)(a, b), [3, -4, -4, 3])
    np.testing.assert_array_equal(bin_fn("%", I32)(a, b), [1, 1, -1, -1])
    x, y = np.array([7.5, -7.5], np.float32), np.float32(2)
    np.testing.assert_array_equal(bin_fn("//", F32)(x, y), [3, -4])
    np.testing.assert_array_equal(bin_fn("%", F32)(x, y), [1.5, 0.5])
    np.testing.assert_array_equal(call_fn("fmod", (I32, I32), I32)(a, b), [1, -1, 1, -1])


def test_integers_wrap_and_shift():
    assert bin_fn("+", I32)(np.int32(2**31 - 1), np.int32(1)) == -(2**31)
    assert bin_fn("*", dtype("int4"))(*np.array([7, 7], ml_dtypes.int4)) == 1
    assert bin_fn(">>", I32)(np.int32(-8), np.int32(1)) == -4
    assert bin_fn(">>", dtype("uint32"))(np.uint32(2**32 - 8), np.uint32(1)) == 2**31 - 4


def test_minimum_prefers_numbers_to_nan():
    nan = np.float32(np.nan)
    assert bin_fn("min", F32)(nan, np.float32(1)) == 1
    assert bin_fn("max", F16)(np.float16(2), np.float16(np.nan)) == 2
    assert not cmp_fn("==", F32)(nan, nan)


@pytest.mark.parametrize(
    ("name", "fn"),
    [("exp", np.exp), ("__log2", np.log2), ("rsqrt", lambda x: 1 / np.sqrt(x)), ("erf", None),
     ("sigmoid", lambda x: 1 / (1 + np.exp(-x))), ("exp10", lambda x: 10**x), ("round", np.rint),
     ("tanh", np.tanh), ("log1p", np.log1p), ("expm1", np.expm1),
     ("trunc", np.trunc)],
)  # fmt: skip
@pytest.mark.parametrize("kind", [F16, BF16, F32, F64])
def test_functions(name, fn, kind):
    x = np.array([0.3, 0.5, 1.5, 2.5, 3.7]).astype(kind.numpy)
    fn = fn or np.vectorize(math.erf)
    got = call_fn(name, (kind,), kind)(x)
    assert got.dtype == kind.numpy
    eps = {16: 1e-2 if kind is BF16 else 1e-3, 32: 1e-6, 64: 1e-14}[kind.bits]
    np.testing.assert_allclose(got.astype(np.float64), fn(x.astype(np.float64)), rtol=eps)


def test_bit_functions():
    x = np.array([0, 1, -1, 0x00F0], np.int32)
    np.testing.assert_array_equal(call_fn("popcount", (I32,), I32)(x), [0, 1, 32, 4])
    np.testing.assert_array_equal(call_fn("clz", (I32,), I32)(x), [32, 31, 0, 24])
    np.testing.assert_array_equal(call_fn("invert", (I32,), I32)(x), ~x)
    bits = call_fn("reinterpret", (F32,), I32)(np.float32(1.0))
    assert int(bits) == 0x3F800000
    a = np.array([1, 2, -3, 4], np.int8).view(np.int32)[0]
    got = call_fn("dp4a", (I32, I32, I32), I32)(a, a, np.int32(5))
    assert int(got) == 1 + 4 + 9 + 16 + 5
    assert int(call_fn("pow", (I32, I32), I32)(np.int32(3), np.int32(4))) == 81


@pytest.mark.parametrize("name", sorted(n for n in DTYPES if n not in ("barrier", "bool")))
def test_bits_round_trip(name):
    kind = dtype(name)
    raw = np.arange(1 << min(kind.bits, 8), dtype=np.uint8)
    if kind.bits > 8:
        raw = np.arange(64, dtype=np.uint64).astype(f"u{kind.bits // 8}")
    np.testing.assert_array_equal(raw_bits(from_bits(raw, kind), kind), raw)


# ── fused, shifted, converted once ───────────────────────────────────────────────────────────

EXTREME = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1.7e308, 2.2e-308]


def exact_fma(a: float, b: float, c: float) -> float:
    """Finite, and not zero."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


@given(*[st.floats(-1e150, 1e150)] * 2, st.sampled_from([0.0, 2.0**-53, -1.0, 1.0, -(2.0**53)]))
def test_fma_of_float64_is_rounded_once(a, b, part):
    c = a * b * part  # close to the product, or to its last bit
    if math.isfinite(c):
        got = float(call_fn("fma", (F64,) * 3, F64)(*map(np.float64, (a, b, c))))
        assert got == exact_fma(a, b, c)


def test_fma_of_extreme_numbers():
    fn = call_fn("fma", (F64,) * 3, F64)
    a, b, c = (x.ravel() for x in np.meshgrid(*[np.array(EXTREME)] * 3))
    for x, y, z, got in zip(a, b, c, fn(a, b, c), strict=True):
        if math.isfinite(x) and math.isfinite(y) and math.isinf(z):
            assert got == z
        elif not all(map(math.isfinite, (x, y, z))) or x == 0 or y == 0:
            np.testing.assert_equal(np.float64(got), x * y + z)
            assert math.isnan(got) or math.copysign(1, got) == math.copysign(1, x * y + z)
        else:
            total = Fraction(x) * Fraction(y) + Fraction(z)
            large = math.inf if total > 0 else -math.inf
            assert got == (float(total) if abs(total) < 2**1024 else large)


def test_fma_of_float32_is_not_rounded_to_float64_first():
    a = np.float32(1 + 2.0**-12)
    c = np.float32(2.0**-60)
    # the product ends in the middle of two floats; c decides, and float64 would have lost it
    assert call_fn("fma", (F32,) * 3, F32)(a, a, c) == np.float32(1 + 2.0**-11 + 2.0**-23)


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_large_integers_are_rounded_once_to_bfloat16(kind):
    middle = 2**62 + 2**54  # of two bfloat16
    x = np.array([middle, middle + 1, middle - 1, 3], kind)
    got = cast_fn(dtype(kind), BF16)(x).astype(np.float64)
    assert got.tolist() == [2.0**62, 2.0**62 + 2.0**55, 2.0**62, 3.0]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
@pytest.mark.parametrize("op", ["<<", ">>"])
def test_shifts_are_bit_by_bit(kind, op):
    d = dtype(kind)
    low, high = int(d.min_value), int(d.max_value)
    counts = [0, 1, d.bits - 1, d.bits, d.bits + 1, 100]
    for x in (low, low + 1, 0, 1, 5, high, high // 3):
        for count in counts:
            got = int(bin_fn(op, d)(d.numpy.type(x), d.numpy.type(count)))
            exact = x << count if op == "<<" else x >> count
            exact &= (1 << d.bits) - 1
            assert got == (exact - (1 << d.bits) if exact > high else exact), (x, count)


def test_a_negative_count_is_a_large_one():
    for op, want in (("<<", 0), (">>", -1)):
        assert bin_fn(op, I32)(np.int32(-8), np.int32(-1)) == want


def test_sigmoid_keeps_what_is_subnormal():
    got = call_fn("sigmoid", (F32,), F32)(np.float32(-100.5))
    assert 0 < got < 2.0**-126
