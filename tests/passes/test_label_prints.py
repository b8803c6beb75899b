"""Prints and assertions say who speaks, before passes rewrite indices."""

import contextlib
import io

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.messages import label_kernel
from tilewright.ir.rewrite import map_kernels
from tilewright.ir.text import parse_program, print_program
from tilewright.support.errors import RunError

TEXT = """\
program p {
  param A: float32[8, 8] global
  kernel k grid (bx, by) in (2, 3) threads tx in 32 {
    alloc s: float32[4, 8] shared
    fill s = 1.0
    intrinsic print () text="hello {you}"
    intrinsic print (bx + 1) text="next"
    intrinsic print (&s[by:+2, :]) text="part"
    if tx < 2 {
      intrinsic print (&s)
    }
    map (i, j) in (2, 2) {
      intrinsic print (s[i, j]) text="in"
    }
    intrinsic device_assert (tx < 40) text="few"
  }
}
"""
# what becomes of its prints, in order
WANT = [
    'print (bx, by) text="block ({}, {}): hello {{you}}" width=2',
    'print (bx, by, bx + 1) text="block ({}, {}): next" width=2',
    "print (bx, by, by, by + 2, &s[by:+2, :]) "
    'text="block ({}, {}): part s[{}:{}, 0:8]: float32[2, 8] =" width=4',
    'print (bx, by, tx, &s) text="block ({}, {}) thread {}: s: float32[4, 8] =" width=3',
    'print (bx, by, i, j, s[i, j]) text="block ({}, {}) at ({}, {}): in" width=4',
    "device_assert (bx, by, tx, tx < 40) "
    'text="device_assert failed in block ({}, {}) thread {}: few" width=3',
]


def test_labels():
    program = map_kernels(parse_program(TEXT), label_kernel)
    text = print_program(program)
    found = [line.strip().removeprefix("intrinsic ") for line in text.splitlines()]
    assert [line for line in found if line.startswith(("print", "device_assert"))] == WANT
    assert parse_program(text) == program
    assert map_kernels(program, label_kernel) is program


def test_without_prints_nothing_changes():
    program = parse_program("program p { kernel k grid b in 1 threads t in 32 { } }")
    assert map_kernels(program, label_kernel) is program


def test_the_meaning_stays():
    lines = []
    for program in (parse_program(TEXT), map_kernels(parse_program(TEXT), label_kernel)):
        with contextlib.redirect_stdout(io.StringIO()):
            lines.append(machine.run(program, {"A": np.zeros((8, 8), np.float32)}).printed)
    assert lines[0] == lines[1] and len(lines[0]) == 6 * (3 + 2 + 4)


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_assertions_say_where(target):
    @T.prim_func
    def inside(A: T.Tensor((4, 8), "int32")):
        with T.Kernel(2, 2, threads=32) as (bx, by):
            if bx == 1 and by == 1:
                for i, j in T.Parallel(4, 8):
                    T.device_assert(A[i, j] < 9, "100% {wrong}")

    @T.prim_func
    def once(A: T.Tensor((4, 8), "int32")):
        with T.Kernel(2, threads=32) as bx:
            T.device_assert(A[bx, 0] < 9)

    a = np.zeros((4, 8), np.int32)
    kernel = tw.compile(inside, target=target)
    kernel(a)
    a[2, 5] = 9
    with pytest.raises(RunError) as caught:
        kernel(a)
    assert caught.value.message == "device_assert failed in block (1, 1) at (2, 5): 100% {wrong}"
    assert caught.value.loc.file == __file__
    a[1, 0] = 9
    with pytest.raises(RunError) as caught:
        tw.compile(once, target=target)(a)
    assert caught.value.message == "device_assert failed in block (1,)"
    a[:] = 0
    kernel(a)  # nothing of the failure is left
