"""The fragments of the instruction records against the documented register maps, every element of
every shape and type."""

import numpy as np
import pytest

from tests.passes import register_maps as documented
from tilewright.ir.atoms import ATOMS, MATRIX_TYPES, matrix_fragments

TYPES = list(MATRIX_TYPES)


def same(fragment, where):
    """Whether a fragment's table is the map `where`."""
    slots = np.ndindex(fragment.threads, fragment.values)
    places = np.array([where(*slot) for slot in slots]).reshape(*fragment.table().shape, 2)
    want = places[..., 0] * fragment.tile[1] + places[..., 1]
    np.testing.assert_array_equal(fragment.table(), want)


def test_every_type_is_documented():
    assert {name: t.k for name, t in MATRIX_TYPES.items()} == documented.K
    for t in MATRIX_TYPES.values():
        assert t.bits * t.k == (256 if t.wgmma else 512)  # k spans 32 bytes, of `mma` alone 64


@pytest.mark.parametrize("kind", TYPES)
def test_mma(kind):
    k = documented.K[kind]
    found = matrix_fragments("mma", MATRIX_TYPES[kind])
    assert [found[x].tile for x in "abc"] == [(16, k), (k, 8), (16, 8)]
    assert all(found[x].threads == 32 and found[x].is_bijective for x in "abc")
    same(found["a"], documented.MMA_A[k])
    same(found["b"], documented.MMA_B[k])
    same(found["c"], documented.mma_c)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if MATRIX_TYPES[kind].wgmma])
def test_wgmma_a(kind):
    k = documented.K[kind]
    found = matrix_fragments("wgmma", MATRIX_TYPES[kind])["a"]
    assert found.tile == (64, k) and found.threads == 128 and found.is_bijective
    same(found, documented.WGMMA_A[k])


def test_wgmma_d_of_every_width():
    halves = [n for n in range(0, 400) if MATRIX_TYPES["float16"].has_n(n)]
    assert halves == list(range(8, 257, 8))
    integers = [n for n in range(0, 400) if MATRIX_TYPES["int8"].has_n(n)]
    assert integers == [8, 16, 24, *range(32, 257, 16)]
    for n in halves:
        for kind in {"float16", "int8"} if n in integers else {"float16"}:
            found = matrix_fragments("wgmma", MATRIX_TYPES[kind], n)["c"]
            assert found.tile == (64, n) and found.threads == 128 and found.is_bijective
            same(found, documented.wgmma_d)


def test_what_multiplies_what():
    pairs = {
        (a.name, b.name, d)
        for a in MATRIX_TYPES.values()
        for b in MATRIX_TYPES.values()
        for d in ("float64", "float32", "float16", "int32", "bfloat16")
        if a.multiplies(b, d)
    }
    eights = ("float8_e4m3fn", "float8_e5m2")
    want = {("bfloat16", "bfloat16", "float32"), ("tfloat32", "tfloat32", "float32")}
    want |= {("float64", "float64", "float64")}
    want |= {("float16", "float16", d) for d in ("float32", "float16")}
    want |= {(a, b, d) for a in eights for b in eights for d in ("float32", "float16")}
    want |= {(a, b, "int32") for a in ("int8", "uint8") for b in ("int8", "uint8")}
    assert pairs == want
    assert [t.name for t in MATRIX_TYPES.values() if t.mn_major] == ["bfloat16", "float16"]
    assert {a for a in ATOMS if ATOMS[a].fragments} == {"mma", "wgmma"}


@pytest.mark.parametrize("trans", [False, True])
def test_matrix_lanes_cover_a_matrix_once(trans):
    for word in (1, 2, 4) if not trans else (2,):
        places = {documented.matrix(t, i, word, trans) for t in range(32) for i in range(word)}
        assert places == {(r, c) for r in range(8) for c in range(4 * word)}
