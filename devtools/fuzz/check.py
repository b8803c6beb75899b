"""Random programs judged: targets are compared with the checking interpreter."""

from __future__ import annotations

import linecache
import sys
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from devtools.compare import UNITS, Verdict, against
from devtools.host import target as host
from tilewright.ir import schedule
from tilewright.ir.op import Program
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError
from tilewright.tools.compare import SIGNED, Arguments, internal, run_kernel

# thread code with whatever `drawn` says for a seed: interpreted, or its source run by the host
DRAWN, HOST_DRAWN = "threads-drawn", "host-drawn"
# choices, and their values as text; `deterministic` refuses programs, and changes none
WORDS = {
    name: [text for text in words if text != "auto"]
    for name, words in schedule.WORDS.items()
    if name != "deterministic"
}


def drawn(seed: int, kind: str = "threads") -> str:
    """A target of random choices, and perhaps of little shared memory, in KiB:
    `threads -roles=on -bulk_copies=off -shared=32`."""
    r = Random(f"target {seed}")
    words = [kind] + ["-arch=sm_80"] * (r.random() < 0.15)
    words += [f"-shared={r.choice([16, 24, 32, 48, 64])}"] * (r.random() < 0.25)
    for name, values in WORDS.items():
        value = r.choice(("auto", "auto", *values))
        words += [f"-{name}={value}"] if value != "auto" else []
    return " ".join(words)


def for_seed(target: str, seed: int) -> str:
    """`target`, drawn where it says so."""
    kinds = {DRAWN: "threads", HOST_DRAWN: "host"}
    return drawn(seed, kinds[target]) if target in kinds else target


def load(source: str, name: str) -> dict[str, Any]:
    """The names of a program's file, which need not exist on disk."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "fuzzed", "__file__": name}
    exec(compile(source, name, "exec"), space)
    return space


def check_source(source: str, targets: Sequence[str], name: str = "<fuzz>") -> Verdict:
    """Build a program through the front door and compare `targets` with the interpreter."""
    try:
        space = load(source, name)
    except TilewrightError as error:
        return Verdict("illegal", "build", error.message)
    except Exception as error:
        return Verdict("crash", "build", internal(error))
    finally:
        linecache.cache.pop(name, None)
    program = space["program"].program
    return check(program, space["arguments"], space["CASES"], space["EXACT"], targets, source)


def check(
    program: Program,
    arguments: Arguments,
    cases: Sequence[Mapping[str, int]],
    exact: bool | str,
    targets: Sequence[str],
    source: str = "",
) -> Verdict:
    """The first target that differs from the sanitizing interpreter, or that fails."""
    seconds: dict[str, float] = {}
    unit = (
        SIGNED
        if exact == "signed"
        else 0.0
        if exact
        else max((u for n, u in UNITS.items() if n in source), default=2.0**-8)
    )
    started = time.perf_counter()
    wanted = []
    try:
        judge = CompiledKernel(program, target="interp -sanitize")
        for case in cases:
            wanted.append(run_kernel(judge, arguments(**case), program))
    except TilewrightError as error:
        return Verdict("illegal", "interp", error.message)
    except Exception as error:
        return Verdict("crash", "interp", internal(error))
    seconds["interp"] = time.perf_counter() - started
    for target in targets:
        if target == "interp":
            continue
        started = time.perf_counter()
        compare = host.against if host.is_host(target) else against
        verdict = compare(program, arguments, cases, target, wanted, unit)
        seconds[target.split()[0]] = time.perf_counter() - started
        if verdict is not None:
            verdict.seconds = seconds
            return verdict
    return Verdict("ok", seconds=seconds)


def replay(
    prim_func: Any,
    arguments: Arguments,
    cases: Sequence[Mapping[str, int]],
    exact: bool | str,
    targets: Sequence[str],
) -> int:
    """Run a printed program on `targets` (the CPU by default); 0 when all agree."""
    with open(sys.argv[0], encoding="utf-8") as handle:
        source = handle.read()
    verdict = check(prim_func.program, arguments, cases, exact, targets or ["cpu"], source)
    print(f"{verdict.kind} {verdict.target} {verdict.detail}".rstrip())
    return int(verdict.kind != "ok")
