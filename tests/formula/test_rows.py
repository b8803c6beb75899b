"""Laws of factors and of rows hold where their conditions do, and nothing happens elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tilewright.formula.factors import common_divisors, exchanged_sums, factors_behind_sums
from tilewright.formula.meaning import evaluate
from tilewright.formula.rows import Reading
from tilewright.ir.text.formula import parse_formula

HEAD = "formula f(p: float32[4, 8], a: float32[4, 3], b: float32[8, 3], s: float32[4]) -> "
SAME = {
    "no array is the other order of sums": (
        exchanged_sums,
        """z, y
        z[i < 4, k < 3]: float32 = sum{j < 8} p[i, j] * b[j, k] * b[j, k]
        c[i < 4, j < 8]: float32 = sum{k < 3} a[i, k] * b[j, k]
        y[i < 4]: float32 = sum{j < 8} c[i, j] * p[i, j]""",
    ),
    "a factor of the sum is left": (
        exchanged_sums,
        """z, y
        z[i < 4, k < 3]: float32 = sum{j < 8} p[i, j] * b[j, k]
        c[i < 4, j < 8]: float32 = sum{k < 3} a[i, k] * b[j, k]
        y[i < 4]: float32 = sum{j < 8} c[i, j] * p[i, j] * b[j, 1]""",
    ),
    "a power stays with what keeps it in range": (
        factors_behind_sums,
        """y
        t[i < 4]: float32 = sum{j < 8} p[i, j] * exp(s[i])
        y[i < 4]: float32 = t[i] + 1.0""",
    ),
    "what is an output is what it says": (
        factors_behind_sums,
        """t
        t[i < 4]: float32 = sum{j < 8} p[i, j] * s[i]""",
    ),
    "divisors differ": (
        common_divisors,
        """y
        y[i < 4, j < 8]: float32 = p[i, j] / s[i] - 2.0 / p[i, j]""",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_laws_do_nothing_where_their_condition_does_not_hold(name):
    law, text = SAME[name]
    formula = parse_formula(HEAD + text)
    assert law(formula) == formula


CHANGED = {
    "sums are exchanged": (
        exchanged_sums,
        """z, y
        z[i < 4, k < 3]: float32 = sum{j < 8} p[i, j] / s[i] * b[j, k]
        c[i < 4, j < 8]: float32 = sum{k < 3} a[i, k] * b[j, k]
        y[i < 4]: float32 = sum{j < 8} -(c[i, j] * (p[i, j] / s[i]) / s[i])""",
    ),
    "factors go behind sums": (
        factors_behind_sums,
        """y
        t[i < 4]: float32 = sum{j < 8} -(p[i, j] / s[i] * 0.5)
        y[i < 4, j < 8]: float32 = t[i] * p[i, j]""",
    ),
    "a divisor is common to more than two": (
        common_divisors,
        """y
        y[i < 4, j < 8]: float32 = p[i, j] / s[i] + -(s[i] * 2.0) / s[i] / s[i] - 1.0 / s[i]""",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_laws_change_no_result(name):
    law, text = CHANGED[name]
    formula = parse_formula(HEAD + text)
    changed = law(formula)
    assert changed != formula
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(0.5, 2, b.static_shape) for b in formula.inputs]
    for got, want in zip(evaluate(changed, arrays), evaluate(formula, arrays), strict=True):
        np.testing.assert_allclose(got, want, 1e-5)


@pytest.mark.parametrize(("of", "term", "is_one"), [
    ("q", "exp(q[i, j])", True), ("q", "q[i, j]", False), ("p", "exp(p[i, j])", False),
])  # fmt: skip
def test_only_positive_divisors_of_products_have_a_logarithm(of, term, is_one):
    """Numbers in memory may be the last of their type, which leaves no room for a factor."""
    formula = parse_formula(
        HEAD
        + f"""y
        q[i < 4, j < 8]: float32 = sum{{k < 3}} a[i, k] * b[j, k]
        m[i < 4]: float32 = max{{j < 8}} {of}[i, j]
        t[i < 4]: float32 = sum{{j < 8}} {term}
        y[i < 4, j < 8]: float32 = exp({of}[i, j] - m[i]) / t[i] * s[i]"""
    )
    reading = Reading(formula, {"s"})
    y = reading.of(formula.arrays[-1], {"m", "t"})
    assert ("exp2(" in str(y.body)) == is_one
    made = {a.name for a, _ in reading.made.values()}
    assert made == ({"log_sum"} if is_one else {"t_row"})
    changed = replace(formula, arrays=reading.placed([*formula.arrays[:-1], y]))
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(0.5, 2, b.static_shape) for b in formula.inputs]
    (got,), (want,) = evaluate(changed, arrays), evaluate(formula, arrays)
    np.testing.assert_allclose(got, want, 1e-5)


@pytest.mark.parametrize("far", [0, 2.0**20, -1e9])
def test_rows_of_float32_are_as_exact_wherever_they_lie(far):
    """What a second kernel reads of rows loses nothing to their maximum."""
    x = (np.random.default_rng(3).standard_normal((5, 300)) + far).astype(np.float32)
    shared = tw.math(lambda x, v: tm.softmax(x, axis=-1).T @ v, target="cpu")
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    want = (e / e.sum(1, keepdims=True)).T @ np.ones((5, 2))
    np.testing.assert_allclose(shared(x, np.ones((5, 2), np.float32)), want, 1e-5)


def test_what_is_compared_is_computed_as_what_it_is_compared_with():
    """A row's reciprocal would round the maximum of a column in another way than its elements."""

    @tw.math(target="cpu")
    def hits(a, b):
        y = tm.softmax(a @ b, axis=-1)
        return tm.sum(tm.astype(y >= tm.max(y, axis=0, keepdims=True), "int32"), axis=0)

    a, b = (
        np.random.default_rng(1).standard_normal(s).astype(np.float16) for s in ((37, 24), (24, 50))
    )
    assert (hits(a, b) == 1).all()
