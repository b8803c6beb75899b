"""What programs written for another tile language lean on, beside its words: on the CPU target, in
the checking interpreter and on the CUDA road."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads
from tilewright.profiler import do_bench

TARGETS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
each_target = pytest.mark.parametrize("target", TARGETS)


@tw.jit
def row_sums(X, rows, scale=1.0):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M,), "float32")
    with T.Kernel(T.ceildiv(M, rows), threads=32) as b:
        tile = T.alloc_fragment((rows, N), "float32")
        total = T.alloc_fragment((rows,), "float32")
        T.copy(X[b * rows, 0], tile)
        T.reduce_sum(tile, total, dim=1)
        for i in T.Parallel(rows):
            Y[b * rows + i] = total[i] * scale
    return Y


# ── compiling before there are arrays ──


@each_target
def test_sizes_by_name_stand_for_arrays(target):
    kernel = row_sums.on(target).compile(M=10, N=7, rows=4)
    x = np.arange(70, dtype=np.float32).reshape(10, 7)
    np.testing.assert_array_equal(kernel(x), x.sum(1))
    with pytest.raises(tw.LaunchError, match="dimension 0"):
        kernel(x[:5])


def test_compiling_with_arrays_and_calling_share_a_kernel():
    x = np.ones((6, 3), np.float32)
    jitted = row_sums.on("interp")
    kernel = jitted.compile(x, rows=2)
    jitted(x, rows=2)
    assert kernel is jitted.compile(x, rows=2)


def test_a_size_that_nothing_gives():
    with pytest.raises(tw.CompileError, match="nothing determines the size 'N'"):
        row_sums.compile(M=10, rows=4)


def test_a_size_that_nothing_asks_for():
    with pytest.raises(tw.CompileError, match="no T.const size 'row'") as caught:
        row_sums.compile(M=10, N=7, rows=4, row=3)
    assert "did you mean 'rows'?" in str(caught.value)


def test_an_argument_left_out_that_is_no_array():
    with pytest.raises(tw.CompileError, match="argument 'rows' is missing"):
        row_sums.compile(M=10, N=7)


def test_source_without_a_kernel_object():
    source = row_sums.on("interp").get_kernel_source(M=4, N=4, rows=2)
    assert "reduce sum" in source


def test_names_around_a_kernel():
    kernel: tw.JITKernel = row_sums.on("interp").compile(M=4, N=4, rows=2)
    assert kernel.get_profiler().func is kernel
    assert do_bench(lambda: kernel(np.ones((4, 4), np.float32)), warmup=1, rep=2) > 0


# ── tuning ──


def test_autotune_of_a_kernel_written_directly():
    tuned = tw.autotune(configs=[{"rows": 2}, {"rows": 4}], warmup=1, rep=1)(row_sums.on("cpu"))
    x = np.ones((8, 5), np.float32)
    np.testing.assert_array_equal(tuned(x), np.full(8, 5))
    kernel = tuned.compile(M=8, N=5)
    assert kernel.config in ({"rows": 2}, {"rows": 4}) and kernel.latency > 0


def test_autotune_leaves_given_arguments_alone():
    configs = [{"rows": 2, "scale": 1.0}, {"rows": 4, "scale": 1.0}]
    tuned = tw.autotune(configs=configs, warmup=1, rep=1)(row_sums.on("cpu"))
    x = np.ones((8, 5), np.float32)
    np.testing.assert_array_equal(tuned(x, scale=3.0), np.full(8, 15))
    assert [c for c, _ in tuned.timings] == [{"rows": 2}, {"rows": 4}]
    np.testing.assert_array_equal(tuned(x, 2, scale=2.0), np.full(8, 10))


# ── words ──


@each_target
def test_swizzled_layout_of_a_tile_from_the_algebra(target):
    @T.prim_func
    def main(A: T.Tensor((16, 64), "float16"), B: T.Tensor((16, 64), "float16")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((16, 64), "float16")
            T.annotate_layout({tile: tw.layout.make_swizzled_layout(tile)})
            T.copy(A, tile)
            T.copy(tile, B)

    a = np.arange(1024, dtype=np.float16).reshape(16, 64)
    b = np.zeros_like(a)
    tw.compile(main, target=target)(a, b)
    np.testing.assert_array_equal(a, b)
    assert "S<3,3,3>" in str(main)


@each_target
def test_bulk_additions_of_several_blocks_to_one_tile(target):
    @T.prim_func
    def main(A: T.Tensor((4, 8, 16), "float32"), B: T.Tensor((8, 16), "float32")):
        with T.Kernel(4, threads=32) as b:
            tile = T.alloc_shared((8, 16), "float32")
            T.copy(A[b, 0, 0], tile)
            T.atomic_add(B[0:8, 0:16], tile, use_tma=True)

    a = np.random.default_rng(0).integers(-9, 9, (4, 8, 16)).astype(np.float32)
    b = np.ones((8, 16), np.float32)
    tw.compile(main, target=target)(a, b)
    np.testing.assert_array_equal(b, a.sum(0) + 1)


@each_target
def test_thread_binding_given_a_name(target):
    @T.prim_func
    def main(A: T.Tensor((4, 16), "int32")):
        with T.Kernel(1, threads=(16, 4)):
            tx = T.thread_binding(0, 16, thread="threadIdx.x")
            ty = T.thread_binding(0, 4, thread="threadIdx.y")
            A[ty, tx] = ty * 100 + tx

    a = np.zeros((4, 16), np.int32)
    tw.compile(main, target=target)(a)
    np.testing.assert_array_equal(a, np.arange(4)[:, None] * 100 + np.arange(16))


@each_target
def test_equality_in_a_plain_helper(target):
    def chosen(i, j, limit, element):
        same = T.if_then_else(i == j, 1, 0)
        last = T.if_then_else(limit == j, 10, 0)
        there = T.if_then_else(element != 5, 100, 0)
        return same + last + there + (1000 if 2 + 2 == 4 else 0)

    @T.prim_func
    def main(A: T.Tensor((8, 8), "int32"), B: T.Tensor((8, 8), "int32")):
        with T.Kernel(1, threads=32) as _:
            for i, j in T.Parallel(8, 8):
                B[i, j] = chosen(i, j, 7, A[i, j])

    a = np.arange(64, dtype=np.int32).reshape(8, 8) % 7
    b = np.zeros_like(a)
    tw.compile(main, target=target)(a, b)
    i, j = np.indices((8, 8))
    np.testing.assert_array_equal(b, 1000 + (i == j) + 10 * (j == 7) + 100 * (a != 5))


def test_branching_on_equality_in_a_plain_helper():
    def helper(i):
        return 1 if i == 0 else 2

    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                A[i] = helper(i)

    with pytest.raises(tw.CompileError, match="@T.macro"):
        T.prim_func(main)


def running_sums(width):
    """Threads 0 … 63 add up by doubling steps, meeting at a barrier of their own."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            v = T.alloc_var("int32", init=0)
            if tx < 64:
                s[tx] = A[tx]
                for step in T.serial(6):
                    T.sync_threads(3, width)
                    v = s[tx]
                    if tx >= (1 << step):
                        v += s[tx - (1 << step)]
                    T.sync_threads(3, width)
                    s[tx] = v
                B[tx] = s[tx]

    return main


