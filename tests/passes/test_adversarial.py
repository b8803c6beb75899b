"""Programs made to break the CUDA road; each did."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.passes.memory import place_shared
from tilewright.targets.cuda.backend import lower

N = 32


@T.prim_func
def asks_what_a_turn_wrote(X: T.Tensor((8, N, N), "int32"), Y: T.Tensor((8, N, N), "int32")):
    """The condition reads `a` behind the turn, where `b` could lie over it."""
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((N, N), "int32")
        b = T.alloc_shared((N, N), "int32")
        x = T.alloc_fragment((N, N), "int32")
        n = T.alloc_var("int32", init=0)
        while n == 0 or a[3, 3] + n < 7:
            n += 1
            T.fill(x, 0)
            T.copy(x, a)
            for i, j in T.Parallel(N, N):
                x[i, j] = X[n, i, j] + 100
            T.copy(x, b)
            for i, j in T.Parallel(N, N):
                Y[n, i, j] = b[N - 1 - i, j]


@T.prim_func
def asks_what_stays(X: T.Tensor((8, N, N), "int32"), Y: T.Tensor((8, N, N), "int32")):
    """Only the condition reads `a` once the loop has begun."""
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((N, N), "int32")
        b = T.alloc_shared((N, N), "int32")
        x = T.alloc_fragment((N, N), "int32")
        n = T.alloc_var("int32", init=0)
        T.fill(a, 0)
        while a[3, 3] + n < 7:
            n += 1
            for i, j in T.Parallel(N, N):
                x[i, j] = X[n, i, j] + 50
            T.copy(x, b)
            for i, j in T.Parallel(N, N):
                Y[n, i, j] = b[N - 1 - i, j]


@T.prim_func
def overwrites_what_it_asks(X: T.Tensor((8, N, N), "int32"), Y: T.Tensor((8, N, N), "int32")):
    """Between the condition and the load threads meet in every turn, not in front of the loop."""
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((N, N), "int32")
        n = T.alloc_var("int32", init=0)
        T.copy(X[0, :, :], a)
        while a[3, 3] * 0 + n < 7:
            n += 1
            T.copy(X[n, :, :], a)
            for i, j in T.Parallel(N, N):
                Y[n, i, j] = a[N - 1 - i, j]


@T.prim_func
def loads_what_nobody_reads(X: T.Tensor((8, N, N), "int32"), Y: T.Tensor((8, N, N), "int32")):
    """Both loads are under way when the wait begins."""
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((N, N), "int32")
        b = T.alloc_shared((N, N), "int32")
        for k in T.serial(3):
            T.copy(X[k, :, :], b)
            for i, j in T.Parallel(N, N):
                Y[k, i, j] = b[N - 1 - i, j]
            T.copy(X[k + 1, :, :], b)
            T.copy(X[k + 2, :, :], a)
            for i, j in T.Parallel(N, N):
                Y[k + 3, i, j] = a[N - 1 - i, j]


@T.prim_func
def accumulates_here_and_there(
    X: T.Tensor((4, 64, 64), "float16"), Y: T.Tensor((4, 64, 64), "float32")
):
    """Accumulators that are not there yet, and that are gone, where others are waited for."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        for r in T.serial(2):
            T.copy(X[r, :, :], a)
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.gemm(a, a, c)
            T.copy(c, Y[r, :, :])
        T.copy(X[3, :, :], a)
        d = T.alloc_fragment((64, 64), "float32")
        T.clear(d)
        T.gemm(a, a, d, transpose_B=True)
        T.copy(d, Y[3, :, :])


@T.prim_func
def accumulates_here_or_there(
    X: T.Tensor((2, 64, 64), "float16"), Y: T.Tensor((2, 64, 64), "float32")
):
    with T.Kernel(2, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        T.copy(X[bx, :, :], a)
        if bx == 0:
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.gemm(a, a, c)
            T.copy(c, Y[0, :, :])
        else:
            d = T.alloc_fragment((64, 64), "float32")
            T.clear(d)
            T.gemm(a, a, d, transpose_B=True)
            T.copy(d, Y[1, :, :])


@T.prim_func
def rows_of_the_highest_rank(
    X: T.Tensor((2, 1, 1, 4, 320), "float16"), Y: T.Tensor((2, 1, 1, 4, 320), "float16")
):
    """Half a row is no multiple of 128 bytes, and there is no dimension left to fold it into."""
    with T.Kernel(2, threads=64) as bx:
        a = T.alloc_shared((4, 320), "float16")
        x = T.alloc_fragment((4, 320), "float16")
        T.copy(X[bx, 0, 0, 0:4, 0:320], a)
        T.copy(a, x)
        T.copy(x, Y[bx, 0, 0, 0:4, 0:320])


@T.prim_func
def rows_of_many_pieces(X: T.Tensor((8, 2056), "float16"), Y: T.Tensor((8, 2056), "float16")):
    """257 pieces of 16 bytes: a box holds one."""
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((8, 2056), "float16")
        x = T.alloc_fragment((8, 2056), "float16")
        T.copy(X, a)
        T.copy(a, x)
        T.copy(x, Y)


@T.prim_func
def boxes_of_a_prime(X: T.Tensor((4, 257, 16), "float16"), Y: T.Tensor((4, 257, 16), "float16")):
    """257 rows of 32 bytes: a box holds one."""
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((4, 257, 16), "float16")
        T.copy(X, a)
        for i, j, k in T.Parallel(4, 257, 16):
            Y[i, j, k] = a[3 - i, j, k]


@pytest.mark.parametrize("target", ["cuda -arch=sm_90a", "cuda -arch=sm_80"])
@pytest.mark.parametrize(
    "kernel",
    [
        asks_what_a_turn_wrote,
        asks_what_stays,
        overwrites_what_it_asks,
        loads_what_nobody_reads,
        accumulates_here_and_there,
        accumulates_here_or_there,
        rows_of_the_highest_rank,
        rows_of_many_pieces,
        boxes_of_a_prime,
    ],
    ids=lambda kernel: kernel.name,
)
def test_the_same_numbers(kernel, target, monkeypatch):
    # memory is reused wherever that saves some
    monkeypatch.setattr(place_shared, "_blocks", lambda kernel, chip, shared: -shared)
    program = kernel.program
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.integers(-4, 4, t.static_shape).astype(t.dtype.numpy) for t in program.tensors
    }
    want, got = ({name: array.copy() for name, array in given.items()} for _ in range(2))
    machine.run(program, want)
    machine.run_threads(lower(program, Target.parse(target)).result, got)
    np.testing.assert_array_equal(got["Y"], want["Y"])
