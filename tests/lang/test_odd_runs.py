"""Maps over runs that tiles do not divide: the same numbers, and few places past their ends."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from devtools.host import judge
from devtools.host.build import NoCompiler
from tests.roads import THREADS


def together(batch, rows, columns, dtype="float32"):
    """Phases of a transposed convolution put together; rows and columns are odd."""
    wide = columns // 2 + 1

    @tw.jit
    def kernel(X, B):
        X: T.Tensor((batch, 4, (rows // 2 + 1) * wide), dtype)
        B: T.Tensor((batch,), dtype)
        Y = T.empty((batch, rows, columns), dtype)
        for i, j, k in T.tile(T.each(batch), rows, columns):
            phase = (j.index % 2 * 2)[:, None] + k.index % 2
            x = X[i, phase, (j.index // 2 * wide)[:, None] + k.index // 2] + B[i]
            Y[i, j, k] = T.maximum(x, 0.0) * x
        return Y

    return kernel


def paired(batch, rows, columns):
    """The same where rows and columns are pairs, axes of their own."""

    @tw.jit
    def kernel(X):
        X: T.Tensor((batch, 4, rows * (columns + 1)), "float32")
        Y = T.empty((batch, rows, 2, columns, 2), "float32")
        for i, j, f, k, g in T.tile(T.each(batch), rows, 2, columns, 2):
            phase = ((f.index * 2)[:, None] + g.index)[:, None, :]
            place = ((j.index * (columns + 1))[:, None] + k.index)[:, None, :, None]
            Y[i, j, f, k, g] = X[i, phase, place] + 1.0
        return Y

    return kernel


def inputs(batch, rows, columns):
    """Of `together`, and what it should give."""
    high, wide = rows // 2 + 1, columns // 2 + 1
    X = np.random.default_rng(0).integers(-8, 8, (batch, 4, high * wide)).astype(np.float32)
    B = np.arange(batch, dtype=np.float32)
    j, k = np.arange(rows)[:, None], np.arange(columns)
    x = X[:, j % 2 * 2 + k % 2, j // 2 * wide + k // 2] + B[:, None, None]
    return (X, B), np.maximum(x, 0) * x


@pytest.mark.parametrize("target", ["interp", "cpu", *THREADS.values()], ids=str)
@pytest.mark.parametrize("rows, columns", [(5, 33), (9, 65), (3, 129)])
def test_together(target, rows, columns):
    given, want = inputs(2, rows, columns)
    np.testing.assert_array_equal(together(2, rows, columns).on(target)(*given), want)


@pytest.mark.parametrize("target", ["interp", "cpu", *THREADS.values()], ids=str)
@pytest.mark.parametrize("rows, columns", [(3, 17), (5, 33)])
def test_paired(target, rows, columns):
    X = np.random.default_rng(1).standard_normal((2, 4, rows * (columns + 1))).astype(np.float32)
    each = X.reshape(2, 2, 2, rows, columns + 1)[..., :columns]  # f, g, j, k
    want = each.transpose(0, 3, 1, 4, 2) + 1
    np.testing.assert_array_equal(paired(2, rows, columns).on(target)(X), want)


@pytest.mark.slow
def test_the_source():
    """As the host's compiler understands it."""
    given, want = inputs(2, 9, 95)
    program = together(2, 9, 95).on("cuda -arch=sm_90a").compile(*given).program
    try:
        found = judge.run(
            program, dict(zip("XBY", (*given, np.zeros(want.shape, np.float32)), strict=True))
        )
    except NoCompiler as error:
        pytest.skip(str(error))
    np.testing.assert_array_equal(found["Y"], want)


def slots(compiled):
    """Elements that threads have, beyond the result's or not, by `explain()`."""
    told = str(compiled.explain())
    (blocks,), (each,) = (
        {*re.findall(pattern, told)} for pattern in (r"grid ([\d ×]+)", r": (\d+) elements per")
    )
    return prod(int(n) for n in blocks.split("×")) * 128 * int(each)


@pytest.mark.parametrize("rows, columns, most", [(96, 129, 1.25), (95, 95, 1.05), (128, 255, 1.05)])
def test_few_slots(rows, columns, most):
    """With tiles of 64 columns in all cases there were up to 1.8 times as many as elements."""
    given, want = inputs(2, rows, columns)
    compiled = together(2, rows, columns).on("cuda -arch=sm_90a").compile(*given)
    assert slots(compiled) <= most * want.size


def test_pairs_lie_side_by_side():
    """Their runs go on along the axis before; 2.1 times as many slots as elements before."""
    X = np.zeros((2, 4, 64 * 66), np.float32)
    compiled = paired(2, 64, 65).on("cuda -arch=sm_90a").compile(X)
    assert slots(compiled) <= 1.25 * X.shape[0] * 4 * 64 * 65


def test_a_value_is_laid_out_as_what_is_made_of_it_moves():
    """Rows of 95 elements move one by one, so that neighbours have neighbours."""
    given, _ = inputs(2, 95, 95)
    told = str(together(2, 95, 95, "bfloat16").on("cuda -arch=sm_90a").compile(*given).explain())
    assert "(32,4)" in told and "16-byte accesses" not in told