@each_target
def test_a_named_barrier_of_the_threads_that_a_guard_lets_through(target):
    a = np.arange(64, dtype=np.int32) * 3 - 20
    b = np.zeros_like(a)
    tw.compile(running_sums(64), target=target)(a, b)
    np.testing.assert_array_equal(b, np.cumsum(a))


@pytest.mark.parametrize("target", ("cpu", "interp -sanitize", *on_threads()))  # a GPU would hang
def test_a_named_barrier_that_waits_for_threads_behind_the_guard(target):
    a = np.zeros(64, np.int32)
    with pytest.raises(tw.TilewrightError, match="barrier"):
        tw.compile(running_sums(96), target=target)(a, a.copy())


def gated(use_gate):
    @T.prim_func
    def main(
        A: T.Tensor((8,), "float32"), G: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                if use_gate:
                    B[i] = A[i] * G[i]
                else:
                    B[i] = A[i]

    return main


@each_target
def test_none_stands_for_a_tensor_that_nothing_touches(target):
    a = np.arange(8, dtype=np.float32)
    b = np.zeros_like(a)
    tw.compile(gated(False), target=target)(a, None, b)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(tw.LaunchError, match="G must be an array"):
        tw.compile(gated(True), target=target)(a, None, b)


@pytest.mark.parametrize(
    ("word", "said"),
    [("sync_grid", "second T.Kernel"), ("tvm_warp_shuffle", "T.shfl_sync"), ("ptr", "offsets")],
)
def test_words_that_only_other_languages_have(word, said):
    with pytest.raises(tw.CompileError, match=said):
        getattr(T, word)


def test_what_a_profiler_supplies():
    inputs = row_sums.on("interp").compile(M=64, N=64, rows=2).get_profiler().inputs()
    assert np.abs(np.asarray(inputs[0])).max() <= 1
    profiler = row_sums.on("interp").compile(M=64, N=64, rows=2).get_profiler("normal")
    assert -1.2 < float(np.asarray(profiler.inputs()[0]).mean()) < -0.8
