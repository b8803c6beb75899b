"""Programs without roles: what lowering leaves means what it was given, and compiles for sm_90a
without anything to complain of. No GPU is needed."""

import re

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.fuzzed_programs import FUZZED
from tests.cuda.plain_programs import FOREIGN, PROGRAMS
from tests.cuda.tile_programs import TILES
from tilewright import language as T
from tilewright import machine
from tilewright.ir.op import Alloc
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import headers, lower
from tilewright.targets.cuda.emit import emit_program
from tilewright.targets.cuda.kernel import compile_program
from tilewright.targets.cuda.nvrtc import compile_cuda

LOCAL_MEMORY = (
    "map_locals", "threads_loops", "threads_assert", "print", "functions_float64",
    "printed_fragments",
)  # fmt: skip
AMPERE = "cuda -arch=sm_80"


def parsed(name):
    if name in TILES:
        return TILES[name]
    return parse_program((PROGRAMS | FUZZED | FOREIGN)[name], f"{name}.tw")


def lowered(name):
    return run_pipeline(parsed(name), Target.parse("cuda"), LOWER, stage=Stage.LAID_OUT).result


def compiled(name):
    source = emit_program(lowered(name)).text
    options = ("--minimal",)
    return compile_cuda(source, f"{name}.cu", "sm_90a", options, headers=headers())


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
    machine.run(program, want, explicit=False)
    machine.run_threads(lowered(name), got)
    check_same(got, want)


@pytest.mark.parametrize("target", ["cuda", AMPERE])
@pytest.mark.parametrize("name", TILES)
def test_tiles(name, target):
    """They compile, and their thread code means the same."""
    program = parsed(name)
    kernel = compile_program(program, Target.parse(target))
    if name not in LOCAL_MEMORY:
        assert kernel.compiled.problems() == []
    want, got = arguments(program), arguments(program)
    machine.run(program, want)
    machine.run_threads(kernel.trace.result, got)
    check_same(got, want)


def check_same(got, want):
    for key, value in want.items():
        wide = np.float64 if value.dtype.kind not in "iub" else value.dtype
        np.testing.assert_array_equal(got[key].astype(wide), value.astype(wide), err_msg=key)


# PTX that programs must contain: what, and how often
REQUIRED = {
    "threads_plain": {r"ld\.global\.nc\.v4": 8, r"st\.shared\.v4": 8, r"ld\.shared\.v4": 8},
    "threads_swizzled": {r"ld\.global\.nc\.v4": 4, r"st\.shared\.v4": 4, r"st\.global\.v4": 4},
    "cp_async_plain": {r"cp\.async\.cg\.shared\.global \[\S+\], \[\S+\], 16": 8},
    "map_global": {r"ld\.global\.nc\.v4": 2, r"st\.global\.v4": 2},
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


def refusal(func, target="cuda"):
    with pytest.raises(CompileError) as caught:
        lower(func.program, Target.parse(target))
    text = str(caught.value)
    assert "test_plain.py:" in text and "fix:" in text
    return text


def test_a_byte_in_a_small_tensor_is_not_shared():
    @T.prim_func
    def main(A: T.Tensor((6,), "int4")):
        with T.Kernel(1, threads=32):
            A[T.get_thread_binding() % 6] = T.cast(1, "int4")

    text = refusal(main)
    assert "A is written element by element, and 2 int4 elements share a byte" in text
    assert "A[T.get_thread_binding() % 6]" in text and "in global memory of 3 bytes" in text
    assert "write to a tile of int4 and T.copy that to A" in text


def test_no_accumulators_of_less_than_a_byte():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "int4")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "int4")
            b = T.alloc_shared((64, 64), "int4")
            c = T.alloc_fragment((64, 64), "int4")
            T.copy(A, a)
            T.copy(A, b)
            T.gemm(a, b, c)

    text = refusal(main)
    assert "no instruction accumulates products in int4" in text and "T.gemm(a, b, c)" in text


def test_fragments_of_less_than_a_byte_are_not_seen_as_others():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "int4"), B: T.Tensor((64, 32), "uint8")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((64, 64), "int4")
            T.copy(A, a)
            v = T.view(a, (64, 32), dtype="uint8")
            T.copy(v, B)

    assert "v shows int4 elements of a as uint8" in refusal(main)


