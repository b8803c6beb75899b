"""Vectors that begin within one, and maxima of 16 bits in pairs: by thread code, and by the emitted
source as a C++ compiler understands it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from devtools.host import build, judge
from tilewright import machine
from tilewright.ir.dtype import dtype as kind_of
from tilewright.ir.op import Intrinsic, walk_ops
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import lower

HOPPER = Target.parse("cuda -arch=sm_90a")


def shifted(dtype, size=600, tile=512):
    """A tile of elements that begin anywhere: outside the tensor they are 0."""

    @T.prim_func
    def main(A: T.Tensor((size,), dtype), by: T.int32, C: T.Tensor((tile,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(tile):
                C[i] = A[i + by]

    return main.program


def names_of(program):
    return [op.name for op in walk_ops(program.kernels[0], Intrinsic)]


@pytest.mark.parametrize(
    "dtype, vectors", [("bfloat16", True), ("int8", True), ("float32", False), ("int64", False)]
)
def test_begins_anywhere(dtype, vectors):
    """Two loads for eight elements or more; four and fewer are loaded one by one."""
    program = shifted(dtype)
    code = lower(program, HOPPER).result
    assert ("load_across" in names_of(code)) == vectors
    a = np.arange(1, 601).astype(kind_of(dtype).numpy)
    for by in (0, 1, 2, 5, 7, 8, 87, 88, 89, 100, -1, -9):
        want = np.array([a[i + by] if 0 <= i + by < 600 else 0 for i in range(512)], a.dtype)
        got = np.zeros(512, a.dtype)
        machine.run_threads(code, {"A": a, "by": by, "C": got})
        np.testing.assert_array_equal(got, want, err_msg=str(by))


def test_what_the_kernel_writes_is_not_read_early():
    """Loads of tensors that nobody writes may be moved; others may not."""

    @T.prim_func
    def main(A: T.Tensor((300,), "bfloat16"), by: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(256):
                A[i] = A[i + by]

    assert "load_across" not in names_of(lower(main.program, HOPPER).result)


@tw.jit
def extremes(X, dtype="bfloat16"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    high, low = T.empty((M,), dtype), T.empty((M,), dtype)
    for r in T.tile(M):
        x = T.load(X[r, :])
        high[r], low[r] = T.max(x, dim=1), T.min(x, dim=1)
    return high, low


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("columns", [4096, 3001])
def test_pairs(dtype, columns):
    """Also where a guard leaves out some elements of a pair, and NaN stays."""
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    x[1, columns - 1], x[2, 5] = 1000, np.nan
    x = x.astype(kind_of(dtype).numpy)
    pinned = extremes.on("cuda").with_schedule(tiles={"N": 1024})
    kernel = pinned.compile(x, dtype=dtype)
    code = lower(kernel.program, HOPPER).result
    assert "fold_pair" in names_of(code)
    wide = x.astype(np.float32)
    outputs = [t.name for t in code.tensors if t.name != "X"]
    made = {name: np.zeros(3, x.dtype) for name in outputs}
    machine.run_threads(code, {"X": x, **made})
    for got, want in zip(made.values(), (wide.max(1), wide.min(1)), strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), want)


def test_source():
    """What is emitted for both, compiled for the host."""
    try:
        build.compiler()
    except build.NoCompiler as error:
        pytest.skip(str(error))
    program = shifted("bfloat16")
    code = lower(program, HOPPER).result
    ready = judge.ready(program, code, "sm_90a")
    a = np.arange(600).astype(ml_dtypes.bfloat16)
    for by in (0, 1, 4, 7, 88):
        got = ready({"A": a, "by": by, "C": np.zeros(512, a.dtype)})["C"]
        np.testing.assert_array_equal(got, a[by : by + 512])
    x = np.random.default_rng(0).standard_normal((2, 2048)).astype(ml_dtypes.bfloat16)
    x[1, 77] = np.nan
    kernel = extremes.on("cuda").with_schedule(tiles={"N": 1024}).compile(x)
    made = judge.ready(kernel.program, lower(kernel.program, HOPPER).result, "sm_90a")
    got = made({"X": x, "high": np.zeros(2, x.dtype), "low": np.zeros(2, x.dtype)})
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(got["high"].astype(np.float32), wide.max(1))
    np.testing.assert_array_equal(got["low"].astype(np.float32), wide.min(1))
