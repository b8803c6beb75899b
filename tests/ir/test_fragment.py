"""Fragments: who holds what, against tables computed from the definitions."""

import doctest
import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.layout import fragment as fragment_module
from tilewright.layout import (
    Fragment,
    Layout,
    LayoutError,
    make_layout,
    mma_a_operand,
    mma_accumulator,
    mma_b_operand,
    parse_fragment,
    parse_layout,
    parse_layout_or_fragment,
    repeat,
    row_major,
    row_of,
    spatial,
    wgmma_a_operand,
    wgmma_accumulator,
)


def coords(fragment):
    """{(thread, value): coordinate} of the slots that are not idle."""
    slots = itertools.product(range(fragment.threads), range(fragment.values))
    found = {slot: fragment.coord(*slot) for slot in slots}
    return {slot: coord for slot, coord in found.items() if coord is not None}


def holders(fragment):
    """{(thread, tile index)}"""
    rows = enumerate(fragment.table().tolist())
    return {(thread, index) for thread, row in rows for index in row if index >= 0}


blocks = st.builds(
    lambda make, shape: make(*shape),
    st.sampled_from([spatial, repeat]),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
)


@st.composite
def fragments(draw):
    result = draw(blocks)
    for _ in range(draw(st.integers(0, 2))):
        result = result * draw(blocks)
    if draw(st.booleans()):
        result = result.replicate(draw(st.integers(1, 3)))
    if draw(st.booleans()):
        result = result.crop(*(draw(st.integers(1, extent)) for extent in result.tile))
    return result


def test_spatial_and_repeat_are_row_major():
    threads, values = spatial(3, 5), repeat(3, 5)
    assert (threads.threads, threads.values) == (15, 1)
    assert (values.threads, values.values) == (1, 15)
    for i in range(15):
        assert threads.coord(i, 0) == values.coord(0, i) == divmod(i, 5)


@given(blocks, fragments())
def test_the_product_is_its_definition(f, g):
    if g.cover != g.tile:
        with pytest.raises(LayoutError, match="idle slots of the inner"):
            f * g
        return
    product = f * g
    assert product.tile == (f.tile[0] * g.tile[0], f.tile[1] * g.tile[1])
    expected = {}
    for (ft, fv), (fi, fj) in coords(f).items():
        for (gt, gv), (gi, gj) in coords(g).items():
            slot = (ft * g.threads + gt, fv * g.values + gv)
            expected[slot] = (fi * g.tile[0] + gi, fj * g.tile[1] + gj)
    assert coords(product) == expected


def test_the_product_is_associative_and_takes_a_cropped_outer():
    f, g, h = spatial(2, 3), repeat(3, 1), spatial(2, 2)
    assert (f * g) * h == f * (g * h)
    cropped = spatial(2, 4).crop(2, 3) * repeat(1, 2)
    assert cropped == (spatial(2, 4) * repeat(1, 2)).crop(2, 6)


@given(fragments())
def test_questions(f):
    held = coords(f)
    table = f.table()
    assert table.shape == (f.threads, f.values) and not table.flags.writeable
    for slot in itertools.product(range(f.threads), range(f.values)):
        index = row_major(f.tile)(held[slot]) if slot in held else -1
        assert table[slot] == index
    everywhere = list(itertools.product(*map(range, f.tile)))
    for coord in everywhere:
        assert f.owner(coord) == sorted(slot for slot, at in held.items() if at == coord)
    assert f.is_complete == (set(held.values()) == set(everywhere))
    exactly_once = sorted(held.values()) == everywhere and len(held) == f.threads * f.values
    assert f.is_bijective == exactly_once
    for dim in range(2):
        along = f.along(dim)
        for (thread, value), coord in held.items():
            assert along[0](thread) + along[1](value) == coord[dim]
    if f.cover == f.tile:
        assert Fragment.fit(f.tile, table) == f


@given(fragments())
def test_text_round_trips(f):
    text = repr(f)
    assert parse_fragment(text) == parse_layout_or_fragment(text) == f
    assert "\n" not in text
    for opening, closing in ("{}", "()"):
        assert text.count(opening) == text.count(closing)


