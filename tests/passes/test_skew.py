"""Statements of two iterations side by side: which, in what order, the same numbers; when not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.overlap import (
    ROLES,
    check_same,
    numbers,
    overlapped,
    program,
    unnoticed,
    with_atom,
)
from tilewright.ir.analysis.aliases import Aliases
from tilewright.ir.op import For, Gemm, walk_ops
from tilewright.ir.rewrite import map_kernels, map_ops
from tilewright.ir.text import print_op
from tilewright.passes.canonicalize.rules import Facts
from tilewright.passes.overlap.pipeline_loops import pipeline_loops
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import Skew
from tilewright.passes.overlap.skew import _Statements, find_skew
from tilewright.passes.reasons import listening
from tilewright.passes.run import Pass, run_pipeline
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.attention.flash import flash_attention
from zoo.gemm.gemm import gemm_relu
from zoo.mla.decode import mla_decode

SKEWED, PLAIN = (ROLES.choosing(skew=told) for told in ("on", "off"))
# scores, a function of them, values: what attention is made of, small
CHAIN = """
program p {{
  param Q: float16[64, 64] global
  param K: float16[256, 64] global
  param V: float16[256, 64] global
  param O: float16[{tiles}, 64, 64] global
  param first: int32
  param steps: int32
  kernel k grid bx in 1 threads tx in 128 {{
    alloc q: float16[64, 64] shared
    alloc k: float16[32, 64] shared
    alloc v: float16[32, 64] shared
    alloc out: float16[64, 64] shared
    alloc s: float32[64, 32] fragment
    alloc p: float16[64, 32] fragment
    alloc acc: float32[64, 64] fragment
    copy Q -> q
    for t in 0 .. {tiles} kind=persistent {{
      fill acc = 0.0
      for i in first .. steps step={step} kind=pipelined stages={stages} {{
        let row = i * 32
        copy K[row:+32, :] -> k
        copy V[row:+32, :] -> v
        gemm q, k -> s clear=true transpose_b=true
        {between}
        copy s -> p
        gemm p, {values} -> acc
        {behind}
      }}
      copy acc -> out
      copy out -> O[t, :, :]
    }}
  }}
}}
"""
MAPPED = "map (a, b) in (64, 32) { s[a, b] = max(s[a, b], 0.0) + float32(i) }"
SCALED = "map (a, b) in (64, 64) { acc[a, b] = acc[a, b] * 0.5 }"


def chain(stages=2, step=1, tiles=1, values="v", between=MAPPED, behind=""):
    return program(CHAIN.format(stages=stages, step=step, tiles=tiles, values=values,
                                between=between, behind=behind))  # fmt: skip


def args(first, steps, tiles=1):
    return {
        "Q": numbers(64, 64), "K": numbers(256, 64, seed=1), "V": numbers(256, 64, seed=2),
        "O": np.zeros((tiles, 64, 64), np.float16), "first": first, "steps": steps,
    }  # fmt: skip


def loop_text(found):
    """The heads of the statements of the innermost loop with products."""
    (loop,) = [op for op in walk_ops(found.kernels[0]) if hasattr(op, "body") and any(
        isinstance(each, Gemm) for each in op.body) and type(op).__name__ == "For"]  # fmt: skip
    return [print_op(op).strip().split("\n")[0] for op in loop.body]


def test_the_late_product_stands_beside_the_next_first_one():
    text = loop_text(overlapped(chain(), SKEWED))
    kinds = [line.split(" layout")[0] for line in text]
    assert [k for k in kinds if k.startswith(("gemm", "commit", "wait_group", "map", "copy"))] == [
        "gemm q, k[i_slot_3, :, :] -> s clear=true transpose_b=true atom=wgmma",
        "commit wgmma",
        "gemm p, v[i_done, :, :] -> acc atom=wgmma",
        "commit wgmma",
        "wait_group wgmma pending 1",
        "map (a, b) in (64, 32) {",
        "wait_group wgmma pending 0",
        "copy s -> p atom=threads",
    ]


@pytest.mark.parametrize(("first", "steps"), [(0, 0), (0, 1), (0, 2), (0, 5), (2, 7), (5, 3)])
@pytest.mark.parametrize(
    "more",
    [{}, {"stages": 1}, {"stages": 3, "step": 2}, {"tiles": 3}, {"between": SCALED, "tiles": 2},
     {"values": "k"}, {"values": "k", "stages": 1}, {"values": "k", "stages": 4, "tiles": 2},
     {"behind": SCALED}],
    ids=lambda more: " ".join(f"{k}={v[:6] if isinstance(v, str) else v}" for k, v in more.items()),
)  # fmt: skip
def test_the_same_numbers(first, steps, more):
    given_program = chain(**more)
    found = check_same(given_program, args(first, steps, more.get("tiles", 1)), SKEWED)
    one_slot = more == {"values": "k", "stages": 1}
    gemms = sum(isinstance(op, Gemm) for op in walk_ops(found.kernels[0]))
    assert gemms == (2 if one_slot else 4)


def test_nothing_is_dispensable():
    given_program = chain(tiles=2)
    found = overlapped(given_program, SKEWED)
    assert unnoticed(given_program, found, args(0, 5, 2)) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"between": "let z = K[i, 0]\n" + MAPPED}, "a scalar in the loop is read from memory"),
        (
            {"between": "alloc w: float32[64, 32] fragment\n" + MAPPED},
            "tiles are allocated in the loop",
        ),
        ({}, None),
        ({"values": "k", "stages": 1}, "k has one slot for two iterations"),
    ],
)
def test_when_not(more, why):
    step = Pass(pipeline_loops, "")
    trace = run_pipeline(with_atom(chain(**more), "wgmma"), SKEWED, [step])
    said = " ".join(trace.reasons.values())
    assert (f"no skew: {why}" in said) if why else ("skewed by one iteration:" in said)


def test_one_product_has_nobody_beside_it():
    given_program = gemm_relu.prim_func(256, 256, 256, threads=256).program
    (loop,) = Ahead(Facts(given_program.kernels[0], ROLES, given_program)).plans.values()
    assert find_skew(given_program.kernels[0], loop.loop, []) == (
        "it has fewer than two gemms on the tensor core"
    )


def test_switched_off():
    args_, given_program = args(0, 5), chain()
    found = check_same(given_program, args_, PLAIN)
    assert sum(isinstance(op, Gemm) for op in walk_ops(found.kernels[0])) == 2


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_skewed_and_fits(causal):
    made = flash_attention.prim_func(
        1, 2, 2, 512, 512, 128, causal, block_M=128, block_N=128, threads=256, dtype="bfloat16"
    )
    plain = lower(made.program, ROLES)
    assert any("other warpgroups already hide the latency" in why for why in plain.reasons.values())
    kernel = CudaKernel(made.program, SKEWED)
    assert kernel.serialized is None
    assert any("skewed by one iteration:" in why for why in kernel.trace.reasons.values())
    assert all(r.spill_bytes == 0 and r.registers <= 168 for r in kernel.resources.values())


# ── orders keep dependences ──────────────────────────────────────────────────────────────────

TILES = ("a", "b", "c", "d")
KINDS = {
    "gemm": "gemm {0}, sh -> {1} atom=wgmma",
    "map": "map (i, j) in (64, 64) {{ {1}[i, j] = {0}[i, j] }}",
    "fill": "fill {1} = 1.0",
}


def body_of(statements):
    text = "\n".join(KINDS[kind].format(x, y) for kind, x, y in statements)
    allocs = "\n".join(f"alloc {t}: float32[64, 64] fragment" for t in TILES)
    made = program(
        "program p { param N: int32\nkernel k grid bx in 1 threads tx in 128 {\n"
        f"alloc sh: float32[64, 64] shared\n{allocs}\nfor k in 0 .. N {{\n{text}\n}}\n}}\n}}"
    )
    return next(op for op in made.kernels[0].body if type(op).__name__ == "For").body


pairs = st.sampled_from([(x, y) for x, y in product(TILES, TILES) if x != y])
statements = st.lists(
    st.tuples(st.sampled_from(list(KINDS)), pairs).map(lambda s: (s[0], *s[1])),
    min_size=2, max_size=7,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(statements, st.integers(0, 6))
def test_every_order_keeps_every_dependence(chosen, which):
    body = _Statements(body_of(chosen), range(len(chosen)), Aliases())
    product_at = which % len(chosen)
    late = body.following(product_at)
    order = body.ordered(late)
    assert order is not None and sorted(order) == body.all
    turns = 3
    run_at = {}
    for time in range(turns + 1):
        for k in order:
            turn = time - (k in late)
            if 0 <= turn < turns:
                run_at[turn, k] = len(run_at)
    for (t, a), (u, b) in product(run_at, run_at):
        if (t, a) < (u, b) and (a == b or b in body.conflicts[a]):
            assert run_at[t, a] < run_at[u, b]


def test_the_model_prefers_overlap():
    made = flash_attention.prim_func(
        1, 1, 1, 512, 512, 128, block_M=64, block_N=128, threads=128, dtype="bfloat16"
    ).program
    kernel = with_atom(made, "wgmma").kernels[0]
    (plan,) = Ahead(Facts(kernel, ROLES, made)).plans.values()
    found = find_skew(kernel, plan.loop, list(plan.fills.values()))
    assert isinstance(found, Skew) and found.interval < 0.8 * found.plain
    assert [type(plan.loop.body[k]).__name__ for k in found.late] == ["Gemm"]


def test_slots_that_are_held_longer_come_round_slower():
    """MLA's keys are its values too, and there is room for two slots: late products would hold
    them for most of two iterations. On an H200 it loses 9 % by it."""
    made = with_atom(mla_decode.prim_func(2, 64, 512, dtype="bfloat16").program, "wgmma")
    (plan,) = Ahead(Facts(made.kernels[0], ROLES, made)).plans.values()
    fills, alone = list(plan.fills.values()), replace(made.kernels[0], threads=(128,))
    why = find_skew(alone, plan.loop, fills)
    assert isinstance(why, str) and "no order of its statements takes less" in why
    deep = find_skew(alone, replace(plan.loop, stages=4), fills)
    assert isinstance(deep, Skew) or "registers" in deep
    assert isinstance(find_skew(made.kernels[0], plan.loop, fills, asked=True), Skew)


def pinned(order, stage):
    """The chain with its schedule pinned: two copies, S = Q·K, P = f(S) twice, O += P·V."""
    found = chain()
    rule = lambda op: (
        replace(op, order=order, stage=stage)
        if isinstance(op, For) and op.kind == "pipelined"
        else None
    )
    return map_kernels(found, lambda kernel: map_ops(kernel, rule))


def test_order_and_stage_pin_it():
    found = overlapped(pinned((0, 1, 2, 4, 5, 3), (0, 0, 0, 0, 0, 1)), ROLES)
    assert loop_text(found) == loop_text(overlapped(chain(), SKEWED))
    check_same(pinned((0, 1, 3, 4, 5, 2), (-1, -1, 0, 0, 0, 1)), args(0, 5), ROLES)


@pytest.mark.parametrize(
    "order, stage, why",
    [
        ((0, 1, 2), (0, 0, 0), "order has 3 entries for 6 statements"),
        ((0, 1, 2, 3, 4, 5), (0, 0, 0, 1, 2, 3), "are more than two that follow each other"),
        ((0, 1, 2, 3, 4, 5), (0, 0, 1, 1, 1, 1), "put it in one stage"),
    ],
)
def test_pins_that_say_nothing_are_explained(order, stage, why):
    with listening() as reasons:
        check_same(pinned(order, stage), args(0, 5), ROLES)
    assert any(why in text for text in reasons.values())


def test_an_order_that_changes_the_meaning_is_refused():
    with pytest.raises(CompileError, match="change what the loop computes") as caught:
        overlapped(pinned((0, 1, 4, 3, 5, 2), (0, 0, 0, 0, 0, 1)), ROLES)
    assert caught.value.loc is not None and "the compiler finds an order" in str(caught.value)
