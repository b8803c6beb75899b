"""Kernels that work row by row, one text each, at widths drawn by a seed, on a GPU.

    python benchmarks/rows.py --out rows.json
    python benchmarks/rows.py --seed 7 --count 40 --kernels softmax layer_norm --compiled

Inputs are bfloat16, 256 MB each and two of them in turn. A result is checked against float64 first.
Contenders: the value text with nothing chosen; copies of the same bytes; PyTorch, also compiled.
`summary` tells the part of the best copy that each has.

    python benchmarks/rows.py summary rows.json
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any

from copies import SHAPES, copies
from race import ROOT, Race, build_ahead, command_line, main, name_of, summary

sys.path.insert(0, str(ROOT))

NAMED = (768, 3072, 5120, 7168, 50257, 128256, 151936)
SHORTEST, LONGEST = 64, 300_000
BYTES = 1 << 28
FASTEST = SHAPES[:2]  # copies: the others have never been the best at these sizes
KERNELS = ("softmax", "rms_norm", "rms_norm_silu", "layer_norm", "cross_entropy")


def widths(seed: int, count: int) -> list[int]:
    """Half of them are drawn among multiples of 8."""
    rng = random.Random(seed)
    drawn = [rng.randrange(SHORTEST, LONGEST + 1) for _ in range(count)]
    return [*NAMED, *(n - n % 8 * (k % 2) for k, n in enumerate(drawn))]


def rows_of(columns: int) -> int:
    return max(1, BYTES // 2 // columns)


def _texts() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """By name, our function of a matrix and rows beside it, and PyTorch's."""
    import torch.nn.functional as F

    from zoo import values

    def rms(x: Any, w: Any) -> Any:
        return F.rms_norm(x, (x.shape[1],), w, 1e-6)

    return {
        "softmax": (values.softmax, lambda x: F.softmax(x, -1)),
        "rms_norm": (values.rms_norm, rms),
        "rms_norm_silu": (values.rms_norm, lambda x, w: F.silu(rms(x, w))),
        "layer_norm": (values.layer_norm, lambda x, w, b: F.layer_norm(x, (x.shape[1],), w, b)),
        "cross_entropy": (
            values.cross_entropy,
            lambda x, label: F.cross_entropy(x, label.long(), reduction="none"),
        ),
    }


def races(
    seed: int = 0, count: int = 33, kernels: Any = KERNELS, compiled: bool = False
) -> Iterator[Race]:
    import torch

    texts = _texts()
    for columns in widths(seed, count):
        rows = rows_of(columns)
        data = [torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        beside = [torch.randn(columns, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        labels = torch.randint(columns, (rows,), device="cuda", dtype=torch.int32)
        for name in kernels:
            function, eager = texts[name]
            more = {"softmax": (), "layer_norm": tuple(beside), "cross_entropy": (labels,)}
            given = more.get(name, (beside[0],))
            yield _race(torch, name, function, eager, data, given, compiled)


def _build(name: str, columns: int) -> None:
    import ml_dtypes
    import numpy as np

    rows, beside = rows_of(columns), np.empty(columns, ml_dtypes.bfloat16)
    given = [np.empty((rows, columns), ml_dtypes.bfloat16)]
    given += {
        "softmax": [],
        "layer_norm": [beside] * 2,
        "cross_entropy": [np.empty(rows, np.int32)],
    }.get(name, [beside])
    _texts()[name][0].on("cuda").compile(*given, **_fixed(name))


def _fixed(name: str) -> dict[str, bool]:
    return {"silu": True} if name == "rms_norm_silu" else {}


def _race(
    torch: Any, name: str, function: Any, eager: Any, data: Any, given: Any, compiled: bool
) -> Race:
    kernel = function.compile(data[0], *given, **_fixed(name))
    rows, columns = data[0].shape
    reads_only = name == "cross_entropy"

    def checks() -> Iterator[dict[str, Any]]:
        some = slice(0, min(rows, 64))
        wide = [each[some].double() if name == "cross_entropy" else each.double() for each in given]
        want = eager(data[0][some].double(), *wide)
        got = kernel(data[0], *given)[some].double()
        error = ((got - want).abs() / (want.abs() + 1e-2)).max().item()
        yield {"contender": "values", "ok": error < 3e-2, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        turns = cycle(data)
        found = {"values": lambda: kernel(next(turns), *given)}
        flat = rows * columns // 8192 * 8192
        source = data[0].reshape(-1)[: flat // (1 + reads_only) // 8192 * 8192]
        for label, call in copies(source, torch.empty_like(source), FASTEST).items():
            found[f"copy {label}"] = call
        found["torch"] = lambda: eager(next(turns), *given)
        if compiled:
            fast = torch.compile(eager, dynamic=False)
            found["torch.compile"] = lambda: fast(next(turns), *given)
        return found

    moved = 2.0 * rows * columns * (1 if reads_only else 2)
    return Race(
        name_of(name, (rows, columns)), contenders, checks, work=moved, unit="B", ours=["values"]
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(sys.argv[2])
        raise SystemExit
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=33)
    parser.add_argument("--kernels", nargs="+", default=KERNELS, choices=KERNELS)
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    build_ahead(_build, product(args.kernels, widths(args.seed, args.count)))
    raise SystemExit(main(__file__, parser))
