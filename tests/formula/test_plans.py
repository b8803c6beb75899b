"""Plans and schedules change no result, and the printed text is the kernel."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest

import tests.roads  # noqa: F401
import tilewright as tw
import tilewright.math as tm
from devtools.fuzz.formula_plans import drawn_plan
from tests.formula.cases import CASES
from tests.formula.plans import worst
from tilewright.formula.function import load
from tilewright.formula.plan import Plan, Step
from tilewright.formula.search.decisions import Decision, alternatives, decided


@pytest.mark.parametrize("name", CASES)
def test_plans_change_no_result(name):
    function, arrays = CASES[name]
    f = tw.math(function, target="cpu")
    for n in range(2):
        plan = drawn_plan(f, arrays, random.Random(f"{name} {n}"))
        assert worst(f.with_plan(tw.Plan.parse(plan.text())), arrays) <= 1, plan


@tw.math
def gelu_of_product(x, w, b):
    return tm.gelu(x @ w + b)


@tw.math
def causal(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    i, j = tm.indices(s, -2, -1)
    return tm.softmax(tm.where(j <= i, s, -tm.inf), axis=-1) @ v


@pytest.mark.parametrize(
    ("function", "shapes", "most"),
    [
        (gelu_of_product, [(256, 64), (64, 128), (128,)], 20),
        (tw.math(lambda x: tm.softmax(x, axis=-1)), [(64, 1000)], 15),
        (causal, [(2, 128, 64)] * 3, 45),
    ],
)
def test_texts_are_short_and_are_the_kernel(function, shapes, most, tmp_path):
    arrays = [np.zeros(shape, np.float16) for shape in shapes]
    text = function.tile(*arrays)
    assert len(text[text.index("@tw.jit") :].splitlines()) <= most
    path = tmp_path / "kernel.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made, _ = function._of(tuple(arrays), {})
    own, saved = (
        k.on("cuda").compile(*made.examples()).get_kernel_source()
        for k in (load(made.program), getattr(module, made.program.name))
    )
    assert _without_lines(own) == _without_lines(saved)


def _without_lines(source: str) -> str:
    """The source but for the lines of Python that it names."""
    return re.sub(r'(?m)^\s*#line .*\n|"[^"\n]*"|//.*', "", source)


def test_one_block_does_not_fold_all_rows():
    """A sum over rows that are folded themselves: the rows have a kernel of many blocks."""

    @tw.math
    def entropy(x):
        p = tm.softmax(x, axis=-1)
        return tm.sum(tm.sum(p * tm.log(p), axis=-1))

    small, large = (entropy.tile(np.ones((n, 512), np.float32)) for n in (8, 4096))
    assert "alloc_global" not in small and large.count("for i in T.tile(") >= 1
    x = np.random.default_rng(0).standard_normal((300, 512), np.float32)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(entropy(x), np.sum(p * np.log(p)), rtol=1e-4)


X = np.random.default_rng(0).standard_normal((64, 32), np.float32).astype(np.float16)


@tw.math
def chain(x, a, b):
    return (x @ a) @ b


def test_a_plan_is_saved_and_given_back(tmp_path):
    arrays = X, X[:32, :8].copy(), X[:8].copy()
    plan = chain.plan(*arrays)
    plan.save(tmp_path / "chain.json")
    again = tw.Plan.load(tmp_path / "chain.json")
    assert again == plan and str(again) == str(plan)
    assert plan.target.startswith("cuda") and "kernel chain: i " in str(plan)
    planned = chain.with_plan(again)
    assert planned.tile(*arrays) == chain.tile(*arrays)
    assert planned.plan(*arrays) == plan
    np.testing.assert_array_equal(planned(*arrays), chain(*arrays))


def test_a_plan_says_which_kernels_there_are():
    arrays = X, X[:32, :8].copy(), X[:8].copy()
    plan = chain.plan(*arrays)
    (name,) = {d.arrays for d in alternatives(chain._of(arrays, {})[0].found.decided, ())
               if d.kind == "reorder products"}  # fmt: skip
    turned = chain.with_plan(replace(plan, decisions=(Decision("reorder products", name),)))
    assert turned.tile(*arrays) != chain.tile(*arrays)
    assert turned.plan(*arrays).decisions != plan.decisions


def test_schedules_of_a_plan_are_those_of_its_kernels():
    arrays = X, X[:32, :8].copy(), X[:8].copy()
    on_cuda = tw.math(chain.function, target="cuda")
    plan = on_cuda.plan(*arrays)
    first = replace(plan.kernels[0], schedule=tw.Schedule(tiles={"i": 32, "k": 16}, threads=64))
    given = on_cuda.with_plan(replace(plan, kernels=(first, *plan.kernels[1:])))
    chosen = given.plan(*arrays).kernels
    assert dict(chosen[0].schedule.tiles)["i"] == 32 and chosen[0].schedule.threads == 64
    assert chosen[1:] == plan.kernels[1:]
    free = on_cuda.with_plan(replace(plan, kernels=(replace(plan.kernels[0]), Step("chain_1"))))
    assert free.plan(*arrays).kernels == plan.kernels  # what is not told is chosen


def test_a_schedule_with_tiles_is_saved(tmp_path):
    schedule = tw.Schedule(tiles={"m": 128}, threads=256)
    schedule.save(tmp_path / "schedule.json")
    assert tw.Schedule.load(tmp_path / "schedule.json") == schedule


GOOD = Plan("f", "12ab", "cpu", decisions=(Decision("in memory", ("t",)),), kernels=(Step("f"),))


def changed(path, value):
    """The text of a plan with another value somewhere."""
    found = json.loads(GOOD.text())
    at = found
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "the text is no JSON"),
        ("[]", "the text is no plan"),
        ("{}", "the text is no plan"),
        (changed(["version"], 7), "a plan of version 7, this Tilewright reads version 1"),
        (changed(["lows"], []), "a field that is not known: 'lows'"),
        ('{"version": 1, "name": "f"}', "lacks the field 'formula'"),
        (changed(["decisions", 0, "kind"], "in memry"), "not known: 'in memry'"),
        (changed(["decisions", 0, "why"], ""), "a decision of the text has a field"),
        (changed(["decisions"], [3]), "a decision of the text is no record"),
        (changed(["decisions"], 3), "the text is no plan"),
        (changed(["kernels", 0, "schedule", "tile"], {}), "not known: 'tile'"),
        (changed(["kernels", 0, "schedule", "stages"], 2), "'stages' in the text is chosen for"),
        (changed(["kernels", 0, "schedule", "threads"], 7), "'7' is no choice for 'threads'"),
        (changed(["kernels", 0, "shares"], 7), "the text is no plan"),
    ],
)
def test_what_is_no_plan_is_refused(text, said):
    with pytest.raises(tw.CompileError, match=re.escape(said)):
        Plan.parse(text)


def test_a_plan_is_for_one_formula():
    arrays = X, X[:32, :8].copy(), X[:8].copy()
    plan = chain.plan(*arrays)
    other = chain.with_plan(plan)
    with pytest.raises(tw.CompileError, match="plan of chain is for another formula") as error:
        other(X[:8].copy(), *arrays[1:])
    assert "x: float16[8, 32]" in str(error.value)
    for kind, names in (("in memory", ("nothing",)), ("own kernels", ()), ("without law", ("x",))):
        wrong = replace(plan, decisions=(Decision(kind, names),))
        with pytest.raises(tw.CompileError, match=f"nothing to decide that is '{kind}"):
            chain.with_plan(wrong)(*arrays)


def test_decisions_keep_their_order():
    def update(x, w, a, b):
        return x @ w + (x @ a) @ b

    arrays = X, X[:32].copy(), X[:32, :8].copy(), X[:8].copy()
    f = tw.math(update)
    made, _ = f._of(arrays, {})
    at = decided(made.formula, made.normal)
    for kind in ("reorder products", "join sums", "store operand"):
        at = at.and_then(next(d for d in alternatives(at, ()) if d.kind == kind))
    planned = f.with_plan(replace(f.plan(*arrays), decisions=at.decisions, kernels=()))
    assert planned.plan(*arrays).decisions == at.decisions
    assert worst(planned, arrays) <= 1


def test_explain_lists_prices_limits_and_errors():
    arrays = X, X[:32, :8].copy(), X[:8].copy()
    said = chain.explain(*arrays)
    for part in (
        "laws: none",
        "price: ",
        "no kernels of this formula are below",
        "its limit: ",
        "of the sum of 32 magnitudes",
        "out is off by at most",
        "search: ",
    ):
        assert part in said, part  # fmt: skip


def test_gradients_have_plans():
    slope = tm.vjp(chain)
    arrays = X, X[:32, :8].copy(), X[:8].copy(), np.ones((64, 32), np.float16)
    planned = slope.with_plan(slope.plan(*arrays))
    for given, found in zip(planned(*arrays), slope(*arrays), strict=True):
        np.testing.assert_array_equal(given, found)


def test_what_needs_no_kernel_has_a_plan():
    total = tw.math(lambda x: tm.sum(x, axis=0))
    assert total.plan(X[:0]).kernels == ()
    assert (total.error_bound(X[:0]) < 1e-7).all()


def test_sizes_that_only_calls_know_have_a_plan():
    @tw.math(dynamic={"x": {0: "n"}})
    def rows(x, w):
        return tm.softmax(x @ w, axis=-1)

    planned = rows.with_plan(rows.plan(X, X[:32]))
    for n in (3, 40):
        np.testing.assert_array_equal(planned(X[:n], X[:32]), rows(X[:n], X[:32]))
        assert rows.error_bound(X[:n], X[:32]).shape == (n, 32)
