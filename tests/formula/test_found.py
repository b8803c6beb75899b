"""Formulas that random ones showed to be wrong once."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from devtools.fuzz.formula_draw import drawn
from devtools.fuzz.formulas import differs

FOUND = {}


def found(*arrays):
    """A formula, and (shape, type) of each argument."""

    def keep(function):
        given = [drawn(shape, dtype, seed) for seed, (shape, dtype) in enumerate(arrays)]
        FOUND[function.__name__] = function, given
        return function

    return keep


@found(((4, 7), "float16"), ((7, 7), "float32"))
def product_of_two_types(x, y):
    return x @ y.mT


@found(((17, 8), "bfloat16"), ((17, 8), "bfloat16"), ((8, 2), "bfloat16"))
def product_of_a_product(x, y, z):
    return tm.softmax(x @ y.T, axis=-1) @ y @ z


@found(((40, 40), "float32"))
def fold_of_a_part(x):
    return tm.sum(x[:, :37], axis=-1), tm.max(x[:13], axis=0)


@found(((7, 4), "float32"))
def fold_of_joined(x):
    return tm.sum(tm.concat([x, -x, x], axis=0), axis=0)


@found(((3, 5, 2), "float32"))
def read_where_the_largest_is(x):
    at = tm.argmax(x, axis=1, keepdims=True)
    return tm.take_along_axis(x, at, axis=1)


@found(((20, 8), "float16"), ((8, 20), "float16"))
def product_of_lengths(x, y):
    return tm.hypot(x, x) @ y


@found(((1, 2, 6, 7), "float32"), ((4, 2, 1, 2), "float32"))
def strided_convolution(x, y):
    return tm.array(
        (1, 4, 6, 3),
        lambda b, o, u, t: tm.sum(
            (2, 1, 2), lambda c, r, s: x[b, c, u + r, t * 2 + s * 2] * y[o, c, r, s]
        ),
    )


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("name", FOUND)
def test_it_computes_what_it_says(name, target):
    function, arrays = FOUND[name]
    f = tw.math(function, target=target)
    got = f(*arrays)
    got = [np.asarray(g) for g in (got if isinstance(got, tuple) else [got])]
    assert not differs(f.formula(*arrays), arrays, got)
