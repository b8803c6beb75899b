"""`make demo`: compile and run four kernels, check each against its reference, show a table."""

from __future__ import annotations

import statistics
import sys
import time

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import tilewright as tw
from zoo.cases import demo_cases

BETTER = "speed-up: NumPy's time over ours, more is better; error: against float64, less is better"
NEXT = """\
Next: write a kernel, with docs/tutorial/01_vector_add.md beside
    .venv/bin/python examples/tutorial/01_vector_add.py"""


def main(target: str = "auto") -> int:
    console = Console()
    if not console.is_terminal:  # a log: nothing to wrap for
        console = Console(width=100)
    table = Table(title=f"Tilewright on {tw.resolve(target)}", title_justify="left", box=SIMPLE)
    for head in ("kernel", "shape", "error", "compile", "time", "NumPy", "speed-up"):
        side = "left" if head in ("kernel", "shape") else "right"
        table.add_column(head, justify=side, no_wrap=True)
    failed = 0
    for case in demo_cases():
        with console.status(f"{case.name} {case.shape}"):
            begin = time.perf_counter()
            run = case.build(target)
            compiled = time.perf_counter() - begin
            error = case.error(run())
            taken = tw.measure({"ours": run, "numpy": case.numpy}, rounds=10, budget=2, pause=0.05)
        ours, numpy = (statistics.median(taken[k]) for k in ("ours", "numpy"))
        good = error <= case.bound
        failed += not good
        table.add_row(
            case.name,
            case.shape,
            f"{error:.1e}" if good else f"[red]{error:.1e}[/red]",
            f"{compiled:.2f} s",
            f"{ours * 1e3:.2f} ms",
            f"{numpy * 1e3:.2f} ms",
            f"{numpy / ours:.2f}×",
        )
    console.print(table)
    console.print(BETTER, markup=False, highlight=False)
    console.print(NEXT, markup=False, highlight=False)
    if failed:
        console.print(f"[red]{failed} of the kernels disagree with their reference[/red]")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
