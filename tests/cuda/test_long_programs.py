"""Programs of many statements: what passes do grows with their number, not with its square.

Counted in calls of Python functions, which no busy machine changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import tilewright.language as T
from tilewright.ir.op import Program, Sync, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.fuse_maps import fuse_maps
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda -arch=sm_90a")


def held(n: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((128,), "float32")
            T.copy(A, x)
            for i in tuple(range(n)):
                for j in T.Parallel(128):
                    x[j] = x[j] * 2.0 + i
            T.copy(x, B)

    return main


def exchanged(n: int) -> Any:
    """Every map reads what other threads wrote just before."""

    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((128,), "float32")
            y = T.alloc_shared((128,), "float32")
            T.copy(A, x)
            for i in tuple(range(n)):
                for j in T.Parallel(128):
                    if i % 2:
                        x[j] = y[127 - j] + i
                    else:
                        y[j] = x[127 - j] + i
            T.copy(x, B)

    return main


def rows(n: int) -> Any:
    """Parts of one tensor, none of them touched twice."""

    @T.prim_func
    def main(A: T.Tensor((n, 128), "float32"), B: T.Tensor((n, 128), "float32")):
        with T.Kernel(1, threads=128):
            for i in tuple(range(n)):
                for j in T.Parallel(128):
                    B[i, j] = A[i, j] * 2.0

    return main


def tiles(n: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n, 128), "float32"), B: T.Tensor((n, 128), "float32")):
        with T.Kernel(1, threads=128):
            for i in tuple(range(n)):
                x = T.alloc_fragment((128,), "float32")
                T.copy(A[i, :], x)
                for j in T.Parallel(128):
                    x[j] = x[j] * 2.0
                T.copy(x, B[i, :])

    return main


def calls(work: Callable[[], object]) -> int:
    found = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def growth(made: Callable[[int], Any], work: Callable[[Program], object]) -> float:
    work(made(10).program)  # imports and tables that processes have once
    programs = [made(n).program for n in (60, 120)]
    some, more = (calls(lambda p=program: work(p)) for program in programs)  # type: ignore[misc]
    return more / some


@pytest.mark.parametrize("made", [held, exchanged, rows, tiles])
def test_passes(made: Callable[[int], Any]) -> None:
    """2 is linear, 4 is quadratic."""
    assert growth(made, lambda program: lower(program, CUDA)) < 2.4


def test_fusing() -> None:
    def fused(program: Program) -> None:
        (kernel,) = program.kernels
        fuse_maps(kernel, Target.parse("cpu"))

    assert growth(held, fused) < 2.4


def test_any_number_of_barriers() -> None:
    """As many as maps, and each of them is needed."""
    lowered = lower(exchanged(520).program, CUDA).result
    barriers = [op for op in walk_ops(lowered.kernels) if isinstance(op, Sync)]
    assert len(barriers) >= 519
