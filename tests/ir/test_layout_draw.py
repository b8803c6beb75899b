"""Pictures of layouts: well formed, and every cell says what the layout says."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tilewright.layout import (
    LayoutError,
    draw,
    make_swizzled_layout,
    row_major,
    row_of,
    spatial,
    wgmma_accumulator,
)


def texts(path, kind=None):
    root = ElementTree.parse(path).getroot()
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return [node.text for node in found if node.get("class") == kind]


def colours(path):
    return re.findall(r'fill="(#[0-9a-f]{6})"', path.read_text())


def test_a_layout_shows_indices_and_banks(tmp_path):
    path = tmp_path / "tile.svg"
    layout = make_swizzled_layout((8, 64), 16)
    draw(layout, path, elem_bytes=2)
    indices = layout.array().reshape(-1).tolist()
    assert texts(path) == [str(index) for index in indices]
    marks = texts(path, "m")
    assert [mark for mark in marks if mark.startswith("b")][:512] == [
        f"b{index * 2 // 4 % 32}" for index in indices
    ]
    title, note = texts(path, "h")
    assert title == repr(layout) and note == "index, and bank of 2-byte elements"
    assert len(set(colours(path))) == 32
    assert path.stat().st_size < 100_000


def test_a_fragment_shows_threads_values_and_copies(tmp_path):
    path = tmp_path / "fragment.svg"
    fragment = wgmma_accumulator(64, 8)
    draw(fragment, path, shared=make_swizzled_layout((64, 8), 32), elem_bytes=4)
    cells = [
        f"T{t} V{v}" for t, v in (fragment.owner((i, j))[0] for i in range(64) for j in range(8))
    ]
    assert texts(path) == cells
    assert len(set(colours(path))) > 100
    assert "128 threads, 4 registers each; b = bank of 4-byte elements" in texts(path, "h")
    draw(row_of(fragment, 1), path)
    assert texts(path)[:2] == ["T0 V0", "T4 V0"]
    assert texts(path, "m").count(" ×4") == 64
    assert "held by up to 4 threads" in texts(path, "h")[1]


def test_idle_elements_and_large_tiles(tmp_path):
    path = tmp_path / "part.svg"
    draw(row_major((128, 1 << 20)), path)
    assert "... 64 x 64 of 128 x 1048576" in texts(path, "h")[1]
    assert path.stat().st_size < 1_000_000
    draw(spatial(3, 5, 2), path)
    assert texts(path)[-1] == "T29 V0"


def test_refusals_say_what_failed(tmp_path):
    with pytest.raises(LayoutError, match="goes with a fragment"):
        draw(row_major((4, 4)), tmp_path / "x.svg", shared=row_major((4, 4)))
    with pytest.raises(LayoutError, match="not the layout of a tile"):
        draw(spatial(4, 4), tmp_path / "x.svg", shared=row_major((4, 8)))
    with pytest.raises(LayoutError, match="a str is neither"):
        draw("4:1", tmp_path / "x.svg")
