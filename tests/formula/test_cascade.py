"""Cascades: what is derived computes what the formula says, however the axis is read."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache

import numpy as np
import pytest

from tests.formula.cascades import (
    CASES,
    CONSTANTS,
    ELEMENTS,
    REAL,
    Case,
    N,
    exp,
    i,
    j,
    l,
    m,
    o,
    p,
    v,
    x,
)
from tests.formula.machine import Evaluator, Machine, direct
from tilewright.formula.streams.cascade import Refused, derive
from tilewright.formula.streams.stream import Center, Fold, Level, Result, Shift, Sum, old
from tilewright.ir.arith import Bin, Call, Cast, Const, Var, const
from tilewright.ir.dtype import DTYPES, FLOAT32
from tilewright.ir.expr import substitute, transform, variables, walk

LENGTH = 40
DERIVED = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]
by_name = {"ids": lambda case: case.name}

LAST = 3.4028234663852886e38  # of float32


@cache
def derived(case: Case):
    return derive(case.levels, ELEMENTS, j, case.extent, case.positive)


def counts(stream):
    return tuple(sum(isinstance(s, kind) for s in stream.stages) for kind in (Fold, Center, Sum))


def drawn(kind: str, rng, n: int = LENGTH):
    elements = {}
    for var in sorted(ELEMENTS, key=lambda var: var.name):
        values = rng.normal(0, 2, n) + 0.25
        if kind == "offset":
            values = values + 1000
        if kind == "ascending":
            values = np.sort(values) * 3
        elements[var] = values
    if kind == "masked":
        elements[x][: n // 3] = -np.inf
    elements[j] = np.arange(n)
    return elements


def assert_agrees(case, stream, elements, rng, kind=np.float64, limit=1e-9):
    """However the axis is read, `stream` computes the levels of `case`, in floats of `kind`."""
    elements = {
        var: values if var is j else values.astype(kind) for var, values in elements.items()
    }
    values = {**CONSTANTS, N: len(elements[j])}
    constants = {var: kind(n) if var.dtype.is_float else n for var, n in values.items()}
    constants |= {
        Var(var.name, FLOAT32): value for var, value in constants.items() if var.dtype is REAL
    }
    wide = {var: values.astype(np.float64) for var, values in elements.items()}
    machine = Machine(stream, constants, kind)
    with np.errstate(all="ignore"):
        expected = direct(case.levels, wide, constants, Evaluator())
        for state in (machine.by_blocks(elements, rng), machine.by_parts(elements, rng)):
            for name, value in expected.items():
                found = state[name]
                assert abs(found - value) <= limit * (1 + abs(value)), (name, found, value)


@pytest.mark.parametrize("case", DERIVED, **by_name)
def test_streams_compute_their_levels(case):
    stream = derived(case)
    for number, kind in enumerate(case.data):
        rng = np.random.default_rng(number)
        assert_agrees(case, stream, drawn(kind, rng), rng)
    if case.state:
        assert " ".join(map(str, counts(stream))) == case.state


@pytest.mark.parametrize("case", REFUSED, **by_name)
def test_what_is_refused_names_the_factor(case):
    with pytest.raises(Refused) as refused:
        derived(case)
    assert case.refused in repr(refused.value.factor)
    assert refused.value.level is case.levels[-1].name
    assert str(refused.value).startswith(f"{case.levels[-1].name.name}: ")


@pytest.mark.parametrize("n", [1, 2])
def test_short_axes(n):
    for case in DERIVED:
        if not isinstance(case.extent, Var):
            continue
        rng = np.random.default_rng(3)
        elements = {var: abs(values) for var, values in drawn("random", rng, n).items()}
        assert_agrees(case, derived(case), elements, rng)


def narrow(node):
    """The same in float32."""
    if node.dtype is not REAL:
        return node
    match node:
        case Var(name):
            return Var(name, FLOAT32)
        case Const(value):
            return const(value, FLOAT32)
        case Call(name, args):
            return Call(name, args, FLOAT32)
        case Cast(_, a):
            return a.astype("float32")
    return node


def narrowed(case: Case) -> Case:
    levels = (Level(narrow(lv.name), lv.monoid, transform(lv.body, narrow)) for lv in case.levels)
    positive = tuple(map(narrow, case.positive))
    return Case(case.name, tuple(levels), extent=narrow(case.extent), positive=positive)


@pytest.mark.parametrize("case", DERIVED, **by_name)
def test_float32(case):
    """What float64 hides: starts whose square leaves the range, sums that lose their digits."""
    narrower = narrowed(case)
    stream = derive(
        narrower.levels, set(map(narrow, ELEMENTS)), j, narrower.extent, narrower.positive
    )
    assert all(node.dtype is not REAL for s in stream.stages for e in parts(s) for node in walk(e))
    assert counts(stream) == counts(derived(case))
    for kind in case.data:
        if kind == "offset" and case.name in POOR_IN_FLOAT32:
            continue
        rng = np.random.default_rng(5)
        elements = {narrow(var): values for var, values in drawn(kind, rng).items()}
        assert_agrees(narrower, stream, elements, rng, np.float32, 3e-4)


# formulas that lose digits themselves, or add up large numbers of both signs
POOR_IN_FLOAT32 = {
    "variance from moments", "covariance", "third central moment", "product of a normalized row",
    "waves around the mean", "layer norm, then a product",
}  # fmt: skip


def parts(stage):
    match stage:
        case Fold(_, _, term) | Sum(_, term, ()):
            return [term]
        case Sum(_, term, shifts):
            return [term, *(shift.coefficient for shift in shifts)]
    return [stage.value]


def test_attention_as_it_is_read():
    stream = derive(
        [Level(m, "max", x), Level(l, "sum", exp(x - m)), Level(o, "sum", p * v)], {x, v}, j
    )
    top, c, s0, s1 = (Var(name, REAL) for name in "max0 c0 s0 s1".split())
    move = exp(old(c) - c)
    assert stream.stages == (
        Fold(top, "max", x, -LAST),
        Result(m, top),
        Center(c, top, -LAST),
        Sum(s0, exp(x - c), (Shift(s0, move),)),
        Result(l, s0),
        Sum(s1, exp(x - c) * v, (Shift(s1, move),)),
        Result(o, s1 / s0),
    )
    assert stream.elements == {x, v, j} and stream.index is j and not stream.notes
    assert [stage.var for stage in stream.state] == [top, c, s0, s1]


# --- the way a formula is written does not matter -------------------------------------------------


def rewritten(case, rule, rename=lambda var: var):
    levels = tuple(
        Level(rename(level.name), level.monoid, transform(level.body, rule))
        for level in case.levels
    )
    return Case(case.name, levels, case.data, case.refused, case.extent, case.positive)


def swapped(node):
    match node:
        case Bin("+" | "*" | "max" | "min" as op, a, b):
            return Bin(op, b, a)
    return None


def power_of_three(node):
    match node:
        case Call("exp", (a,)):
            return Call("pow", (const(3, REAL), a), REAL)
    return None


def power_of_two(node):
    match node:
        case Call("exp", (a,)):
            return Call("__exp2", (a,), REAL)
    return None


def as_products(node):
    """Subtraction and division by other operators."""
    match node:
        case Bin("-", a, b):
            return a + -1.0 * b
        case Bin("/", a, b):
            return Call("pow", (b, const(-1, REAL)), REAL) * a
    return None


@pytest.mark.parametrize("rule", [swapped, power_of_two, power_of_three, as_products])
def test_ways_to_write_it(rule):
    for case in DERIVED:
        if rule is as_products and not isinstance(case.extent, Var):
            continue
        other = rewritten(case, rule)
        stream = derived(other)
        assert counts(stream) == counts(derived(case)), case.name
        if rule is not as_products:
            rng = np.random.default_rng(1)
            assert_agrees(other, stream, drawn("random", rng), rng)
    for case in REFUSED:
        with pytest.raises(Refused):
            derived(rewritten(case, rule))


def test_names_do_not_matter():
    for case in CASES:
        used = {var for level in case.levels for var in variables(level.body) | {level.name}}
        names = sorted(used, key=lambda var: var.name)
        new = {var: Var(f"{chr(122 - at)}{at}", var.dtype) for at, var in enumerate(names)}
        levels = [Level(new[lv.name], lv.monoid, substitute(lv.body, new)) for lv in case.levels]
        args = [new.get(var, var) for var in ELEMENTS], new.get(j, j), new.get(N, case.extent)
        positive = [new[var] for var in case.positive]
        if case.refused:
            with pytest.raises(Refused):
                derive(levels, *args, positive)
        else:
            assert counts(derive(levels, *args, positive)) == counts(derived(case)), case.name


# --- starts, counts, types -----------------------------------------------------------------------


def float32(*names):
    return [Var(name, FLOAT32) for name in names]


def start_of(stream, kind):
    return next(stage.start for stage in stream.stages if isinstance(stage, kind))


def test_starts_keep_squares_in_range():
    a, top, total, spread = float32("a", "top", "total", "spread")
    weight = Call("exp", (a - top,), FLOAT32)
    levels = [Level(top, "max", a), Level(total, "sum", weight)]
    assert start_of(derive(levels, {a}, j), Center) == -LAST
    levels.append(Level(spread, "sum", weight * (a - top) * (a - top)))
    for kind in (Fold, Center):
        assert start_of(derive(levels, {a}, j), kind) == -1e18


def test_a_maximum_that_is_no_center_starts_at_infinity():
    stream = derive([Level(m, "max", abs(x)), Level(o, "sum", x / m)], {x}, j)
    assert start_of(stream, Fold) == float("-inf")


def test_growing_exponentials_start_on_the_other_side():
    stream = derive([Level(m, "max", x), Level(l, "sum", exp(m - x))], {x}, j)
    assert start_of(stream, Fold) == float("-inf") and start_of(stream, Center) == LAST
    rng = np.random.default_rng(0)
    case = Case("", (Level(m, "max", x), Level(l, "sum", exp(m - x))))
    assert_agrees(case, stream, drawn("random", rng), rng)


def test_a_divisor_that_happens_to_be_the_extent():
    levels = (Level(m, "max", x / 8.0), Level(l, "sum", exp(x / 8.0 - m)))
    stream = derive(levels, {x}, j, extent=const(8))
    assert counts(stream) == (1, 1, 1)


def test_an_integer_extent():
    size, mean, spread = Var("n"), *float32("mean", "spread")
    (a,) = float32("a")
    levels = [Level(mean, "sum", a / size), Level(spread, "sum", (a - mean) ** 2 / size)]
    stream = derive(levels, {a}, j, extent=size)
    assert counts(stream) == (2, 1, 1)
    assert all(size not in variables(part) for stage in stream.stages for part in parts(stage))


def test_narrow_elements_are_converted_once():
    a = Var("a", DTYPES["float16"])
    top, total = float32("top", "total")
    wide = a.astype("float32")
    levels = [Level(top, "max", wide), Level(total, "sum", Call("exp", (wide - top,), FLOAT32))]
    stream = derive(levels, {a}, j)
    assert counts(stream) == (1, 1, 1)
    assert repr(stream.stages[3].term) == "exp(float32(a) - c0)"


def test_equal_state_is_shared():
    top, place = Var("top", REAL), Var("place")
    levels = [
        Level(m, "max", x), Level(l, "sum", exp(x - m)), Level(top, "max", x * 1.0),
        Level(o, "sum", exp(-top + x) * v), Level(place, "argmax", x), Level(i, "argmax", exp(x)),
    ]  # fmt: skip
    stream = derive(levels, {x, v}, j)
    assert counts(stream) == (2, 1, 2)
    assert [stage.value.name for stage in stream.stages if isinstance(stage, Result)] == [
        "max0", "s0", "max0", "s1", "argmax0", "argmax0",
    ]  # fmt: skip


def test_a_row_that_is_masked_whole():
    """A maximum has its start for a result, and sums of exponentials are zero."""
    case = next(case for case in CASES if case.name == "attention")
    elements = drawn("masked", np.random.default_rng(0))
    elements[x][:] = -np.inf
    with np.errstate(all="ignore"):
        machine = Machine(derived(case), CONSTANTS)
        state = machine.by_parts(elements, np.random.default_rng(0))
    assert state[m] == -LAST and state[l] == 0


def test_notes():
    by = {case.name: derived(case).notes for case in DERIVED}
    assert "exp without a maximum" in by["exp without a maximum"]
    assert "exp without a maximum" not in by["attention"]
    assert "the extent is counted" in by["variance"]


def test_derivations_are_quick():
    took = {}
    for case in CASES:
        start = time.process_time()
        with suppress(Refused):
            derived.__wrapped__(case)
        took[case.name] = time.process_time() - start
    slowest = max(took, key=took.get)
    print(f"slowest: {slowest}, {took[slowest] * 1e3:.1f} ms")
    assert sorted(took.values())[len(took) // 2] < 0.05
