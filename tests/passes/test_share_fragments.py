"""Fragments that several threads would hold, in shared memory instead, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Alloc, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.memory.registers import share_fragments
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")


def chain(kind="", M=64, threads=256, L=192):
    """Two products, with a vector and a left operand between them in fragments."""

    @T.prim_func
    def main(
        A: T.Tensor((M, 64), "float16"),
        B: T.Tensor((L, 64), "float16"),
        R: T.Tensor((max(M, L),), "float32"),
        O: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((M, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((M, 64), "float32")
            p = T.alloc_fragment((M, 64), "float16")
            row = T.alloc_fragment((64,), "float32")
            o = T.alloc_fragment((M, 64), "float32")
            T.copy(A, a)
            T.clear(o)
            for k in T.Pipelined(T.ceildiv(L, 64), num_stages=2):
                T.copy(B[k * 64, 0], b)
                T.copy(R[k * (65 if kind == "odd" else 64)], row)
                T.gemm(a, b, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(M, 64):
                    p[i, j] = s[i, j] + row[i % 64 if kind == "rows" else j]
                if kind == "summed":
                    for i in T.Parallel(64):
                        row[i] = row[i] + 1
                T.gemm(p, b, o)
                if kind == "read":
                    for i, j in T.Parallel(M, 64):
                        o[i, j] += p[i, j]
            T.copy(o, O)

    return main.program


CASES = [
    ({}, {"p", "row"}),
    ({"kind": "rows"}, {"p"}),
    ({"kind": "odd"}, {"p"}),  # the bulk engine needs 16 bytes
    ({"kind": "summed"}, {"p"}),
    ({"kind": "read"}, {"row"}),
    ({"M": 128}, {"row"}),  # each warpgroup has rows
    ({"threads": 128}, {"row"}),
]


@pytest.mark.parametrize("more, shared", CASES, ids=range(len(CASES)))
def test_what_is_shared(more, shared):
    found = share_fragments(chain(**more), CUDA)
    held = {op.buffer.name for op in walk_ops(found.kernels[0], Alloc) if op.buffer.is_shared}
    assert held - {"a", "b"} == shared
    older = Target.parse("cuda -arch=sm_80")
    assert share_fragments(found, older) == found


@pytest.mark.parametrize("more", [more for more, _ in CASES[:3]], ids=str)
def test_the_same_numbers(more):
    program = chain(**more)
    shapes = [tuple(int(e) for e in t.shape) for t in program.tensors]
    args = {"A": numbers(*shapes[0]), "B": numbers(*shapes[1], seed=1)}
    args["R"] = numbers(*shapes[2], dtype=np.float32)
    want, got = ({**args, "O": np.zeros(shapes[3], np.float32)} for _ in range(2))
    machine.run(program, want)
    machine.run_threads(lower(program, CUDA).result, got)
    np.testing.assert_array_equal(got["O"], want["O"])
