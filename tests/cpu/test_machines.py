"""Code for machines other than this one: wider vectors, fewer registers, no lane multiply-add.

LLVM splits vectors that are too wide for the machine at hand, so the same code runs here."""

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.cpu.common import check, compiled, draw
from tests.cpu.test_tiles import gemm_text, program
from tilewright.targets.cpu import emit_map, emit_tile, gemm, math, micro_kernel
from tilewright.targets.cpu.host import Host

MACHINES = {
    "avx512": Host(512, 32, False),
    "avx2": Host(256, 16, False),
    "sse": Host(128, 16, False),
    "neon": Host(128, 32, True, keeps_nan=True),
}
SOFTMAX = program(
    """
    alloc x: float16[4, 100] fragment
    alloc e: float32[4, 100] fragment
    alloc m: float32[4] fragment
    alloc s: float32[4] fragment
    copy X[bx * 4:+4, 0:+100] -> x
    copy x -> e
    reduce max e -> m dim 1
    map (i, j) in (4, 100) { e[i, j] = exp(e[i, j] - m[i]) }
    reduce sum e -> s dim 1
    map (i, j) in (4, 100) { e[i, j] = e[i, j] / s[i] if bx * 4 + i < 9 else 0.0 }
    copy e -> Y[bx * 4:+4, 0:+100]
    """,
    ["X: float16[10, 90]", "Y: float32[10, 90]"],
    grid="bx in 3",
)


def pretend(name, monkeypatch):
    """The emitter takes this computer for another, and kernels kept on disk are not for it."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    for module in (emit_map, emit_tile, gemm, math, micro_kernel):
        monkeypatch.setattr(module, "host", lambda: MACHINES[name])


@pytest.fixture(params=MACHINES)
def machine(request, monkeypatch):
    pretend(request.param, monkeypatch)
    return request.param


def test_softmax(machine):
    args = {"X": draw((10, 90), "float16"), "Y": np.zeros((10, 90), np.float32)}
    check(SOFTMAX, args, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ta, tb", [(False, False), (True, True)])
@pytest.mark.parametrize("m, n, k", [(37, 51, 18), (45, 90, 75)])  # the second packs both factors
def test_gemm(machine, ta, tb, m, n, k):
    for kind, acc in (("float32", "float32"), ("float16", "float32"), ("int8", "int32")):
        a = draw((k, m) if ta else (m, k), "int8", low=-4, high=4).astype(kind)
        b = draw((n, k) if tb else (k, n), "int8", seed=1, low=-4, high=4).astype(kind)
        check(gemm_text(m, n, k, ta, tb, kind, acc), {"A": a, "B": b, "C": np.ones((m, n), acc)})


@pytest.mark.parametrize("cpu, features", [("haswell", ""), ("skylake-avx512", "-prefer-256-bit")])
def test_llvm_takes_it_for_x86(cpu, features, monkeypatch):
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no x86")
    name = "avx2" if cpu == "haswell" else "avx512"
    pretend(name, monkeypatch)
    there = target.create_target_machine(cpu=cpu, features=features, opt=3)
    for text in (SOFTMAX, gemm_text(64, 64, 64, False, False)):
        module = llvm.parse_assembly(compiled(text).source)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(there, options)
        builder.getModulePassManager().run(module, builder)
        assembly = there.emit_assembly(module)
        assert ("zmm" if name == "avx512" else "ymm") in assembly
        assert "vfmadd" in assembly
        assert "__truncsfhf2" not in assembly and "__extendhfsf2" not in assembly


@pytest.mark.parametrize("name, cpu", [("avx2", "haswell"), ("avx512", "skylake-avx512")])
def test_accumulators_stay_in_registers(name, cpu, monkeypatch):
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no x86")
    pretend(name, monkeypatch)
    there = target.create_target_machine(cpu=cpu, opt=3)
    module = llvm.parse_assembly(compiled(gemm_text(96, 96, 64, False, False)).source)
    builder = llvm.create_pass_builder(there, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    text = there.emit_assembly(module)
    kernel = text[text.index("\ntilewright.gemm") :].partition(".size")[0]
    assert "vfmadd" in kernel and "%rsp" not in kernel
