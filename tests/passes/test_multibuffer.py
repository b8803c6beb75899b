"""Tiles that threads fill for products: slots that take turns, the same numbers, and what keeps a
tile from having them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import HOPPER, ROLES, numbers
from tests.schedules.harness import mutants
from tilewright import machine
from tilewright.ir.op import Alloc, Gemm, Sync, WaitGroup, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import TilewrightError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel


def unpacked(stages=3, K=192, kept=False, threads=256, steps=4):
    """The product's second operand is unpacked by threads. `kept`: a part of it is not written."""

    @T.prim_func
    def main(
        A: T.Tensor((128, K), "float16"),
        B: T.Tensor((K, 64), "int8"),
        C: T.Tensor((steps, 128, 64), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((128, 64), "float16")
            q = T.alloc_shared((64, 64), "int8")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            for t in T.serial(steps):
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                    T.copy(A[0, k * 64], a)
                    T.copy(B[k * 64, 0], q)
                    for i, j in T.Parallel(64, 64):
                        if not kept or i < 32:
                            b[i, j] = T.cast(q[i, j], "float16") * 2 + t
                    T.gemm(a, b, c)
                T.copy(c, C[t, 0, 0])

    return main.program


def gathered(stages=3, K=192):
    """Rows of the product's first operand are named by a table, which also leaves some out."""

    @T.prim_func
    def main(
        X: T.Tensor((300, K), "float16"),
        rows: T.Tensor((128,), "int32"),
        B: T.Tensor((K, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                for i, j in T.Parallel(128, 64):
                    a[i, j] = T.if_then_else(i % 5 != 3, X[rows[i], k * 64 + j], 0)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    return main.program


def stage(program, target, name):
    return next(s.program for s in lower(program, target) if s.name == name)


def slots(program, target=ROLES):
    found = stage(program, target, "part_roles")
    shapes = {
        op.buffer.name: op.buffer.static_shape
        for op in walk_ops(found.kernels[0])
        if isinstance(op, Alloc)
    }
    return shapes["b"], found


def arguments(program):
    found = {}
    for tensor in program.tensors:
        shape = tuple(int(s.value) for s in tensor.shape)
        found[tensor.name] = numbers(*shape, dtype=tensor.dtype.numpy)
    if "rows" in found:
        found["rows"] = np.random.default_rng(0).integers(-5, 305, 128).astype(np.int32)
    return found


def results(program, given, seed=0, **kw):
    args = {n: a.copy() for n, a in given.items()}
    machine.run(program, args, seed=seed, **kw)
    return args["C"]


@pytest.mark.parametrize("target", [ROLES, HOPPER], ids=["producer", "all threads"])
@pytest.mark.parametrize("make", [unpacked, gathered])
@pytest.mark.parametrize("stages", [2, 3])
def test_the_same_numbers(make, stages, target):
    program = make(stages)
    given = arguments(program)
    want = results(program, given)
    trace = lower(program, target)
    scheduled = next(s.program for s in trace if s.name == "order_warpgroups")
    for seed in range(3):
        got = results(scheduled, given, seed, explicit=True)
        np.testing.assert_array_equal(got, want)
    args = {n: a.copy() for n, a in given.items()}
    machine.run_threads(trace.result, args)
    np.testing.assert_array_equal(args["C"], want)


@pytest.mark.parametrize("K", [0, 64, 128])
def test_few_iterations(K):
    program = unpacked(3, max(K, 1), steps=2)
    given = arguments(program)
    scheduled = stage(program, ROLES, "order_warpgroups")
    want = results(program, given)
    np.testing.assert_array_equal(results(scheduled, given, explicit=True), want)


def test_the_next_tile_is_written_under_the_product():
    shape, found = slots(unpacked())
    assert shape == (3, 64, 64)
    loop = next(
        op
        for op in walk_ops(found.kernels[0])
        if hasattr(op, "body") and any(isinstance(inner, Gemm) for inner in op.body)
    )
    kinds = [op for op in loop.body if isinstance(op, (Sync, WaitGroup, Gemm))]
    # one meeting; a product is still open when the next is issued
    assert [type(op).__name__ for op in kinds] == ["Sync", "Gemm", "WaitGroup"]
    assert kinds[2].pending == 1


@pytest.mark.parametrize("stages, want", [(1, (64, 64)), (2, (2, 64, 64)), (5, (3, 64, 64))])
def test_slots(stages, want):
    assert slots(unpacked(stages), ROLES.choosing(stages="text"))[0] == want


def test_what_an_iteration_keeps_has_no_slots():
    assert slots(unpacked(kept=True))[0] == (64, 64)


def test_nothing_can_be_dropped_unnoticed():
    program = unpacked(3, 320, steps=2)
    given = arguments(program)
    want = results(program, given)
    scheduled = stage(program, HOPPER, "order_warpgroups")
    # the meeting behind barrier_init: the outer loop begins with another
    spare = f"line {program.kernels[0].loc.line}: sync block"
    missed = []
    for name, mutant in mutants(scheduled):
        if name == spare:
            continue
        try:
            same = [
                (results(mutant, given, seed, explicit=True) == want).all() for seed in range(4)
            ]
        except TilewrightError:
            continue
        if all(same) and not races(mutant, given):
            missed.append(name)
    assert missed == []


def races(scheduled, given):
    """Whether threads get in each other's way, which only thread code shows."""
    lowered = run_pipeline(scheduled, HOPPER, LOWER, stage=Stage.LAID_OUT).result
    try:
        machine.run_threads(lowered, {n: a.copy() for n, a in given.items()})
    except TilewrightError:
        return True
    return False


def test_explain_says_so():
    kernel = CudaKernel(unpacked(), Target.parse("cuda"))
    reasons = " ".join(kernel.trace.reasons.values())
    assert "3 slots of b, filled while gemms run" in reasons
