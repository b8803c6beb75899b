"""Random schedules: whatever a schedule chooses, a kernel computes what its text says.

A schedule is drawn: a program with its sizes, stages and threads, an architecture or one without
some feature, and what the target may be told about each choice (`ir/schedule`). The tile
interpreter says what the program means; the scheduled form must agree under a random interleaving,
and a share of them also as thread code.
"""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from random import Random
from typing import Any

from devtools.compare import Verdict, small_chips
from devtools.fuzz.check import WORDS
from devtools.fuzz.run import Worker
from devtools.schedules.subjects import Subject, draw_program, legal, subject
from tilewright import machine
from tilewright.ir.atoms import Feature
from tilewright.ir.chips import DEFAULT
from tilewright.ir.op import Program
from tilewright.ir.target import ARCHITECTURES, Target
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER, SCHEDULE
from tilewright.passes.run import run_pipeline
from tilewright.support import env
from tilewright.support.errors import CompileError, RunError, TilewrightError
from tilewright.targets.cuda.remedies import PING_PONG, search
from tilewright.tools.compare import internal

RUNS = 2  # interleavings of a schedule, at least: one for each launch of its program
EACH = 3  # schedules of one program: it is traced, and judged, once
THREADS = 0.25  # of the schedules are lowered to thread code, too: that takes as long as all else
FAILURES = ("mismatch", "race", "deadlock", "crash")


@dataclass(frozen=True)
class Recipe:
    """One schedule: enough to derive and run it again."""

    program: str
    target: str
    without: str = ""  # a feature
    seed: int = 0  # of the interleaving
    threads: bool = False
    file: str = ""

    def the_target(self) -> Target:
        found = Target.parse(self.target)
        return found.without(Feature(self.without)) if self.without else found

    def command(self) -> str:
        """What repeats it."""
        words = ["python", "-m", "devtools", "schedules", *([self.file] if self.file else [])]
        words += ["--program", self.program, "--target", self.target]
        words += ["--without", self.without] if self.without else []
        words += ["--seed", str(self.seed), *(["--threads", "1"] if self.threads else [])]
        return shlex.join(words)


def draw(number: int, file: str = "", threads: float = THREADS) -> Recipe:
    """The schedule of a number; `EACH` numbers in a row are of one program."""
    program = draw_program(Random(f"program {number // EACH}"), file)
    r = Random(f"schedule {number}")
    archs = list(ARCHITECTURES["cuda"])
    arch = DEFAULT if r.random() < 0.8 else r.choice(archs)
    flags = [f"-arch={arch}"]
    for name, values in WORDS.items():
        value = r.choice(("auto", *values))
        flags += [f"-{name}={value}"] if value != "auto" else []
    features = sorted(f.value for f in ARCHITECTURES["cuda"][arch])
    without = r.choice(features) if r.random() < 0.2 else ""
    target = " ".join(["cuda", *flags])
    return Recipe(program, target, without, number, r.random() < threads, file)


# ── one schedule ─────────────────────────────────────────────────────────────────────────────


@dataclass
class Outcome:
    """What came of a recipe; `new`: no schedule of the same program before was the same. `runs`
    were compared."""

    recipe: Recipe
    verdict: Verdict
    new: bool = True
    runs: int = 0


def judge(recipe: Recipe) -> Outcome:
    """Derive a schedule, run it, and compare."""
    started = time.perf_counter()
    outcome = Outcome(recipe, Verdict("ok"))
    seconds: dict[str, float] = {}
    try:
        outcome.verdict = _judged(recipe, outcome, seconds)
    except CompileError as error:
        # with a place it is a refusal; without one nobody meant to refuse
        outcome.verdict = Verdict("refused" if error.loc else "crash", "schedule", error.message)
    except RunError as error:
        kind = "deadlock" if error.message.startswith("deadlock") else "race"
        road = "threads" if "lower" in seconds else "machine"
        outcome.verdict = Verdict(kind, road, error.message)
    except TilewrightError as error:
        outcome.verdict = Verdict("crash", "", f"{type(error).__name__}: {error.message}")
    except Exception as error:
        outcome.verdict = Verdict("crash", "", internal(error))
    seconds["all"] = time.perf_counter() - started
    outcome.verdict.seconds = seconds
    return outcome


