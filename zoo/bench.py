"""`make bench-cpu`: every case against NumPy, in turn; the raw figures go to benchmarks/results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright as tw
from zoo.cases import bench_cases


def main(target: str = "cpu", out: str = "benchmarks/results/cpu.json") -> int:
    console = Console()
    table = Table(title=f"{tw.resolve(target)} against NumPy", title_justify="left")
    for head in ("kernel", "shape", "error", "ms", "NumPy ms", "ratio"):
        table.add_column(head)
    rows = []
    for case in bench_cases():
        with console.status(f"{case.name} {case.shape}"):
            run = case.build(target)
            error = case.error(run())
            taken = tw.measure({"ours": run, "numpy": case.numpy}, rounds=12, budget=4, pause=0.05)
        ours, numpy = (statistics.median(taken[k]) for k in ("ours", "numpy"))
        row = {"kernel": case.name, "shape": case.shape, "error": error, "bound": case.bound}
        rows.append(row | {"seconds": taken, "ratio": numpy / ours})
        table.add_row(
            case.name, case.shape, f"{error:.1e}", f"{ours * 1e3:.2f}", f"{numpy * 1e3:.2f}",
            f"{numpy / ours:.2f}",
        )  # fmt: skip
    console.print(table)
    record = {
        "command": " ".join(["python -m zoo.bench", *sys.argv[1:]]),
        "target": str(tw.resolve(target)),
        "when": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": {
            k: os.environ.get(k, "") for k in ("TILEWRIGHT_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        },
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tilewright": tw.__version__,
        },
        "rows": rows,
    }
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"raw figures: {path}")
    return int(any(row["error"] > row["bound"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
