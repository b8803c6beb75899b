"""Producer and consumer warps derived from sequential text: who does what, the same numbers, and
what keeps a kernel from having them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda import test_zoo as zoo
from tests.passes.overlap import ROLES, numbers
from tilewright import machine
from tilewright.ir.op import Arrive, Copy, Role, Wait, walk_ops
from tilewright.ir.text import print_op
from tilewright.passes.overlap.roles import why_not
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel


def product(threads=256, stages=3, K=256):
    @T.prim_func
    def main(
        A: T.Tensor((256, K), "float16"),
        B: T.Tensor((K, 128), "float16"),
        C: T.Tensor((256, 128), "float16"),
    ):
        with T.Kernel(2, threads=threads) as by:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, 0])

    return main.program


def roles_of(program):
    return {op.name: op for op in walk_ops(program.kernels[0]) if isinstance(op, Role)}


def parted(program):
    whole = ROLES.choosing(split_stages=False).choosing(stages="text")
    return next(s.program for s in lower(program, whole) if s.name == "part_roles")


def test_a_product():
    found = parted(product())
    roles = roles_of(found)
    assert found.kernels[0].threads == (384,)
    assert [(r.first, r.warps, r.registers) for r in roles.values()] == [(0, 8, 240), (8, 4, 24)]
    producer = [print_op(op).strip().split("\n")[0] for op in walk_ops(roles["producer"].body)]
    assert producer == [
        "alloc k_count_1: int32 local init=0",
        "for k_1 in 0 .. 4 {",
        "let k_slot = k_count_1 % 3",
        "wait a_free[k_slot] phase (k_count_1 // 3 % 2 + 1) % 2",
        "arrive a_full[k_slot] bytes=32768",
        "copy A[by * 128:+128, k_1 * 64:+64] -> a[k_slot, :, :] barrier=a_full[k_slot] "
        "atom=bulk_load",
        "copy B[k_1 * 64:+64, :] -> b[k_slot, :, :] barrier=a_full[k_slot] atom=bulk_load",
        "k_count_1 = k_count_1 + 1",
    ]
    consumer = list(walk_ops(roles["consumer"].body))
    assert not any(isinstance(op, Copy) and op.atom == "bulk_load" for op in consumer)
    (back,) = [op for op in consumer if isinstance(op, Arrive)]
    assert back.by == "warps" and sum(isinstance(op, Wait) for op in consumer) == 1


@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize(("stages", "K"), [(1, 64), (2, 64), (3, 320), (4, 192)])
def test_the_same_numbers(threads, stages, K):
    program = product(threads, stages, K)
    a, b = numbers(256, K), numbers(K, 128)
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    code = lower(program, ROLES).result
    assert roles_of(code)
    for seed in range(3):
        c = np.zeros((256, 128), np.float16)
        machine.run_threads(code, {"A": a, "B": b, "C": c}, seed=seed)
        assert c.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "name", ["gemm", "gemm_two_warpgroups", "flash_causal", "flash_two_warpgroups", "mla_split"]
)
def test_the_zoo(name):
    given = zoo.program(name)
    code = lower(given, ROLES).result
    assert any(isinstance(op, Role) for kernel in code.kernels for op in walk_ops(kernel))
    args = zoo.arguments(given)
    want, got = zoo.copies(args), zoo.copies(args)
    machine.run(given, want)
    machine.run(code, got, seed=1, threads=True)
    for key, value in want.items():
        if isinstance(value, np.ndarray):
            near = np.asarray(value, np.float64)
            np.testing.assert_allclose(np.asarray(got[key], np.float64), near, 1e-2, 1e-2)
    kernel = CudaKernel(given, ROLES)
    assert kernel.serialized is None
    assert all(found.spill_bytes == 0 for found in kernel.resources.values())


def test_it_compiles_without_spills():
    (found,) = CudaKernel(product(), ROLES).resources.values()
    assert found.spill_bytes == 0 and found.registers <= 168


def test_what_consumers_compute_decides_no_copies():
    """The next tile's number comes from shared memory: all threads fill the ring."""

    @T.prim_func
    def main(A: T.Tensor((4, 64, 64), "float16"), N: T.Tensor((4,), "int32"),
             C: T.Tensor((64, 64), "float16")):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            order = T.alloc_shared((4,), "int32")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.copy(N, order)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[order[k], 0, 0], a)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
            T.copy(c, C)

    code = lower(main.program, ROLES).result
    assert not roles_of(code)
    a, n, c = numbers(4, 64, 64), np.array([2, 0, 3, 1], np.int32), np.zeros((64, 64), np.float16)
    machine.run_threads(code, {"A": a, "N": n, "C": c})
    np.testing.assert_array_equal(c, a.sum(0))


