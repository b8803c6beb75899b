"""Blocks in clusters that load for each other: who loads what, the same numbers, and when not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright.language as T
from tests.mutants import mutants
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir import target as targets
from tilewright.ir.op import Arrive, Copy, For, Role, Wait, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import print_op
from tilewright.passes.grid.persist_blocks import cluster_blocks, spread_clusters
from tilewright.support.errors import TilewrightError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.attention.flash import flash_attention
from zoo.gemm.gemm import gemm_relu

PAIRS = Target.parse("cuda -roles -cluster=2 -split_stages=off")
STAY = PAIRS.choosing(persistent=True)


@pytest.fixture(autouse=True)
def small_chip(monkeypatch):
    """Four multiprocessors, so that blocks walk over several tiles."""
    chip = replace(targets.CHIPS["sm_90a"], multiprocessors=4)
    monkeypatch.setitem(targets.CHIPS, "sm_90a", chip)


def product(M=512, N=256, K=192, **more):
    sizes = {"block_M": 128, "block_N": 128, "threads": 256, "stages": 3, **more}
    return gemm_relu.prim_func(M, N, K, **sizes).program


def arguments(M, N, K):
    a, b = numbers(M, K), numbers(K, N, seed=1)
    want = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0).astype(np.float16)
    return {"A": a, "B": b, "C": np.zeros((M, N), np.float16)}, want


def said(trace):
    return trace.reasons["main", "clusters"]


def test_each_block_loads_a_part_and_sends_it_to_both():
    trace = lower(product(N=384), STAY)
    assert said(trace) == "2 blocks along by share what they load of B"
    kernel = trace.after("part_roles").kernels[0]
    assert kernel.cluster == (2,) and kernel.grid[0].value == 4
    roles = {op.name: op for op in walk_ops(kernel) if isinstance(op, Role)}
    copies = [print_op(op) for op in walk_ops(roles["producer"].body) if isinstance(op, Copy)]
    assert [line.split(" barrier=")[0] for line in copies] == [
        "copy A[by_1 * 128:+128, ko_1 * 64:+64] -> A_shared[ko_slot, :, :]",
        "copy B[ko_1 * 64 + place * 32:+32, bx_1 * 128:+128] -> "
        "B_shared[ko_slot, place * 32:+32, :]",
    ]
    assert ["multicast=3" in line for line in copies] == [False, True]
    # slots are handed back to both, and a block stays until its peer has handed back the last
    backs = [op for op in walk_ops(roles["consumer"].body) if isinstance(op, Arrive)]
    assert [int(op.barrier.cta) for op in backs] == [0, 1, 0, 1]
    drain = roles["producer"].body[-1]
    assert isinstance(drain, For) and isinstance(drain.body[0], Wait)


@pytest.mark.parametrize("sizes", [(512, 256, 192), (512, 384, 64), (1024, 128, 320)])
@pytest.mark.parametrize(
    "target",
    [PAIRS, STAY, STAY.choosing(order="hilbert"), PAIRS.choosing(cluster="4")],
    ids=["launched", "persistent", "hilbert", "four"],
)
def test_the_same_numbers(sizes, target):
    trace = lower(product(*sizes), target)
    assert "share what they load" in said(trace)
    given, want = arguments(*sizes)
    for name in ("cluster_blocks", "persist_blocks", "spread_clusters"):
        args = {k: v.copy() for k, v in given.items()}
        machine.run(trace.after(name), args)
        assert args["C"].tobytes() == want.tobytes(), name
    for seed in range(2):
        args = {k: v.copy() for k, v in given.items()}
        machine.run(trace.after("part_roles"), args, seed=seed, explicit=True)
        assert args["C"].tobytes() == want.tobytes()
    machine.run_threads(trace.result, given, seed=1)
    assert given["C"].tobytes() == want.tobytes()


def test_attention_shares_keys_and_values():
    made = flash_attention.prim_func(
        1, 1, 1, 512, 256, 64, block_M=128, block_N=64, threads=256, dtype="float16"
    ).program
    trace = lower(made, PAIRS)
    assert said(trace) == "2 blocks along bx share what they load of K and V"
    q, k, v = (numbers(1, 1, n, 64, seed=n) for n in (512, 256, 256))
    want = {"Q": q, "K": k, "V": v, "O": np.zeros_like(q)}
    got = {name: x.copy() for name, x in want.items()}
    machine.run(made, want)
    machine.run(trace.after("part_roles"), got, seed=2, explicit=True)
    near = want["O"].astype(np.float64)
    np.testing.assert_allclose(got["O"].astype(np.float64), near, 1e-2, 1e-2)


def test_nothing_can_be_dropped():
    trace = lower(product(512, 128, 448), STAY)
    given, want = arguments(512, 128, 448)
    found = trace.after("part_roles")
    missed = []
    for mutant in mutants(found):
        if mutant.how != "dropped" or mutant.same or mutant.slower:
            continue
        try:
            for seed in range(3):
                args = {k: v.copy() for k, v in given.items()}
                machine.run(mutant.program, args, seed=seed, explicit=True)
                assert args["C"].tobytes() == want.tobytes()
            missed.append(print_op(mutant.op).strip())
        except (TilewrightError, AssertionError):
            pass
    assert missed == []


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (product(384, 384, 64), "3 blocks along bx are not whole clusters"),
        (product(threads=128), None),
        (
            flash_attention.prim_func(
                1, 1, 1, 256, 256, 64, True, block_M=128, block_N=64, threads=256
            ).program,
            "blocks along bx do not run the same",
        ),
    ],
    ids=["odd", "one warpgroup", "causal"],
)
def test_when_not(program, why):
    trace = lower(program, PAIRS)
    assert said(trace) == f"none: {why}" if why else "share" in said(trace)
    alone = lower(program, Target.parse("cuda -roles=off -cluster=2"))
    assert said(alone) == "none: no producer loads: switched off"


def test_nobody_asked():
    plain = product()
    target = Target.parse("cuda")
    assert spread_clusters(cluster_blocks(plain, target), target) is plain


def test_it_compiles_without_spills():
    kernel = CudaKernel(product(1024, 512, 512, block_N=256), STAY)
    assert kernel.serialized is None
    assert all(r.spill_bytes == 0 for r in kernel.resources.values())


def test_what_a_block_fetches_is_its_own():
    @T.prim_func
    def main(
        A: T.Tensor((512, 128), "float16"),
        B: T.Tensor((128, 64), "float16"),
        counter: T.Tensor((1,), "int32"),
        C: T.Tensor((512, 64), "float32"),
    ):
        with T.Kernel(4, threads=256) as bx:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            row = T.atomic_add(counter[0], 1, return_prev=True)
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[row * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[row * 128, 0])

    found = lower(main.program, Target.parse("cuda -cluster=2 -roles"))
    scheduled = next(s.program for s in found if s.name == "order_warpgroups")
    sent = {
        op.src.buffer.name: op.multicast is not None
        for op in walk_ops(scheduled.kernels[0])
        if isinstance(op, Copy) and op.atom == "bulk_load"
    }
    assert sent == {"A": False, "B": True}


def test_what_threads_load_they_load_for_themselves():
    """Only the bulk engine sends to other blocks."""

    @T.prim_func
    def main(
        A: T.Tensor((512, 128), "float16"),
        B: T.Tensor((128, 64), "float16"),
        C: T.Tensor((512, 64), "float32"),
    ):
        with T.Kernel(4, threads=256) as bx:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[bx * 128, k * 64], a)
                T.copy(B[k * 64, 0], b, prefer="cp_async")
                T.gemm(a, b, c)
            T.copy(c, C[bx * 128, 0])

    a, b = numbers(512, 128), numbers(128, 64, seed=1)
    out = np.zeros((512, 64), np.float32)
    found = lower(main.program, PAIRS)
    assert found.result.kernels[0].cluster == (2,)
    machine.run_threads(found.result, {"A": a, "B": b, "C": out})
    np.testing.assert_array_equal(out, a.astype(np.float32) @ b.astype(np.float32))
