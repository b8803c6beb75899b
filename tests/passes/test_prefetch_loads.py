"""Loads of maps in pipelined loops, one iteration early: the same numbers, and when not."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import HOPPER, ROLES, numbers
from tilewright import machine
from tilewright.ir.op import Copy, For, Map, walk_ops
from tilewright.ir.text import print_program
from tilewright.passes.overlap.prefetch_loads import prefetch_loads
from tilewright.targets.cuda.backend import lower


def scaled(stages=2, K=192, writes=False, start=0):
    """Rows of an operand have scales that change with `k`; `writes`: the kernel writes them."""

    @T.prim_func
    def main(
        A: T.Tensor((128, K), "float16"),
        S: T.Tensor((128, K // 64), "float32"),
        B: T.Tensor((K, 64), "float16"),
        t: T.Tensor((K // 64,), "float32"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            part = T.alloc_fragment((128, 64), "float32")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(start, T.ceildiv(K, 64), num_stages=stages):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                both = t[k]
                T.gemm(a, b, part, clear_accum=True)
                for i, j in T.Parallel(128, 64):
                    c[i, j] += part[i, j] * S[i, k] * both
                if writes:
                    for i in T.Parallel(128):
                        S[i, 0] = S[i, 0] + 1
            T.copy(c, C)

    return main.program


def windows(K=192):
    """A condition and a table say what is loaded."""

    @T.prim_func
    def main(
        X: T.Tensor((100, K), "float16"),
        rows: T.Tensor((128,), "int32"),
        B: T.Tensor((K, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
                for i, j in T.Parallel(128, 64):
                    row = rows[i] + k
                    a[i, j] = T.if_then_else(row % 3 != 1, X[row, k * 64 + j], 0)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    return main.program


def arguments(program):
    found = {}
    for tensor in program.tensors:
        shape = tuple(int(s.value) for s in tensor.shape)
        found[tensor.name] = numbers(*shape, dtype=tensor.dtype.numpy)
    if "rows" in found:
        found["rows"] = np.random.default_rng(0).integers(-5, 105, 128).astype(np.int32)
    return found


def results(program, given, **kw):
    args = {n: a.copy() for n, a in given.items()}
    machine.run(program, args, **kw)
    return args["C"]


def early(program, target=HOPPER):
    return [
        op.buffer.name
        for op in walk_ops(prefetch_loads(program, target).kernels[0])
        if type(op).__name__ == "Alloc" and op.buffer.name.startswith("early")
    ]


@pytest.mark.parametrize("target", [ROLES, HOPPER], ids=["producer", "all threads"])
@pytest.mark.parametrize(
    "program", [scaled(), scaled(K=64), scaled(start=1), scaled(start=3), windows()]
)
def test_the_same_numbers(program, target):
    given = arguments(program)
    want = results(program, given)
    np.testing.assert_array_equal(results(prefetch_loads(program, target), given), want)
    trace = lower(program, target)
    scheduled = next(s.program for s in trace if s.name == "order_warpgroups")
    np.testing.assert_array_equal(results(scheduled, given, explicit=True), want)
    args = {n: a.copy() for n, a in given.items()}
    machine.run_threads(trace.result, args)
    np.testing.assert_array_equal(args["C"], want)


def test_a_vector_and_a_number_are_early():
    assert early(scaled()) == ["early", "early_1"]
    found = prefetch_loads(scaled(), HOPPER)
    loop = next(op for op in walk_ops(found.kernels[0]) if isinstance(op, For))
    kinds = [type(op).__name__ for op in loop.body]
    assert kinds == [
        "Copy",
        "Copy",
        "Gemm",
        "Copy",
        "Map",
        "Store",
        "Store",
        "Map",
    ]  # fmt: skip  (the name of what is early is gone)
    text = print_program(found)
    assert "early[i_2] = S[i_2, k + 1]" in text
    assert "early_1 = t[k + 1]" in text


def test_a_tile_is_early():
    registers = HOPPER.choosing(async_gathers=False)
    found = prefetch_loads(windows(), registers)
    maps = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Map)]
    assert len(maps) == 3 and early(windows(), registers) == ["early"]
    assert early(windows()) == []  # it runs ahead by itself


def test_what_the_kernel_writes_is_not():
    assert early(scaled(writes=True)) == ["early"]  # t
    assert not any(
        isinstance(op, Copy) and op.src.buffer.name.startswith("early")
        for op in walk_ops(prefetch_loads(scaled(writes=True), HOPPER).kernels[0])
    )


def test_one_stage_is_left_alone():
    program = scaled(stages=1)
    assert prefetch_loads(program, HOPPER) is program or early(program) == []
