"""`tilewright check`: kernels on inputs made for them, under the sanitizer and against targets.

The interpreter runs each case with every check and with blocks in several orders; then each target
runs the cases that passed, and its results are compared with the interpreter's.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import machine
from tilewright.ir.core import *
from tilewright.ir.expr import walk as walk_expr
from tilewright.machine import Stopped
from tilewright.runtime.backends import resolve
from tilewright.support.errors import LaunchError, TilewrightError
from tilewright.targets.cuda.detect import gpu_target
from tilewright.tools.collect import Found
from tilewright.tools.compare import THREADS, against, difference
from tilewright.tools.inputs import KINDS, arguments, sizes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Plan:
    """What a check may use: data seeds, targets to compare with, seconds in all."""

    seeds: int = 2
    targets: tuple[str, ...] = ("cpu",)
    seconds: float = 60.0
    nan: bool = False


@dataclass
class Finding:
    """Something wrong, and the first inputs that showed it."""

    what: str
    case: str
    times: int = 0

    def __str__(self) -> str:
        often = f", and {self.times - 1} more" if self.times > 1 else ""
        return f"{self.what}\n  seen with: {self.case}{often}"


@dataclass
class Report:
    """How one kernel fared."""

    name: str
    findings: dict[Any, Finding] = field(default_factory=dict)
    warnings: dict[Any, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    passed: int = 0
    compared: list[str] = field(default_factory=list)

    def add(self, key: Any, what: str, case: str, *, warning: bool = False) -> None:
        table = self.warnings if warning else self.findings
        table.setdefault(key, Finding(what, case)).times += 1

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class Progress:
    """What is being done, on stderr, once it takes longer than a moment."""

    def __init__(self, quiet_for: float = 2.0) -> None:
        self.next = time.monotonic() + quiet_for

    def say(self, text: str) -> None:
        if time.monotonic() > self.next:
            self.next = time.monotonic() + 2.0
            print(f"… {text}", file=sys.stderr, flush=True)


def check_program(
    program: Program, chosen: Mapping[str, Any], plan: Plan, end: float, progress: Progress,
    made: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Run one kernel on all its cases; `made` are the tensors that a call of it makes."""
    check = _Check(program, chosen, plan, end, made, Report(program.name))
    with _until(end):
        check.run(progress)
    return check.report


@dataclass
class _Check:
    program: Program
    chosen: Mapping[str, Any]
    plan: Plan
    end: float
    made: Sequence[str]
    report: Report

    def run(self, progress: Progress) -> None:
        cases: list[dict[str, Any]] = [
            {**case, "data": kind, "seed": seed}
            for seed in range(self.plan.seeds)
            for case in sizes(self.program, self.chosen)
            for kind in KINDS
        ]
        name, report = self.program.name, self.report
        passed: list[dict[str, Any]] = []
        wanted: list[dict[str, Array]] = []
        for number, case in enumerate(cases):
            progress.say(f"{name}: {_describe(case)} ({number + 1} of {len(cases)})")
            try:
                self.check_time()
                found = self.interpret(case)
            except Stopped:
                report.note(f"the time was over after {number} of {len(cases)} inputs")
                break
            report.runs += 1
            if found is not None:
                report.passed += 1
                passed.append(case)
                wanted.append(found)
                if number < len(cases) // self.plan.seeds:
                    self.other_order(case, found)
        for target in self.plan.targets if passed else ():
            progress.say(f"{name} on {target}")
            try:
                self.check_time()
                self.compare(passed, wanted, target)
            except Stopped:
                report.note(f"{target} was not compared: the time was over")

    def check_time(self) -> None:
        if time.monotonic() > self.end:
            raise Stopped

    def make(self, *, data: str, seed: int, **case: int) -> dict[str, Any]:
        return arguments(self.program, case, data, seed, self.chosen)

    def interpret(self, case: dict[str, Any]) -> dict[str, Array] | None:
        """The arrays after a checked run; None when it failed."""
        given, said = self.make(**case), _describe(case)
        try:
            result = machine.run(
                self.program, given, sanitize=True, nan=self.plan.nan, seed=case["seed"],
                made=self.made,
            )  # fmt: skip
        except SanitizerError as error:
            self.report.add((error.kind, error.loc), str(error), said)
            return None
        except RunError as error:
            if "the interpreter cannot run" in error.message:
                self.report.note(f"not checked: {error.message}")
            else:
                self.report.add((error.message.split(":")[0], error.loc), str(error), said)
            return None
        for warning in result.warnings:
            self.report.add(
                (warning.kind, warning.diagnostic.loc), str(warning), said, warning=True
            )
        return {name: value for name, value in given.items() if isinstance(value, np.ndarray)}

    def other_order(self, case: dict[str, Any], want: dict[str, Array]) -> None:
        """Blocks in another order must not change anything."""
        given = self.make(**case)
        try:
            machine.run(self.program, given, seed=12345)
        except (Stopped, RunError):
            return
        for name, array in want.items():
            told = difference(array, given[name])
            if told:
                self.report.add(
                    ("order", name),
                    f"order: {name} depends on the order in which blocks run: {told}",
                    _describe(case),
                )

    def compare(
        self, cases: Sequence[Mapping[str, Any]], wanted: Sequence[dict[str, Array]], target: str
    ) -> None:
        unit, exact = _unit(self.program), _is_exact(self.program)
        for kind in KINDS:
            chosen = [k for k, case in enumerate(cases) if case["data"] == kind]
            slack = 0.0 if exact and kind == "integers" else unit
            told = [cases[k] for k in chosen], target, [wanted[k] for k in chosen]
            verdict = against(self.program, self.make, *told, slack)
            if verdict is None:
                continue
            if verdict.kind == "refused":
                self.report.note(f"{target} was not compared: {verdict.detail}")
                return
            self.report.add(
                (verdict.kind, target),
                f"{verdict.kind} on {target}: {verdict.detail}",
                f"{kind}; the interpreter's result is what it should be",
            )
            return
        self.report.compared.append(target)


