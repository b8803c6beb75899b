"""What the benchmark scripts share: a command line, and schedules compiled and checked once.

Each script defines `races(...)`, so that `tilewright bench benchmarks/x.py` runs it too; its own
command line adds options by name. Races run in a child process that is killed when one of them
takes longer than `--timeout` seconds; the JSON is written after each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tilewright.profiler import Race, rotate  # noqa: E402

__all__ = [
    "Race", "Schedule", "build_ahead", "command_line", "load", "main", "name_of", "rotate",
    "same_every_time", "seeded", "sets_for", "shape", "summary", "tell_ratios", "timed",
]  # fmt: skip


def compile_kernel(name: str) -> Any:
    """A schedule of tests/schedules, for the GPU."""
    from tilewright.ir.target import Target
    from tilewright.ir.text import parse_program
    from tilewright.targets.cuda.kernel import compile_program

    path = ROOT / "tests" / "schedules" / f"{name}.tw"
    return compile_program(parse_program(path.read_text(), str(path)), Target.parse("cuda"))


class Schedule:
    """A schedule: compiled when first used, and checked on its odd shapes once."""

    def __init__(self, name: str, odd: Callable[[Schedule], Iterable[dict[str, Any]]]) -> None:
        self.name = name
        self._odd = odd
        self._found: list[dict[str, Any]] | None = None

    @cached_property
    def kernel(self) -> Any:
        return compile_kernel(self.name)

    @cached_property
    def call(self) -> Callable[..., None]:
        return self.kernel.caller()

    @property
    def cluster(self) -> int:
        return math.prod(self.kernel.specs[0].cluster)

    @property
    def about(self) -> dict[str, Any]:
        from tilewright.targets.cuda.kernel import summary

        return {
            "seconds": self.kernel.compile_seconds,
            "resources": {k: vars(r) for k, r in self.kernel.resources.items()},
            "block": summary(self.kernel),
        }

    def odd(self) -> Iterator[dict[str, Any]]:
        """What the odd shapes gave: all of it the first time, later what was wrong."""
        if self._found is not None:
            yield from (f for f in self._found if not f["ok"])
            return
        found = []
        for one in self._odd(self):
            found.append({"contender": self.name, **one})
            yield found[-1]
        self._found = found


def build_ahead(build: Callable[..., None], jobs: Iterable[tuple[Any, ...]]) -> None:
    """Call `build` for all jobs in several processes, to fill the cache on disk: to compile one
    kernel after the other takes longer than the races."""
    with ProcessPoolExecutor() as pool:
        list(pool.map(build, *zip(*jobs, strict=True)))


def same_every_time(run: Callable[[], Sequence[Any]], runs: int) -> Sequence[Any] | None:
    """The tensors that `run` fills, fresh each time; None unless all runs agree in every bit."""
    import torch

    first: Sequence[Any] | None = None
    for _ in range(runs):
        made = run()
        torch.cuda.synchronize()
        if first is None:
            first = made
        elif not all(
            torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(first, made)
        ):
            return None
    return first


def sets_for(taken: int) -> int:
    """How many sets of arrays of `taken` bytes to rotate, so that none stays in the L2 cache: 60 MB
    on an H200."""
    return max(1, math.ceil(120 * 2**20 / taken))


def name_of(name: str, shape: Sequence[int]) -> str:
    return f"{name} {'x'.join(map(str, shape))}"


def load(path: str, name: str) -> ModuleType:
    """A Python file that is not part of the project, as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton reads a kernel's source through its module
    spec.loader.exec_module(module)
    return module


def summary(path: str) -> None:
    """A line a race: the part of the best copy's speed, and times as fast as PyTorch."""
    for race in json.loads(Path(path).read_text())["races"]:
        times = {name: each["ms"] for name, each in race["contenders"].items()}
        best = min(time for name, time in times.items() if name.startswith("copy"))
        peers = {
            name: times[name] / times["values"]
            for name in times
            if "copy" not in name and name != "values"
        }
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in peers.items())
        print(f"{race['race']}: {best / times['values']:.3f} of a copy; times as fast as {told}")


def shape(rank: int) -> Callable[[str], tuple[int, ...]]:
    """Reads '4096x4096x64'."""

    def parse(text: str) -> tuple[int, ...]:
        sizes = tuple(int(x) for x in text.split("x"))
        if len(sizes) != rank:
            raise argparse.ArgumentTypeError(f"{rank} sizes as in 2x16x8192, not {text!r}")
        return sizes

    return parse


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """The options that every script has; what a script adds goes to its `races` by name."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", "--json", type=Path, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--burst-ms", type=float, default=4.0)
    parser.add_argument("--warmup-ms", type=float, default=50.0)
    parser.add_argument("--pause-ms", type=float, help="between bursts")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a race")
    parser.add_argument("--backend", default="auto", help="auto, event, graph or clock")
    parser.add_argument("--only", nargs="+", default=[], help="races of these names")
    parser.add_argument("--force", action="store_true", help="time what failed its check, too")
    return parser


def seeded(doc: str | None) -> argparse.ArgumentParser:
    """The options of a script whose sizes a seed draws, and which it times in CUDA graphs."""
    parser = command_line(doc)
    parser.set_defaults(backend="graph", rounds=4, burst_ms=1.0, warmup_ms=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--part", default="0/1")
    return parser


def timed(
    paths: Iterable[str], pick: Callable[[list[float]], float] = statistics.median
) -> Iterator[tuple[str, dict[str, float]]]:
    """The races of results in which ours was timed, with the milliseconds of all contenders."""
    for path in paths:
        for each in json.loads(Path(path).read_text())["races"]:
            found = each.get("contenders", {})
            times = {name: pick(taken["times_ms"]) for name, taken in found.items()}
            if "ours" in times:
                yield each["race"], times
            else:
                print(f"{each['race']}: no times")


def tell_ratios(name: str, found: Sequence[tuple[float, str]], bar: float) -> None:
    """Of ratios and the races that they are of: the mean, the least, and how many are below."""
    ratios, (low, where) = [ratio for ratio, _ in found], min(found)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{name}, {len(found)} sizes: {mean:.3f}, least {low:.3f} ({where})")
    print(
        f"  below {bar}: {sum(r < bar for r in ratios)}, at least 1: {sum(r >= 1 for r in ratios)}"
    )


_COMMON = {
    "out",
    "rounds",
    "burst_ms",
    "warmup_ms",
    "pause_ms",
    "timeout",
    "backend",
    "only",
    "force",
}


def main(file: str, parser: argparse.ArgumentParser) -> int:
    """Run the races of `file` as its command line says."""
    from tilewright.runtime.timing import Settings
    from tilewright.tools.bench import Job, command_line, run_files

    args = parser.parse_args()
    own = {name: value for name, value in vars(args).items() if name not in _COMMON}
    pause = None if args.pause_ms is None else args.pause_ms / 1e3
    settings = Settings(
        args.rounds, args.burst_ms / 1e3, pause, args.backend, args.force, args.warmup_ms / 1e3
    )
    job = Job(file, own, settings, args.only, args.timeout)
    command = command_line(f"python benchmarks/{Path(file).name}", sys.argv[1:])
    return run_files([job], command=command, out=args.out)
