"""Rows of numbers that maps load themselves: the same numbers without meetings; what stays."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import AMPERE, HOPPER, ROLES
from tests.passes.scaled_products import arguments, results, said, scaled_product, stage
from tilewright.ir.op import Alloc, For, Gemm, Sync, walk_ops
from tilewright.passes.overlap.prefetch_loads import inline_rows
from tilewright.targets.cuda.backend import lower


def loop_of(program):
    """The innermost loop with products."""
    return next(
        op
        for op in walk_ops(program.kernels[0])
        if isinstance(op, For) and any(isinstance(each, Gemm) for each in op.body)
    )


@pytest.mark.parametrize("way", ["through shared memory", "a column"])
@pytest.mark.parametrize("target", [ROLES, HOPPER, AMPERE], ids=["producer", "alike", "sm_80"])
def test_the_same_numbers(way, target):
    program = scaled_product.prim_func(4, way).program
    trace = lower(program, target)
    assert "is not loaded early" in said(trace)
    for count in (0, 1, 4):
        args = arguments(program, count)
        want = results(program, args)
        np.testing.assert_array_equal(results(inline_rows(program, target), args), want)
        np.testing.assert_array_equal(results(stage(trace), args, explicit=True), want)
    np.testing.assert_array_equal(results(trace.result, args, threads=True), want)


@pytest.mark.parametrize("way", ["through shared memory", "a column"])
def test_nobody_meets(way):
    program = scaled_product.prim_func(4, way).program

    def meetings(target):
        return sum(isinstance(op, Sync) for op in walk_ops(loop_of(stage(lower(program, target)))))

    assert meetings(ROLES) == 0 < meetings(ROLES.choosing(inline_rows=False))


def test_what_the_engine_brings_stays():
    program = scaled_product.prim_func(4, "by the engine").program
    assert inline_rows(program, ROLES) is program


def kept(form):
    @T.prim_func
    def main(
        A: T.Tensor((64, 256), "float16"),
        B: T.Tensor((256, 64), "float16"),
        S: T.Tensor((64, 4), "float32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            s = T.alloc_shared((64,), "float32")
            part = T.alloc_fragment((64, 64), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            if form == "elsewhere":
                T.fill(s, 1)
            for k in T.Pipelined(4, num_stages=1 if form == "one stage" else 2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                if form != "read first":
                    for i in T.Parallel(64):
                        s[i] = S[i, k]
                T.gemm(a, b, part, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += part[i, j] * s[j if form == "columns" else i]
                if form == "read first":
                    for i in T.Parallel(64):
                        s[i] = S[i, k]
                if form == "written":
                    S[0, 0] = 0
            T.copy(c, C)

    return main.program


@pytest.mark.parametrize("form", ["columns", "read first", "written", "one stage", "elsewhere"])
def test_what_stays(form):
    """`elsewhere`: it is filled outside the loop too."""
    program = kept(form)
    assert inline_rows(program, ROLES) is program


def test_what_goes():
    """The same kernel where nothing stands against it."""
    found = inline_rows(kept(""), ROLES)
    tiles = {op.buffer.name for op in walk_ops(found.kernels[0]) if isinstance(op, Alloc)}
    assert tiles == {"a", "b", "part", "c"}
