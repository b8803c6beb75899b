"""What formulas do not have: the line, and what to write."""

from __future__ import annotations

import math
import traceback

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tilewright.support.errors import CompileError

X = np.ones((3, 4), np.float32)


def assigned(x):
    x[0] = 1
    return x


def branched(x):
    if x > 0:
        return x
    return -x


REFUSED = {
    "tm.sort": (lambda x: tm.sort(tm.reshape(tm.tile(x, (999, 1)), (-1,))), "up to 2048"),
    "tm.median": (lambda x: tm.median(x), r"tm\.sort"),
    "tm.nonzero": (lambda x: tm.nonzero(x), r"tm\.where"),
    "tm.unique_values": (lambda x: tm.unique_values(x), r"tm\.where"),
    "a mask": (lambda x: x[x > 0], r"tm\.where"),
    "tm.linalg": (lambda x: tm.linalg.inv(x), "numpy.linalg"),
    "an assignment": (assigned, r"tm\.where"),
    "if": (branched, r"tm\.where"),
    "max": (lambda x: max(x, x), r"tm\.maximum"),
    "float": (lambda x: float(x[0, 0]), r"tm\.astype"),
    "a loop": (lambda x: [row for row in x], r"tm\.unstack"),
    "np.exp": (lambda x: np.exp(x), r"tm\.exp"),
    "np.sum": (lambda x: np.sum(x), r"tm\.sum"),
    "np.concatenate": (lambda x: np.concatenate([x, x]), r"tm\.concat"),
    "math.exp": (lambda x: math.exp(x), r"tm\."),
    "a method": (lambda x: x.sum(), r"tm\.sum"),
    "another name": (lambda x: tm.cumsum(x), r"tm\.cumulative_sum"),
    "a slip": (lambda x: tm.sofmax(x), r"tm\.softmax"),
    "dim=": (lambda x: tm.sum(x, dim=1), "axis="),
    "keepdim=": (lambda x: tm.sum(x, axis=1, keepdim=True), "keepdims="),
    "shapes": (lambda x: x + tm.zeros((5,)), r"\(3, 4\) and \(5,\)"),
    "an index": (lambda x: x[7], "an axis of 3 elements"),
    "a list": (lambda x: x + [1, 2, 3, 4], "np.asarray"),
    "a size": (lambda x: tm.sum(tm.arange(1 << 33)), "fewer than 2,147,483,648"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_the_line_and_a_fix(name):
    function, said = REFUSED[name]
    with pytest.raises(CompileError, match=said) as caught:
        tw.math(function)(X)
    line = function.__code__.co_firstlineno
    lines = [f"{__file__}:{n}:" for n in range(line, line + 3)]
    assert "fix:" in str(caught.value) and any(at in str(caught.value) for at in lines)
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert not [file for file in files if "tilewright/formula" in file]


def test_scalars_of_numpy_on_the_left():
    np.testing.assert_array_equal(tw.math(lambda x: np.float32(2) * x - np.int32(1))(X), 2 * X - 1)


def test_modules_have_no_other_names():
    assert not hasattr(tm, "median") and not hasattr(tm, "__wrapped__")
    assert {n for n in vars(tm) if n[0] != "_"} == {*tm.__all__, "annotations"}


def test_dimensions_that_no_index_holds_stay_apart():
    assert "T.tile(I, I)" in tw.math(lambda x: tm.zeros((1 << 16, 1 << 16)) + x[0, 0]).tile(X)


def test_what_is_too_deep_for_pythons_stack_says_so():
    def endless(x):
        return endless(x)

    with pytest.raises(CompileError, match="endless is too deep") as caught:
        tw.math(endless)(X)
    assert f"{__file__}:" in str(caught.value) and "fix:" in str(caught.value)


@pytest.mark.parametrize(
    "args, kwargs, said",
    [
        ((X,), {"sclae": 3.0}, "did you mean 'scale'"),
        ((), {}, r"scaled: missing a required argument: 'x'"),
        ((X, 1.0, 2.0), {}, r"scaled\(x, scale=2.0\)"),
    ],
)
def test_calls_that_do_not_fit_the_signature_say_so(args, kwargs, said):
    def scaled(x, scale=2.0):
        return x * scale

    with pytest.raises(CompileError, match=said):
        tw.math(scaled)(*args, **kwargs)
