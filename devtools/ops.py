"""The table of ops on docs/ops.md, from their records."""

from __future__ import annotations

import re

BEGIN = "<!-- ops: made by `python -m devtools ops` -->"
END = "<!-- end of ops -->"


def table() -> str:
    """
    >>> print(table().splitlines()[0])
    | op | formula | arrays | gradients | error, ε |
    """
    from tilewright.ops import OPS

    lines = ["| op | formula | arrays | gradients | error, ε |", "|---|---|---|---|---|"]
    for name, op in sorted(OPS.items()):
        arrays = op.signature.text.replace("|", "\\|")
        cells = [f"`{name}`", op.formula, f"`{arrays}`", ", ".join(op.wrt) or "none"]
        lines.append(f"| {' | '.join(cells)} | {op.error:g} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    made = f"{BEGIN}\n{table()}\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: made, page, flags=re.S)
