"""Products on the CPU with nothing chosen, at sizes that a seed draws, against NumPy.

    python benchmarks/cpu_products.py --seed 7 --count 40 --out cpu_products.json
    TILEWRIGHT_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/cpu_products.py ...
    TILEWRIGHT_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/cpu_products.py cpu-time 40 7 cpu_products.json
    python benchmarks/cpu_products.py summary cpu_products.json ...

M, N and K from 8 to 2000, as often small as large, float32. Between rounds are 60 ms: threads of a
BLAS spin for some time after a product, and would take a core of the next contender. `cpu-time`
races so many sizes by the CPU time of the calling thread, for a machine that others use too.
"""  # noqa: E501

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from choices import product
from cpu_choices import burst
from race import Race, command_line, main, name_of, tell_ratios, timed

from tilewright.choose.measured import machine_of

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


def by_cpu_time(count: int, seed: int, path: str, rounds: int = 15) -> None:
    found = []
    for size in drawn(seed, count):
        made = race(*size)
        contenders = made.contenders()
        for call in contenders.values():
            burst(call, 5e-3)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, call in contenders.items():
                times[name].append(1e3 * burst(call, 3e-3))
        check = made.check() if made.check else {}
        told = {name: {"times_ms": each} for name, each in times.items()}
        found.append({"race": made.name, "checks": check, "contenders": told})
        command = " ".join(["python", *sys.argv])
        about = {"command": command, "machine": machine_of("cpu"), "clock": "CPU time of a thread"}
        Path(path).write_text(json.dumps({**about, "races": found}, indent=1) + "\n")


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
    if sys.argv[1:2] == ["cpu-time"]:
        by_cpu_time(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        raise SystemExit
    parser = command_line(__doc__)
    parser.set_defaults(pause_ms=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=16)
    raise SystemExit(main(__file__, parser))
