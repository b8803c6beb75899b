"""What users of other tile compilers report as broken, each as an ordinary passing kernel.

One test per class of failure, on the CPU target and in the checking interpreter. Data are small
integers, so that every order of summation gives the same bits.
"""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T


@pytest.fixture(params=("cpu", "interp -sanitize"))
def target(request):
    return request.param


def integers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(dtype)


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)


@tw.jit
def gemm(
    M, N, K, block_M, block_N, block_K, stages=2, threads=128, dtype="float16",
    policy=T.GemmWarpPolicy.Square, swizzled=False, transpose_B=False,
):  # fmt: skip
    B_shape = (N, K) if transpose_B else (K, N)
    B_tile = (block_N, block_K) if transpose_B else (block_K, block_N)

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor((M, N), "float")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared(B_tile, dtype)
            c = T.alloc_fragment((block_M, block_N), "float32")
            if swizzled:
                T.annotate_layout(
                    {a: T.layout.make_swizzled_layout(a), b: T.layout.make_swizzled_layout(b)}
                )
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], a)
                if transpose_B:
                    T.copy(B[bx * block_N, k * block_K], b)
                else:
                    T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, c, transpose_B=transpose_B, policy=policy)
            T.copy(c, C[by * block_M, bx * block_N])

    return main


def check_gemm(target, M, N, K, *blocks, **options):
    a, b = integers(M, K, dtype=np.float16, seed=1), integers(K, N, dtype=np.float16, seed=2)
    c = np.full((M, N), np.nan, np.float32)
    given = np.ascontiguousarray(b.T) if options.get("transpose_B") else b
    gemm.on(target)(M, N, K, *blocks, **options)(a, given, c)
    np.testing.assert_array_equal(c, product(a, b))


@pytest.mark.parametrize("block_N", [8, 24, 40, 72, 136])
def test_tile_n_that_is_8_mod_16(target, block_N):
    check_gemm(target, 64, 2 * block_N, 64, 64, block_N, 32)


@pytest.mark.parametrize("block_K", [8, 12, 20, 24, 40])
def test_tile_k_that_is_no_multiple_of_16_keeps_its_tail(target, block_K):
    check_gemm(target, 32, 32, 2 * block_K + 3, 32, 32, block_K)


@pytest.mark.parametrize("block", [(48, 56, 24), (7, 5, 3), (96, 80, 112)])
def test_tiles_that_are_no_powers_of_two(target, block):
    check_gemm(target, 50, 30, 20, *block)
    check_gemm(target, 3, 5, 2, 1, 1, 1)


