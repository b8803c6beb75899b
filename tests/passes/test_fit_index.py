"""Indices found from the table of all their values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.dtype import INT64
from tilewright.ir.expr import Var
from tilewright.ir.simplify import simplify
from tilewright.passes.addresses import evaluate, fit_index

I, J = Var("i"), Var("j")
i, j = np.arange(4)[:, None], np.arange(6)


@pytest.mark.parametrize(
    "table, variables",
    [
        (5 + 3 * i + 7 * j, (I, J)),
        (9 - 2 * i + 0 * j, (I, J)),
        (0 * i + 0 * j, (I, J)),
        (4 * i + j % 2 + j // 2 * 8, (I, J)),
        ((1 << 33) + i + j, (I, J)),
        (j * 3, (Var("wide", INT64),)),
        (np.array([7]), (I,)),
        (np.array(7), ()),
    ],
)
def test_fits(table, variables) -> None:
    found = fit_index(table, variables)
    assert found is not None and simplify(found) is found
    for place in np.ndindex(*table.shape):
        at = dict(zip(variables, place, strict=True))
        assert int(evaluate(found, at)) == int(table[place])


def test_values_that_do_not_count_from_zero() -> None:
    found = fit_index(2 * i + 3 * j, (I, J), (10, 0), (5, 1))
    assert found is not None and simplify(found) is found
    assert int(evaluate(found, {I: np.int64(20), J: np.int64(4)})) == 2 * 2 + 3 * 4


def test_no_sum_of_functions() -> None:
    assert fit_index(i * j, (I, J)) is None
