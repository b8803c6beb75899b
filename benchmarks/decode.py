"""Attention of one query, with nothing chosen, at sizes that a seed draws, in CUDA graphs.

    python benchmarks/decode.py --seed 7 --count 40 --out decode.json
    python benchmarks/decode.py --seed 7 --count 40 --part 0/4 --out decode.json
    python benchmarks/decode.py summary decode.json ...

1 to 64 requests, 4096 to 131072 keys, as often few as many, 4 to 16 heads of keys, 1 to 16 heads of
queries for each, of 64 to 256 columns; keys and values lie in one piece for every second size, for
the others in pages of 64, in any order. At most 16 GB of them. Contenders:
`zoo/attention/values.py` by the model alone (on a machine that has tuned none of them), and copies
that move as many bytes, of which the fastest counts. `--part i/n` takes every n-th size.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from copies import copies
from race import ROOT, Race, build_ahead, main, seeded, tell_ratios, timed

sys.path.insert(0, str(ROOT))

TARGET = "cuda -arch=sm_90a"
BOUND = 2e-2
PAGE = 64  # keys
LARGEST = 1 << 33  # bytes of keys, and as many of values
Size = tuple[
    int, int, int, int, int, bool
]  # requests, heads of keys, queries, columns, keys, paged


@cache
def drawn(seed: int, count: int, part: str) -> list[Size]:
    rng = random.Random(seed)
    found: list[Size] = []
    while len(found) < count:
        batch, keys = round(64 ** rng.random()), PAGE * round(64 * 32 ** rng.random())
        groups, heads = rng.choice((4, 8, 16)), rng.choice((1, 4, 6, 8, 16))
        columns = rng.choice((64, 128, 128, 256))
        if 2 * batch * groups * keys * columns <= LARGEST:
            found.append((batch, groups, heads, columns, keys, len(found) % 2 == 1))
    which, of = map(int, part.split("/"))
    return found[which::of]


def kernel(paged: bool) -> Any:
    from zoo.attention.values import decode, paged_decode

    return (paged_decode if paged else decode).on(TARGET)


def shapes(size: Size) -> list[tuple[int, ...]]:
    batch, groups, heads, columns, keys, paged = size
    query, pages = (batch, groups, heads, columns), batch * keys // PAGE
    if not paged:
        return [query, (batch, groups, keys, columns), (batch, groups, keys, columns)]
    kept = (pages, PAGE, groups, columns)
    return [query, kept, kept, (batch, keys // PAGE), (batch,)]


def build(*size: Any) -> None:
    import ml_dtypes

    kinds = [ml_dtypes.bfloat16] * 3 + [np.int32] * 2
    zeros = [np.broadcast_to(np.zeros((), kind), each) for kind, each in zip(kinds, shapes(size))]
    kernel(size[-1]).compile(*zeros)


def races(seed: int = 0, count: int = 20, part: str = "0/1") -> Iterator[Race]:
    for each in drawn(seed, count, part):
        yield race(each)


def race(size: Size) -> Race:
    import torch

    batch, groups, heads, columns, keys, paged = size
    made: dict[str, Any] = {}

    def given() -> list[Any]:
        if not made:
            torch.manual_seed(0)
            kind = {"device": "cuda", "dtype": torch.bfloat16}
            arrays = [torch.randn(each, **kind) for each in shapes(size)[:3]]
            if paged:
                table = torch.randperm(batch * keys // PAGE, device="cuda", dtype=torch.int32)
                lens = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
                arrays += [table.view(batch, keys // PAGE), lens]
            made["given"], made["ours"] = arrays, kernel(paged).compile(*arrays)
        return made["given"]  # type: ignore[no-any-return]

    def checks() -> Iterator[dict[str, Any]]:
        q, k, v, *pages = given()
        error, largest = 0.0, 0.0
        got = made["ours"](*given()).float()
        for at in range(batch):
            own = [k[at], v[at]]
            if paged:
                own = [x[pages[0][at].long()].flatten(0, 1).transpose(0, 1) for x in (k, v)]
            want = torch.nn.functional.scaled_dot_product_attention(
                *(x.float() for x in (q[at], *own))
            )
            error = max(error, (got[at] - want).abs().max().item())
            largest = max(largest, want.abs().max().item())
        yield {"contender": "ours", "ok": error < BOUND * largest, "error": error / largest}

    def contenders() -> dict[str, Callable[[], Any]]:
        keys = given()[1]
        return {"ours": lambda: made["ours"](*given()), **copies(keys, torch.empty_like(keys))}

    told = f"decode{' paged' * paged} {batch}x{groups}x{heads}x{columns}x{keys}"
    work = 4.0 * batch * groups * keys * columns
    return Race(told, contenders, checks, work=work, unit="byte", ours=["ours"])


def summary(*paths: str) -> None:
    """The speed of ours over that of the fastest copy."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for race, times in timed(paths):
        ours = times.pop("ours")
        best = min(times.values())
        ratios.setdefault(race.rsplit(" ", 1)[0], []).append((best / ours, race))
        print(f"{race}: {best / ours:.3f} of a copy, {1e3 * ours:.1f} µs")
    for name, found in ratios.items():
        tell_ratios(name, found, 0.85)


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(*sys.argv[2:])
        raise SystemExit
    parser = seeded(__doc__)
    args = parser.parse_args()
    build_ahead(build, drawn(args.seed, args.count, args.part))
    raise SystemExit(main(__file__, parser))
