"""Pictures of a compiled kernel for notebooks: its timeline, or the layout of one of its tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tilewright.inspect.explain import laid_out
from tilewright.ir.core import *
from tilewright.ir.layout.draw import picture_of
from tilewright.support.errors import suggest

WIDE, LEFT, ROW = 860, 170, 22  # pixels: of the spans, of their names, of a row
# Okabe and Ito's colours, which colour-blind readers tell apart
COLOURS = {"tensor core": "#0072b2", "threads": "#e69f00", "copies": "#009e73", "waits": "#cccccc"}


@dataclass(frozen=True)
class Picture:
    """An SVG: shown by notebooks, `str` is its text."""

    svg: str

    def __str__(self) -> str:
        return self.svg

    def _repr_svg_(self) -> str:
        return self.svg


def picture(
    trace: Sequence[tuple[str, Program]], told: Mapping[str, Any], of: str = "timeline"
) -> Picture:
    """Of `explain(as_dict=True)`'s kernels the first with a timeline, or the layout of a tile."""
    if of == "timeline":
        found = [k["timeline"] for k in told["kernels"] if k["timeline"]]
        if not found or not found[0].get("spans"):
            raise CompileError(
                f"{told['name']} has no timeline",
                expected="a kernel for CUDA with a loop that has products or rings",
                fix='compile it with target="cuda", or draw a tile: kernel.picture("acc")',
            )
        return Picture(timeline_svg(found[0]))
    tiles = {
        op.buffer.name: op.buffer
        for kernel in laid_out(trace).kernels
        for op in walk_ops(kernel, Alloc)
        if op.buffer.layout is not None
    }
    if of not in tiles:
        raise CompileError(
            f"{told['name']} has no tile named {of!r} with a layout",
            expected=" or ".join(["timeline", *tiles]),
            fix=suggest(of, tiles)[0],
        )
    layout = tiles[of].layout
    assert layout is not None
    return Picture(picture_of(layout, max(1, tiles[of].dtype.bits // 8)))


def timeline_svg(told: Mapping[str, Any]) -> str:
    """Two iterations of the main loop: a row for each unit of each role."""
    spans = [s for s in told["spans"] if s["end"] > 0]
    rows = list(dict.fromkeys((s["role"], _row(s["unit"])) for s in spans))
    end = max(1, 2 * told["interval"])
    high = ROW * (len(rows) + 2)
    loop = f"loop {told['loop']}: {told['interval']} cycles an iteration; {told['limit']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE} {high}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(loop)}</title>",
        f'<rect width="{LEFT + WIDE}" height="{high}" fill="#ffffff"/>',
        f'<text x="4" y="15" fill="#000000">{escape(loop)}</text>',
    ]
    for n, (role, unit) in enumerate(rows, 1):
        parts.append(
            f'<text x="4" y="{ROW * n + 15}" fill="#000000">{escape(f"{role}: {unit}")}</text>'
        )
    for span in spans:
        start, stop = (min(max(0, span[side]), end) / end * WIDE for side in ("start", "end"))
        if stop <= start:
            continue
        y = ROW * (1 + rows.index((span["role"], _row(span["unit"]))))
        about = f"{told['statements'].get(span['statement'], span['for'])}"
        if span["unit"] == "waits":
            about = f"waits for {span['for']}"
        about += f": {span['start']} … {span['end']}"
        parts.append(
            f'<rect x="{LEFT + start:.1f}" y="{y + 2}" width="{stop - start:.1f}" '
            f'height="{ROW - 4}" fill="{COLOURS[span["unit"]]}" stroke="#ffffff">'
            f"<title>{escape(about)}</title></rect>"
        )
    middle = LEFT + WIDE / 2
    parts.append(
        f'<line x1="{middle}" x2="{middle}" y1="{ROW}" y2="{high - ROW}" stroke="#000000"/>'
    )
    x = 4
    for unit, colour in COLOURS.items():
        y = high - ROW
        parts.append(f'<rect x="{x}" y="{y + 5}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 15}" fill="#000000">{unit}</text>')
        x += 110
    return "\n".join([*parts, "</svg>"])


def _row(unit: str) -> str:
    return "threads" if unit == "waits" else unit
