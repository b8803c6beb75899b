"""Race two trees of this repository on one machine: is the new one as fast as the old one?

    python -m devtools trees BEFORE AFTER --out trees.json

Each tree has a process of its own, which compiles the zoo's kernels with an empty cache and then
waits. The two take turns, kernel by kernel and round by round, so that clocks and neighbours hit
both alike. Sizes are drawn at random. A kernel runs on the GPU where there is one, or on the CPU
(`--target cpu`); compile times are compared, too.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = dict[str, Any]  # kind, sizes
ROUNDS = 15
SLOWER = 1.03  # above this a kernel is listed once more at the end


def drawn(seed: int, count: int, target: str) -> list[Case]:
    """Random cases of every family: `count` of each."""
    r = random.Random(seed)
    found: list[Case] = []
    if target == "cpu":
        from zoo.cases import bench_cases

        return [{"kind": "cpu", "index": k} for k in range(len(bench_cases()))]
    for _ in range(count):
        m, n, k = (r.randrange(8, 65) * 128 for _ in range(3))
        found.append({"kind": "gemm", "M": m, "N": n, "K": k, "block_N": r.choice([128, 256])})
        for dim in (64, 128):
            length = r.randrange(8, 65) * 128
            sizes = {"heads": 16, "length": length, "dim": dim, "causal": r.random() < 0.5}
            found.append({"kind": "attention", **sizes})
        found.append(
            {"kind": "mla", "batch": r.randrange(32, 133), "keys": r.randrange(8, 65) * 64}
        )
        found.append({"kind": "gradient", "length": r.randrange(8, 33) * 128})
        for rows in ("softmax", "rms_norm", "layer_norm", "cross_entropy", "swiglu", "transpose"):
            columns = r.choice([r.randrange(1, 33) * 256, r.randrange(300, 9000), 1 << 15])
            found.append({"kind": rows, "m": max((1 << 26) // columns, 1), "N": columns})
    return found


# ------------------------------------------------------------------------------ the worker


def _call(case: Case) -> Callable[[], Any]:
    """A launch of the case's kernel on arrays of its own."""
    import torch

    def make(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(shape, device="cuda").to(dtype)

    kind, sizes = case["kind"], {k: v for k, v in case.items() if k != "kind"}
    if kind == "gemm":
        from zoo.gemm.gemm import gemm_relu

        m, n, k = sizes["M"], sizes["N"], sizes["K"]
        kernel = gemm_relu.on("cuda")(**sizes, threads=256, stages=4, dtype="bfloat16")
        arrays = [make(m, k), make(k, n), make(m, n)]
    elif kind == "attention":
        from zoo.attention.flash import flash_attention

        shape = (1, sizes["heads"], sizes["length"], sizes["dim"])
        tile = {64: (192, 128, 384), 128: (128, 128, 256)}[sizes["dim"]]
        kernel = flash_attention.on("cuda")(
            1, shape[1], shape[1], shape[2], shape[2], shape[3], sizes["causal"], *tile,
            dtype="bfloat16",
        )  # fmt: skip
        arrays = [make(*shape) for _ in range(4)]
    elif kind == "mla":
        from zoo.mla.decode import mla_decode

        batch, keys = sizes["batch"], sizes["keys"]
        kernel = mla_decode.on("cuda")(batch, 128, keys, dtype="bfloat16")
        shapes = ((128, 512), (128, 64), (keys, 512), (keys, 64), (128, 512))
        arrays = [make(batch, *shape) for shape in shapes]
    elif kind == "gradient":
        from zoo.attention.backward import keys_gradient, rows

        length = sizes["length"]
        kernel = keys_gradient.on("cuda")(1, 16, 16, length, length, 64, dtype="bfloat16")
        tensors, sums = (1, 16, length, 64), (1, 16, rows(length))
        arrays = [make(*tensors) for _ in range(4)]
        arrays += [make(*sums, dtype=torch.float32) for _ in range(2)]
        arrays += [make(*tensors) for _ in range(2)]
    else:
        import importlib

        folder = {"swiglu": "elementwise", "cross_entropy": "loss"}.get(kind, kind)
        folder = "norm" if kind.endswith("norm") else folder
        m, n = sizes["m"], sizes["N"]
        module = importlib.import_module(f"zoo.{folder}.{kind}")
        kernel = getattr(module, f"{kind}_rows")(n, target="cuda")
        x, beside = make(m, n), {"rms_norm": 1, "layer_norm": 2}.get(kind, 0)
        arrays = [x, *(make(n) for _ in range(beside))]
        if kind == "cross_entropy":
            arrays += [torch.arange(m, device="cuda") % n, make(m, dtype=torch.float32)]
        elif kind == "swiglu":
            arrays += [make(m, n), make(m, n)]
        else:
            arrays.append(make(n, m) if kind == "transpose" else torch.empty_like(x))
    return lambda: kernel(*arrays)


def _timer(case: Case) -> Callable[[], float]:
    """Seconds of a launch, measured each time that it is called."""
    if case["kind"] == "cpu":
        from zoo.cases import bench_cases

        run = bench_cases()[case["index"]].build("cpu")

        def by_clock() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return by_clock
    import torch

    launch = _call(case)
    flushed = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def by_events() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()  # an L2 cache that holds none of the inputs
        first.record()
        launch()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    return by_events


def work() -> None:
    """Answer cases on standard input: first each one's compile time, then its times when asked."""
    timer: Callable[[], float] = float
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            start = time.perf_counter()
            try:
                timer = _timer(asked)
                timer()
                answer: Any = time.perf_counter() - start
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"[:500]
        else:
            timer()  # the clocks are up
            answer = min(timer() for _ in range(asked))
        print(json.dumps(answer), flush=True)


# ------------------------------------------------------------------------------ the race


class _Tree:
    def __init__(self, root: str, cache: str) -> None:
        path = os.pathsep.join((f"{root}/src", root))
        env = os.environ | {"PYTHONPATH": path, "TILEWRIGHT_CACHE_DIR": cache}
        command = [sys.executable, str(Path(__file__).resolve())]
        pipe = subprocess.PIPE
        self._worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)

    def ask(self, question: Case | int) -> Any:
        assert self._worker.stdin is not None and self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(question) + "\n")
        self._worker.stdin.flush()
        return json.loads(self._worker.stdout.readline() or '"the process ended"')

    def end(self) -> None:
        self._worker.kill()


