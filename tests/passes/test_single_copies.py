"""Loads of a loop that cannot run ahead of it: all begin where their tiles are free."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.overlap import HOPPER, check_same, numbers, program
from tilewright.ir.op import Copy, For, Gemm, walk_ops

TEXT = """
program p {{
  param A: float16[64, 256] global
  param B: float16[256, 64] global
  param M: int32[4] global
  param C: float32[64, 64] global
  kernel k grid bx in 1 threads tx in 128 {{
    alloc q: float16[64, 64] shared
    alloc a: float16[64, 64] shared
    {tile}
    alloc s: float32[64, 64] fragment
    alloc c: float32[64, 64] fragment
    alloc n: int32 local init=0
    copy A[:, 0:+64] -> q
    fill c = 0.0
    for i in 0 .. 4 {{
      copy A[:, i * 64:+64] -> a
      {first}
      gemm q, a -> s clear=true
      map (x, y) in (64, 64) {{ c[x, y] = c[x, y] * 2.0 + s[x, y] }}
      {between}
      copy B[{place}:+64, :] -> b
      gemm q, b -> c
    }}
    copy c -> C
  }}
}}
"""
TILE = "alloc b: float16[64, 64] shared"
CASES = {
    "early": ({}, True),
    "named before": ({"first": "let m = M[i]", "place": "m * 64"}, True),
    "named between": ({"between": "let m = M[i]", "place": "m * 64"}, False),
    "counted between": ({"between": "n = M[i]", "place": "n * 64"}, False),
    "used between": ({"first": "copy B[0:+64, :] -> b", "between": "gemm q, b -> c"}, False),
    "left between": ({"between": "if M[i] > 8 { break }"}, False),
    "made between": ({"tile": "", "between": TILE}, False),
    "waits between": ({"between": "while M[i] > 8 { n = n + 1 }"}, False),
    "launched between": ({"between": "intrinsic pdl_wait ()"}, False),
}


@pytest.mark.parametrize("more, early", CASES.values(), ids=CASES)
def test_where_loads_begin(more, early):
    plain = {"tile": TILE, "first": "", "between": "", "place": "i * 64"}
    given = program(TEXT.format(**plain | more))
    args = {"A": numbers(64, 256), "B": numbers(256, 64, seed=1)}
    args |= {"M": np.array([2, 0, 3, 1], np.int32), "C": np.zeros((64, 64), np.float32)}
    found = check_same(given, args, HOPPER)
    (loop,) = [op for op in walk_ops(found.kernels[0]) if isinstance(op, For)]
    kinds = [op for op in loop.body if isinstance(op, (Copy, Gemm))]
    last = max(k for k, op in enumerate(kinds) if isinstance(op, Copy))
    assert (last < min(k for k, op in enumerate(kinds) if isinstance(op, Gemm))) is early
