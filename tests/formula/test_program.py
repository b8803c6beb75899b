"""Formulas become tile programs that compute what they say."""

from __future__ import annotations

import numpy as np
import pytest

import tests.roads  # noqa: F401
import tilewright as tw
from tests.formula.cases import CASES
from tilewright.formula.meaning import evaluate


def agrees(function, arrays, target):
    f = tw.math(function, target=target) if target else function
    got = f(*arrays)
    want = evaluate(f.formula(*arrays), arrays, exactly=True)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        kind = np.asarray(g).dtype
        narrow = any(np.asarray(a).dtype == np.float16 for a in arrays)  # what products round to
        tolerance = 1e-3 if narrow or kind == np.float16 else 2e-5
        assert g.shape == w.shape
        largest = max(1.0, float(np.abs(w).max()))
        np.testing.assert_allclose(np.asarray(g, np.float64), w, tolerance, tolerance * largest)


TARGETS = ["cpu", "interp -sanitize", pytest.param("cuda_arrays", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_formula_computes_what_it_says(name, target):
    agrees(*CASES[name], target)


@pytest.mark.parametrize("splits", [1, 3, 128])
def test_blocks_may_share_a_loop(splits):
    function, arrays = CASES["decoding_of_many_keys"]
    f = tw.math(function, target="cpu")
    text = f.tile(*arrays)
    assert 'T.chosen("splits"' in text
    np.testing.assert_allclose(
        np.asarray(f.with_schedule(tiles={"splits": splits})(*arrays), float),
        np.asarray(f(*arrays), float),
        atol=1e-3,
    )