def scheduled(program: Program, target: Target, multiprocessors: int = 2) -> Program:
    """The program after the last pass that decides anything, for a chip that is small enough for
    blocks to walk over several tiles of small grids."""
    with small_chips(multiprocessors):
        trace, _ = search(lambda t: run_pipeline(program, t, SCHEDULE), target, [PING_PONG])
        return trace.result


def _judged(recipe: Recipe, outcome: Outcome, seconds: dict[str, float]) -> Verdict:
    clock = time.perf_counter
    at = clock()
    try:
        found = subject(recipe.program, recipe.file)
    except TilewrightError as error:
        return Verdict("illegal", "program", error.message)
    why = legal(found)
    if why:
        return Verdict("illegal", "program", why)
    seconds["program"] = clock() - at
    target = recipe.the_target()
    at = clock()
    program = scheduled(found.program, target, 1 + recipe.seed % 3)
    seconds["schedule"] = clock() - at
    outcome.new = program not in found.found
    found.found += [program] if outcome.new else []
    threads = recipe.threads
    if program.params == found.program.params:  # elements of less than a byte become bytes
        at = clock()
        for turn in range(max(RUNS, len(found.launches))):
            number = turn % len(found.launches)
            args = found.launches[number]()
            outcome.runs += 1
            machine.run(program, args, seed=recipe.seed + turn, explicit=True)
            told = found.wrong(number, args)
            if told:
                return Verdict("mismatch", "machine", told)
        seconds["machine"] = clock() - at
    else:
        threads = True
    if threads:
        at = clock()
        code = run_pipeline(program, target, LOWER, stage=Stage.LAID_OUT).result
        seconds["lower"] = clock() - at
        at = clock()
        number = recipe.seed % len(found.launches)
        args = found.launches[number]()
        outcome.runs += 1
        machine.run_threads(code, args, seed=recipe.seed)
        seconds["threads"] = clock() - at
        told = found.wrong(number, args)
        if told:
            return Verdict("mismatch", "threads", told)
    return Verdict("ok")


