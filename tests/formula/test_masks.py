"""Masks end loops: by indices, by elements that are read, by what a small kernel computes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from devtools.fuzz.formula_draw import Formula, Param
from devtools.fuzz.formulas import judge
from tilewright.formula import ends
from tilewright.formula.tiles import program

_B, _S, _D = 2, 75, 8
_RNG = np.random.default_rng(0)
_SORTED = np.sort(_RNG.integers(0, 6, (_B, _S)), axis=1).astype(np.int32)
_MOST = 2**31 - 1

# a mask, what it reads, and the end of its loop where there is one
MASKS = {
    "documents": (lambda d, b, i, j: (d[b, i] == d[b, j]) & (j <= i), _SORTED, "high * 16"),
    "documents in any order": (
        lambda d, b, i, j: d[b, i] == d[b, j], _RNG.integers(0, 40, (_B, _S)), "high * 16",
    ),
    "documents and the diagonal": (
        lambda d, b, i, j: (d[b, i] == d[b, j]) | (i == j), _SORTED, "high * 16",
    ),
    "other documents": (lambda d, b, i, j: d[b, i] != d[b, j], _SORTED, "high * 16"),
    "a document that nobody has": (
        lambda d, b, i, j: (d[b, i] == d[b, j]) & (d[b, j] == 99), _SORTED, "high * 16",
    ),
    "not later": (
        lambda d, b, i, j: ~((d[b, i] < d[b, j]) | (j > i)), _SORTED, "high * 16",
    ),
    "lengths": (lambda d, b, i, j: j < d[b], np.int32([37, 1000]), "T.min(d, 75)"),
    "last indices": (lambda d, b, i, j: j <= d[b], np.int32([0, _MOST]), "T.min(d, 74) + 1"),
    "no length": (lambda d, b, i, j: d[b] > j, np.int64([0, -(2**40)]), "T.min(T.max(d, -1), 75)"),
    "firsts": (
        lambda d, b, i, j: (j > d[b]) & (j <= i + 3), np.int32([-_MOST - 1, 40]), "j.stop + 3",
    ),
    "prefixes": (lambda d, b, i, j: (j <= i) | (j < d[b]), np.int32([37, 9]), "T.max(j.stop, "),
    "padding": (lambda d, b, i, j: d[b, j], _RNG.random((_B, _S)) < 0.04, "high * 16"),
    "padding of both": (
        lambda d, b, i, j: d[b, j] & d[b, i], _RNG.random((_B, _S)) < 0.5, "high * 16",
    ),
    "an end for each row": (
        lambda d, b, i, j: j <= d[b, i], _RNG.integers(-3, 60, (_B, _S)), "high * 16",
    ),
    "windows": (lambda d, b, i, j: (i - j < d[b]) & (j <= i), np.int32([5, 40]), "high * 16"),
    "windows of both sides": (
        lambda d, b, i, j: abs(i - j) < d[b], np.int32([5, 40]), "high * 16",
    ),
    "the first and a window": (
        lambda d, b, i, j: (j < 4) | ((i - j < 20) & (j <= i)), np.int32([0]), "T.max(4, j.stop)",
    ),
    "any elements": (lambda d, b, i, j: d[b, i, j], _RNG.random((_B, _S, _S)) < 0.1, "L"),
    "floats": (lambda d, b, i, j: d[b, i] <= d[b, j], _RNG.standard_normal((_B, _S)), "L"),
}  # fmt: skip


def _attention(mask, target=None):
    def attention(q, k, v, d):
        s = q @ tm.matrix_transpose(k) * 0.25
        b, i, j = tm.indices(s, 0, -2, -1)
        return tm.softmax(tm.where(mask(d, b, i, j), s, -tm.inf), axis=-1) @ v

    return tw.math(attention, target=target)


def _arrays(data):
    q, k, v = np.random.default_rng(1).standard_normal((3, _B, _S, _D)).astype(np.float32)
    return q, k, v, data


def _wanted(mask, q, k, v, data):
    """By NumPy; a row whose elements are all masked is NaN."""
    passes = np.broadcast_to(mask(data, *np.ogrid[:_B, :_S, :_S]), (_B, _S, _S))
    s = np.where(passes, q.astype(float) @ k.swapaxes(1, 2) * 0.25, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v


@pytest.fixture
def small_blocks(monkeypatch):
    """Ends are shared by 16 rows, so that small arrays have many."""
    for module in (ends, program):
        monkeypatch.setattr(module, "BLOCK", 16)


TRIED = [(name, "interp -sanitize") for name in MASKS]
TRIED += [(name, "cpu") for name in ("documents", "lengths", "padding")]


@pytest.mark.parametrize(("name", "target"), TRIED)
def test_a_mask_ends_the_loop_where_nothing_passes(name, target, small_blocks):
    mask, data, end = MASKS[name]
    f, arrays = _attention(mask, target), _arrays(data)
    loop = f.tile(*arrays).split(" in T.tile(")[-1]
    assert end in loop[: loop.index(":\n")]
    got = np.asarray(f.with_schedule(tiles={"j": 24, "l": 16})(*arrays), float)
    np.testing.assert_allclose(got, _wanted(mask, *arrays), atol=1e-5)


@pytest.mark.parametrize(
    ("end", "off"),
    [
        ("low * 16", "(low * 16 + 16)"),
        ("high * 16", "(high * 16 - 16)"),
        (">= first1", ">= first1 - 16"),  # of tiles that do not ask
        ("<= last", "<= last + 16"),
    ],
)
def test_an_end_that_is_off_by_one_tile_is_seen(end, off, small_blocks, monkeypatch):
    mask, data, _ = MASKS["documents in any order"]
    data = data if "*" in end else np.repeat(np.int32([[0, 1]]), (40, _S - 40), axis=1)
    data = np.broadcast_to(data, (_B, _S)).copy()
    f = _attention(mask, "interp").with_schedule(tiles={"j": 16, "l": 16})
    arrays = _arrays(data)
    made, _ = f._of(arrays, {})
    assert end in made.program.text
    monkeypatch.setattr(made.program, "text", made.program.text.replace(end, off))
    assert not np.allclose(f(*arrays), _wanted(mask, *arrays), atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("mask", ["j < n[0]", "(j <= i) & (d[0] == d[1])"])
def test_threads_agree_on_the_ends(mask, small_blocks):
    """All roles read them."""
    sizes = {"q": (_S, 16), "k": (_S, 16), "v": (_S, 16)}
    params = {n: Param(s, "float16", seed) for seed, (n, s) in enumerate(sizes.items())}
    params["n"] = Param((_S,), "int32", 3, 40)
    lines = (
        ("s", "q @ k.T"),
        ("i, j", "tm.indices(s, 0, 1)"),
        ("d", "n[:, None], n[None, :]"),
        ("o", f"tm.softmax(tm.where({mask}, s, -tm.inf), axis=-1) @ v"),
    )
    kind, _, finding = judge(Formula(0, params, lines, ("o",)), "threads")
    assert kind == "ok", finding


def test_two_loops_with_one_mask_share_its_ends(small_blocks):
    def both(q, k, v, d):
        s = q @ tm.matrix_transpose(k)
        passes = d[:, :, None] == d[:, None, :]
        first, second = (tm.where(passes, x, -tm.inf) for x in (s, -s))
        return tm.softmax(first, axis=-1) @ v, tm.softmax(second, axis=-1) @ v

    assert tw.math(both).tile(*_arrays(_SORTED)).count("T.alloc_global") == 4


def test_the_text_and_its_reason():
    q = np.zeros((2, 4, 1024, 64), np.float16)

    @tw.math(target="interp")
    def attention(q, k, v, doc):
        s = q @ tm.matrix_transpose(k) * 0.125
        i, j = tm.indices(s, -2, -1)
        same = doc[:, None, :, None] == doc[:, None, None, :]
        return tm.softmax(tm.where(same & (j <= i), s, -tm.inf), axis=-1) @ v

    arrays = q, q, q, np.zeros((2, 1024), np.int32)
    text = attention.tile(*arrays)
    assert text[text.index("    Low =") : text.index("            acc")] == DOCUMENTS
    why = "its ends are data: Low and High of each 128 rows, computed from Doc"
    assert why in attention.explain(*arrays)


DOCUMENTS = """\
    Low = T.alloc_global((B, BLOCK), "int32")
    High = T.alloc_global((B, BLOCK), "int32")
    First = T.alloc_global((B, BLOCK), "int32")
    Last = T.alloc_global((B, BLOCK), "int32")
    # where the mask lets something pass: the ends of the loop below
    for b, block in T.tile(T.each(B), T.each(BLOCK)):
        doc2 = T.load(Doc[b, block * 128 : block * 128 + ROW])
        least0 = T.min(doc2, dim=0)
        doc3 = T.load(Doc[b, :])
        most1 = T.max(doc2, dim=0)
        x1 = (least0 <= doc3) & (doc3 <= most1) & (T.arange(M) <= block * 128 + 127)
        x2 = T.arange(M) // 128
        low1 = T.min(T.where(x1, x2, 8), dim=0)
        Low[b, block] = low1
        high1 = T.max(T.where(x1, x2 + 1, 0), dim=0)
        High[b, block] = high1
        x3 = (least0 == doc3) & (most1 == doc3)
        first = T.min(T.where(x3, T.arange(M), 1024), dim=0)
        First[b, block] = first
        count = T.sum(T.where(x3, 1, 0), dim=0)
        end = T.max(T.where(x3, T.arange(M) + 1, 0), dim=0)
        Last[b, block] = T.where(count == end - first, end, 0)
    for i, j, k in T.tile(T.each(B), T.each(J), M):
        top = T.full((k,), -1e+30)
        total = T.zeros((k,))
        acc = T.zeros((k, L))
        doc = T.load(Doc[i, k])
        q = T.load(Q[i, j, k, :])
        blocks = [T.min(k.start // 128 + n, (k.stop - 1) // 128) for n in range(T.ceildiv(k.size, 128) + (k.size % 64 > 0))]
        low = T.min(*[Low[i, n] for n in blocks])
        high = T.max(*[High[i, n] for n in blocks])
        first1 = T.max(*[First[i, n] for n in blocks])
        last = T.min(*[Last[i, n] for n in blocks])
        # one pass: what it keeps is moved to each new center by `fix`
        # beyond these ends the mask lets nothing pass
        for m in T.tile((low * 128, T.min(k.stop, high * 128))):
            inside = (m.start >= first1) & (m.stop <= last)
            doc1 = T.load(Doc[i, m])
"""  # noqa: E501


@pytest.mark.parametrize("sign", [1, -1])
def test_the_extreme_of_a_masked_row_is_infinite_beside_its_softmax(sign):
    """The center that the softmax keeps starts with a finite number."""

    @tw.math(target="cpu")
    def peaks(q, k, v, mask):
        s = tm.where(mask, q @ k.T * sign, -tm.inf) * sign
        top = tm.max(s, axis=-1) if sign > 0 else tm.min(s, axis=-1)
        return tm.softmax(s * sign, axis=-1) @ v, top

    x, mask = np.ones((5, 4), np.float32), np.arange(5)[:, None] != [2] * 5
    out, top = peaks(x, x, x, mask)
    assert peaks.tile(x, x, x, mask).count("for ") == 2
    assert top.tolist() == [4 * 1.0 if i != 2 else -np.inf * sign for i in range(5)]
    assert np.isnan(out[2]).all() and (out[3] == 1).all()
