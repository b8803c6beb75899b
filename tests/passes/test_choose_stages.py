"""Loops that do not say how deep they run ahead, or say less than it takes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import For, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.overlap.stages import choose_stages
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")


def product(
    block_M=128,
    block_N=128,
    block_K=64,
    threads=256,
    stages=None,
    K=256,
    dtype="float16",
    whole=False,
    blocks=1,
):
    @T.prim_func
    def main(
        A: T.Tensor((block_M, K), dtype),
        B: T.Tensor((K, block_N), dtype),
        C: T.Tensor((block_M, block_N), "float16"),
    ):
        with T.Kernel(blocks, threads=threads):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[0, k * block_K], a)
                T.copy(B[k * block_K, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    return main if whole else main.program


def chosen(program):
    found = choose_stages(program.kernels[0], CUDA)
    return [op.stages for op in walk_ops(found) if isinstance(op, For)]


@pytest.mark.parametrize(
    "sizes, want",
    [
        ({"block_N": 256}, 4),  # 48 KB a slot: four fit beside what is staged
        ({}, 6),
        ({"block_N": 256, "block_K": 128}, 2),
        ({"threads": 128, "block_M": 64, "blocks": 200}, 3),  # and a second block beside it
        ({"threads": 128, "block_M": 64}, 6),  # there is none
        ({"stages": 0}, 0),
        ({"stages": 2}, 4),  # of the text's two, a load would take most of an iteration
        ({"stages": 2, "K": 64 * 16}, 6),
        ({"stages": 2, "K": 64 * 3}, 3),  # and no more than there are iterations
        ({"stages": 3, "block_N": 256}, 3),  # a load is hidden
        ({"stages": 1, "block_N": 256, "block_K": 128}, 2),  # two of 96 KB fit
        ({"stages": 2, "threads": 128}, 2),  # more would be a resident block less
        ({"stages": 2, "dtype": "float32"}, 2),  # products by threads; no producer
    ],
)
def test_stages(sizes, want):
    assert chosen(product(**sizes)) == [want]


def test_more_than_the_text_says_is_said():
    reasons = lower(product(stages=3, K=1024), CUDA).reasons
    assert any("6 stages, 3 in the text" in why for why in reasons.values())
    reasons = lower(product(stages=3, K=1024), CUDA.choosing(stages="text")).reasons
    assert any("3 stages, as the text says: 6 would fit" in why for why in reasons.values())
    reasons = lower(product(stages=6), CUDA).reasons
    assert not any("the text" in why for why in reasons.values())


def test_loops_share_the_room():
    """What one loop is given is not there for the next; tiles that maps gather count."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 1024), "float16"),
        B: T.Tensor((1024, 128), "float16"),
        rows: T.Tensor((128,), "int32"),
        C: T.Tensor((128, 128), "float16"),
    ):
        with T.Kernel(1, threads=256):
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for _ in tuple(range(2)):
                a = T.alloc_shared((128, 64), "float16")
                b = T.alloc_shared((64, 128), "float16")
                for k in T.Pipelined(16, num_stages=2):
                    for i, j in T.Parallel(128, 64):
                        a[i, j] = A[rows[i], k * 64 + j]
                    T.copy(B[k * 64, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C)

    assert chosen(main.program) == [4, 2]
    assert not any(what == "given up" for _, what in lower(main.program, CUDA).reasons)


def test_explain_says_how_deep_loops_run():
    kernel = tw.compile(product(stages=3, K=1024, whole=True), target="cuda")
    assert "loop k: 6 stages" in kernel.explain()


def test_nothing_to_load():
    @T.prim_func
    def main(C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4):
                for i, j in T.Parallel(64, 64):
                    c[i, j] += i * k
            T.copy(c, C)

    assert chosen(main.program) == [0]


def test_the_same_numbers_and_the_reason():
    program = product()
    args = {
        "A": numbers(128, 256),
        "B": numbers(256, 128, seed=1),
        "C": np.zeros((128, 128), np.float16),
    }
    trace = lower(program, CUDA)
    want = {n: a.copy() for n, a in args.items()}
    machine.run(program, want)
    machine.run_threads(trace.result, args)
    np.testing.assert_array_equal(args["C"], want["C"])
    assert any("6 stages: a load takes" in why for why in trace.reasons.values())


def test_what_is_given_up_for_room_is_said():
    """Four stages of 48 KB and 64 KB of the author's own do not fit, unless the one may lie over
    the other: not while a producer is at the next tile."""

    @T.prim_func
    def main(
        A: T.Tensor((512 * 128, 512), "float16"),
        B: T.Tensor((512, 256), "float16"),
        C: T.Tensor((512 * 128, 256), "float16"),
    ):
        with T.Kernel(512, threads=256) as bx:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 256), "float16")
            out = T.alloc_shared((128, 256), "float16")
            c = T.alloc_fragment((128, 256), "float32")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=4):
                T.copy(A[bx * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, out)
            T.copy(out, C[bx * 128, 0])

    trace = lower(main.program, CUDA)
    assert trace.reasons["main", "given up"].endswith("persistent=off, for shared memory")
