"""Tuning as ported scripts do it: step by step, on given inputs, over options of the compiler."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.autotuner import AutoTuner, set_autotune_inputs


def doubled(by=2, block=64):
    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(T.ceildiv(256, block), threads=64) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * by

    return main


def tuner(configs, **profile):
    made = AutoTuner.from_kernel(kernel=doubled, configs=configs)
    return made.set_compile_args(out_idx=[-1], target="cpu").set_profile_args(**profile)


def test_the_fastest_of_several():
    result = tuner([{"block": 64}, {"block": 128}]).run(warmup=1, rep=1)
    assert result.config in ({"block": 64}, {"block": 128}) and result.latency > 0
    np.testing.assert_array_equal(result.kernel(np.ones(256, np.float32)), np.full(256, 2))
    assert "main" in result.libcode


def test_a_configuration_that_differs_from_the_reference_is_set_aside():
    configs = [{"by": 3}, {"by": 2}]
    result = tuner(configs, ref_prog=lambda a: a * 2, atol=1e-3).run(warmup=1, rep=1)
    assert result.config == {"by": 2} and result.ref_latency > 0


def test_no_configuration_is_right():
    with pytest.raises(AssertionError):
        tuner([{"by": 3}], ref_prog=lambda a: a * 2).run(warmup=1, rep=1)


def test_inputs_that_are_given():
    seen = []

    def reference(a):
        seen.append(float(np.asarray(a)[0]))
        return a * 2

    with set_autotune_inputs([np.full(256, 7, np.float32)]):
        tuner([{"block": 64}], ref_prog=reference).run(warmup=1, rep=1)
    assert seen and set(seen) == {7.0}
    with set_autotune_inputs(np.full(256, 5, np.float32)):
        seen.clear()
        tuner([{"block": 64}], ref_prog=reference).run(warmup=1, rep=1)
    assert set(seen) == {5.0}


def test_a_program_supplies_inputs():
    def supply(params):
        return [np.full([int(s) for s in p.shape], 3, np.float32) for p in params]

    result = tuner([{"block": 64}], supply_prog=supply).run(warmup=1, rep=1)
    assert result.latency > 0


def test_options_of_the_compiler_are_tuned():
    configs = [{"block": 64, "pass_configs": {"fast_math": on}} for on in (True, False)]
    tuned = tw.autotune(configs=configs, warmup=1, rep=1)(tw.jit(target="cpu", out_idx=-1)(doubled))
    kernel = tuned()
    assert kernel.config in configs and len(tuned.timings) == 2
    np.testing.assert_array_equal(kernel(np.ones(256, np.float32)), np.full(256, 2))


def test_options_of_a_kernel_written_directly():
    @tw.jit(target="cpu")
    def twice(A, block=64):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B = T.empty((N,), "float32")
        with T.Kernel(T.ceildiv(N, block), threads=64) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2
        return B

    configs = [{"block": 32, "pass_configs": {"fast_math": on}} for on in (True, False)]
    tuned = tw.autotune(configs=configs, warmup=1, rep=1)(twice)
    np.testing.assert_array_equal(tuned(np.ones(100, np.float32)), np.full(100, 2))
    assert len(tuned.timings) == 2
