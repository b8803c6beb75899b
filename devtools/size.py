"""How large the shipped package is, and whether it has grown past its record.

    python -m devtools size              # prints; fails where a figure is above devtools/size.json
    python -m devtools size --record     # writes the record: in the commit that says why

Tokens are those of Python without comments, docstrings and layout, so that neither joining lines
nor cutting prose counts as a saving.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tilewright"
RECORD = Path(__file__).with_suffix(".json")
SHIPPED = {".py", ".cuh", ".typed"}
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def tokens(source: str) -> int:
    """Python tokens of a source without comments and docstrings.

    >>> tokens('def f():  # why' + chr(10) + '    "Doc."' + chr(10) + '    return 1')
    7
    """
    prose = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(node, clean=False) is not None:
                prose.add((first.lineno, first.col_offset))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(t.type not in _LAYOUT and t.start not in prose for t in found)


def measure(package: Path = PACKAGE) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """The figures that are recorded, and the lines of every file, longest first."""
    lines, passes, count = [], [], 0
    for path in sorted(package.rglob("*")):
        if path.suffix not in SHIPPED:
            continue
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(package).as_posix()
        lines.append((text.count("\n"), name))
        count += tokens(text) if path.suffix == ".py" else 0
        if name.startswith("passes/"):
            passes.append(text.count("\n"))
    figures = {
        "lines": sum(n for n, _ in lines),
        "tokens": count,
        "lines of passes": sum(passes),
        "files of passes": len(passes),
        "files above 600 lines": sum(n > 600 for n, _ in lines),
    }
    return figures, sorted(lines, reverse=True)


def report(record: bool = False) -> int:
    """Print the figures beside their record; 1 where one is above it."""
    figures, lines = measure()
    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    print("package: " + ", ".join(f"{n:,} {name}" for name, n in figures.items()))
    print("largest: " + ", ".join(f"{name} {n}" for n, name in lines[:6]))
    if record:
        RECORD.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        return 0
    grown = {name: n for name, n in figures.items() if n > kept.get(name, n)}
    for name, n in grown.items():
        print(f"error: {n:,} {name}, {kept[name]:,} are recorded")
    if grown:
        print(
            "Make it smaller, or run `python -m devtools size --record` and say why in the commit."
        )
    elif figures != kept:
        print("It is smaller than its record: `python -m devtools size --record` keeps that.")
    return int(bool(grown))
