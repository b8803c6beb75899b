"""Sizes that only calls know: one program serves them all."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
import tilewright.math as tm
from tilewright.formula.meaning import evaluate
from tilewright.ir.text.formula import parse_formula
from tilewright.support.errors import CompileError, LaunchError


def sample(*shape, kind=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32).astype(kind)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def masked(q, k, v):
    s = q.astype(float) @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    i, j = np.indices(s.shape[-2:])
    return softmax(np.where(j <= i + k.shape[-2] - q.shape[-2], s, -np.inf)) @ v


@tw.math(dynamic={"x": {0: "m"}})
def rows(x):
    return tm.softmax(x)


@tw.math(dynamic={"x": {0: "m", -1: "n"}})
def any_rows(x):
    return tm.softmax(x)


@tw.math(dynamic={"x": {0: "m", 1: T.dynamic("n", max=512)}})
def held_rows(x):
    return tm.softmax(x), tm.cumulative_sum(x, axis=1), tm.argmax(x, axis=1)


@tw.math(dynamic={"x": {0: "m", 1: "n"}})
def standardized(x):
    return (x - tm.mean(x, axis=1, keepdims=True)) / tm.std(x, axis=1, keepdims=True)


@tw.math(dynamic={"a": {0: "m", 1: "k"}, "b": {0: "k"}})
def product(a, b):
    return a @ b + a.shape[0]


@tw.math(dynamic={name: {0: "b", 1: "n" if name == "q" else "m"} for name in "qkv"})
def attention(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5
    i, j = tm.indices(s, -2, -1)
    return tm.softmax(tm.where(j <= i + (k.shape[1] - q.shape[1]), s, -tm.inf)) @ v


@tw.math(dynamic={"q": {0: "n", 1: "d"}, "k": {0: "m", 1: "d"}, "v": {0: "m", 1: "e"}})
def any_attention(q, k, v):
    return tm.softmax(q @ k.mT * q.shape[-1] ** -0.5) @ v


@tw.math(dynamic={"k": {2: "n"}, "v": {2: "n"}})
def decode(q, k, v):
    return tm.softmax(q @ k.mT) @ v


@tw.math(dynamic={"x": {0: T.dynamic("n", min=2)}})
def parts(x):
    n = x.shape[0]
    picked = tm.array((n,), lambda i: x[n - 1 - i] * n)
    return tm.diff(x), x[::-1], x[-1], x[1 : n - 1], tm.concat([x, x]), picked, tm.arange(n)


@tw.math(dynamic={"x": {0: "b", 1: "n"}})
def heads(x):
    b, n, d = x.shape
    split = tm.permute_dims(tm.reshape(x, (b, n, 2, d // 2)), (0, 2, 1, 3))
    return tm.reshape(split, (2 * b, n, -1))


@tw.math(dynamic={"x": {0: "n"}})
def total(x):
    return tm.sum(x), tm.mean(x), x * x.shape[0] ** -0.5


@tw.math(dynamic={"x": {0: T.dynamic("n", max=64), 1: "m"}})
def spread(x):
    return tm.var(tm.cumulative_sum(x, axis=0), axis=0), tm.sum(tm.cumulative_sum(x, axis=0))


@tw.math(dynamic={"x": {0: "n", 1: "m"}})
def conditions(x):
    return tm.any(x > 2, axis=-1), tm.all(x > -2, axis=0), tm.any(x > 3.5)


_SHAPES = [(1, 1), (3, 7), (20, 300)]
CASES = {
    "rows": (rows, softmax, [(sample(m, 37),) for m in (1, 5, 100)]),
    "any_rows": (any_rows, softmax, [(sample(*s),) for s in _SHAPES]),
    "held_rows": (
        held_rows, lambda x: (softmax(x), x.cumsum(1), x.argmax(1)),
        [(sample(*s),) for s in _SHAPES],
    ),
    "standardized": (
        standardized, lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
        [(sample(*s) + 100,) for s in ((2, 9), (20, 300))],
    ),
    "product": (product, lambda a, b: a @ b + len(a),
                [(sample(m, k), sample(k, 24)) for m, k in ((1, 1), (7, 50), (130, 33))]),
    "attention": (attention, masked, [
        (sample(b, n, 16, kind=np.float16), sample(b, m, 16, kind=np.float16),
         sample(b, m, 16, kind=np.float16)) for b, n, m in ((1, 1, 1), (2, 30, 30), (3, 7, 100))
    ]),
    "any_attention": (any_attention, lambda q, k, v: softmax(q @ k.T * q.shape[-1] ** -0.5) @ v, [
        (sample(n, d), sample(m, d), sample(m, e)) for n, m, d, e in ((1, 1, 1, 1), (9, 50, 7, 20))
    ]),
    "decode": (decode, lambda q, k, v: softmax(q @ np.swapaxes(k, -1, -2)) @ v, [
        (sample(2, 1, 4, 16), sample(2, 1, n, 16), sample(2, 1, n, 16)) for n in (1, 30, 3000)
    ]),
    "parts": (
        parts,
        lambda x: (np.diff(x), x[::-1], x[-1], x[1:-1], np.concatenate([x, x]), x[::-1] * len(x),
                   np.arange(len(x))),
        [(sample(n),) for n in (2, 7, 100)],
    ),
    "heads": (
        heads,
        lambda x: x.reshape(*x.shape[:2], 2, -1).transpose(0, 2, 1, 3).reshape(
            2 * len(x), x.shape[1], -1),
        [(sample(b, n, 16),) for b, n in ((1, 1), (3, 5))],
    ),
    "spread": (
        spread, lambda x: (x.cumsum(0).var(0), x.cumsum(0).sum()),
        [(sample(*s),) for s in ((1, 1), (8, 33), (50, 3))],
    ),
    "conditions": (conditions, lambda x: ((x > 2).any(1), (x > -2).all(0), (x > 3.5).any()),
                   [(sample(*s),) for s in _SHAPES]),
    "total": (total, lambda x: (x.sum(), x.mean(), x * len(x) ** -0.5),
              [(sample(n),) for n in (1, 5, 5000)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_all_sizes(name):
    function, wanted, calls = CASES[name]
    for arrays in calls:
        found, want = function(*arrays), wanted(*arrays)
        pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, want)), strict=True)
        for one, other in pairs:
            assert np.shape(one) == np.shape(other)
            np.testing.assert_allclose(
                np.asarray(one, float), np.asarray(other, float), rtol=3e-3, atol=3e-3
            )
    (formula,) = function.formulas
    assert parse_formula(str(formula)) == formula
    meant = evaluate(formula, calls[-1])
    for one, other in zip(meant, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(one.astype(float), other, rtol=3e-3, atol=3e-3)


def test_a_mask_of_sizes_bounds_the_loop():
    q = sample(2, 30, 16)
    assert "for l in T.tile(j.stop + M - N):" in attention.tile(q, q, q)


def test_means_of_any_length_are_centered():
    assert "j.stop" in standardized.tile(sample(3, 9)), "the mean so far is the center"


def test_sizes_that_arguments_share_are_checked():
    with pytest.raises(LaunchError, match="dimension 0 of b and dimension 1 of a are both k"):
        product(sample(3, 8), sample(9, 4))


def test_an_index_may_be_named_like_a_size():
    def convolved(x, f):
        return tm.array((8,), lambda o: tm.sum((3,), lambda r: x[o + r] * f[r]))

    x, f = sample(8), sample(3)
    got = tw.math(convolved, target="cpu", dynamic={"f": {0: "r"}})(x, f)
    want = [sum(x[o + r] * f[r] for r in range(3) if o + r < 8) for o in range(8)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_contracts_are_checked():
    with pytest.raises(LaunchError, match="at most 512"):
        held_rows(sample(2, 600))


def endless(x):
    return tm.cumulative_sum(x)


def running(x):
    return tm.var(tm.cumulative_sum(x))


def chances(x):
    return tm.cumulative_sum(tm.softmax(x, axis=-1), axis=-1)


def branches(x):
    return x + 1 if x.shape[0] > 4 else x


def looped(x):
    return tm.stack([x[i] for i in range(x.shape[0])])


def too_far(x):
    return x[5]


def apart(x, y):
    return x + y


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (endless, "needs all of an axis of n elements at once"),
        (running, "needs all of an axis of n elements at once"),
        (chances, "needs all of an axis of n elements at once"),
        (branches, "n >= 5 is known only when"),
        (looped, "n is known only when"),
        (too_far, "whether index 5 lies inside"),
        (lambda x: x[-(x.shape[0] // 2) :], "whether the part .* lies inside"),
        (lambda x: tm.reshape(x, (-1, 4)), r"\(n,\) has n elements, which \(-1, 4\) does not hold"),
        (apart, r"\(n,\) and \(k,\) do not broadcast"),
    ],
)
def test_what_needs_a_number_says_so(function, said):
    arrays = [sample(3)] * (2 if function is apart else 1)
    names = {"x": {0: "n"}, "y": {0: "k"}}
    dynamic = {n: names[n] for n in ("x", "y")[: len(arrays)]}
    with pytest.raises(CompileError, match=said) as caught:
        tw.math(function, dynamic=dynamic)(*arrays)
    assert "fix" in str(caught.value) and function.__code__.co_filename in str(caught.value)


def test_contracts_decide():
    longer = tw.math(branches, dynamic={"x": {0: T.dynamic("n", min=5)}})
    assert longer(np.zeros(6, np.float32)).tolist() == [1.0] * 6


def test_calls_with_known_shapes_bind_nothing_again(monkeypatch):
    function = tw.math(lambda x, y: x + y, dynamic={"x": {0: "n"}, "y": {0: "n"}})
    x = np.ones(3, np.float32)
    function(x, x)
    monkeypatch.setattr(function, "_of", None)
    assert function(np.ones(5, np.float32), np.ones(5, np.float32)).tolist() == [2.0] * 5


def test_numbers_of_sizes_do_not_wrap():
    """A product of sizes may have more than 32 bits, though no axis has."""

    def function(x):
        n, y = x.shape[0], x[:2]
        return y * (n * n), tm.sum(x) / n**2, tm.mean(y + (n * n // 7 - n)), y + n / n**3

    made = tw.math(function, target="cpu", dynamic={"x": {0: T.dynamic("n", min=2)}})
    for n in (5, 70_000):
        x = np.ones(n, np.float32)
        found = made(x)
        expected = n * n, 1 / n, 1 + n * n // 7 - n, 1 + n / n**3
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2), (1, 2), (0,)])
@pytest.mark.parametrize("names", [None, {0: "a", 1: "b", 2: "c"}, {0: "a", 2: "c"}])
def test_squares_of_squares_over_several_axes(axes, names):
    """What is summed as often as there are elements counts those of all axes."""
    made = tw.math(lambda x: tm.var(x * x, axis=axes), target="cpu", dynamic=names and {"x": names})
    x = np.random.default_rng(0).random((5, 3, 7), dtype=np.float32)
    np.testing.assert_allclose(made(x), np.var(x * x, axis=axes), rtol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda xp, x: xp.reshape(x, (x.shape[0], -1, 4)),
        lambda xp, x: xp.reshape(xp.reshape(x, (x.shape[0] * 4, -1)), (-1, 2)),
        lambda xp, x: xp.sum(xp.reshape(x, (2, x.shape[1] // 4, 4)), axis=0),
        lambda xp, x: xp.sum(xp.reshape(x.T, (-1, 4, 2)), axis=1),
        lambda xp, x: x[:, -(x.shape[1] // 2) :] + x[:, -(x.shape[1] // 4)][:, None],
        lambda xp, x: xp.roll(x, (x.shape[1] // 2, -x.shape[1]), axis=(1, 0)),
    ],
)
def test_contracts_divide_and_have_a_sign(function):
    """Of a multiple of 4 there are quarters; a negative number of sizes counts from the end."""
    size = T.dynamic("n", min=4, multiple_of=4)
    made = tw.math(lambda x: function(tm, x), target="cpu", dynamic={"x": {1: size}})
    for n in (4, 12):
        x = sample(2, n)
        np.testing.assert_allclose(made(x), function(np, x), rtol=1e-5)


def test_channels_come_in_groups():
    """All sizes but the number of groups are those of calls."""

    @tw.math(target="cpu", dynamic={"x": {0: "n", 1: T.dynamic("c", multiple_of=4), 2: "m"}})
    def group_norm(x):
        n, c, m = x.shape
        y = tm.reshape(x, (n, 4, c // 4, m))
        y = (y - tm.mean(y, axis=(2, 3), keepdims=True)) / tm.std(y, axis=(2, 3), keepdims=True)
        return tm.reshape(y, (n, c, m))

    for shape in ((2, 12, 5), (1, 8, 3)):
        x = sample(*shape)
        y = x.reshape(shape[0], 4, -1)
        want = (y - y.mean(-1, keepdims=True)) / y.std(-1, keepdims=True)
        np.testing.assert_allclose(group_norm(x), want.reshape(shape), rtol=1e-4, atol=1e-5)
