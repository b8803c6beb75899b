"""The hand-scheduled GEMMs against torch.matmul on a GPU: checked first, then timed in turns.

    python benchmarks/gemm_scheduled.py --out gemm.json
    python benchmarks/gemm_scheduled.py --shapes 4096x4096x4096 --kernels gemm_cooperative

Each kernel first runs on NaN-poisoned outputs, small and ragged shapes included, and is compared
with a float32 product; 20 runs must agree bit for bit. Then contenders take turns: a round is one
burst of at least `--burst-ms` inside a pair of events for each of them; medians of `--rounds`
rounds are reported. Everything runs in a child process that is killed after `--timeout` seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096))
# rows and columns that no tile divides, one tile, one k step, fewer tiles than blocks
ODD_SHAPES = ((256, 256, 64), (128, 128, 64), (1000, 776, 520), (2048, 512, 64), (384, 8, 4096))
KERNELS = ("gemm_cooperative", "gemm_pingpong")


def compile_kernel(name: str) -> Any:
    sys.path.insert(0, str(ROOT / "src"))
    from tilewright.ir.target import Target
    from tilewright.ir.text import parse_program
    from tilewright.targets.cuda.backend import compile_program

    path = ROOT / "tests" / "schedules" / f"{name}.tw"
    return compile_program(parse_program(path.read_text(), str(path)), Target.parse("cuda"))


def check(kernel: Any, shape: tuple[int, int, int], runs: int) -> dict[str, Any]:
    import torch

    m, n, k = shape
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    blocks = torch.cuda.get_device_properties(0).multi_processor_count // 2 * 2
    want = a.float() @ b.float()
    first = None
    for _ in range(runs):
        c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        kernel({"A": a, "B": b, "C": c, "blocks": blocks})
        torch.cuda.synchronize()
        if first is None:
            first = c
        elif not torch.equal(first.view(torch.int16), c.view(torch.int16)):
            return {"shape": shape, "ok": False, "why": "runs differ"}
    assert first is not None
    error = (first.float() - want).abs().max().item()
    # rounding to bf16 is half a unit in the last place of values up to the largest
    bound = 2.0**-8 * want.abs().max().item() + 1e-3 * k**0.5
    ok = bool(torch.isfinite(first).all()) and error <= bound
    return {"shape": shape, "ok": ok, "max_error": error, "bound": bound}


def time_in_turns(
    contenders: dict[str, Callable[[], None]], rounds: int, burst_ms: float
) -> dict[str, list[float]]:
    """Milliseconds per call of each contender, round by round."""
    import torch

    counts = {}
    for name, run in contenders.items():
        for _ in range(3):
            run()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            run()
        stop.record()
        torch.cuda.synchronize()
        counts[name] = max(3, int(burst_ms / max(start.elapsed_time(stop) / 5, 1e-3)) + 1)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(counts[name]):
                run()
            stop.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(stop) / counts[name])
            time.sleep(0.005)
    return times


def measure(kernels: dict[str, Any], shape: tuple[int, int, int], args: Any) -> dict[str, Any]:
    import torch

    m, n, k = shape
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    blocks = torch.cuda.get_device_properties(0).multi_processor_count // 2 * 2
    contenders: dict[str, Callable[[], None]] = {"torch": lambda: torch.matmul(a, b, out=c)}
    if args.triton:
        from peer_triton import best_product

        contenders["triton"] = best_product(a, b, c)
        c.fill_(float("nan"))
        contenders["triton"]()
        torch.testing.assert_close(c, torch.matmul(a, b), rtol=2e-2, atol=2e-2 * k**0.5)
    for name, kernel in kernels.items():
        call = kernel.caller()
        contenders[name] = lambda call=call: call(a, b, c, blocks)
    times = time_in_turns(contenders, args.rounds, args.burst_ms)
    result: dict[str, Any] = {"shape": shape}
    flops = 2.0 * m * n * k
    for name, found in times.items():
        middle = statistics.median(found)
        result[name] = {
            "ms": middle,
            "tflops": flops / middle / 1e9,
            "spread": (max(found) - min(found)) / middle,
        }
    best = min(found["ms"] for name, found in result.items() if name in ("torch", "triton"))
    for name in kernels:
        result[name]["against_torch"] = result["torch"]["ms"] / result[name]["ms"]
        result[name]["against_best"] = best / result[name]["ms"]
    return result


def work(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    props = torch.cuda.get_device_properties(0)
    report: dict[str, Any] = {
        "gpu": props.name,
        "sms": props.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "command": " ".join(["python", "benchmarks/gemm_scheduled.py", *sys.argv[1:]]),
        "compiled": {},
        "checks": {},
        "times": [],
    }
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    kernels = {}
    for name in args.kernels:
        kernel = compile_kernel(name)
        report["compiled"][name] = {
            "seconds": kernel.compile_seconds,
            "resources": {k: vars(r) for k, r in kernel.resources.items()},
        }
        found = []
        for shape in (*ODD_SHAPES, *(() if args.quick else args.shapes)):
            print(f"checking {name} {shape}", flush=True)
            found.append(check(kernel, shape, 20 if shape == args.shapes[0] else 3))
            print(f"  {found[-1]}", flush=True)
        report["checks"][name] = found
        if all(f["ok"] for f in found):
            kernels[name] = kernel
    for shape in args.shapes:
        report["times"].append(measure(kernels, shape, args))
        print(json.dumps(report["times"][-1]), flush=True)
    return report


def parse(text: str) -> tuple[int, int, int]:
    m, n, k = (int(x) for x in text.split("x"))
    return m, n, k


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    parser.add_argument("--shapes", type=parse, nargs="+", default=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--burst-ms", type=float, default=2.0)
    parser.add_argument("--timeout", type=float, default=240.0)
    parser.add_argument("--triton", action="store_true", help="race a Triton product too")
    parser.add_argument("--quick", action="store_true", help="check the small shapes only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        report = work(args)
        if args.out is not None:
            args.out.write_text(json.dumps(report, indent=1, default=str))
        return 0 if all(f["ok"] for c in report["checks"].values() for f in c) else 1
    # a kernel that hangs can only be ended with its process
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *sys.argv[1:]]
    try:
        return subprocess.run(command, timeout=args.timeout).returncode
    except subprocess.TimeoutExpired:
        print(f"killed after {args.timeout:g} s: a kernel hangs", file=sys.stderr)
        return 124


if __name__ == "__main__":
    raise SystemExit(main())
