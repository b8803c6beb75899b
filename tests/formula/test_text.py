"""The text of formulas reads back, and what is none is refused with the line."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.formula.cases import CASES
from tilewright.formula.inline import normalize
from tilewright.ir.text.formula import parse_formula
from tilewright.support.errors import CompileError, VerifyError


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_reads_back(name):
    function, arrays = CASES[name]
    formula = tw.math(function).formula(*arrays)
    for each in (formula, normalize(formula).formula):
        assert str(parse_formula(str(each))) == str(each)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("formula f(x: float32[4])", "does not read"),
        ("formula f(x: float32[4]) -> y\n y[i < 4] = x[i]", "does not read"),
        ("formula f(x: float32[4]) -> x\n y[i < 4]: float32 = x[i, i]", "dimension"),
        ("formula f(x: float32[4]) -> y\n y[i < 4]: float32 = sum{i < 4} x[i]", "same name"),
        ("formula f(x: float32[4]) -> x\n x[i < 4]: float32 = x[i]", "defined twice"),
    ],
)
def test_what_is_no_formula_is_refused(text, message):
    with pytest.raises((CompileError, VerifyError), match=message):
        parse_formula(text)
