"""Attention with nothing chosen, at sizes that a seed draws, against cuDNN in CUDA graphs.

    python benchmarks/attention.py --seed 7 --count 40 --out attention.json
    python benchmarks/attention.py --seed 7 --count 40 --part 0/4 --out attention.json
    python benchmarks/attention.py summary attention.json ...

Heads of 64 to 256 columns, 128 to 32768 queries and as many keys, as often small as large, one, 4
or 8 heads of queries for each of keys, as often causal as not. Contenders:
`zoo/attention/values.py` by the model alone (on a machine that has tuned none of them), and
PyTorch's cuDNN and Flash backends. `--part i/n` takes every n-th size.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from race import ROOT, Race, build_ahead, main, seeded, tell_ratios, timed

sys.path.insert(0, str(ROOT))

TARGET = "cuda -arch=sm_90a"
BOUND = 2e-2
Size = tuple[int, int, int, int, int, bool]  # batch, heads, heads of keys, queries, columns, causal


@cache
def drawn(seed: int, count: int, part: str) -> list[Size]:
    rng = random.Random(seed)
    found: list[Size] = []
    for _ in range(count):
        length = round(128 * 256 ** rng.random())
        heads, shared = rng.choice((8, 16, 32)), rng.choice((1, 1, 4, 8))
        batch = rng.randint(1, max(1, min(16, 32768 // length)))
        columns = rng.choice((64, 96, 128, 192, 256))
        found.append((batch, heads, heads // shared, length, columns, rng.random() < 0.5))
    which, of = map(int, part.split("/"))
    return found[which::of]


def kernel() -> Any:
    from zoo.attention.values import attention

    return attention.on(TARGET)


def shapes(size: Size) -> tuple[tuple[int, ...], ...]:
    batch, heads, groups, length, columns, _ = size
    keys = (batch, groups, length, columns)
    return (batch, heads, length, columns), keys, keys


def build(*size: Any) -> None:
    import ml_dtypes

    zero = np.zeros((), ml_dtypes.bfloat16)
    kernel().compile(*(np.broadcast_to(zero, each) for each in shapes(size)), size[-1])


def races(seed: int = 0, count: int = 20, part: str = "0/1") -> Iterator[Race]:
    for each in drawn(seed, count, part):
        yield race(each)


def race(size: Size) -> Race:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, heads, groups, length, columns, causal = size
    made: dict[str, Any] = {}

    def given() -> tuple[Any, ...]:
        if not made:
            torch.manual_seed(0)
            kind = {"device": "cuda", "dtype": torch.bfloat16}
            made["given"] = tuple(torch.randn(each, **kind) for each in shapes(size))
            made["ours"] = kernel().compile(*made["given"], causal)
        return made["given"]  # type: ignore[no-any-return]

    def torchs(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                *given(), is_causal=causal, enable_gqa=heads != groups
            )

    def checks() -> Iterator[dict[str, Any]]:
        want = torchs(SDPBackend.FLASH_ATTENTION).float()
        error = ((made["ours"](*given()).float() - want).abs().max() / want.abs().max()).item()
        yield {"contender": "ours", "ok": error < BOUND, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        found: dict[str, Callable[[], Any]] = {"ours": lambda: made["ours"](*given())}
        backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "Flash": SDPBackend.FLASH_ATTENTION}
        for name, backend in backends.items():
            try:
                torchs(backend)
            except RuntimeError:
                continue  # it has no kernel for such sizes
            found[name] = lambda backend=backend: torchs(backend)
        return found

    told = f"attention {batch}x{heads}/{groups}x{length}x{columns}{' causal' * causal}"
    work = 4.0 * batch * heads * length**2 * columns / (1 + causal)
    return Race(told, contenders, checks, work=work, unit="FLOP", ours=["ours"])


def summary(*paths: str) -> None:
    """The speed of ours over that of cuDNN, or of Flash where cuDNN has none."""
    ratios: list[tuple[float, str]] = []
    for race, times in timed(paths):
        ours = times.pop("ours")
        best = times.get("cuDNN", times.get("Flash"))
        ratios.append((best / ours, race))
        told = ", ".join(f"{name} {ms / ours:.3f}" for name, ms in times.items())
        print(f"{race}: {told}, {1e3 * ours:.1f} µs")
    tell_ratios("ours", ratios, 0.92)


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(*sys.argv[2:])
        raise SystemExit
    parser = seeded(__doc__)
    args = parser.parse_args()
    build_ahead(build, drawn(args.seed, args.count, args.part))
    raise SystemExit(main(__file__, parser))
