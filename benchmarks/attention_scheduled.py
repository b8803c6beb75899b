"""The hand-scheduled attention kernels against torch's SDPA on a GPU: checked, then timed in turns.

    python benchmarks/attention_scheduled.py --out attention.json
    python benchmarks/attention_scheduled.py --kernels flash_attention_causal --shapes 2x16x8192

Each kernel first runs on NaN-poisoned outputs and fresh data, small and odd shapes included, and
every element is compared with a float64 result, within what rounding the probabilities and the
output to bf16 can cost; 20 runs must agree bit for bit. Then contenders (this kernel, cuDNN,
FlashAttention as torch has it) take turns: a round is one burst of at least `--burst-ms` inside a
pair of events for each of them; medians of `--rounds` rounds are reported. Everything runs in a
child process that is killed after `--timeout` seconds.
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

SHAPES = ((2, 16, 8192),)  # batch, heads, length
KERNELS = (
    "flash_attention",
    "flash_attention_causal",
    "flash_attention_64",
    "flash_attention_64_causal",
)
# batch, heads, queries, keys: one tile, one row, tails on both sides, more queries than keys (in
# causal attention some then see nothing), more keys than queries, fewer and more tiles than blocks
ODD_SHAPES = (
    (1, 1, 128, 128),
    (1, 1, 1, 1),
    (1, 1, 64, 100),
    (1, 2, 300, 77),
    (2, 3, 130, 353),
    (1, 2, 256, 530),
    (3, 5, 1000, 777),
    (2, 8, 2048, 2048),
    (1, 40, 700, 1500),
)


def head_of(kernel: Any) -> int:
    """The last size of Q."""
    return int(kernel.trace[0].program.params[0].shape[-1].value)


def inputs(batch: int, heads: int, sq: int, sk: int, head: int) -> tuple[Any, Any, Any]:
    import torch

    def tensor(length: int) -> Any:
        return torch.randn(batch, heads, length, head, device="cuda", dtype=torch.bfloat16)

    return tensor(sq), tensor(sk), tensor(sk)


def worst(q: Any, k: Any, v: Any, o: Any, causal: bool) -> float:
    """The largest error of `o` in units of what roundings to bf16 explain; inf for a NaN."""
    import torch

    most = 0.0
    sq, sk = q.shape[2], k.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h].double() @ k[b, h].double().T / math.sqrt(q.shape[3])
            if causal:
                seen = torch.ones(sq, sk, dtype=torch.bool, device="cuda").tril(sk - sq)
                scores.masked_fill_(~seen, float("-inf"))
            p = torch.nan_to_num(torch.softmax(scores, -1), nan=0.0)  # a query that sees nothing
            del scores
            want = p @ v[b, h].double()
            # the probabilities and the result each keep 8 bits; the rest is float32
            # bf16 rounds by up to 2^-8 of a value, and two roundings meet: of P, and of the result
            bound = 2 * 2.0**-8 * (p @ v[b, h].double().abs()) + 1e-5
            error = ((o[b, h].double() - want).abs() / bound).max().item()
            most = max(most, error if math.isfinite(error) else math.inf)
    return most


def check(kernel: Any, causal: bool, shape: tuple[int, ...], runs: int) -> dict[str, Any]:
    import torch

    head = head_of(kernel)
    q, k, v = inputs(*shape, head)
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    scale = math.log2(math.e) / math.sqrt(head)
    first = None
    for _ in range(runs):
        o = torch.full_like(q, float("nan"))
        kernel({"Q": q, "K": k, "V": v, "O": o, "scale": scale, "blocks": blocks})
        torch.cuda.synchronize()
        if first is None:
            first = o
        elif not torch.equal(first.view(torch.int16), o.view(torch.int16)):
            return {"shape": shape, "ok": False, "why": "runs differ"}
    error = worst(q, k, v, first, causal)
    return {"shape": shape, "ok": error <= 1.0, "error_of_bound": error, "runs": runs}


def measure(kernel: Any, name: str, shape: tuple[int, int, int], args: Any) -> dict[str, Any]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    batch, heads, length = shape
    causal = name.endswith("causal")
    head = head_of(kernel)
    q, k, v = inputs(batch, heads, length, length, head)
    o = torch.empty_like(q)
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    scale = math.log2(math.e) / math.sqrt(head)
    call = kernel.caller()

    def by(backend: Any) -> Callable[[], None]:
        def run() -> None:
            with sdpa_kernel([backend]):
                sdpa(q, k, v, is_causal=causal)

        return run

    contenders: dict[str, Callable[[], None]] = {
        name: lambda: call(q, k, v, o, scale, blocks),
        "cudnn": by(SDPBackend.CUDNN_ATTENTION),
        "flash": by(SDPBackend.FLASH_ATTENTION),
    }
    result: dict[str, Any] = {"kernel": name, "shape": shape}
    for peer in ("cudnn", "flash"):
        try:
            contenders[peer]()
            torch.cuda.synchronize()
        except RuntimeError as error:
            result[peer] = {"why": str(error).splitlines()[0]}
            del contenders[peer]
    times = time_in_turns(contenders, args.rounds, args.burst_ms)
    flops = 4.0 * batch * heads * length * length * head * (0.5 if causal else 1.0)
    for contender, found in times.items():
        middle = statistics.median(found)
        result[contender] = {
            "ms": middle,
            "tflops": flops / middle / 1e9,
            "spread": (max(found) - min(found)) / middle,
        }
    for peer in ("cudnn", "flash"):
        if peer in times:
            result[name][f"against_{peer}"] = result[peer]["ms"] / result[name]["ms"]
    return result


def work(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    props = torch.cuda.get_device_properties(0)
    report: dict[str, Any] = {
        "gpu": props.name,
        "sms": props.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "command": " ".join(["python", "benchmarks/attention_scheduled.py", *sys.argv[1:]]),
        "compiled": {},
        "checks": {},
        "times": [],
    }
    torch.manual_seed(0)
    for name in args.kernels:
        causal = name.endswith("causal")
        kernel = compile_kernel(name)
        report["compiled"][name] = {
            "seconds": kernel.compile_seconds,
            "resources": {k: vars(r) for k, r in kernel.resources.items()},
        }
        full = [(b, h, n, n) for b, h, n in args.shapes]
        found = report["checks"][name] = []
        for shape in (*ODD_SHAPES, *(() if args.quick else full)):
            print(f"checking {name} {shape}", flush=True)
            found.append(check(kernel, causal, shape, 20 if shape in full[:1] else 3))
            print(f"  {found[-1]}", flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(report, indent=1, default=str))
        if all(f["ok"] for f in found) or args.force:
            for shape in args.shapes:
                report["times"].append(measure(kernel, name, shape, args))
                print(json.dumps(report["times"][-1]), flush=True)
    return report


def parse(text: str) -> tuple[int, int, int]:
    batch, heads, length = (int(x) for x in text.split("x"))
    return batch, heads, length


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    parser.add_argument("--shapes", type=parse, nargs="+", default=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
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
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *sys.argv[1:]]
    try:
        return subprocess.run(command, timeout=args.timeout).returncode
    except subprocess.TimeoutExpired:
        print(f"killed after {args.timeout:g} s: a kernel hangs", file=sys.stderr)
        return 124


if __name__ == "__main__":
    raise SystemExit(main())
