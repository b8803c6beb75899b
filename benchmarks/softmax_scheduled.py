"""The hand-scheduled cluster softmax kernels on a GPU: checked, then timed in turns with a copy.

    python benchmarks/softmax_scheduled.py --out softmax.json
    python benchmarks/softmax_scheduled.py --shapes 8192x65536 --clusters 32 30

Each kernel first runs on NaN-poisoned outputs and fresh data, small and odd shapes included, and
every element is compared with a float64 result; 20 runs must agree bit for bit. Then contenders
(this kernel with each number of clusters, a copy of the same bytes, torch.softmax) take turns: a
round is one burst of at least `--burst-ms` inside a pair of events for each of them; medians of
`--rounds` rounds are reported, in bytes read and written per second. Everything runs in a child
process that is killed after `--timeout` seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemm_scheduled import compile_kernel, time_in_turns

CLUSTER = 4
COLUMNS = 2048  # of a group in the kernel for long rows
# rows and columns
SHAPES = {
    "softmax_cluster_wide": ((8192, 65536),),
    "softmax_cluster": ((65536, 1024),),
}
# one row, a tail in the last block, blocks that hold nothing, fewer and more rows than clusters
ODD_SHAPES = {
    "softmax_cluster_wide": (
        (1, 65536),
        (2, 2048),
        (7, 32768),
        (300, 55296),
        (129, 16384),
        (1000, 65536),
    ),
    "softmax_cluster": ((1, 1024), (8, 4), (13, 900), (1000, 260), (5000, 512)),
}


def tensor(name: str, rows: int, columns: int) -> Any:
    import torch

    if name == "softmax_cluster":
        return torch.randn(rows, columns, device="cuda") * 3
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * 3
    return x.view(rows, columns // COLUMNS, 8, 256)


def worst(x: Any, y: Any) -> float:
    """The largest error of `y` relative to what its type keeps; inf for a NaN."""
    x, y = x.flatten(1), y.flatten(1)
    unit = 2.0**-8 if x.element_size() == 2 else 2.0**-18
    most = 0.0
    step = max(1, (1 << 24) // x.shape[1])
    for first in range(0, len(x), step):
        want = x[first : first + step].double().softmax(-1)
        error = ((y[first : first + step].double() - want).abs() / want).max().item() / unit
        most = max(most, error if math.isfinite(error) else math.inf)
    return most


def check(kernel: Any, name: str, shape: tuple[int, int], blocks: int, runs: int) -> dict[str, Any]:
    import torch

    x = tensor(name, *shape)
    first = None
    for _ in range(runs):
        y = torch.full_like(x, float("nan"))
        kernel({"X": x, "Y": y, "scale": math.log2(math.e), "blocks": blocks})
        torch.cuda.synchronize()
        if first is None:
            first = y
        elif not torch.equal(first.view(torch.uint8), y.view(torch.uint8)):
            return {"shape": shape, "blocks": blocks, "ok": False, "why": "runs differ"}
    error = worst(x, first)
    return {
        "shape": shape,
        "blocks": blocks,
        "ok": error <= 1.0,
        "error_of_bound": error,
        "runs": runs,
    }


def measure(kernel: Any, name: str, shape: tuple[int, int], args: Any) -> dict[str, Any]:
    import torch

    x = tensor(name, *shape)
    y, z = torch.empty_like(x), torch.empty_like(x)
    call = kernel.caller()
    contenders: dict[str, Callable[[], None]] = {}
    for clusters in args.clusters:

        def run(blocks: int = CLUSTER * clusters) -> None:
            call(x, y, math.log2(math.e), blocks)

        contenders[f"{name}/{clusters}"] = run
    flat_x, flat_z = x.flatten(1), z.flatten(1)
    contenders["copy"] = lambda: z.copy_(x)
    contenders["torch"] = lambda: torch.softmax(flat_x, -1, out=flat_z)
    times = time_in_turns(contenders, args.rounds, args.burst_ms)
    result: dict[str, Any] = {"kernel": name, "shape": shape}
    moved = 2.0 * x.numel() * x.element_size()
    for contender, found in times.items():
        middle = statistics.median(found)
        result[contender] = {
            "ms": middle,
            "terabytes_per_second": moved / middle / 1e9,
            "spread": (max(found) - min(found)) / middle,
        }
    for clusters in args.clusters:
        mine = result[f"{name}/{clusters}"]
        for peer in ("copy", "torch"):
            mine[f"against_{peer}"] = result[peer]["ms"] / mine["ms"]
    return result


def command(args: argparse.Namespace) -> str:
    """What to type for the same again."""
    words = [Path(w).name if Path(w) == args.out else w for w in sys.argv[1:] if w != "--child"]
    return " ".join(["python", f"benchmarks/{Path(__file__).name}", *words])


def work(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    props = torch.cuda.get_device_properties(0)
    if not args.clusters:
        # clusters do not span the GPU's groups of multiprocessors: of this H200's 132, 30 clusters
        # of four are resident at once (3.59 TB/s), a 31st waits for a second wave (2.27 TB/s)
        args.clusters = [props.multi_processor_count * 30 // 132]
    report: dict[str, Any] = {
        "gpu": props.name,
        "sms": props.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "command": command(args),
        "compiled": {},
        "checks": {},
        "times": [],
    }
    torch.manual_seed(0)
    for name in args.kernels:
        kernel = compile_kernel(name)
        report["compiled"][name] = {
            "seconds": kernel.compile_seconds,
            "resources": {k: vars(r) for k, r in kernel.resources.items()},
        }
        shapes = args.shapes or SHAPES[name]
        found = report["checks"][name] = []
        for shape in (*ODD_SHAPES[name], *(() if args.quick else shapes)):
            for clusters in {1, *args.clusters} if shape in ODD_SHAPES[name] else args.clusters:
                print(f"checking {name} {shape}, {clusters} clusters", flush=True)
                runs = 20 if shape in shapes[:1] else 3
                found.append(check(kernel, name, shape, CLUSTER * clusters, runs))
                print(f"  {found[-1]}", flush=True)
                if args.out is not None:
                    args.out.write_text(json.dumps(report, indent=1, default=str))
                torch.cuda.empty_cache()
        if all(f["ok"] for f in found) or args.force:
            for shape in shapes:
                report["times"].append(measure(kernel, name, shape, args))
                print(json.dumps(report["times"][-1]), flush=True)
                torch.cuda.empty_cache()
    return report


def parse(text: str) -> tuple[int, int]:
    rows, columns = (int(x) for x in text.split("x"))
    return rows, columns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    parser.add_argument("--shapes", type=parse, nargs="+", default=[])
    parser.add_argument("--kernels", nargs="+", default=["softmax_cluster_wide"])
    parser.add_argument("--clusters", type=int, nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--burst-ms", type=float, default=4.0)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--quick", action="store_true", help="check the small shapes only")
    parser.add_argument("--force", action="store_true", help="time what failed its check, too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        report = work(args)
        if args.out is not None:
            args.out.write_text(json.dumps(report, indent=1, default=str))
        return 0 if all(f["ok"] for c in report["checks"].values() for f in c) else 1
    # a kernel that hangs can only be ended with its process
    child = [sys.executable, str(Path(__file__).resolve()), "--child", *sys.argv[1:]]
    try:
        return subprocess.run(child, timeout=args.timeout).returncode
    except subprocess.TimeoutExpired:
        print(f"killed after {args.timeout:g} s: a kernel hangs", file=sys.stderr)
        return 124


if __name__ == "__main__":
    raise SystemExit(main())
