"""From Python to an sm_90a cubin in a process that has compiled nothing yet, stage by stage.

    python benchmarks/cold_compile.py [--runs N] [PROGRAM.tw …]

Needs NVRTC and no GPU. Each run is a fresh process with an empty cache; `python` is everything up
to the source, `cold` all of it after the imports, whose time stands apart. Medians, in
milliseconds, as JSON.
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
GOAL = 600.0
PROGRAMS = [ROOT / "tests/schedules" / f"gemm_{kind}.tw" for kind in ("cooperative", "pingpong")]


def once(path: Path) -> dict[str, float]:
    """In this process, which must be a fresh one."""
    started = time.perf_counter()
    from tilewright.ir.target import Target
    from tilewright.ir.text import parse_program
    from tilewright.ir.verify import Stage
    from tilewright.passes.pipeline import run_pipeline
    from tilewright.targets.cuda import backend, nvrtc

    stages = {}

    def lap(name: str) -> None:
        nonlocal started
        now = time.perf_counter()
        stages[name] = 1e3 * (now - started)
        started = now

    target = Target.parse("cuda -arch=sm_90a")
    lap("imports")
    program = parse_program(path.read_text(), path.name)
    lap("parse")
    lowered = run_pipeline(program, target, backend.PIPELINE, stage=Stage.LAID_OUT).result
    lap("passes")
    source = backend.emit_program(lowered).text
    lap("emit")
    nvrtc.nvrtc_version()
    lap("load nvrtc")
    headers = {backend.HEADER: backend.header()}
    options = () if program.sources else ("--minimal",)
    nvrtc.compile_cuda(source, path.name, target.arch, options, headers)
    lap("nvrtc")
    stages["python"] = stages["parse"] + stages["passes"] + stages["emit"]
    stages["cold"] = sum(stages[s] for s in ("python", "load nvrtc", "nvrtc"))
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", type=Path, default=PROGRAMS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.programs[0])))
        return
    found: dict[str, object] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "goal": GOAL,
    }
    for path in options.programs:
        runs = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                more = {"TILEWRIGHT_CACHE_DIR": folder, "PYTHONPATH": str(ROOT / "src")}
                command = [sys.executable, __file__, "--once", str(path)]
                output = subprocess.run(
                    command, env=os.environ | more, check=True, capture_output=True, text=True
                )
                runs.append(json.loads(output.stdout))
        found[path.stem] = {
            stage: round(statistics.median(run[stage] for run in runs), 1) for stage in runs[0]
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
