"""Dynamic schedulers: a producer that fetches the block's next tile and hands it on."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import ROLES, numbers
from tests.schedules.harness import mutants
from tilewright import machine
from tilewright.ir.op import Atomic, Role, walk_ops
from tilewright.support.errors import TilewrightError
from tilewright.targets.cuda.backend import lower

M, N, K = 384, 128, 128


def dynamic(blocks=2, peeks=False):
    """Blocks take tiles from a counter; `peeks`: one looks at it besides."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        counter: T.Tensor((1,), "int32"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            tile = T.alloc_var("int32", 0)
            tile = T.atomic_add(counter[0], 1, return_prev=True)
            while tile < (M // 128) * (N // 64):
                T.clear(c)
                for k in T.Pipelined(K // 64, num_stages=2):
                    T.copy(A[tile // 2 * 128, k * 64], a)
                    T.copy(B[k * 64, tile % 2 * 64], b)
                    T.gemm(a, b, c)
                T.copy(c, C[tile // 2 * 128, tile % 2 * 64])
                if peeks:
                    tile = counter[0]
                else:
                    tile = T.atomic_add(counter[0], 1, return_prev=True)

    return main.program


def counted():
    """A loop whose end a scalar decides that both roles count."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        lengths: T.Tensor((3,), "int32"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(3, threads=256) as bx:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            left = T.alloc_var("int32", 0)
            left = lengths[bx]
            while left > 0:
                left -= 1
                T.clear(c)
                for k in T.Pipelined(K // 64, num_stages=2):
                    T.copy(A[bx * 128, k * 64], a)
                    T.copy(B[k * 64, left * 64], b)
                    T.gemm(a, b, c)
                T.copy(c, C[bx * 128, left * 64])

    return main.program


def arguments(program):
    found = {}
    for tensor in program.tensors:
        shape = tuple(int(s.value) for s in tensor.shape)
        found[tensor.name] = numbers(*shape, dtype=tensor.dtype.numpy)
    for name, value in (("counter", [0]), ("lengths", [2, 0, 1])):
        if name in found:
            found[name][:] = value
    return found


def results(program, given, seed=0, **kw):
    args = {n: a.copy() for n, a in given.items()}
    machine.run(program, args, seed=seed, **kw)
    return args


def roles(program):
    found = {}
    for op in walk_ops(program.kernels[0]):
        if isinstance(op, Role):
            found[op.name] = op
    return found


@pytest.mark.parametrize("program", [dynamic(), dynamic(1), dynamic(7), counted()])
def test_the_same_numbers(program):
    given = arguments(program)
    want = results(program, given)
    trace = lower(program, ROLES)
    scheduled = next(s.program for s in trace if s.name == "order_warpgroups")
    assert set(roles(scheduled)) == {"consumer", "producer"}
    for seed in range(4):
        got = results(scheduled, given, seed, explicit=True)
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value)
    args = {n: a.copy() for n, a in given.items()}
    machine.run_threads(trace.result, args)
    for name, value in want.items():
        np.testing.assert_array_equal(args[name], value)


def test_one_role_fetches():
    found = roles(next(s.program for s in lower(dynamic(), ROLES) if s.name == "part_roles"))
    fetched = {n: sum(isinstance(o, Atomic) for o in walk_ops(r)) for n, r in found.items()}
    assert fetched == {"consumer": 0, "producer": 2}


def test_a_counter_that_others_look_at_is_not_fetched():
    trace = lower(dynamic(peeks=True), ROLES)
    assert not roles(trace.result)
    assert any(
        "what is copied depends on what the kernel writes" in w for w in trace.reasons.values()
    )


def test_nothing_can_be_dropped_unnoticed():
    program = dynamic()
    given = arguments(program)
    want = results(program, given)["C"]
    scheduled = next(s.program for s in lower(program, ROLES) if s.name == "order_warpgroups")
    missed = []
    for name, mutant in mutants(scheduled):
        try:
            same = [
                (results(mutant, given, seed, explicit=True)["C"] == want).all()
                for seed in range(6)
            ]
        except TilewrightError:
            continue
        if all(same):
            missed.append(name)
    # no tile comes twice, so stores of two need no order; and the producer's copies wait longer
    # for their slots than its numbers do
    spare = ("wait_group bulk pending 0", "wait fetched_free")
    assert [name for name in missed if not any(word in name for word in spare)] == []
