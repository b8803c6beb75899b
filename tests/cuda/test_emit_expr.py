"""Expressions as C++: which divisions need no division, which conversions no conversion."""

from __future__ import annotations

import ctypes.util

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.ir.dtype import FLOAT32, dtype
from tilewright.ir.expr import Var, binary, cast, const
from tilewright.targets.cuda.emit_expr import Names, _divides_in_place, print_expr

FLOAT64 = dtype("float64")
FLOAT16, BFLOAT16, UINT32 = dtype("float16"), dtype("bfloat16"), dtype("uint32")
ONES = 2.0 - 2.0**-23  # a significand of ones only


@pytest.mark.parametrize(
    "divisor, kind, text",
    [
        (50.0, FLOAT32, "tw::divide_by(x, 50.0f)"),
        (-3.5, FLOAT32, "tw::divide_by(x, -3.5f)"),
        (8.0, FLOAT32, "x / 8.0f"),
        (0.3, FLOAT32, None),
        (ONES, FLOAT32, None),
        (2.0**61 * 1.5, FLOAT32, None),
        (50.0, FLOAT64, "x / 50.0"),
    ],
)
def test_division_by_a_constant(divisor, kind, text):
    x = Var("x", kind)
    value = float(np.float32(divisor)) if kind is FLOAT32 else divisor
    found = print_expr(binary("/", x, const(value, kind)), Names(), lambda load: "")
    assert found == text if text is not None else found.startswith("x / ")


def divided(x, c):
    """What tw::divide_by computes."""
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.argtypes, fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
    with np.errstate(invalid="ignore", over="ignore"):
        r = np.float32(1) / c
        near = x * r
    left = fmaf(-c, near, x)
    return np.float32(fmaf(left, r, near)) if abs(left) > 0 else near


@given(
    st.floats(1, 2.0**60, width=32, exclude_min=True),
    st.lists(st.floats(2.0**-99, width=32, allow_infinity=False), min_size=1, max_size=50),
)
# close to the middle of two floats, and a first guess too far off for an exact remainder
@example(float.fromhex("0x1.fef866p+3"), [float.fromhex("0x1.ff3a4ep+23")])
@example(float.fromhex("0x1.fff9c6p+0"), [float.fromhex("0x1.fff006p+0")])
def test_one_correction_rounds_as_a_division_does(divisor, xs):
    c = np.float32(divisor)
    if not _divides_in_place(const(float(c), FLOAT32)):
        return
    for x in np.array(xs, np.float32):
        if x / c >= 2.0**-100:
            assert divided(x, c) == x / c


@pytest.mark.parametrize("divisor", [50.0, -3.5, 1.5 * 2.0**59])
@pytest.mark.parametrize("x", [0.0, -0.0, np.inf, -np.inf, np.nan])
def test_what_a_division_leaves_nothing_of(x, divisor):
    """Zeros keep their sign, and infinities and NaN stand."""
    x, c = np.float32(x), np.float32(divisor)
    np.testing.assert_array_equal(divided(x, c), x / c)
    assert np.signbit(divided(x, c)) == np.signbit(x / c)


def printed(e):
    return print_expr(e, Names(), lambda load: "")


I32, U8, I8 = (Var(name[0], dtype(name)) for name in ("int32", "uint8", "int8"))
NIBBLE = binary("&", I32, const(15))


@pytest.mark.parametrize(
    "number, kind, text",
    [
        (U8, FLOAT16, "tw::small_float16(int(u))"),
        (I8, FLOAT16, "tw::small_float16(int(i))"),
        (I8, BFLOAT16, "tw::to_bfloat16(tw::small_float(int(i)))"),
        (U8, FLOAT32, "tw::small_float(int(u))"),
        (NIBBLE, FLOAT16, "tw::small_float16(i & 15)"),
        (binary("-", NIBBLE, const(8)), FLOAT16, "tw::small_float16((i & 15) - 8)"),
        (binary("&", I32, const(1023)), FLOAT16, "tw::to_float16(tw::small_float(i & 1023))"),
        (binary("&", I32, const(2**22)), FLOAT32, "float(i & 4194304)"),
        (cast(U8, UINT32), FLOAT32, "tw::small_float(int(uint32_t(u)))"),
        (cast(I8, UINT32), FLOAT32, "float(uint32_t(i))"),  # -1 is 2^32 - 1
        (cast(I8, UINT32), FLOAT16, "tw::to_float16(double(uint32_t(i)))"),
        (I32, FLOAT16, "tw::to_float16(double(i))"),
        (I32, FLOAT32, "float(i)"),
        (U8, FLOAT64, "double(u)"),
    ],
)
def test_small_integers_as_floats(number, kind, text):
    assert printed(cast(number, kind)) == text


@pytest.mark.parametrize(
    "low, high, word, near",
    [(-512, 512, "uint16", 0x6600), (-(2**22) + 1, 2**22, "uint32", 0x4B400000)],
)
def test_small_integers_are_digits_of_a_larger_number(low, high, word, near):
    """What tw::small_float16 and tw::small_float compute."""
    numbers = np.arange(low, high, dtype=np.int64)
    kind = np.float16 if word == "uint16" else np.float32
    bits = (near + numbers).astype(word)
    got = bits.view(kind) - np.array(near, word).view(kind)
    np.testing.assert_array_equal(got.astype(np.int64), numbers)


def test_sums_and_products_of_float16():
    x, y, z = (Var(n, FLOAT16) for n in "xyz")

    def wide(op, a, b):
        return cast(binary(op, cast(a, FLOAT32), cast(b, FLOAT32)), FLOAT16)

    assert printed(wide("*", wide("-", x, const(8.0, FLOAT16)), y)) == (
        "tw::mul(tw::sub(x, tw::float16{0x4800}), y)"
    )
    inexact = cast(binary("+", cast(z, FLOAT32), const(0.1, FLOAT32)), FLOAT16)
    assert printed(inexact).startswith("tw::to_float16(tw::to_float(z) + 0.1")
    assert printed(wide("/", x, y)).startswith("tw::to_float16(")
