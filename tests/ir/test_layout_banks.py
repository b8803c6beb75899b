"""Bank conflicts, against a count in plain Python and against known cases."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.layout import banks as layout_banks
from tilewright.layout import (
    BankConflicts,
    Layout,
    LayoutError,
    Swizzle,
    bank_conflicts,
    composition,
    make_swizzled_layout,
    repeat,
    row_major,
    spatial,
    wgmma_accumulator,
)


def count(places, elem_bytes, vector):
    """The definition: places[thread][k] in elements, None for nothing."""
    width = vector * elem_bytes
    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    requests = wavefronts = ideal = 0
    for k in range(0, len(places[0]), vector):
        for warp in range(0, len(places), 32):
            busy = False
            for phase in range(warp, min(warp + 32, len(places)), lanes):
                banks = {}
                for thread in range(phase, min(phase + lanes, len(places), warp + 32)):
                    if places[thread][k] is None:
                        continue
                    for byte in range(width):
                        word = (places[thread][k] * elem_bytes + byte) // 4
                        banks.setdefault(word % 32, set()).add(word)
                if banks:
                    busy = True
                    ideal += 1
                    wavefronts += max(map(len, banks.values()))
            requests += busy
    return BankConflicts(requests, wavefronts, ideal, vector)


@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 3),
    st.sampled_from([1, 7, 8, 32, 40, 64]),
    st.randoms(use_true_random=False),
)
def test_the_count_is_its_definition(elem_bytes, vector, accesses, threads, random):
    if elem_bytes * vector > 16:
        return
    span = random.choice([8, 64, 600])
    starts = [
        [None if random.random() < 0.1 else random.randrange(span) for _ in range(accesses)]
        for _ in range(threads)
    ]
    places = [
        [None if s is None else s * vector + v for s in row for v in range(vector)]
        for row in starts
    ]
    table = np.array([[-1 if p is None else p for p in row] for row in places])
    got = bank_conflicts(Layout(span * vector), table, elem_bytes, vector)
    assert got == count(places, elem_bytes, vector)
    assert got.extra == got.wavefronts - got.ideal >= 0


def test_columns_of_floats():
    column = np.arange(32)[:, None]
    worst = bank_conflicts(row_major((32, 32)), column, 4)
    assert (worst.requests, worst.wavefronts, worst.ideal, worst.ways) == (1, 32, 1, 32.0)
    assert bank_conflicts(Layout((32, 32), (33, 1)), column, 4).extra == 0
    assert bank_conflicts(Layout((32, 32)), column, 4).extra == 0
    swizzled = composition(Swizzle(5, 0, 5), row_major((32, 32)))
    assert bank_conflicts(swizzled, column, 4).extra == 0
    everywhere = bank_conflicts(row_major((32, 32)), spatial(32, 32).permute(1, 0), 4)
    assert (everywhere.requests, everywhere.wavefronts) == (32, 1024)


def test_one_word_is_read_once():
    same = np.zeros((32, 1), np.int64)
    assert bank_conflicts(Layout(64), same, 4).extra == 0
    halves = np.arange(32)[:, None]  # two lanes to a word
    assert bank_conflicts(Layout(64), halves, 2).wavefronts == 1


@pytest.mark.parametrize("span", [32, 64, 128])
def test_the_rows_ldmatrix_reads(span):
    width = span // 2
    plain, swizzled = row_major((64, width)), make_swizzled_layout((64, width), 16, span)
    for first in range(0, width, 8):
        rows = np.arange(8)[:, None] + 64 * (first + np.arange(8)[None, :])
        assert bank_conflicts(swizzled, rows, 2, 8).extra == 0
        assert bank_conflicts(plain, rows, 2, 8).wavefronts == span // 16


def test_the_widest_vectors():
    rows = spatial(16, 8) * repeat(1, 16)
    tile = make_swizzled_layout((16, 128), 16)
    wide = bank_conflicts(tile, rows, 2)
    assert (wide.vector, wide.requests, wide.ideal) == (8, 8, 32)
    assert bank_conflicts(tile, rows, 2, 2).requests == 32
    # An accumulator's pairs of halves: 4 lanes to a row, 8 rows, as stmatrix is there to avoid.
    pairs = bank_conflicts(row_major((64, 64)), wgmma_accumulator(64, 64), 2)
    assert pairs.vector == 2 and pairs.ways == 8
    assert (
        bank_conflicts(make_swizzled_layout((64, 64), 16), wgmma_accumulator(64, 64), 2).extra == 0
    )


def test_idle_threads_touch_nothing():
    cropped = (spatial(1, 32) * repeat(1, 1)).crop(1, 20)
    assert bank_conflicts(row_major((1, 20)), cropped, 4) == BankConflicts(1, 1, 1, 1)


def test_fragments_are_counted_once():
    fragment, tile = wgmma_accumulator(128, 256), make_swizzled_layout((128, 256), 16)
    assert bank_conflicts(tile, fragment, 2) is bank_conflicts(tile, fragment, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bank_conflicts(Layout(8), np.zeros((2, 8), int), 4, 8), "32 bytes per thread"),
        (lambda: bank_conflicts(Layout(8), np.array([[0, 2]]), 4, 2), "not vectors of 2 elements"),
        (lambda: bank_conflicts(Layout(8), np.array([[1, 2]]), 4, 2), "contiguous and aligned"),
        (lambda: bank_conflicts(Layout(8), np.array([[8]]), 4), "no coordinate 8"),
        (lambda: bank_conflicts(Layout(8), np.arange(8), 4), r"shape \(8,\)"),
        (lambda: bank_conflicts(Layout(8), np.array([[0]]), 3), "3 bytes"),
        (lambda: bank_conflicts(Layout((4, 2)), spatial(8), 4), r"not the layout of a tile \(8,\)"),
    ],
)
def test_refusals_say_what_failed(make, message):
    with pytest.raises(LayoutError, match=message):
        make()


def test_examples_in_docstrings():
    outcome = doctest.testmod(layout_banks)
    assert outcome.attempted and not outcome.failed


@pytest.mark.parametrize("told", range(32))
def test_lanes_that_read_the_same_16_bytes(told):
    """Lanes differ in what they read by some bits of their number: what an H200's counters said."""
    lanes = np.arange(32)
    bits = [b for b in range(5) if told >> b & 1]
    place = sum(((lanes >> b) & 1) << n for n, b in enumerate(bits)) + np.zeros(32, int)
    reads = place[:, None] * 4 + np.arange(4)
    cost = bank_conflicts(row_major((128,)), reads, 4)
    assert cost.vector == 4 and cost.wavefronts == cost.ideal == (4 if told & 3 == 3 else 2)
