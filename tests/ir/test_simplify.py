"""Simplification: golden results, and equality with direct evaluation on random expressions."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.integer_model import Maker, Undefined, assignments, evaluate
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import BOOL, FLOAT32, INT32, INT64, dtype
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Load,
    Select,
    Var,
    binary,
    cast,
    ceildiv,
    compare,
    const,
    loads,
    logical_not,
    select,
    walk,
)
from tilewright.ir.simplify import simplify

i, j, k, m, n, t = (Var(name) for name in "ijkmnt")
b = Var("b")
x, h = Var("x", FLOAT32), Var("h", dtype("float16"))
c, d = Var("c", BOOL), Var("d", BOOL)
A = Buffer("A", (n, const(64)), INT32, Space.GLOBAL)
R = Ranges({i: (0, 127), j: (0, 7), k: (-4, 4), n: (0, None, 8), m: (1, None), t: (0, 127)})


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        # sums
        (i + j + i + 3 - j, i * 2 + 3),
        (j + i, i + j),
        ((i + 2) * 4 - 8, i * 4),
        (i - i, const(0)),
        (-(i - j), j - i),
        (i << 3, i * 8),
        (~i + 1 + i, const(0)),
        (i * 4 * n, Bin("*", i, n) * 4),
        # quotients and remainders
        ((i * 8 + j) // 8, i),
        ((i * 8 + j) % 8, j),
        ((i * 8 + j) // 64, i // 8),  # j only counts below 8
        ((i * 8 + j) % 64, j + i % 8 * 8),
        ((i * 16 + j * 2 + 1) // 2, i * 8 + j),
        ((i * 6 + 4) // 4, i * 3 // 2 + 1),
        ((i * 12 + 5) % 8, (i + 1) % 2 * 4 + 1),
        (j % 8, j),
        (j // 8, const(0)),
        ((j - 8) % 8, j),
        ((j - 8) // 8, const(-1)),
        (k % 8, k % 8),
        ((k + 8) % 8, k % 8),
        (k // 8, k // 8),
        (t // 4 // 8, t // 32),
        ((t // 4 + 3) // 8, (t + 12) // 32),
        (t % 64 % 32, t % 32),
        ((t % 64 + 32) % 32, t % 32),
        (t // 32 * 32 + t % 32, t),
        (t - t // 32 * 32, t % 32),
        (t // 4 % 8 * 4 + t % 4, t % 32),
        (n % 8, const(0)),
        ((n + 7) // 8, n // 8),
        ((n * 3 + 5) % 8, const(5)),
        (ceildiv(n, 4), n // 4),
        ((i * m + j) // m, i + j // m),
        (t >> 5, t // 32),
        (t & 31, t % 32),
        ((i << 3) | j, i * 8 + j),
        ((i * 8) ^ j, i * 8 + j),
        (i ^ i, const(0)),
        # minimum and maximum
        (binary("min", j, 9), j),
        (binary("max", j, i + 8), i + 8),
        (binary("min", binary("min", m, 9), 5), binary("min", m, 5)),
        (binary("min", n, m), binary("min", m, n)),
        # comparisons
        (i < 128, TRUE),
        (i * 4 + 3 < n * 4, i < n),
        (i + 4 < j + n + 4, i < j + n),
        (n > i, i < n),
        (i <= 3, i < 4),
        (i > 3, i >= 4),
        (i - n <= 0, i <= n),
        (compare("==", i * 2, n * 2 + 4), compare("==", i, n + 2)),
        (compare("==", i * 2, n * 2 + 1), FALSE),
        (compare("!=", j, i), compare("!=", i, j)),
        # logic
        (binary("and", i < n, i < n + 1), i < n),
        (binary("or", i < n, i >= n), TRUE),
        (logical_not(i < n), n <= i),
        (Call("not", (Call("not", (c,), BOOL),), BOOL), c),
        (Bin("and", c, TRUE), c),
        (Bin("and", c, FALSE), FALSE),
        (Bin("or", c, c), c),
        (Select(c, TRUE, FALSE), c),
        (Select(c, FALSE, TRUE), logical_not(c)),
        (Select(logical_not(c), i, j), Select(c, j, i)),
        (select(i < n, select(i < n, i, j), t), select(i < n, i, t)),
        (select(i < 200, i, j), i),
        (Select(c, i + j, j + i), i + j),
        (Cmp("!=", cast(c, INT32), const(0)), c),
        # casts
        (cast(cast(i, INT64), INT32), i),
        (cast(cast(i, dtype("int8")), INT64), cast(i, INT64)),
        (Cast(INT64, Cast(dtype("int8"), n)), Cast(INT64, Cast(dtype("int8"), n))),
        (Cast(BOOL, m), TRUE),
        (Cast(BOOL, n), compare("!=", n, const(0))),
        (Cast(dtype("float16"), Cast(FLOAT32, h)), h),
        # indices of loads, in the range of the place
        (Load(A, (i * 2 // 2, (j + 8) % 8)), Load(A, (i, j))),
        (Load(A, (i, j)) - Load(A, (i, j)), const(0)),
    ],
)
def test_golden(expr, expected) -> None:
    found = simplify(expr, R)
    assert found == expected, f"{expr}  ->  {found}"


def test_symbolic_divisor() -> None:
    r = R.given(j < m)
    assert simplify((i * m + j) // m, r) is i
    assert simplify((i * m + j) % m, r) is j
    assert simplify(m // m, R) is const(1)


def test_floats_keep_their_bits() -> None:
    zero = Const(0.0, FLOAT32)
    for same in (
        x + zero,
        x * 0.0,
        x - x,
        x / x,
        (x + 1.0) - 1.0,
        Bin("//", x, Const(1.0, FLOAT32)),
    ):
        assert simplify(same) is same
    twice = Call("neg", (-x,), FLOAT32)
    for gone in (x * 1.0, 1.0 * x, x / 1.0, x - zero, x + Const(-0.0, FLOAT32), twice):
        assert simplify(gone) is x
    less = x < 1.0
    assert simplify(logical_not(less)) is logical_not(less)  # false for NaN, as is x >= 1
    assert simplify(logical_not(compare("==", x, 1.0))) is compare("!=", x, 1.0)
    assert simplify(compare("==", x, x)) is compare("==", x, x)
    assert simplify(Cast(FLOAT32, Cast(dtype("float16"), x))) == Cast(
        FLOAT32, Cast(dtype("float16"), x)
    )


def test_values_that_wrap_are_left_alone() -> None:
    wraps = (i * m) // m
    assert simplify(wraps, R) is i
    assert simplify(wraps, R, index=False) == wraps
    quarter = (m * 4) // 4
    assert simplify(quarter, R, index=False) == quarter
    assert simplify(m * 4 % 4, R, index=False) is const(0)  # 4 divides 2^32
    u = Var("u", dtype("uint32"))
    assert simplify((u + 1) // 1 - u, index=True) == Const(1, u.dtype)
    assert simplify(u - 1 < u) == (u - 1 < u)
    # an index under a value is an index still
    value = simplify(Load(A, (wraps, j)) * m // m, R, index=False)
    assert loads(value) == [Load(A, (i, j))] and isinstance(value, Bin) and value.op == "//"


def test_division_by_zero_is_kept_for_whoever_runs_it() -> None:
    bad = Bin("//", i, const(0))
    assert simplify(bad + 0, R) is bad
    assert simplify(Bin("%", i, const(0)), R) is Bin("%", i, const(0))


def test_single_values() -> None:
    assert simplify(Var("z") + i, Ranges({Var("z"): (3, 3)})) == i + 3
    assert simplify(i * 2 + j, R.given(compare("==", i, const(5)))) == j + 10


def test_equal_sums_become_one_object() -> None:
    one = simplify((b * 128 + i) * 64 + (j + k * 8), R)
    other = simplify(k * 8 + j + (64 * i + 8192 * b), R)
    assert one is other


def test_quick() -> None:
    """A typical index of twenty nodes takes well under a millisecond (asserted loosely)."""
    index = ((b * 128 + t // 8) * 1024 + (k * 64 + ((t % 8) ^ ((t // 8) % 8)) * 8 + j)) // 8 % 128
    assert 15 <= sum(1 for _ in walk(index)) <= 30
    times = []
    for _ in range(5):
        ranges = Ranges({b: (0, 99), t: (0, 127), k: (0, 15), j: (0, 7)})
        start = time.process_time()
        simplify(index, ranges)
        times.append(time.process_time() - start)
    assert min(times) < 0.02


seeds = st.integers(0, 2**40)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", ["int32", "int8", "uint8", "int64"])
@settings(max_examples=40)
@given(seeds)
def test_equal_everywhere(kind: str, wide: bool, seed: int) -> None:
    """The result evaluates like the original for every assignment, and is a fixed point."""
    make = Maker(seed, kind, wide)
    expr = make.condition(3) if seed % 3 == 0 else make.integer(1 + seed % 5)
    ranges = Ranges(make.specs)
    if seed % 2:
        fact = make.condition(1)
        ranges = ranges.given(fact)
    else:
        fact = TRUE
    for index in (True, False):
        result = simplify(expr, ranges, index=index)
        assert result.dtype == expr.dtype
        live = False
        for env in assignments(make.specs, 60, seed):
            try:
                wanted = evaluate(expr, env, index)
                if not evaluate(fact, env):
                    continue
            except Undefined:
                continue
            live = True
            assert evaluate(result, env, index) == wanted
        if live:
            fresh = Ranges(make.specs).given(fact)
            assert simplify(result, fresh, index=index) is result
