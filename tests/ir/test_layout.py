"""The layout algebra: published values, and every operation against its definition."""

import contextlib
import doctest
import itertools
import time
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.ir.layout import layout as layout_module
from tilewright.ir.layout import ops as layout_ops
from tilewright.ir.layout import query as layout_query
from tilewright.ir.layout.layout import leaves
from tilewright.layout import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    bijective,
    blocked_product,
    coalesce,
    column_major,
    compatible,
    complement,
    composition,
    congruent,
    cosize,
    covers,
    crd2idx,
    depth,
    filter,
    fit_layout,
    flat_divide,
    flatten,
    idx2crd,
    injective,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    make_swizzled_layout,
    parse_layout,
    raked_product,
    rank,
    right_inverse,
    row_major,
    same,
    size,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)


def values(layout):
    """The definition: the natural coordinates in colexicographic order, times the strides."""
    shape, stride = leaves(layout.shape), leaves(layout.stride)
    coords = itertools.product(*(range(extent) for extent in reversed(shape)))
    return [sum(c * d for c, d in zip(reversed(coord), stride)) for coord in coords]


shapes = st.recursive(
    st.sampled_from([1, 2, 2, 3, 4, 4, 5, 6, 8]),
    lambda parts: st.lists(parts, min_size=1, max_size=3).map(tuple),
    max_leaves=4,
)


@st.composite
def layouts(draw, strides=(0, 1, 1, 2, 2, 3, 4, 6, 8, 12, 16, 24)):
    """Compact layouts in any order, some with gaps between modes, and arbitrary ones."""
    shape = draw(shapes)
    extents = leaves(shape)
    if draw(st.booleans()):
        return Layout(shape, _nest([draw(st.sampled_from(strides)) for _ in extents], shape))
    result, stride = [0] * len(extents), 1
    for i in draw(st.permutations(range(len(extents)))):
        stride *= draw(st.sampled_from([1, 1, 1, 2, 3]))
        result[i] = stride
        stride *= extents[i]
    return Layout(shape, _nest(result, shape))


def _nest(flat, shape):
    return layout_module.unflatten(iter(flat), shape)


def admissible(op, *args):
    try:
        return op(*args)
    except LayoutError:
        assume(False)


def L(text):
    return parse_layout(text)


# Published values


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (coalesce(L("(2,(1,6)):(1,(6,2))")), "12:1"),
        (coalesce(L("(2,(1,6)):(1,(6,2))"), (1, 1)), "(2,6):(1,2)"),
        (composition(L("(6,2):(8,2)"), L("(4,3):(3,1)")), "((2,2),3):((24,2),8)"),
        (composition(L("20:2"), L("(5,4):(4,1)")), "(5,4):(8,2)"),
        (composition(L("(10,2):(16,4)"), L("(5,4):(1,5)")), "(5,(2,2)):(16,(80,4))"),
        (composition(L("(3,6,2,8):(5,7,11,13)"), L("16:9")), "(2,2,4):(21,11,13)"),
        (
            composition(L("(12,(4,8)):(59,(13,1))"), (L("3:4"), L("8:2"))),
            "(3,(2,4)):(236,(26,1))",
        ),
        (composition(L("(12,(4,8)):(59,(13,1))"), (3, 8)), "(3,(4,2)):(59,(13,1))"),
        (complement(L("4:1"), 24), "6:4"),
        (complement(L("6:4"), 24), "4:1"),
        (complement(L("(4,6):(1,4)"), 24), "1:0"),
        (complement(L("4:2"), 24), "(2,3):(1,8)"),
        (complement(L("(2,4):(1,6)"), 24), "3:2"),
        (complement(L("(2,2):(1,6)"), 24), "(3,2):(2,12)"),
        (logical_divide(L("(4,2,3):(2,1,8)"), L("4:2")), "((2,2),(2,3)):((4,1),(2,8))"),
        (
            logical_divide(L("(9,(4,8)):(59,(13,1))"), (L("3:3"), L("(2,4):(1,8)"))),
            "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))",
        ),
        (
            zipped_divide(L("(9,(4,8)):(59,(13,1))"), (L("3:3"), L("(2,4):(1,8)"))),
            "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))",
        ),
        (logical_product(L("(2,2):(4,1)"), L("6:1")), "((2,2),(2,3)):((4,1),(2,8))"),
        (blocked_product(L("(2,5):(5,1)"), L("(3,4):(1,3)")), "(6,(5,4)):(5,(1,30))"),
        (
            raked_product(L("(2,5):(5,1)"), L("(3,4):(1,3)")),
            "((3,2),(4,5)):((10,5),(30,1))",
        ),
    ],
)
def test_published_values(got, expected):
    assert repr(got) == f"{got}" == expected


