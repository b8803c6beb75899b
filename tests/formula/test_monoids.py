"""Monoids of the user's own, places of extremes in loops, and the largest elements in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from devtools.fuzz.formulas import computed_by, differs
from tests.formula.cases import AVERAGED, CASES, LARGER, SHIFTED, THEN, TWO_LARGEST
from tilewright.formula.check.monoids import check_laws
from tilewright.formula.front.trace import trace
from tilewright.formula.tiles import loops
from tilewright.ir.core import *
from tilewright.support.errors import CompileError

X = [("x", (5, 7), "float32")]


def of(monoid, *others):
    """A formula that folds x and numbers."""
    return lambda x: tm.reduce(monoid, (x, *others) if monoid.is_tuple else x, axis=-1)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────


def _middle(a, b):
    return tm.where(tm.isnan(a), b, tm.where(tm.isnan(b), a, (a + b) / 2))


WRONG = {
    "a difference": (tm.monoid(0, lambda a, b: a - b), (), "identity"),
    "a sum that starts with one": (tm.monoid(1, lambda a, b: a + b), (), "identity"),
    "a maximum that starts with zero": (tm.monoid(0.0, tm.maximum), (), "identity"),
    "inf - inf": (tm.monoid((-tm.inf, 0.0), SHIFTED.combine), (1.0,), "identity"),
    "a distance": (tm.monoid(0.0, lambda a, b: tm.abs(a) + b), (), "identity"),
    "a mean without a count": (
        tm.monoid(tm.nan, _middle),
        (), "associative",
    ),
    "a sum that is rounded": (
        tm.monoid(0.0, lambda a, b: tm.where(a == 0, b, tm.where(b == 0, a, tm.round(a + b)))),
        (), "associative",
    ),
    "a count that is lost": (
        tm.monoid((0.0, 0.0), lambda a, b: (a[0] + b[0] * (1 + a[1] * 0.5), b[1] + a[1])),
        (1.0,), "associative",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_monoid_is_refused_with_its_place(name):
    monoid, others, law = WRONG[name]
    with pytest.raises(CompileError, match=law) as error:
        trace(of(monoid, *others), X)
    text = str(error.value)
    assert "fix:" in text and "tm.reduce(monoid" in text  # the line of the formula


def _counted(a, b):
    """A sum of what has a positive count; others are none."""
    keep, more = a[1] > 0, b[1] > 0
    total = tm.where(keep, a[0], 0) + tm.where(more, b[0], 0)
    return total, tm.where(keep, a[1], 0) + tm.where(more, b[1], 0)


def test_elements_are_drawn_as_other_arrays_of_the_formula_make_them():
    counted = tm.monoid((0.0, 0.0), _counted)

    @tw.math(target="cpu")
    def total(x):
        count = tm.exp(tm.ones_like(x))
        return tm.reduce(counted, (x, count), axis=-1)[0]

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert total(x).tolist() == x.sum(1).tolist()
    with pytest.raises(CompileError, match="identity"):
        trace(lambda x: tm.reduce(counted, (x, x), axis=-1), X)


RIGHT = {
    "larger": (LARGER, (3,)), "two": (TWO_LARGEST, (-tm.inf,)), "mean": (AVERAGED, (1,)),
    "pairs": (SHIFTED, (1.0,)), "then": (THEN, (2.0,)),
}  # fmt: skip


def _mutants(e):
    """The expression with one mistake each."""
    signs = {"+": "-", "-": "+", "*": "+", "/": "*"}
    for node in walk(e):
        match node:
            case Bin(op=op, a=a, b=b) if op in signs:
                new = [Bin(signs[op], a, b)]
            case Call(name="max_nan" | "min_nan" as word, args=args):
                new = [Call("min_nan" if word == "max_nan" else "max_nan", args, node.dtype)]
            case Cmp(op=op, a=a, b=b) if op in (">=", "<="):
                new = [Cmp("<" if op == ">=" else ">", a, b)]
            case Select(cond=c, a=a, b=b):
                new = [select(c, b, a)]
            case Const(value=n) if node.dtype.is_float:
                new = [const(n + 1, node.dtype)]
            case _:
                continue
        for other in new:
            yield transform(e, lambda n, node=node, other=other: other if n is node else None)


# what is a monoid as well, such as the place of an identity that is nowhere the largest
OTHER = {"larger": 1, "two": 2, "mean": 1, "pairs": 0, "then": 0}


@pytest.mark.parametrize("name", RIGHT)
def test_laws_find_mistakes_of_combine_and_identity(name):
    monoid, others = RIGHT[name]
    (a, *_) = [a for a in trace(of(monoid, *others), X).arrays if a.by]
    missed, count = [], 0
    for part, result in enumerate(a.by.combine.result):
        for wrong in _mutants(result):
            results = list(a.by.combine.result)
            results[part] = wrong
            count += 1
            try:
                check_laws(
                    replace(
                        a, by=replace(a.by, combine=Operator(a.by.combine.vars, tuple(results)))
                    )
                )
            except CompileError:
                continue
            missed.append(str(wrong))
    for part, number in enumerate(a.by.identity):
        other = list(a.by.identity)
        other[part] = 5 if number == 0 else number / -2 - 3
        count += 1
        try:
            check_laws(replace(a, by=replace(a.by, identity=tuple(other))))
        except CompileError:
            continue
        missed.append(str(other))
    assert count >= 4 and len(missed) <= OTHER[name], missed


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: tm.reduce(THEN, x, axis=-1), "other elements than its monoid"),
        (lambda x: tm.reduce(THEN, (x, x, x), axis=-1), "other elements than its monoid"),
        (lambda x: tm.reduce(tm.add, x), "takes a monoid first"),
        (lambda x: tm.reduce(tm.monoid(0.0, lambda a, b: (a, b)), x), "another number of elements"),
        (lambda x: tm.reduce(tm.monoid(0.0, lambda a, b: a + x[0, 0]), x), "more than its two"),
        (lambda x: tm.reduce(tm.monoid(0.0, lambda a, b: a + x), x), "more than its two"),
        (lambda x: tm.reduce(tm.monoid(0.0, 3), x), "a function of two elements"),
        (lambda x: tm.reduce(tm.monoid(x, tm.add), x), "is a number"),
        (lambda x: tm.reduce(tm.monoid(0.0, tm.add), (5,), lambda i: x), "numbers, not arrays"),
        (lambda x: tm.top_k(x, 8), "up to 32"),
        (lambda x: tm.top_k(x, 0), "up to 32"),
    ],
)
def test_mistakes_are_named(function, message):
    with pytest.raises(CompileError, match=message) as error:
        trace(function, X)
    assert "fix:" in str(error.value)


def test_gradients_of_the_largest_and_of_no_monoid():
    x = np.random.default_rng(0).permutation(12).reshape(3, 4).astype(np.float32)
    dx = tm.vjp(lambda x: tm.top_k(x, 2)[0], target="cpu")(x, np.ones((3, 2), np.float32))
    assert np.asarray(dx).tolist() == (x >= np.sort(x, axis=1)[:, -2:-1]).tolist()
    with pytest.raises(CompileError, match="the gradient of a fold by _then") as error:
        tm.vjp(of(THEN, 1.0), target="cpu")(x, x[:, 0], x[:, 0])
    assert "fix:" in str(error.value)


# ── values that are hard ─────────────────────────────────────────────────────────────────────


def nearest(x, y):
    s = x @ y.T
    i = tm.indices(s, -1)
    value, place = tm.reduce(LARGER, (s, i), axis=-1)
    return tm.max(s, axis=-1), tm.argmax(s, axis=-1), tm.argmin(s, axis=-1), value, place


def _hard():
    """Rows of products with equal elements, infinite ones and NaN, in one tile and in two."""
    x, y = np.ones((20, 2), np.float32), np.zeros((50, 2), np.float32)
    x[10:, 0] = -1
    y[[7, 40, 41], 0], y[[12, 30], 0] = 3, -3
    yield x, y
    for numbers in ((np.nan,), (np.inf, np.nan), (-np.inf,), (np.inf,)):
        other = y.copy()
        for n, number in enumerate(numbers):
            other[[35 + n, 45 + n], 0] = number
        yield x, other
    other = y.copy()
    other[:, 0] = -np.inf
    yield x, other


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("size", [16, 64])
def test_places_in_loops_are_those_of_numpy(target, size):
    f = tw.math(nearest, target=target).with_schedule(tiles={"j": size})
    for x, y in _hard():
        with np.errstate(all="ignore"):
            s = (x[:, None, :] * y[None, :, :]).sum(-1)
        top, at, least, value, place = map(np.asarray, f(x, y))
        np.testing.assert_array_equal(at, s.argmax(1))
        np.testing.assert_array_equal(least, s.argmin(1))
        np.testing.assert_array_equal(top, s.max(1))
        np.testing.assert_array_equal(value, s.max(1))
        np.testing.assert_array_equal(place, s.argmax(1))
    assert "alloc_global" not in f.tile(x, y)


def _sorted(x, k, axis):
    """What `top_k` says: NaN first, then by size, then by index."""
    x = np.moveaxis(x, axis, -1)
    order = np.lexsort((np.nan_to_num(-x.astype(float), nan=0), ~np.isnan(x)), axis=-1)[..., :k]
    return [np.moveaxis(v, -1, axis) for v in (np.take_along_axis(x, order, -1), order)]


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize(
    ("dtype", "k", "axis"), [("float32", 6, -1), ("float64", 2, 0), ("int8", 3, 1), ("bool", 2, -1)]
)
def test_the_largest_come_in_order(dtype, k, axis, target):
    x = np.random.default_rng(0).integers(-3, 4, (8, 3, 11)).astype(dtype)
    if dtype == "float32":
        x[0, 0, 1:] = -np.inf
        x[1, 0, 3:6] = x[2, :, 8] = np.nan
        x[3, 1] = np.nan
        x[4, 2, ::2] = np.inf
    f = tw.math(lambda x: tm.top_k(x, k, axis=axis), target=target)
    values, places = map(np.asarray, f(x))
    want = _sorted(x.astype(float), k, axis)
    assert values.dtype == x.dtype and places.dtype == np.int64
    np.testing.assert_array_equal(values.astype(float), want[0])
    np.testing.assert_array_equal(places, want[1])


def test_monoids_of_other_types():
    def folds(x):
        n = tm.astype(x * 10, tm.int8)
        whether = tm.reduce(tm.monoid(False, lambda a, b: a | b), x > 2, axis=-1)
        bits = tm.reduce(tm.monoid(0, lambda a, b: a ^ b), n, axis=-1)
        most = tm.scan(tm.monoid(-tm.inf, tm.maximum), x, axis=0)
        return whether, bits, most

    for dtype in (np.float64, np.float16):
        x = np.random.default_rng(1).standard_normal((7, 33)).astype(dtype)
        for target in ("cpu", "interp -sanitize"):
            whether, bits, most = map(np.asarray, tw.math(folds, target=target)(x))
            np.testing.assert_array_equal(whether, (x > 2).any(1))
            small = (x.astype(np.float32 if dtype == np.float16 else dtype) * 10).astype(np.int8)
            np.testing.assert_array_equal(bits, np.bitwise_xor.reduce(small, axis=1))
            np.testing.assert_array_equal(most, np.maximum.accumulate(x, axis=0))
            assert (whether.dtype, bits.dtype, most.dtype) == (bool, np.int8, dtype)


# ── texts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["nearest", "recurrence", "top_of_columns"])
def test_threads_compute_it(name):
    function, arrays = CASES[name]
    function = nearest if name == "nearest" else function
    formula, got = computed_by(function, list(arrays), "threads")
    assert not differs(formula, list(arrays), got)


@pytest.mark.parametrize("name", ["nearest", "likeliest", "two_largest_scores", "pairs_of_scores"])
def test_a_loop_keeps_it(name):
    function, arrays = CASES[name]
    assert "alloc_global" not in tw.math(function).tile(*arrays)


@pytest.mark.parametrize("splits", [1, 3, 128])
def test_blocks_share_a_loop_that_keeps_places(splits):
    def words(x, y):
        s = x @ y.T
        then = tm.reduce(THEN, (tm.tanh(s), tm.indices(s, -1)), axis=-1)[1]
        return tm.argmax(s, axis=-1), tm.max(s, axis=-1), tm.argmin(s, axis=-1), then

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 8), np.float32), rng.standard_normal((2100, 8), np.float32)
    y[[700, 1500]] = 9 * x[0]
    y[[1700, 1800], 3] = np.nan if splits == 3 else 0
    f = tw.math(words, target="cpu").with_schedule(tiles={"splits": splits})
    assert 'T.chosen("splits"' in f.tile(x, y)
    got = [np.asarray(g) for g in f(x, y)]
    assert not differs(f.formula(x, y), [x, y], got)
    assert got[0][0] == (1700 if splits == 3 else 700)


def test_what_no_block_can_hold_is_folded_in_parts():
    def folds(x):
        i, j = tm.indices(x)
        value, place = tm.reduce(LARGER, (x, i * 1000 + j))
        return tm.sum(x), value, place

    x = np.random.default_rng(0).integers(-9, 9, (600, 1000)).astype(np.float32)
    f = tw.math(folds, target="cpu")
    assert "more than a block can hold" in f.tile(x)
    total, value, place = map(np.asarray, f(x))
    assert (total, value, place) == (x.sum(), x.max(), x.argmax())
    made, _ = tw.math(folds, target="cuda")._of((x,), {})
    assert made.kernel.compile(*made.examples()).get_kernel_source()


LONG = {
    "of two axes": (lambda x: tm.sum(tm.tanh(x[:, None] * x)), 1 << 20, "Out_parts1 = "),
    "in two levels": (
        lambda x: tm.max(x),
        (1 << 31) - 1,  # a prime: no parts of one length
        "X[j * 16384 + j_part * 2097152",
    ),
    "of a square": (
        lambda x: tm.cumulative_sum(tm.sort(tm.reshape(x, (3, 600)), axis=-1), axis=-1),
        1800,
        "compares 600 elements with all",
    ),
    "of a sorted row": (lambda x: tm.sum(tm.sort(x)[1:]), 600, "for j in T.tile(K):"),
}


@pytest.mark.parametrize("name", LONG)
def test_long_folds_have_parts_with_their_own_names(name):
    function, length, part = LONG[name]
    text = tw.math(function, target="cuda").tile(np.broadcast_to(np.float32(0), (length,)))
    assert part.replace("j", "i") in text.replace("j", "i")


def test_results_that_no_memory_holds_are_refused_with_their_size():
    x = np.broadcast_to(np.float32(0), (1 << 20,))
    with pytest.raises(tw.CompileError, match="1,152,921,504,606,846,976 elements, 4,194,304 TiB"):
        tw.math(lambda x: x[:, None, None] * x[:, None] * x).tile(x)


def test_a_name_that_the_program_has():
    def best(x):
        def best(a, b):
            return tm.maximum(a, b)

        return tm.reduce(tm.monoid(-tm.inf, best), x, axis=0)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.asarray(tw.math(best, target="cpu")(x)).tolist() == [3, 4, 5]


# what a mistake replaces, and by what
MISTAKES = {
    "the last of equal ones": (
        loops, "_stays", lambda own, word, block, _: f"{own} {'><'[word == 'min']} {block.text}",
    ),
    "a NaN that goes": (
        loops, "_stays", lambda own, word, block, _: f"{own} {'><'[word == 'min']}= {block.text}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_hard_values_find_mistakes_of_loops(name, monkeypatch):
    monkeypatch.setattr(*MISTAKES[name])
    with pytest.raises(AssertionError):
        test_places_in_loops_are_those_of_numpy("cpu", 16)


def after_one_another(x, y):
    s = tm.tanh(x @ y.T)
    return tm.reduce(THEN, (s, tm.indices(s, -1)), axis=-1)


ORDERS = {
    "": ("_then((out, out1)", "_then((out, out1)"),
    "the other order": ("= _then((", "= (lambda a, b: _then(b, a))(("),
    "another start": ("T.full((i,), 1.0)", "T.zeros((i,))"),
}


@pytest.mark.parametrize("mistake", ORDERS)
def test_loops_keep_the_order(mistake):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 8), np.float32), rng.standard_normal((50, 8), np.float32)
    f = tw.math(after_one_another, target="cpu").with_schedule(tiles={"j": 16})
    made, _ = f._of((x, y), {})
    assert ORDERS[mistake][0] in made.program.text
    made.program.text = made.program.text.replace(*ORDERS[mistake])
    got = [np.asarray(g) for g in f(x, y)]
    assert bool(differs(made.formula, [x, y], got)) == bool(mistake)
