"""Every chip from sm_80 on is a target, with what it has: its features and limits are those that
NVRTC's assembler knows, and kernels of the zoo compile for it without spills."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from devtools.chips import compiled
from tests.cuda.fake import FakeApi, Status
from tests.roads import THREADS
from tilewright.ir.atoms import Feature
from tilewright.ir.chips import CHIPS, CUDA, DEFAULT, PTX, arch_for, machine_arch
from tilewright.ir.op import Role, walk_ops
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError
from tilewright.targets.cuda import nvrtc
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.cuda.launch import CudaModule
from zoo.gemm.gemm import gemm_relu, gemm_transposed


def number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


MACHINES = [arch for arch in CUDA if not arch.startswith(PTX)]
# the best code of every chip, and code without what is a chip's own
SWEPT = [f"sm_{n}{'a' * (f'sm_{n}a' in CUDA)}" for n in dict.fromkeys(map(number, MACHINES))]
SWEPT += ["sm_90", "sm_100", "sm_120"]


def known_to_nvrtc() -> set[int]:
    return set(nvrtc._call(nvrtc._nvrtc().nvrtcGetSupportedArchs()))


def assembled(body: str, arch: str, bounds: str = "") -> str:
    """The log; of what does not assemble, with the error."""
    code = f'extern "C" __global__ void {bounds} k(unsigned* o, float* f) {{ {body} }}'
    flags = [f"--gpu-architecture={arch}", "--ptxas-options=-v", "--minimal"]
    try:
        return nvrtc._run(code, "k.cu", flags, {})[2]
    except CompileError as error:
        return "error " + "\n".join(error.diagnostic.notes)


def test_every_architecture_of_nvrtc_is_a_target():
    assert {n for n in known_to_nvrtc() if n >= 80} <= {number(arch) for arch in CUDA}


ASM = {
    Feature.FP8_MMA: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
    "{%0,%0,%0,%0}, {%1,%1,%1,%1}, {%1,%1}, {%0,%0,%0,%0};",
    Feature.STMATRIX: "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%1], {%1};",
    Feature.BULK_COPY: "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group "
    "[%2, {%1}], [%1];",
    Feature.CLUSTER: "barrier.cluster.arrive.aligned;",
    Feature.REGISTER_MOVE: "setmaxnreg.inc.sync.aligned.u32 128;",
    Feature.WGMMA: "wgmma.fence.sync.aligned;",
}


@pytest.mark.parametrize("arch", [a for a in MACHINES if not a.endswith("f")])
def test_features_are_those_of_the_assembler(arch):
    if number(arch) not in known_to_nvrtc():
        pytest.skip(f"this NVRTC does not know {arch}")
    for feature, asm in ASM.items():
        line = f'asm volatile("{asm}" : "+f"(f[0]) : "r"(o[0]), "l"(f) : "memory");'
        assert (feature in CUDA[arch]) == (not assembled(line, arch).startswith("error")), feature


@pytest.mark.parametrize("arch", [a for a in MACHINES if a == machine_arch(a).rstrip("af")])
def test_limits_are_those_of_the_assembler(arch):
    if number(arch) not in known_to_nvrtc():
        pytest.skip(f"this NVRTC does not know {arch}")
    chip = CHIPS[arch]

    def takes(threads, blocks):
        bounds = f"__launch_bounds__({threads}, {blocks})"
        return "out of range" not in assembled("f[threadIdx.x] += 1;", arch, bounds)

    half = chip.threads_per_sm // 512
    assert takes(512, half) and not takes(512, half + 1)
    assert takes(32, chip.blocks_per_sm) and not takes(32, chip.blocks_per_sm + 1)
    if f"{arch}a" in CUDA:  # others report what a block has without asking for more
        tile = "__shared__ unsigned x[100000]; x[o[0]] = 1; __syncthreads(); o[1] = x[o[2]];"
        (most,) = re.findall(r"0x(\w+) max", assembled(tile, f"{arch}a"))
        assert int(most, 16) == chip.shared


# ── which of them a machine's GPU is ─────────────────────────────────────────────────────────

DEVICES = {
    "A100": ((8, 0), "sm_80"),
    "A10": ((8, 6), "sm_86"),
    "Orin": ((8, 7), "sm_87"),
    "RTX 4090": ((8, 9), "sm_89"),
    "L40S": ((8, 9), "sm_89"),
    "H200": ((9, 0), "sm_90a"),
    "B200": ((10, 0), "sm_100a"),
    "B300": ((10, 3), "sm_103a"),
    "Thor": ((11, 0), "sm_110a"),
    "RTX 5090": ((12, 0), "sm_120a"),
    "Spark": ((12, 1), "sm_121a"),
    "unknown, between": ((10, 1), "compute_100"),
    "unknown, newer": ((13, 0), "compute_121"),
    "T4": ((7, 5), None),
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_given_what_it_has(name):
    capability, arch = DEVICES[name]
    assert arch_for(*capability) == arch
    if arch is None:
        return
    features = CUDA[arch]
    assert CUDA["sm_80"] <= features
    assert (Feature.WGMMA in features) == (arch == "sm_90a")
    assert (Feature.FP8_MMA in features) == (capability >= (8, 9))
    assert (Feature.BULK_COPY in features) == (capability >= (9, 0))


class Gpu(FakeApi):
    """A GPU of some compute capability that remembers what it was given to load."""

    def __init__(self, capability):
        super().__init__(1, double_double={"params": (8, 8)})
        self.capability, self.images = capability, []

    def cuDeviceGetAttribute(self, name, device):
        major, minor = self.capability
        known = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
        status, value = (
            (Status(0), 0) if name in known else super().cuDeviceGetAttribute(name, device)
        )
        return status, known.get(name, value)

    def cuModuleLoadData(self, image):
        self.images.append(image)
        return super().cuModuleLoadData(image)


@T.prim_func
def double(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            Y[i] = X[i] * 2


@pytest.mark.parametrize("capability", [(8, 9), (13, 0)])
def test_known_chips_load_machine_code_and_newer_ones_ptx(capability):
    kernel = tw.compile(double, target=f"cuda -arch={arch_for(*capability)}").executable
    api = Gpu(capability)
    module = CudaModule(kernel.compiled.image, kernel.specs, using=Driver(api))
    module.load(0)
    (image,) = api.images
    if capability == (13, 0):
        assert image.startswith(b"//") and b".target sm_121\n" in image and image.endswith(b"\0")
    else:
        assert image == kernel.cubin and image.startswith(b"\x7fELF")


def test_ptx_and_machine_code_are_kept_apart():
    ptx, machine = (tw.compile(double, target=f"cuda -arch={a}") for a in ("compute_89", "sm_89"))
    assert ptx.executable.compiled.key != machine.executable.compiled.key
    assert ptx.executable.compiled.image != machine.executable.compiled.image
    assert ptx.resources == machine.resources  # those of machine code for its own chip


def test_an_older_nvrtc_says_what_to_do():
    with pytest.raises(CompileError, match=r"NVRTC [\d.]+ does not know sm_999") as raised:
        nvrtc.compile_cuda("", "k.cu", "sm_999")
    assert "-arch=compute_" in raised.value.diagnostic.fix


# ── what passes make of features ─────────────────────────────────────────────────────────────


@tw.jit
def narrow_product(dtype, accum="float32"):
    @T.prim_func
    def main(
        A: T.Tensor((64, 128), dtype), B: T.Tensor((64, 128), dtype), C: T.Tensor((64, 64), accum)
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 128), dtype), T.alloc_shared((64, 128), dtype)
            c = T.alloc_fragment((64, 64), accum)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C)

    return main


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_90", "sm_100a", "sm_120a"])
def test_products_of_8_bit_floats(arch, dtype):
    ptx = narrow_product.on(f"cuda -arch={arch}")(dtype).ptx
    kind = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype]
    found = f"mma.sync.aligned.m16n8k32.row.col.f32.{kind}.{kind}.f32" in ptx
    assert found == (Feature.FP8_MMA in CUDA[arch])


ROAD = THREADS["threads-sm_90a"].kind


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_120a"])
def test_thread_code_of_other_feature_sets_computes_the_same(arch):
    """Bulk copies with products of single warps, and neither."""
    rng = np.random.default_rng(0)
    target = f"{ROAD} -arch={arch}"
    a, b = (rng.integers(-2, 3, (96, 72)).astype(np.float16) for _ in range(2))
    c = np.empty((96, 96), np.float16)
    sizes = {"block_M": 64, "block_N": 64, "block_K": 32}
    gemm_transposed.on(target)(96, 96, 72, transpose_B=True, **sizes)(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    a, b = (rng.integers(-3, 4, (64, 128)).astype(ml_dtypes.float8_e4m3fn) for _ in range(2))
    c = np.empty((64, 64), np.float32)
    narrow_product.on(target)("float8_e4m3fn")(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_registers_stay_where_they_cannot_move(arch):
    """A producer that can be had everywhere where there are bulk copies; what it hands over is for
    chips that move registers."""
    sizes = {"block_N": 64, "threads": 256, "stages": 2}
    program = gemm_relu.prim_func(1024, 1024, 1024, **sizes).program
    for name in (arch, f"{arch}a"):
        lowered = lower(program, Target.parse(f"cuda -roles -arch={name}")).result
        roles = [op for op in walk_ops(lowered.kernels[0]) if isinstance(op, Role)]
        assert [op.name for op in roles] == ["consumer", "producer"]
        moved = {op.registers is not None for op in roles}
        assert moved == {Feature.REGISTER_MOVE in CUDA[name]}, name


def test_roles_with_registers_are_refused_where_they_cannot_move():
    text = """program p {
  param X: float32[128] global
  kernel main grid b in 1 threads tx in 256 {
    role first warps 0 + 4 registers=40 { }
    role second warps 4 + 4 registers=232 { }
  }
}"""
    with pytest.raises(CompileError, match="sm_90 cannot move registers to role first") as raised:
        tw.compile(tw.parse_ir(text), target="cuda -arch=sm_90")
    assert raised.value.loc is not None
    tw.compile(tw.parse_ir(text), target="cuda -arch=sm_90a")


def test_fewer_stages_than_the_text_says_where_shared_memory_is_small():
    sizes = {"block_N": 256, "threads": 256, "stages": 3}
    program = gemm_relu.prim_func(1024, 1024, 1024, **sizes).program
    small, large = (lower(program, Target.parse(f"cuda -arch={a}")) for a in ("sm_89", "sm_90a"))
    assert small.reasons["main", "given up"] == "stages=fewest, for shared memory"
    assert any("2 stages, 3 in the text" in why for why in small.reasons.values())
    assert ("main", "given up") not in large.reasons


def test_features_of_another_chip():
    older = Target.parse("cuda").like("sm_89")
    assert older.arch == DEFAULT and older.features == Target.parse("cuda -arch=sm_89").features


def test_the_error_names_what_there_is():
    with pytest.raises(CompileError, match="unknown architecture 'sm_75'") as raised:
        Target.parse("cuda -arch=sm_75")
    assert "sm_89" in raised.value.diagnostic.expected
    assert "compute_" in raised.value.diagnostic.fix


def test_a_factory_chooses_by_its_target():
    seen = []

    @tw.jit
    def made(n):
        seen.append(tw.current_target())
        return double

    for target in ("cuda -arch=sm_89", "cpu"):
        made.on(target)(1)
    assert [str(t) for t in seen] == ["cuda -arch=sm_89", "cpu"]
    assert tw.current_target() == tw.resolve("auto")


# ── the zoo ──────────────────────────────────────────────────────────────────────────────────

SOME = (("gemm", "small"), ("attention", "64"), ("softmax", "1000"))


@pytest.mark.parametrize("arch", SWEPT)
def test_some_of_the_zoo_compiles_without_spills(arch):
    """All of it for all of them: `python -m devtools chips`, which `make nightly` runs."""
    if number(arch) not in known_to_nvrtc():
        pytest.skip(f"this NVRTC does not know {arch}")
    for family, kernel in SOME:
        assert not compiled(arch, family, kernel).problem, (family, kernel)
