"""CUDA source to sm_90a code, and what the assembler reports. No GPU is needed."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.cuda.fake import opcodes
from tilewright.ir.chips import CHIPS
from tilewright.support.cache import Store
from tilewright.support.errors import CompileError
from tilewright.targets.cuda import nvrtc, sass
from tilewright.targets.cuda.launch import check_fits
from tilewright.targets.cuda.limits import registers_of_block
from tilewright.targets.cuda.nvrtc import Resources, compile_cuda

KERNELS = r"""
#include "wrappers.cuh"
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void __launch_bounds__(256, 1)
add(const __grid_constant__ Map m, float* p, int n, short q, bool b, double d) {
  __shared__ float s[64];
  s[threadIdx.x % 64] = p[threadIdx.x];
  __syncthreads();
  p[n] = twice(s[n]) + q + b + d + m.words[3];
}
extern "C" __global__ void nothing() {}
"""
HEADERS = {"wrappers.cuh": "__device__ inline float twice(float x) { return 2 * x; }"}

WGMMA = r"""
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void __launch_bounds__(128, 1)
k(float* p, unsigned long long a, unsigned long long b) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1,1,1,0,0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;");
#line 77 "user.py"
  BETWEEN
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  p[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""  # noqa: E501

REGISTER_MOVE = r"""
extern "C" __global__ void BOUNDS k(float* p) {
  if (threadIdx.x < 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
  else { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); p[threadIdx.x] = 1; }
}
"""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def test_compiles_and_reports(store):
    compiled = compile_cuda(KERNELS, "add.cu", "sm_90a", headers=HEADERS, store=store)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert ".target sm_90a" in compiled.ptx and ".loc" in compiled.ptx
    assert compiled.problems() == []
    add, nothing = compiled.resources["add"], compiled.resources["nothing"]
    assert 8 <= add.registers <= 64
    assert (add.static_shared, add.max_threads) == (256, 256)
    assert add.params == (128, 8, 4, 2, 1, 8)
    assert (nothing.static_shared, nothing.max_threads, nothing.params) == (0, 0, ())


def test_the_second_time_comes_from_the_store(store, monkeypatch):
    first = compile_cuda(KERNELS, "add.cu", "sm_90a", headers=HEADERS, store=store)
    monkeypatch.setattr(nvrtc, "_run", lambda *a: pytest.fail("compiled again"))
    assert compile_cuda(KERNELS, "add.cu", "sm_90a", headers=HEADERS, store=store) == first


def test_everything_that_shapes_the_code_is_in_the_key(store, monkeypatch):
    runs = []
    monkeypatch.setattr(nvrtc, "_run", lambda *a: (runs.append(a), (b"\x7fELF", "", ""))[1])
    base = {"source": "a", "name": "n", "arch": "sm_90a", "options": (), "headers": {}}
    changes = [{}, {"source": "b"}, {"name": "m"}, {"arch": "sm_80"}, {"options": ("-w",)}]
    changes += [{"headers": {"h": "1"}}, {"headers": {"h": "2"}}]
    for _ in range(2):
        for change in changes:
            compile_cuda(**{**base, **change}, store=store)
    assert len(runs) == len(changes)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "another")
    compile_cuda(**base, store=store)
    assert len(runs) == len(changes) + 1


def test_a_damaged_entry_is_compiled_again(store):
    first = compile_cuda(KERNELS, "add.cu", "sm_90a", headers=HEADERS, store=store)
    (path,) = [p for p in store.root.rglob("*") if p.is_file()]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    again = compile_cuda(KERNELS, "add.cu", "sm_90a", headers=HEADERS, store=store)
    assert again.cubin == first.cubin and again.ptx == first.ptx  # the log holds times
    assert path.read_bytes() != raw


def test_an_error_points_at_the_line(store):
    source = 'extern "C" __global__ void k(float* p) {\n#line 7 "user.py"\n  p[0] = y;\n}'
    with pytest.raises(CompileError, match='identifier "y" is undefined') as caught:
        compile_cuda(source, "k.cu", "sm_90a", store=store)
    assert (caught.value.loc.file, caught.value.loc.line) == ("user.py", 7)


def test_an_assembler_error_is_named(store):
    source = 'extern "C" __global__ void k() { asm volatile("fly.away;"); }'
    with pytest.raises(CompileError, match=r"k\.cu does not assemble: .*(fly|away)"):
        compile_cuda(source, "k.cu", "sm_90a", store=store)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (REGISTER_MOVE.replace("BOUNDS", ""), "C7508"),
        (WGMMA.replace("BETWEEN", 'printf("hi");'), "C7510"),
        (WGMMA.replace("BETWEEN", "p[5] = d[0];"), "C7517"),
    ],
)
def test_assembler_warnings_are_errors(source, code, store):
    for _ in range(2):  # from the compiler, then from the store
        with pytest.raises(CompileError, match=code) as caught:
            compile_cuda(source, "k.cu", "sm_90a", store=store)
        assert caught.value.diagnostic.fix == nvrtc.CODES[code]
    compiled = compile_cuda(source, "k.cu", "sm_90a", store=store, diagnostic=True)
    assert compiled.cubin and code in [w.code for w in compiled.warnings]
    assert any(code in p for p in compiled.problems())


