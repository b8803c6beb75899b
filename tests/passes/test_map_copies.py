"""Copies that no engine can make, in loops of products."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import AMPERE, HOPPER, ROLES, numbers
from tilewright import machine
from tilewright.ir.op import Alloc, walk_ops
from tilewright.targets.cuda.backend import lower


def product(M, N, K, stages=3, transposed=False, batch=False):
    """Sizes that are None are known at launch."""
    m, n, k = (T.dynamic(v) if s is None else s for v, s in zip("MNK", (M, N, K), strict=True))
    b_shape = (n, k) if transposed else (k, n)
    lead = (1,) if batch else ()

    @T.prim_func
    def main(
        A: T.Tensor((*lead, m, k), "float16"),
        B: T.Tensor(b_shape, "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 128), threads=256) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for i in T.Pipelined(T.ceildiv(k, 64), num_stages=stages):
                if batch:
                    T.copy(A[0, by * 128 : by * 128 + 128, i * 64 : i * 64 + 64], a)
                else:
                    T.copy(A[by * 128, i * 64], a)
                if transposed:
                    T.copy(B[bx * 64, i * 64], b)
                else:
                    T.copy(B[i * 64, bx * 64], b)
                T.gemm(a, b, c, transpose_B=transposed)
            T.copy(c, C[by * 128, bx * 64])

    return main.program


@pytest.mark.parametrize("target", [HOPPER, ROLES, AMPERE], ids=["alike", "roles", "sm_80"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", [{}, {"transposed": True}, {"batch": True, "stages": 2}])
def test_odd_rows(target, known, how):
    M, N, K = 131, 67, 201
    program = product(M, N, K, **how) if known else product(None, None, None, **how)
    a, b = numbers(M, K), numbers(K, N, seed=1)
    given = {
        "A": a[None] if how.get("batch") else a,
        "B": b.T.copy() if how.get("transposed") else b,
    }
    given |= {"C": np.zeros((M, N), np.float32)} | ({} if known else {"M": M, "N": N, "K": K})
    trace = lower(program, target)
    machine.run_threads(trace.result, given, seed=2)
    np.testing.assert_array_equal(given["C"], a.astype(np.float32) @ b.astype(np.float32))
    if target is not AMPERE:
        found = next(s.program for s in trace if s.name == "pipeline_loops")
        shapes = {
            op.buffer.name: op.buffer.static_shape
            for op in walk_ops(found.kernels[0])
            if isinstance(op, Alloc) and op.buffer.is_static
        }
        assert len(shapes["a"]) == len(shapes["b"]) == 3  # slots that take turns
        assert any("one iteration early" in why for why in trace.reasons.values())


def test_engines_keep_their_copies():
    names = {s.name: s.program for s in lower(product(128, 64, 256), ROLES)}
    assert names["map_copies"] == names["split_gemms"]
