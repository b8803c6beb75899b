"""Intervals, residues, linear forms and proofs: known answers, and soundness on random ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.integer_model import Maker, Undefined, assignments, evaluate
from tilewright.ir.analysis.bounds import (
    Ranges,
    bounds,
    linear,
    multiple_of,
    prove,
    stride_of,
)
from tilewright.ir.analysis.intervals import limits
from tilewright.ir.buffer import Buffer, Space, element
from tilewright.ir.dtype import FLOAT32, INT32, INT64, dtype
from tilewright.ir.expr import (
    Bin,
    Call,
    Load,
    Var,
    binary,
    cast,
    ceildiv,
    compare,
    const,
    logical_not,
    select,
)
from tilewright.ir.op import Break, Dim, For, Hint, If, Kernel, Let, Map, Role, Store
from tilewright.ir.scope import entry, walk_ranges

i, j, k, m, n, t = (Var(name) for name in "ijkmnt")
b = Var("b")
R = Ranges({i: (0, 127), j: (0, 7), k: (-4, 4), n: (0, None, 8), m: (1, 1000), t: (0, 127)})


@pytest.mark.parametrize(
    ("expr", "lo", "hi"),
    [
        (i * 8 + j, 0, 1023),
        (i - i, 0, 0),
        (j - i, -127, 7),
        (k * -3, -12, 12),
        (k // 3, -2, 1),
        (k % 3, 0, 2),
        (k % -3, -2, 0),
        (j % 8, 0, 7),
        (t // 32, 0, 3),
        (i // m, 0, 127),
        (j % m, 0, 7),
        (t & 31, 0, 31),
        (t >> 5, 0, 3),
        (k >> 1, -2, 2),
        (j << 3, 0, 56),
        (j ^ 5, 0, 7),
        (i | 256, 0, 511),
        (binary("min", i, 9), 0, 9),
        (binary("max", i, 9), 9, 127),
        (abs(k), 0, 4),
        (-k, -4, 4),
        (~j, -8, -1),
        (select(i < 4, i, const(3)), 0, 3),
        (cast(i, INT64), 0, 127),
        (cast(i, dtype("int8")), 0, 127),
        (cast(i + 1, dtype("int8")), -128, 127),
        (cast(i < 3, INT32), 0, 1),
        (Call("popcount", (i,), INT32), 0, 32),
        (Var("u", dtype("uint8")), 0, 255),
    ],
)
def test_intervals(expr, lo, hi) -> None:
    assert bounds(expr, R)[:2] == (lo, hi)


def test_floats_are_unbounded() -> None:
    assert bounds(Var("f", FLOAT32)) == limits(FLOAT32)
    assert multiple_of(Var("f", FLOAT32)) == 1
    assert prove(Var("f", FLOAT32) < 1.0) is None


@pytest.mark.parametrize(
    ("expr", "divisor"),
    [
        (n, 8),
        (n * 3 + 16, 8),
        (i * 12 + 8, 4),
        (n // 2, 4),
        (n % 16, 8),
        (n % 8, 0),
        (n << 2, 32),
        (binary("min", n, 24), 8),
        (select(i < 4, n, const(12)), 4),
        ((i * 16) ^ (j * 8), 8),
        ((i * 16) | (j * 4), 4),
        (i & ~const(3), 4),
        (const(12), 12),
        (i * n * 2, 16),
        (cast(n, INT64), 8),
        (i, 1),
    ],
)
def test_divisors(expr, divisor) -> None:
    assert multiple_of(expr, R) == divisor


def test_residues() -> None:
    assert bounds(n + 3, R)[2:] == (8, 3)
    assert bounds(i * 4 - 1)[2:] == (4, 3)
    assert bounds(const(5))[2:] == (0, 5)
    assert bounds(n + 3, R.given(n > 0)).lo == 11


def test_wrapping_values_and_indices() -> None:
    # as an index the product is taken to fit; as a value it may wrap to anything
    wide = Ranges({i: (0, None), j: (2, 2)})
    assert bounds(i * j, wide)[:2] == (0, 2**31 - 2)
    assert bounds(i * j, wide, index=False)[:2] == (-(2**31), 2**31 - 2)
    assert multiple_of(i * j, wide, index=False) == 2
    assert prove(n < n + 1) is True
    assert prove(n < n + 1, index=False) is None
    assert prove(n < n + 1, R.where(n, 0, 1000), index=False) is True
    u = Var("u", dtype("uint32"))
    assert prove(u - 1 < u) is None  # unsigned arithmetic always wraps


def test_sums_of_sizes_and_of_data() -> None:
    """Sums of coordinates and of sizes known at launch do not overflow; those of data wrap."""
    size, block, at, q = (Var(name) for name in ("size", "block", "at", "q"))
    known = Ranges({i: (0, 127)}).where(size, 0, sized=True)
    known = known.loop(block, const(0), ceildiv(size, 128), const(1))
    row = block * 128 + i
    tile = known.let(at, row).let(q, n + 1)
    for e, sized in ((row, True), (i * 3, False), (row + n, None), (at, True), (q, None)):
        assert tile.sized(e) is sized, str(e)
    assert tile.sized(Load(Buffer("A", (size,), INT32, Space.GLOBAL), (i,))) is None
    assert prove(row < row + 1, tile, index=False) is True
    assert prove(at < at + 1, tile, index=False) is True
    assert prove(row + n < row + n + 1, tile, index=False) is None
    assert prove(q < q + 1, tile, index=False) is None
    assert linear(row, tile, index=False) is not None
    assert linear(row + n, tile, index=False) is None
    # static coordinates are known to the bit: where their sums do not fit, they wrap
    assert linear(i * 100_000_000, tile, index=False) is None
    # a loop between bounds that are data
    assert known.loop(t, n, m, const(1)).sized(t) is None
    small = Var("small", dtype("int8"))
    assert linear(small * 2, Ranges().where(small, sized=True), index=False) is None


class TestProve:
    def test_symbolic_terms_cancel(self) -> None:
        r = R.given(i < n)
        assert prove(i * 4 + 3 < n * 4, r) is True
        assert prove(i * 4 + 4 <= n * 4, r) is True
        assert prove(i * 4 + 4 < n * 4, r) is None
        assert prove(i >= n, r) is False
        assert prove(compare("==", i - n, n), r) is False
        assert prove(compare("!=", i, n), r) is True

    def test_residues_decide(self) -> None:
        assert prove(compare("==", n + 1, i * 4), R) is False
        # n > j·8 and both multiples of 8: at least one whole step apart
        assert prove(j * 8 + 7 < n, R.given(j * 8 < n)) is True

    def test_tiles_of_a_symbolic_size(self) -> None:
        ragged = Ranges({m: (0, None), i: (0, 127)}).loop(b, const(0), ceildiv(m, 128), const(1))
        assert prove(b * 128 < m, ragged) is True
        assert prove(b * 128 + i < m, ragged) is None
        whole = Ranges({m: (0, None, 128), i: (0, 127)})
        whole = whole.loop(b, const(0), ceildiv(m, 128), const(1))
        assert prove(b * 128 + i < m, whole) is True
        assert prove(b * 128 + i < m, whole, index=False) is True

    def test_row_major_offsets(self) -> None:
        r = Ranges(dict.fromkeys((i, j, m, n), (0, None))).given(i < m).given(j < n)
        assert prove(i * n + j < m * n, r) is True
        assert prove(i * n + j >= 0, r) is True
        assert prove(i * n + j + 1 < m * n, r) is None

    def test_min_max_and_remainders(self) -> None:
        r = Ranges({m: (0, None), i: (0, None)}).given(i < m)
        assert prove(i + binary("min", m - i, 64) <= m, r) is True
        assert prove(binary("max", i, 5) >= i, r) is True
        assert prove(m // 8 * 8 <= m, r) is True
        assert prove(m - m % 8 >= 0, r) is True
        assert prove(ceildiv(m, 64) * 64 >= m, r) is True

    def test_logic(self) -> None:
        r = R.given(i < n)
        yes, no, open_ = i <= n, i > n, i < 5
        assert prove(binary("and", yes, open_), r) is None
        assert prove(binary("and", no, open_), r) is False
        assert prove(binary("or", yes, open_), r) is True
        assert prove(logical_not(no), r) is True
        assert prove(select(yes, yes, open_), r) is True
        assert prove(select(open_, yes, yes), r) is True

    def test_facts_narrow_variables(self) -> None:
        r = R.given(binary("and", i >= 3, logical_not(i > 9)))
        assert bounds(i, r)[:2] == (3, 9)
        assert bounds(t, R.given(compare("==", t // 32, const(1))))[:2] == (32, 63)
        assert multiple_of(m, R.given(compare("==", m % 16, const(0)))) == 16
        assert bounds(m, R.given(compare("==", (m + 1) % 4, const(0))))[2:] == (4, 3)
        assert bounds(i, R.given(compare("!=", i, const(0)))).lo == 1
        assert bounds(i, R.given(binary("min", i, t) >= 5)).lo == 5
        assert bounds(i, R.given(logical_not(binary("or", i < 2, i > 4))))[:2] == (2, 4)

    def test_facts_about_wrapping_values_do_not_bind_indices(self) -> None:
        x, w = Var("x"), Var("w")
        r = Ranges({x: (2**31 - 9, None)}).let(w, (x + 12) // 3)  # wraps to a negative number
        assert prove(w > 0, r) is None and prove(w > 0, r, index=False) is None
        assert prove((x + 12) // 3 > 0, r) is True

    def test_contradictions_are_harmless(self) -> None:
        dead = R.given(i > 5).given(i < 3)
        assert bounds(i, dead).lo is not None
        assert prove(i < 1000, dead) is not False

    def test_loads_make_no_facts(self) -> None:
        a = Buffer("a", (const(4),), INT32, Space.GLOBAL)
        r = R.given(Load(a, (i,)) < 3)
        assert r is R

    def test_named_conditions(self) -> None:
        c = Var("c", dtype("bool"))
        r = R.let(c, i < n)
        assert prove(i < n, r.given(c)) is True
        assert prove(i < n, r.given(c, False)) is False


class TestLinear:
    def test_forms(self) -> None:
        form = linear((i + 2) * 4 - j + (n - 1) * i)
        assert form is not None
        assert (form.terms[i], form.terms[j], form.const) == (3, -1, 8)
        assert form.terms[Bin("*", i, n)] == 1
        assert linear(i + j, index=False) is None

    @pytest.mark.parametrize(
        ("expr", "stride"),
        [
            (i * 4 + j, 4),
            (j * 3, 0),
            ((i + j) * 2 - i, 1),
            (i * n, None),
            (i // 2, None),
            (cast(i * 8, INT64) + 3, 8),
            (i - i, 0),
            (n // 2 + i, 1),
        ],
    )
    def test_strides(self, expr, stride) -> None:
        assert stride_of(expr, i) == stride

    def test_strides_look_through_lets(self) -> None:
        v, w = Var("v"), Var("w")
        table = Buffer("table", (const(4),), INT32, Space.GLOBAL)
        outside = R.where(b, 0, 3).let(w, Load(table, (b,))).where(Var("x"), 0, 3)
        inside = outside.let(v, Var("x") * 4 + w)
        assert stride_of(v + 1, Var("x"), inside) == 4
        assert stride_of(w, Var("x"), inside) == 0
        assert stride_of(v, b, inside) is None  # w was loaded anew for each b


class TestScope:
    def test_where_things_hold(self) -> None:
        x, role = Var("x"), Var("role")
        out = Buffer("out", (n, const(64)), INT32, Space.GLOBAL)

        def store(name: str) -> Store:
            return Store(out, (const(0), const(0)), Var(name))

        body = (
            Hint("assume", value=compare("==", n % 16, const(0))),
            store("top"),
            For(i, const(2), n, (store("loop"),), step=const(4)),
            Map((j,), (const(8),), (store("map"),)),
            Let(x, t * 2 + 1),
            If(x < 9, (store("then"),), (store("else"),)),
            For(k, const(0), const(9), (If(k >= m, (Break(),)), store("unbroken"))),
            Role("r", 0, 4, (store("role"),), instances=2, var=role),
        )
        kernel = Kernel("k", (b,), (ceildiv(n, 16),), (t,), (32,), body)
        at = {
            op.value.name: ranges
            for op, ranges in walk_ranges(kernel, [Dim(n, 1, 4096, 8)])
            if isinstance(op, Store)
        }
        assert bounds(t, at["top"])[:2] == (0, 31)
        assert bounds(n, at["top"])[:2] == (16, 4096)
        assert multiple_of(n, at["top"]) == 16
        assert bounds(b, at["top"])[:2] == (0, 255)
        assert prove(b * 16 + 15 < n, at["top"]) is True
        assert bounds(i, at["loop"])[2:] == (4, 2) and bounds(i, at["loop"])[:2] == (2, 4094)
        assert prove(i < n, at["loop"]) is True
        assert bounds(j, at["map"])[:2] == (0, 7)
        assert bounds(x, at["then"]).hi == 7 and bounds(x, at["then"])[2:] == (2, 1)
        assert prove(t <= 3, at["then"]) is True and prove(t > 3, at["else"]) is True
        assert prove(k < m, at["unbroken"]) is True
        assert bounds(role, at["role"])[:2] == (0, 1)

    def test_tensor_sizes_are_not_negative(self) -> None:
        a = Buffer("a", (n, m * 2), INT32, Space.GLOBAL)
        kernel = Kernel("k", (), (), (t,), (32,), (Store(a, (const(0), const(0)), const(1)),))
        assert prove(n >= 0, entry(kernel)) is True
        assert prove(m >= 0, entry(kernel)) is True
        assert element(a, 0, 0).buffer is a


seeds = st.integers(0, 2**40)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", ["int32", "int8", "uint8"])
@settings(max_examples=40)
@given(seeds)
def test_sound(kind: str, wide: bool, seed: int) -> None:
    """Nothing evaluates outside its interval, off its residue, or against a proof."""
    make = Maker(seed, kind, wide)
    fact, expr = make.condition(make.rng.randint(0, 1)), make.integer(make.rng.randint(1, 4))
    cond = make.condition(2)
    name = Var("w", make.kind)
    value = make.integer(2)
    make.vars += (name,)
    about = make.condition(1)
    for index in (False, True):
        ranges = Ranges(make.specs).let(name, value).given(fact)
        interval = bounds(expr, ranges, index=index)
        divisor = multiple_of(expr, ranges, index=index)
        decided = [(c, prove(c, ranges, index=index)) for c in (cond, about)]
        for env in assignments(make.specs, 60, seed):
            try:
                env[name] = evaluate(value, env)
                if not evaluate(fact, env):
                    continue
            except Undefined:
                continue
            with suppress(Undefined):
                found = evaluate(expr, env, index)
                assert interval.lo <= found <= interval.hi
                assert found % divisor == 0 if divisor else found == 0
            for c, verdict in decided:
                with suppress(Undefined):
                    assert verdict is None or bool(evaluate(c, env, index)) is verdict


def test_blocks_of_a_cluster_share_a_row() -> None:
    """bx < 2·m, so bx // 2 < m: what is twice an integer and above -2 is not below 0."""
    bx, m = Var("bx"), Var("m")
    known = Ranges({bx: (0, None), m: (1, None)}).given(bx < m * 2, index=True)
    assert prove(bx // 2 < m, known) is True
    assert prove(bx // 2 + 1 < m, known) is None
    assert prove(bx // 3 < m, known) is True
