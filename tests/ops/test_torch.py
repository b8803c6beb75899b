"""Ops of tensors: operators that autograd, fake tensors and torch.compile know."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
import zlib
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
import tilewright.ops as ops
from tests.ops import more_cases
from tests.ops.cases import CASES
from tests.ops.test_ops import directional, several, slope
from tilewright.runtime.outputs import HostArray

assert more_cases, "which adds to CASES"
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "custom_op"), reason="PyTorch before 2.4"
)


def tensors(given: dict[str, Any]) -> dict[str, Any]:
    def tensor(x: Any) -> Any:
        if x.dtype.name in ("bfloat16", "float8_e4m3fn"):
            return torch.from_dlpack(HostArray(x))
        return torch.from_numpy(x)

    return {n: tensor(v.copy()) if isinstance(v, np.ndarray) else v for n, v in given.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_operator(name: str) -> None:
    """PyTorch's own checks of schema, fake tensors, autograd and dynamic shapes."""
    case, seed = CASES[name], zlib.crc32(name.encode())
    bound = case.op.bind((), tensors(case.given(seed, "float32")))
    for n in case.op.wrt:
        if bound[n] is not None:
            bound[n].requires_grad_()
    import_module("tilewright.ops.for_torch")
    op = getattr(torch.ops.tilewright_ops, case.op.name)
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if case.op.name.startswith("matmul_fp8"):
        del tests[0]  # PyTorch compares copies of arguments by what it lacks for 8-bit floats
    tests.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(op, tuple(bound[n] for n in case.op.names), test_utils=tests)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].op.wrt])
def test_training_through_torch_compile(name: str) -> None:
    """One graph, forward and backward, along a direction as differences say."""
    case, seed = CASES[name], zlib.crc32(name.encode())
    given = case.given(seed, "float32")
    wrt, ways, cotangents = directional(case, given, seed)
    found = tensors(given)
    torch._dynamo.reset()
    for n in wrt:
        found[n].requires_grad_()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(**given: Any) -> Any:
        floats = [r for r in several(case.op(**given)) if r.is_floating_point()]
        return sum((r * c).sum() for r, c in zip(floats, weights, strict=True))

    weights = [torch.from_numpy(c) for c in cotangents]
    loss(**found).backward()
    got = sum((found[n].grad.double() * torch.from_numpy(ways[n])).sum() for n in wrt)
    scale = sum((found[n].grad.double() * torch.from_numpy(ways[n])).abs().sum() for n in wrt)
    want = slope(case, given, ways, cotangents)
    assert abs(got - want) <= 1e-4 * max(scale, 1)


@pytest.mark.slow
def test_inductor() -> None:
    x = torch.randn(5, 16)
    made = torch.compile(lambda x: ops.softmax(torch.relu(x)) + 1, fullgraph=True)
    torch.testing.assert_close(made(x), torch.softmax(torch.relu(x), -1) + 1)


def test_functions_of_the_users_in_a_graph() -> None:
    q = torch.randn(1, 2, 6, 8, requires_grad=True)

    def near(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return x - 0.5 * tm.abs(i - j)

    made = torch.compile(
        lambda q: ops.attention(q, q, q, score_mod=near, mask_mod=lambda b, h, i, j: j <= i),
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    i = torch.arange(6)
    bias = -0.5 * (i[:, None] - i).abs() + torch.where(i <= i[:, None], 0.0, -torch.inf)
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, bias)
    got = made(q)
    torch.testing.assert_close(got, want)
    (d,) = torch.autograd.grad(got.square().sum(), q)
    (d_want,) = torch.autograd.grad(want.square().sum(), q)
    torch.testing.assert_close(d, d_want, atol=1e-4, rtol=1e-4)


def test_open_sizes() -> None:
    """One graph function for rows of several lengths."""

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def normed(x: Any, w: Any) -> Any:
        return ops.rms_norm(x * 2, x.shape[-1:], w, 1e-5).sum()

    for n in (8, 9, 11):
        x, w = torch.randn(3, n, requires_grad=True), torch.randn(n, requires_grad=True)
        got = normed(x, w)
        want = torch.nn.functional.rms_norm(x * 2, (n,), w, 1e-5).sum()
        torch.testing.assert_close(got, want)
        grads = zip(torch.autograd.grad(got, (x, w)), torch.autograd.grad(want, (x, w)))
        for d, d_want in grads:
            torch.testing.assert_close(d, d_want, atol=1e-4, rtol=1e-4)


def test_numbers_and_lists_for_tuples() -> None:
    x, w = torch.randn(1, 2, 7, 7, requires_grad=True), torch.randn(3, 2, 3, 3)
    want = torch.nn.functional.conv2d(x, w, stride=2, padding=1)
    got = ops.conv2d(x, w, stride=2, padding=[1, 1])
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    d, d_want = (torch.autograd.grad(y.sum(), x)[0] for y in (got, want))
    torch.testing.assert_close(d, d_want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ops.rms_norm(x, [7]), torch.nn.functional.rms_norm(x, [7]))


def test_only_what_records_a_gradient_gets_one() -> None:
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8)
    y = ops.rms_norm(x, (8,), w)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is not None and w.grad is None
    with torch.no_grad():
        assert not ops.rms_norm(x, (8,), w).requires_grad


