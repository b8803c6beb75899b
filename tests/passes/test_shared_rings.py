"""Rings in the corners: several loops, clusters, late products and inner loops that share them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from devtools.schedules.run import scheduled
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import lower

F16 = "float16"


def check(program, args, target, seeds=range(6)):
    """The scheduled form gives the numbers of the text."""
    want = {name: value.copy() for name, value in args.items()}
    machine.run(program, want)
    found = scheduled(program, Target.parse(target))
    for seed in seeds:
        got = {name: value.copy() for name, value in args.items()}
        machine.run(found, got, seed=seed, explicit=True)
        for name, value in want.items():
            assert got[name].tobytes() == value.tobytes(), name


def said(program, target):
    return " ".join(lower(program, Target.parse(target)).reasons.values())


@pytest.mark.parametrize("common_first", [False, True])
def test_a_ring_that_one_of_two_loops_shares_in_its_cluster(common_first):
    @T.prim_func
    def main(
        A: T.Tensor((256, 256), F16), D: T.Tensor((64, 256), F16), B: T.Tensor((64, 64), F16),
        C: T.Tensor((256, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, 4, threads=128) as (bx, by):
            a = T.alloc_shared((64, 64), F16)
            b = T.alloc_shared((64, 64), F16)
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.copy(B, b)
            for own in (False, True) if common_first else (True, False):
                for k in T.Pipelined(4, num_stages=2):
                    T.copy(A[by * 64, k * 64] if own else D[0, k * 64], a)
                    T.gemm(a, b, c)
            T.copy(c, C[by * 64, 0])

    args = {"A": numbers(256, 256), "D": numbers(64, 256, seed=2), "B": numbers(64, 64, seed=1),
            "C": np.zeros((256, 64), np.float32)}  # fmt: skip
    check(main.program, args, "cuda -roles=on -cluster=2")


def chain(stages, values_first, inner=0, keys_again=False):
    @T.prim_func
    def main(
        Q: T.Tensor((256, 64), F16), K: T.Tensor((192, 64), F16), V: T.Tensor((192, 64), F16),
        O: T.Tensor((256, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(4, threads=128) as bx:
            q = T.alloc_shared((64, 64), F16)
            k = T.alloc_shared((64, 64), F16)
            v = T.alloc_shared((64, 64), F16)
            s = T.alloc_fragment((64, 64), "float32")
            p = T.alloc_fragment((64, 64), F16)
            o = T.alloc_fragment((64, 64), "float32")
            T.clear(o)
            T.copy(Q[bx * 64, 0], q)
            for i in T.Pipelined(3, num_stages=stages):
                if values_first and not inner:
                    T.copy(V[i * 64, 0], v)
                T.copy(K[i * 64, 0], k)
                if not values_first and not inner:
                    T.copy(V[i * 64, 0], v)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for a, b in T.Parallel(64, 64):
                    p[a, b] = T.min(s[a, b], 2)
                if inner:
                    T.gemm(p, k, o)
                    for j in T.Pipelined(inner, num_stages=2):
                        T.copy(V[j * 64, 0], v)
                        T.gemm(p, v, o)
                else:
                    T.gemm(p, v, o)
                    if keys_again:
                        T.gemm(p, k, o)
            T.copy(o, O[bx * 64, 0])

    return main.program


ARGS = {"Q": numbers(256, 64), "K": numbers(192, 64, seed=1), "V": numbers(192, 64, seed=2),
        "O": np.zeros((256, 64), np.float32)}  # fmt: skip


@pytest.mark.parametrize("more", ["-skew=off", "-skew=off -persistent=on", "-skew=on"])
@pytest.mark.parametrize("values_first", [False, True])
def test_a_block_stays_until_all_its_rings_are_handed_back(values_first, more):
    check(chain(2, values_first), ARGS, f"cuda -roles=on -cluster=2 {more}")
    check(chain(2, values_first, keys_again=True), ARGS, f"cuda -roles=on -cluster=2 {more}")


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("values_first", [False, True])
def test_one_slot_and_a_late_product(stages, values_first):
    given, target = chain(stages, values_first), "cuda -roles=on -skew=on"
    check(given, ARGS, target)
    assert ("no skew" in said(given, target)) == (stages == 1 and values_first)


@pytest.mark.parametrize("inner", [1, 2, 3])
def test_a_loop_with_slots_inside_a_loop_with_slots(inner):
    for skew in ("on", "off", "auto"):
        target = "cuda -roles=on" + (f" -skew={skew}" if skew != "auto" else "")
        check(chain(2, False, inner), ARGS, target, range(3))


def test_who_waits_for_another_launch_has_no_producer():
    @T.prim_func
    def main(
        A: T.Tensor((256, 128), F16), B: T.Tensor((128, 64), F16), C: T.Tensor((256, 64), "float32")
    ):
        with T.Kernel(2, threads=256) as bx:
            a = T.alloc_shared((128, 64), F16)
            b = T.alloc_shared((64, 64), F16)
            c = T.alloc_fragment((128, 64), "float32")
            T.pdl_wait()
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[bx * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[bx * 128, 0])

    for target in ("cuda", "cuda -roles=on"):
        assert "it communicates with other launches" in said(main.program, target)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_tiles_that_their_author_deals_out_have_a_producer(blocks):
    @T.prim_func
    def main(
        A: T.Tensor((256, 128), F16), B: T.Tensor((128, 192), F16), C: T.Tensor((256, 192), F16)
    ):
        with T.Kernel(blocks, threads=256) as block:
            a = T.alloc_shared((128, 64), F16)
            b = T.alloc_shared((64, 64), F16)
            c = T.alloc_fragment((128, 64), "float32")
            for by, bx in T.Persistent([2, 3], blocks, block):
                T.clear(c)
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(A[by * 128, k * 64], a)
                    T.copy(B[k * 64, bx * 64], b)
                    T.gemm(a, b, c)
                T.copy(c, C[by * 128, bx * 64])

    args = {"A": numbers(256, 128), "B": numbers(128, 192, seed=1),
            "C": np.zeros((256, 192), np.float16)}  # fmt: skip
    check(main.program, args, "cuda", range(3))
    assert "filled by all threads" not in said(main.program, "cuda")
