"""Elementary functions of float32, to 2 ulp over everything a float32 can be."""

import math

import numpy as np
import pytest

from tests.cpu.common import compiled
from tests.cpu.test_numbers import EXACT, elementwise, exactly, functions

COUNT = 1 << 19
# (dense where results change fast, overflow, underflow or cancel)
INTERVALS = {
    "exp": [(-106, 90)], "exp2": [(-152, 130)], "exp10": [(-46, 39.5)],
    "log": [(0, 4), (0.99, 1.01)], "log2": [(0, 4), (0.99, 1.01)], "log10": [(0, 4), (0.99, 1.01)],
    "log1p": [(-1, 4)], "expm1": [(-20, 89), (-0.01, 0.01)],
    "tanh": [(-10, 10), (-0.7, 0.7)], "sigmoid": [(-106, 106), (-8, 8)],
    "erf": [(-5, 5)], "sin": [(-100, 100), (-4, 4)], "cos": [(-100, 100), (-4, 4)],
    "tan": [(-10, 10)], "asin": [(-1, 1)], "acos": [(-1, 1)], "atan": [(-10, 10)],
    "sinh": [(-10, 10)], "cosh": [(-10, 10)], "sqrt": [(0, 10)], "rsqrt": [(0, 10)],
}  # fmt: skip
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38,
           1.17549435e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0, 0.5, 2.0]  # fmt: skip


def patterns(seed, count=COUNT):
    """Floats from all over: every exponent and sign, subnormals, infinities and NaN among them."""
    words = np.arange(count, dtype=np.uint64) * (2**32 // count) + seed % (2**32 // count)
    found = words.astype(np.uint32).view(np.float32)
    found[: len(SPECIAL)] = SPECIAL
    return found


def distance(got, exact):
    """In units of the last place of the exact result; infinite where one is special alone."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        exponent = np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126)))
        unit = np.exp2(np.where(np.isfinite(exponent), exponent, 0) - 23)
        far = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == near) | (np.isnan(got) & np.isnan(near))
    special = ~np.isfinite(got) | ~np.isfinite(near)
    return np.where(same, 0, np.where(special, np.inf, far))


def worst(name, x):
    far = distance(functions({name: x})[name], exact_of(name.removeprefix("__"), x))
    at = int(far.argmax())
    return far[at], x[at]


def exact_of(name, x):
    if name == "sigmoid":
        with np.errstate(all="ignore"):
            small = np.exp(-np.abs(x.astype(np.float64)))
        return np.where(x < 0, small, 1) / (1 + small)
    return exactly(name, x)


@pytest.mark.parametrize("name", INTERVALS)
def test_two_ulp(name):
    x = [patterns(12345, COUNT // 8)] if name == "erf" else [patterns(12345)]
    for low, high in INTERVALS[name]:
        x.append(np.linspace(low, high, COUNT // (8 if name == "erf" else 1)).astype(np.float32))
    for each in x:
        far, at = worst(name, each)
        assert far <= 2, f"{name}({at!r}) is off by {far:.2f} ulp"


@pytest.mark.parametrize(
    "name, low, high", [("__exp", -87.3, 88.3), ("__exp2", -126, 127.5), ("__sigmoid", -80, 80)]
)
def test_fast_forms(name, low, high):
    x = np.linspace(low, high, COUNT).astype(np.float32)
    far, at = worst(name, x)
    assert far <= 4, f"{name}({at!r}) is off by {far:.2f} ulp"
    ends = np.resize(np.array([-np.inf, np.inf, np.nan, -1e30, 1e30, 0.0], np.float32), 1000)
    got = functions({name: ends})[name]
    np.testing.assert_array_equal(got, exact_of(name.removeprefix("__"), ends).astype(np.float32))
    # between the largest power of two and overflow: never NaN, never small
    edge = np.linspace(127, 129, 1000).astype(np.float32)
    if name == "__exp2":
        assert (functions({name: edge})[name] >= 2.0**126.9).all()


def test_power():
    rng = np.random.default_rng(0)
    a = np.exp2(rng.uniform(-30, 30, COUNT)).astype(np.float32)
    b = rng.uniform(-5, 5, COUNT).astype(np.float32)
    args = {"A": a, "B": b, "Y": np.zeros(COUNT, np.float32)}
    compiled(elementwise("pow(A[j], B[j])", "float32", "float32", n=COUNT, out="float32"))(args)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) ** b.astype(np.float64)
    assert distance(args["Y"], exact).max() <= 2


def test_the_yardstick():
    """What the exact values are computed with is far more exact than what is asked."""
    assert EXACT["erf"](np.array([0.5]))[0] == math.erf(0.5)
    assert distance(np.float32([1.0]), np.array([1 + 2.0**-23]))[0] == pytest.approx(1)
    assert distance(np.float32([np.inf]), np.array([1.0]))[0] == np.inf
