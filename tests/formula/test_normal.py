"""The normal form: equal formulas are equal, and what is written down reads the same."""

from __future__ import annotations

import pytest

from tests.formula.cascades import (
    CASES,
    CONSTANTS,
    ELEMENTS,
    REAL,
    N,
    S,
    cos,
    exp,
    exp2,
    half,
    i,
    j,
    k,
    l,
    log,
    log1p,
    log2,
    m,
    pow_,
    q,
    relu,
    rsqrt,
    sin,
    sqrt,
    tanh,
    v,
    where,
    x,
    y,
)  # fmt: skip
from tests.formula.machine import Evaluator
from tilewright.formula.streams.form import indicators
from tilewright.formula.streams.normal import Context, expression, normalize
from tilewright.ir.arith import Bin, Call, const
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.expr import walk


def context():
    return Context({*ELEMENTS, j}, {m, l, S, N, i}, {l, N}, REAL)


three = const(3, REAL)
EQUAL = [
    (exp(x - m) / l * v, v * exp(x) / (l * exp(m))),
    (exp2(x - m), exp((x - m) * log(const(2, REAL)))),
    (pow_(three, x), exp(x * log(three))),
    (pow_(three, x) * pow_(three, -x), const(1, REAL)),
    (Call("__exp", (x,), REAL), exp(x)),
    (Call("fma", (x, y, v), REAL), v + y * x),
    (log(exp(x - m) / l), x - m - log(l)),
    (log2(exp2(x)), x),
    (exp(3.0 * log(l)), l**3),
    (sqrt(l * l * 4.0), 2.0 * l),
    (sqrt(x * x), abs(x)),
    (rsqrt(l) * sqrt(l), const(1, REAL)),
    (sqrt(const(2, REAL)) * sqrt(const(2, REAL)) * x, 2.0 * x),
    (abs(x * l * -2.0), 2.0 * l * abs(x)),
    (relu(x * l / N), relu(x) * l / N),
    (Bin("max", x * l, y * l), l * Bin("max", y, x)),
    ((x - m) * (x - m), x**2 - 2.0 * x * m + m * m),
    (cos(x - m), cos(x) * cos(-m) - sin(x) * sin(-m)),
    (exp(where(x > 0.0, x - m, -float("inf"))), where(x > 0.0, exp(x - m), 0)),
    (where(x > m, x * y, 0), y * where(m < x, x, 0)),
    (log1p(exp(x - m)), log(1.0 + exp(x - m))),
    (x / 3.0 * 3.0, x),
    (tanh(x * q), tanh(q * x)),
    (where(j < i, x, y), where(i > j, x, y)),
]


@pytest.mark.parametrize(("a", "b"), EQUAL, ids=lambda expr: repr(expr)[:40])
def test_equal_formulas_have_one_form(a, b):
    known = context()
    assert normalize(a, known) == normalize(b, known)


DIFFERENT = [
    (sqrt(x) ** 2, abs(x)),
    (abs(x), x),
    (log(x * y), log(x) + log(y)),  # both may be negative
    (relu(x * y), x * relu(y)),
    (half(x), x),
    (where(x > 0.0, x, 0), where(x < 0.0, x, 0)),
]


@pytest.mark.parametrize(("a", "b"), DIFFERENT, ids=lambda expr: repr(expr)[:40])
def test_what_is_not_known_to_be_equal(a, b):
    known = context()
    assert normalize(a, known) != normalize(b, known)


BODIES = [pair[0] for pair in EQUAL] + [lv.body for case in CASES for lv in case.levels]


def test_what_is_written_reads_the_same():
    for body in BODIES:
        known = context()
        form = normalize(body, known)
        if indicators(form):
            continue  # no atom has one inside, so that they are never read again
        plain = expression(form, known, readable=False)
        assert normalize(plain, known) == form, body
        assert expression(normalize(plain, known), known, readable=False) is plain


def test_what_is_written_has_the_same_value():
    names = {var for body in BODIES for var in walk(body) if not var.children}
    values = {var: CONSTANTS.get(var, 1.25 + 0.1 * at) for at, var in
              enumerate(sorted(names, key=repr))}  # fmt: skip
    evaluate = Evaluator()
    for body in BODIES:
        for readable in (False, True):
            known = context()
            written = expression(normalize(body, known), known, readable)
            expected = evaluate(body, values)
            assert abs(evaluate(written, values) - expected) <= 1e-12 * (1 + abs(expected)), body


def test_readable_text():
    known = context()
    for body, text in (
        (pow_(three, x - m), "exp(1.0986122886681098 * (x - m))"),
        (exp2(x - m), "exp2(x - m)"),
        (exp(x) / exp(m) / l, "exp(x - m) / l"),
        (x * k / l + y * k / l, "k * (x + y) / l"),
        (where(x > m, x - m, 0), "x - m if m - x < 0.0 else 0.0"),
        (x / 3.0, "x / 3.0"),
        (-x - m, "-m - x"),
    ):
        assert repr(expression(normalize(body, known), known)) == text


def test_one_exp_for_each_monomial():
    known = context()
    written = expression(normalize(exp(x) * exp(-m) * exp(y) / exp(v) * x, known), known)
    assert sum(isinstance(node, Call) and node.name == "exp" for node in walk(written)) == 1


def test_the_type_of_the_formula():
    known = Context(ELEMENTS, dtype=FLOAT32)
    assert expression(normalize(Call("exp", (x,), REAL) * 2.0, known), known).dtype is FLOAT32
