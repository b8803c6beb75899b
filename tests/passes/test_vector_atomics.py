"""Sums of neighbouring elements into a tensor: by one instruction where they lie together, each
element once, none outside."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Intrinsic, walk_ops
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import alignments, lower

HOPPER, AMPERE = Target.parse("cuda"), Target.parse("cuda -arch=sm_80")


def added(M=64, N=64, rows=100, columns=64, dtype="float32", shift=0, kind="product"):
    """Two blocks add the same product to overlapping parts of a tensor."""

    @T.prim_func
    def main(
        A: T.Tensor((M, 64), "float16"),
        B: T.Tensor((64, N), "float16"),
        C: T.Tensor((rows, columns), dtype),
    ):
        with T.Kernel(2, threads=128) as bx:
            a = T.alloc_shared((M, 64), "float16")
            b = T.alloc_shared((64, N), "float16")
            c = T.alloc_fragment((M, N), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            if kind == "rows":
                for i, j in T.Parallel(M, N):
                    T.atomic_add(C[bx * 32 + j, i], c[i, j])
            else:
                for i, j in T.Parallel(M, N):
                    T.atomic_add(C[bx * 40 + i, j + shift], c[i, j])

    return main.program


CASES = {
    "whole": ({}, {2}),
    "tail of rows": ({"rows": 90}, {2}),
    "tail of columns": ({"columns": 60}, {2}),
    "odd columns": ({"columns": 61}, {1}),
    "odd place": ({"shift": 1, "columns": 66}, {1}),
    "other type": ({"dtype": "float16"}, {1}),
    "apart": ({"kind": "rows", "columns": 64}, {1}),
}


@pytest.mark.parametrize("more, widths", CASES.values(), ids=CASES)
@pytest.mark.parametrize("target", [HOPPER, AMPERE], ids=["sm_90a", "sm_80"])
def test_each_element_is_added_once(more, widths, target):
    program = added(**more)
    code = lower(program, target).result
    atomics = [
        op for op in walk_ops(code.kernels[0]) if isinstance(op, Intrinsic) and op.name == "atomic"
    ]
    assert {len(op.args) - 1 for op in atomics} == widths
    (width,) = widths
    assert alignments(code).get("C", 4) == 4 * width  # the launch asks for it
    out = np.zeros(tuple(int(e) for e in program.tensors[2].shape), program.tensors[2].dtype.numpy)
    args = {"A": numbers(64, 64), "B": numbers(64, 64, seed=1)}
    want, got = ({**args, "C": out.copy()} for _ in range(2))
    machine.run(program, want)
    machine.run_threads(code, got)
    np.testing.assert_array_equal(got["C"], want["C"])


def test_the_instruction():
    main = added()
    assert "red.relaxed.gpu.global.add.v2.f32" in tw.compile(main, target="cuda").ptx
    older = tw.compile(main, target="cuda -arch=sm_80").ptx
    assert ".add.v2" not in older
