"""Tiles between two products: in registers where nobody else needs them, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, walk_ops
from tilewright.ir.rewrite import map_kernels
from tilewright.ir.target import Target
from tilewright.passes.memory.registers import keep_operands
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")


def chain(kind="copy", M=128, N=64, D=64, threads=256, dtype="float16", stages=2):
    """Two products in a chain, the tile between them written in several ways."""

    @T.prim_func
    def main(
        A: T.Tensor((M, 64), dtype),
        B: T.Tensor((3 * N, 64), dtype),
        V: T.Tensor((3 * N, D), dtype),
        O: T.Tensor((M, D), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((M, 64), dtype)
            b = T.alloc_shared((N, 64), dtype)
            v = T.alloc_shared((N, D), dtype)
            p = T.alloc_shared((M, N), dtype)
            s = T.alloc_fragment((M, N), "float32")
            o = T.alloc_fragment((M, D), "float32")
            row = T.alloc_fragment((M,), "float32")
            flat = T.view(p, (M * N,), dtype) if kind == "viewed" else p
            T.copy(A, a)
            T.clear(o)
            for k in T.Pipelined(3, num_stages=stages):
                T.copy(B[k * N, 0], b)
                T.copy(V[k * N, 0], v)
                T.gemm(a, b, s, transpose_B=True, clear_accum=True)
                if kind == "map":
                    T.reduce_max(s, row, dim=1)
                    for i, j in T.Parallel(M, N):
                        p[i, j] = T.if_then_else(i >= j, s[i, j] - row[i] / 2, 0)
                elif kind == "turned":
                    for i, j in T.Parallel(M, N):
                        p[i, j] = s[i, N - 1 - j]
                elif kind == "from memory":
                    for i, j in T.Parallel(M, N):
                        p[i, j] = s[i, j] + V[j, i % D]
                else:
                    T.copy(s, p)
                if kind == "asked":
                    if p[0, 0] > 0:
                        T.gemm(p, v, o)
                else:
                    T.gemm(p, v, o, policy="full_col" if kind == "columns" else "full_row")
                if kind == "viewed":
                    for i, j in T.Parallel(M, D):
                        o[i, j] += flat[i * N]
                if kind == "read":
                    for i, j in T.Parallel(M, D):
                        o[i, j] += p[i, 0]
                if kind == "right":
                    T.gemm(v, p, o, transpose_A=True)
            T.copy(o, O)

    return main.program


CASES = [
    ({}, True),
    ({"kind": "map"}, True),
    ({"threads": 128}, True),
    ({"M": 192, "threads": 384, "dtype": "bfloat16"}, True),
    ({"M": 64, "D": 128}, False),  # two warpgroups share its rows
    ({"kind": "turned"}, False),
    ({"kind": "from memory"}, False),
    ({"kind": "read"}, False),
    ({"kind": "viewed"}, False),
    ({"kind": "asked"}, False),
    ({"kind": "columns"}, False),
    ({"kind": "right", "N": 128, "D": 128}, False),
    ({"M": 64, "N": 256, "D": 128, "threads": 128}, False),  # too few registers
]


@pytest.mark.parametrize("more, held", CASES, ids=str)
def test_what_is_held(more, held):
    found = map_kernels(chain(**more), lambda kernel: keep_operands(kernel, CUDA))
    (space,) = [
        op.buffer.space
        for op in walk_ops(found.kernels[0])
        if isinstance(op, Alloc) and op.buffer.name == "p"
    ]
    assert (space is Space.FRAGMENT) is held
    older = Target.parse("cuda -arch=sm_80")
    assert map_kernels(found, lambda kernel: keep_operands(kernel, older)) == found


@pytest.mark.parametrize("more", [more for more, held in CASES if held], ids=str)
@pytest.mark.parametrize("target", ["cuda", "cuda -roles=off", "cuda -roles -order_warpgroups"])
def test_the_same_numbers(more, target):
    program = chain(**more)
    shapes = [tuple(int(e) for e in t.shape) for t in program.tensors]
    kind = program.tensors[0].dtype.numpy
    args = {name: numbers(*shape, seed=i).astype(kind)
            for i, (name, shape) in enumerate(zip("ABV", shapes, strict=False))}  # fmt: skip
    want, got = ({**args, "O": np.zeros(shapes[3], np.float32)} for _ in range(2))
    machine.run(program, want)
    machine.run_threads(lower(program, Target.parse(target)).result, got)
    np.testing.assert_allclose(got["O"], want["O"], rtol=1e-5)
