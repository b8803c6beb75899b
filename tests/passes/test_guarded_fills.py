"""Loads under a guard of a pipelined loop: a producer runs ahead over what is skipped, and nobody
computes anything else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.overlap import HOPPER, ROLES, check_same, numbers, overlapped, program, unnoticed
from tilewright.ir.op import For, Role, walk_ops
from tilewright.ir.text import print_op
from tilewright.passes.overlap.prefetchable import loops_of_guards

TEXT = """
program p {{
  param A: float16[64, 256] global
  param B: float16[256, 64] global
  param C: float32[64, 64] global
  param M: int32[4] global
  param W: int32[4] global
  param steps: int32
  kernel k grid bx in 1 threads tx in 256 {{
    alloc a: float16[64, 64] shared
    alloc b: float16[64, 64] shared
    alloc c: float32[64, 64] fragment
    alloc n: int32 local init=0
    fill c = 0.0
    for i in 0 .. steps kind=pipelined stages={stages} {{
      {before}
      if {cond} {{
        {first}
        copy A[:, i * 64:+64] -> a
        copy B[i * 64:+64, :] -> b
        gemm a, b -> c
        map (x, y) in (64, 64) {{ c[x, y] = c[x, y] * 2.0 }}
        {last}
      }}{orelse}
    }}
    map (x, y) in (64, 64) {{ c[x, y] = c[x, y] + float32(n) }}
    copy c -> C
  }}
}}
"""


def made(cond="M[i] != 0", stages=2, before="", first="", last="", orelse=""):
    return program(
        TEXT.format(cond=cond, stages=stages, before=before, first=first, last=last, orelse=orelse)
    )


def arguments(steps=4, mask=(1, 0, 1, 1)):
    args = {"A": numbers(64, 256), "B": numbers(256, 64, seed=1)}
    args |= {"M": np.array(mask, np.int32), "W": np.arange(4, dtype=np.int32)}
    return args | {"C": np.zeros((64, 64), np.float32), "steps": steps}


def producers(found):
    ops = walk_ops(found.kernels[0])
    return [op for op in ops if isinstance(op, Role) and op.name == "producer"]


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"before": "let m = M[i]", "cond": "m > 0 and i < 3"},
        {"first": "n = n + i", "last": "n = n + 1"},
        {"cond": "i % 2 == 0"},
        {"before": "n = n + 1"},
    ],
)
def test_a_producer_runs_ahead(more, stages):
    given = made(stages=stages, **more)
    for steps, mask in ((4, (1, 0, 1, 1)), (4, (0, 0, 0, 0)), (3, (1, 1, 1, 1)), (0, (1, 1, 1, 1))):
        found = check_same(given, arguments(steps, mask), ROLES)
        (producer,) = producers(found)
        (outer, inner) = [op for op in walk_ops(producer) if isinstance(op, For)]
        assert inner in outer.body and "copy A" in print_op(inner)


@pytest.mark.parametrize(
    "more",
    [
        {"orelse": " else { fill c = 0.0 }"},
        {"last": "if i == 2 { break }"},
        {"cond": "W[i] > 0", "last": "W[0] = 1"},  # what the kernel writes decides
    ],
)
def test_what_stays_a_guard(more):
    assert not producers(check_same(made(**more), arguments(), ROLES))


def test_it_is_for_producers():
    """Others could not fill before they have asked."""
    given = made()
    found = check_same(given, arguments(), HOPPER)
    assert len([op for op in walk_ops(found.kernels[0]) if isinstance(op, For)]) == 1
    plain = "for i in 0 .. 4 kind=pipelined stages=2 { copy A[:, 0:+64] -> a }"
    body = program(TEXT.split("for i")[0].replace("{{", "{") + plain + "\n } }").kernels[0].body
    assert loops_of_guards(body) is body


def test_everything_is_needed():
    given, args = made(), arguments()
    assert unnoticed(given, overlapped(given, ROLES), args) == []