@given(fragments(), st.integers(0, 1), st.booleans())
def test_row_of(f, dim, keepdim):
    row = row_of(f, dim, keepdim)
    left = f.tile[1 - dim]
    assert row.tile == ((left,) if not keepdim else (1, left) if dim == 0 else (left, 1))
    assert row.threads == f.threads
    assert row.is_complete or not f.is_complete
    # Whoever held a part of a row holds its result, in one register.
    reduced = {(thread, coord[1 - dim]) for (thread, _), coord in coords(f).items()}
    assert reduced <= holders(row)
    assert len(coords(row)) == len(holders(row))


@given(fragments(), st.data())
def test_holds_and_locate(f, data):
    g = data.draw(st.sampled_from([f, f.drop_repeats(), repeat(*f.tile)]))
    if g.threads == 1:
        g = g.replicate(f.threads)
    assert f.holds(f) and g.holds(g)
    assert f.holds(g) == (holders(g) <= holders(f))
    assert g.holds(f) == (holders(f) <= holders(g))
    elements = f.elements
    needed = np.arange(f.threads * 4).reshape(f.threads, 4) * 7 % (elements + 2) - 1
    where = f.locate(needed)
    for wanted, found, held in zip(needed.tolist(), where.tolist(), f.table().tolist()):
        assert found == [held.index(i) if i >= 0 and i in held else -1 for i in wanted]


@given(fragments())
def test_where_everything_is(f):
    held, where = coords(f), f.coordinates()
    assert where.shape == (f.threads, f.values, 2) and not where.flags.writeable
    for slot in itertools.product(range(f.threads), range(f.values)):
        assert tuple(where[slot].tolist()) == held.get(slot, (-1, -1))
    first = f.first_slots()
    threads = [len({t for t, _ in f.owner(c)}) for c in itertools.product(*map(range, f.tile))]
    assert f.replication == max(threads)
    for index, coord in enumerate(itertools.product(*map(range, f.tile))):
        slots = f.owner(coord)
        assert first[index] == (slots[0][0] * f.values + slots[0][1] if slots else -1)
    assert f.covers(f.tile) == f.is_complete and not f.covers((*f.tile, 1))


@given(fragments(), st.data())
def test_registers(f, data):
    table = f.table()
    threads, columns = f.threads, data.draw(st.integers(1, 3))
    chosen = [data.draw(st.integers(0, f.values - 1)) for _ in range(columns)]
    needed = table[:, chosen].copy()
    if data.draw(st.booleans()):
        needed[data.draw(st.integers(0, threads - 1)), 0] = data.draw(
            st.integers(-1, f.elements - 1)
        )
    found = f.registers(needed)
    for k in range(columns):
        fits = [
            v
            for v in range(f.values)
            if all(w in (-1, h) for w, h in zip(needed[:, k].tolist(), table[:, v].tolist()))
        ]
        if not fits:
            assert found is None
            return
        if found is not None:
            assert found[k] in fits
    assert found is not None


def test_registers_finds_the_one_that_suits_all():
    # Thread 0 holds elements 0 0 1, thread 1 holds 1 1 2: only register 1 has (0, 1) last.
    f = Fragment((3,), make_layout(Layout(2), Layout((2, 2), (0, 1))))
    assert f.registers(np.array([[0], [1]])).tolist() == [0]
    assert f.registers(np.array([[1], [1]])) is None
    assert f.registers(np.array([[1, -1], [-1, 2]])).tolist() == [2, 2]


@given(fragments())
def test_same_is_equality_of_functions(f):
    assert f.same(f)
    wider = Fragment(f.tile, f.layout, f.cover)
    assert f.same(wider)
    other = f.replicate(2)
    assert not f.same(other)
    assert spatial(4).same(Fragment((4,), Layout((4, 1), (1, 0)), (8,)))


@given(fragments(), st.integers(0, 2), st.integers(1, 3))
def test_expand(f, dim, extent):
    grown = f.expand(dim, extent)
    assert grown.tile == (*f.tile[:dim], extent, *f.tile[dim:])
    expected = {}
    for (thread, value), coord in coords(f).items():
        for new in range(extent):
            expected[thread, value * extent + new] = (*coord[:dim], new, *coord[dim:])
    assert coords(grown) == expected
    assert row_of(grown, dim).holds(f)


@given(fragments())
def test_permute(f):
    swapped = f.permute(1, 0)
    assert swapped.tile == f.tile[::-1] and f.permute(0, 1) == f
    assert coords(swapped) == {slot: coord[::-1] for slot, coord in coords(f).items()}
    assert swapped.permute(1, 0).same(f)