def test_types_that_fill_no_bytes():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float6_e2m3"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            T.copy(A, B)

    assert "float6_e2m3fn has no CUDA form" in refusal(main)


def test_packed_tensors_are_row_major():
    @T.prim_func
    def main(A: T.StridedTensor((8, 8), (16, 1), "int4"), B: T.Tensor((8, 8), "int32")):
        with T.Kernel(1, threads=64):
            T.copy(A, B)

    assert "A has strides, and several of its elements share a byte" in refusal(main)


def test_elements_that_share_bytes_are_printed():
    @T.prim_func
    def main(A: T.Tensor((8, 8), "int4")):
        with T.Kernel(1, threads=64):
            T.print(A)
            T.print(A[1, 3:6], "odd")

    program = lower(main.program, Target.parse("cuda")).result
    a = (np.arange(64) % 16 - 8).reshape(8, 8).astype(ml_dtypes.int4)
    lines = machine.run_threads(program, {"A": a}).printed
    assert lines[0] == "block (0,): A: int4[8, 8]" and len(lines) == 10
    assert lines[2] == "block (0,): A[1, 0:8] = 0 1 2 3 4 5 6 7"
    assert lines[9] == "block (0,): odd A[1, 3:6]: int4[3] = 3 4 5"


def check_threads(text, **values):
    """Thread code gives what the text means."""
    program = parse_program(text, "p.tw")
    code = lower(program, Target.parse("cuda")).result
    args = {**arguments(program), **values}
    want, got = ({name: x.copy() for name, x in args.items()} for _ in range(2))
    machine.run(program, want)
    machine.run_threads(code, got)
    for name in args:
        np.testing.assert_array_equal(got[name], want[name])


def test_one_map_writes_a_fragment_under_two_names():
    text = """program p {
      param A: float32[8, 32] global
      kernel main grid bx in 1 threads tx in 64 {
        alloc f: float32[8, 32] fragment layout="FRAGMENT"
        alloc g: float32[4, 32] fragment
        copy A -> f
        view v: float32[4, 32] fragment of f offset=128
        map (i, j) in (4, 32) {
          v[i, j] = v[i, j] + 1.0
          g[i, j] = f[i + 4, j]
        }
        copy f -> A
        copy g -> A[0:+4, 0:+32]
      }
    }""".replace("FRAGMENT", repr(coalesced((8, 32), 64, 4)))
    check_threads(text)


@pytest.mark.parametrize("threads", [64, 128])
def test_products_add_to_what_views_show(threads):
    text = """program p {
      param A: float16[64, 64] global
      param C: float32[64, 64] global
      kernel main grid bx in 1 threads tx in THREADS {
        alloc a: float16[64, 64] shared
        alloc c: float32[64, 64] fragment
        copy A -> a
        copy C -> c
        view v: float32[32, 64] fragment of c offset=2048
        gemm a, a -> c
        map (i, j) in (32, 64) { v[i, j] = v[i, j] + 1.0 }
        gemm a, a -> c
        copy c -> C
      }
    }"""
    check_threads(text.replace("THREADS", str(threads)))


def test_a_fragment_is_viewed_at_any_place():
    text = """program p {
      param A: float32[8, 32] global
      param N: int32[1] global
      kernel main grid bx in 1 threads tx in 64 {
        alloc f: float32[8, 32] fragment
        copy A -> f
        view v: float32[4, 32] fragment of f offset=N[0] * 32
        copy v -> A[0:+4, 0:+32]
      }
    }"""
    check_threads(text, N=np.array([3], "i4"))


def test_shared_buffers_may_be_allocated_in_loops():
    program = lowered("map_in_loop")
    first = program.kernels[0].body[0]
    assert isinstance(first, Alloc) and first.place == 0


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
    after = run_pipeline(program, Target.parse("cuda"), LOWER, stage=Stage.LAID_OUT).result
    rng = np.random.default_rng(1)
    for m, n in ((1, 8), (40, 72), (16, 64)):
        a = rng.integers(-4, 5, (m, n)).astype(np.float32)
        got = np.zeros((m, n), ml_dtypes.bfloat16)
        machine.run_threads(after, {"A": a, "C": got})
        np.testing.assert_array_equal(got.astype(np.float32), a * 3)
    source = emit_program(after).text
    found = compile_cuda(source, "p.cu", "sm_90a", ("--minimal",), headers=headers())
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
