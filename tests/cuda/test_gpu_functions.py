"""Functions of float32 on a GPU that have forms of their own there, over all a float32 can be."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cpu.test_functions import COUNT, distance, exact_of, patterns

pytestmark = pytest.mark.gpu

LEAST_NORMAL = 2.0**-126
# name → ulp, and where results change fast, overflow or underflow
FORMS = {
    "exp2": (2.5, (-152, 130)),
    "sigmoid": (4, (-106, 106)),
    "__exp2": (2.5, (-152, 130)),
}


@tw.jit
def apply(count, name, divisor=1.0):
    function = getattr(T, name, lambda x: x / divisor)

    @T.prim_func
    def main(X: T.Tensor((count,), "float32"), Y: T.Tensor((count,), "float32")):
        with T.Kernel(T.ceildiv(count, 1024), threads=128) as bx:
            for i in T.Parallel(1024):
                Y[bx * 1024 + i] = function(X[bx * 1024 + i])

    return main


def applied(x, *how):
    import torch

    y = torch.full((len(x),), float("nan"), device="cuda")
    apply.on("cuda")(len(x), *how)(torch.from_numpy(x).cuda(), y)
    return y.cpu().numpy()


@pytest.mark.parametrize("name", FORMS)
def test_a_few_ulp_but_where_results_are_tiny(name):
    bound, (low, high) = FORMS[name]
    for x in (patterns(12345), np.linspace(low, high, COUNT).astype(np.float32)):
        y = applied(x, name)
        exact = exact_of(name.removeprefix("__"), x)
        flushed = (np.abs(exact) < LEAST_NORMAL * (1 + 2.0**-20)) & (y == 0)
        far = np.where(flushed, 0, distance(y, exact))
        at = int(far.argmax())
        assert far[at] <= bound, f"{name}({x[at]!r}) is {y[at]!r}, off by {far[at]:.2f} ulp"


@pytest.mark.parametrize("divisor", [3.0, 50.0, -448.0, 11.313708, 1.0000001, 1.9999999, 1e18])
def test_division_by_a_constant_is_rounded_once(divisor):
    x = np.concatenate([patterns(54321), np.float32([0.0, -0.0, 1e-45, -1e-45])])
    y = applied(x, "quotient", divisor)
    with np.errstate(all="ignore"):
        want = x / np.float32(divisor)
    small = np.abs(x) < 2.0**-100
    np.testing.assert_array_equal(y[~small], want[~small])
    assert distance(y[small], want[small].astype(np.float64)).max() <= 1
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(y[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("wide", ["float16", "bfloat16", "float32"])
def test_small_integers_become_floats(kind, wide):
    import torch

    ends = np.iinfo(kind)
    x = np.arange(ends.min, ends.max + 1).astype(kind)

    @T.prim_func
    def main(X: T.Tensor((len(x),), kind), Y: T.Tensor((len(x),), wide)):
        with T.Kernel(T.ceildiv(len(x), 256), threads=128) as bx:
            for i in T.Parallel(256):
                Y[bx * 256 + i] = X[bx * 256 + i]

    y = torch.empty(len(x), dtype=getattr(torch, wide), device="cuda")
    tw.compile(main, target="cuda")(torch.from_numpy(x).cuda(), y)
    want = torch.from_numpy(x.astype(np.float32)).to(y.dtype)
    assert torch.equal(y.cpu(), want)


@pytest.mark.parametrize("op", ["+", "-", "*"])
def test_float16_is_rounded_once_an_operation(op):
    import torch

    compute = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}[op]
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 2**16, 2**20).astype(np.uint16).view(np.float16) for _ in range(2))

    @T.prim_func
    def main(
        A: T.Tensor((2**20,), "float16"),
        B: T.Tensor((2**20,), "float16"),
        C: T.Tensor((2**20,), "float16"),
    ):
        with T.Kernel(2**20 // 1024, threads=128) as bx:
            for i in T.Parallel(1024):
                C[bx * 1024 + i] = compute(compute(A[bx * 1024 + i], B[bx * 1024 + i]), 3)

    c = torch.empty(2**20, dtype=torch.float16, device="cuda")
    tw.compile(main, target="cuda")(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), c)
    with np.errstate(all="ignore"):
        inner = compute(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
        want = compute(inner.astype(np.float32), np.float32(3)).astype(np.float16)
    np.testing.assert_array_equal(c.cpu().numpy(), want)