@contextmanager
def _until(end: float) -> Iterator[None]:
    """`Stopped` is raised in what runs inside when the time is over, wherever it is: in a long
    statement of the interpreter, in a pass. Only where signals are to be had."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(end - time.monotonic(), 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _describe(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" if k not in ("data",) else str(v) for k, v in case.items())


_SMALL = {
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2, "bfloat16": 2.0**-8, "float16": 2.0**-11,
    "tfloat32": 2.0**-11, "float32": 2.0**-23, "float64": 2.0**-52,
}  # fmt: skip


def _unit(program: Program) -> float:
    """The rounding of the program's coarsest float type."""
    kinds = {t.dtype for t in (*program.tensors, *program.scratch)}
    kinds |= {op.buffer.dtype for op in walk_ops(program.kernels, Alloc)}
    return max((_SMALL.get(k.name, 2.0**-2) for k in kinds if k.is_float), default=0.0)


def _is_exact(program: Program) -> bool:
    """Small integers stay integers, whatever the order of sums: no functions, no division, and no
    sums in narrow types."""
    for op in walk_ops(program.kernels):
        into = op.c if isinstance(op, Gemm) else op.dst if isinstance(op, Reduce) else None
        if into is not None and into.dtype.is_float and into.dtype.bits <= 16:
            return False
        for node in (node for expr in expressions(op) for node in walk_expr(expr)):
            if isinstance(node, Call) or (isinstance(node, Bin) and node.op == "/"):
                return False
    return True


def default_targets() -> tuple[str, ...]:
    """The CPU, and the GPU where there is one."""
    found = resolve("auto")
    return ("cpu", str(found)) if found.kind == "cuda" else ("cpu",)


def known_target(name: str) -> str:
    """`name` if a check can compare with it; an error otherwise."""
    if name in THREADS or name == "interp":
        return name
    target = resolve(name.removesuffix("-build"))
    if target.kind == "cuda" and not name.endswith("-build") and gpu_target() is None:
        raise LaunchError(
            f"nothing here runs what is compiled for {name}",
            got="no GPU on this machine, or cuda-bindings is not installed",
            fix="--target threads runs its thread code without one",
        )
    return name


def run_command(
    kernels: Sequence[Found], skipped: Sequence[str], chosen: Mapping[str, Any], plan: Plan
) -> int:
    """Check programs and print what was found. The exit status: 1 where there is something."""
    started = time.monotonic()
    end, progress = started + plan.seconds, Progress()
    findings = unchecked = 0
    for kernel in kernels:
        program, name = kernel.program, kernel.name or kernel.program.name
        where = f" ({program.loc.file}:{program.loc.line})" if program.loc else ""
        if time.monotonic() > end:
            print(f"{name}{where}: not checked, the time was over")
            unchecked += 1
            continue
        try:
            report = check_program(program, chosen, plan, end, progress, kernel.made)
        except TilewrightError as error:
            print(f"{name}{where}: not checked\n{_indented(str(error))}")
            unchecked += 1
            continue
        findings += len(report.findings)
        if not report.passed and not report.findings:
            unchecked += 1
            print(f"{name}{where}: not checked")
            for note in report.notes:
                print(_indented(note.removeprefix("not checked: ")))
            continue
        against = f", compared with {', '.join(report.compared)}" if report.compared else ""
        count = len(report.findings)
        verdict = "fine" if not count else f"{count} finding{'s' * (count > 1)}"
        print(f"{name}{where}: {verdict} ({report.runs} runs{against})")
        for number, finding in enumerate(report.findings.values(), start=1):
            print(_indented(f"{number}. {finding}"))
        for warning in report.warnings.values():
            print(_indented(f"warning: {warning}"))
        for note in report.notes:
            print(_indented(f"note: {note}"))
    for text in skipped:
        print(f"not checked: {text}")
    seconds = time.monotonic() - started
    print(
        f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}, {findings} "
        f"finding{'s' * (findings != 1)}, {unchecked + len(skipped)} not checked, {seconds:.1f} s"
    )
    return int(bool(findings) or unchecked == len(kernels))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())
