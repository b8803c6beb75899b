"""Tiles of products in boxes along K: the same bits, an event for each, and what stays whole."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from devtools.schedules.run import scheduled
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Copy, Gemm, Program, Wait, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.overlap.stages import split_stages
from tilewright.passes.run import run_pipeline
from tilewright.targets.cuda.backend import lower
from zoo.attention.flash import flash_attention

AUTO = Target.parse("cuda -arch=sm_90a")
ROLES = Target.parse("cuda -arch=sm_90a -roles=on")
ASKED = ROLES.choosing(split_stages=True)
M, N, BLOCK_K = 128, 64, 128


def product(K=512, stages=2, trans=(False, False), once=False, again=False, kind="float16"):
    """`once`: A is loaded before the loop; `again`: something else reads the tile of B too."""
    bk = BLOCK_K
    b_shape, b_tile = ((N, K), (N, bk)) if trans[1] else ((K, N), (bk, N))

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kind),
        B: T.Tensor(b_shape, kind),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((M, bk), kind)
            b = T.alloc_shared(b_tile, kind)
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            if once:
                T.copy(A[0, 0], a)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
                if not once:
                    T.copy(A[0, k * bk], a)
                T.copy(B[0, k * bk] if trans[1] else B[k * bk, 0], b)
                T.gemm(a, b, c, transpose_B=trans[1])
                if again:
                    for i, j in T.Parallel(M, N):
                        c[i, j] += T.cast(b[0, j], "float32")
            T.copy(c, C)

    return main.program


def parts(program: Program, target: Target = AUTO) -> list[int]:
    found = split_stages(program, target)
    ops = list(walk_ops(found.kernels[0]))
    return [sum(isinstance(op, kind) for op in ops) for kind in (Copy, Gemm)]


def result(program: Program, seed=0, threads=False, **how) -> bytes:
    args = {
        t.name: numbers(*t.static_shape, seed=k).astype(t.dtype.numpy)
        for k, t in enumerate(program.tensors)
    }
    (machine.run_threads if threads else machine.run)(program, args, seed=seed, **how)
    return args[program.tensors[-1].name].tobytes()


def check(program: Program, target: Target) -> Program:
    want = result(program)
    found = scheduled(program, target)
    for seed in range(3):
        assert result(found, seed, explicit=True) == want
    code = run_pipeline(found, target, LOWER, stage=Stage.LAID_OUT).result
    assert result(code, 1, threads=True) == want
    return found


@pytest.mark.parametrize("K", [128, 256, 384, 640, 200])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_same_bits(K, stages):
    check(product(K, stages), ROLES)


@pytest.mark.parametrize("target", [ROLES, ASKED.choosing(roles=False)], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {"trans": (False, True)},
        {"once": True, "K": 384},
        {"kind": "float8_e4m3fn", "trans": (False, True)},
    ],
)
def test_of_all_kinds(how, target):
    check(product(**how), target)


def test_each_box_has_its_event():
    assert parts(product(stages=3)) == [2 + 2 + 1, 2]
    assert parts(product(stages=2)) == [4 + 4 + 1, 4]  # of 64 bytes: as many as hide a load
    trace = lower(product(stages=3), ROLES)
    waits = [
        op for op in walk_ops(trace.after("pipeline_loops").kernels[0]) if isinstance(op, Wait)
    ]
    full = {op.barrier.buffer.name for op in waits if op.barrier.buffer.name.endswith("_full")}
    assert full == {"a_0_full", "a_1_full"}
    assert any("2 boxes per tile" in why for why in trace.reasons.values())


def test_a_tile_from_before_is_read_in_parts():
    assert parts(product(once=True, stages=3)) == [1 + 2 + 1, 2]


@pytest.mark.parametrize(
    "program, target",
    [
        (product(again=True, once=True), AUTO),  # others read it too
        (product(stages=6), AUTO),  # whole tiles are fine enough
        (product(stages=2), AUTO.choosing(roles=False)),  # all threads fill
        (product(), AUTO.choosing(split_stages=False)),
        (product(), Target.parse("cuda -arch=sm_80")),
    ],
)
def test_what_stays_whole(program, target):
    assert split_stages(program, target) is program or parts(program, target)[1] == 1


def of_a_part(rows: int, columns: int, first: int):
    """A product that reads a part of its tiles."""

    @T.prim_func
    def main(
        A: T.Tensor((M, 256), "float16"),
        B: T.Tensor((256, N), "float16"),
        C: T.Tensor((rows, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((M, BLOCK_K), "float16")
            b = T.alloc_shared((BLOCK_K, N), "float16")
            c = T.alloc_fragment((rows, N), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * BLOCK_K], a)
                T.copy(B[k * BLOCK_K, 0], b)
                end = first + columns
                T.gemm(a[0:rows, first:end], b[first:end, :], c)
            T.copy(c, C)

    return main.program


@pytest.mark.parametrize("part", [(M, 64, 0), (M, 64, 64), (64, 128, 0)], ids=str)
@pytest.mark.parametrize("target", [ROLES, ASKED], ids=str)
def test_parts_of_tiles(part, target):
    check(of_a_part(*part), target)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_where_it_is_asked_for(causal):
    program = flash_attention.prim_func(
        1, 1, 1, 128, 200, 128, causal, block_M=128, block_N=64, threads=256
    ).program
    assert parts(program, AUTO)[1] == 2
    assert parts(program, ASKED)[1] == 4 + 2
    args = {t.name: numbers(*t.static_shape, seed=k) for k, t in enumerate(program.tensors)}
    want = {n: a.astype(np.float16) for n, a in args.items()}
    machine.run(program, want)
    found = scheduled(program, ASKED)
    for seed in range(3):
        got = {n: a.astype(np.float16) for n, a in args.items()}
        machine.run(found, got, seed=seed, explicit=True)
        np.testing.assert_allclose(got["O"], want["O"], rtol=2e-3, atol=2e-3)
