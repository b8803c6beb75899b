"""Products with nothing chosen, at sizes that a seed draws, against cuBLAS in CUDA graphs.

    python benchmarks/products.py --seed 7 --count 100 --out products.json
    python benchmarks/products.py --seed 7 --count 100 --part 0/4 --kind float32 --out products.json
    python benchmarks/products.py summary products.json ...

M from 1 to 16384, N and K from 256 to 32768, as often small as large, N and K multiples of 8, no
operand above 1 GB. `--kind odd`: no multiples of 8; `few`: M up to 64, B of 64 MB or more;
`float32`: as IEEE says, `tf32`: rounded for the tensor core, both up to 8192. Contenders: A @ B by
the model alone (on a machine that has tuned none of them), PyTorch with B as it is and with its
transpose stored, and for few rows copies of B, of which the fastest counts. `--part i/n` takes
every n-th size.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from choices import product
from copies import copies
from race import ROOT, Race, build_ahead, main, name_of, seeded, tell_ratios, timed

sys.path.insert(0, str(ROOT))

TARGET = "cuda -arch=sm_90a"
LARGEST = 1 << 29  # elements of an operand


@dataclass(frozen=True)
class Kind:
    """What sizes a seed draws, of which type, and how far results may be off."""

    dtype: str = "bfloat16"
    rows: int = 16384  # at most
    most: int = 32768  # of N and K
    step: int = 8
    weights: int = 0  # elements of B at least
    bound: float = 2e-2
    precision: str = "ieee"


KINDS = {
    "bfloat16": Kind(),
    "odd": Kind(step=1),
    "few": Kind(rows=64, weights=1 << 25),
    "float32": Kind("float32", 8192, 8192, bound=1e-4),
    "tf32": Kind("float32", 8192, 8192, bound=5e-3, precision="tf32"),
}


@cache
def drawn(seed: int, count: int, part: str, kind: str) -> list[tuple[int, int, int, str]]:
    rng, found, like = random.Random(seed), list[tuple[int, int, int, str]](), KINDS[kind]

    def near(low: int, high: int, step: int) -> int:
        size = max(low, round(low * (high / low) ** rng.random() / step) * step)
        return size + (step == 1 and low > 1 and size % 8 == 0)

    while len(found) < count:
        m, n, k = near(1, like.rows, 1), *(near(256, like.most, like.step) for _ in range(2))
        m = m if m < 8 or like.step == 1 else m // 8 * 8
        if max(m * k, n * k, m * n) <= LARGEST and n * k >= like.weights:
            found.append((m, n, k, kind))
    which, of = map(int, part.split("/"))
    return found[which::of]


def kernel(kind: str) -> Any:
    return product.on(f"{TARGET} -precision={KINDS[kind].precision}")


def build(m: int, n: int, k: int, kind: str) -> None:
    import ml_dtypes  # noqa: F401 (NumPy learns of bfloat16)

    zero = np.zeros((), KINDS[kind].dtype)
    kernel(kind).compile(*(np.broadcast_to(zero, shape) for shape in ((m, k), (k, n))))


def races(
    seed: int = 0, count: int = 20, part: str = "0/1", kind: str = "bfloat16"
) -> Iterator[Race]:
    for each in drawn(seed, count, part, kind):
        yield race(*each)


def race(m: int, n: int, k: int, kind: str) -> Race:
    import torch

    dtype, bound = getattr(torch, KINDS[kind].dtype), KINDS[kind].bound
    made: dict[str, Any] = {}

    def runs() -> dict[str, Callable[[], Any]]:
        if not made:
            torch.manual_seed(0)
            a, b = (torch.randn(s, device="cuda", dtype=dtype) for s in ((m, k), (k, n)))
            ours = kernel(kind).compile(a, b)
            made.update(a=a, b=b, ours=lambda: ours(a, b))
        return {"ours": made["ours"]}

    def checks() -> Iterator[dict[str, Any]]:
        calls = runs()
        want = (made["a"].float() @ made["b"].float()).float()
        for name, call in calls.items():
            error = ((call().float() - want).abs().max() / want.abs().max()).item()
            yield {"contender": name, "ok": error < bound, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        calls, a, b = runs(), made["a"], made["b"]
        other, fastest = b.T.contiguous(), ((256, 1), (512, 1))

        def multiply(x: Any) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = KINDS[kind].precision == "tf32"
            made = a @ x
            torch.backends.cuda.matmul.allow_tf32 = False
            return made

        found = {**calls, "NN": lambda: multiply(b), "NT": lambda: multiply(other.T)}
        return found | (copies(b, torch.empty_like(b), fastest) if kind == "few" else {})

    return Race(name_of("product", (m, n, k)), contenders, checks, work=2.0 * m * n * k,
                unit="FLOP", ours=["ours"])  # fmt: skip


def summary(*paths: str) -> None:
    """The speed of ours over the best of cuBLAS."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for race, times in timed(paths):
        best = min(times.pop("NN"), times.pop("NT"))
        copied = [times.pop(name) for name in [*times] if name.startswith("copy")]
        if copied:  # of what a copy moves, B is half
            times["ours, of a copy"] = 2 * best * times["ours"] / min(copied)
        for name, ms in times.items():
            ratios.setdefault(name, []).append((best / ms, race))
        told = ", ".join(f"{name} {best / ms:.3f}" for name, ms in times.items())
        print(f"{race}: {told}, {1e3 * best:.1f} µs")
    for name, found in ratios.items():
        tell_ratios(name, found, 0.88)


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(*sys.argv[2:])
        raise SystemExit
    parser = seeded(__doc__)
    parser.add_argument("--kind", choices=KINDS, default="bfloat16")
    args = parser.parse_args()
    build_ahead(build, drawn(args.seed, args.count, args.part, args.kind))
    raise SystemExit(main(__file__, parser))