def test_a_warning_names_the_source_line(store):
    source = WGMMA.replace("BETWEEN", "p[5] = d[0];")
    compiled = compile_cuda(source, "k.cu", "sm_90a", store=store, diagnostic=True)
    assert compiled.warnings[0].where.endswith("user.py:77")


def test_clean_counterparts_pass(store):
    bounded = REGISTER_MOVE.replace("BOUNDS", "__launch_bounds__(256, 1)")
    compiled = [
        compile_cuda(source, "k.cu", "sm_90a", store=store)
        for source in (bounded, WGMMA.replace("BETWEEN", ""))
    ]
    assert [c.problems() for c in compiled] == [[], []]


def test_spills_and_local_memory_are_problems(store):
    spill = """
    extern "C" __global__ void __launch_bounds__(1024, 1) k(float* p) {
      float x[100];
      #pragma unroll
      for (int i = 0; i < 100; i++) x[i] = p[i * 1024 + threadIdx.x];
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < 100; i++) p[i * 1024 + threadIdx.x] = x[(i * 7) % 100] * x[99 - i];
    }"""
    local = """
    extern "C" __global__ void k(float* p, int n) {
      float x[256];
      for (int i = 0; i < 256; i++) x[(i * n) & 255] = p[i];
      p[0] = x[n];
    }"""
    first = compile_cuda(spill, "k.cu", "sm_90a", store=store)
    second = compile_cuda(local, "k.cu", "sm_90a", store=store)
    assert first.resources["k"].spill_bytes > 0 and "spills" in first.problems()[0]
    assert second.resources["k"].local_bytes == 1024 and second.resources["k"].spill_bytes == 0
    assert second.problems() == ["k: 1024 bytes of local memory"]


# The report as two versions of the assembler print it.
REPORT = """
ptxas info    : (C7519) warpgroup.arrive is injected in around line 2 by compiler to allow use
ptxas info    : 3 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
{}1056 bytes stack frame, 1256 bytes spill stores, 1300 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1100 bytes cumulative stack size, 96 bytes smem
ptxas info    : Function properties for _Z1ff
{}8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


@pytest.mark.parametrize("lead", ["    ", "ptxas         .     "])
def test_reads_every_report(lead):
    ptx = '.loc 1 9 0\n\n.file 1 "a.py"\n.entry k(\n.param .u64 k_param_0\n)\n.reqntid 32, 2\n{'
    log = REPORT.format(lead, lead)
    assert nvrtc.read_resources(log, ptx) == {"k": Resources(64, 2556, 1100, 96, 64, (8,))}
    (warning,) = nvrtc.read_warnings(log, ptx)
    assert (warning.code, warning.where) == ("C7519", "a.py:9")


def test_without_nvrtc_it_says_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    nvrtc._nvrtc.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    try:
        with pytest.raises(CompileError, match=r"tilewright\[cuda\]"):
            nvrtc._nvrtc()
    finally:
        nvrtc._nvrtc.cache_clear()


def fits(**changes):
    compiled = Resources(168, static_shared=1024, max_threads=384, params=(8,))
    resources = changes.pop("resources", compiled)
    asked = {"threads": 384, "shared": 200_000, "cluster": (2, 1, 1), "sizes": (8,), **changes}
    check_fits(SimpleNamespace(kernel="k", loc=None, **asked), resources, CHIPS["sm_90a"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"shared": 231_425}, r"232449 bytes \(1024 static \+ 231425 dynamic\), 1 too many"),
        ({"threads": 512}, "at most 384 threads"),
        ({"threads": 1024, "resources": Resources(72)}, r"73728 \(72 in each of 1024 threads\)"),
        ({"cluster": (4, 4, 2)}, "at most 16 blocks"),
        ({"sizes": (8, 4)}, r"parameters of \(8,\) bytes"),
    ],
)
def test_what_cannot_fit_is_refused_with_figures(changes, text):
    fits()
    fits(shared=231_424)
    with pytest.raises(CompileError, match=text):
        fits(**changes)


def test_registers_come_in_units():
    assert registers_of_block(168, 384) == 64_512
    assert registers_of_block(33, 32) == 1280


def test_sass(store):
    compiled = compile_cuda(WGMMA.replace("BETWEEN", ""), "k.cu", "sm_90a", store=store)
    text = sass.disassemble(compiled.cubin)
    assert opcodes(text)["HGMMA"] == 1


def test_without_a_disassembler_it_says_what_to_install(monkeypatch):
    sass.disassembler.cache_clear()
    monkeypatch.setattr(sass.shutil, "which", lambda *a, **k: None)
    with pytest.raises(Exception, match="nvidia-cuda-nvdisasm"):
        sass.disassembler()
    sass.disassembler.cache_clear()


def test_importing_loads_no_cuda():
    code = (
        "import sys\n"
        "import tilewright.targets.arrays, tilewright.targets.cuda.sass\n"
        "assert not {'cuda', 'torch', 'cupy', 'jax'} & set(sys.modules), sorted(sys.modules)"
    )
    path = os.pathsep.join(map(str, sys.path))
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})
