"""What `pass_configs` ask for happens."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower


@T.prim_func
def softcap(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        x = T.alloc_fragment((64, 64), "float32")
        T.copy(X, x)
        for i, j in T.Parallel(64, 64):
            x[i, j] = 30.0 * T.tanh(x[i, j] / 30.0) + T.exp(x[i, j])
        T.copy(x, Y)


@T.prim_func
def tile(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((64, 64), "float32")
        T.copy(X, s)
        T.copy(s, Y)


@T.prim_func
def total(X: T.Tensor((64,), "float32"), Y: T.Tensor((1,), "float32")):
    with T.Kernel(64, threads=32) as b:
        T.atomic_add(Y[0], X[b])


@T.prim_func
def count(X: T.Tensor((64,), "int32"), Y: T.Tensor((1,), "int32")):
    with T.Kernel(64, threads=32) as b:
        T.atomic_add(Y[0], X[b])


def source(program, **configs):
    return tw.compile(program, target="cuda", pass_configs=configs).get_kernel_source()


def test_fast_math():
    fast, plain = source(softcap, fast_math=True), source(softcap)
    for word in ("tw::tanh_fast(", "tw::exp_fast(", "tw::divide_fast("):
        assert word in fast and word not in plain


def test_fast_math_means_the_same():
    trace = lower(softcap.program, Target.parse("cuda -fast_math"))
    step = next(s.program for s in trace if s.name == "use_fast_functions")
    x = np.linspace(-50, 3, 64 * 64, dtype=np.float32).reshape(64, 64)
    want, got = np.empty_like(x), np.empty_like(x)
    machine.run(softcap.program, {"X": x, "Y": want})
    machine.run(step, {"X": x, "Y": got})
    np.testing.assert_array_equal(got, want)


def test_without_the_bulk_engine():
    assert "bulk_load" in source(tile)
    assert "bulk" not in source(tile, bulk_copies=False).split("tilewright.cuh")[1]


@pytest.mark.parametrize("target", ["cpu", "cuda", "interp"])
def test_deterministic_refuses_sums_in_any_order(target):
    with pytest.raises(CompileError, match="other bits from run to run") as caught:
        tw.compile(total, target=target, pass_configs={"deterministic": True})
    assert "second T.Kernel" in str(caught.value)
    assert caught.value.loc.line == total.program.kernels[0].loc.line + 1


def test_deterministic_lets_integers_pass():
    kernel = tw.compile(count, target="interp", pass_configs={"deterministic": True})
    y = np.zeros(1, np.int32)
    kernel(np.ones(64, np.int32), y)
    assert y[0] == 64
