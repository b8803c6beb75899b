"""Products in pieces: the same numbers in fewer registers; what is left whole."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import ROLES, with_atom
from tests.passes.scaled_products import WAYS, arguments, results, said, scaled_product, stage
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Alloc, Gemm, Relayout, walk_ops
from tilewright.passes.layout.choose_gemms import choose_gemms, split_gemms
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel

CUT = ROLES.choosing(split_gemms=True)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_numbers(way):
    program = scaled_product.prim_func(3, way, block=(128, 256, 64), stages=2, tiles=1).program
    trace = lower(program, ROLES)
    assert "part in 2 pieces of 128 columns" in said(trace)
    for count in (0, 1, 3):
        args = arguments(program, count)
        want = results(program, args)
        np.testing.assert_array_equal(
            results(with_atom(stage(trace, "split_gemms"), None), args), want
        )
        np.testing.assert_array_equal(results(stage(trace), args, explicit=True), want)
    if way == "by the map":
        np.testing.assert_array_equal(results(trace.result, args, threads=True), want)


@pytest.mark.parametrize(
    "block, pieces",
    [((128, 256, 64), "2 pieces of 128 columns"), ((256, 128, 64), "2 pieces of 128 rows"),
     ((128, 128, 64), None), ((128, 192, 64), None)],
)  # fmt: skip
def test_where_registers_do_not_do(block, pieces):
    program = scaled_product.prim_func(3, block=block, stages=2).program
    kernel = CudaKernel(program, ROLES)
    assert kernel.serialized is None
    assert all(r.spill_bytes == 0 for r in kernel.resources.values())
    assert (
        (f"part in {pieces}" in said(kernel.trace))
        if pieces
        else "pieces" not in said(kernel.trace)
    )
    found = stage(kernel.trace)
    assert not any(isinstance(op, Relayout) for op in walk_ops(found.kernels[0]))
    (c,) = [op.buffer for op in walk_ops(found.kernels[0])
            if isinstance(op, Alloc) and op.buffer.name == "c"]  # fmt: skip
    assert isinstance(c.layout, Fragment) and c.layout.is_bijective


def test_off_and_on():
    large = scaled_product.prim_func(3, block=(128, 256, 64), stages=2).program
    assert "pieces" not in said(lower(large, ROLES.choosing(split_gemms=False)))
    small = scaled_product.prim_func(3, block=(128, 128, 64), stages=2).program
    assert "part in 2 pieces of 64 columns" in said(lower(small, CUT))


def used(form):
    @T.prim_func
    def main(
        A: T.Tensor((128, 256), "float16"),
        B: T.Tensor((256, 256), "float16"),
        R: T.Tensor((4, 128), "float32"),
        C: T.Tensor((128, 256), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 256), "float16")
            part = T.alloc_fragment((128, 256), "float32")
            c = T.alloc_fragment((128, 256), "float32")
            r = T.alloc_fragment((128,), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, part, clear_accum=True)
                if form == "reduced":
                    T.reduce_sum(part, r, dim=1)
                    T.copy(r, R[k, 0])
                if form == "between":
                    T.copy(c, C)
                for i, j in T.Parallel(128, 256):
                    c[i, j] += part[i, 255 - j if form == "turned" else j]
                if form == "twice":
                    for i, j in T.Parallel(128, 256):
                        c[i, j] += T.max(part[i, j], 0)
                if form == "shifted":
                    for i, j in T.Parallel(128, 256):
                        part[i, j] = part[i, j] + c[i, (j + 1) % 256]
            T.copy(part if form == "behind" else c, C)

    return main.program


@pytest.mark.parametrize("form", ["reduced", "between", "turned", "twice", "shifted", "behind"])
def test_what_is_left_whole(form):
    program = choose_gemms(used(form), CUT)
    found = split_gemms(program, CUT)
    gemms = sum(isinstance(op, Gemm) for op in walk_ops(found.kernels[0]))
    assert gemms == (2 if form == "twice" else 1)
    args = {
        t.name: np.ones([int(s.value) for s in t.shape], t.dtype.numpy) for t in program.tensors
    }
    got, want = (results(with_atom(p, None), args) for p in (found, program))
    np.testing.assert_array_equal(got, want)
