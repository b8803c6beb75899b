"""Folds over windows: loops over their places, which read shifted tiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from devtools.fuzz.formulas import computed_by

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 13, 37)).astype(np.float32)


def outputs(length, taps, stride=1):
    return (length - taps) // stride + 1


def depthwise(x, w):
    c, h, n = x.shape
    a, b = w.shape[1:]
    shape = c, outputs(h, a), outputs(n, b)
    return tm.array(
        shape, lambda c, i, j: tm.sum((a, b), lambda p, q: x[c, i + p, j + q] * w[c, p, q])
    )


def average(x):
    shape = x.shape[0], outputs(x.shape[1] + 2, 3, 2), outputs(x.shape[2] + 2, 3, 2)

    def element(c, i, j):
        return tm.sum((3, 3), lambda p, q: x[c, i * 2 + p - 1, j * 2 + q - 1]) / 9

    return tm.array(shape, element)


def largest(x):
    shape = x.shape[0], outputs(x.shape[1], 2, 2), outputs(x.shape[2], 5)
    return tm.array(shape, lambda c, i, j: tm.max((2, 5), lambda p, q: x[c, i * 2 + p, j + q]))


def normalized(x):
    """A fold of windows that other folds need."""
    return tm.softmax(largest(x), axis=-1)


def beside_its_sum(x, i):
    """Elements that are read at places that data say, and what they sum to: no window."""
    picked = tm.take_along_axis(x, i, axis=1)
    return picked + tm.sum(picked, axis=1, keepdims=True)


def windows(x, size, stride=(1, 1)):
    found = np.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    return found[:, :: stride[0], :: stride[1]]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


W = RNG.standard_normal((3, 3, 3)).astype(np.float32)
AT = RNG.integers(0, 37, (13, 5))
PICKED = np.take_along_axis(X[0], AT, 1)
PADDED = np.pad(X, ((0, 0), (1, 1), (1, 1)))
MEANT = {
    "depthwise": (depthwise, (X, W), np.einsum("chwpq,cpq->chw", windows(X, (3, 3)), W)),
    "average": (average, (X,), windows(PADDED, (3, 3), (2, 2)).mean((3, 4))),
    "largest": (largest, (X,), windows(X, (2, 5), (2, 1)).max((3, 4))),
    "beside": (beside_its_sum, (X[0], AT), PICKED + PICKED.sum(1, keepdims=True)),
    "normalized": (normalized, (X,), softmax(windows(X, (2, 5), (2, 1)).max((3, 4)))),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "interp", "threads"])
@pytest.mark.parametrize("name", MEANT)
def test_windows_are_folded(name, target):
    function, given, meant = MEANT[name]
    _, (found,) = computed_by(function, list(given), target)
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5)


def test_the_largest_keeps_nan():
    x = X.copy()
    x[1, 4, 7] = np.nan
    found = np.asarray(tw.math(largest, target="interp")(x))
    np.testing.assert_array_equal(found, windows(x, (2, 5), (2, 1)).max((3, 4)))


def test_the_text_reads_shifted_tiles():
    x = np.zeros((64, 512, 512), ml_dtypes.bfloat16)
    text = tw.math(depthwise, target="cuda").tile(x, x[:, :3, :3])
    assert text[text.index("    for") : text.index("    return")] == DEPTHWISE


DEPTHWISE = """\
    for i, j, k in T.tile(T.each(I), J, J):
        total = T.zeros((j, k))
        for p in range(P):
            for q in range(P):
                total += X[i, j + p, k + q] * W[i, p, q]
        Out[i, j, k] = total
"""


def test_windows_beside_each_other_are_read_along_runs():
    """An axis read at 2·i + p stays one: threads read what neighbours of i need by vectors."""
    x = np.zeros((64, 126, 126), ml_dtypes.bfloat16)

    def pool(x):
        return tm.array(
            (64, 63, 63), lambda c, i, j: tm.max((2, 2), lambda p, q: x[c, i * 2 + p, j * 2 + q])
        )

    text = tw.math(pool, target="cuda").tile(x)
    assert "X: T.Tensor((I, 126, 126)" in text
    assert "X[i.index[:, None, None], (j.index * 2 + p)[:, None], k.index * 2 + q]" in text


def test_large_windows_leave_tiles():
    """A block has many windows: one each took twice as long on an H200."""

    @tw.math
    def blocks(x):
        return tm.array((3, 40, 40), lambda c, i, j: tm.sum(
            (9, 9), lambda p, q: x[c, i * 9 + p, j * 9 + q]))  # fmt: skip

    x = RNG.standard_normal((3, 360, 360)).astype(np.float32)
    text = blocks.tile(x)
    assert text.count("in range(") == 2
    np.testing.assert_allclose(
        blocks(x), x.reshape(3, 40, 9, 40, 9).sum((2, 4)), rtol=1e-4, atol=1e-4
    )
