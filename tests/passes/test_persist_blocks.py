"""Blocks that stay: the same numbers, tile by tile, whatever the grid; and what keeps a kernel from
having them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import tilewright.language as T
from tests.cuda import test_zoo as zoo
from tests.passes.overlap import check_same as check_same_bits
from tests.passes.overlap import numbers, unnoticed
from tests.roads import OnDevice
from tilewright import machine
from tilewright.ir.bind import static_value
from tilewright.ir.chips import CHIPS
from tilewright.ir.op import Alloc, For, Kernel, Program, Role, WaitGroup, walk_ops
from tilewright.ir.schedule import WORDS
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.grid.order_blocks import order_blocks
from tilewright.passes.grid.persist_blocks import ABOUT, blocks_of, persist_blocks, why_not
from tilewright.passes.reasons import listening
from tilewright.support.errors import RunError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.attention.flash import flash_attention
from zoo.attention.flash import reference as reference_attention
from zoo.gemm.gemm import gemm_relu
from zoo.gemm.gemm import reference as reference_gemm

ORDERS = [order for order in WORDS["order"] if order != "auto"]
STAY = Target.parse("cuda -persistent")
TARGETS = {
    "sm_90a": STAY,
    "sm_80": STAY.like("sm_80"),
    "roles": STAY.choosing(roles=True),
}
ROWS = 20  # of kernels that take any number of rows: three blocks of eight


@pytest.fixture
def chip(monkeypatch) -> Callable[[int], None]:
    """Makes the chip small: so many multiprocessors, with room for a block each."""

    def make(count: int) -> None:
        small = replace(CHIPS["sm_90a"], multiprocessors=count, blocks_per_sm=1)
        monkeypatch.setitem(CHIPS, "sm_90a", small)

    monkeypatch.setitem(zoo.SIZES, "m", ROWS)
    return make


def persisted(program: Program, target: Target = STAY) -> Program:
    found = persist_blocks(order_blocks(program, target), target)
    verify(found, Stage.TILE)
    return found


def loops(kernel: Kernel) -> list[For]:
    return [op for op in walk_ops(kernel) if isinstance(op, For) and op.kind == "persistent"]


def told(program: Program, target: Target = STAY) -> str:
    with listening() as reasons:
        persist_blocks(program, target)
    return reasons[program.kernels[0].name, ABOUT]


def check_same(program: Program, found: Program, threads: bool, seed: int = 1) -> None:
    args = zoo.arguments(program)
    want, got = zoo.copies(args), zoo.copies(args)
    machine.run(program, want)
    machine.run(found, got, seed=seed, threads=threads)
    for key, value in want.items():
        if not isinstance(value, np.ndarray):
            continue
        if not threads:
            assert value.tobytes() == got[key].tobytes(), key
            continue
        # sums may be added in another order; results of 16 bits may then round differently
        a, b = (np.asarray(x[key]).astype(np.float64) for x in (got, want))
        unit = 2.0**-8 if value.dtype.itemsize == 2 else 2.0**-20
        np.testing.assert_allclose(a, b, rtol=2 * unit, atol=unit / 64, err_msg=key)


# ── the program ──────────────────────────────────────────────────────────────────────────────


@T.prim_func
def product(
    A: T.Tensor((256, 64), "float16"),
    B: T.Tensor((64, 384), "float16"),
    C: T.Tensor((256, 384), "float16"),
):
    with T.Kernel(3, 2, threads=128) as (bx, by):
        a = T.alloc_shared((128, 32), "float16")
        b = T.alloc_shared((32, 128), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[by * 128, k * 32], a)
            T.copy(B[k * 32, bx * 128], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 128, bx * 128])


def test_a_product(chip):
    chip(4)
    text = print_program(persisted(product.program, STAY.choosing(order="plain")))
    assert (
        text[text.index("  kernel") :]
        == """\
  kernel product grid block in 4 threads tx in 128 {
    alloc a: float16[128, 32] shared
    alloc b: float16[32, 128] shared
    for tile in block .. 6 step=4 kind=persistent {
      let bx = tile % 3
      let by = tile // 3
      alloc c: float32[128, 128] fragment
      fill c = 0.0
      for k in 0 .. 2 kind=pipelined stages=2 {
        copy A[by * 128:+128, k * 32:+32] -> a
        copy B[k * 32:+32, bx * 128:+128] -> b
        gemm a, b -> c
      }
      copy c -> C[by * 128:+128, bx * 128:+128]
    }
  }
}
"""
    )


ORDERED = """program p {
  dim gx
  dim gy
  dim gz
  param N: int32[gz, gy, gx] global
  kernel main grid (bx, by, bz) in (gx, gy, gz) threads tx in 32 {
    map i in 1 { N[bz, by, bx + i] = N[bz, by, bx + i] + 1 }
  }
}
"""


def test_numbers_of_tiles_are_those_of_blocks(chip):
    """Nothing is divided only to be put together again."""
    chip(4)
    text = print_program(persisted(parse_program(ORDERED), STAY.choosing(order="grouped")))
    assert (
        """\
  kernel main grid block in min(4, gx * gy * gz) threads tx in 32 {
    for tile in block .. gx * gy * gz step=4 kind=persistent {
      let bz = tile // (gx * gy)
      hint assume value=bz >= 0 and bz < gz
      let number = tile % (gx * gy)
      let panel = number // (gx * 8)
"""
        in text
    )


def test_one_axis_needs_no_other_name(chip):
    chip(2)
    (kernel,) = persisted(zoo.program("softmax_rows")).kernels
    (loop,) = loops(kernel)
    assert loop.var.name == "bx" and str(loop.stop) == "(m + 7) // 8"
    assert loop.loc == kernel.loc


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "sizes", [(2, 2, 1), (5, 1, 1), (1, 1, 1), (3, 9, 2), (17, 11, 1), (0, 4, 1), (4, 4, 0)]
)
def test_every_tile_once(chip, order: str, sizes: tuple[int, int, int]):
    """Fewer tiles than blocks, as many, more, and none."""
    chip(5)
    found = persisted(parse_program(ORDERED), STAY.choosing(order=order))
    seen = np.zeros(sizes[::-1], np.int32)
    machine.run(found, {"N": seen})
    np.testing.assert_array_equal(seen, 1)
    values = dict(zip((d.var for d in found.dims), sizes, strict=True))
    (blocks,) = (static_value(extent, values) for extent in found.kernels[0].grid)
    assert blocks == min(5, sizes[0] * sizes[1] * sizes[2])


# ── the same numbers ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [n for n in zoo.KERNELS if n != "vector_add"])
def test_the_zoo_tile_by_tile(chip, name: str):
    chip(1)
    program = zoo.program(name)
    check_same(program, persisted(program), threads=False)


MORE = {
    "gemm_nine_tiles": lambda: gemm_relu.on("interp")(
        192, 136, 96, block_M=64, block_N=64, block_K=32
    ),
    "flash_six_tiles": lambda: flash_attention.on("interp")(1, 2, 1, 192, 192, 64, causal=True),
}


@cache
def given(name: str) -> Program:
    return MORE[name]().program if name in MORE else zoo.program(name)


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize(
    "name",
    [
        "gemm_nine_tiles",
        "gemm_two_warpgroups",
        "flash_six_tiles",
        "flash_grouped",
        "softmax",
        "softmax_online",
        "layer_norm",
        "transpose",
    ],
)
def test_thread_code(chip, name: str, arch: str):
    """What comes behind has put waits and barriers between one tile and the next."""
    chip(1 if name.startswith(("softmax", "gemm_two")) else 2)
    program = given(name)
    code = lower(program, TARGETS[arch])
    assert loops(code.after("persist_blocks").kernels[0])
    check_same(program, code.result, threads=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["gemm_nine_tiles", "flash_six_tiles"])
def test_thread_code_of_orders(chip, name: str, order: str):
    chip(3)
    program = given(name)
    code = lower(program, STAY.choosing(order=order)).result
    check_same(program, code, threads=True, seed=2)


@pytest.mark.parametrize("arch", TARGETS)
def test_sizes_at_launch(chip, arch: str):
    """A grid smaller than the chip, as large, larger, and empty: the same code."""
    chip(2)
    rows = T.dynamic("m")
    program = gemm_relu.on("interp")(rows, 64, 64, block_M=64, block_N=64, block_K=32).program
    code = lower(program, TARGETS[arch]).result
    if arch == "roles":
        assert any(isinstance(op, Role) for op in walk_ops(code.kernels[0]))
    rng = np.random.default_rng(0)
    b = rng.integers(-2, 3, (64, 64)).astype(np.float16)
    for m in (0, 40, 128, 300):
        a, c = rng.integers(-2, 3, (m, 64)).astype(np.float16), np.ones((m, 64), np.float16)
        machine.run_threads(code, {"A": a, "B": b, "C": c})
        want = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
        np.testing.assert_array_equal(c, want.astype(np.float16))


def test_what_stands_between_tiles_is_needed(chip):
    """Shared memory is used again by the next tile: each wait, fence and barrier that is derived
    for that is missed when it is dropped."""

    @T.prim_func
    def main(A: T.Tensor((192, 128), "float16"), B: T.Tensor((128, 64), "float16"),
             C: T.Tensor((192, 64), "float16")):  # fmt: skip
        with T.Kernel(3, threads=128) as by:
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            d = T.alloc_shared((64, 64), "float16")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, d)
            T.copy(d, C[by * 64, 0])

    chip(1)
    args = {"A": numbers(192, 128), "B": numbers(128, 64), "C": np.zeros((192, 64), np.float16)}
    found = check_same_bits(persisted(main.program), args)
    between = [op for op in walk_ops(loops(found.kernels[0])[0]) if isinstance(op, WaitGroup)]
    assert any(op.unit == "bulk" for op in between)
    assert not unnoticed(main.program, found, args)


def test_initial_values_are_given_anew(chip):
    @T.prim_func
    def main(A: T.Tensor((6, 64), "float32"), S: T.Tensor((6,), "float32")):
        with T.Kernel(6, threads=64) as bx:
            a = T.alloc_shared((64,), "float32")
            total = T.alloc_var("float32", init=1.0)
            part = T.alloc_fragment((1,), "float32")
            T.copy(A[bx, :], a)
            for k in T.serial(64):
                total += a[k]
            for i in T.Parallel(1):
                part[i] = total
            T.copy(part, S[bx : bx + 1])

    chip(2)
    found = persisted(main.program)
    outside = [op.buffer.name for op in found.kernels[0].body if isinstance(op, Alloc)]
    assert outside == ["a"]  # a tile's own stay in the loop
    a = np.random.default_rng(0).integers(-3, 4, (6, 64)).astype(np.float32)
    for code in (found, lower(main.program, STAY).result):
        s = np.zeros(6, np.float32)
        machine.run(code, {"A": a, "S": s}, threads=code is not found)
        np.testing.assert_array_equal(s, 1 + a.sum(axis=1))


def test_nothing_is_left_from_the_tile_before(chip):
    """Reading what only the first tile has written stays an error."""
    text = """program p {
  param N: int32[4, 32] global
  kernel main grid bx in 4 threads tx in 32 {
    alloc f: int32[32] fragment
    if bx == 0 { fill f = 7 }
    copy f -> N[bx, :]
  }
}
"""
    chip(1)
    program = parse_program(text)
    for each in (program, persisted(program)):
        with pytest.raises(RunError, match="f"):
            machine.run(each, {"N": np.zeros((4, 32), np.int32)}, sanitize=True)


# ── what keeps a kernel from it ──────────────────────────────────────────────────────────────

KERNEL = """program p {{
  param A: float32[64, 64] global
  param L: int32[4] global
  kernel main grid bx in 10000 threads tx in 128{more} {{
    alloc a: float32[64] shared
    {body}
  }}
}}
"""


@pytest.mark.parametrize(
    "body, why",
    [
        ("sync block", "roles, barriers or waits of its own (at line 6)"),
        ("fence gpu", "roles, barriers or waits of its own (at line 6)"),
        ("role r warps 0 + 4 { fill a = 0.0 }", "roles, barriers or waits of its own (at line 6)"),
        ("alloc b: barrier[1] barrier\n barrier_init b count 1", "of its own (at line 7)"),
        ("commit bulk", "roles, barriers or waits of its own (at line 6)"),
        ("copy A[0, :] -> a atom=cp_async", "asynchronous copies of its own (at line 6)"),
        ("if tx == 0 { a[0] = 1.0 }", "code for single threads (at line 6)"),
        ("intrinsic shfl_xor (bx, 1) result=other", "code for single threads (at line 6)"),
        ("for t in bx .. 8 step=4 kind=persistent { fill a = 0.0 }", "already loop over tiles"),
        ("while L[0] > 0 { fill a = 0.0 }", "a loop may wait for other blocks (at line 6)"),
        ("intrinsic pdl_wait", "communicates with other launches (at line 6)"),
        ('intrinsic ptx text="nop;"', "foreign code may keep state from tile to tile"),
    ],
)
def test_what_is_left_alone(body: str, why: str):
    program = parse_program(KERNEL.format(body=body, more=""))
    found = told(program)
    assert found.startswith("one block per tile: ") and why in found
    assert persist_blocks(program, STAY) is program


def test_clusters_and_large_grids_are_left_alone():
    text = KERNEL.format(body="fill a = 0.0", more=" cluster=(2,)")
    assert told(parse_program(text)) == "one block per tile: blocks run in clusters"
    text = KERNEL.format(body="fill a = 0.0", more="").replace("10000", "2147483648")
    assert why_not(parse_program(text).kernels[0]) == "the grid is too large to number"


def test_it_is_asked_for():
    plain = parse_program(KERNEL.format(body="fill a = 0.0", more=""))
    never = "one block per tile: "
    alone = "one warpgroup computes, and a producer would cost a resident block"
    assert told(plain, Target.parse("cuda")) == never + alone
    unaided = "no producer prefetches the next tile"
    assert told(plain, Target.parse("cuda -roles=off")) == never + unaided
    assert told(plain, Target.parse("cuda -arch=sm_80")) == never + unaided
    assert told(plain, Target.parse("cuda -persistent=off")) == never + "as requested"
    few = product.program
    assert told(few) == never + "all 6 of them fit on the chip"
    assert persist_blocks(few, STAY) is few


def test_as_many_blocks_as_run_together(chip):
    large = gemm_relu.on("interp")(8192, 8192, 8192).program
    (loop,) = loops(persisted(large).kernels[0])
    assert int(loop.step) == 132
    assert told(large) == "132 persistent blocks, as requested, 1 on each of 132 multiprocessors"
    hinted = parse_program(
        KERNEL.format(body="hint min_blocks detail=(2)\n fill a = 0.0", more="")
    ).kernels[0]
    assert blocks_of(hinted, STAY) == 264
    threads = parse_program(KERNEL.format(body="fill a = 0.0", more="")).kernels[0]
    assert blocks_of(threads, STAY) == 16 * 132
    wide = KERNEL.format(body="fill a = 0.0", more="").replace(
        "a: float32[64]", "a: float32[16384]"
    )
    assert blocks_of(parse_program(wide).kernels[0], STAY) == 3 * 132


def test_explain_says_why(chip):
    chip(2)
    program = zoo.program("gemm")
    trace = lower(program, STAY)
    line = program.kernels[0].loc.line
    assert trace.reasons["main", f"for at line {line}"].startswith("2 persistent blocks")


# ── machine code ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda: gemm_relu.on("interp")(8192, 8192, 8192, block_N=256, threads=256,
                                                    stages=4), id="gemm"),
        pytest.param(lambda: flash_attention.on("interp")(
            4, 16, 16, 4096, 4096, 128, True, block_M=128, block_N=128, threads=256,
            dtype="bfloat16"), id="attention"),
    ],
)  # fmt: skip
def test_it_compiles_without_spills(program):
    kernel = CudaKernel(program().program, STAY)
    (found,) = kernel.resources.values()
    assert kernel.serialized is None
    assert (found.spill_bytes, found.local_bytes) == (0, 0) and found.registers <= 224


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("arch", TARGETS)
def test_on_the_gpu(arch: str, order: str):
    """More tiles than blocks, a grid that ends in part tiles, and sizes known at launch."""
    target = TARGETS[arch].choosing(order=order)
    rng = np.random.default_rng(0)
    product = OnDevice(gemm_relu.on("interp")(T.dynamic("m"), 2056, 256).program, target)
    b = rng.integers(-2, 3, (256, 2056)).astype(np.float16)
    for m in (0, 100, 2100):
        a, c = rng.integers(-2, 3, (m, 256)).astype(np.float16), np.ones((m, 2056), np.float16)
        product({"A": a, "B": b, "C": c})
        np.testing.assert_array_equal(c, reference_gemm(a, b, relu=True).astype(np.float16))
    attend = OnDevice(
        flash_attention.on("interp")(2, 8, 4, 1000, 1000, 64, causal=True).program, target
    )
    q = rng.normal(size=(2, 8, 1000, 64)).astype(np.float16)
    k, v = (rng.normal(size=(2, 4, 1000, 64)).astype(np.float16) for _ in range(2))
    o = np.zeros_like(q)
    attend({"Q": q, "K": k, "V": v, "O": o})
    want = reference_attention(q, k, v, causal=True)
    np.testing.assert_allclose(o.astype(np.float64), want, rtol=1e-2, atol=1e-2)