def test_published_coordinates():
    shape, stride = (3, (2, 3)), (3, (12, 1))
    for coord in (16, (1, 5), (1, (1, 2))):
        assert idx2crd(coord, shape) == (1, (1, 2))
        assert crd2idx(coord, shape, stride) == 17


def test_divides_keep_the_modes_they_promise():
    a, tiler = Layout((8, 12, 5)), (4, 3)
    assert logical_divide(a, tiler).shape == ((4, 2), (3, 4), 5)
    assert zipped_divide(a, tiler).shape == ((4, 3), (2, 4, 5))
    assert tiled_divide(a, tiler).shape == ((4, 3), 2, 4, 5)
    assert flat_divide(a, tiler).shape == (4, 3, 2, 4, 5)
    assert logical_product(a, (2, 3)).shape == ((8, 2), (12, 3), 5)
    assert zipped_product(a, (2, 3)).shape == ((8, 12), (2, 3, 5))
    assert tiled_product(a, (2, 3)).shape == ((8, 12), 2, 3, 5)


def test_a_tiler_may_nest():
    a = Layout(((4, 6), 8))
    assert zipped_divide(a, ((2, 3), 4)) == Layout(
        (((2, 3), 4), ((2, 2), 2)), (((1, 4), 24), ((2, 12), 96))
    )


def test_a_tile_need_not_divide():
    assert logical_divide(Layout(10), Layout(4)) == L("(4,3):(1,4)")


# Definitions


@given(layouts())
def test_a_layout_is_its_definition(a):
    expected = values(a)
    assert [a(i) for i in range(a.size())] == expected
    assert a.indices().tolist() == expected
    assert a.at(np.arange(a.size())).tolist() == expected
    assert size(a) == len(expected) and cosize(a) == max(expected) + 1
    assert rank(a) == len(a) == len(list(a)) and depth(a) == depth(a.shape)
    array = a.array()
    for i, coord in enumerate(itertools.product(*(range(size(m)) for m in reversed(list(a))))):
        assert array[coord[::-1]] == expected[i]
        assert a(*coord[::-1]) == expected[i]


@given(layouts())
def test_coordinates_round_trip(a):
    for i in range(a.size()):
        coord = idx2crd(i, a.shape)
        assert congruent(coord, a.shape)
        assert crd2idx(coord, a.shape) == i
        assert a(coord) == a(i)


@given(layouts(), st.integers(0, 3), st.integers(0, 5), st.integers(3, 5), st.integers(0, 9))
def test_text_round_trips(a, bits, base, shift, offset):
    swizzled = ComposedLayout(Swizzle(bits, base, shift), offset, a)
    for layout in (a, swizzled):
        text = repr(layout)
        assert parse_layout(text) == layout and "\n" not in text
        assert parse_layout(f" {text.replace(',', ' , ')} ") == layout


@given(layouts())
def test_coalesce_flatten_filter(a):
    for result in (coalesce(a), flatten(a)):
        assert values(result) == values(a)
        assert depth(result) <= 1
    assert rank(coalesce(a)) <= rank(flatten(a))
    assert coalesce(coalesce(a)) == coalesce(a)
    by_mode = coalesce(a, (1,) * len(a))
    assert len(by_mode) == len(a)
    for mode, before in zip(by_mode, a):
        assert mode == coalesce(before)
    kept = filter(a)
    assert set(values(kept)) == set(values(a))
    assert 0 not in leaves(kept.stride) or kept == Layout(1, 0)


@given(layouts(), layouts())
def test_same_is_equality_of_functions(a, b):
    assert same(a, b) == (values(a) == values(b))
    assert same(a, coalesce(a)) and same(a, flatten(a))


def within(a, wanted):
    """Which indices are coordinates of a layout: an operand that overhangs says nothing else."""
    return np.array(wanted) < a.size()


@given(layouts(), layouts())
def test_composition(a, b):
    result = admissible(composition, a, b)
    inside = within(a, values(b))
    expected = a.at(np.array(values(b)))
    assert (np.array(values(result)) == expected)[inside].all()
    assert compatible(b.shape, result.shape)
    # Past its end the left layout runs on along its last mode, if that has more than one element.
    if leaves(a.shape)[-1] > 1:
        assert values(result) == expected.tolist()


