"""Scans and reductions over tile values along rows and columns, on a GPU, in turns with copies.

    python benchmarks/scans.py --out scans.json
    python benchmarks/scans.py --seed 7 --count 3 --only cumsum
    python benchmarks/scans.py summary scans.json

32768×32768 and `--count` sizes that the seed draws, float32 and bfloat16. Contenders: our kernels
with nothing chosen; a plain copy of as many bytes; PyTorch, also compiled. The bar is 0.85 of the
copy's speed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

from race import ROOT, Race, build_ahead, command_line, main, name_of, summary

sys.path.insert(0, str(ROOT))

SQUARE = (32768, 32768)
CHECKED = 64  # lines that are compared with a float64 result


@dataclass(frozen=True)
class Kind:
    """`kernel` of a module of the zoo works along `dim`; `torch(x, mask)` is PyTorch's text. Some
    read a mask, some write an index a line alone."""

    kernel: str
    dim: int
    torch: Callable[..., Any]
    module: str = "scans"
    is_product: bool = False
    is_masked: bool = False
    is_index: bool = False

    def bytes(self, width: int) -> int:
        """That are moved for an element of so many."""
        return width * (1 if self.is_index else 2) + self.is_masked

    @property
    def function(self) -> Any:
        return getattr(import_module(f"zoo.{self.module}"), self.kernel)


def kinds() -> dict[str, Kind]:
    import torch

    def norm(dim: int) -> Callable[..., Any]:
        return lambda x: x / torch.linalg.vector_norm(x, dim=dim, keepdim=True)

    found = {
        "masked cumsum rows": Kind(
            "masked_cumsum_rows", 1, lambda x, m: torch.cumsum(x * m, 1), is_masked=True
        ),
        "reverse cumsum rows": Kind(
            "reverse_cumsum_rows", 1, lambda x: torch.cumsum(x.flip(1), 1).flip(1)
        ),
    }
    for dim, lines in ((1, "rows"), (0, "columns")):
        found |= {
            f"cumsum {lines}": Kind(f"cumsum_{lines}", dim, partial(torch.cumsum, dim=dim)),
            f"cumprod {lines}": Kind(
                f"cumprod_{lines}", dim, partial(torch.cumprod, dim=dim), is_product=True
            ),
            f"argmax {lines}": Kind(
                f"argmax_{lines}", dim, partial(torch.argmax, dim=dim), "reductions", is_index=True
            ),
            f"norm {lines}": Kind(f"norm_{lines}", dim, norm(dim), "reductions"),
        }
    return found


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


def build(name: str, dtype: str, size: tuple[int, int]) -> None:
    import ml_dtypes  # noqa: F401 (NumPy learns of bfloat16)
    import numpy as np

    kind = kinds()[name]
    given = [np.empty(size, dtype), *([np.empty(size, bool)] if kind.is_masked else [])]
    kind.function.on("cuda").compile(*given, dtype=dtype)


def race(name: str, kind: Kind, dtype: str, size: tuple[int, int], seed: int) -> Race:
    import torch

    made: dict[str, Any] = {}

    def inputs() -> tuple[Any, ...]:
        if not made:
            torch.manual_seed(seed)
            x = torch.randn(size, device="cuda", dtype=getattr(torch, dtype))
            x = x * 0.01 + 1 if kind.is_product else x
            mask = (torch.rand(size, device="cuda") < 0.5,) if kind.is_masked else ()
            made["inputs"] = (x, *mask)
        return made["inputs"]  # type: ignore[no-any-return]

    def checks() -> Iterator[dict[str, Any]]:
        given = inputs()
        part = [x[:CHECKED] if kind.dim else x[:, :CHECKED] for x in given]
        want = kind.torch(*(x.double() if x.is_floating_point() else x for x in part))
        got = kind.function.compile(*given, dtype=dtype)(*given)
        if kind.is_index:
            got, want = (
                part[0].gather(kind.dim, each.long().unsqueeze(kind.dim))
                for each in (got[:CHECKED], want)
            )
        else:
            got = got[:CHECKED] if kind.dim else got[:, :CHECKED]
        near = 0.0 if kind.is_index else 2e-4 if dtype == "float32" else 2e-2
        error = ((got.double() - want).abs() / (want.abs() + want.abs().mean())).max().item()
        yield {"contender": "values", "ok": error <= near, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        given = inputs()
        ready = kind.function.compile(*given, dtype=dtype)
        source = torch.empty(int(moved) // 2, device="cuda", dtype=torch.uint8)
        compiled = torch.compile(kind.torch, dynamic=False)
        return {
            "values": lambda: ready(*given),
            "copy": lambda: torch.empty_like(source).copy_(source),  # it allocates, as ours
            "torch": lambda: kind.torch(*given),
            "compiled": lambda: compiled(*given),
        }

    moved = float(size[0] * size[1] * kind.bytes(4 if dtype == "float32" else 2))
    shown = name_of(f"{name} {dtype}", size)
    return Race(shown, contenders, checks, work=moved, unit="B", ours=["values"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(sys.argv[2])
        raise SystemExit
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--square", type=int, default=1, help="0: the drawn sizes alone")
    args = parser.parse_args()
    build_ahead(build, jobs(args.seed, args.count, args.square))
    raise SystemExit(main(__file__, parser))
