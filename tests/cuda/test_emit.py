"""Scheduled programs to sm_90a code: golden source, the instructions that must be there, and
nothing the assembler complains of. No GPU is needed.

TILEWRIGHT_UPDATE_GOLDEN=1 writes the golden files anew. Assemblers differ in what they complain of
and in how they schedule: `make gates NVRTC=13.0` runs this file with another release.
"""

import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.op import Intrinsic
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.targets.cuda.instructions import INSTRUCTIONS, instruction
from tilewright.targets.cuda.kernel import CudaKernel, compile_program
from tilewright.targets.cuda.sass import disassemble

SCHEDULES = Path(__file__).parent.parent / "schedules"
GOLDEN = Path(__file__).parent / "golden"
NAMES = [
    "flash_attention",
    "flash_attention_64",
    "flash_attention_64_causal",
    "flash_attention_causal",
    "gemm_cooperative",
    "gemm_pingpong",
    "mla_seesaw",
    "softmax_cluster",
    "softmax_cluster_wide",
]

# PTX that each program must contain: what, and how often
REQUIRED = {
    "flash_attention": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n176k16\.f32\.bf16\.bf16": 2 * 8,
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16\.bf16": 2 * 11,
        r"cp\.async\.bulk\.tensor\.4d\.shared::cluster": 10,
        r"cp\.async\.bulk\.tensor\.4d\.global\.shared::cta": 2,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 8,
        r"ex2\.approx\.ftz\.f32": 88 + 88 + 2,
        r"max\.NaN\.f32": 86 + 4 + 88 + 4,
        r"cvt\.rn\.bf16x2\.f32": 44 + 44 + 32,
        r"shfl\.sync\.bfly": 4 * 4,
        r"setmaxnreg\.inc\.sync\.aligned\.u32 240": 1,
        r"setmaxnreg\.dec\.sync\.aligned\.u32 24": 1,
    },
    "flash_attention_causal": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16\.bf16": 3 * 8 + 3 * 8,
        r"cp\.async\.bulk\.tensor\.4d\.shared::cluster": 10,
        r"cp\.async\.bulk\.tensor\.4d\.global\.shared::cta": 2,
        r"ex2\.approx\.ftz\.f32": 3 * 64 + 4,
        r"cvt\.rn\.bf16x2\.f32": 3 * 32 + 32,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 8,
    },
    "flash_attention_64": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16\.bf16": 2 * 4,
        r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16": 2 * 8,
        r"cp\.async\.bulk\.tensor\.4d\.shared::cluster": 5,
        r"cp\.async\.bulk\.tensor\.4d\.global\.shared::cta": 1,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 4,
        r"ex2\.approx\.ftz\.f32": 2 * 64 + 2,
        r"cvt\.rn\.bf16x2\.f32": 2 * 32 + 16,
        r"setmaxnreg\.inc\.sync\.aligned\.u32 160": 1,
        r"setmaxnreg\.dec\.sync\.aligned\.u32 32": 1,
    },
    "flash_attention_64_causal": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16\.bf16": 3 * 4,
        r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16": 3 * 8,
        r"cp\.async\.bulk\.tensor\.4d\.shared::cluster": 5,
        r"cp\.async\.bulk\.tensor\.4d\.global\.shared::cta": 1,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 4,
        r"ex2\.approx\.ftz\.f32": 3 * 64 + 4,
        r"cvt\.rn\.bf16x2\.f32": 3 * 32 + 16,
    },
    "gemm_cooperative": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32\.bf16\.bf16": 4,
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*\.multicast::cluster ": 2,
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta": 4,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 16,
        r"setmaxnreg\.inc\.sync\.aligned\.u32 240": 1,
        r"setmaxnreg\.dec\.sync\.aligned\.u32 24": 1,
        r"mbarrier\.arrive\.shared::cluster": 4,
    },
    "gemm_pingpong": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16\.bf16": 8,
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster": 3,
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta": 2,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 16,
    },
    "mla_seesaw": {
        r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16": 4 * 9 * 4,
        r"wgmma\.mma_async\.sync\.aligned\.m64n256k16\.f32\.bf16\.bf16": 4 * 4,
        r"cp\.async\.bulk\.tensor\.3d\.shared::cluster": 3 * 4 + 4 * 5,
        r"cp\.async\.bulk\.tensor\.4d\.shared::cluster": 9,
        r"cp\.async\.bulk\.tensor\.4d\.global\.shared::cta": 2 * 4,
        r"ldmatrix\.sync\.aligned\.m8n8\.x4": 2 * 4,
        r"stmatrix\.sync\.aligned\.m8n8\.x4": 2 * 4 + 2 * 16,
        r"ex2\.approx\.ftz\.f32": 2 * 32 + 2 * 2,
        r"cvt\.rn\.bf16x2\.f32": 2 * 16 + 2 * 16 + 2 * 64,
        r"bar\.sync": 8 + 2 + 1,  # named, added before tiles are refilled, of the block
    },
    "softmax_cluster": {
        r"ld\.shared\.v4\.b32": 4,
        r"st\.shared\.v4\.b32": 4,
        r"st\.async\.weak\.shared::cluster\S*\.b32": 4 * 2,
        r"mbarrier\.arrive\.expect_tx\.relaxed\.cluster\.shared::cluster": 4,
        r"mbarrier\.try_wait\.parity\.relaxed\.cluster": 1,
        r"fence\.acquire\.sync_restrict::shared::cluster\.cluster": 1,
        r"fence\.release\.sync_restrict::shared::cta\.cluster": 2,
        r"fence\.acq_rel\.cluster": 0,
    },
    "softmax_cluster_wide": {
        r"ld\.shared\.v4\.b32": 8,
        r"st\.global\.v4\.b32": 8,
        r"cvt\.rn\.bf16x2\.f32": 32,
        r"ex2\.approx\.ftz\.f32": 64 + 2,
        r"st\.async\.weak\.shared::cluster\S*\.b32": 2 * 2 + 2,
        r"mbarrier\.arrive\.expect_tx\.relaxed\.cluster\.shared::cluster": 2 + 2,
        r"mbarrier\.try_wait\.parity\.relaxed\.cluster": 2,
        r"fence\.acquire\.sync_restrict::shared::cluster\.cluster": 2,
        r"fence\.release\.sync_restrict::shared::cta\.cluster": 3,
        r"fence\.acq_rel\.cluster": 0,
        r"atom\S*\.add": 1,
        r"bar\.sync": 0,
        r"cp\.async\.bulk\.tensor\.4d\.shared::cluster": 2,
    },
}


