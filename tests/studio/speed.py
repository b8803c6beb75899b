"""How long the studio takes to show another schedule of a product, with the page's two kinds of
process at work: `python -m tests.studio.speed --count 40`."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.tools.studio.gallery import LESSONS
from tilewright.tools.studio.server import Studio

VALUES: dict[str, list[Any]] = {
    "m": [64, 128, 256], "n": [64, 128, 256], "k": [32, 64], "stages": [2, 3, 4],
    "cluster": [1, 2], "persistent": [True, False],
}  # fmt: skip
TARGETS = ("cuda -arch=sm_90a", "cuda -arch=sm_80", "cuda -arch=sm_100a")


def requests(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Each changes one field of the one before, as a person does."""
    rng, chosen, target = random.Random(seed), dict[str, Any](), TARGETS[0]
    for turn in range(count):
        name = rng.choice([*VALUES])
        chosen = {**chosen, name: rng.choice(VALUES[name])}
        target = rng.choice(TARGETS) if turn % 8 == 7 else target
        tiles = {n: v for n, v in chosen.items() if n in "mnk"}
        schedule = {n: v for n, v in chosen.items() if n not in "mnk"} | {"tiles": tiles}
        yield {"gallery": "gemm", **LESSONS["gemm"].request, "schedule": schedule, "target": target}


def measured(count: int, busy: bool) -> tuple[list[float], list[float]]:
    """Seconds on the wall and of a core, of each change; `busy`: while what came before it is run
    and assembled."""
    studio = Studio(None, {"gallery": "gemm"})
    walls, cores = [], []
    try:
        for number, request in enumerate(requests(count + 2)):
            start = time.monotonic()
            studio.record({**request, "want": []})
            if number >= 2:  # warm
                walls.append(time.monotonic() - start)
                cores.append(studio._child({**request, "want": []}).cpu)
            if busy:
                whole = {**request, "want": ["values", "layouts", "levels"]}
                threading.Thread(target=studio.record, args=(whole,), daemon=True).start()
    finally:
        studio.close()
    return walls, cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    for name, found in zip(("wall", "core"), measured(given.count, given.busy), strict=True):
        told = np.percentile(found, [50, 90, 95, 100])
        words = zip(("median", "90 %", "95 %", "most"), told, strict=True)
        print(f"{name}: " + ", ".join(f"{word} {value:.2f} s" for word, value in words))


if __name__ == "__main__":
    main()
