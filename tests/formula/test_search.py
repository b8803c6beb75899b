"""Kernels are chosen by price: what the search finds, and what it leaves as rules have it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tests.formula.cases import CASES
from tilewright.formula.explained import explained
from tilewright.formula.search.decisions import Decision, alternatives
from tilewright.formula.search.prices import least, rates_of
from tilewright.formula.tiles.program import program_of
from tilewright.ir.target import Target


def low_rank(x, a, b):
    return (x @ a) @ b


def low_rank_first(x, a, b):
    return x @ (a @ b)


def normalized(x, w):
    r = tm.mean(tm.astype(x, tm.float32) ** 2, axis=-1, keepdims=True)
    return (x / (r + 1e-6) ** 0.5) @ w


def divided(p, v):
    return (p / tm.sum(p, axis=-1, keepdims=True)) @ v


def gated(x, gate, up, down):
    return (tm.silu(x @ gate.T) * (x @ up.T)) @ down.T


def decoding(q, k, v):
    s = tm.einsum("bhd,bnd->bhn", q, k) * 0.25
    return tm.einsum("bhn,bnd->bhd", tm.softmax(s, axis=-1), v)


def attention(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    return tm.softmax(s, axis=-1) @ v


def two_layers(x, a, b):
    return tm.relu(x @ a) @ b


@cache
def found(function, *shapes, dtype="float16"):
    """What the search finds for arrays of these shapes, without their data."""
    arrays = [np.broadcast_to(np.zeros((), dtype), shape) for shape in shapes]
    return tw.math(function)._of(tuple(arrays), {})[0].found


N, R = 4096, 16


def taken(f):
    return {d.kind for d in f.decided.decisions}


def kernels(f):
    return [{a.name for a in (*k.folds, *k.outputs)} for k in f.program.kernels]


def test_the_order_of_products_follows_from_sizes():
    for function, kinds in ((low_rank, set()), (low_rank_first, {"reorder products"})):
        assert taken(found(function, (N, N), (N, R), (R, N))) - {"store operand"} == kinds
    narrow = found(low_rank_first, (N, R), (R, N), (N, R))  # the other way would be N x N
    assert "reorder products" not in taken(narrow)


@pytest.mark.parametrize("function", [normalized, divided])
def test_what_scales_rows_stands_behind_a_product(function):
    f = found(function, (N, N), (N, N))
    assert not f.decided.decisions
    assert "[:, None]" in f.program.text.splitlines()[-2]
    beside = next(c for c in f.considered if c.decision.kind == "store operand")
    assert beside.seconds > f.seconds


def test_the_gated_pair_is_one_kernel():
    f = found(gated, (N, N), (2 * N, N), (2 * N, N), (N, 2 * N))
    assert taken(f) == {"store operand"}
    (pair, _), text = f.program.kernels, f.program.text
    assert len(pair.folds) == 2 and pair.output.buffer.dtype == tm.float16
    assert text.count("T.alloc_global") == 1
    start, best = f.models[frozenset()], f.models[f.decided.key]
    assert best.seconds < 0.7 * start.seconds


def test_a_loop_is_shared_where_blocks_are_few():
    f = found(decoding, (4, 16, 128), (4, 32768, 128), (4, 32768, 128))
    assert 'T.chosen("splits"' in f.program.text
    whole = next(c for c in f.considered if c.decision.kind == "whole loop")
    assert whole.seconds > 4 * f.seconds


def one_query(q, k, v):
    return tm.softmax(k @ q, axis=-1) @ v


def test_one_query_walks_its_keys():
    """Scores of one query are no product of matrices, and more keys than a block holds."""
    shapes = (32, 1, 128), (32, 65536, 128), (32, 65536, 128)
    plain = (128,), (65536, 128), (65536, 128)
    for function, given in ((attention, shapes), (one_query, plain)):
        f = found(function, *given)
        assert len(f.program.kernels) == 1 and not f.program.apart
        assert 'T.chosen("splits"' in f.program.text
    rows = found(lambda x: tm.mean(tm.logsumexp(x, axis=-1)), (2048, 512))
    assert len(rows.program.kernels) == 2  # all blocks fold rows, and leave a number for each
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s, np.float32) for s in ((16,), (2100, 16), (2100, 16)))
    s = k.astype(float) @ q
    p = np.exp(s - s.max())
    got = tw.math(one_query, target="cpu")(q, k, v)
    np.testing.assert_allclose(got, p @ v / p.sum(), atol=1e-5)


def iterated(x):
    x = x / (tm.sqrt(tm.sum(x * x)) + 1e-6)
    return 1.5 * x - 0.5 * (x @ x.mT) @ x


def contrasted(p, q):
    s = p @ q.mT
    return tm.mean(tm.logsumexp(s, axis=1)) + tm.mean(tm.logsumexp(s, axis=0))


def test_a_shared_loop_leaves_other_folds_to_other_kernels():
    """What combines the parts of a loop knows the state of that loop alone."""
    f = found(iterated, (2048, 128))
    assert any("beside other folds" in why for why in f.program.apart.values())
    x = np.random.default_rng(0).standard_normal((2048, 4), np.float32)
    got = tw.math(iterated, target="cpu")(x)
    y = x / np.sqrt((x.astype(float) ** 2).sum())
    np.testing.assert_allclose(got, 1.5 * y - 0.5 * (y @ y.T) @ y, atol=1e-5)


def test_a_product_inside_a_shared_loop_stays_there():
    f = found(contrasted, (2048, 128), (2048, 128))
    assert "s" not in f.program.apart and 'T.chosen("splits"' in f.program.text
    p, q = np.random.default_rng(0).standard_normal((2, 2048, 8), np.float32)
    s = p.astype(float) @ q.T
    rows, columns = (np.log(np.exp(s).sum(axis)).mean() for axis in (1, 0))
    got = tw.math(contrasted, target="cpu")(p, q)
    np.testing.assert_allclose(got, rows + columns, rtol=1e-6)


def traced(x, w):
    s = x @ w @ w.mT @ x.mT
    i, j = tm.indices(s, -2, -1)
    return tm.sum(tm.where(i == j, s, 0.0), axis=(-2, -1))


def test_what_laws_leave_behind_is_no_part_of_a_formula():
    f = found(traced, (4, 2048, 64), (4, 64, 128))
    arrays = f.decided.normal.formula.arrays
    read = {name for a in arrays for name in a.sources}
    assert {a.name for a in arrays} <= read | {"out"}


def test_what_no_grouping_can_beat_is_not_searched():
    f = found(attention, *[(32, 8192, 128)] * 3)
    assert (f.priced, f.considered, f.models) == (1, (), {})
    assert f.seconds <= 1.05 * f.bound
    assert "as fast as any" in f.left_out


def test_products_in_a_chain_are_fused_where_that_pays():
    fused = found(two_layers, (65536, 64), (64, 64), (64, 64))
    assert len(fused.program.kernels) == 1
    apart = found(two_layers, (N, N), (N, N), (N, N))
    assert len(apart.program.kernels) == 2 and taken(apart) == {"store operand"}


def test_operands_of_several_products_are_stored_once():
    def three(x, g, q, k):
        r = tm.mean(tm.astype(x, tm.float32) ** 2, axis=-1, keepdims=True)
        x = x / (r + 1e-6) ** 0.5 * g
        return x @ q, x @ k

    f = found(three, (64, 64), (64,), (64, 64), (64, 64))
    (decision,) = (d for d in alternatives(f.decided, ()) if d.kind == "store operand")
    at = f.decided.and_then(decision)
    text = program_of(at.normal, (), at.grouping).text
    assert text.count("T.alloc_global") == 1 and text.count("= X[i, :]") == 0


def test_explain_lists_what_was_taken_and_refused():
    f = found(low_rank_first, (N, N), (N, R), (R, N))
    said = "\n".join(explained(f, rates_of(Target.parse("cuda -arch=sm_90a")), {}))
    for part in (
        "taken: reorder products matmul, matmul1: ",
        "refused, by the model: ",
        "refused: store operand matmul1, right: no set with it is below",
        "its limit: DRAM",
        "sets of decisions priced",
        "bytes written and read",
    ):
        assert part in said, part  # fmt: skip


def test_names_decide_nothing():
    def renamed(zeta, b, alpha):
        return zeta @ (b @ alpha)

    shapes = (N, N), (N, R), (R, N)
    shapes = tuple((m // 16 or 1, n // 16 or 1) for m, n in shapes)
    ours, other = found(low_rank_first, *shapes), found(renamed, *shapes)
    assert [k.seconds for k in ours.prices] == [k.seconds for k in other.prices]
    assert taken(ours) == taken(other)


def test_sums_of_narrow_operands_are_left_to_plans():
    def update(x, w, a, b):
        return x @ w + (x @ a) @ b

    f = found(update, (N, N), (N, N), (N, R), (R, N))
    assert "join sums" not in taken(f)


def test_no_program_is_below_its_bound():
    rates = rates_of(Target.parse("cuda -arch=sm_90a"))
    for name in ("linear", "gated", "low_rank_update", "attention", "softmax", "cross_entropy"):
        function, arrays = CASES[name]
        f = tw.math(function)._of(arrays, {})[0].found
        assert f.seconds >= 0.999 * least(f.decided.normal.formula, rates)


def test_a_decision_about_nothing_is_refused():
    f = found(low_rank, (64, 32), (32, 4), (4, 32))
    with pytest.raises(tw.CompileError, match="nothing to decide that is 'in memory nowhere'"):
        f.decided.and_then(Decision("in memory", ("nowhere",)))


def test_operands_in_odd_rows_are_padded():
    """Where the bulk engine copies neither as it lies, but not for a small product."""
    f = found(lambda x, y: x @ y, (4101, 1475), (1475, 2961))
    assert taken(f) == {"pad operands"}
    assert not f.program.rounded[1:] and "T.alloc_global((I, K)" in f.program.text
    assert not taken(found(lambda x, y: x @ y, (45, 27), (27, 33)))
    assert not taken(found(lambda x, y: x @ y, (4096, 1480), (1480, 2960)))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x @ y, ((45, 27), (27, 35))),
        (lambda x, y: tm.matrix_transpose(x) @ y, ((27, 45), (27, 40))),
        (lambda x, y: x @ tm.matrix_transpose(y), ((3, 45, 40), (3, 33, 40))),
        (lambda x, y: x @ tm.matrix_transpose(y) + 1, ((2, 16, 27), (2, 24, 27))),
        (lambda x: x @ tm.matrix_transpose(x), ((45, 27),)),
        (lambda x: x @ x, ((27, 27),)),
        (lambda x, y: x[:, :30] @ y[:30], ((20, 36), (36, 28))),  # of the last eight none counts
        (lambda x, y: x[:, :32] @ y[:32], ((20, 36), (40, 24))),
        (lambda x, y: x[:, :30] @ y, ((20, 36), (30, 24))),
    ],
)
def test_padded_operands_give_the_same(function, shapes):
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in shapes]
    f = tw.math(function, target="cpu")
    made, _ = f._of(arrays, {})
    decisions = [d for d in alternatives(made.found.decided, ()) if d.kind == "pad operands"]
    padded = f.with_plan(replace(f.plan(*arrays), decisions=tuple(decisions), kernels=()))
    assert bool(decisions) == any(n % 8 for *_, n in shapes)
    assert ("T.alloc_global" in padded.tile(*arrays)) == bool(decisions)
    np.testing.assert_array_equal(padded(*arrays), f(*arrays))
