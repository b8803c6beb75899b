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
        narrow = any(np.asarray(a).dtype == np.float16 for a in arrays)  # what products round to
        tolerance = 1e-3 if narrow or kind == np.float16 else 2e-5
        assert g.shape == w.shape
        largest = max(1.0, float(np.abs(w).max()))
        np.testing.assert_allclose(np.asarray(g, np.float64), w, tolerance, tolerance * largest)


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("name", CASES)
def test_a_formula_computes_what_it_says(name, target):
    agrees(*CASES[name], target)
