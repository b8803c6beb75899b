"""Products on the CPU with nothing chosen, at sizes that a seed draws, against NumPy.

    python benchmarks/cpu_products.py --seed 7 --count 40 --out cpu_products.json
    TILEWRIGHT_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/cpu_products.py ...
    python benchmarks/cpu_products.py summary cpu_products.json ...

M, N and K from 8 to 2000, as often small as large, float32. Between rounds are 60 ms: threads of a
BLAS spin for some time after a product, and would take a core of the next contender.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from choices import product
from race import Race, command_line, main, name_of, tell_ratios, timed

LEAST, MOST = 8, 2000  # of a side
CLASSES = {"below 2.6 million": 5 << 19, "below 40 million": 40e6, "larger": float("inf")}


def drawn(seed: int, count: int) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    sides = [round(LEAST * (MOST / LEAST) ** rng.random()) for _ in range(3 * count)]
    return list(zip(sides[::3], sides[1::3], sides[2::3], strict=True))


def races(seed: int = 0, count: int = 16) -> Iterator[Race]:
    for size in drawn(seed, count):
        yield race(*size)


def race(m: int, n: int, k: int) -> Race:
    made: dict[str, Any] = {}

    def contenders() -> dict[str, Callable[[], Any]]:
        rng, kernel = np.random.default_rng(0), product.on("cpu")
        a, b = (rng.standard_normal(s, np.float32) for s in ((m, k), (k, n)))
        ours = kernel.compile(a, b)
        made.update(ours=lambda: ours(a, b), numpy=lambda: a @ b)
        return made

    def check() -> dict[str, Any]:
        want = made["numpy"]()
        error = float(abs(made["ours"]() - want).max() / abs(want).max())
        return {"contender": "ours", "ok": error < 1e-5, "error": error}

    return Race(name_of("product", (m, n, k)), contenders, check, work=2.0 * m * n * k,
                unit="FLOP", ours=["ours"])  # fmt: skip


def summary(*paths: str) -> None:
    """The speed of ours over NumPy's, by the fastest round of each."""
    ratios: dict[str, list[tuple[float, str]]] = {name: [] for name in ("all", *CLASSES)}
    for race, times in timed(paths, min):
        ratio, products = times["numpy"] / times["ours"], np.prod(sizes_of(race))
        size = next(name for name, most in CLASSES.items() if products <= most)
        for name in ("all", size):
            ratios[name].append((ratio, race))
        print(
            f"{race}: {ratio:.3f}, {1e3 * times['ours']:.1f} µs, NumPy {1e3 * times['numpy']:.1f}"
        )
    for name, found in ratios.items():
        if found:
            tell_ratios(name, found, 0.95)


def sizes_of(race: str) -> list[float]:
    return [float(size) for size in race.split()[1].split("x")]


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(*sys.argv[2:])
        raise SystemExit
    parser = command_line(__doc__)
    parser.set_defaults(pause_ms=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=16)
    raise SystemExit(main(__file__, parser))
