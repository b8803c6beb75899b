"""Sizes that launches give: a kernel for each range of them, right for all."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.choose.model import estimate
from tilewright.choose.ranges import RANGES, at_sizes, range_end
from tilewright.ir.expr import Const
from tilewright.ir.target import Target
from tilewright.lang.trace import trace_direct
from tilewright.runtime.backends import compiled_for
from tilewright.targets.cuda.backend import lower

H200 = "cuda -arch=sm_90a"
M, W = T.dynamic("M"), T.dynamic("W", multiple_of=8)


def product(M, N, K):
    @tw.jit
    def multiply(A, B):
        A: T.Tensor((M, K), "bfloat16")
        B: T.Tensor((K, N), "bfloat16")
        C = T.empty((M, N), "float32")
        for m, n in T.tile(M, N):
            acc = T.zeros((m, n))
            for k in T.tile(K):
                acc += A[m, k] @ B[k, n]
            C[m, n] = acc
        return C

    return multiply.on(H200)


def zeros(*shape):
    return np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape)


def test_ranges():
    assert [range_end(n) for n in (0, 1, 16, 17, 4096, 4097, 1 << 30)] == [
        16, 16, 16, 64, 4096, 16384, 16384,
    ]  # fmt: skip


def chosen(kernel, a, b):
    """A trace for arrays of these shapes."""
    return kernel.calls.trace({"A": zeros(*a), "B": zeros(*b)})


def test_a_kernel_for_each_range():
    kernel = product(M, 1024, 1024)
    made = {m: kernel.compile(zeros(m, 1024), zeros(1024, 1024)) for m in (1, 16, 17, 60, 3000)}
    assert made[1] is made[16] and made[17] is made[60]
    assert len({id(each) for each in made.values()}) == 3
    for m, each in made.items():
        assert f"chosen for M up to {range_end(m)}" in each.explain()
    rows = {m: int(re.search(r"tiles: m (\d+)", each.explain())[1]) for m, each in made.items()}
    assert rows[1] <= 16 < 128 <= rows[3000]


def test_without_arrays_a_size_is_taken_as_large():
    said = product(M, 1024, 1024).compile().explain()
    assert "chosen for M" not in said and "tiles: m 128" in said


def test_no_more_than_the_contract_allows():
    (why,) = chosen(product(T.dynamic("n", max=300), 64, 128), (280, 128), (128, 64)).why.values()
    assert why.endswith("chosen for n up to 300")


def test_what_is_pinned_has_one_kernel():
    kernel = product(M, 256, 256).with_schedule(tiles={"m": 64, "n": 64, "k": 64}, threads=128)
    few, many = (kernel.compile(zeros(m, 256), zeros(256, 256)) for m in (1, 3000))
    assert few is many


@pytest.mark.parametrize(
    ("sizes", "called"),
    [
        ((M, 192, 128), 3), ((M, 192, 128), 50), ((M, 192, 128), 200), ((M, M, W), 3),
        ((M, M, W), 1000),
    ],
)  # fmt: skip
def test_right_for_all_sizes(sizes, called):
    """Thread code that was chosen for one range computes sizes of others."""

    def shapes(m):
        return (m, 128), (128, m if sizes[1] is M else sizes[1])

    program = chosen(product(*sizes), *shapes(called)).program
    threads = lower(program, Target.parse(H200)).result
    rng = np.random.default_rng(0)
    for m in (1, 37, 130):
        a, b = (rng.integers(-3, 4, each).astype(ml_dtypes.bfloat16) for each in shapes(m))
        args = {"A": a, "B": b}
        out = next(t.name for t in program.tensors if t.name not in args)
        args[out] = np.full((m, b.shape[1]), np.nan, np.float32)
        machine.run(threads, args)
        assert np.array_equal(args[out], a.astype(np.float32) @ b.astype(np.float32))


def test_the_model_sees_the_end_of_the_range():
    """As it would where the text says the size."""
    text = product(M, 1024, 512).fn
    pinned = Target.parse(f"{H200} -tiles=m:128,n:128,k:64 -threads=256")
    with compiled_for(pinned):
        program = trace_direct(text, (zeros(4096, 512), zeros(512, 1024))).program
    (dim,) = program.dims
    found = at_sizes(program, {dim.var: 4096})
    (kernel,) = found.kernels
    assert not found.dims and all(isinstance(n, Const) for n in kernel.grid)
    assert all(b.is_static for b in found.tensors)
    at = [at_sizes(program, {dim.var: end}).kernels[0] for end in (RANGES[1], RANGES[4])]
    assert [estimate(each, pinned).tiles for each in at] == [8, 256]
    assert at_sizes(program, {}) is program