@cache
def compiled(name: str) -> CudaKernel:
    text = (SCHEDULES / f"{name}.tw").read_text()
    return compile_program(parse_program(text, f"{name}.tw"), Target.parse("cuda"))


def test_no_scheduled_program_is_left_out():
    programs = {p.stem for p in SCHEDULES.glob("*.tw") if not p.stem.endswith("_plain")}
    assert programs == set(NAMES)


def test_instances_of_a_role_exchange_each_for_itself():
    text = """program p {
      param A: float32[2, 64, 2] global
      kernel main grid bx in 1 threads tx in 256 {
        role r warps 0 + 8 instances=2 var=g {
          alloc x: float32[64, 2] fragment layout="frag{tile=(64,2) tv=(128,1):(1,0)}"
          alloc y: float32[2] fragment layout="frag{tile=(2) tv=((2,64),1):((1,0),0)}"
          for turn in 0 .. 3 {
            copy A[g, :, :] -> x atom=threads
            scan sum x -> x dim 0
            reduce max x -> y dim 0
            map (i, j) in (64, 2) layout="frag{tile=(64,2) tv=(128,1):(1,0)}" {
              x[i, j] = x[i, j] - y[j]
            }
            copy x -> A[g, :, :] atom=threads
          }
        }
      }
    }
    """
    program, target = parse_program(text, "scan.tw"), Target.parse("cuda")
    assert compile_program(program, target).compiled.problems() == []
    given = np.random.default_rng(1).integers(-9, 9, (2, 64, 2)).astype(np.float32)
    want = given.copy()
    for _ in range(3):
        want = np.cumsum(want, axis=1)
        want -= want.max(axis=1, keepdims=True)
    code = run_pipeline(program, target, LOWER, stage=Stage.LAID_OUT).result
    for seed in range(4):
        args = {"A": given.copy()}
        machine.run_threads(code, args, seed=seed)
        assert (args["A"] == want).all()


@pytest.mark.parametrize("name", NAMES)
def test_source_is_golden(name):
    path = GOLDEN / f"{name}.cu"
    source = compiled(name).source
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        path.write_text(source)
    assert source == path.read_text(), "generated source changed; TILEWRIGHT_UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_complain_of(name):
    kernel = compiled(name)
    assert kernel.compiled.problems() == []
    assert all(r.registers * r.max_threads <= 65536 for r in kernel.resources.values())


@pytest.mark.parametrize("name", NAMES)
def test_required_instructions(name):
    ptx = compiled(name).ptx
    for pattern, count in REQUIRED[name].items():
        assert len(re.findall(pattern, ptx)) == count, pattern


@pytest.mark.parametrize("name", NAMES)
def test_lines_point_at_the_schedule(name):
    source = compiled(name).source
    lines = (SCHEDULES / f"{name}.tw").read_text().splitlines()
    found = re.findall(rf'#line (\d+) "{name}\.tw"\n\s*(?:const \w+ \w+ = )?(\S+?)\(', source)
    waits = [lines[int(n) - 1] for n, word in found if word == "tw::wait"]
    assert waits and all("wait " in line for line in waits)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("flash_attention")])