@given(layouts(), layouts())
def test_composition_refuses_what_no_layout_can_say(a, b):
    b = flatten(b)
    try:
        composition(a, b)
    except LayoutError as error:
        expected = a.at(np.array(values(b)))
        if "shape divisibility" in str(error) and len(b) == 1:
            with pytest.raises(LayoutError):
                fit_layout(expected)
        if "carry" in str(error):
            apart = make_layout(*(composition(a, mode) for mode in b))
            assert (np.array(values(apart)) != expected)[within(a, values(b))].any()


@given(st.lists(layouts(), min_size=1, max_size=3), st.data())
def test_composition_and_divide_by_mode(parts, data):
    a = make_layout(*parts)
    tiler = tuple(data.draw(layouts()) for _ in range(data.draw(st.integers(1, len(parts)))))
    rest = parts[len(tiler) :]
    composed = admissible(composition, a, tiler)
    assert composed == make_layout(*map(composition, parts, tiler), *rest)
    divided = admissible(logical_divide, a, tiler)
    assert divided == make_layout(*map(logical_divide, parts, tiler), *rest)
    zipped = zipped_divide(a, tiler)
    assert list(zipped[0]) == list(composed)[: len(tiler)]
    assert list(zipped[1]) == [mode[1] for mode in list(divided)[: len(tiler)]] + rest
    assert tiled_divide(a, tiler) == make_layout(zipped[0], *zipped[1])
    assert flat_divide(a, tiler) == make_layout(*zipped[0], *zipped[1])


@given(layouts(), st.integers(1, 300))
def test_complement(a, cotarget):
    result = admissible(complement, a, cotarget)
    both = make_layout(filter(a), result)
    if injective(filter(a)):
        assert injective(both)
    assert both.cosize() >= cotarget
    ordered = values(result)
    assert ordered == sorted(set(ordered))
    if bijective(both):
        assert covers(both, cotarget)


@given(layouts())
def test_complement_leaves_no_hole_in_ordered_layouts(a):
    modes = sorted((d, s) for s, d in filter(a).modes())
    below = [1] + [d * s for d, s in modes]
    assume(all(d % span == 0 and d for (d, _), span in zip(modes, below)))
    assert bijective(make_layout(filter(a), complement(a, cosize(a))))


@given(layouts())
def test_inverses(a):
    right = right_inverse(a)
    assert [a(i) for i in values(right)] == list(range(right.size()))
    if bijective(a):
        assert right.size() == a.size()
    left = admissible(left_inverse, a)
    there = np.array(values(a))
    back = left.at(there)
    assert a.at(back).tolist() == there.tolist()
    if injective(a):
        assert back.tolist() == list(range(a.size()))


@given(layouts(), layouts())
def test_logical_divide_splits_without_loss(a, b):
    result = admissible(logical_divide, a, b)
    tile, rest = result
    tiles = make_layout(b, complement(b, a.size()))
    inside = within(a, values(tiles))
    assert (np.array(values(result)) == a.at(np.array(values(tiles))))[inside].all()
    assert compatible(b.shape, tile.shape) and rest.size() == tiles[1].size()
    if bijective(tiles):
        reached = np.array(values(result))[inside]
        assert sorted(reached.tolist()) == sorted(values(a))


@given(layouts(), layouts())
def test_logical_product_repeats_without_overlap(a, b):
    result = admissible(logical_product, a, b)
    assert result[0] == a and compatible(b.shape, result[1].shape)
    if injective(a) and injective(b):
        assert injective(result)
    places = complement(a, a.size() * cosize(b))
    if places.size() >= cosize(b):
        where = places.at(np.array(values(b)))
        assert values(result) == np.add.outer(where, np.array(values(a))).reshape(-1).tolist()
    # Equal tiles for equal values of b, in the same order.
    order = np.argsort(values(b), kind="stable")
    assert (np.diff(np.array(values(result[1]))[order]) >= 0).all()
    tiled = tiled_product(a, b)
    assert tiled == make_layout(result[0], *result[1])


@given(layouts(), layouts())
def test_ranked_products(a, b):
    assume(len(a) == len(b))
    tile, rest = admissible(logical_product, make_layout(*a), make_layout(*b))
    blocked, raked = blocked_product(a, b), raked_product(a, b)
    for i in range(len(a)):
        assert same(blocked[i], make_layout(tile[i], rest[i]))
        assert same(raked[i], make_layout(rest[i], tile[i]))


