"""Products into tiles that were just cleared: they begin anew, unless the zeros would be missed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.overlap import ROLES, numbers, program, run
from tests.passes.scaled_products import arguments, results, said, scaled_product, stage
from tilewright.ir.expr import TRUE
from tilewright.ir.op import Fill, For, Gemm, Hint, If, Map, walk_ops
from tilewright.ir.rewrite import map_kernels
from tilewright.passes.canonicalize.fold_accumulator_init import fold_accumulator_init
from tilewright.targets.cuda.backend import lower

TEXT = """
program p {{
  param A: float16[64, 256] global
  param B: float16[256, 64] global
  param C: float32[64, 64] global
  param steps: int32
  kernel k grid bx in 1 threads tx in 128 {{
    alloc a: float16[64, 64] shared
    alloc b: float16[64, 64] shared
    alloc t: float32[64, 64] fragment
    alloc c: float32[64, 64] fragment
    fill c = 0.0
    {before}
    for i in 0 .. steps kind=pipelined stages=2 {{
      copy A[:, i * 64:+64] -> a
      copy B[i * 64:+64, :] -> b
      {ahead}
      gemm a, b -> t
      map (x, y) in (64, 64) {{ c[x, y] = c[x, y] * 2.0 + t[x, y] }}
      {behind}
    }}
    {after}
    copy c -> C
  }}
}}
"""
CLEAR, ADD = "fill t = 0.0", "map (x, y) in (64, 64) { c[x, y] = c[x, y] + t[x, y] }"


def made(before="", ahead="", behind="", after=""):
    return program(TEXT.format(before=before, ahead=ahead, behind=behind, after=after))


@pytest.mark.parametrize(
    "more, anew",
    [
        ({"ahead": CLEAR}, True),
        ({"before": CLEAR, "behind": CLEAR}, True),
        ({"before": CLEAR}, False),  # it goes on adding
        ({"before": CLEAR, "behind": CLEAR, "after": ADD}, False),  # the zeros are needed
        ({"before": "fill t = 1.0", "behind": CLEAR}, False),
        ({"ahead": "fill t = 1.0"}, False),
        ({"ahead": f"{CLEAR}\n{ADD}"}, False),
        ({"before": CLEAR, "behind": f"if i < 2 {{ {CLEAR} }}"}, False),
        ({"before": CLEAR, "ahead": ADD, "behind": CLEAR}, False),
        ({"ahead": f"{CLEAR}\nif i == 2 {{ break }}", "after": ADD}, False),
    ],
)
def test_which_begin_anew(more, anew):
    given = made(**more)
    found = map_kernels(given, lambda kernel: fold_accumulator_init(kernel, ROLES))
    ops = list(walk_ops(found.kernels[0]))
    assert [op.clear is TRUE for op in ops if isinstance(op, Gemm)] == [anew]
    fills = sum(isinstance(op, Fill) for op in ops)
    assert fills == (1 if anew else sum(isinstance(op, Fill) for op in walk_ops(given.kernels[0])))
    for steps in (0, 1, 4):
        args = {"A": numbers(64, 256), "B": numbers(256, 64, seed=1)}
        args |= {"C": np.zeros((64, 64), np.float32), "steps": steps}
        assert run(found, args)["C"].tobytes() == run(given, args)["C"].tobytes()


MASK = "map (x, y) in (64, 64) {{ t[x, y] = {} }}"
NEST = "map (x, y) in (64, 64) {{ {} }}"


@pytest.mark.parametrize(
    "ahead, anew",
    [
        (MASK.format("0.0 if x + i * 16 >= y else -inf"), True),
        (MASK.format("0.0 if x >= y else (inf if y == 63 else -inf)"), True),
        (MASK.format("0.0"), True),
        ("map (x, y) in (64, 64) { let d = x - y\n t[x, y] = 0.0 if d > i else -inf }", True),
        (MASK.format("0.0 if A[x, i] > A[y, i] else -inf"), True),
        (MASK.format("0.0 if x >= y else -1e9"), True),
        (MASK.format("float32(A[x, i]) if x >= y else 0.0"), False),
        (NEST.format("if x >= y { t[x, y] = 0.0 } else { t[x, y] = -inf }"), True),
        (NEST.format("if x >= y { t[x, y] = 0.0 } else { t[y, x] = -inf }"), False),
        (NEST.format("if x >= y { t[x, y] = 0.0 }"), False),
        (MASK.format("0.0 if t[x, y] > 1.0 else -inf"), False),
        ("map (x, y) in (64, 64) { t[y, x] = 0.0 if x >= y else -inf }", False),
        ("map (x, y) in (64, 32) { t[x, y] = 0.0 if x >= y else -inf }", False),
        (MASK.format("0.0 if C[x, y] > 0.0 else -inf") + "\nfill C = 1.0", False),
        (MASK.format("0.0 if x >= y else -inf") + f"\n{ADD}", False),
        (MASK.format("0.0 if x >= y else -inf") + "\nif i == 2 { break }", False),
    ],
)
def test_masks_are_added_behind(ahead, anew):
    given = made(before=CLEAR, ahead=ahead)
    found = map_kernels(given, lambda kernel: fold_accumulator_init(kernel, ROLES))
    body = next(op for op in walk_ops(found.kernels[0]) if isinstance(op, For)).body
    at = next(k for k, op in enumerate(body) if isinstance(op, Gemm))
    assert (body[at].clear is TRUE) is anew
    if anew:
        assert not isinstance(body[at - 1], Map)
    for steps in (0, 1, 4):
        args = {"A": numbers(64, 256), "B": numbers(256, 64, seed=1)}
        args |= {"C": numbers(64, 64, seed=2).astype(np.float32), "steps": steps}
        assert run(found, args)["C"].tobytes() == run(given, args)["C"].tobytes()


@pytest.mark.parametrize("dtype, anew", [("float32", True), ("float16", False)])
@pytest.mark.parametrize("hidden", ["-1000.0", "-inf"])
def test_numbers_are_added_where_sums_are_wide(dtype, anew, hidden):
    """In a narrow type -inf and a sum of products that is too large for it would be NaN."""
    text = TEXT.replace("alloc t: float32", f"alloc t: {dtype}")
    text = text.replace("2.0 + t[x, y]", "2.0 + float32(t[x, y])")
    ahead = MASK.format(f"0.0 if x >= y else {hidden}")
    given = program(text.format(before=CLEAR, ahead=ahead, behind="", after=""))
    found = map_kernels(given, lambda kernel: fold_accumulator_init(kernel, ROLES))
    products = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Gemm)]
    assert [op.clear is TRUE for op in products] == [anew]
    args = {"A": np.full((64, 256), 64.0, np.float16), "B": np.full((256, 64), 32.0, np.float16)}
    args |= {"C": np.zeros((64, 64), np.float32), "steps": 1}
    assert run(found, args)["C"].tobytes() == run(given, args)["C"].tobytes()


@pytest.mark.parametrize(
    "between, behind",
    [
        ("", 2),
        ("copy B[0:+64, :] -> b", 2),
        ("fill C = 1.0", 1),  # the mask reads it
        (ADD, 1),
        ("if i == 2 { break }", 1),
    ],
)
def test_a_mask_is_added_behind_all_products_of_its_tile(between, behind):
    """Scores that are the sum of two products (with and without positions) are masked once, and
    nobody waits between them."""
    mask = MASK.format("0.0 if x >= y and C[x, y] < 5.0 else -inf")
    given = made(before=CLEAR, ahead=f"{mask}\ngemm a, b -> t\n{between}")
    found = map_kernels(given, lambda kernel: fold_accumulator_init(kernel, ROLES))
    body = next(op for op in walk_ops(found.kernels[0]) if isinstance(op, For)).body
    first = next(k for k, op in enumerate(body) if isinstance(op, Gemm))
    assert body[first].clear is TRUE
    at = next(
        k for k, op in enumerate(body) if isinstance(op, Map) and op.body[-1].buffer.name == "t"
    )
    assert sum(isinstance(op, Gemm) for op in body[:at]) == behind
    for steps in (0, 1, 4):
        args = {"A": numbers(64, 256), "B": numbers(256, 64, seed=1)}
        args |= {"C": numbers(64, 64, seed=2).astype(np.float32), "steps": steps}
        assert run(found, args)["C"].tobytes() == run(given, args)["C"].tobytes()


def test_an_added_mask_is_asked_for_where_it_matters():
    """Causal attention that writes its mask first costs what one costs that applies it last."""
    given = made(ahead=MASK.format("0.0 if x + 192 >= i * 64 + y else -inf"))
    found = stage(lower(given, ROLES), "unswitch_guards")
    masks = [
        op
        for op in walk_ops(found.kernels[0])
        if isinstance(op, If)
        and any(isinstance(each, Hint) and each.name == "rare" for each in op.then)
    ]
    assert [op.orelse for op in masks] == [()]


@pytest.mark.parametrize("between, anew", [("", True), ("copy t -> D[o, :, :]", False)])
def test_a_loop_around_may_see_the_zeros(between, anew):
    given = program(f"""
    program p {{
      param A: float16[64, 256] global
      param B: float16[256, 64] global
      param C: float32[64, 64] global
      param D: float32[3, 64, 64] global
      kernel k grid bx in 1 threads tx in 128 {{
        alloc a: float16[64, 64] shared
        alloc b: float16[64, 64] shared
        alloc t: float32[64, 64] fragment
        alloc c: float32[64, 64] fragment
        fill c = 0.0
        fill t = 0.0
        for o in 0 .. 3 {{
          {between}
          for i in 0 .. 4 kind=pipelined stages=2 {{
            copy A[:, i * 64:+64] -> a
            copy B[i * 64:+64, :] -> b
            gemm a, b -> t
            map (x, y) in (64, 64) {{ c[x, y] = c[x, y] * 2.0 + t[x, y] }}
            fill t = 0.0
          }}
        }}
        copy c -> C
      }}
    }}
    """)
    found = map_kernels(given, lambda kernel: fold_accumulator_init(kernel, ROLES))
    products = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Gemm)]
    assert [op.clear is TRUE for op in products] == [anew]
    args = {"A": numbers(64, 256), "B": numbers(256, 64, seed=1)}
    args |= {"C": np.zeros((64, 64), np.float32), "D": np.zeros((3, 64, 64), np.float32)}
    got, want = run(found, args), run(given, args)
    assert all(got[name].tobytes() == want[name].tobytes() for name in "CD")


@pytest.mark.parametrize("way", ["cleared", "cleared behind"])
def test_then_it_is_like_any_other(way):
    given = scaled_product.prim_func(4, way).program
    trace = lower(given, ROLES.choosing(skew=True))
    assert "starts from zero" in said(trace) and "skewed by" in said(trace)
    for count in (0, 1, 4):
        args = arguments(given, count)
        want = results(given, args)
        np.testing.assert_array_equal(results(stage(trace), args, explicit=True), want)
