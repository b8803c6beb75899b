"""Products whose columns are a multiple of 64 and whose rows are not: computed as Cᵀ = Bᵀ·Aᵀ."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Copy, Gemm, Intrinsic, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.layout.matrix_tiles import fragments_of, split_of, swap_operands
from tilewright.support.errors import VerifyError
from tilewright.targets.cuda.backend import lower

HOPPER = Target.parse("cuda -arch=sm_90a")


def product(m=24, n=128, kind="float16", left=False, right=False, use="copy", threads=128):
    """A product by tiles of m×n; `left`, `right`: factors that lie transposed."""
    rows = (64, m) if left else (m, 64)
    columns = (n, 64) if right else (64, n)

    @T.prim_func
    def main(A: T.Tensor(rows, kind), B: T.Tensor(columns, kind), C: T.Tensor((m, n), "float16")):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared(rows, kind), T.alloc_shared(columns, kind)
            c = T.alloc_fragment((m, n), "float32")
            T.copy(A, a)
            T.copy(B, b)
            if use == "policy":
                T.gemm(a, b, c, left, right, T.GemmWarpPolicy.FullRow, True)
            else:
                T.gemm(a, b, c, left, right, clear_accum=True)
            if use == "reduced":
                top = T.alloc_fragment((m,), "float32")
                T.reduce_max(c, top, dim=1)
                for i, j in T.Parallel(m, n):
                    c[i, j] = c[i, j] - top[i]
            if use == "map":
                for i, j in T.Parallel(m, n):
                    C[i, j] = c[i, j] * 2 + i
            else:
                T.copy(c, C)

    return main.program


def swapped(program) -> bool:
    return any(op.transpose_c for op in walk_ops(program.kernels[0], Gemm))


SWAPPED = [
    {},
    {"m": 8},
    {"m": 40, "n": 64},
    {"m": 104, "n": 192, "threads": 384},
    {"m": 208, "threads": 256},
    {"left": True},
    {"right": True},
    {"left": True, "right": True},
    {"use": "map"},
]


@pytest.mark.parametrize("said", SWAPPED, ids=str)
def test_one_machine_for_both(said):
    """What the tile machine and the thread code make of it is what it was before."""
    program = product(**said)
    other = swap_operands(program, HOPPER)
    assert swapped(other) and not swapped(program)
    text = print_program(other)
    assert "transpose_c=true" in text and print_program(parse_program(text)) == text
    trace = lower(program, HOPPER)
    threads = trace.result
    assert any(op.name == "wgmma" for op in walk_ops(threads.kernels[0], Intrinsic))
    assert any("operands swapped" in why for why in trace.reasons.values())
    given = {b.name: numbers(*b.static_shape) for b in program.tensors}
    want, *others = [{n: v.copy() for n, v in given.items()} for _ in range(3)]
    machine.run(program, want)
    for each, found in zip((other, threads), others, strict=True):
        machine.run(each, found)
        assert np.array_equal(want["C"], found["C"])


KEPT = [
    {"m": 64},
    {"n": 72},
    {"m": 20},
    {"use": "reduced"},
    {"use": "policy"},
    {"kind": "float8_e4m3fn"},
    {"threads": 96},
]


@pytest.mark.parametrize("said", KEPT, ids=str)
def test_kept(said):
    """No need for it, no instruction for it, or rows that are reduced."""
    assert not swapped(swap_operands(product(**said), HOPPER))


def test_only_with_warpgroups():
    assert not swapped(swap_operands(product(), Target.parse("cuda -arch=sm_80")))


def test_the_fragment_is_the_instruction_s_turned():
    kernel = swap_operands(product(m=24, n=128), HOPPER).kernels[0]
    (op,) = walk_ops(kernel, Gemm)
    split = split_of(op, 128, HOPPER)
    assert (split.atom, split.n, split.rows, split.columns) == ("wgmma", 24, 1, 1)
    held = fragments_of(op, split)["c"]
    assert held.tile == (24, 128) and held.permute(1, 0).tile == (128, 24)


def test_results_are_stored_by_matrices_that_are_turned():
    """By `stmatrix`, and then whole tiles by the bulk engine; pieces have all columns."""
    trace = lower(product(m=208, n=256, threads=256), HOPPER)
    scheduled = next(step.program for step in trace if step.name == "order_warpgroups")
    stores = [op for op in walk_ops(scheduled.kernels[0], Copy) if op.src.buffer.is_fragment]
    assert {op.atom for op in stores} == {"stmatrix"}
    assert {op.dst.static_tile[1] for op in stores} == {256}
    atoms = [op.atom for op in walk_ops(scheduled.kernels[0], Copy)]
    assert atoms.count("bulk_store") == len(stores)


def test_a_product_that_is_not_turned_does_not_fit():
    text = print_program(swap_operands(product(), HOPPER)).replace(" transpose_c=true", "")
    with pytest.raises(VerifyError, match="gemm's shapes do not fit") as failed:
        verify(parse_program(text), Stage.TILE)
    assert "transpose_c" in str(failed.value)
