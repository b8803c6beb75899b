"""A kernel that is in the cache, in a process that has compiled nothing yet.

    python benchmarks/disk_hit.py [--runs N]

Needs NVRTC (to fill the cache) and no GPU. Each run is a fresh process: `imports` is what the
target brings in, `first` its first kernel after tracing, `next` another one. The median CPU time of
the process and, by the clock, median and minimum, in milliseconds, as JSON; `compiled` is what it
took to fill the cache. The goal is 5 for `first`, `next` and `attention`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("cpu", "cuda")


def once(target: str) -> dict[str, tuple[float, float]]:
    """In this process, which must be a fresh one."""
    import tilewright as tw
    from zoo.attention.flash import flash_attention
    from zoo.gemm.gemm import gemm_relu

    stages, started = {}, (time.process_time(), time.perf_counter())

    def lap(name: str) -> None:
        nonlocal started
        now = (time.process_time(), time.perf_counter())
        stages[name] = (1e3 * (now[0] - started[0]), 1e3 * (now[1] - started[1]))
        started = now

    if target == "cpu":
        import tilewright.targets.cpu.kernel
    else:
        import tilewright.targets.cuda.kernel
    lap("imports")
    product = gemm_relu.prim_func(1024, 1024, 1024)
    lap("trace")
    tw.compile(product, target=target)
    lap("first")
    other = gemm_relu.prim_func(2048, 1024, 1024)
    lap("trace")
    tw.compile(other, target=target)
    lap("next")
    if target == "cuda":
        attention = flash_attention.prim_func(
            1, 1, 1, 512, 512, 128, True, block_M=128, block_N=128, threads=256, dtype="bfloat16"
        )
        lap("trace attention")
        tw.compile(attention, target=target)
        lap("attention")
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--once", choices=TARGETS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once)))
        return
    found: dict[str, object] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "goal": 5.0,
    }
    with tempfile.TemporaryDirectory() as folder:
        more = {"TILEWRIGHT_CACHE_DIR": f"{folder}/cache", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        for target in TARGETS:
            runs = []
            for _ in range(options.runs + 1):
                output = subprocess.run(
                    [sys.executable, __file__, "--once", target],
                    env=os.environ | more,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                runs.append(json.loads(output.stdout))
            compiled, *hits = runs
            found[target] = {
                stage: {
                    "compiled": round(compiled[stage][1], 1),
                    "cpu": round(statistics.median(run[stage][0] for run in hits), 2),
                    "clock": round(statistics.median(run[stage][1] for run in hits), 2),
                    "least": round(min(run[stage][1] for run in hits), 2),
                }
                for stage in compiled
            }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
