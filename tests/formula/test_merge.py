"""Which dimensions become one."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.math as tm
from tilewright.formula.front.trace import trace
from tilewright.formula.inline import normalize
from tilewright.formula.meaning import evaluate


def flat_index(x, step):
    i, j = tm.indices(x, -2, -1)
    return x + tm.astype(i * step + j, "float32")


def taken(x, table):
    i, j = tm.indices(x, -2, -1)
    return x * table[i * x.shape[-1] + j]


def halves(x):
    i, j = tm.indices(x, -2, -1)
    return x + tm.astype((i * x.shape[-1] + j) // 2 + (2 * i * x.shape[-1] + 2 * j), "float32")


def folded(x):
    i, j = tm.indices(x, -2, -1)
    return tm.sum(x * tm.astype(i * x.shape[-1] + j, "float32"), axis=(1, 2))


@pytest.mark.parametrize(
    ("said", "rank", "more"),
    [
        (lambda x: flat_index(x, 5), 1 + 1, ()), (lambda x: flat_index(x, 6), 3, ()),
        (lambda x: flat_index(x, 1), 3, ()), (taken, 2, ((15,),)), (halves, 2, ()), (folded, 2, ()),
    ],
)  # fmt: skip
def test_digits_of_a_flat_index_are_one(said, rank, more):
    """What is computed with the index of a row of rows keeps no two dimensions apart."""
    arrays = [np.random.default_rng(0).standard_normal(s, np.float32) for s in ((4, 3, 5), *more)]
    formula = trace(said, [(f"x{n}", a.shape, "float32") for n, a in enumerate(arrays)])
    normal = normalize(formula)
    assert normal.formula.inputs[0].rank == rank, normal.formula
    shaped = [a.reshape(b.static_shape) for a, b in zip(arrays, normal.formula.inputs, strict=True)]
    (want,), (found,) = evaluate(formula, arrays), evaluate(normal.formula, shaped)
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-6)