@pytest.mark.parametrize("stages", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("trips", [1, 2, 4])
def test_short_pipelines(target, stages, trips):
    check_gemm(target, 16, 16, 16 * trips, 16, 16, 16, stages=stages)


@pytest.mark.parametrize("stages", [0, 1, 3])
def test_a_pipeline_of_no_iterations(target, stages):
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32"), n: T.int32, O: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((8,), "float32")
            total = T.alloc_fragment((8,), "float32")
            T.fill(total, 5)
            for k in T.Pipelined(n, num_stages=stages):
                T.copy(A[k, 0:8], a)
                for j in T.Parallel(8):
                    total[j] += a[j]
            T.copy(total, O)

    a, o = integers(4, 8), np.zeros(8, np.float32)
    kernel = tw.compile(main, target=target)
    for n in (0, 1, 4):
        kernel(a, n, o)
        np.testing.assert_array_equal(o, 5 + a[:n].sum(0))


@pytest.mark.parametrize("stages", [0, 1, 2, 4])
def test_a_pipelined_read_then_overwrite_keeps_its_order(target, stages):
    @T.prim_func
    def main(A: T.Tensor((6, 16), "float32"), O: T.Tensor((6, 16), "float32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_shared((16,), "float32")
            T.clear(held)
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(held, O[k, 0:16])
                T.copy(A[k, 0:16], held)
                for j in T.Parallel(16):
                    held[j] = held[j] * 2

    a, o = integers(6, 16), np.full((6, 16), np.nan, np.float32)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, np.vstack([np.zeros((1, 16)), 2 * a[:-1]]))


@pytest.mark.parametrize("wave", [1, 3, 7, 64])
def test_a_persistent_loop_visits_every_tile(target, wave):
    @T.prim_func
    def main(O: T.Tensor((45, 70), "int32")):
        with T.Kernel(wave, threads=32) as block:
            for by, bx in T.Persistent([T.ceildiv(45, 8), T.ceildiv(70, 16)], wave, block):
                for i, j in T.Parallel(8, 16):
                    O[by * 8 + i, bx * 16 + j] = by * 8 + i + 1000 * (bx * 16 + j)

    o = np.full((45, 70), -1, np.int32)
    tw.compile(main, target=target)(o)
    np.testing.assert_array_equal(o, np.add.outer(np.arange(45), 1000 * np.arange(70)))


@pytest.mark.parametrize("threads", [1, 17, 48, 100, 130])
def test_barriers_of_threads_that_fill_no_warp(target, threads):
    @T.prim_func
    def main(A: T.Tensor((threads,), "int32"), O: T.Tensor((threads,), "int32")):
        with T.Kernel(1, threads=threads):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((threads,), "int32")
            s[t] = A[t]
            T.sync_threads()
            O[t] = s[threads - 1 - t]

    a, o = integers(threads, dtype=np.int32), np.zeros(threads, np.int32)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, a[::-1])


@pytest.mark.parametrize("active", [1, 20, 32, 47])
def test_a_barrier_after_a_branch_that_some_threads_take(target, active):
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), O: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((64,), "int32")
            s[t] = 0
            T.sync_threads()
            if t < active:
                s[t] = A[t]
            T.sync_threads()
            O[t] = s[63 - t]

    a, o = integers(64, dtype=np.int32), np.zeros(64, np.int32)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, np.where(np.arange(64) < active, a, 0)[::-1])


def test_a_barrier_under_a_branch_that_some_threads_take_is_refused():
    def main(A: T.Tensor((64,), "int32"), O: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((64,), "int32")
            if t < 40:
                s[t] = A[t]
                T.sync_threads()
                O[t] = s[39 - t]

    with pytest.raises(tw.CompileError, match="barrier") as caught:
        T.prim_func(main)
    assert caught.value.loc.line == main.__code__.co_firstlineno + 6


def test_a_barrier_under_a_branch_that_the_block_shares(target):
    @T.prim_func
    def main(A: T.Tensor((3, 48), "int32"), O: T.Tensor((3, 48), "int32")):
        with T.Kernel(3, threads=48) as bx:
            t = T.get_thread_binding(0)
            s = T.alloc_shared((48,), "int32")
            s[t] = A[bx, t]
            if bx % 2 == 0:
                T.sync_threads()
                O[bx, t] = s[47 - t]
            else:
                O[bx, t] = s[t]

    a, o = integers(3, 48, dtype=np.int32), np.zeros((3, 48), np.int32)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, np.stack([a[0, ::-1], a[1], a[2, ::-1]]))


