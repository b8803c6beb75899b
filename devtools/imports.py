"""Draw which folders of the package import which: `python -m devtools imports docs/imports.svg`.

Every import counts, at any depth of a file. An arrow that follows from two others is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path
from statistics import fmean

SRC = Path(__file__).resolve().parents[1] / "src"
Graph = dict[str, set[str]]  # importer → imported
WIDE, HIGH, GAP = 150, 34, 44
STYLE = (
    "text{font:13px ui-monospace,Menlo,monospace;text-anchor:middle;fill:#1f2328}"
    "rect{fill:#eef3fb;stroke:#4a6fa5}path{fill:none;stroke:#8b97a8}marker path{fill:#8b97a8}"
)


_CALLS = ("import_module", "__import__")


@cache
def imports(text: str) -> tuple[ast.AST, ...]:
    """Imports of a file, at any depth: statements, and calls where the text has the word."""
    deep = any(word in text for word in _CALLS)

    def inside(node: ast.AST) -> Iterator[ast.AST]:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, (ast.Import, ast.ImportFrom, ast.Call)):
                yield each
            # statements stand in statements; looking into their expressions takes most of the time
            if deep or isinstance(each, (ast.stmt, ast.excepthandler, ast.match_case)):
                yield from inside(each)

    def names(node: ast.AST) -> bool:
        called = getattr(node, "func", None)
        word = getattr(called, "id", getattr(called, "attr", None))
        return called is None or word in _CALLS

    return tuple(filter(names, inside(ast.parse(text))))


def files(src: Path) -> Graph:
    """Modules below `src`, and the ones among them that each imports."""
    found = {".".join(p.relative_to(src).with_suffix("").parts): p for p in src.rglob("*.py")}
    found = {name.removesuffix(".__init__"): path for name, path in found.items()}
    graph: Graph = {}
    for name, path in found.items():
        named = set()
        for node in imports(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {each if each in found else node.module for each in inner}
        graph[name] = (named & found.keys()) - {name}
    return graph


def folders(graph: Graph) -> Graph:
    """The same between folders of tilewright; what its top modules import is left out."""
    found: Graph = {}
    for name, imported in graph.items():
        if name.count(".") > 1:
            room = name.split(".")[1]
            above = {other.split(".")[1] for other in imported if other.count(".")}
            found.setdefault(room, set()).update(above - {room})
    return {room: {other for other in above if other in found} for room, above in found.items()}


def reduced(graph: Graph) -> Graph:
    """Without the arrows that follow from others.

    >>> reduced({"c": {"a", "b"}, "b": {"a"}, "a": set()})["c"]
    {'b'}
    """
    below: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        below[name] = graph[name].union(*(below[other] for other in graph[name]))
    return {
        name: {o for o in above if not any(o in below[p] for p in above)}
        for name, above in graph.items()
    }


def svg(graph: Graph) -> str:
    """Folders in rows: each above all that it imports."""
    depth: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        depth[name] = 1 + max((depth[other] for other in graph[name]), default=-1)
    rows = [sorted(n for n, d in depth.items() if d == k) for k in range(max(depth.values()) + 1)]
    middle: dict[str, float] = {}
    for row in rows:
        # over the middle of what they import, side by side
        wanted = [fmean([middle[other] for other in graph[name]] or [0]) for name in row]
        first = fmean(wanted) - (len(row) - 1) / 2
        order = sorted(zip(wanted, row, strict=True))
        middle |= {name: first + k for k, (_, name) in enumerate(order)}
    left = min(middle.values()) - 0.5
    width = round((max(middle.values()) + 0.5 - left) * (WIDE + GAP))
    height = len(rows) * (HIGH + GAP)
    at = {
        name: ((x - left) * (WIDE + GAP), height - GAP / 2 - HIGH - depth[name] * (HIGH + GAP))
        for name, x in middle.items()
    }
    drawn = [
        f'<path marker-end="url(#end)" d="M{at[name][0]:.0f} {at[name][1] + HIGH:.0f}'
        f' L{at[other][0]:.0f} {at[other][1] - 4:.0f}"/>'
        for name, above in sorted(graph.items())
        for other in sorted(above)
    ]
    drawn += [
        f'<rect x="{x - WIDE / 2:.0f}" y="{y:.0f}" width="{WIDE}" height="{HIGH}" rx="5"/>'
        f'<text x="{x:.0f}" y="{y + 22:.0f}">{escape(name)}</text>'
        for name, (x, y) in sorted(at.items())
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    )
    tip = (
        '<marker id="end" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    return "\n".join((head, f"<style>{STYLE}</style>", f"<defs>{tip}</defs>", *drawn, "</svg>\n"))


def drawing(src: Path) -> str:
    return svg(reduced(folders(files(src))))