def test_exponentials_run_under_the_product(name):
    """In the loops over key blocks, every exp2 stands between the wait for the scores and the wait
    for the product of the block before."""
    code = disassemble(compiled(name).cubin)
    parts = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([01])", code)
    waits = list(zip(parts[1::2], parts[2::2], strict=True))
    counts = []
    for (kind, under), (_, behind) in pairwise(waits):
        if kind == "1":
            behind = behind.partition("WARPGROUP.ARRIVE")[0]
            counts.append((under.count("MUFU.EX2"), behind.count("MUFU.EX2")))
    values = 88 if name == "flash_attention" else 64  # of a thread in a block of keys
    assert counts == [(values + 2, 0)] * (2 if name.endswith("causal") else 1)


def test_launch_follows_from_the_program():
    kernel = compiled("gemm_cooperative")
    (spec,) = kernel.specs
    assert spec.threads == 384 and spec.cluster == (2,)
    assert spec.shared == kernel.module.specs[0].shared <= 232448
    boxes = {p.spec.tensor: p.spec.box for p in spec.params if hasattr(p, "spec")}
    assert boxes == {"A": (128, 64), "B": (64, 64), "C": (64, 64)}


def test_every_instruction_has_a_record_or_says_so():
    with pytest.raises(Exception, match="no instruction for intrinsic shfl_nowhere"):
        instruction("shfl_nowhere")
    name, text = INSTRUCTIONS["wgmma"].define(
        Intrinsic("wgmma", text="n=16 a=float8_e4m3fn b=float8_e5m2 d=float32 from=rs").fields
    )
    assert name == "wgmma_m64n16k32_f32_e4m3_e5m2_rs"
    assert "m64n16k32.f32.e4m3.e5m2" in text and "p, 1, 1;" in text


DRAW = """program p {
  param C: int32[1] global
  param Y: int32[4, 128] global
  kernel k grid bx in 4 threads tx in 128 {
    alloc f: int32[128] fragment
    fill f = 0
    map (i) in (128) {
      if i == THREAD and bx < 3 {
        atomic add C[0:+1] value=1 result=old: int32
        f[i] = old
      }
    }
    copy f -> Y[bx, :]
  }
}"""


@pytest.mark.parametrize("thread", [0, 5])
def test_thread_0_does_not_wait_for_what_it_fetches(thread):
    """The assembler would hand the old value out by a shuffle; behind it, the warp waits."""
    target = Target.parse("cuda -arch=sm_90a")
    kernel = compile_program(parse_program(DRAW.replace("THREAD", str(thread))), target)
    assert ("tw::first_atomic_add(" in kernel.source) == (thread == 0)
    code = disassemble(kernel.cubin)
    assert "ATOM" in code and ("SHFL" in code) == (thread != 0)


@pytest.mark.parametrize("result", ["", " result=old: int32"])
def test_atomics_of_a_tensor_without_dimensions(result):
    target = Target.parse("cuda -arch=sm_90a")
    text = DRAW.replace("int32[1]", "int32[]").replace("C[0:+1]", "C[]").replace("THREAD", "0")
    if not result:
        text = text.replace(" result=old: int32", "").replace("= old", "= 0")
    assert compile_program(parse_program(text), target).cubin


def test_guarded_loads_share_an_address():
    """What no iteration changes of it is a pointer before the loop."""

    @T.prim_func
    def halves(X: T.Tensor((7, 2, 60, 151), "float32"), Y: T.Tensor((7, 119, 301), "float32")):
        for i, j, k in T.tile(T.each(7), 119, 301):
            Y[i, j, k] = X[i, (j.index % 2)[:, None], (j.index // 2)[:, None], k.index // 2]

    source = tw.compile(halves, target="cuda -arch=sm_90a").get_kernel_source()
    loads = [line for line in source.splitlines() if "?" in line]
    assert loads and all(" X[" not in line for line in loads)
    assert "const float* X_" in source


def test_what_stands_in_a_branch_shares_an_address():
    """Loads and stores of a tile that ends within it: their rows do not begin on vectors."""

    @T.prim_func
    def doubled(X: T.Tensor((7, 60, 48), "bfloat16"), Y: T.Tensor((7, 119, 95), "bfloat16")):
        for i, j, k in T.tile(T.each(7), 119, 95):
            x = X[i, (j.index // 2)[:, None], k.index // 2] + 1.0
            Y[i, j, k] = x * x

    source = tw.compile(doubled, target="cuda -arch=sm_90a").get_kernel_source()
    assert "const tw::bfloat16* X_" in source and " tw::bfloat16* Y_" in source
    assert " X[" not in source and " Y[" not in source
