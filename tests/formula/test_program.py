"""Formulas become tile programs that compute what they say."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.formula.cases import CASES
from tilewright.formula.meaning import evaluate


def agrees(function, arrays, target):
    f = tw.math(function, target=target)
    got = f(*arrays)
    want = evaluate(f.formula(*arrays), arrays, exactly=True)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        kind = np.asarray(g).dtype
        tolerance = 2e-5 if kind == np.float32 else 4e-3
        assert g.shape == w.shape
        np.testing.assert_allclose(np.asarray(g, np.float64), w, tolerance, tolerance)


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("name", CASES)
def test_a_formula_computes_what_it_says(name, target):
    agrees(*CASES[name], target)
