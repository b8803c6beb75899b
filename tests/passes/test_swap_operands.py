"""Products that warpgroups multiply otherwise than they are written: as Cᵀ = Bᵀ·Aᵀ, where columns
are a multiple of 64 and rows are not, or with an operand that goes through registers."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Copy, Fence, Gemm, Intrinsic, walk_ops
from tilewright.ir.rewrite import map_kernels, map_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.layout.matrix_tiles import fragments_of, split_of, swap_operands
from tilewright.support.errors import RunError, VerifyError
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


def rounded(m=64, n=128, left=False, right=False, threads=128, kind="float32", use="", trips=4):
    """A product of float32 tiles by the tensor core, in steps over K."""

    @T.prim_func
    def main(
        A: T.Tensor((trips * 32, m) if left else (m, trips * 32), kind),
        B: T.Tensor((n, trips * 32) if right else (trips * 32, n), kind),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((32, m) if left else (m, 32), kind)
            b = T.alloc_shared((n, 32) if right else (32, n), kind)
            c = T.alloc_fragment((m, n), "float32")
            T.clear(c)
            for k in T.Pipelined(trips, num_stages=2):
                T.copy(A[k * 32, 0] if left else A[0, k * 32], a)
                T.copy(B[0, k * 32] if right else B[k * 32, 0], b)
                T.gemm(a, b, c, left, right, precision="tf32")
            if use == "reduced":
                top = T.alloc_fragment((m,), "float32")
                T.reduce_max(c, top, dim=1)
                for i, j in T.Parallel(m, n):
                    c[i, j] = c[i, j] - top[i]
            T.copy(c, C)

    return main.program


def held(program) -> bool:
    return all(op.a.buffer.is_fragment for op in walk_ops(program.kernels[0], Gemm))


@pytest.mark.parametrize(
    ("said", "turned"),
    [
        ({}, True),  # B has K not innermost
        ({"left": True, "right": True}, False),  # A has
        ({"m": 128, "n": 64, "threads": 128}, True),
        ({"m": 40, "n": 128, "threads": 256}, True),
        ({"left": True, "right": True, "use": "reduced"}, False),
    ],
    ids=str,
)
def test_an_operand_through_registers(said, turned):
    """Instructions want K innermost of types of 32 bits, unless the operand is in registers. The
    thread code has the fences that the bulk loads of the next steps need."""
    program = rounded(**said)
    other = swap_operands(program, HOPPER)
    assert held(other) and swapped(other) == turned
    text = print_program(other)
    assert print_program(parse_program(text)) == text
    trace = lower(program, HOPPER)
    threads = trace.result
    assert any(op.name == "wgmma" for op in walk_ops(threads.kernels[0], Intrinsic))
    assert any("through registers" in why for why in trace.reasons.values())
    given = {b.name: numbers(*b.static_shape, dtype=np.float32) for b in program.tensors}
    want, *others = [{n: v.copy() for n, v in given.items()} for _ in range(3)]
    machine.run(program, want)
    for each, found in zip((other, threads), others, strict=True):
        machine.run(each, found)
        assert np.allclose(want["C"], found["C"], rtol=1e-5, atol=1e-3)


def test_reads_are_over_before_a_bulk_load_overwrites():
    """On a GPU, threads meet at a barrier while their loads are under way: results were wrong in
    tiles of 64×128 by 128 threads."""
    threads = lower(rounded(), HOPPER).result

    def unfenced(op):
        return () if isinstance(op, Fence) and op.kind == "proxy_async" else None

    less = map_kernels(threads, lambda kernel: map_ops(kernel, unfenced))
    given = {b.name: numbers(*b.static_shape, dtype=np.float32) for b in threads.tensors}
    with pytest.raises(RunError, match="ordinary reads of b.* may be under way"):
        machine.run(less, given)


@pytest.mark.parametrize(
    "said",
    [
        {"right": True},  # K is innermost
        {"left": True},  # of neither
        {"use": "reduced"},  # rows would lie across warps
        {"n": 72},
    ],
    ids=str,
)
def test_no_operand_through_registers(said):
    assert not held(swap_operands(rounded(**said), HOPPER))


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
