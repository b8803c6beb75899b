"""What traced functions compute, in the interpreter and on every other road."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads
from tilewright.ir.target import Target
from tilewright.runtime.backends import build


@pytest.fixture(params=["interp", "cpu", *on_threads(), *on_gpu()])
def run(request):
    return lambda program, args: build(program, Target.parse(request.param))(args)


def test_control_flow(run):
    @T.prim_func
    def f(A: T.Tensor((16,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            total = T.alloc_var("int32", init=0)
            for k in range(n):
                if k == 3:
                    continue
                if k > 6:
                    break
                total += k
            A[0] = total
            i = T.alloc_var("int32", init=1)
            while i < 100 and A[0] > 0:
                i *= 3
            A[1] = i
            for k in T.serial(9, 0, -3):
                A[k] = k
            A[2], A[3] = A[3], 5
            A[4] = 1 if 2 < n <= 10 else 2
            A[5] = n in (1, 2) or n == 10
            i, total = total, i
            A[7] = total - i

    a = np.zeros(16, np.int32)
    run(f.program, {"A": a, "n": 10})
    assert a.tolist() == [18, 243, 3, 5, 1, 1, 6, 225, 0, 9, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("m", "n", "wave", "group"), [(4, 6, 4, 4), (3, 5, 2, 8), (1, 7, 16, 3)])
def test_persistent_visits_every_tile_once(run, m, n, wave, group):
    @T.prim_func
    def f(A: T.Tensor((m, n), "int32")):
        with T.Kernel(wave, threads=32) as block:
            for x, y in T.Persistent([m, n], wave, block, group_size=group):
                T.atomic_add(A[x, y], 1)

    a = np.zeros((m, n), np.int32)
    run(f.program, {"A": a})
    assert (a == 1 if _once_per_block(run) else a > 0).all()


def _once_per_block(run) -> bool:
    """Whether an atomic outside `T.Parallel` runs once per block rather than once per thread."""

    @T.prim_func
    def f(A: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=32):
            T.atomic_add(A[0], 1)

    a = np.zeros(1, np.int32)
    run(f.program, {"A": a})
    return bool(a[0] == 1)


def test_matmul(run):
    @T.prim_func
    def f(
        A: T.Tensor((48, 40), "float16"),
        B: T.Tensor((40, 24), "float16"),
        C: T.Tensor((48, 24), "float32"),
    ):
        with T.Kernel(T.ceildiv(24, 16), T.ceildiv(48, 32), threads=32) as (bx, by):
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((32, 16), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(40, 16), num_stages=2):
                T.copy(A[by * 32, k * 16], a)
                T.copy(B[k * 16, bx * 16], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(32, 16):
                c[i, j] = T.max(c[i, j], 0)
            T.copy(c, C[by * 32, bx * 16])

    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (48, 40)).astype(np.float16)
    b = rng.integers(-3, 4, (40, 24)).astype(np.float16)
    c = np.full((48, 24), -1, np.float32)
    run(f.program, {"A": a, "B": b, "C": c})
    np.testing.assert_array_equal(c, np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 4, 4), (4, 4, 1), (1, 1)])
def test_scans_count_the_dimensions_that_are_written(run, shape):
    a = np.random.default_rng(0).integers(-5, 6, shape).astype(np.int32)
    for dim in (*range(len(shape)), -1):

        @T.prim_func
        def f(
            A: T.Tensor(shape, "int32"), O: T.Tensor(shape, "int32"), P: T.Tensor(shape, "int32")
        ):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared(shape, "int32")
                t = T.alloc_shared(shape, "int32")
                T.copy(A, s)
                T.cumsum(s, t, dim=dim)
                T.copy(t, O)
                T.cummax(s, dim=dim, reverse=True)
                T.copy(s, P)

        o, p = np.zeros_like(a), np.zeros_like(a)
        run(f.program, {"A": a, "O": o, "P": p})
        np.testing.assert_array_equal(o, a.cumsum(dim))
        flipped = np.maximum.accumulate(np.flip(a, dim), dim)
        np.testing.assert_array_equal(p, np.flip(flipped, dim))


def test_numpy_scalars_are_numbers():
    @tw.jit(target="interp")
    def scaled(X, s, t: T.float32):
        M = T.const("M")
        X: T.Tensor((M,), "float32")
        Y = T.empty((M,), "float32")
        for m in T.tile(M):
            Y[m] = X[m] * s + t
        return Y

    x = np.arange(3, dtype=np.float32)
    assert scaled(x, np.float32(3), np.float64(1)).tolist() == [1, 4, 7]
    assert scaled(x, np.int32(2), np.uint8(0)).tolist() == [0, 2, 4]
