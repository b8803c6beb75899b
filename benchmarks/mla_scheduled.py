"""The hand-scheduled MLA decode kernel on a GPU: checked, then timed.

    python benchmarks/mla_scheduled.py --out mla.json
    python benchmarks/mla_scheduled.py --shapes 128x128x8192 --quick

The kernel first runs on NaN-poisoned outputs and fresh data, short and odd lengths included, and
every element of O and of the log-sum-exp is compared with a float64 result, within what rounding
the probabilities and the output to bf16 can cost; 20 runs must agree bit for bit. Shapes are
batch × heads × keys; a request counts 2·heads·keys·(576 + 512) operations. A round is one burst of
at least `--burst-ms` inside a pair of events; medians of `--rounds` rounds are reported. Everything
runs in a child process that is killed after `--timeout` seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from gemm_scheduled import compile_kernel, time_in_turns

LATENT, ROPE, GROUP = 512, 64, 64
KERNEL = "mla_seesaw"
SHAPES = ((128, 128, 8192), (128, 128, 1024), (128, 64, 8192), (128, 64, 1024))
# one key, less than a block, whole blocks, odd and even counts of them, tails, more than one wave
ODD_SHAPES = (
    (1, 64, 1),
    (1, 64, 63),
    (2, 64, 64),
    (1, 128, 65),
    (3, 64, 128),
    (2, 128, 150),
    (1, 64, 192),
    (5, 128, 257),
    (133, 128, 320),
    (2, 64, 1000),
)


def inputs(batch: int, heads: int, keys: int) -> tuple[Any, Any]:
    import torch

    width = LATENT + ROPE
    q = torch.randn(batch, heads // GROUP, GROUP, width, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, keys, width, device="cuda", dtype=torch.bfloat16)
    return q, k


def scale() -> float:
    return math.log2(math.e) / math.sqrt(LATENT + ROPE)


def outputs(q: Any) -> tuple[Any, Any]:
    import torch

    o = q.new_full((*q.shape[:3], LATENT), float("nan"))
    lse = torch.full(q.shape[:3], float("nan"), device="cuda", dtype=torch.float32)
    return o, lse


def worst(q: Any, k: Any, o: Any, lse: Any) -> tuple[float, float]:
    """The largest error of `o` in units of what roundings to bf16 explain, and that of `lse`; inf
    for a NaN."""
    import torch

    most = [0.0, 0.0]
    for b in range(len(q)):
        keys = k[b].double()
        scores = q[b].double() @ keys.T * scale() * math.log(2.0)
        p = torch.softmax(scores, -1)
        values = keys[:, :LATENT]
        want = p @ values
        # the probabilities and the result each keep 8 bits; the rest is float32
        bound = 2.0**-8 * (p @ values.abs()) + 1e-5
        errors = (
            ((o[b].double() - want).abs() / bound).max().item(),
            (lse[b].double() - torch.logsumexp(scores, -1) / math.log(2.0)).abs().max().item(),
        )
        for i, error in enumerate(errors):
            most[i] = max(most[i], error if math.isfinite(error) else math.inf)
    return most[0], most[1]


def check(kernel: Any, shape: tuple[int, int, int], runs: int) -> dict[str, Any]:
    import torch

    q, k = inputs(*shape)
    first = None
    for _ in range(runs):
        o, lse = outputs(q)
        kernel({"Q": q, "K": k, "O": o, "LSE": lse, "scale": scale()})
        torch.cuda.synchronize()
        if first is None:
            first = o, lse
        elif not (
            torch.equal(first[0].view(torch.int16), o.view(torch.int16))
            and torch.equal(first[1].view(torch.int32), lse.view(torch.int32))
        ):
            return {"shape": shape, "ok": False, "why": "runs differ"}
    assert first is not None
    error, lse_error = worst(q, k, *first)
    return {
        "shape": shape,
        "ok": error <= 1.0 and lse_error <= 1e-3,
        "error_of_bound": error,
        "lse_error": lse_error,
        "runs": runs,
    }


def measure(kernel: Any, shape: tuple[int, int, int], args: Any) -> dict[str, Any]:
    batch, heads, keys = shape
    q, k = inputs(*shape)
    o, lse = outputs(q)
    call = kernel.caller()
    times = time_in_turns({KERNEL: lambda: call(q, k, o, lse, scale())}, args.rounds, args.burst_ms)
    found = times[KERNEL]
    middle = statistics.median(found)
    flops = 2.0 * batch * heads * keys * (2 * LATENT + ROPE)
    return {
        "kernel": KERNEL,
        "shape": shape,
        "ms": middle,
        "tflops": flops / middle / 1e9,
        "key_terabytes_per_second": k.numel() * 2 / middle / 1e9,
        "spread": (max(found) - min(found)) / middle,
    }


def command(args: argparse.Namespace) -> str:
    """What to type for the same again."""
    words = [Path(w).name if Path(w) == args.out else w for w in sys.argv[1:] if w != "--child"]
    return " ".join(["python", f"benchmarks/{Path(__file__).name}", *words])


def work(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    props = torch.cuda.get_device_properties(0)
    report: dict[str, Any] = {
        "gpu": props.name,
        "sms": props.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "command": command(args),
        "checks": [],
        "times": [],
    }
    torch.manual_seed(0)
    kernel = compile_kernel(KERNEL)
    report["compiled"] = {
        "seconds": kernel.compile_seconds,
        "resources": {k: vars(r) for k, r in kernel.resources.items()},
    }
    shapes = [] if args.quick else args.shapes
    for shape in (*ODD_SHAPES, *shapes):
        print(f"checking {shape}", flush=True)
        report["checks"].append(check(kernel, shape, 20 if shape in args.shapes[:1] else 3))
        print(f"  {report['checks'][-1]}", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(report, indent=1, default=str))
        torch.cuda.empty_cache()
    if all(f["ok"] for f in report["checks"]) or args.force:
        for shape in args.shapes:
            report["times"].append(measure(kernel, shape, args))
            print(json.dumps(report["times"][-1]), flush=True)
    return report


def parse(text: str) -> tuple[int, int, int]:
    batch, heads, keys = (int(x) for x in text.split("x"))
    if heads % GROUP:
        raise argparse.ArgumentTypeError(f"heads come in groups of {GROUP}, not {heads}")
    return batch, heads, keys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    parser.add_argument("--shapes", type=parse, nargs="+", default=list(SHAPES))
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
        return 0 if all(f["ok"] for f in report["checks"]) else 1
    # a kernel that hangs can only be ended with its process
    child = [sys.executable, str(Path(__file__).resolve()), "--child", *sys.argv[1:]]
    try:
        return subprocess.run(child, timeout=args.timeout).returncode
    except subprocess.TimeoutExpired:
        print(f"killed after {args.timeout:g} s: a kernel hangs", file=sys.stderr)
        return 124


if __name__ == "__main__":
    raise SystemExit(main())
