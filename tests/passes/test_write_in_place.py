"""What maps make of accumulators: written over them where nothing needs these any more."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Alloc, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.write_in_place import write_in_place
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")


def chain(kind="plain", out="float16"):
    """A product, and two maps of its result."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        O: T.Tensor((64, 64), out),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            s = T.alloc_fragment((64, 64), "float32")
            p = T.alloc_fragment((64, 64), "float32")
            o = T.alloc_fragment((64, 64), out)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, s, clear_accum=True)
            if kind == "before":
                T.fill(p, 1)
            for i, j in T.Parallel(64, 64):
                p[i, j] = s[i, j] * 2 + (s[j, i] if kind == "turned" else 0)
            if kind == "needed":
                T.gemm(a, b, s)
            for i, j in T.Parallel(64, 64):
                if kind == "compared":
                    o[i, j] = p[i, j] > 0
                else:
                    o[i, j] = p[i, j] + (s[i, j] if kind in ("read", "needed") else 1)
            if kind == "twice":
                for i, j in T.Parallel(64, 64):
                    O[i, j] = o[i, j] + 1
            else:
                T.copy(o, O)

    return main.program


CASES = [
    ("plain", "float32", {"p", "o"}),
    ("plain", "float16", {"p", "o"}),  # the copy converts
    ("twice", "float16", {"p"}),
    ("turned", "float16", set()),
    ("before", "float16", set()),
    ("read", "float16", {"o"}),  # s is needed once more: o takes its place
    ("needed", "float16", {"o"}),
    ("compared", "bool", {"p"}),  # no conversion of a sum
    ("compared", "float16", {"p"}),
]


@pytest.mark.parametrize("kind, out, gone", CASES)
def test_what_is_written_over(kind, out, gone):
    program = chain(kind, out)
    found = write_in_place(program, CUDA)
    held = {op.buffer.name for op in walk_ops(found.kernels[0], Alloc)}
    assert {"s", "p", "o"} - held == gone
    a, b = numbers(64, 32), numbers(32, 64, seed=1)
    made = []
    for run in (program, found, lower(program, CUDA).result):
        result = np.zeros((64, 64), out)
        by = machine.run_threads if run is not program and run is not found else machine.run
        by(run, {"A": a, "B": b, "O": result})
        made.append(result)
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_array_equal(made[0], made[2])