@given(fragments())
def test_reshape(f):
    if f.cover == f.tile:
        flat = f.reshape(f.elements)
        assert (flat.table() == f.table()).all() and flat.reshape(*f.tile) == f


def test_permute_three():
    f = spatial(2, 3, 4)
    assert f.permute(2, 0, 1).coord(5, 0) == (1, 0, 1)
    assert f.coord(5, 0) == (0, 1, 1)


def test_part_keeps_registers():
    f = wgmma_accumulator(64, 64)
    left = f.part(1, 16, 32)
    assert left == wgmma_accumulator(64, 32)
    assert (f.table()[:, 8:24] % 64 - 16 == left.table() % 32).all()
    rows = (repeat(4, 1) * spatial(8, 4)).part(0, 16, 8)
    assert rows == spatial(8, 4)


def test_printing_draws_a_grid():
    f = spatial(1, 2) * repeat(1, 2)
    assert str(f) == f"{f!r}\n0:0 0:1 1:0 1:1"
    assert str(wgmma_accumulator(64, 64)).splitlines()[-1] == "... 32 x 32 of 64 x 64"
    assert spatial(2, 2, 2).grid() == "0:0 1:0\n2:0 3:0\n4:0 5:0\n6:0 7:0"


def test_large_fragments_take_milliseconds():
    f = wgmma_accumulator(512, 256)
    start = time.process_time()
    assert f.is_bijective and f.coordinates().shape == (1024, 128, 2)
    assert f.registers(f.table()).tolist() == list(range(128))
    assert row_of(f, 1).replication == 4
    assert time.process_time() - start < 0.5


def test_holds_knows_replication():
    accumulator = wgmma_accumulator(64, 64)
    row = row_of(accumulator, 1)
    assert not row.holds(spatial(64).replicate(2))
    assert (spatial(64) * repeat(1)).replicate(2).holds(spatial(64).replicate(2))
    assert not row.is_bijective and row.is_complete
    assert len(row.owner((5,))) == 4
    # What an elementwise loop over the accumulator needs of a row vector, it has.
    needed = accumulator.table() // 64
    assert (row.locate(needed) >= 0).all()


