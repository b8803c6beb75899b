"""Loops whose variable says which registers of a fragment are meant."""

import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

TARGETS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
each_target = pytest.mark.parametrize("target", TARGETS)


def halves(read, loop=range):
    """A 32×128 accumulator that leaves the block through a tile of half its rows."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float16"),
        B: T.Tensor((64, 128), "float16"),
        O: T.Tensor((32, 128), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((64, 128), "float16")
            acc = T.alloc_fragment((32, 128), "float32")
            half = T.alloc_shared((16, 128), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, transpose_A=True, clear_accum=True, policy=T.GemmWarpPolicy.FullCol)
            for s in loop(2):
                read(acc, half, s)
                T.copy(half, O[s * 16, 0])

    return main


@T.macro
def guarded(acc, half, s):
    for i, j in T.Parallel(32, 128):
        if i < 16:
            half[i, j] = acc[i + s * 16, j]


@T.macro
def plain(acc, half, s):
    for i, j in T.Parallel(16, 128):
        half[i, j] = acc[i + s * 16, j]


@T.macro
def named(acc, half, s):
    first = s * 16
    for i, j in T.Parallel(16, 128):
        half[i, j] = acc[first + i, j]


@T.macro
def copied(acc, half, s):
    T.copy(acc[s * 16 : s * 16 + 16, :], half)


READS = {"guarded": guarded, "plain": plain, "named": named, "copied": copied}


def operands():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, (64, n)).astype(np.float16) for n in (32, 128))
    return a, b, np.zeros((32, 128), np.float32)


@each_target
@pytest.mark.parametrize(
    "read, loop", [*((read, range) for read in READS), ("plain", T.unroll), ("copied", T.unroll)]
)
def test_rows_of_an_accumulator_by_turns(target, read, loop):
    a, b, o = operands()
    tw.compile(halves(READS[read], loop), target=target)(a, b, o)
    np.testing.assert_array_equal(o, a.T.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("read, loop", [("guarded", range), ("plain", T.unroll)])
def test_the_accumulator_stays_in_registers(read, loop):
    kernel = tw.compile(halves(READS[read], loop), target="cuda")
    assert "acc_" not in kernel.explain()
    tiles = 64 * 32 * 2 + 64 * 128 * 2 + 16 * 128 * 4
    assert kernel.resources["shared_bytes"] <= tiles + 1024


@each_target
def test_columns_are_written_by_turns(target):
    @T.prim_func
    def main(A: T.Tensor((4, 32, 16), "float32"), O: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((32, 64), "float32")
            for s in range(4):
                for i, j in T.Parallel(32, 16):
                    x[i, j + s * 16] = A[s, i, j] * 2
            T.copy(x, O)

    a, o = np.arange(2048, dtype=np.float32).reshape(4, 32, 16), np.zeros((32, 64), np.float32)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, 2 * a.transpose(1, 0, 2).reshape(32, 64))


@each_target
@pytest.mark.parametrize("store", [False, True])
def test_a_part_at_a_place_known_at_run_time_goes_through_shared_memory(target, store):
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64, 32), "float32"), n: T.int32):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((64, 32), "float32")
            y = T.alloc_shared((16, 32), "float32")
            T.copy(A, x)
            for s in T.serial(n):
                if store:
                    T.copy(A[s * 16, 0], y)
                    T.copy(y, x[48 - s * 16 : 64 - s * 16, :])
                else:
                    T.copy(x[48 - s * 16 : 64 - s * 16, :], y)
                    T.copy(y, B[s * 16, 0])
            if store:
                T.copy(x, B)

    a = np.arange(2048, dtype=np.float32).reshape(64, 32)
    b = np.zeros_like(a)
    tw.compile(main, target=target)(a, b, 2)
    rows = a.reshape(4, 16, 32)
    want = np.stack([*rows[:2], rows[1], rows[0]]) if store else np.stack([rows[3], rows[2]])
    np.testing.assert_array_equal(b[: 16 * len(want)], want.reshape(-1, 32))


@each_target
def test_a_part_at_a_place_known_at_run_time_is_added(target):
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), B: T.Tensor((32, 32), "float32"), n: T.int32):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((64, 32), "float32")
            T.copy(A, x)
            for s in T.serial(n):
                T.atomic_add(B, x[s * 32 : s * 32 + 32, :], use_tma=True)

    a, b = np.arange(2048, dtype=np.float32).reshape(64, 32), np.ones((32, 32), np.float32)
    tw.compile(main, target=target)(a, b, 2)
    np.testing.assert_array_equal(b, 1 + a[:32] + a[32:])


@each_target
def test_values_wrap_in_a_loop_that_is_written_out(target):
    @T.prim_func
    def main(A: T.Tensor((16, 32), "int32"), O: T.Tensor((8, 32), "int32")):
        with T.Kernel(1, threads=32):
            f = T.alloc_fragment((16, 32), "int32")
            T.copy(A, f)
            for s in range(2):
                for i, j in T.Parallel(8, 32):
                    O[i, j] = (f[i + s * 8, j] + s + 1 - 1) // 2

    a, o = np.full((16, 32), 2**31 - 1, np.int32), np.zeros((8, 32), np.int32)
    tw.compile(main, target=target)(a, o)
    assert (o == -(2**30)).all()


def window(size, tap):
    """The sum of `size` neighbours, or of elements `tap` apart."""

    @tw.jit
    def sums(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N):
            found = T.zeros((n,))
            for d in range(size):
                found += X[n + d * tap - 1]
            Y[n] = found
        return Y

    return sums


@each_target
@pytest.mark.parametrize("size, tap", [(3, 1), (4, 1), (9, 1), (3, 2)])
def test_windows(target, size, tap):
    x = np.random.default_rng(0).integers(-9, 9, 1000).astype(np.float32)
    wide = np.pad(x, (1, size * tap))
    want = sum(wide[d * tap : d * tap + 1000] for d in range(size))
    assert (np.asarray(window(size, tap).on(target)(x)) == want).all()


@pytest.mark.parametrize(
    "size, tap, whole", [(4, 1, True), (9, 1, True), (4, 2, True), (99, 1, False)]
)
def test_short_loops_over_neighbours_are_unrolled(size, tap, whole):
    kernel = window(size, tap).on("cuda -arch=sm_90a")
    text = kernel.compile(np.broadcast_to(np.float32(0), 1000)).get_kernel_source()
    found = re.findall(r"#pragma unroll( \d+)?\n(?:#line.*\n)?\s*for \(int d ", text)
    assert found and {not times for times in found} == {whole}
