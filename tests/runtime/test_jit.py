"""Factories, the direct style, compile-once, profiling and tuning."""

import warnings

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T


@tw.jit(target="interp")
def scale(N, factor=2.0, block=32):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
            for j in T.Parallel(block):
                Y[bx * block + j] = X[bx * block + j] * factor

    return main


@tw.jit(target="interp")
def rms_norm(A, blk_m, eps=1e-6):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, blk_m), threads=128) as bx:
        x = T.alloc_fragment((blk_m, N), "float32")
        s = T.alloc_fragment((blk_m,), "float32")
        T.copy(A[bx * blk_m, 0], x)
        for i, j in T.Parallel(blk_m, N):
            x[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(x, s, dim=1)
        for i in T.Parallel(blk_m):
            s[i] = T.rsqrt(s[i] / N + eps)
        T.copy(A[bx * blk_m, 0], x)
        for i, j in T.Parallel(blk_m, N):
            x[i, j] = x[i, j] * s[i]
        T.copy(x, B[bx * blk_m, 0])
    return B


def test_compiled_once_per_distinct_arguments():
    assert scale(64) is scale(64, 2.0)
    assert scale(64) is not scale(64, 3.0)
    assert scale(64, 2.0) is not scale(64, 2)


def test_direct_style_binds_sizes_by_name_and_makes_its_output():
    for shape in [(8, 64), (5, 33)]:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        y = rms_norm(x, blk_m=4)
        want = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(y, want, rtol=1e-5)
    assert len(rms_norm._kernels) == 2


def test_factory_that_returns_nothing():
    @tw.jit
    def empty(N):
        pass

    with pytest.raises(tw.CompileError, match=r"must return a @T\.prim_func"):
        empty(3)


def test_wrong_factory_arguments():
    with pytest.raises(tw.CompileError, match="factor"):
        scale()


def test_unknown_target():
    with pytest.raises(tw.CompileError, match="unknown target"):
        scale.on("vulkan")(32)


def test_cuda_compiles_without_a_gpu():
    kernel = scale.on("cuda")(32)
    assert "__global__" in kernel.get_kernel_source() and ".target sm_90a" in kernel.ptx
    tiles = rms_norm.on("cuda").compile(np.zeros((8, 64), np.float32), blk_m=4)
    assert "reduce" in tiles.explain() and tiles.resources["spill_bytes"] == 0


def test_sanitizer_by_environment(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_SANITIZE", "1")
    assert str(scale.on("cpu")(32).target) == "interp -sanitize"


def test_profiler():
    kernel = scale(1000)
    profiler = kernel.get_profiler(tensor_supply_type=tw.TensorSupplyType.Randn)
    profiler.assert_allclose(lambda x: x * 2, rtol=1e-6, atol=1e-6)
    with pytest.raises(AssertionError, match="differs in"):
        profiler.assert_allclose(lambda x: x * 3)
    assert profiler.do_bench(warmup=1, rep=2) > 0


def test_pass_configs_warn_once_about_what_means_nothing_here():
    configs = {tw.PassConfigKey.TL_ENABLE_FAST_MATH: True, "tl.no_such_thing": 1}
    main = scale.prim_func(32)
    with pytest.warns(UserWarning, match="no_such_thing"):
        kernel = tw.compile(main, target="interp", pass_configs=configs)
    assert kernel.options == {"fast_math": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tw.compile(main, target="interp", pass_configs=configs)


def test_autotune_sets_aside_configurations_that_fail():
    tuned = tw.autotune(configs=[{"block": 16}, {"block": -1}, {"block": 64}])(scale)
    kernel = tuned(256)
    assert len(tuned.timings) == 2 and len(tuned.failures) == 1
    x, y = np.ones(256, np.float32), np.zeros(256, np.float32)
    kernel(x, y)
    assert (y == 2).all() and tuned(256) is kernel


def test_looking_at_a_kernel():
    kernel = rms_norm.compile(np.zeros((8, 64), np.float32), blk_m=4)
    assert "reduce sum" in kernel.ir("tile")
    assert kernel.resources["fragment_bytes"] == (4 * 64 + 4) * 4
    assert "fragment" in kernel.explain()
    with pytest.raises(tw.CompileError, match="no stage"):
        kernel.ir("nowhere")
    with pytest.raises(tw.CompileError, match="CUDA"):
        _ = kernel.ptx


def test_par_compile():
    kernels = tw.par_compile([scale.prim_func(n) for n in (32, 64)], target="interp")
    assert [k.program.params[0].static_shape for k in kernels] == [(32,), (64,)]


def test_explain_tells_layouts_reductions_and_conversions():
    @T.prim_func
    def turned(X: T.Tensor((64, 64), "float32"), Y: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((64, 64), "float32")
            y = T.alloc_fragment((64, 64), "float32")
            s = T.alloc_fragment((64,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, s, dim=1)
            for i, j in T.Parallel(64, 64):
                y[i, j] = x[j, i] + s[i]
            T.copy(y, Y)

    told = tw.compile(turned, target="cuda").explain()
    assert "registers of 128 threads" in told and "layout       frag{tile=(64,64)" in told
    assert "by shuffles" in told and "conversion s → s_moved: through shared memory" in told
    assert "a block takes: threads 128" in told and "passes: " in told


@pytest.mark.parametrize("kind", ["float4_e2m1fn", "int4", "uint4", "int2"])
def test_packed_tensors_of_direct_kernels(kind):
    """The innermost size counts elements, of which the array's bytes hold several."""
    per = 4 if kind == "int2" else 2

    @tw.jit(target="cpu")
    def fixed(x):
        m = T.dynamic("m")
        x: T.Tensor((m, 16), kind)
        o = T.empty((m, 16), "float32")
        with T.Kernel(m, threads=32) as b:
            for i in T.Parallel(16):
                o[b, i] = T.cast(x[b, i], "float32")
        return o

    @tw.jit(target="cpu")
    def sized(x):
        m, n = T.const("m, n")
        x: T.Tensor((m, n), kind)
        o = T.empty((m, n), "float32")
        with T.Kernel(m, threads=32) as b:
            for i in T.Parallel(n):
                o[b, i] = T.cast(x[b, i], "float32")
        return o

    @T.prim_func
    def reference(x: T.Tensor((4, 16), kind), o: T.Tensor((4, 16), "float32")):
        with T.Kernel(4, threads=32) as b:
            for i in T.Parallel(16):
                o[b, i] = T.cast(x[b, i], "float32")

    x = np.arange(4 * 16 // per, dtype=np.uint8).reshape(4, -1) * 37
    want = np.zeros((4, 16), np.float32)
    tw.compile(reference, target="cpu")(x, want)
    for kernel in (fixed, sized, fixed):
        np.testing.assert_array_equal(kernel(x), want)
    with pytest.raises(tw.CompileError, match="dimension 1 of x does not fit"):
        fixed(np.zeros((4, 16), np.uint8))