# ── many ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """What a run does: schedules number `seed` … `seed + count - 1`; `seconds` bound it all, `each`
    those of one program."""

    count: int = 1000
    seed: int = 0
    seconds: float = 600.0
    jobs: int = 2
    each: float = 120.0
    threads: float = THREADS
    file: str = ""


@dataclass
class Report:
    """What came out."""

    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    runs: int = 0
    different: int = 0
    lowered: int = 0
    wall: float = 0.0

    @property
    def done(self) -> int:
        return self.kinds.total()

    def add(self, outcome: Outcome) -> None:
        verdict = outcome.verdict
        self.kinds[verdict.kind] += 1
        self.seconds.update(verdict.seconds)
        self.runs += outcome.runs
        self.different += verdict.kind == "ok" and outcome.new
        self.lowered += verdict.kind == "ok" and "threads" in verdict.seconds
        if verdict.kind in ("refused", "illegal"):
            self.reasons[f"{verdict.kind}: {verdict.headline}"] += 1
        if verdict.kind in FAILURES:
            self.failures.append(outcome)

    def lines(self) -> Iterator[str]:
        """The report as text; the failures, with what repeats them, at its end."""
        used = ", ".join(f"{n} {s:.0f} s" for n, s in sorted(self.seconds.items()) if n != "all")
        yield f"{self.done} schedules, {self.runs} runs in {self.wall:.0f} s ({used})"
        yield "  " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.kinds.items()))
        yield f"  {self.different} different ones, {self.lowered} also as thread code"
        for reason, n in self.reasons.most_common():
            yield f"  {n:>5}  {reason}"
        for outcome in self.failures:
            yield f"{outcome.verdict}\n  {outcome.recipe.command()}"


def run_some(numbers: range, file: str = "", threads: float = THREADS) -> Report:
    """Schedules by number, one after the other."""
    report = Report()
    started = time.monotonic()
    for number in numbers:
        report.add(judge(draw(number, file, threads)))
    report.wall = time.monotonic() - started
    return report


def _program(numbers: range, file: str, threads: float) -> list[Outcome]:
    return [judge(draw(number, file, threads)) for number in numbers]


def run_plan(plan: Plan, note: Callable[[Report], None] = lambda report: None) -> Report:
    """A plan on several processes; one that is lost, or takes too long, is a crash."""
    report, started = Report(), time.monotonic()
    end = plan.seed + plan.count
    tasks = iter(range(n, min(n + EACH, end)) for n in range(plan.seed, end, EACH))
    workers = [_worker() for _ in range(plan.jobs)]

    def feed(worker: Worker) -> None:
        worker.task = None
        if time.monotonic() - started < plan.seconds:
            for numbers in tasks:
                worker.give("program", (numbers, plan.file, plan.threads), plan.each)
                return

    def lost(at: int, why: str) -> None:
        task = workers[at].task
        assert task
        for number in task[1][0]:
            recipe = draw(number, plan.file, plan.threads)
            report.add(Outcome(recipe, Verdict("crash", "", f"one of these: {why}")))
        workers[at].end()
        workers[at] = _worker()

    try:
        for worker in workers:
            feed(worker)
        while any(w.task for w in workers):
            busy: dict[Any, int] = {w.pipe: at for at, w in enumerate(workers) if w.task}
            for pipe in wait(list(busy), timeout=0.5):
                at = busy[pipe]
                try:
                    for outcome in workers[at].pipe.recv():
                        report.add(outcome)
                except (EOFError, ConnectionResetError):
                    lost(at, "the process ended")
                feed(workers[at])
            for at, worker in enumerate(workers):
                if worker.task and time.monotonic() > worker.deadline:
                    lost(at, "did not end in time")
                    feed(workers[at])
            report.wall = time.monotonic() - started
            note(report)
    finally:
        for worker in workers:
            worker.end()
    return report


def _worker() -> Worker:
    return Worker(jobs={"program": _program})


def run_command(plan: Plan) -> int:
    """The command line's run: a bar on the terminal, then the report."""
    os.environ[env.CACHE.name] = "0"  # none of these kernels comes again
    with _progress(plan) as note:
        report = run_plan(plan, note)
    for line in report.lines():
        print(line)
    if report.done < plan.count:
        print(f"{plan.count - report.done} were left when the time was over")
    return int(bool(report.failures))


def repeat(recipe: Recipe) -> int:
    """Run one schedule, and say what came of it."""
    verdict = judge(recipe).verdict
    print(f"{verdict.kind} {verdict.target} {verdict.detail}".rstrip())
    return int(verdict.kind in FAILURES)


class _progress:
    """A bar; plain lines now and then where rich is not installed or nobody looks."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.said = plan, 0.0
        self.bar: Any = None

    def __enter__(self) -> Callable[[Report], None]:
        import sys

        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            return self.note
        console = Console(stderr=True)
        if sys.stderr.isatty():
            self.bar = Progress(console=console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("schedules", total=self.plan.count)
        return self.note

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def note(self, report: Report) -> None:
        import sys

        kinds = ", ".join(f"{k} {n}" for k, n in sorted(report.kinds.items()))
        if self.bar is not None:
            self.bar.update(self.task, completed=report.done, description=kinds)
        elif report.wall - self.said >= 30:
            self.said = report.wall
            text = f"{report.done} of {self.plan.count} in {report.wall:.0f} s: {kinds}"
            print(text, file=sys.stderr, flush=True)


__all__ = ["Outcome", "Plan", "Recipe", "Report", "Subject", "draw", "judge", "run_some"]