@pytest.mark.parametrize("n", [8, 176, 256])
@pytest.mark.parametrize("m", [64, 128])
def test_wgmma_accumulator(m, n):
    f = wgmma_accumulator(m, n)
    assert (f.tile, f.threads, f.values) == ((m, n), 2 * m, n // 2)
    assert f.is_bijective
    table = f.table()
    for thread in range(f.threads):
        warp, lane = divmod(thread, 32)
        for j in range(n // 8):
            for down in (0, 1):
                for right in (0, 1):
                    row = 16 * warp + lane // 4 + 8 * down
                    column = 8 * j + 2 * (lane % 4) + right
                    assert table[thread, 4 * j + 2 * down + right] == row * n + column


@pytest.mark.parametrize(("bits", "k"), [(8, 32), (16, 16), (32, 8)])
def test_operand_registers(bits, k):
    pack = 32 // bits
    a, b, wide = mma_a_operand(16, k, bits), mma_b_operand(k, 8, bits), wgmma_a_operand(64, k, bits)
    assert a.is_bijective and b.is_bijective and wide.is_bijective
    for lane, register, part in itertools.product(range(32), range(4), range(pack)):
        row = lane // 4 + 8 * (register % 2)
        column = pack * (lane % 4) + 4 * pack * (register // 2) + part
        assert a.coord(lane, register * pack + part) == (row, column)
        assert wide.coord(96 + lane, register * pack + part) == (48 + row, column)
        if register < 2:
            down = pack * (lane % 4) + 4 * pack * register + part
            assert b.coord(lane, register * pack + part) == (down, lane // 4)


def test_an_accumulator_is_the_next_a_operand():
    assert wgmma_a_operand(64, 128) == wgmma_accumulator(64, 128)
    assert wgmma_a_operand(64, 128, 8) != wgmma_accumulator(64, 128)
    assert spatial(4, 1) * mma_accumulator(16, 64) == wgmma_accumulator(64, 64)
    blocks = mma_accumulator(32, 16)
    assert blocks == repeat(2, 1) * mma_accumulator(16, 16)
    assert mma_b_operand(16, 24) == repeat(1, 3) * mma_b_operand()


def test_registers_of_one_instruction_follow_each_other():
    whole, one = wgmma_a_operand(64, 48), wgmma_a_operand(64, 16)
    for thread, value in itertools.product((0, 37, 127), range(24)):
        row, column = one.coord(thread, value % 8)
        assert whole.coord(thread, value) == (row, 16 * (value // 8) + column)


def test_odd_tiles():
    f = (spatial(4, 32) * repeat(3, 4)).crop(11, 100)
    assert f.is_complete and not f.is_bijective
    assert f.coord(24, 3) == (0, 99) and f.coord(25, 0) is None and f.coord(96, 8) is None
    row = row_of(f, 1)
    assert row.tile == (11,) and row.values == 3
    linear = Fragment((100, 3), make_layout(Layout(128), Layout(3, 128)), cover=(128, 3))
    assert linear.is_complete
    with pytest.raises(LayoutError, match="composition"):
        row_of(linear, 1)  # threads straddle rows, so no layout says who shares one


def test_fragments_are_values():
    again = Fragment((8, 8), Layout(((4, 8), (2, 1)), ((2, 8), (1, 5))))
    assert again == spatial(8, 4) * repeat(1, 2) and hash(again) == hash(
        spatial(8, 4) * repeat(1, 2)
    )
    assert parse_layout_or_fragment("(4,8):(1,4)") == parse_layout("(4,8):(1,4)")
    text = "frag{ tile=(4,100)  cover=(4, 128) tv=(128,4):(4,1) }"
    assert parse_fragment(text) == (spatial(4, 32) * repeat(1, 4)).crop(4, 100)


def test_grids():
    assert (spatial(1, 2) * repeat(2, 1)).grid() == "0:0 1:0\n0:1 1:1"
    assert spatial(3).replicate(2).grid() == "0:0x2 1:0x2 2:0x2"
    part = Fragment((2, 2), make_layout(Layout(2), Layout(1, 0)), cover=(2, 4))
    assert part.grid() == "0:0 1:0\n  -   -"
    assert spatial(4).crop(3).grid() == "0:0 1:0 2:0"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fragment((4,), Layout(4)), r"4:1 is not \(thread, value\)"),
        (lambda: Fragment((4,), Layout((4, 2))), r"reaches index 7, outside the box \(4,\)"),
        (lambda: Fragment((4,), Layout((2, 2)), (3,)), r"cover \(3,\) does not contain"),
        (lambda: spatial(4, 4) * repeat(2), "different ranks"),
        (lambda: spatial(4).crop(5), "cannot crop"),
        (lambda: spatial(4).coord(4, 0), r"no slot \(thread 4, value 0\)"),
        (lambda: spatial(4).owner((4,)), r"no element \(4,\)"),
        (lambda: spatial(4).locate(np.zeros((3, 1), np.int64)), r"\(3, 1\) is not \(threads"),
        (lambda: row_of(spatial(4), 1), "no dimension 1 to reduce"),
        (lambda: Fragment.fit((4,), np.array([[0, 1], [2, 0]])), "different patterns"),
        (lambda: spatial(4).expand(2, 3), "no place 2 for a new dimension"),
        (lambda: spatial(4, 2).permute(0, 0), r"\(0, 0\) is not an order"),
        (lambda: spatial(4, 2).reshape(3, 3), "8 elements do not make a tile"),
        (lambda: spatial(4).crop(3).reshape(3), "cropped fragment"),
        (lambda: spatial(4, 2).part(0, 2, 3), "no part 2:5 of dimension 0"),
        (lambda: spatial(4, 2).part(0, 2, 2), "in different registers, or not at all"),
        (lambda: wgmma_accumulator(64, 12), "n is 12, not a multiple of 8, at most 256"),
        (lambda: wgmma_accumulator(64, 264), "n is 264, not a multiple of 8, at most 256"),
        (lambda: wgmma_accumulator(96, 8), "m is 96, not a multiple of 64"),
        (lambda: wgmma_a_operand(64, 24), "k is 24, not a multiple of 16"),
        (lambda: wgmma_a_operand(64, 32, 4), "8, 16, 32 or 64 bits, not 4"),
        (lambda: parse_fragment("frag{tile=(4)}"), "expected frag{tile"),
        (lambda: parse_fragment("frag{tile=(4) tv=S<1,0,1> o 0 o (4,1):(1,0)}"), "no swizzle"),
    ],
)
def test_refusals_say_what_failed(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


def test_examples_in_docstrings():
    outcome = doctest.testmod(fragment_module)
    assert outcome.attempted and not outcome.failed
