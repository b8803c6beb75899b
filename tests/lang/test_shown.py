"""What users are shown of values and of what a kernel reads."""

from __future__ import annotations

import os

import pytest

import tilewright as tw
import tilewright.language as T


def test_repr_writes_the_expression():
    shown = []

    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(4) as bx:
            shown.append(f"{bx!r} {bx + 1!r}")
            A[bx] = 1

    assert main is not None
    assert shown == ["bx bx + 1"]


class Net:
    def __init__(self) -> None:
        self.file = open(os.devnull)  # noqa: SIM115

    def make(self, n):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                A[0] = 1

        return main


def test_the_object_of_a_method_is_named():
    net = Net()
    with net.file, pytest.raises(tw.CompileError, match="self of make decides about the kernel"):
        tw.jit(net.make, target="interp")(8)