@given(layouts())
def test_questions(a):
    found = values(a)
    assert injective(a) == (len(set(found)) == len(found))
    assert bijective(a) == (sorted(found) == list(range(len(found))))
    for count in (1, 2, len(found), max(found) + 1):
        assert covers(a, count) == (set(range(count)) <= set(found))


@given(layouts())
def test_fit_layout_finds_the_coalesced_layout(a):
    assert fit_layout(a.indices()) == coalesce(a)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_fit_layout_finds_all_or_refuses(indices):
    with contextlib.suppress(LayoutError):
        assert values(fit_layout(np.array([0] + indices))) == [0] + indices


def test_fit_layout_refuses():
    for indices in ([1, 2], [0, 1, 2, 4], [0, 1, 3, 5], [0, 3, 1]):
        with pytest.raises(LayoutError, match="fit_layout"):
            fit_layout(np.array(indices))


# Where CuTe's own implementations part


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        # A unit mode keeps the stride it would have.
        (composition(L("4:2"), L("1:3")), "1:6"),
        (composition(L("(4,2):(1,8)"), L("(1,2):(4,1)")), "(1,2):(8,1)"),
        # The left layout runs on along a last mode of extent 1; the Python port drops the mode.
        (composition(L("1:2"), L("3:1")), "3:2"),
        # ... but where only what overhangs would fail, the rest is what counts.
        (logical_divide(L("(7,1):(4,4)"), 8), "(8,1):(4,0)"),
        # Steps that stay within a mode need not divide it; the Python port asserts that they do.
        (composition(L("(4,6):(2,0)"), L("2:3")), "2:6"),
        # Modes of stride 0 do not end an inverse; the Python port stops at the first.
        (right_inverse(L("(2,4):(0,1)")), "4:2"),
        (left_inverse(L("(4,2):(1,0)")), "4:1"),
        # The inverse of the layout and its complement, as the Python port has it; the C++ headers
        # came to fill gaps otherwise. Both are inverses.
        (left_inverse(L("4:2")), "(2,4):(4,1)"),
        (left_inverse(L("(4,2):(1,16)")), "(4,4,2):(1,8,4)"),
        # With holes that no complement fills the Python port gives no inverse; the headers do.
        (left_inverse(L("(4,2):(1,6)")), "(6,2):(1,4)"),
        # Copies for which holes leave no place go behind, not on top of each other.
        (logical_product(L("(2,7):(2,6)"), L("2:2")), "((2,7),2):((2,6),42)"),
        # An integer is n:1 for products too; the Python port divides.
        (logical_product(L("4:1"), 3), "(4,3):(1,4)"),
        # Tilers that leave holes divide as composition with their complement says.
        (logical_divide(L("24:1"), L("(2,2):(1,3)")), "((2,2),4):((1,3),6)"),
        # By mode, modes beyond the tiler stay.
        (composition(L("(4,6):(1,4)"), (2,)), "(2,6):(1,4)"),
        (composition(L("(4,6):(1,4)"), (None, 3)), "(4,3):(1,4)"),
        (logical_divide(L("(4,6):(1,4)"), (None, 3)), "(4,(3,2)):(1,(4,12))"),
        (zipped_divide(L("(4,6):(1,4)"), (None, 3)), "((1,3),(4,2)):((0,4),(1,12))"),
        (logical_product(L("(4,6):(1,4)"), (2, None)), "((4,2),6):((1,4),4)"),
    ],
)
def test_decided_values(got, expected):
    assert repr(got) == expected


def test_a_product_beyond_holes_does_not_overlap():
    # The complement has 5 places for 6 copies; the rest go behind, in its unit mode.
    with pytest.raises(LayoutError, match="shape divisibility"):
        logical_product(L("5:5"), 6)
    assert injective(logical_product(L("5:5"), 10))


# Swizzles


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(-3, 3),
    st.data(),
)
def test_a_swizzle_goes_through_a_layout(log_extents, bits, base, shift, data):
    assume(abs(shift) >= bits)
    swizzle, extents = Swizzle(bits, base, shift), [1 << n for n in log_extents]
    order = data.draw(st.permutations(range(len(extents))))
    steps = [prod(e for e, at in zip(extents, order) if at < mine) for mine in order]
    a = Layout(extents, steps)
    composed = admissible(composition, a, swizzle)
    expected = a.at(swizzle(np.arange(a.size())))
    assert composed.indices().tolist() == expected.tolist()
    back = admissible(right_inverse, composition(swizzle, a))
    assert composition(swizzle, a).at(back.indices()).tolist() == list(range(a.size()))
    assert left_inverse(composition(swizzle, a)) == back


