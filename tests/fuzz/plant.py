"""Bugs planted in passes and emitters, one at a time: does the fuzzer find them?

    python -m tests.fuzz.plant [--target threads|host|cpu] [--count 250] [--only NAME]

Each bug of `bugs.py` is an edit of one place in a copy of the sources; the fuzzer's programs are
judged by that copy until one fails that does not fail in the unharmed sources. A program whose
thread code the bug does not change is not run: its verdict is known. The table says for each bug
the seed that found it, after how many programs, in how many of them the code was another, CPU
seconds, and as what it was found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


@dataclass(frozen=True)
class Hunt:
    """Which programs a bug is looked for in, and the sources it is planted in."""

    count: int = 250
    seed: int = 0
    source: Path = SOURCE


@dataclass(frozen=True)
class Outcome:
    """`seed` found it; None: it was missed."""

    bug: Bug
    seed: int | None
    programs: int
    changed: int
    seconds: float
    words: str

    def line(self) -> str:
        seed = "MISSED" if self.seed is None else f"{self.seed:>6}"
        return (
            f"{seed} {self.programs:>8} {self.changed:>7} {self.seconds:>4.0f} s  "
            f"{self.bug.target:<12} {self.bug.name} | {self.words[:90]}"
        )


def _hunter(source: Path, *words: object) -> Any:
    with tempfile.TemporaryDirectory() as cache:
        # names in the code follow the order of sets; nothing compiled is kept for the next bug
        env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0",
               "TILEWRIGHT_CACHE_DIR": cache}  # fmt: skip
        command = [sys.executable, str(ROOT / "tests" / "fuzz" / "hunter.py"), *map(str, words)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode < 0:  # a process that dies is a finding, too, if not one with a seed
        return {"seed": -1, "done": 0, "changed": 0, "cpu": 0.0, "words": "the process died"}
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def clean_codes(target: str, kind: str, how: Hunt) -> dict[str, str]:
    """The hashes of the thread code of every program, without a bug."""
    if not target.startswith(("threads", "host")):
        return {}
    half = how.count // 2
    parts = [(how.seed, half), (how.seed + half, how.count - half)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda p: _hunter(how.source, "codes", target, kind, *p), parts)
        return {seed: code for part in found for seed, code in part.items()}


def hunt(bug: Bug, how: Hunt, codes: Mapping[str, str]) -> Outcome:
    """Look for `bug` in programs that are not known to be what they were."""
    with tempfile.TemporaryDirectory() as folder:
        harmed = Path(folder) / "src"
        shutil.copytree(how.source, harmed, ignore=shutil.ignore_patterns("__pycache__"))
        bug.apply(harmed)
        known = Path(folder) / "codes.json"
        known.write_text(json.dumps(dict(codes)))
        seed, stop = how.seed, how.seed + how.count
        done, changed, seconds = 0, 0, 0.0
        while seed < stop:
            found = _hunter(harmed, "hunt", bug.target, bug.kind, seed, stop - seed, known)
            done, changed = done + found["done"], changed + found["changed"]
            seconds += found["cpu"]
            at, words = found["seed"], found["words"]
            if at is None:
                break
            if at < 0:
                return Outcome(bug, at, done, changed, seconds, words)
            again = _hunter(how.source, "hunt", bug.target, bug.kind, at, 1)
            if again["seed"] is None:
                return Outcome(bug, at, done, changed, seconds, words)
            print(f"       seed {at} fails without the bug: {words}", flush=True)
            seed = at + 1
    return Outcome(bug, None, done, changed, seconds, "")


def table(outcomes: Iterable[Outcome]) -> tuple[int, int]:
    """Print outcomes as they come; (found, all)."""
    print("  seed programs changed  CPU  target       bug | found as", flush=True)
    found = total = 0
    for outcome in outcomes:
        print(outcome.line(), flush=True)
        total += 1
        found += outcome.seed is not None
    return found, total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=250, help="Programs a bug.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="Bugs with this in their name.")
    parser.add_argument("--kind", default="", help="Bugs that programs of this kind show.")
    parser.add_argument("--first", type=int, default=0, help="Leave so many out.")
    roads = "threads (the CUDA road), host (its source) or cpu."
    parser.add_argument("--target", default="threads", help=roads)
    parser.add_argument("--source", type=Path, default=SOURCE, help="The sources to harm.")
    options = parser.parse_args()
    how = Hunt(options.count, options.seed, options.source)
    bugs = [b for b in BUGS if options.only in b.name and b.target.startswith(options.target)]
    bugs = [b for b in bugs if options.kind in ("", b.kind)]
    bugs = bugs[options.first :]
    roads = sorted({(b.target, b.kind) for b in bugs})
    codes = {road: clean_codes(*road, how) for road in roads}
    with ThreadPoolExecutor(options.jobs) as pool:
        found, total = table(
            pool.map(lambda bug: hunt(bug, how, codes[bug.target, bug.kind]), bugs)
        )
    print(f"{found} of {total} planted bugs found")
    return 0 if found >= 0.9 * total else 1


if __name__ == "__main__":
    sys.exit(main())
