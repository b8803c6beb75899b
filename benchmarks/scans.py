"""Scans over tile values along rows and columns, on a GPU, in turns with copies and PyTorch.

    python benchmarks/scans.py --out scans.json
    python benchmarks/scans.py --seed 7 --count 3 --only cumsum

32768×32768 and `--count` sizes that the seed draws, float32 and bfloat16. Contenders: our kernels
with nothing chosen, and at a few tiles (rows × columns / threads) and stages of loads; a plain
copy; PyTorch, also compiled. The bar is 0.85 of the copy's speed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from race import ROOT, Race, build_ahead, command_line, main, name_of

sys.path.insert(0, str(ROOT))

CHOSEN = "nothing chosen"
# rows, columns, threads, stages of loads that run ahead (1: other blocks hide them)
ROWS = (
    (4, 1024, 128, 1),
    (8, 512, 128, 1),
    (4, 1024, 128, 3),
    (4, 2048, 128, 2),
    (1, 4096, 256, 3),
)
COLUMNS = (
    (64, 32, 128, 1),
    (64, 64, 128, 1),
    (64, 64, 128, 3),
    (32, 128, 128, 1),
    (32, 128, 128, 4),
)
SQUARE = (32768, 32768)
CHECKED = 64  # lines that are compared with a float64 result


@dataclass(frozen=True)
class Kind:
    """`dim` is the one that is scanned; `torch(x, mask)` is PyTorch's text; `bytes`: those moved
    for each element besides the input's and the output's."""

    kernel: str
    dim: int
    torch: Callable[..., Any]
    is_product: bool = False
    is_masked: bool = False
    bytes: int = 0


def kinds() -> dict[str, Kind]:
    import torch

    return {
        "cumsum rows": Kind("cumsum_rows", 1, lambda x: torch.cumsum(x, 1)),
        "cumsum columns": Kind("cumsum_columns", 0, lambda x: torch.cumsum(x, 0)),
        "masked cumsum rows": Kind(
            "masked_cumsum_rows", 1, lambda x, m: torch.cumsum(x * m, 1), is_masked=True, bytes=1
        ),
        "reverse cumsum rows": Kind(
            "reverse_cumsum_rows", 1, lambda x: torch.cumsum(x.flip(1), 1).flip(1)
        ),
        "cumprod rows": Kind("cumprod_rows", 1, lambda x: torch.cumprod(x, 1), is_product=True),
        "cumprod columns": Kind(
            "cumprod_columns", 0, lambda x: torch.cumprod(x, 0), is_product=True
        ),
    }


def jobs(
    seed: int = 0, count: int = 1, square: int = 1
) -> Iterator[tuple[str, str, tuple[int, int]]]:
    rng = random.Random(seed)
    sizes = [SQUARE] * square
    sizes += [(rng.randrange(1000, 40000), rng.randrange(1000, 40000)) for _ in range(count)]
    return product(kinds(), ("float32", "bfloat16"), sizes)


def races(seed: int = 0, count: int = 1, square: int = 1) -> Iterator[Race]:
    for name, dtype, size in jobs(seed, count, square):
        yield race(name, kinds()[name], dtype, size, seed)


def schedules(kind: Kind) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {CHOSEN: {}}
    for r, n, threads, stages in ROWS if kind.dim else COLUMNS:
        more = {"stages": stages} if stages > 1 else {}
        label = f"{r}x{n}/{threads}" + f" {stages} stages" * bool(more)
        found[label] = {"tiles": {"r": r, "n": n}, "threads": threads, **more}
    return found


def build(name: str, dtype: str, size: tuple[int, int]) -> None:
    import ml_dtypes  # noqa: F401 (NumPy learns of bfloat16)
    import numpy as np

    from zoo import scans

    kind = kinds()[name]
    given = [np.empty(size, dtype), *([np.empty(size, bool)] if kind.is_masked else [])]
    for fields in schedules(kind).values():
        kernel = getattr(scans, kind.kernel).on("cuda").with_schedule(**fields)
        kernel.compile(*given, dtype=dtype)


def race(name: str, kind: Kind, dtype: str, size: tuple[int, int], seed: int) -> Race:
    import torch

    from zoo import scans

    made: dict[str, Any] = {}

    def inputs() -> tuple[Any, ...]:
        if not made:
            torch.manual_seed(seed)
            x = torch.randn(size, device="cuda", dtype=getattr(torch, dtype))
            x = x * 0.01 + 1 if kind.is_product else x
            mask = (torch.rand(size, device="cuda") < 0.5,) if kind.is_masked else ()
            made["inputs"] = (x, *mask)
        return made["inputs"]  # type: ignore[no-any-return]

    def kernels() -> dict[str, Callable[[], Any]]:
        given, found = inputs(), {}
        for label, fields in schedules(kind).items():
            kernel = getattr(scans, kind.kernel).with_schedule(**fields)
            ready = kernel.compile(*given, dtype=dtype)
            found[label] = lambda ready=ready: ready(*given)
        return found

    def checks() -> Iterator[dict[str, Any]]:
        given = inputs()
        part = [x[:CHECKED] if kind.dim else x[:, :CHECKED] for x in given]
        want = kind.torch(*(x.double() if x.is_floating_point() else x for x in part))
        near = 2e-4 if dtype == "float32" else 2e-2
        for name_, run in kernels().items():
            got = run()
            got = (got[:CHECKED] if kind.dim else got[:, :CHECKED]).double()
            error = ((got - want).abs() / (want.abs() + want.abs().mean())).max().item()
            yield {"contender": name_, "ok": error < near, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        given, found = inputs(), kernels()
        compiled = torch.compile(kind.torch, dynamic=False)
        found["copy"] = lambda: torch.empty_like(given[0]).copy_(given[0])  # it allocates, as ours
        found["torch"] = lambda: kind.torch(*given)
        found["compiled"] = lambda: compiled(*given)
        return found

    width = 4 if dtype == "float32" else 2
    moved = float(size[0] * size[1] * (2 * width + kind.bytes))
    ours = [*schedules(kind)]
    shown = name_of(f"{name} {dtype}", size)
    return Race(shown, contenders, checks, work=moved, unit="B", ours=ours)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--square", type=int, default=1, help="0: the drawn sizes alone")
    args = parser.parse_args()
    build_ahead(build, jobs(args.seed, args.count, args.square))
    raise SystemExit(main(__file__, parser))