def test_the_inverse_of_a_swizzled_tile():
    tile = composition(Swizzle(3, 3, 3), row_major((64, 64)))
    inverse = right_inverse(tile)
    assert tile.at(inverse.indices()).tolist() == list(range(4096))
    assert repr(inverse) == "S<3,0,-9> o 0 o (64,64):(64,1)"


@given(st.integers(0, 3), st.integers(0, 4), st.sampled_from([-5, -4, -3, 3, 4, 5]))
def test_a_swizzle_is_an_involution(bits, base, shift):
    swizzle = Swizzle(bits, base, shift)
    everything = np.arange(1 << (bits + base + abs(shift)))
    moved = swizzle(everything)
    assert sorted(moved.tolist()) == everything.tolist()
    assert (swizzle(moved) == everything).all()
    low, high = base + max(-shift, 0), base + max(shift, 0)
    for index in everything.tolist()[:: max(1, len(everything) // 64)]:
        field = (index >> high) & ((1 << bits) - 1)
        assert swizzle(index) == moved[index] == index ^ (field << low)


@given(layouts(), layouts(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 8))
def test_operations_reach_through_a_swizzle(a, b, bits, base, offset):
    swizzle = Swizzle(bits, base, 3)
    composed = ComposedLayout(swizzle, offset, a)
    expected = [swizzle(offset + index) for index in values(a)]
    assert composed.indices().tolist() == expected
    assert [composed(i) for i in range(composed.size())] == expected
    assert composed.cosize() == max(expected) + 1
    assert injective(composed) == injective(a)
    assert same(composed, coalesce(composed)) and same(composed, flatten(composed))
    assert composition(swizzle, a) == ComposedLayout(swizzle, 0, a)
    if offset == 0 and bits == 0:
        assert same(composed, a)
    divided = admissible(zipped_divide, composed, b)
    assert divided.layout == zipped_divide(a, b)
    view = composition(composed, b)
    assert view.indices().tolist() == composed.at(np.array(values(b))).tolist()


@pytest.mark.parametrize("elem_bits", [4, 8, 16, 32])
@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("panels", [1, 3])
def test_make_swizzled_layout_is_the_hardware_formula(elem_bits, span, panels):
    rows, width = 16, span * 8 // elem_bits
    layout = make_swizzled_layout((2, rows, panels * width), elem_bits, max_bytes=span)
    array = layout.array()
    field = {128: 0b111, 64: 0b11, 32: 0b1}[span]
    for slot, row, column in itertools.product(range(2), range(rows), range(panels * width)):
        element = ((slot * panels + column // width) * rows + row) * width + column % width
        bit = element * elem_bits
        address = bit // 8
        address ^= ((address >> 7) & field) << 4
        assert array[slot, row, column] * elem_bits == address * 8 + bit % 8


def test_make_swizzled_layout_chooses_by_the_inner_extent():
    assert make_swizzled_layout((64, 96), 16).swizzle == Swizzle(2, 3, 3)
    assert make_swizzled_layout((64, 16), 16).swizzle == Swizzle(1, 3, 3)
    assert make_swizzled_layout((64, 100), 16) == row_major((64, 100))
    assert make_swizzled_layout((64,), 16) == row_major((64,))
    with pytest.raises(LayoutError, match="12 bits"):
        make_swizzled_layout((64, 64), 12)


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layout((4, 8), (1,)), r"shape \(4,8\) and stride \(1\) nest differently"),
        (lambda: Layout((4, 0)), "extent 0 must be at least 1"),
        (lambda: Layout(4, -1), "stride -1 must be at least 0"),
        (lambda: Layout(4.5), "must be made of integers, not 4.5"),
        (lambda: Layout((4, 8))(1, 2, 3), r"coordinate \(1,2,3\) does not fit shape \(4,8\)"),
        (lambda: Layout((4, 8))(-1), "coordinate -1 of shape .* is negative"),
        (lambda: idx2crd((1, 2), 4), r"coordinate \(1,2\) does not fit shape 4"),
        (lambda: Swizzle(3, 0, 2), r"S<3,0,2>: needs .*\|shift\| >= bits"),
        (
            lambda: composition(L("(4,2):(1,9)"), L("4:3")),
            r"composition\(\(4,2\):\(1,9\), 4:3\): stride divisibility.*neither of 4, 3",
        ),
        (
            lambda: composition(L("(4,2):(1,9)"), L("6:1")),
            r"composition\(\(4,2\):\(1,9\), 6:1\): shape divisibility.*not a multiple of the 4",
        ),
        (
            lambda: composition(L("(4,2):(1,9)"), L("(3,3):(1,1)")),
            r"add up to 4 in mode 4:1 of the left layout and carry",
        ),
        (lambda: composition(L("4:1"), (2, 2)), "tiler has 2 modes, the layout 1"),
        (lambda: complement(L("(4,4):(1,2)"), 8), "mode 4:2 starts inside the 4 indices"),
        (lambda: left_inverse(L("(2,2):(2,3)")), "stride 3 is not a multiple of stride 2"),
        (lambda: complement(L("(3,2):(2,3)"), 8), "not injective, or interleaved"),
        (lambda: idx2crd((1, 2, 3), (4, 8)), "does not fit shape"),
        (lambda: composition(L("(3,4):(4,1)"), Swizzle(1, 0, 1)), "no swizzle after the layout"),
        (lambda: right_inverse(ComposedLayout(Swizzle(1, 0, 1), 2, L("4:1"))), "an offset of -2"),
        (lambda: L("(4,8):(1,4"), "expected ',', found 'the end'"),
        (lambda: L("(4,8)"), "expected shape:stride"),
        (lambda: L("4:1:1"), "':1' is left over"),
        (lambda: L("x:1"), "expected an integer or"),
        (lambda: L("S<1,0,1> o 0 o S<1,0,1> o 0 o 4:1"), "one swizzle"),
        (lambda: Layout(1 << 30).grid(), "too many to evaluate"),
        (lambda: Layout(1 << 30).indices(), "too many to evaluate"),
    ],
)
def test_refusals_say_what_failed(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


# The rest


def test_major_orders():
    assert row_major((2, 3, 4)) == Layout((2, 3, 4), (12, 4, 1))
    assert column_major((2, 3, 4)) == Layout((2, 3, 4), (1, 2, 6))
    assert row_major((2, (3, 4))) == Layout((2, (3, 4)), (12, (4, 1)))


def test_layouts_are_values():
    assert hash(Layout([4, 8])) == hash(Layout((4, 8), (1, 4)))
    assert Layout(4) != Layout((4,))
    assert len({Layout(4), Layout(4, 1), Layout(4, 2)}) == 2
    assert Layout(()).size() == 1 and parse_layout(repr(Layout(()))) == Layout(())


def test_printing_draws_a_grid():
    assert str(row_major((2, 3))) == "(2,3):(3,1)\n0 1 2\n3 4 5"
    assert str(Layout((2, 2, 2))) == "(2,2,2):(1,2,4)\n0 2 4 6\n1 3 5 7"
    assert str(composition(Swizzle(1, 0, 1), Layout(4))) == "S<1,0,1> o 0 o 4:1\n0 1 3 2"
    lines = str(row_major((64, 1 << 20))).splitlines()
    assert len(lines) == 34 and lines[-1] == "... 32 x 32 of 64 x 1048576"
    assert lines[2].split()[:2] == ["1048576", "1048577"]
    assert f"{row_major((2, 3)):>14}" == "   (2,3):(3,1)"


def test_thousands_of_layouts_take_a_second():
    tile = Layout(((4, 2), (3, 5)), ((1, 24), (4, 48)))
    start = time.process_time()
    for _ in range(1000):
        composition(tile, Layout((8, 3), (1, 8)))
        left_inverse(tile), complement(tile, 240), zipped_divide(tile, (4, 3))
    assert time.process_time() - start < 2.5


def test_grids():
    assert row_major((2, 6)).grid() == " 0  1  2  3  4  5\n 6  7  8  9 10 11"
    assert composition(Swizzle(1, 0, 1), Layout(4)).grid() == "0 1 3 2"


def test_a_large_tile_takes_milliseconds():
    layout = Layout(((4, 8, 4), (2, 2, 256)), ((2, 2048, 32768), (1, 16384, 8)))
    start = time.process_time()
    assert layout.size() == 131072 and bijective(layout)
    assert time.process_time() - start < 0.1
    assert layout.indices() is layout.indices() and not layout.indices().flags.writeable


@pytest.mark.parametrize("module", [layout_module, layout_ops, layout_query])
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed
