"""Layout inference: what is prescribed, what is carried along, what is chosen freely, and what is
converted where ops disagree. Programs mean the same before and after."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright import machine
from tilewright.ir.layout.fragment import Fragment, repeat, row_of, spatial, wgmma_accumulator
from tilewright.ir.op import Alloc, Copy, Gemm, Map, Relayout, View, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.layout.choose_gemms import choose_gemms
from tilewright.passes.layout.infer_layouts import collect, infer_layouts, solve
from tilewright.passes.lower.threads import choose_copies
from tilewright.targets.cuda.backend import lower

HOPPER = Target.parse("cuda")
AMPERE = HOPPER.like("sm_80")
HEAD = """program p {{
  param X: float32[{rows}, {columns}] global
  param Y: float32[{rows}, {columns}] global
  kernel main grid b in 1 threads tx in {threads} {{
"""


def program(body: str, rows: int = 32, columns: int = 64, threads: int = 128):
    head = HEAD.format(rows=rows, columns=columns, threads=threads)
    return parse_program(f"{head}{body}\n  }}\n}}\n")


def laid(body: str, target: Target = HOPPER, **sizes: int):
    before = program(body, **sizes)
    after = choose_copies(infer_layouts(choose_gemms(before, target), target), target)
    return before, after


def layouts(after) -> dict[str, Fragment]:
    ops = walk_ops(after.kernels[0])
    return {op.buffer.name: op.buffer.layout for op in ops if isinstance(op, Alloc)}


def conversions(after) -> int:
    return sum(isinstance(op, Relayout) for op in walk_ops(after.kernels[0]))


def same_meaning(before, after, rows: int = 32, columns: int = 64) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(np.float32)
    results = []
    for p in (before, after):
        y = np.zeros_like(x)
        machine.run(p, {"X": x, "Y": y}, sanitize=p is before)
        results.append(y)
    np.testing.assert_array_equal(*results)


ROWS = """
    alloc x: float32[32, 64] fragment
    alloc top: float32[32] fragment
    copy X[0:+32, 0:+64] -> x
    reduce max x -> top dim 1
    map (i, j) in (32, 64) { x[i, j] = x[i, j] - top[i] }
    copy x -> Y[0:+32, 0:+64]
"""


def test_rows_are_coalesced_and_reduced_within_warps():
    before, after = laid(ROWS)
    found = layouts(after)
    x = found["x"]
    assert x.same(repeat(1, 4) * spatial(32, 4) * repeat(1, 4))
    assert found["top"].same(row_of(x, 1))
    assert conversions(after) == 0
    same_meaning(before, after)


def test_a_row_longer_than_a_warp_takes_all_threads():
    body = ROWS.replace("32, 64", "1, 4096").replace("+32", "+1").replace("+64", "+4096")
    _, after = laid(body.replace("[32]", "[1]"), rows=1, columns=4096)
    assert layouts(after)["x"].same(repeat(1, 8) * spatial(1, 128) * repeat(1, 4))


@pytest.mark.parametrize("columns, vector", [(64, 4), (62, 2), (61, 1)])
def test_vectors_are_as_wide_as_rows_allow(columns: int, vector: int):
    body = ROWS.replace("64", str(columns))
    _, after = laid(body, columns=columns)
    x = layouts(after)["x"]
    run = x.table()[0]
    assert np.array_equal(run[:vector] - run[0], np.arange(vector))
    assert x.is_complete


@pytest.mark.parametrize("threads", [32, 96, 128, 256])
@pytest.mark.parametrize("shape", [(1, 7), (3, 100), (32, 64), (5, 1), (1, 1)])
def test_every_tile_is_held_whole(threads: int, shape: tuple[int, int]):
    rows, columns = shape
    body = ROWS.replace("32, 64", f"{rows}, {columns}").replace("[32]", f"[{rows}]")
    body = body.replace("+32", f"+{rows}").replace("+64", f"+{columns}")
    before, after = laid(body, rows=rows, columns=columns, threads=threads)
    for buffer in ("x", "top"):
        assert layouts(after)[buffer].is_complete
    same_meaning(before, after, rows, columns)


def test_products_prescribe_and_what_follows_adapts():
    body = """
    alloc a: float16[64, 64] shared
    alloc b_: float16[64, 96] shared
    alloc c: float32[64, 96] fragment
    alloc s: float32[64] fragment
    alloc p: float16[64, 96] fragment
    gemm a, b_ -> c clear=true
    map (i, j) in (64, 96) { c[i, j] = c[i, j] * 2.0 }
    reduce sum c -> s dim 1
    map (i, j_1) in (64, 96) { p[i, j_1] = float16(c[i, j_1] / s[i]) }
"""
    _, after = laid(body)
    found, want = layouts(after), wgmma_accumulator(64, 96)
    assert found["c"] == want and found["p"].same(want) and found["s"].same(row_of(want, 1))
    assert [op.layout for op in walk_ops(after.kernels[0]) if isinstance(op, Map)] == [want, want]
    assert conversions(after) == 0


def test_two_products_in_a_row_need_no_conversion_on_warps_either():
    body = """
    alloc q: float16[64, 64] shared
    alloc k: float16[64, 64] shared
    alloc s: float32[64, 64] fragment
    alloc p: float16[64, 64] fragment
    alloc o: float32[64, 64] fragment
    gemm q, k -> s clear=true transpose_b=true
    copy s -> p
    gemm p, k -> o clear=true
"""
    for target in (HOPPER, AMPERE):
        _, after = laid(body, target)
        assert conversions(after) == 0
    atoms = {op.atom for op in walk_ops(after.kernels[0]) if isinstance(op, (Gemm, Copy))}
    assert atoms == {"mma", "ldmatrix", "threads"}


READS = {
    "a transpose": ("y[i, j] = x[j, i]", 1),
    "a turned row": ("y[i, j] = x[i, (j + 1) % 32]", 0),
    "several at once": ("y[i, j] = x[i, j] + x[31 - i, j] + x[j, i]", 1),
    "a neighbour": ("y[i, j] = x[i, j] - (x[i - 1, j] if i > 0 else 0.0)", 0),
    "the diagonal": ("y[i, j] = x[i, i]", 0),
}


@pytest.mark.parametrize("text", READS)
def test_any_index_can_be_read(text: str):
    store, _ = READS[text]
    body = f"""
    alloc x: float32[32, 32] fragment
    alloc y: float32[32, 32] fragment
    copy X[0:+32, 0:+32] -> x
    map (i, j) in (32, 32) {{ {store} }}
    copy y -> Y[0:+32, 0:+32]
"""
    before, after = laid(body, columns=32)
    same_meaning(before, after, columns=32)
    verify(after, Stage.LAID_OUT)


def test_an_index_known_at_run_time_reads_a_shared_copy():
    body = """
    alloc x: float32[32, 64] fragment
    alloc y: float32[32, 64] fragment
    copy X[0:+32, 0:+64] -> x
    for k in 0 .. 3 {
      map (i, j) in (32, 64) { y[i, j] = x[i, (j + k) % 64] }
    }
    copy y -> Y[0:+32, 0:+64]
"""
    before, after = laid(body)
    assert "x_shared" in layouts(after)
    same_meaning(before, after)


WRITES = {
    "a turned row": "map (i, j) in (32, 64) { x[i, (j + 3) % 64] = x[i, (j + 3) % 64] + 1.0 }",
    "a loop inside": "map i in 32 { for k in 0 .. 64 { x[i, k] = x[i, k] * 2.0 } }",
    "both ways": "map (i, j) in (32, 64) { x[31 - i, j] = X[i, j] - x[31 - i, j] }",
    "known at run time": "for k in 0 .. 3 { map i in 32 { x[i, k + 7] = X[i, k] } }",
    "half of it": "map (i, j) in (32, 32) { x[i, 2 * j] = 5.0 }",
}


@pytest.mark.parametrize("text", WRITES)
def test_any_index_can_be_written(text: str):
    body = f"""
    alloc x: float32[32, 64] fragment
    copy X[0:+32, 0:+64] -> x
    {WRITES[text]}
    copy x -> Y[0:+32, 0:+64]
"""
    before, after = laid(body)
    same_meaning(before, after)
    code = lower(program(body), HOPPER).result
    x = np.random.default_rng(1).integers(-9, 9, (32, 64)).astype(np.float32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    machine.run(before, {"X": x, "Y": want})
    machine.run_threads(code, {"X": x, "Y": got})
    np.testing.assert_array_equal(got, want)


PICKS = {
    "a column": "if j == 3 { r[i] = x[i, j] }",
    "one for each row": "if j == i { r[i] = x[i, j] }",
    "by a name": "let c = j * 2\n if c == 4 { r[i] = x[i, j] }",
    "in a loop": "for k in 0 .. 2 { if j == 5 { r[i] = r[i] + x[i, j] } }",
}


@pytest.mark.parametrize("text", PICKS)
def test_all_who_hold_an_element_get_what_one_iteration_writes(text: str):
    """Threads that hold a row's number each run some of the row's columns; one of them writes."""
    body = f"""
    alloc x: float32[32, 64] fragment
    alloc r: float32[32] fragment
    copy X[0:+32, 0:+64] -> x
    fill r = 0.0
    map (i, j) in (32, 64) {{ {PICKS[text]} }}
    map (i, j) in (32, 64) {{ x[i, j] = x[i, j] + r[i] }}
    copy x -> Y[0:+32, 0:+64]
"""
    code = lower(program(body), HOPPER).result
    x = np.random.default_rng(1).integers(1, 9, (32, 64)).astype(np.float32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    machine.run(program(body), {"X": x, "Y": want})
    machine.run_threads(code, {"X": x, "Y": got})
    np.testing.assert_array_equal(got, want)


def test_a_view_is_seen_in_the_same_registers():
    body = """
    alloc x: float32[3, 33] fragment
    view v: float32[99] fragment of x
    copy X[0:+3, 0:+33] -> x
    map i in 99 { v[i] = v[i] + 1.0 }
    copy x -> Y[0:+3, 0:+33]
"""
    before, after = laid(body, rows=3, columns=33)
    same_meaning(before, after, 3, 33)
    x, v = (
        layouts(after)["x"],
        next(op.buffer for op in walk_ops(after.kernels[0]) if isinstance(op, View)),
    )
    assert x.reshape(99) == v.layout


def test_a_product_whose_tile_nothing_divides_is_done_by_threads():
    body = """
    alloc a: float32[5, 12] shared
    alloc b_: float32[12, 9] shared
    alloc c: float32[5, 9] fragment
    copy X[0:+5, 0:+12] -> a
    copy X[0:+12, 0:+9] -> b_
    gemm a, b_ -> c clear=true
    copy c -> Y[0:+5, 0:+9]
"""
    before, after = laid(body, threads=32)
    assert [op.atom for op in walk_ops(after.kernels[0]) if isinstance(op, Gemm)] == ["fma"]
    same_meaning(before, after)


@pytest.mark.parametrize("m, n, k", [(1, 9, 12), (5, 1, 12), (5, 9, 1), (1, 1, 1)])
def test_a_product_with_extents_of_one(m: int, n: int, k: int):
    body = f"""
    alloc a: float32[{m}, {k}] shared
    alloc b_: float32[2, {k}, {n}] shared
    alloc c: float32[{m}, {n}] fragment
    copy X[0:+{m}, 0:+{k}] -> a
    copy X[0:+{k}, 0:+{n}] -> b_[1, :, :]
    gemm a, b_[1, :, :] -> c clear=true
    copy c -> Y[0:+{m}, 0:+{n}]
"""
    code = lower(program(body, threads=32), HOPPER).result
    x = np.random.default_rng(1).integers(-9, 9, (32, 64)).astype(np.float32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    machine.run(program(body, threads=32), {"X": x, "Y": want})
    machine.run_threads(code, {"X": x, "Y": got})
    np.testing.assert_array_equal(got, want)


def test_reductions_along_both_dimensions_of_one_tile():
    body = """
    alloc x: float32[32, 64] fragment
    alloc r: float32[32] fragment
    alloc c: float32[64] fragment
    copy X[0:+32, 0:+64] -> x
    reduce sum x -> r dim 1
    reduce sum x -> c dim 0
    map (i, j) in (32, 64) { x[i, j] = x[i, j] + r[i] * c[j] }
    copy x -> Y[0:+32, 0:+64]
"""
    before, after = laid(body)
    same_meaning(before, after)
    assert conversions(after) == 0


def test_an_annotation_pins():
    pinned = spatial(32, 4) * repeat(1, 16)
    body = ROWS.replace("copy X", f'hint layout buffer=x layout="{pinned}"\n    copy X', 1)
    _, after = laid(body)
    assert layouts(after)["x"] == pinned


def test_a_pinned_accumulator_is_converted_around_its_product():
    pinned = spatial(64, 2) * repeat(1, 32)
    body = f"""
    alloc a: float16[64, 64] shared
    alloc b_: float16[64, 64] shared
    alloc c: float32[64, 64] fragment
    hint layout buffer=c layout="{pinned!r}"
    map (i, j) in (64, 64) {{
      a[i, j] = float16(X[i & 31, j])
      b_[i, j] = float16(X[j & 31, i])
    }}
    fill c = 0.0
    for k in 0 .. 3 {{ gemm a, b_ -> c }}
    copy c[0:+32, :] -> Y[0:+32, 0:+64]
"""
    _, after = laid(body)
    assert layouts(after)["c"] == pinned and conversions(after) == 2
    x = np.random.default_rng(1).integers(-2, 3, (32, 64)).astype(np.float32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    machine.run(program(body), {"X": x, "Y": want})
    machine.run_threads(lower(program(body), HOPPER).result, {"X": x, "Y": got})
    np.testing.assert_array_equal(got, want)


def test_placed_statements_run_on_all_threads_in_order():
    body = """
    alloc s: float32[32, 64] shared
    hint ws detail=(0)
    copy X[0:+32, 0:+64] -> s
    hint ws
    hint ws detail=(1)
    map (i, j) in (32, 64) { Y[i, j] = s[31 - i, j] }
    hint ws
"""
    x = np.random.default_rng(1).integers(-9, 9, (32, 64)).astype(np.float32)
    got = np.zeros_like(x)
    code = lower(program(body, threads=256), HOPPER).result
    machine.run_threads(code, {"X": x, "Y": got})
    np.testing.assert_array_equal(got, x[::-1])


@pytest.mark.parametrize("seed", range(5))
def test_the_answer_does_not_depend_on_the_order_of_visiting(seed: int):
    body = """
    alloc x: float32[32, 64] fragment
    alloc t: float32[64, 32] fragment
    alloc r: float32[32] fragment
    alloc s: float32[32] fragment
    copy X[0:+32, 0:+64] -> x
    map (i, j) in (64, 32) { t[i, j] = x[j, i] }
    reduce max x -> r dim 1
    reduce max t -> s dim 0
    map (i_1, j_1) in (32, 64) { x[i_1, j_1] = x[i_1, j_1] - r[i_1] * s[i_1] }
"""
    kernel = program(body).kernels[0]
    first, other = (collect(kernel, (), HOPPER) for _ in range(2))
    random.Random(seed).shuffle(other.ops)
    solve(first)
    solve(other)
    assert first.known == other.known


@pytest.mark.parametrize("shift, vector", [("0", 4), ("1", 1), ("2", 2), ("tx", 1), ("4", 4)])
def test_neighbouring_threads_where_vectors_do_not_begin_on_16_bytes(shift, vector):
    body = f"""    alloc x: float32[32, 64] fragment
    map (i, j) in (32, 64) {{ x[i, j] = X[i, j + {shift}] }}"""
    _, after = laid(body, columns=68)
    run = layouts(after)["x"].table()[0]  # of the first thread
    assert np.array_equal(run[:vector] - run[0], np.arange(vector))
    assert run[vector] - run[0] > vector