def race(
    before: str, after: str, seed: int, count: int, target: str, seconds: float, kind: str = ""
) -> list[Case]:
    """Rows with the times of both trees and their ratio: above 1, the new tree is slower."""
    rows: list[Case] = []
    limit = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        trees = [_Tree(root, f"{folder}/{k}") for k, root in enumerate((before, after))]
        for case in drawn(seed, count, target):
            if kind not in case["kind"]:
                continue
            if time.monotonic() > limit:
                print("out of time: the remaining cases were not raced")
                break
            compiled = [tree.ask(case) for tree in trees]
            row = {**case, "compile": compiled}
            if all(isinstance(c, float) for c in compiled):
                times: list[list[float]] = [[], []]
                for k in range(ROUNDS):
                    for which in (0, 1) if k % 2 else (1, 0):
                        times[which].append(trees[which].ask(3))
                middle = [statistics.median(t) for t in times]
                row |= {"seconds": times, "ratio": middle[1] / middle[0]}
            rows.append(row)
            what = " ".join(f"{k}={v}" for k, v in case.items())
            said = f"{row['ratio']:.3f}" if "ratio" in row else compiled
            print(f"{said}  {what}", flush=True)
        for tree in trees:
            tree.end()
    return rows


def command(out: str | None, seed: int, **plan: Any) -> int:
    """Race, print, and write the raw times; 1 where a kernel failed."""
    rows = race(seed=seed, **plan)
    if out:
        Path(out).write_text(json.dumps({"seed": seed, "rows": rows}) + "\n", encoding="utf-8")
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    compiled = [row["compile"] for row in rows if "ratio" in row]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{len(ratios)} kernels: {mean:.3f} of the old time, worst {max(ratios):.3f}")
        print(
            "compile time: {:.1f} s, then {:.1f} s".format(*map(sum, zip(*compiled, strict=True)))
        )
        slow = sum(ratio > SLOWER for ratio in ratios)
        print(f"{slow} above {SLOWER}")
    return int(len(ratios) < len(rows))


if __name__ == "__main__":
    work()
