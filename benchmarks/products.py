"""Products with nothing chosen, at sizes that a seed draws, against cuBLAS in CUDA graphs.

    python benchmarks/products.py --seed 7 --count 100 --out products.json
    python benchmarks/products.py --seed 7 --count 100 --part 0/4 --out products.json
    python benchmarks/products.py summary products.json ...

M from 1 to 16384, N and K from 256 to 32768, as often small as large, N and K multiples of 8, no
operand above 1 GB. Contenders: A @ B by the model alone (on a machine that has tuned none of
them), and PyTorch with B as it is and with its transpose stored. `--part i/n` takes every n-th
size.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from race import ROOT, Race, build_ahead, command_line, main, name_of

sys.path.insert(0, str(ROOT))

TARGET = "cuda -arch=sm_90a"
BOUND = 2e-2
LARGEST = 1 << 29  # elements of an operand


@cache
def drawn(seed: int, count: int, part: str) -> list[tuple[int, int, int]]:
    rng, found = random.Random(seed), []

    def near(low: int, high: int, step: int) -> int:
        return max(low, round(low * (high / low) ** rng.random() / step) * step)

    while len(found) < count:
        m, n, k = near(1, 16384, 1), near(256, 32768, 8), near(256, 32768, 8)
        m = m if m < 8 else m // 8 * 8
        if max(m * k, n * k, m * n) <= LARGEST:
            found.append((m, n, k))
    which, of = map(int, part.split("/"))
    return found[which::of]


def kernel() -> Any:
    from zoo.gemm.values import matmul

    return matmul.on(TARGET)


def build(m: int, n: int, k: int) -> None:
    kernel().compile(M=m, N=n, K=k)


def races(seed: int = 0, count: int = 20, part: str = "0/1") -> Iterator[Race]:
    for m, n, k in drawn(seed, count, part):
        yield race(m, n, k)


def race(m: int, n: int, k: int) -> Race:
    import torch

    made: dict[str, Any] = {}

    def runs() -> dict[str, Callable[[], Any]]:
        if not made:
            torch.manual_seed(0)
            a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
            ours = kernel().compile(a, b)
            made.update(a=a, b=b, ours=lambda: ours(a, b))
        return {"ours": made["ours"]}

    def checks() -> Iterator[dict[str, Any]]:
        calls = runs()
        want = (made["a"].float() @ made["b"].float()).float()
        for name, call in calls.items():
            error = ((call().float() - want).abs().max() / want.abs().max()).item()
            yield {"contender": name, "ok": error < BOUND, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        calls, a, b = runs(), made["a"], made["b"]
        other = b.T.contiguous()
        return {**calls, "NN": lambda: a @ b, "NT": lambda: a @ other.T}

    return Race(name_of("product", (m, n, k)), contenders, checks, work=2.0 * m * n * k,
                unit="FLOP", ours=["ours"])  # fmt: skip


def summary(*paths: str) -> None:
    """The speed of ours over the best of cuBLAS."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for path in paths:
        for each in json.loads(Path(path).read_text())["races"]:
            times = {name: found["ms"] for name, found in each.get("contenders", {}).items()}
            if not times:
                print(f"{each['race']}: no times")
                continue
            best = min(times.pop("NN"), times.pop("NT"))
            for name, ms in times.items():
                ratios.setdefault(name, []).append((best / ms, each["race"]))
            told = ", ".join(f"{name} {best / ms:.3f}" for name, ms in times.items())
            print(f"{each['race']}: {told}, {1e3 * best:.1f} µs")
    for name, found in ratios.items():
        values = np.array([ratio for ratio, _ in found])
        low, where = min(found)
        mean = np.exp(np.log(values).mean())
        print(f"{name}, {len(found)} sizes: {mean:.3f}, least {low:.3f} ({where})")
        print(f"  below 0.88: {(values < 0.88).sum()}, at least 1: {(values >= 1).sum()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(*sys.argv[2:])
        raise SystemExit
    parser = command_line(__doc__)
    parser.set_defaults(backend="graph", rounds=4, burst_ms=1.0, warmup_ms=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--part", default="0/1")
    args = parser.parse_args()
    build_ahead(build, drawn(args.seed, args.count, args.part))
    raise SystemExit(main(__file__, parser))
