"""Copies ahead of their readers: the same bits, no race, nothing dispensable; goldens."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.passes.overlap import (
    AMPERE,
    HOPPER,
    ROLES,
    check_same,
    numbers,
    overlapped,
    program,
    run,
    unnoticed,
    with_atom,
)
from tests.passes.random_kernels import random_program
from tilewright.ir import scope
from tilewright.ir.op import Copy, For, Wait, walk_ops
from tilewright.ir.text import print_program
from tilewright.passes.layout.shared_tiles import why_not_bulk, why_not_cp_async
from tilewright.passes.overlap.pipeline_loops import pipeline_loops
from zoo.attention import flash
from zoo.gemm import gemm
from zoo.mla import decode
from zoo.softmax import softmax

GOLDEN = Path(__file__).parent / "golden"
ROADS = ((HOPPER, "wgmma"), (HOPPER, "mma"), (AMPERE, "mma"), (ROLES, "wgmma"), (ROLES, "mma"))
LOOPS = """
program p {{
  param A: float16[64, 256] global
  param B: float16[256, 64] global
  param C: float16[3, 64, 64] global
  param steps: int32
  kernel k grid bx in 1 threads tx in {threads} {{
    alloc a: float16[64, 32] shared
    alloc b: float16[32, 64] shared
    alloc out: float16[64, 64] shared
    alloc acc: float32[64, 64] fragment
    for t in 0 .. 3 kind=persistent {{
      fill acc = 0.0
      if t != 1 {{
        for k in 0 .. steps kind=pipelined stages={stages} {{
          copy A[:, k * 32:+32] -> a
          copy B[k * 32:+32, :] -> b
          gemm a, b -> acc
        }}
      }}
      copy acc -> out
      copy out -> C[t, :, :]
    }}
  }}
}}
"""


def loops(stages: int, threads: int = 128):
    return program(LOOPS.format(stages=stages, threads=threads))


def loop_args(steps: int):
    return {
        "A": numbers(64, 256),
        "B": numbers(256, 64, seed=1),
        "C": np.zeros((3, 64, 64), np.float16),
        "steps": steps,
    }


def tensors(given, seed: int = 0):
    return {
        t.name: numbers(*t.static_shape, dtype=t.dtype.numpy, seed=seed + k)
        for k, t in enumerate(given.tensors)
    }


ZOO = {
    "gemm": gemm.gemm_relu.prim_func(72, 80, 104, block_M=64, block_N=64, block_K=32),
    "gemm of odd sizes": gemm.gemm_relu.prim_func(71, 75, 67, block_M=64, block_N=64, block_K=32),
    "gemm transposed": gemm.gemm_transposed.prim_func(64, 128, 96, True, True),
    "attention": flash.flash_attention.prim_func(1, 2, 1, 100, 230, 64, causal=True),
    "mla": decode.mla_decode.prim_func(1, 64, 256, dim=64, rope=64),
    "mla split": decode.mla_decode.prim_func(1, 64, 300, dim=64, rope=64, splits=2),
    "online softmax": softmax.online_softmax.prim_func(8, 300, block_N=64),
}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize(("target", "atom"), ROADS)
def test_zoo(name, target, atom):
    given = ZOO[name].program
    check_same(given, tensors(given), target, atom, range(2))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize(("target", "atom"), ROADS)
def test_trip_counts(stages, target, atom):
    """No, one, and more iterations than slots, under a guard in a persistent loop."""
    for steps in sorted({0, 1, 2, max(stages - 1, 0), stages, stages + 1, 7}):
        check_same(loops(stages), loop_args(steps), target, atom, range(2))


@pytest.mark.parametrize("first, stop", [(0, 0), (1, 1), (3, 1)])
def test_loops_that_never_run(first, stop):
    text = LOOPS.format(threads=128, stages=2).replace("0 .. steps", f"{first} .. {stop}")
    given = program(text)
    check_same(given, loop_args(0), HOPPER, "wgmma", range(2))


@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize(("target", "atom"), ROADS)
def test_nothing_can_be_dropped(threads, target, atom):
    given, args = loops(2, threads), loop_args(5)
    found = check_same(given, args, target, atom)
    assert unnoticed(given, found, args) == []


@pytest.mark.parametrize(("target", "atom"), ROADS)
def test_nothing_can_be_dropped_from_attention(target, atom):
    given = flash.flash_attention.prim_func(1, 1, 1, 64, 256, 64).program
    args = tensors(given)
    found = check_same(given, args, target, atom)
    assert unnoticed(given, found, args) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("target", "atom"), ROADS)
def test_random_kernels(seed, target, atom):
    given, args = random_program(seed)
    check_same(given, args, target, atom, range(1))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gemm", gemm.gemm_relu.prim_func(256, 256, 256)),
        ("attention", flash.flash_attention.prim_func(1, 2, 1, 128, 128, 64, causal=True)),
    ],
)
def test_golden(name, given):
    path = GOLDEN / f"overlapped_{name}.tw"
    text = print_program(overlapped(given.program))
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_pipelined_alone_is_complete():
    """What asynchronous ops need is there before layouts are chosen; only threads are unordered."""
    given, args = loops(3), loop_args(5)
    found = pipeline_loops(with_atom(given, "wgmma"), HOPPER)
    assert run(found, args)["C"].tobytes() == run(given, args)["C"].tobytes()


# ── what does not run ahead ──────────────────────────────────────────────────────────────────

ALONE = """
program p {{
  param A: float16[64, 256] global
  param W: float16[64, 256] global
  param C: float16[64, 64] global
  kernel k grid bx in 1 threads tx in 128 {{
    alloc a: float16[64, 64] shared
    alloc b: float16[64, 64] shared
    alloc f: float16[64, 64] fragment
    alloc at: int32 local init=0
    alloc acc: float32[64, 64] fragment
    fill acc = 0.0
    fill f = 1.0
    {before}
    for k in 0 .. 4 kind=pipelined stages=2 {{
      {body}
      gemm a, a -> acc transpose_b=true
    }}
    copy acc -> C
  }}
}}
"""
LEFT = {
    "a place that the body computes": ("", "at = at + 1\ncopy A[:, at % 3 * 64:+64] -> a"),
    "a tensor that the body writes": ("", "copy W[:, k * 64:+64] -> a\ncopy f -> W[:, 64:+64]"),
    "a tile that others write": ("", "copy A[:, k * 64:+64] -> a\ncopy f -> a"),
    "a value read before it is replaced": (
        "copy A[:, 0:+64] -> a",
        "gemm a, a -> acc\ncopy A[:, k * 64:+64] -> a",
    ),
    "a loop that is left early": ("", "copy A[:, k * 64:+64] -> a\nif k == 2 { break }"),
}


@pytest.mark.parametrize("why", LEFT)
@pytest.mark.parametrize(("target", "atom"), ROADS)
def test_left_in_place(why, target, atom):
    before, body = LEFT[why]
    given = program(ALONE.format(before=before, body=body))
    found = check_same(given, tensors(given), target, atom)
    assert all(
        op.buffer.rank == 2
        for op in walk_ops(found.kernels[0])
        if hasattr(op, "buffer") and op.buffer.name == "a"
    )


def test_rings_by_reader():
    """A and B of a product share barriers; K and V do not."""
    waits = [
        len({op.barrier.buffer.name for op in walk_ops(k) if isinstance(op, Wait)})
        for given in (gemm.gemm_relu.prim_func(256, 256, 256), ZOO["attention"])
        for k in overlapped(given.program).kernels
    ]
    assert waits == [1, 3]  # attention: K, V, and Q by itself


@pytest.mark.parametrize(
    ("copy", "bulk", "cp_async"),
    [
        ("A[:, 0:+64] -> a", None, None),
        ("A[:, 4:+64] -> a", "the tile of A may begin between multiples of 16 bytes", None),
        ("U[:, 0:+64] -> a", "rows of U are not known to begin on multiples of 16 bytes", None),
        ("A[:, 1:+64] -> a", "the tile of A may begin between", "the tile of A may begin between"),
        ("F[:, 0:+64] -> a", "it converts float32 to float16", "it converts float32 to float16"),
        ("A[:, 0:+64] -> a[0:+64, 0:+64]", None, None),
        ("A[0:+32, 0:+32] -> a[0:+32, 0:+32]", "it touches a part of a", "it touches a part of a"),
    ],
)
def test_rules(copy, bulk, cp_async):
    given = program(f"""program p {{
      param A: float16[64, 256] global
      param U: float16[64, 250] global
      param F: float32[64, 256] global
      kernel k grid bx in 1 threads tx in 128 {{
        alloc a: float16[64, 64] shared
        copy {copy}
      }}
    }}""")
    (op,) = (op for op in walk_ops(given.kernels[0]) if isinstance(op, Copy))
    ranges = scope.entry(given.kernels[0])
    for want, got in ((bulk, why_not_bulk(op, ranges)), (cp_async, why_not_cp_async(op, ranges))):
        assert (got is None) if want is None else (got is not None and want in got)


def test_contracts_of_sizes_count():
    text = """program p {{
      dim n {contract}
      param A: float16[64, n] global
      param C: float16[64, 64] global
      kernel k grid bx in 1 threads tx in 128 {{
        alloc a: float16[64, 64] shared
        alloc acc: float32[64, 64] fragment
        fill acc = 0.0
        for k in 0 .. n // 64 kind=pipelined stages=2 {{
          copy A[:, k * 64:+64] -> a
          gemm a, a -> acc transpose_b=true
        }}
        copy acc -> C
      }}
    }}"""
    atoms = []
    for contract in ("multiple_of=8", "multiple_of=2", ""):
        given = program(text.format(contract=contract))
        args = {"A": numbers(64, 200), "C": np.zeros((64, 64), np.float16)}
        found = check_same(given, args)
        atoms.append(
            {op.atom for op in walk_ops(found.kernels[0]) if isinstance(op, Copy)} - {"threads"}
        )
    assert atoms == [{"bulk_load"}, {"cp_async"}, set()]


def test_kernels_with_roles_are_left_alone():
    given = program("""program p {
      param A: float16[64, 64] global
      kernel k grid bx in 1 threads tx in 128 {
        alloc a: float16[64, 64] shared
        role all warps 0 + 4 {
          for k in 0 .. 4 kind=pipelined stages=2 { copy A -> a }
        }
      }
    }""")
    assert pipeline_loops(given, HOPPER).kernels == given.kernels
    assert any(isinstance(op, For) for op in walk_ops(given.kernels[0]))