def test_guards_and_names_go_along():
    """A guard and an offset that a tensor decides, in a loop over tiles."""

    @T.prim_func
    def main(A: T.Tensor((8, 64, 64), "float16"), N: T.Tensor((3,), "int32"),
             C: T.Tensor((3, 64, 64), "float16")):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            for t in T.serial(3):
                first = N[t]
                T.clear(c)
                if first >= 0:
                    for k in T.Pipelined(first, num_stages=2):
                        T.copy(A[first + k, 0, 0], a)
                        for i, j in T.Parallel(64, 64):
                            c[i, j] = c[i, j] * 2 + a[i, j]
                T.copy(c, C[t, 0, 0])

    code = lower(main.program, ROLES).result
    assert set(roles_of(code)) == {"producer", "consumer"}
    a, n = numbers(8, 64, 64), np.array([3, -1, 2], np.int32)
    want, got = np.zeros((3, 64, 64), np.float16), np.zeros((3, 64, 64), np.float16)
    machine.run(main.program, {"A": a, "N": n, "C": want})
    for seed in range(3):
        machine.run_threads(code, {"A": a, "N": n, "C": got}, seed=seed)
        assert got.tobytes() == want.tobytes()


def test_what_is_assumed_goes_along():
    """The engine needs starts on 16 bytes, which only the assumption gives."""

    @T.prim_func
    def main(A: T.Tensor((64, 1024), "float16"), N: T.Tensor((1,), "int32"),
             C: T.Tensor((64, 64), "float16")):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            first = N[0]
            T.assume(first % 8 == 0)
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, first + k * 64], a)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
            T.copy(c, C)

    code = lower(main.program, ROLES).result
    assert set(roles_of(code)) == {"producer", "consumer"}
    a, n, c = numbers(64, 1024), np.array([136], np.int32), np.zeros((64, 64), np.float16)
    machine.run_threads(code, {"A": a, "N": n, "C": c})
    np.testing.assert_array_equal(c, a[:, 136 : 136 + 192].reshape(64, 3, 64).sum(1))


def test_why_not():
    assert why_not(product(threads=64).kernels[0]) == "64 threads are not one to three warpgroups"

    @T.prim_func
    def own(A: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            A[tx] = A[tx] + 1

    assert why_not(own.program.kernels[0]) == "it has code for single threads"
    assert why_not(product().kernels[0]) is None


def test_explain_says_why_there_is_no_producer():
    said = tw.compile(product(threads=64), target="cuda -roles").explain()
    assert "filled by all threads: 64 threads are not one to three warpgroups" in said


def test_warp_specialize_asks_for_them():
    text = {
        on: tw.compile(product(), target="cuda", pass_configs={"roles": on}).ir("part_roles")
        for on in (True, False)
    }
    assert "role producer" in text[True] and "role" not in text[False]
    told = {"target": "cuda -stages=text", "pass_configs": {"roles": True}}
    said = tw.compile(product(), **told).explain()
    assert "role producer: warps 8 … 11, 24 registers per thread" in said
    assert "loop k_1: 3 stages" in said and "first fills" not in said
