"""Layouts and fragments as SVG pictures."""

from __future__ import annotations

import os
from colorsys import hls_to_rgb
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from tilewright.ir.layout.banks import BANKS, WORD
from tilewright.ir.layout.fragment import IDLE, Fragment
from tilewright.ir.layout.layout import *

# Larger tiles are cut to this many rows and columns: 64 x 64 cells are 400 KB of SVG.
MAX_DRAWN = 64
CELL_HEIGHT, LETTER = 30, 7
MARGIN, HEAD = 34, 46
LEGEND_WIDTH = 30


def draw(
    layout: MemoryLayout | Fragment,
    path: str | os.PathLike[str],
    *,
    elem_bytes: int = 4,
    shared: MemoryLayout | None = None,
) -> None:
    """Write an SVG picture to `path`.

    A layout shows the index in each cell, coloured and marked by the bank of shared memory that an
    element of `elem_bytes` falls in. A fragment shows the thread and the value that hold each
    element, coloured by thread, with the number of copies where it is replicated; given the layout
    of the tile in shared memory as `shared`, each cell also has its bank. Pictures larger than
    64 x 64 cells show that corner, and say so.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw(Layout((2, 4), (4, 1)), f"{folder}/rows.svg")
    ...     Path(f"{folder}/rows.svg").read_text()[:4]
    '<svg'
    """
    Path(path).write_text(picture_of(layout, elem_bytes, shared), encoding="utf-8")


def picture_of(
    layout: MemoryLayout | Fragment, elem_bytes: int, shared: MemoryLayout | None = None
) -> str:
    """What `draw` writes."""
    if isinstance(layout, Fragment):
        return _draw_fragment(layout, elem_bytes, shared)
    if isinstance(layout, (Layout, ComposedLayout)):
        if shared is not None:
            raise LayoutError("draw: `shared` goes with a fragment; a layout is its own")
        return _draw_layout(layout, elem_bytes)
    raise LayoutError(f"draw: a {type(layout).__name__} is neither a layout nor a fragment")


def _draw_layout(layout: MemoryLayout, elem_bytes: int) -> str:
    whole = layout.rows_and_columns()
    shown = cropped(whole, MAX_DRAWN)
    indices = layout.corner(*shown)
    banks = indices * elem_bytes // WORD % BANKS
    cells = [
        [
            _Cell(str(index), _colour(bank, BANKS), f"b{bank}")
            for index, bank in zip(*row, strict=True)
        ]
        for row in zip(indices.tolist(), banks.tolist(), strict=True)
    ]
    used = sorted(set(banks.reshape(-1).tolist()))
    legend = [(f"b{bank}", _colour(bank, BANKS)) for bank in used]
    note = f"index, and bank of {elem_bytes}-byte elements" + _cut(whole, shown)
    return _svg(repr(layout), note, cells, legend)


def _draw_fragment(fragment: Fragment, elem_bytes: int, shared: MemoryLayout | None) -> str:
    columns = fragment.tile[-1]
    whole = (fragment.elements // columns, columns)
    shown = cropped(whole, MAX_DRAWN)
    first, copies = fragment.first_slots().reshape(whole), fragment.copies().reshape(whole)
    banks = None
    if shared is not None:
        if tuple(size(mode) for mode in shared) != fragment.tile:
            raise LayoutError(f"draw: {shared} is not the layout of a tile {fragment.tile}")
        banks = (shared.array() * elem_bytes // WORD % BANKS).reshape(whole)

    def cell(i: int, j: int) -> _Cell:
        slot, mark = int(first[i, j]), "" if banks is None else f"b{banks[i, j]}"
        if slot == IDLE:
            return _Cell("-", "#ffffff", mark)
        thread, value = divmod(slot, fragment.values)
        many = f" ×{copies[i, j]}" if copies[i, j] > 1 else ""
        return _Cell(f"T{thread} V{value}", _colour(thread, fragment.threads), mark + many)

    cells = [[cell(i, j) for j in range(shown[1])] for i in range(shown[0])]
    note = f"{fragment.threads} threads, {fragment.values} registers each"
    if fragment.replication > 1:
        note += f", held by up to {fragment.replication} threads (the first is named)"
    if banks is not None:
        note += f"; b = bank of {elem_bytes}-byte elements"
    return _svg(repr(fragment), note + _cut(whole, shown), cells, [])


def _cut(whole: tuple[int, int], shown: tuple[int, int]) -> str:
    return cut_note(whole, shown).replace("\n", " ")


class _Cell(NamedTuple):
    text: str
    fill: str
    mark: str


def _colour(number: int, count: int) -> str:
    """Light colours, neighbours well apart: hues by the golden ratio over few, evenly over many."""
    hue = number * 360 // max(count, 1) if count == BANKS else int(number * 222.49) % 360
    parts = hls_to_rgb(hue / 360, (82 - 7 * (number % 3)) / 100, 0.7)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _svg(title: str, note: str, cells: list[list[_Cell]], legend: list[tuple[str, str]]) -> str:
    rows, columns = len(cells), len(cells[0])
    cell_width = LETTER * max(5, *(len(cell.text) for row in cells for cell in row)) + 6
    per_line = max(1, columns * cell_width // LEGEND_WIDTH)
    legend_lines = -(-len(legend) // per_line)
    width = MARGIN + max(columns * cell_width, LETTER * max(len(title), len(note))) + 10
    height = HEAD + 16 + rows * CELL_HEIGHT + 20 * legend_lines + 14
    top = HEAD + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">',
        "<style>text{font:11px monospace;text-anchor:middle}"
        ".m{font-size:8px;fill:#555}.h{text-anchor:start}rect{stroke:#888;stroke-width:.5}</style>",
        f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>',
        f'<text class="h" x="{MARGIN}" y="18" style="font-weight:bold">{escape(title)}</text>',
        f'<text class="h" x="{MARGIN}" y="36">{escape(note)}</text>',
    ]
    for j in range(columns):
        x = MARGIN + j * cell_width + cell_width // 2
        out.append(f'<text class="m" x="{x}" y="{top - 4}">{j}</text>')
    for i, row in enumerate(cells):
        y = top + i * CELL_HEIGHT
        out.append(f'<text class="m" x="{MARGIN - 12}" y="{y + 18}">{i}</text>')
        for j, cell in enumerate(row):
            x = MARGIN + j * cell_width
            out.append(
                f'<rect x="{x}" y="{y}" width="{cell_width}" height="{CELL_HEIGHT}"'
                f' fill="{cell.fill}"/>'
            )
            down = 13 if cell.mark else 19
            middle = x + cell_width // 2
            out.append(f'<text x="{middle}" y="{y + down}">{escape(cell.text)}</text>')
            if cell.mark:
                out.append(f'<text class="m" x="{middle}" y="{y + 25}">{escape(cell.mark)}</text>')
    for k, (text, fill) in enumerate(legend):
        x = MARGIN + k % per_line * LEGEND_WIDTH
        y = top + rows * CELL_HEIGHT + 8 + k // per_line * 20
        out.append(f'<rect x="{x}" y="{y}" width="{LEGEND_WIDTH}" height="16" fill="{fill}"/>')
        out.append(f'<text class="m" x="{x + LEGEND_WIDTH // 2}" y="{y + 11}">{text}</text>')
    return "\n".join([*out, "</svg>", ""])
