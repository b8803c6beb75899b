"""Programs without roles: what lowering leaves means what it was given, and compiles for sm_90a
without anything to complain of. No GPU is needed."""

import re

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.fuzzed_programs import FUZZED
from tests.cuda.plain_programs import FOREIGN, PROGRAMS
from tilewright import interp
from tilewright.ir.op import Alloc, Hint
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage
from tilewright.passes.lower_threads import lower_threads
from tilewright.passes.pipeline import Pass, run_pipeline
from tilewright.passes.place_shared import place_shared
from tilewright.passes.spread import coalesced
from tilewright.targets.cuda.backend import compile_program, header
from tilewright.targets.cuda.emit import HEADER, emit_program
from tilewright.targets.cuda.nvrtc import compile_cuda

PASSES = (
    Pass("place_shared", place_shared, "", Stage.LAID_OUT),
    Pass("lower_threads", lower_threads, "", Stage.THREAD, whole_program=True),
)

LOCAL_MEMORY = ("map_locals", "threads_loops", "threads_assert", "print", "functions_float64")


def parsed(name):
    return parse_program((PROGRAMS | FUZZED | FOREIGN)[name], f"{name}.tw")


def lowered(name):
    return run_pipeline(parsed(name), Target.parse("cuda"), PASSES, stage=Stage.LAID_OUT).result


def compiled(name):
    source = emit_program(lowered(name)).text
    options = ("--minimal",)
    return compile_cuda(source, f"{name}.cu", "sm_90a", options, headers={HEADER: header()})


def arguments(program, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for tensor in program.tensors:
        shape, kind = tensor.static_shape, tensor.dtype
        whole = rng.integers(-4, 5, shape) if kind.kind != "uint" else rng.integers(0, 9, shape)
        found[tensor.name] = whole.astype(kind.numpy)
    return found


@pytest.mark.parametrize("name", [*PROGRAMS, *FUZZED])
def test_means_the_same(name):
    program = parsed(name)
    want, got = arguments(program), arguments(program)
    interp.run(program, want, explicit=False)
    interp.run_threads(lowered(name), got)
    for key, value in want.items():
        wide = np.float64 if value.dtype.kind not in "iub" else value.dtype
        np.testing.assert_array_equal(got[key].astype(wide), value.astype(wide), err_msg=key)


# PTX that programs must contain: what, and how often
REQUIRED = {
    "threads_plain": {r"ld\.global\.v4": 8, r"st\.shared\.v4": 8, r"ld\.shared\.v4": 8},
    "threads_swizzled": {r"ld\.global\.v4": 4, r"st\.shared\.v4": 4, r"st\.global\.v4": 4},
    "cp_async_plain": {r"cp\.async\.cg\.shared\.global \[\S+\], \[\S+\], 16": 8},
    "map_global": {r"ld\.global\.v4": 2, r"st\.global\.v4": 2},
    "wgmma_two_by_two": {r"wgmma\.mma_async\S*\.m64n64k16": 4},
    "wgmma_two_blocks_each": {r"wgmma\.mma_async\S*\.m64n64k16": 2 * 8},
    "wgmma_registers_across": {r"wgmma\.mma_async\S*\.m64n64k16": 4},
    "relayout_quads": {r"shfl\.sync\.idx": 16, r"bar\.sync": 0},
    "relayout_registers": {r"shfl": 0, r"bar\.sync": 0},
    "across_warps_sum": {r"shfl\.sync\.bfly": 4 * 5, r"bar\.sync": 1},
}


@pytest.mark.parametrize("name", list(REQUIRED))
def test_instructions(name):
    ptx = compiled(name).ptx
    found = {pattern: len(re.findall(pattern, ptx)) for pattern in REQUIRED[name]}
    assert found == REQUIRED[name]


def test_shared_buffers_may_be_allocated_in_loops():
    program = lowered("map_in_loop")
    (first, hint, *_) = program.kernels[0].body
    assert isinstance(first, Alloc) and isinstance(hint, Hint) and hint.name == "place"


@pytest.mark.parametrize("name", [*PROGRAMS, *FUZZED, *FOREIGN])
def test_compiles(name):
    found = compiled(name)
    if name not in LOCAL_MEMORY:  # arrays, what is printed
        assert found.problems() == []


DYNAMIC = """program p {
  dim m min=1
  dim n min=1 multiple_of=MULTIPLE
  param A: float32[m, n] global
  param C: bfloat16[m, n] global
  kernel main grid bx in (m + 15) // 16 threads tx in 128 {
    alloc f: float32[16, 64] fragment layout="LAYOUT"
    alloc s: float32[16, 64] shared layout="(16,64):(64,1)"
    for k in 0 .. (n + 63) // 64 {
      copy A[bx * 16:+16, k * 64:+64] -> s atom=cp_async
      commit cp_async
      wait_group cp_async pending 0
      sync block
      copy s -> f atom=threads
      map (i, j) in (16, 64) layout="LAYOUT" {
        f[i, j] = f[i, j] * 2.0 + A[bx * 16 + i, k * 64 + j]
      }
      copy f -> C[bx * 16:+16, k * 64:+64] atom=threads
      sync block
    }
  }
}
"""


@pytest.mark.parametrize("multiple, vectors", [(1, 0), (8, 1)])
def test_sizes_known_at_launch(multiple, vectors):
    text = DYNAMIC.replace("MULTIPLE", str(multiple))
    text = text.replace("LAYOUT", repr(coalesced((16, 64), 128, 8)))
    program = parse_program(text, "p.tw")
    after = run_pipeline(program, Target.parse("cuda"), PASSES, stage=Stage.LAID_OUT).result
    rng = np.random.default_rng(1)
    for m, n in ((1, 8), (40, 72), (16, 64)):
        a = rng.integers(-4, 5, (m, n)).astype(np.float32)
        got = np.zeros((m, n), ml_dtypes.bfloat16)
        interp.run_threads(after, {"A": a, "C": got})
        np.testing.assert_array_equal(got.astype(np.float32), a * 3)
    source = emit_program(after).text
    found = compile_cuda(source, "p.cu", "sm_90a", ("--minimal",), headers={HEADER: header()})
    assert found.problems() == []
    assert bool(re.search(r"st\.global\.v4", found.ptx)) == bool(vectors)
    assert bool(re.search(r"cp\.async\.cg", found.ptx)) == bool(vectors)


def test_indices_of_a_block_of_several_dimensions():
    text = """program p {
      param Y: int32[4, 32, 2] global
      kernel main grid b in 1 threads (tx, ty, tz) in (32, 4, 2) { Y[ty, tx, tz] = tx }
    }"""
    source = compile_program(parse_program(text), Target.parse("cuda")).source
    assert "tx = threadIdx.x % 32;" in source
    assert "ty = threadIdx.x / 32 % 4;" in source
    assert "tz = threadIdx.x / 128;" in source
