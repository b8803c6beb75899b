"""`make bench-cpu`: every case against NumPy and PyTorch, in turn; on all threads, then on one.

What is compared is printed beside each race, and raw figures go to benchmarks/results. Threads are
set before a BLAS is loaded, so each number of them is a process of its own; what the kernels need
in memory and in compile time is measured in processes that do nothing else.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright as tw
from zoo.case import Case
from zoo.cases import bench_cases

RESULTS = Path("benchmarks/results")
THREADS = ("TILEWRIGHT_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
CONTENDERS = ("numpy", "torch", "our float32")
COMPILE_BAR = 0.4  # seconds from the first traced line to a kernel that can be called
GROWTH_BAR = 4.0  # MB that attention may take, whatever the length of the sequence


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ── one number of threads ────────────────────────────────────────────────────────────────────


def race(case: Case, target: str) -> dict[str, Any]:
    """Seconds of all contenders, which take turns in every round."""
    run = case.build(target)
    error = case.error(run())
    calls = {name: build(target) for name, build in case.others.items()}
    contenders = {"ours": run, "numpy": case.numpy}
    contenders |= {name: call for name, call in calls.items() if call is not None}
    seconds = tw.measure(contenders, rounds=30, budget=8, pause=0.06)
    return {
        "kernel": case.name,
        "shape": case.shape,
        "error": error,
        "bound": case.bound,
        "seconds": seconds,
        "ratios": ratios(seconds, min),
        "median ratios": ratios(seconds, statistics.median),
        "bars": dict(case.bars),
        "missing": [name for name, call in calls.items() if call is None],
        "code": {"numpy": text(case.numpy)}
        | {n: text(b.code) for n, b in case.others.items() if hasattr(b, "code")},
    }


def ratios(
    seconds: Mapping[str, list[float]], pick: Callable[[list[float]], float]
) -> dict[str, float]:
    """Others' times in ours. By the fastest round of each: whoever else is on the machine only adds
    to the others, and not to all alike."""
    ours = pick(seconds["ours"])
    return {name: pick(taken) / ours for name, taken in seconds.items() if name != "ours"}


def text(function: Callable[..., Any]) -> str:
    """What a contender runs, as it is written."""
    return textwrap.dedent(inspect.getsource(function)).strip().rstrip(",")


def met(row: dict[str, Any]) -> bool:
    return all(row["ratios"].get(name, bar) >= bar for name, bar in row["bars"].items())


def run_races(target: str, only: str, console: Console) -> list[dict[str, Any]]:
    rows = []
    for case in bench_cases():
        if only.lower() not in f"{case.name} {case.shape}".lower():
            continue
        with console.status(f"{case.name} {case.shape}"):
            row = race(case, target)
        rows.append(row)
        console.rule(f"{case.name} {case.shape}", align="left")
        for name, code in row["code"].items():
            console.print(textwrap.indent(f"# {name}\n{code}", "    "), style="dim", markup=False)
        console.print(summary(row), markup=False)
    return rows


def summary(row: dict[str, Any]) -> str:
    taken = {name: min(times) * 1e3 for name, times in row["seconds"].items()}
    parts = [f"ours {taken['ours']:.2f} ms"]
    for name, ratio in row["ratios"].items():
        bar = f", bar {row['bars'][name]:g}" if name in row["bars"] else ""
        parts.append(f"{name} {taken[name]:.2f} ms ({ratio:.2f}×{bar})")
    parts += [f"{name} is not installed" for name in row["missing"]]
    return "; ".join(parts)


def table_of(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = "×: their time over ours, more is better; less of error and ms"
    for head in ("kernel", "shape", "error", "ours ms"):
        table.add_column(head)
    for name in CONTENDERS:
        table.add_column(f"× {name} (bar)")
    for row in rows:
        cells = [row["kernel"], row["shape"], f"{row['error']:.1e}"]
        cells.append(f"{min(row['seconds']['ours']) * 1e3:.2f}")
        for name in CONTENDERS:
            ratio, bar = row["ratios"].get(name), row["bars"].get(name)
            cell = "" if ratio is None else f"{ratio:.2f}"
            if ratio is not None and bar is not None:
                color = "green" if ratio >= bar else "red"
                cell = f"[{color}]{ratio:.2f}[/{color}] ({bar:g})"
            cells.append(cell)
        table.add_row(*cells)
    return table


# ── memory and compile time ──────────────────────────────────────────────────────────────────


def attention_growth(seq: int) -> float:
    """MB by which a call of attention over one head raises the memory this process holds."""
    from zoo.attention.flash import flash_attention
    from zoo.case import normal

    make = flash_attention.on("cpu")
    kernel = make(1, 1, 1, seq, seq, 64, block_M=128, block_N=128, dtype="float32")
    q, k, v = (normal(1, 1, seq, 64, seed=s) for s in (1, 2, 3))
    o = np.zeros_like(q)
    return growth(lambda: kernel(q, k, v, o))


def growth(run: Callable[[], Any]) -> float:
    """MB between what the process holds now and the most it holds during `run` (Linux)."""

    def held(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = held("VmRSS")
    run()
    return (held("VmHWM") - before) * 1024 / 1e6


def cold_compile() -> float:
    """Seconds from the first traced line to a kernel, in a process that has compiled another: what
    is imported is there."""
    from zoo.elementwise.vector_add import vector_add
    from zoo.gemm.gemm import gemm_relu

    vector_add.on("cpu")(1024)
    begin = time.perf_counter()
    gemm_relu.on("cpu")(768, 768, 768, 256, 192, 256, dtype="float32")
    return time.perf_counter() - begin


def alone(call: str) -> float:
    """A function of this file, in a process of its own and without the kernels kept on disk."""
    code = f"from zoo import bench; print(bench.{call})"
    env = os.environ | {"TILEWRIGHT_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


# ── the command ──────────────────────────────────────────────────────────────────────────────


def bench(target: str, out: Path, only: str) -> int:
    console = Console(width=120)
    threads = int(os.environ.get(THREADS[0]) or cores())
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tilewright": tw.__version__,
    }
    try:
        import torch

        torch.set_num_threads(threads)
        versions["torch"] = torch.__version__
    except ImportError:
        console.print("PyTorch is not installed: races against it are left out")
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    rows = run_races(target, only, console)
    console.print(table_of(rows, f"{tw.resolve(target)} on {threads} threads, times as fast as"))
    grown = {}
    if Path("/proc/self/clear_refs").exists():
        grown = {seq: alone(f"attention_growth({seq})") for seq in (1024, 4096)}
    compile_seconds = min(alone("cold_compile()") for _ in range(3))
    for seq, size in grown.items():
        scores = seq * seq * 4 / 1e6
        console.print(
            f"attention over {seq} keys takes {size:.1f} MB (bar {GROWTH_BAR:g}; its scores would "
            f"be {scores:.0f} MB)"
        )
    console.print(f"GEMM from Python to a kernel: {compile_seconds:.2f} s (bar {COMPILE_BAR:g})")
    record = {
        "command": " ".join(["python -m zoo.bench", *sys.argv[1:]]),
        "target": str(tw.resolve(target)),
        "when": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": cores(),
        "load": load,
        "threads": threads,
        "versions": versions,
        "rows": rows,
        "attention growth MB": grown,
        "compile seconds": compile_seconds,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"raw figures: {out}")
    below = [f"{row['kernel']} {row['shape']}" for row in rows if not met(row)]
    if below:
        console.print(f"below a bar: {', '.join(below)}")
    return int(any(row["error"] > row["bound"] for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m zoo.bench", description=__doc__)
    parser.add_argument("--threads", type=int, help="only this many; all, then one, without it")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--only", default="", help="cases whose name or shape has this in it")
    parser.add_argument("--out", type=Path, help=f"JSON; by default in {RESULTS}")
    args = parser.parse_args()
    most = cores()
    if args.threads is None:
        counts = dict.fromkeys((most, 1))
        again = [sys.executable, "-m", "zoo.bench", *sys.argv[1:], "--threads"]
        return max(subprocess.run([*again, str(n)]).returncode for n in counts)
    wanted = str(args.threads)
    if any(os.environ.get(name) != wanted for name in THREADS):
        env = os.environ | dict.fromkeys(THREADS, wanted)
        command = [sys.executable, "-m", "zoo.bench", *sys.argv[1:]]
        return subprocess.run(command, env=env).returncode
    name = "cpu.json" if args.threads == most else "cpu_one_thread.json"
    if args.threads not in (1, most):
        name = f"cpu_{args.threads}_threads.json"
    return bench(args.target, args.out or RESULTS / name, args.only)


if __name__ == "__main__":
    sys.exit(main())
