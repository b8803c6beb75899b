"""Products that are only stored add up in the tensor; tiles with other uses stay."""

import numpy as np
import pytest

from tests.cpu.test_forward_copies import arguments, check, draw, ops, program
from tilewright.ir.op import Alloc, Copy, Fill, For, Gemm
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.machine.run import run
from tilewright.passes.canonicalize.fuse_maps import forward_copies, split_edges, write_products
from tilewright.passes.canonicalize.loops import unroll_single

CPU = Target.parse("cpu")
PARAMS = ["A: float32[64, 48]", "B: float32[48, 32]", "C: float32[64, 32]"]


def written(text):
    """The program after the passes, which means the same in the interpreter and on the CPU."""
    before = forward_copies(split_edges(parse_program(text), CPU), CPU)
    after = write_products(unroll_single(before, CPU), CPU)
    results = []
    for each in (before, after):
        args = arguments(text)
        run(each, args)
        results.append(args)
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])
    check(text, arguments(text))
    return after


def text(steps=1, out="C[bx * 16:+16, :]", more="", before="", after="", params=PARAMS, blocks=4):
    return program(
        f"""
        alloc a: float32[16, 16] shared
        alloc b: float32[16, 32] shared
        alloc c: float32[16, 32] fragment
        fill c = 0.0
        {before}
        for k in 0 .. {steps} {{
          copy A[bx * 16:+16, k * 16:+16] -> a
          copy B[k * 16:+16, :] -> b
          gemm a, b -> c
        }}
        {more}
        copy c -> {out}
        {after}
        """,
        params,
        grid=f"bx in {blocks}",
    )


def tiles(after):
    return [op.buffer.name for op in ops(after, Alloc)]


def test_a_product_writes_the_tensor():
    after = written(text())
    assert not tiles(after) and not any(ops(after, kind) for kind in (Copy, Fill, For))
    (gemm,) = ops(after, Gemm)
    assert gemm.c.name == "C" and gemm.clear.value and gemm.atom == "micro_kernel"


def test_the_last_block_ends_within_its_tile():
    params = ["A: float32[60, 48]", "B: float32[48, 32]", "C: float32[60, 32]"]
    after = written(text(params=params))
    assert not tiles(after) and {str(op.c.extents[0]) for op in ops(after, Gemm)} == {"16", "12"}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 3},
        {"more": "map (i, j) in (16, 32) { c[i, j] = max(c[i, j], 0.0) }"},  # another use
        {"after": "copy c -> D[bx * 16:+16, :]"},
        {"before": "copy C[bx * 16:+16, :] -> c"},  # starts from what is there
        {"before": "copy C[bx * 16:+16, :] -> D[bx * 16:+16, :]"},  # is read after it is written
        {"out": "H[bx * 16:+16, :]"},  # another type
        {"out": "C[bx * 16 + 1:+16, :]"},  # ends outside
    ],
)
def test_tiles_with_other_uses_stay(change):
    params = [*PARAMS, "D: float32[64, 32]", "H: float16[64, 32]"]
    after = written(text(params=params, **change))
    assert "c" in tiles(after) and {op.c.name for op in ops(after, Gemm)} == {"c"}


def test_a_place_that_is_computed_inside_stays():
    """The product comes before the number that says where its tile goes."""
    after = written(text(more="let row: int32 = bx * 16", out="C[row:+16, :]"))
    assert tiles(after) == ["c"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "int8"])
@pytest.mark.parametrize("m, n", [(1, 1), (2, 3), (13, 17), (29, 33), (31, 47), (5, 63), (70, 16)])
def test_products_of_any_rows_and_columns(dtype, m, n):
    """Blocks of the micro-kernel with fewer rows, and vectors that end outside."""
    k = 5
    total = {"float16": "float32", "int8": "int32"}.get(dtype, dtype)
    text = program(
        f"""
        alloc c: {total}[{m}, {n}] fragment
        fill c = {total}(0)
        gemm A, B -> c
        copy c -> C
        """,
        [f"A: {dtype}[{m}, {k}]", f"B: {dtype}[{k}, {n}]", f"C: {total}[{m}, {n}]"],
        grid="bx in 1",
    )  # fmt: skip
    a, b = (draw(s, "int8", seed=i, low=-3, high=3) for i, s in enumerate(((m, k), (k, n))))
    around = np.full((m + 2, n), 77).astype(total)
    check(text, {"A": a.astype(dtype), "B": b.astype(dtype), "C": around[1:-1]})
    assert (around[[0, -1]] == 77).all()
