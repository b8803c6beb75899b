"""The bound of errors holds, and is not far from them."""

from __future__ import annotations

import numpy as np
import pytest

import tests.roads  # noqa: F401
import tilewright as tw
import tilewright.math as tm
from tests.formula.cases import CASES
from tilewright.formula.meaning import evaluate

SHARP = {  # times the largest error: operands of 16 bits, float32
    "attention": 30, "causal_attention": 30, "decoding": 30, "low_rank_update": 30,
    "two_layers": 30, "softmax": 500, "layer_norm": 500, "linear": 500, "gated": 500,
    "norm_and_product": 500, "cross_entropy": 500, "convolution": 500,
}  # fmt: skip


@pytest.mark.parametrize("name", SHARP)
def test_bounds_are_not_far_from_errors(name):
    function, arrays = CASES[name]
    f = tw.math(function, target="cpu")
    got, (want,) = f(*arrays), evaluate(f.formula(*arrays), arrays, exactly=True)
    error, bound = np.abs(np.asarray(got, float) - want), f.error_bound(*arrays)
    assert (error <= bound).all()
    assert bound.max() <= SHARP[name] * error.max()


def bound_of(function, *arrays):
    return tw.math(function).error_bound(*arrays)


def test_cancellation_counts():
    x = np.array([1.0, 1e-3], np.float32)
    near, far = bound_of(lambda a: (1e4 + a) - 1e4, x)[1], bound_of(lambda a: a * 2, x)[1]
    assert near > 1e4 * far and near >= 1e4 * 2.0**-24


def test_what_may_go_either_way_counts():
    x = np.array([1.0, 1.0 + 2.0**-23, 2.0], np.float32)
    bound = bound_of(lambda a: tm.where(a * 3 > 3, a + 10, -a), x)
    assert bound[0] > 10 and bound[1] > 10 and bound[2] < 1e-4


def test_indices_have_no_bound_where_elements_are_close():
    x = np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]], np.float32)
    assert np.isinf(bound_of(lambda a: tm.argmax(a / 3, axis=1), x)).tolist() == [True, False]
    assert bound_of(lambda a: tm.argmax(a, axis=1), x).tolist() == [0, 0]


def test_quotients_by_what_may_be_zero_have_no_bound():
    x = np.array([1e-9, 1.0], np.float32)
    assert np.isinf(bound_of(lambda a: 1 / ((1 + a) - 1), x)).tolist() == [True, False]


def test_results_of_16_bits_are_rounded_once():
    x = np.array([3.0], np.float16)
    bound = bound_of(lambda a: a * 2, x)
    assert 6 * 2.0**-11 <= bound[0] <= 6 * 2.0**-8
