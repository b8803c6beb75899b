"""The command line of a hunt: how many programs, from which seed, on which target, how long."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol


class Report(Protocol):
    """What a hunt tells: how its programs ended, why some were refused, what was found."""

    kinds: Counter[str]
    reasons: Counter[str]
    findings: list[Any]


def run_command(doc: str | None, hunt: Callable[..., Report], target: str) -> None:
    """Hunt as the command line says, print what was found, and end with status 1 if something
    was. `target` is the default."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default=target, help='"interp -sanitize", cpu, threads, …')
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--most", type=int, default=1, help="findings after which it ends")
    given = parser.parse_args()
    report = hunt(given.count, given.seed, given.target, given.seconds, given.most)
    for finding in report.findings:
        print(finding, end="\n\n")
    print(", ".join(f"{n} {kind}" for kind, n in sorted(report.kinds.items())))
    for reason, n in report.reasons.most_common():
        print(f"  refused {n}: {reason}")
    sys.exit(bool(report.findings))
