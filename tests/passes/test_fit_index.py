"""Indices found from the table of all their values."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.ir.analysis.points import evaluate
from tilewright.ir.dtype import INT64, dtype
from tilewright.ir.expr import Const, Var
from tilewright.ir.simplify import simplify
from tilewright.ir.text import parse_expr
from tilewright.passes.layout.addresses import fit_index
from tilewright.passes.lower.lowering import Lowering
from tilewright.support.errors import CompileError

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
    low: Any = SimpleNamespace(unrolled={I: range(10, 30, 5), J: range(6)})
    found = Lowering.registers(low, "it", (I, J), lambda at: (at[I] - 10) // 5 * 2 + 3 * at[J])
    assert found is not None and simplify(found) is found
    assert int(evaluate(found, {I: np.int64(20), J: np.int64(4)})) == 2 * 2 + 3 * 4


def test_no_sum_of_functions() -> None:
    assert fit_index(i * j, (I, J)) is None


@pytest.mark.parametrize(
    "text, want",
    [
        ("int32(i > 0) + int32(i > 1)", [0, 1, 2, 2]),
        ("int32(i > 1) - int32(i > 0)", [0, -1, 0, 0]),
        ("-int32(i > 0)", [0, -1, -1, -1]),
        ("int32(uint8(i * 100))", [0, 100, 200, 44]),
        ("int32(int8(i) * int8(100))", [0, 100, -56, 44]),
        ("6 // i if i > 0 else 9", [9, 6, 3, 2]),
        ("6 % i if i > 0 else 9", [9, 0, 0, 0]),
    ],
)
def test_values_are_those_of_the_run(text, want) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(parse_expr(text, {"i": I}), {I: np.arange(4)}).tolist() == want


@pytest.mark.parametrize(
    "value",
    [
        parse_expr("-inf if i > 0 else 0.0", {"i": I}),
        parse_expr("nan", {}),
        parse_expr("1.5", {}),
        Const((1 << 64) - 1, dtype("uint64")),
    ],
    ids=str,
)
def test_what_is_no_integer_is_not_known(value) -> None:
    with pytest.raises(CompileError):
        evaluate(value, {I: np.arange(4)})