@pytest.mark.parametrize("stages", [1, 3])
def test_a_shared_operand_that_threads_rewrite_under_placement(target, stages):
    """The tile is filled by a copy, changed by threads, read by a product, filled again."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"), B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((16, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=stages):
                with T.ws(0):
                    T.copy(A[0, k * 16], a)
                with T.ws(1):
                    T.copy(B[k * 16, 0], b)
                for i, j in T.Parallel(32, 16):
                    a[i, j] = a[i, j] + 1
                T.gemm(a, b, c)
                T.clear(b)
            T.copy(c, C)

    a, b = integers(32, 64, dtype=np.float16, seed=1), integers(64, 32, dtype=np.float16, seed=2)
    c = np.full((32, 32), np.nan, np.float32)
    tw.compile(main, target=target)(a, b, c)
    np.testing.assert_array_equal(c, product(a + np.float16(1), b))


def test_views_and_elements_of_a_swizzled_tile(target):
    @T.prim_func
    def main(
        A: T.Tensor((16, 64), "float16"), V: T.Tensor((32, 32), "float16"),
        R: T.Tensor((64, 16), "float16"), E: T.Tensor((16, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((16, 64), "float16")
            t = T.alloc_shared((64, 16), "float16")
            T.annotate_layout({a: T.layout.make_swizzled_layout(a)})
            T.copy(A, a)
            T.transpose(a, t)
            T.copy(t, R)
            for i, j in T.Parallel(16, 64):
                E[i, j] = a[15 - i, 63 - j]
            T.copy(T.reshape(a, (32, 32)), V)

    a = integers(16, 64, dtype=np.float16)
    v, r, e = (np.zeros(s, np.float16) for s in ((32, 32), (64, 16), (16, 64)))
    tw.compile(main, target=target)(a, v, r, e)
    np.testing.assert_array_equal(v, a.reshape(32, 32))
    np.testing.assert_array_equal(r, a.T)
    np.testing.assert_array_equal(e, a[::-1, ::-1])


@pytest.mark.parametrize("policy", ["Square", "FullRow", "FullCol"])
@pytest.mark.parametrize("threads", [128, 256, 384])
def test_several_warpgroups_keep_the_order_of_rows(target, policy, threads):
    policy = getattr(T.GemmWarpPolicy, policy)
    check_gemm(target, 192, 48, 32, 192, 48, 32, threads=threads, policy=policy)


@pytest.mark.parametrize("block_K", [64, 72, 128, 200])
@pytest.mark.parametrize("transpose_B", [False, True])
def test_a_copy_wider_than_the_swizzle(target, block_K, transpose_B):
    check_gemm(
        target, 32, 160, 2 * block_K, 32, 160, block_K, swizzled=True, transpose_B=transpose_B
    )


@pytest.mark.parametrize("K", [1, 2, 3, 7, 8, 12])
def test_remainders_and_quotients_of_indices(target, K):
    @T.prim_func
    def main(A: T.Tensor((5, K), "int32"), O: T.Tensor((5, 37), "int32")):
        with T.Kernel(T.ceildiv(37, 16), threads=32) as bx:
            a = T.alloc_shared((5, K), "int32")
            T.copy(A, a)
            for i, j in T.Parallel(5, 16):
                col = bx * 16 + j
                O[i, col] = a[i, col % K] + 100 * (col // K) + 10000 * ((col + 3) % K)

    a, o = integers(5, K, dtype=np.int32), np.zeros((5, 37), np.int32)
    tw.compile(main, target=target)(a, o)
    j = np.arange(37)
    np.testing.assert_array_equal(o, a[:, j % K] + 100 * (j // K) + 10000 * ((j + 3) % K))


@pytest.mark.parametrize("N", [2, 5, 32, 33])
def test_a_fragment_read_at_its_neighbours(target, N):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), O: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((N,), "float32")
            b = T.alloc_fragment((N,), "float32")
            T.copy(A, a)
            for i in T.Parallel(N):
                b[i] = a[(i + 1) % N] - 10 * a[(i + N - 1) % N] + 100 * a[N - 1 - i]
            T.copy(b, O)

    a, o = integers(N), np.zeros(N, np.float32)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, np.roll(a, -1) - 10 * np.roll(a, 1) + 100 * a[::-1])


@pytest.mark.parametrize("size", [(1 << 20,), (1024, 1025)])
def test_a_large_parallel_runs_to_its_end(target, size):
    total = int(np.prod(size))

    @T.prim_func
    def main(O: T.Tensor((total,), "int32")):
        with T.Kernel(1, threads=128):
            if len(size) == 1:
                for i in T.Parallel(total):
                    O[i] = i
            else:
                for i, j in T.Parallel(*size):
                    O[i * size[1] + j] = i * size[1] + j

    o = np.full(total, -1, np.int32)
    tw.compile(main, target=target)(o)
    np.testing.assert_array_equal(o, np.arange(total))


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sin", "abs"])
def test_functions_of_bfloat16(target, name):
    @T.prim_func
    def main(A: T.Tensor((40,), "bfloat16"), O: T.Tensor((40,), "bfloat16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(40):
                O[i] = getattr(T, name)(A[i])

    a = np.linspace(0.1, 4, 40).astype(ml_dtypes.bfloat16)
    o = np.zeros(40, ml_dtypes.bfloat16)
    tw.compile(main, target=target)(a, o)
    x = a.astype(np.float64)
    want = 1 / np.sqrt(x) if name == "rsqrt" else getattr(np, name)(x)
    np.testing.assert_allclose(o.astype(np.float64), want, rtol=2**-8)


def test_uses_that_want_different_layouts(target):
    """An accumulator that is also transposed, reduced both ways and indexed backwards."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"), O: T.Tensor((32, 32), "float32"),
        R: T.Tensor((32,), "float32"), S: T.Tensor((32,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            d = T.alloc_fragment((32, 32), "float32")
            rows = T.alloc_fragment((32,), "float32")
            columns = T.alloc_fragment((32,), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            T.reduce_sum(c, rows, dim=1)
            T.reduce_sum(c, columns, dim=0)
            for i, j in T.Parallel(32, 32):
                d[i, j] = c[j, i] + 2 * c[31 - i, j] + rows[j] - columns[i]
            T.copy(d, O)
            T.copy(rows, R)
            T.copy(columns, S)

    a = integers(32, 32, dtype=np.float16)
    o, r, s = np.zeros((32, 32), np.float32), np.zeros(32, np.float32), np.zeros(32, np.float32)
    tw.compile(main, target=target)(a, o, r, s)
    c = product(a, a)
    np.testing.assert_array_equal(r, c.sum(1))
    np.testing.assert_array_equal(s, c.sum(0))
    np.testing.assert_array_equal(o, c.T + 2 * c[::-1] + c.sum(1)[None, :] - c.sum(0)[:, None])


def test_mistakes_are_reported_as_the_users_own():
    def mismatched():
        @T.prim_func
        def main(A: T.Tensor((32, 32), "float16")):
            with T.Kernel(1, threads=32):
                a = T.alloc_shared((32, 16), "float16")
                b = T.alloc_shared((24, 32), "float16")
                c = T.alloc_fragment((32, 32), "float32")
                T.gemm(a, b, c)

    def not_contiguous():
        @T.prim_func
        def main(A: T.Tensor((4, 4), "float32")):
            with T.Kernel(1, threads=32):
                T.clear(A)

        tw.compile(main, target="cpu")(np.zeros((4, 8), np.float32)[:, ::2])

    for mistake, words in ((mismatched, ("16", "24")), (not_contiguous, ("A", "contiguous"))):
        with pytest.raises(tw.TilewrightError) as caught:
            mistake()
        assert all(word in str(caught.value) for word in words)


def test_one_dynamic_kernel_serves_all_sizes(target):
    m = T.dynamic("m")

    @tw.jit
    def double(dtype):
        @T.prim_func
        def main(A: T.Tensor((m,), dtype), O: T.Tensor((m,), dtype)):
            with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
                for i in T.Parallel(32):
                    O[bx * 32 + i] = A[bx * 32 + i] * 2

        return main

    factory = double.on(target)
    kernel = factory("float32")
    for size in (1, 31, 32, 33, 1000, 0):
        assert factory("float32") is kernel
        a = integers(size)
        o = np.full(size, np.nan, np.float32)
        kernel(a, o)
        np.testing.assert_array_equal(o, 2 * a)


def test_compilation_is_quick():
    started = time.perf_counter()
    gemm.on("cpu")(1000, 1000, 1000, 96, 88, 40, stages=4)
    assert time.perf_counter() - started < 5  # 0.2 s on an idle laptop


def test_a_bad_configuration_does_not_end_a_search():
    @tw.autotune(configs=[{"block": 0}, {"block": 32}, {"block": 7}], warmup=1, rep=1)
    @tw.jit(target="cpu")
    def double(N, block):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32"), O: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
                a = T.alloc_fragment((block,), "float32")
                T.copy(A[bx * block], a)
                for i in T.Parallel(block):
                    O[bx * block + i] = a[i] * 2

        return main

    a, o = integers(100), np.zeros(100, np.float32)
    double(100)(a, o)
    np.testing.assert_array_equal(o, 2 * a)
