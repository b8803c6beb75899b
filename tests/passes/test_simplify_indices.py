"""The pass that simplifies expressions in place: goldens, what is dropped, what must stay."""

from __future__ import annotations

import textwrap

import numpy as np

from tilewright import machine
from tilewright.ir.op import For, If, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.passes.canonicalize.loops import simplify_indices

TARGET = Target.parse("interp")

HEAD = """
program p {
  dim m min=1 max=65536 multiple_of=8
  param A: float32[m, 1024] global
  param O: int32[4096] global
  param q: int32
  kernel k grid (bx, by) in (4, (m + 127) // 128) threads tx in 128 {
    alloc S: float32[128, 64] shared
    alloc F: float32[128, 64] fragment
    alloc x: int32 local init=0
"""


def simplified(body: str) -> str:
    """The kernel's statements behind the allocations, after the pass."""
    program = parse_program(HEAD + textwrap.indent(textwrap.dedent(body), "    ") + "\n  }\n}\n")
    found = simplify_indices(program, TARGET)
    assert simplify_indices(found, TARGET) == found
    text = print_program(found)
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if "alloc x" in line) + 1
    return textwrap.dedent("\n".join(lines[first:-2])).strip()


def expect(body: str, wanted: str) -> None:
    assert simplified(body) == textwrap.dedent(wanted).strip()


def test_indices_and_regions() -> None:
    expect(
        """
        copy A[by * 64 * 2:+128, bx * 256 + 0 * bx:+64] -> S
        O[tx * 4 // 4 + (tx * 8 + tx % 8) % 8] = 1
        map (i, j) in (64 * 2, 128 - 64) {
          F[i, j] = S[(i * 64 + j) // 64, (i * 64 + j) % 64]
        }
        """,
        """
        copy A[by * 128:+128, bx * 256:+64] -> S
        O[tx + tx % 8] = 1
        map (i, j) in (128, 64) {
          F[i, j] = S[i, j]
        }
        """,
    )


def test_guards_that_cannot_fail_go() -> None:
    expect(
        """
        if tx < 128 {
          O[tx] = 1
        }
        if bx >= 4 {
          O[tx] = 2
        } else {
          O[tx] = 3
        }
        for k in 0 .. m // 8 {
          if k * 8 + 7 < m {
            O[k] = 4
          }
        }
        if q > 3 {
          if q > 2 and tx < 64 {
            O[q] = 5
          }
        }
        """,
        """
        O[tx] = 1
        O[tx] = 3
        for k in 0 .. m // 8 {
          O[k] = 4
        }
        if q >= 4 {
          if tx < 64 {
            O[q] = 5
          }
        }
        """,
    )


def test_loops_without_iterations_go() -> None:
    expect(
        """
        for k in 4 .. 4 { O[k] = 1 }
        for k2 in m .. 0 { O[k2] = 1 }
        map i in 0 { S[i, 0] = 1.0 }
        while 1 < 0 { x = 2 }
        for k3 in 0 .. 3 { if k3 > 5 { O[k3] = 1 } }
        for k4 in 0 .. m { O[0] = k4 }
        """,
        """
        for k4 in 0 .. m {
          O[0] = k4
        }
        """,
    )


def test_known_branch_with_a_break() -> None:
    expect(
        """
        for k in 0 .. m {
          if tx >= 0 {
            let y = k * 2
            O[y] = 1
            break
          }
          O[k] = 2
        }
        """,
        """
        for k in 0 .. m {
          let y = k * 2
          O[y] = 1
          break
        }
        """,
    )


def test_assumptions_and_early_exits() -> None:
    expect(
        """
        hint assume value=q % 16 == 0
        for k in 0 .. 9 {
          if k >= q { continue }
          O[q % 8 + k] = 1 if k < q else 2
        }
        """,
        """
        hint assume value=q % 16 == 0
        for k in 0 .. 9 {
          if q <= k {
            continue
          }
          O[k] = 1
        }
        """,
    )


def test_values_wrap_and_indices_do_not() -> None:
    expect(
        """
        O[q * 4 // 4] = q * 4 // 4
        let h = q * 31
        O[h // 31] = h
        """,
        """
        O[q] = q * 4 // 4
        let h = q * 31
        O[h // 31] = h
        """,
    )


def test_a_pinned_schedule_keeps_its_statements() -> None:
    program = parse_program(
        HEAD
        + """
        for k in 0 .. 4 kind=pipelined stages=2 order=(0, 1) stage=(0, 1) {
          if tx < 500 { O[k] = 1 }
          O[k + 0] = 2
        }
      }
    }"""
    )
    kernel = simplify_indices(program.kernels[0], TARGET)
    (loop,) = (op for op in walk_ops(kernel) if isinstance(op, For))
    assert len(loop.body) == 2 and isinstance(loop.body[0], If)


def test_unchanged_ops_stay_the_same_objects() -> None:
    program = parse_program(HEAD + "    O[tx] = 1\n  }\n}\n")
    kernel = simplify_indices(program.kernels[0], TARGET)
    assert all(a is b for a, b in zip(kernel.body, program.kernels[0].body))


def test_the_meaning_stays() -> None:
    program = parse_program(
        HEAD
        + """
        map (i, j) in (128, 64) {
          S[i, j] = A[by * 128 + (i * 64 + j) // 64, bx * 256 + (i * 64 + j) % 64]
        }
        for k in 0 .. (m + 7) // 8 {
          if k * 8 + 7 < m and by * 128 + k < m {
            map i2 in 64 {
              S[(k * 64 + i2) // 64 % 128, (k * 64 + i2) % 64] = float32((k - 9) // 4 + i2 % 3)
            }
          }
        }
        map (i3, j3) in (128, 64) {
          A[by * 128 + i3 * 2 // 2, bx * 256 + j3] = S[i3, j3] + float32(q * 4 // 4)
        }
      }
    }"""
    )
    found = simplify_indices(program, TARGET)
    assert found != program
    results = []
    for each in (program, found):
        a = np.arange(136 * 1024, dtype=np.float32).reshape(136, 1024)
        machine.run(each, {"A": a, "O": np.zeros(4096, np.int32), "q": 2**30 + 5})
        results.append(a)
    np.testing.assert_array_equal(*results)
