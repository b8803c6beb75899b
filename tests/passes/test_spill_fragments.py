"""Elements of fragments that guards, bounds and places ask for: from memory, the same for all."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Copy, Hint, Role, walk_ops
from tilewright.ir.rewrite import map_kernels, rebuild
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage, verify
from tilewright.passes.memory.registers import spill_fragments
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")
ROLES = Target.parse("cuda -roles")


def masked_sum(kind: str = "copied", threads: int = 256):
    """Products of the blocks that a mask asks for."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 128, 384), "float16"),
        B: T.Tensor((384, 64), "float16"),
        used: T.Tensor((2, 6), "int32"),
        C: T.Tensor((2, 128, 64), "float32"),
    ):
        with T.Kernel(2, threads=threads) as by:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            flags = T.alloc_fragment((6,), "int32")
            T.clear(c)
            if kind == "computed":
                for i in T.Parallel(6):
                    flags[i] = used[by, i] * 2
            else:
                T.copy(used[by, :], flags)
            if kind == "read":
                for i, j in T.Parallel(128, 64):
                    c[i, j] = T.cast(flags[j % 6], "float32")
            for k in T.Pipelined(6, num_stages=2):
                if flags[k] != 0:
                    T.copy(A[by, 0, k * 64], a)
                    T.copy(B[k * 64, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C[by, 0, 0])

    return main.program


def fragments(program):
    ops = walk_ops(program.kernels[0])
    return {op.buffer.name: op.buffer.space for op in ops if isinstance(op, Alloc)}


@pytest.mark.parametrize("kind", ["copied", "read", "computed"])
@pytest.mark.parametrize("target", [CUDA, ROLES, Target.parse("cuda -arch=sm_80")], ids=str)
def test_it_means_the_same(kind, target):
    program = masked_sum(kind)
    a, b = numbers(2, 128, 384), numbers(384, 64, seed=1)
    code = lower(program, target)
    for used in ([[0] * 6, [1, 0, 0, 1, 1, 0]], [[1] * 6, [0, 0, 0, 0, 0, 2]]):
        args = {"A": a, "B": b, "used": np.array(used, np.int32)}
        want = {**args, "C": np.zeros((2, 128, 64), np.float32)}
        machine.run(program, want)
        for seed in (0, 1):
            got = {**args, "C": np.zeros((2, 128, 64), np.float32)}
            machine.run_threads(code.result, got, seed=seed)
            np.testing.assert_array_equal(got["C"], want["C"])


def test_advice_about_a_fragment_goes_with_it():
    def advised(kernel):
        (flags,) = (op for op in kernel.body if isinstance(op, Alloc) and op.buffer.name == "flags")
        at = kernel.body.index(flags) + 1
        hint = Hint("swizzle", flags.buffer)
        return rebuild(kernel, body=(*kernel.body[:at], hint, *kernel.body[at:]))

    found = map_kernels(masked_sum(), lambda kernel: spill_fragments(advised(kernel), CUDA))
    verify(found, Stage.TILE)
    assert found == map_kernels(masked_sum(), lambda kernel: spill_fragments(kernel, CUDA))


def test_what_a_copy_brings_is_asked_for_in_its_tensor():
    found = map_kernels(masked_sum(), lambda kernel: spill_fragments(kernel, CUDA))
    assert "flags" not in fragments(found)
    found = map_kernels(masked_sum("read"), lambda kernel: spill_fragments(kernel, CUDA))
    assert fragments(found)["flags"] is Space.FRAGMENT  # for the map
    found = map_kernels(masked_sum("computed"), lambda kernel: spill_fragments(kernel, CUDA))
    assert fragments(found)["flags"] is Space.SHARED


def test_a_producer_asks_for_itself():
    """It fills slots ahead over blocks that are skipped."""
    code = next(s.program for s in lower(masked_sum(), CUDA) if s.name == "part_roles")
    (producer,) = [
        op for op in walk_ops(code.kernels[0]) if isinstance(op, Role) and op.name == "producer"
    ]
    copies = [op for op in walk_ops(producer) if isinstance(op, Copy)]
    assert {op.dst.buffer.name for op in copies} == {"a", "b"}


def test_what_products_fill_is_refused():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            if c[0, 0] > 0.0:
                T.copy(c, C)

    with pytest.raises(CompileError, match="c is a fragment and is read outside a tile op"):
        lower(main.program, CUDA)