def test_what_no_gradient_needs_is_not_kept() -> None:
    leaf, x = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    residual = leaf * 2
    alive = weakref.ref(residual)
    y = ops.matmul(x, torch.eye(8), residual=residual)
    del residual
    gc.collect()
    assert alive() is None
    y.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((3, 8), 2.0))


def test_strided_tensors_mean_what_they_hold() -> None:
    x = torch.randn(6, 5).T
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    torch.testing.assert_close(ops.matmul(x, x.T), x @ x.T)


def test_bad_tensors() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(tw.LaunchError, match="arrays of several libraries"):
        ops.matmul(x, np.ones((8, 2), np.float32))
    with pytest.raises(tw.LaunchError, match="other has elements of float64"):
        ops.matmul(x, torch.ones(8, 2, dtype=torch.float64))
    with pytest.raises(tw.LaunchError, match="arrays on several devices"):
        ops.matmul(x, torch.ones(8, 2, device="meta"))
    with pytest.raises(tw.LaunchError, match="weight has 7 elements along axis 0, where 8 is 8"):
        ops.rms_norm(x, (8,), torch.ones(7))
    with pytest.raises(tw.LaunchError, match="complex64"):
        ops.softmax(x.to(torch.complex64))
    with pytest.raises(tw.LaunchError, match="divided by zero"):
        ops.conv2d(x[None, None], x[None, None], stride=0)
    with pytest.raises(tw.CompileError, match="input is no array"):
        ops.softmax(None)
    with pytest.raises(tw.CompileError, match="activation is 3"):
        ops.matmul(x, x.T, activation=3)
    for padding in ("same", 1.5, (1, 2, 3)):
        with pytest.raises(tw.CompileError, match="padding is "):
            ops.conv2d(x[None, None], x[None, None], padding=padding)
    for wrong in ({"padding": -1}, {"dilation": 0}, {"stride": (1, -1)}):
        with pytest.raises(tw.CompileError, match="is out of range"):
            ops.conv2d(x[None, None], x[None, None], **wrong)


def test_errors_point_at_the_call() -> None:
    """PyTorch calls the operators for it."""
    with pytest.raises(tw.LaunchError) as error:
        ops.softmax(torch.arange(4))
    assert error.value.diagnostic.loc.file == __file__
    q, k = torch.ones(1, 3, 5, 4), torch.ones(1, 2, 5, 4)
    for array in (torch.Tensor, torch.Tensor.numpy):  # from the formula's own text
        with pytest.raises(tw.CompileError, match="3 heads of queries") as error:
            ops.attention(*(array(x) for x in (q, k, k)))
        assert error.value.diagnostic.loc.file == __file__


def test_types_by_name_or_as_such() -> None:
    x = torch.randn(2, 8)
    for a, b in zip(ops.quantize(x, torch.int8, 8), ops.quantize(x, "int8", 8)):
        assert torch.equal(a, b)


def test_compiled_before_any_call() -> None:
    """The operators are defined while torch.compile reads the first call."""
    code = (
        "import tilewright.ops as ops, sys\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "f = torch.compile(lambda x: ops.softmax(x), fullgraph=True, backend='eager')\n"
        "assert f(torch.zeros(2, 4)).tolist() == [[0.25] * 4] * 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
