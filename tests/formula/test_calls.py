"""Calls as people write them: arguments of all kinds, results of all forms, empty arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tilewright.support.errors import CompileError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Pair(NamedTuple):
    first: object
    second: object


add = tw.math(lambda x, y: x + y)


@pytest.mark.parametrize(
    "x",
    [X.T, X[:, ::2], X[::-1], np.broadcast_to(X[0], (3, 4)), np.float32(2), np.array(2.0)],
    ids=["turned", "strided", "reversed", "broadcast", "scalar", "rank 0"],
)
def test_arrays_of_any_strides(x):
    np.testing.assert_array_equal(add(x, x), x + x)
    np.testing.assert_array_equal(add(x, 2), x + 2)


def test_arrays_that_cannot_be_written():
    x = X.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(add(x, x), x + x)


@tw.math
def combined(x, *more, scale=2.0, table=None, **named):
    found = x * scale
    for each in (*more, *named.values()):
        found = found + each
    return found if table is None else found + table["w"][0]


def test_arguments_of_any_form():
    np.testing.assert_array_equal(combined(X), X * 2)
    np.testing.assert_array_equal(combined(X, scale=3.0), X * 3)
    np.testing.assert_array_equal(combined(X, X, X), X * 4)
    np.testing.assert_array_equal(combined(X, X, other=X), X * 4)
    np.testing.assert_array_equal(combined(x=X, table={"w": [X, 1]}), X * 3)
    np.testing.assert_array_equal(combined(X, scale=3.0), X * 3)


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: (x + 1,),
        lambda x: [x + 1, x * 2],
        lambda x: {"a": x + 1, "n": 3},
        lambda x: (x + 1, (None, {"b": x * 2})),
        lambda x: Pair(x + 1, "text"),
    ],
)
def test_results_of_any_form(returned):
    found, want = tw.math(returned)(X), returned(X)
    assert type(found) is type(want)
    np.testing.assert_equal(found, want)


class Scaled:
    def __init__(self, by):
        self.by = by

    @tw.math
    def __call__(self, x):
        return x * self.by

    @tw.math
    def twice(self, x):
        return self(self(x))


def test_methods_know_what_their_object_holds():
    scaled = Scaled(3.0)
    np.testing.assert_array_equal(scaled.twice(X), X * 9)
    scaled.by = 2.0
    np.testing.assert_array_equal(scaled.twice(X), X * 4)
    np.testing.assert_array_equal(Scaled(1.0).twice(X), X)
    assert "X[i]" in scaled.twice.tile(X)


factor = 2.0


@tw.math
def by_global(x):
    return x * factor


def test_globals_that_are_bound_anew(monkeypatch):
    np.testing.assert_array_equal(by_global(X), X * 2)
    monkeypatch.setattr("tests.formula.test_calls.factor", 5.0)
    np.testing.assert_array_equal(by_global(X), X * 5)


@tw.math
def power(x, n):
    return x if n == 0 else x * power(x, n - 1)


def test_functions_call_functions():
    np.testing.assert_array_equal(power(X, 2), X**3)


# ── empty arrays ─────────────────────────────────────────────────────────────────────────────

NONE = np.zeros((0, 4), np.float32)
WIDE = np.zeros((3, 0), np.float32)


@pytest.mark.parametrize(
    ("function", "arrays", "want"),
    [
        (lambda x: x + 1, [NONE], NONE),
        (lambda x: tm.sum(x), [NONE], np.float32(0)),
        (lambda x: tm.prod(x, axis=0), [NONE], np.ones(4, np.float32)),
        (lambda x: tm.all(x > 0, axis=0), [NONE], np.ones(4, bool)),
        (lambda x: tm.max(x, axis=1), [NONE], np.zeros(0, np.float32)),
        (lambda x: tm.softmax(x), [WIDE], WIDE),
        (lambda a, b: a @ b, [WIDE, NONE], np.zeros((3, 4), np.float32)),
        (lambda a, b, c: a @ b + c, [WIDE, NONE, X], X),
        (lambda q, k: tm.softmax(q @ k.mT) @ k, [X, NONE], np.zeros((3, 4), np.float32)),
        (lambda x, y: tm.concat([x, y]), [NONE, X], X),
        (lambda x, y: (x, tm.sum(y, axis=1)), [NONE, X], (NONE, X.sum(1))),
        (lambda x: x[2:2], [X], NONE),
        (lambda x: tm.reshape(x, (2, 0)), [NONE], np.zeros((2, 0), np.float32)),
    ],
)
def test_empty_arrays(function, arrays, want):
    found = tw.math(function)(*arrays)
    pairs = zip(found, want, strict=True) if isinstance(want, tuple) else [(found, want)]
    for one, other in pairs:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def test_a_maximum_of_nothing_is_refused():
    with pytest.raises(CompileError, match="max of no elements"):
        tw.math(lambda x: tm.max(x, axis=0))(NONE)


def test_sizes_that_calls_give_may_be_zero():
    rows = tw.math(lambda x: tm.sum(x, axis=1), dynamic={"x": {0: "n"}})
    assert [rows(X[:n]).tolist() for n in (0, 2, 0)] == [[], [6.0, 22.0], []]


def test_a_kernel_is_looked_up_again_when_settings_change(monkeypatch):
    """And not for each call of the same shapes and types."""
    f, x = tw.math(lambda x: x * 2), np.arange(4, dtype=np.float32)
    monkeypatch.setenv("TILEWRIGHT_TARGET", "interp")
    assert f(x).tolist() == f(x).tolist() == [0, 2, 4, 6]
    (made,) = f._made.values()
    asked = []
    known = made.kernel.calls.known
    monkeypatch.setattr(made.kernel.calls, "known", lambda *a: asked.append(1) or known(*a))
    f(x), f(x)
    assert not asked
    monkeypatch.setenv("TILEWRIGHT_TARGET", "cpu")
    assert f(x).tolist() == f(x).tolist() == [0, 2, 4, 6]
    assert len(asked) == 1
