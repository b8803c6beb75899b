"""Random programs on every target: made, compared with the interpreter, shrunk, printed.

Each worker is a process of its own that makes a program, judges it in the interpreter, compiles
and launches it. One that outlives its time, or takes its process with it, counts as a finding, and
a new worker goes on with the next. On a GPU every worker has a context of its own: a kernel that
faults or hangs takes nobody else's results along, and compilation is what takes the time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from devtools.compare import Verdict
from devtools.fuzz.check import check_source, for_seed
from devtools.fuzz.programs import make
from devtools.fuzz.recipe import Recipe, render
from devtools.fuzz.shrink import shrink
from devtools.host.target import without_compiler
from tilewright.support import env

Jobs = dict[str, Callable[..., Any]]  # what a worker can do, by name


@dataclass(frozen=True)
class Plan:
    """What a run does; `seconds` bound it all, `each` one program, `shrinking` one finding."""

    count: int = 2000
    seed: int = 0
    targets: tuple[str, ...] = ("interp", "cpu")
    seconds: float = 600.0
    jobs: int = 2
    each: float = 60.0
    shrinking: float = 40.0
    out: str = ""
    findings: int = 20  # so many are shrunk; then the run ends
    refusals: bool = False  # whether refused programs are shrunk and printed
    kind: str = "any"  # of programs


@dataclass
class Report:
    """What came out."""

    done: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    illegal: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, Verdict, str]] = field(default_factory=list)
    wall: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.findings

    def lines(self, plan: Plan) -> Iterator[str]:
        """The report as text."""
        used = ", ".join(f"{n} {s:.0f} s" for n, s in sorted(self.seconds.items()))
        yield (
            f"{self.done} programs (seeds {plan.seed} … {plan.seed + plan.count - 1}) on "
            f"{' '.join(plan.targets)} in {self.wall:.0f} s of {plan.jobs} workers ({used})"
        )
        yield "  " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.kinds.items()))
        for title, table in (("refused", self.refused), ("illegal", self.illegal)):
            for text, n in table.most_common(30):
                yield f"  {title} {n:>4}  {text}"
        for seed, verdict, _ in self.findings:
            yield f"  seed {seed}: {verdict}"
        yield f"{len(self.findings)} findings"


# ── a worker ─────────────────────────────────────────────────────────────────────────────────


def judge(seed: int, targets: Sequence[str], kind: str = "any") -> Verdict:
    """Make and check the program of a seed."""
    targets = [for_seed(target, seed) for target in targets]
    return check_source(render(make(seed, kind)), targets, f"fuzz_{seed}.py")


def reduce_program(
    seed: int, verdict: Verdict, targets: Sequence[str], seconds: float, kind: str = "any"
) -> str:
    """The text of the smallest program found that fails as that of the seed does."""
    recipe = make(seed, kind)

    def fails(candidate: Recipe) -> bool:
        try:
            source = render(candidate)
        except Exception:  # sizes that fit no longer
            return False
        return check_source(source, targets).same(verdict)

    small = shrink(recipe, fails, seconds)
    told = check_source(render(small), targets)
    detail = told.detail.splitlines()[0] if told.detail else verdict.detail.splitlines()[0]
    return render(small, f"Seed {seed}: {verdict.kind} on {verdict.target}. {detail}")


def _serve(pipe: Connection, setup: Callable[[], Any] | None, jobs: Jobs | None) -> None:
    if setup is not None:
        setup()
    jobs = jobs or {"judge": judge, "reduce": reduce_program}
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        pipe.send(jobs[name](*args))


class Worker:
    """A process that does one thing at a time and may be lost."""

    def __init__(self, setup: Callable[[], Any] | None = None, jobs: Jobs | None = None) -> None:
        # a forked child cannot use CUDA, and one of threads may hang
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=_serve, args=(theirs, setup, jobs), daemon=True)
        self.child.start()
        theirs.close()
        self.task: tuple[str, tuple[Any, ...]] | None = None
        self.deadline = 0.0
        self.fresh = True

    def give(self, name: str, args: tuple[Any, ...], seconds: float) -> None:
        self.task = (name, args)
        # the first task of a process also pays for its imports
        self.deadline = time.monotonic() + seconds + (30.0 if self.fresh else 0.0)
        self.fresh = False
        self.pipe.send((name, args))

    def end(self) -> None:
        self.child.kill()
        self.child.join(5)
        self.pipe.close()


# ── the run ──────────────────────────────────────────────────────────────────────────────────


def fuzz(
    plan: Plan,
    note: Callable[[str], None] = lambda text: None,
    setup: Callable[[], Any] | None = None,
) -> Report:
    """Run a plan; `setup` runs first in every worker."""
    return _Run(plan, note, setup).all()


class _Run:
    def __init__(
        self, plan: Plan, note: Callable[[str], None], setup: Callable[[], Any] | None
    ) -> None:
        self.plan, self.note, self.setup = plan, note, setup
        self.report = Report()
        self.seeds = iter(range(plan.seed, plan.seed + plan.count))
        self.reductions: list[tuple[int, Verdict]] = []
        self.seen: Counter[str] = Counter()
        self.started = time.monotonic()

    def all(self) -> Report:
        workers = [Worker(self.setup) for _ in range(min(self.plan.jobs, self.plan.count))]
        try:
            for at in range(len(workers)):
                self.feed(workers, at)
            while any(w.task for w in workers):
                self.turn(workers)
        finally:
            for worker in workers:
                worker.end()
        self.report.wall = time.monotonic() - self.started
        return self.report

    def turn(self, workers: list[Worker]) -> None:
        busy = {w.pipe: at for at, w in enumerate(workers) if w.task}
        ready = wait(list(busy), timeout=0.5)
        for pipe in ready:
            at = busy[pipe]  # type: ignore[index]
            worker = workers[at]
            try:
                answer = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                worker.child.join(5)
                self.lost(worker, f"the process ended, exit code {worker.child.exitcode}")
                workers[at] = Worker(self.setup)
            else:
                self.take(worker, answer)
            self.feed(workers, at)
        now = time.monotonic()
        for at, worker in enumerate(workers):
            if worker.task and now > worker.deadline:
                self.lost(worker, "did not end in time")
                workers[at] = Worker(self.setup)
                self.feed(workers, at)

    def feed(self, workers: list[Worker], at: int) -> None:
        plan, worker = self.plan, workers[at]
        worker.task = None
        left = plan.seconds - (time.monotonic() - self.started)
        if self.reductions and plan.shrinking:
            seed, verdict = self.reductions.pop(0)
            seconds = max(5.0, min(plan.shrinking, left))
            targets = ("interp", verdict.target)
            given = (seed, verdict, targets, seconds, plan.kind)
            worker.give("reduce", given, seconds + plan.each)
            return
        enough = len(self.report.findings) >= plan.findings
        if left > 0 and not enough:
            for seed in self.seeds:
                worker.give("judge", (seed, plan.targets, plan.kind), plan.each)
                return

    def take(self, worker: Worker, answer: Any) -> None:
        assert worker.task
        name, args = worker.task
        worker.task = None
        if name == "reduce":
            self.add(args[0], args[1], answer)
            return
        seed, verdict = args[0], answer
        report = self.report
        report.done += 1
        report.kinds[verdict.kind] += 1
        report.seconds.update(verdict.seconds)
        if verdict.kind == "illegal":
            report.illegal[verdict.headline] += 1
        if verdict.kind == "refused":
            report.refused[f"{verdict.target}: {verdict.headline}"] += 1
        if report.done % 100 == 0:
            spent = time.monotonic() - self.started
            kinds = ", ".join(f"{k} {n}" for k, n in sorted(report.kinds.items()))
            self.note(f"{report.done} programs in {spent:.0f} s: {kinds}")
        # a target that is not finished says so; the CPU takes every legal program
        excused = verdict.kind == "refused" and verdict.target != "cpu" and not self.plan.refusals
        if verdict.found and not excused:
            self.found(seed, verdict)

    def found(self, seed: int, verdict: Verdict) -> None:
        label = f"{verdict.kind} {verdict.target} {verdict.headline}"
        self.seen[label] += 1
        self.note(f"seed {seed}: {verdict}")
        many = verdict.kind != "mismatch" and self.seen[label] > 2
        if self.plan.shrinking and not many:
            self.reductions.append((seed, verdict))
        else:
            self.add(seed, verdict, "" if many else self.text(seed))

    def lost(self, worker: Worker, why: str) -> None:
        assert worker.task
        name, args = worker.task
        worker.end()
        worker.task = None
        seed = args[0]
        if name == "reduce":  # what failed is kept, if not small
            self.add(seed, args[1], self.text(seed))
            return
        self.report.done += 1
        self.report.kinds["crash"] += 1
        verdict = Verdict("crash", " ".join(self.plan.targets), why)
        self.note(f"seed {seed}: {why}")
        self.add(seed, verdict, self.text(seed, f"Seed {seed}: {why}."))

    def text(self, seed: int, title: str = "") -> str:
        return render(make(seed, self.plan.kind), title)

    def add(self, seed: int, verdict: Verdict, text: str) -> None:
        self.report.findings.append((seed, verdict, text))
        if self.plan.out and text:
            folder = Path(self.plan.out)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"seed_{seed}_{verdict.kind}_{verdict.target.split(' ')[0]}.py"
            path.write_text(text, encoding="utf-8")
            self.note(f"wrote {path}")


def run_command(plan: Plan) -> int:
    """The command line's run: progress to stderr, the report and shrunk kernels to stdout."""
    os.environ[env.CACHE.name] = "0"  # none of these kernels comes again

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    targets, skipped = without_compiler(plan.targets)
    if skipped:
        note(skipped)
    plan = replace(plan, targets=targets)
    report = fuzz(plan, note)
    for _, _, text in report.findings:
        if text:
            print(text)
    for line in report.lines(plan):
        print(line)
    if plan.out:
        folder = Path(plan.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.txt").write_text("\n".join(report.lines(plan)) + "\n", encoding="utf-8")
    return 0 if report.clean and report.done == plan.count else 1
