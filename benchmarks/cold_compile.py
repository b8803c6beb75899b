"""From Python to an sm_90a cubin in a process that has compiled nothing yet, stage by stage.

    python benchmarks/cold_compile.py [--runs N] [PROGRAM.tw | NAME …]

Needs NVRTC and no GPU. Each run is a fresh process with an empty cache; `python` is everything up
to the source, `cold` all of it after the imports, whose time stands apart; `attention_full`,
`attention_causal` (blocks of 128×128, heads of 128) and `product` (128×256) are the zoo's, with a
producer and persistent. CPU time of the process, the least of all runs, in milliseconds, as JSON;
`wall` is what the clock said of `cold`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOALS = {"gemm": 600.0, "attention": 1000.0, "attention, passes": 300.0}
PROGRAMS = [
    *(str(ROOT / "tests/schedules" / f"gemm_{kind}.tw") for kind in ("cooperative", "pingpong")),
    *(f"attention_{kind}" for kind in ("full", "causal")),
    "product",
]


def once(name: str) -> dict[str, float]:
    """In this process, which must be a fresh one."""
    started = time.process_time()
    from tilewright.ir.target import Target
    from tilewright.ir.text import parse_program
    from tilewright.targets.cuda import backend, nvrtc
    from zoo.attention.flash import flash_attention
    from zoo.gemm.gemm import gemm_relu

    stages = {}

    def lap(name: str) -> None:
        nonlocal started
        now = time.process_time()
        stages[name] = 1e3 * (now - started)
        started = now

    lap("imports")
    clock = time.perf_counter()
    path = Path(name)
    if path.suffix == ".tw":
        target = Target.parse("cuda -arch=sm_90a")
        program = parse_program(path.read_text(), path.name)
    else:
        target = Target.parse("cuda -arch=sm_90a -roles -persistent")
        if name == "product":
            program = gemm_relu.prim_func(
                8192, 8192, 8192, block_N=256, threads=256, stages=4, dtype="bfloat16"
            ).program
        else:
            program = flash_attention.prim_func(
                2, 16, 16, 8192, 8192, 128, name == "attention_causal",
                block_M=128, block_N=128, threads=256, dtype="bfloat16",
            ).program  # fmt: skip
    lap("trace")
    lowered = backend.lower(program, target).result
    lap("passes")
    source = backend.emit_program(lowered).text
    lap("emit")
    nvrtc.nvrtc_version()
    lap("load nvrtc")
    headers = backend.headers()
    options = () if program.sources else ("--minimal",)
    nvrtc.compile_cuda(source, path.name, target.arch, options, headers)
    lap("nvrtc")
    stages["python"] = stages["trace"] + stages["passes"] + stages["emit"]
    stages["cold"] = sum(stages[s] for s in ("python", "load nvrtc", "nvrtc"))
    stages["wall"] = 1e3 * (time.perf_counter() - clock)
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.programs[0])))
        return
    found: dict[str, object] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "goals": GOALS,
    }
    for program in options.programs:
        runs = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                more = {"TILEWRIGHT_CACHE_DIR": folder, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
                command = [sys.executable, __file__, "--once", str(program)]
                output = subprocess.run(
                    command, env=os.environ | more, check=True, capture_output=True, text=True
                )
                runs.append(json.loads(output.stdout))
        found[Path(program).stem] = {
            stage: round(min(run[stage] for run in runs), 1) for stage in runs[0]
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
