"""Expressions as C++: which divisions need no division."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.dtype import FLOAT32, dtype
from tilewright.ir.expr import Var, binary, const
from tilewright.targets.cuda.emit_expr import Names, _divides_in_place, print_expr

FLOAT64 = dtype("float64")
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


@given(
    st.floats(1, 2.0**60, width=32, exclude_min=True),
    st.lists(st.floats(2.0**-99, width=32, allow_infinity=False), min_size=1, max_size=50),
)
def test_one_correction_rounds_as_a_division_does(divisor, xs):
    """What tw::divide_by computes; products and differences of float32 are exact in float64."""
    c, x = np.float32(divisor), np.array(xs, np.float32)
    if not _divides_in_place(const(float(c), FLOAT32)):
        return
    r = np.float32(1) / c
    near = x * r
    left = x.astype(np.float64) - near.astype(np.float64) * np.float64(c)
    assert (left == left.astype(np.float32)).all()
    got = (left * np.float64(r) + near.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(got, x / c)
