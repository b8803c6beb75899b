"""Two drawings of what was measured, made from the files in benchmarks/results.

    python benchmarks/plots.py            # rewrites docs/speed.svg and docs/roofline.svg
    python benchmarks/plots.py --check    # fails where drawings and files disagree

`speed.svg` has rows of the README's table as bars, `roofline.svg` the tensor core's kernels against
the limits of the chip, as `ir/chips.py` and the model have them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from math import log10
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]

import tables  # noqa: E402

from tilewright.ir.chips import CHIPS  # noqa: E402
from tilewright.passes.overlap.unit_times import CLOCK, PRODUCTS_PER_CYCLE  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs"
CHIP = CHIPS["sm_90a"]
PEAK_TFLOPS = 2 * PRODUCTS_PER_CYCLE * CLOCK * CHIP.multiprocessors / 1e12
PEAK_TERABYTES = CHIP.dram_bytes * CLOCK * CHIP.multiprocessors / 1e12

# Okabe and Ito's colours, which colour-blind people tell apart; a page's theme may not be the
# viewer's, so the drawings bring their own ground
STYLE = """
svg{--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--ground:#fff;--ours:#0072b2;--hand:#7ab8dd;
--other:#c3cad1;--on-ours:#fff;--on-hand:#1f2328;--on-other:#1f2328;--few:#0072b2;--gemm:#b85400;--attention:#007a59;--causal:#a8487f;--mla:#8a6d00}
@media(prefers-color-scheme:dark){svg{--ink:#f0f6fc;--soft:#9aa4ae;--line:#3d444d;--ground:#0d1117;
--ours:#56b4e9;--hand:#2b6f9c;--other:#4a535d;--on-ours:#0d1117;--on-hand:#fff;--on-other:#f0f6fc;
--few:#56b4e9;--gemm:#e69f00;--attention:#2fc79a;
--causal:#e58fc0;--mla:#f0e442}}
text{font:12px ui-sans-serif,system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--ink)}
.ground{fill:var(--ground)}.head{font-weight:600}.soft{fill:var(--soft)}.n{font-size:11px;font-weight:600}.end{text-anchor:end}
.middle{text-anchor:middle}.grid{stroke:var(--line)}.peak{stroke:var(--ink);stroke-dasharray:5 3}
.roof{stroke:var(--ink);stroke-width:2;fill:none}
""".strip()


def text(x: float, y: float, said: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(said)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>'


def drawing(width: float, height: float, title: str, parts: list[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    ground = f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="6"/>'
    told = f"<title>{escape(title)}</title>"
    return "\n".join([head, told, f"<style>{STYLE}</style>", ground, *parts, "</svg>\n"])


# ── bars ─────────────────────────────────────────────────────────────────────────────────────

# rows of the README's table, a kernel or two of each family
COMPUTE = (
    "GEMM 8192³", "GEMM 16384³", "attention, head 128, 8192", "attention causal, head 128, 8192",
    "attention, head 64, 8192", "MLA decode, batch 128, 128 heads, 8192 keys",
)  # fmt: skip
MEMORY = (
    "softmax, rows of 8192", "RMSNorm, rows of 8192", "LayerNorm, rows of 8192",
    "LayerNorm, rows of 65536", "cross-entropy, rows of 8192", "transpose, rows of 8192",
)  # fmt: skip
NAMED, LONG, BAR, WIDE = 104, 290, 14, 430  # of a panel: names, the longest bar, a bar's step
CEILINGS = ("a copy", "a sum")


def bars(row: tables.Row) -> list[tuple[str, str, float, str]]:
    """Of a race: name, colour, speed, and how it is written; ours first."""
    contenders = row.record()["contenders"]
    ours = contenders.get("derived") or contenders["ours"]
    found = [("ours", "ours", *tables.speed(ours))]
    if "hand" in contenders:
        found.append(("ours, by hand", "hand", *tables.speed(contenders["hand"])))
    rivals = tables.others(contenders).items()
    return [*found, *((name, "other", *tables.speed(rival)) for name, rival in rivals)]


def panel(x: float, labels: tuple[str, ...], most: float, peak: float) -> tuple[list[str], float]:
    """Races one below the other; `most` is the speed of the longest bar."""
    rows = {row.label: row for row in tables.ROWS}
    parts, y, left = [], 62.0, x + NAMED + 6
    for label in labels:
        parts.append(text(x, y, label, "head"))
        y, top = y + 6, y + 4
        ceiling = peak
        for name, kind, value, said in bars(rows[label]):
            if name in CEILINGS:
                ceiling = value
            y += BAR
            size = value / most * LONG
            parts += [
                text(x + NAMED, y, name, "end" if kind == "ours" else "end soft"),
                f'<rect x="{left:.1f}" y="{y - 10:.1f}" width="{size:.1f}" height="11"'
                f' fill="var(--{kind})"/>',
                f'<text x="{left + size - 5:.1f}" y="{y:.1f}" class="n end"'
                f' style="fill:var(--on-{kind})">{said}</text>',
            ]
        at = left + ceiling / most * LONG
        parts.append(line(at, top, at, y + 3, "peak"))
        y += 26
    return parts, y - 22


def speed() -> str:
    """Bars of the implementations that took turns, with the peak of each."""
    compute, low = panel(20, COMPUTE, PEAK_TFLOPS, PEAK_TFLOPS)
    memory, lower = panel(20 + WIDE, MEMORY, 4.5, 0)
    heads = [
        text(20, 22, "Bound by the tensor core, TFLOP/s", "head"),
        text(20, 38, f"dashed: the model's peak, {PEAK_TFLOPS:.0f} at 1.6 GHz", "soft"),
        text(20 + WIDE, 22, "Bound by memory, TB/s", "head"),
        text(20 + WIDE, 38, "dashed: the fastest copy, or sum, of as many bytes", "soft"),
    ]
    title = "Speed of Tilewright's kernels and of others on one H200, bf16; longer is faster"
    return drawing(2 * WIDE + 20, max(low, lower) + 8, title, [*heads, *compute, *memory])


# ── the roofline ─────────────────────────────────────────────────────────────────────────────

LEFT, TOP, RIGHT, BOTTOM = 64, 44, 690, 430
LOW, HIGH = (0.7, 1.5), (14000, 1400)  # operations a byte, and TFLOP/s
SERIES = {
    "few": ("GEMM of 1 to 48 rows", "products_few", "product ", ""),
    "gemm": ("GEMM", "derived_gemm", "gemm ", ""),
    "attention": ("attention", "derived_attention", "attention ", "causal"),
    "causal": ("causal attention", "derived_attention", "attention ", "!causal"),
    "mla": ("MLA decode", "derived_mla", "mla ", ""),
}


def bytes_of(race: str) -> int:
    """What a race's inputs and outputs have in bf16."""
    kind, sizes, *rest = race.split()
    if kind == "attention":
        batch, heads, rows = map(int, sizes.split("x"))
        return 2 * 4 * batch * heads * rows * int(rest[1])
    first, second, third = map(int, sizes.split("x"))
    if kind == "mla":  # batch, heads, keys; keys and queries of 512 + 64 columns, results of 512
        return 2 * first * (third * 576 + second * (576 + 512))
    return 2 * (first * third + third * second + first * second)


def points(series: str) -> Iterator[tuple[str, float, float]]:
    """Race, operations a byte, TFLOP/s of ours."""
    _, file, prefix, word = SERIES[series]
    for record in tables.load(file)["races"]:
        race = record["race"]
        causal = race.endswith(" causal")
        if not race.startswith(prefix) or not record["ok"] or (word and causal != (word[0] == "!")):
            continue
        ours = record["contenders"].get("derived") or record["contenders"]["ours"]
        flops = ours["tflops"] * 1e12 * ours["ms"] * 1e-3
        yield race, flops / bytes_of(race), ours["tflops"]


def place(intensity: float, tflops: float) -> tuple[float, float]:
    """Where a point is drawn: both axes are logarithmic."""
    x = log10(intensity / LOW[0]) / log10(HIGH[0] / LOW[0])
    y = log10(tflops / LOW[1]) / log10(HIGH[1] / LOW[1])
    return LEFT + x * (RIGHT - LEFT), BOTTOM - y * (BOTTOM - TOP)


def mark(series: str, x: float, y: float) -> str:
    """A shape of its own for each series, so that colour is not all that tells them apart."""
    shapes = {
        "few": f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        "gemm": f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        "attention": f"M{x - 5:.1f} {y + 4:.1f}h10l-5-9z",
        "causal": f"M{x - 5:.1f} {y - 4:.1f}h10l-5 9z",
        "mla": f"M{x:.1f} {y - 6:.1f}l6 6-6 6-6-6z",
    }
    look = f'fill="var(--{series})" fill-opacity=".75" stroke="var(--ground)"'
    return f'<path d="{shapes[series]}" {look}>'


def roofline() -> str:
    """Points of kernels below the two limits."""
    parts = []
    for tick in (1, 10, 100, 1000):
        x, _ = place(tick, 1)
        parts += [
            line(x, TOP, x, BOTTOM, "grid"),
            text(x, BOTTOM + 17, f"{tick:,}", "middle soft"),
        ]
    for tick in (10, 100, 1000):
        _, y = place(1, tick)
        parts += [
            line(LEFT, y, RIGHT, y, "grid"),
            text(LEFT - 8, y + 4, f"{tick:,}", "end soft"),
        ]
    ridge = PEAK_TFLOPS / PEAK_TERABYTES
    roof = ((LOW[0], LOW[0] * PEAK_TERABYTES), (ridge, PEAK_TFLOPS), (HIGH[0], PEAK_TFLOPS))
    ends = "L".join("{:.1f} {:.1f}".format(*place(*at)) for at in roof)
    parts.append(f'<path class="roof" d="M{ends}"/>')
    x, y = place(HIGH[0], PEAK_TFLOPS)
    parts.append(text(x, y - 8, f"tensor core: {PEAK_TFLOPS:.0f} TFLOP/s", "end"))
    x, y = place(ridge / 3, PEAK_TFLOPS / 3)
    parts.append(text(x - 12, y + 4, f"memory: {PEAK_TERABYTES:.1f} TB/s", "end"))
    parts.append(
        f'<rect class="ground" x="{RIGHT - 182}" y="{BOTTOM - 124}" width="160" height="116"/>'
    )
    for k, (series, (name, *_)) in enumerate(SERIES.items()):
        y = BOTTOM - 22 * (len(SERIES) - k) + 4
        parts += [f"{mark(series, RIGHT - 168, y)}</path>", text(RIGHT - 154, y + 4, name)]
        for race, intensity, tflops in points(series):
            told = f"{race}: {tflops:.0f} TFLOP/s, {intensity:.1f} operations a byte"
            parts.append(f"{mark(series, *place(intensity, tflops))}<title>{told}</title></path>")
    parts += [
        text(20, 24, "TFLOP/s, bf16, one H200", "head"),
        text((LEFT + RIGHT) / 2, BOTTOM + 36, "operations a byte of inputs and outputs", "middle"),
    ]
    title = "Roofline of an H200: measured kernels below the limits of memory and the tensor core"
    return drawing(RIGHT + 20, BOTTOM + 50, title, parts)


DRAWINGS = {DOCS / "speed.svg": speed, DOCS / "roofline.svg": roofline}


def main() -> int:
    stale = []
    for path, made in DRAWINGS.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(made(), encoding="utf-8")
        elif path.read_text(encoding="utf-8") != made():
            stale.append(path.name)
    if stale:
        print(f"{', '.join(stale)}: run: python benchmarks/plots.py")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
