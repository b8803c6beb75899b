"""Is a changed kernel wrong, and who finds it?

A mutant is run without any check in several ways: what nothing wrote holds one thing or another,
blocks run in other orders, threads in step (the interpreter) or one after another (the CPU). If all
of it gives what the right kernel gives, bit for bit, the mutant is *equivalent* and does not count.
If all ways agree on something else it has another *meaning*: a legal program, which a comparison
with the right one finds and nothing else can. If they disagree, or one of them fails, its meaning
is *undefined*, and the sanitizer has to find it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from devtools.mutants.operators import Mutant, mutants
from devtools.mutants.subjects import Subject
from tilewright import machine
from tilewright.ir.op import Program
from tilewright.lang.check import check_program
from tilewright.machine import memory
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError

Arrays = dict[str, Any]
SEEDS = (0, 1)  # of data


@contextlib.contextmanager
def _zeros() -> Iterator[None]:
    """What nothing wrote is zero, as memory often happens to be."""
    names = vars(memory)
    before, names["poison"] = names["poison"], lambda shape, dtype: np.zeros(shape, dtype.numpy)
    try:
        yield
    finally:
        names["poison"] = before


def _given(subject: Subject, seed: int, other: bool) -> Arrays:
    found = subject.make(seed)
    for name in subject.made if other else ():
        found[name][...] = subject.make(seed + 17)[name]
    return found


def _arrays(values: Arrays) -> Arrays:
    return {n: v for n, v in values.items() if isinstance(v, np.ndarray)}


def run(subject: Subject, program: Program, seed: int, way: str) -> Arrays:
    """The arrays after a run without checks; `way`: poison, zeros or cpu."""
    given = _given(subject, seed, way == "zeros")
    if way == "cpu":
        kernel = CompiledKernel(program, target="cpu")
        kernel(*(given[p.name] for p in program.params))
    elif way == "zeros":
        with _zeros():
            machine.run(program, given, seed=7)
    else:
        machine.run(program, given)
    return _arrays(given)


def _equal(a: Arrays, b: Arrays, exact: bool) -> bool:
    for name, x in a.items():
        y = b[name]
        if x.tobytes() == y.tobytes():
            continue
        if exact or x.dtype.kind in "iub":
            return False
        u, v = x.astype(np.float64), y.astype(np.float64)
        if not np.allclose(u, v, rtol=1e-3, atol=1e-3, equal_nan=True):
            return False
    return True


@dataclass
class Right:
    """What the right kernel computes, and what it is warned of."""

    subject: Subject
    results: dict[int, Arrays] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    accused: str = ""

    def __post_init__(self) -> None:
        for seed in SEEDS:
            self.results[seed] = run(self.subject, self.subject.program, seed, "poison")
        self.accused, self.warned = accuse(self.subject, self.subject.program)


def accuse(subject: Subject, program: Program) -> tuple[str, set[str]]:
    """What the compiler's front or the sanitizer says of a program, and what it warns of."""
    try:
        check_program(program)
    except TilewrightError as error:
        return f"refused: {error.message}", set()
    kinds: set[str] = set()
    for seed in SEEDS:
        try:
            found = machine.run(
                program, _given(subject, seed, False), sanitize=True, made=subject.made, seed=seed
            )
        except TilewrightError as error:
            return error.message, kinds
        kinds |= {w.kind for w in found.warnings}
    return "", kinds


def accuse_threads(subject: Subject, program: Program) -> str:
    """What the check of thread code says."""
    from tilewright.ir.text import parse_program

    try:
        kernel = CompiledKernel(program, target="cuda")
        lowered = parse_program(kernel.ir("lower_threads"), "<ir>")
        machine.run_threads(lowered, _given(subject, 0, False))
    except TilewrightError as error:
        return f"thread code: {error.message}"
    return ""


@dataclass(frozen=True)
class Verdict:
    """`kind`: equivalent, meaning or undefined; who found it, in their words."""

    subject: Subject
    mutant: Mutant
    kind: str
    sanitizer: str = ""
    reference: bool = False

    @property
    def found(self) -> bool:
        return bool(self.sanitizer) or self.reference

    def line(self) -> str:
        at = f" at {self.mutant.of.loc}" if self.mutant.of.loc else ""
        return f"{self.subject.name}: {self.mutant.operator}{at} ({self.kind})"


def kind_of(right: Right, program: Program) -> tuple[str, bool]:
    """What a mutant is, and whether a comparison of one plain run finds it."""
    subject, reference = right.subject, False
    same = agree = True
    for seed in SEEDS:
        want, first = right.results[seed], None
        for way in ("poison", "zeros", "cpu"):
            try:
                found = run(subject, program, seed, way)
            except TilewrightError:
                return "undefined", True
            except Exception:
                return "undefined", True
            exact = way != "cpu"
            differs = not _equal(want, found, exact)
            if way == "zeros":  # what was there before shows through where nothing is written
                differs = differs and not _equal(_only(want, subject), _only(found, subject), True)
            same = same and not differs
            reference = reference or (differs and way == "poison")
            if first is None:
                first = found
            else:
                agree = agree and _equal(first, found, exact)
        if not agree:
            break
    if same:
        return "equivalent", False
    return ("meaning" if agree else "undefined"), reference


def _only(arrays: Arrays, subject: Subject) -> Arrays:
    return arrays if not subject.made else {n: arrays[n] for n in subject.made}


def judge(right: Right, mutant: Mutant) -> Verdict:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        said, warned = accuse(right.subject, mutant.program)
        if said.startswith("refused"):
            return Verdict(right.subject, mutant, "undefined", said)
        if not said and warned - right.warned:
            said = f"warned: {', '.join(sorted(warned - right.warned))}"
        kind, reference = kind_of(right, mutant.program)
        if kind == "undefined" and not said:
            said = accuse_threads(right.subject, mutant.program)
    return Verdict(right.subject, mutant, kind, said, reference)


# ── the measure ──────────────────────────────────────────────────────────────────────────────


@dataclass
class Report:
    verdicts: list[Verdict] = field(default_factory=list)
    right: int = 0
    accused: list[str] = field(default_factory=list)
    lints: int = 0

    @property
    def wrong(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.kind != "equivalent"]

    @property
    def missed(self) -> list[Verdict]:
        return [v for v in self.wrong if not v.found]

    def share(self) -> float:
        return 1.0 - len(self.missed) / max(len(self.wrong), 1)

    def unseen(self) -> list[Verdict]:
        """Of undefined meaning, and the sanitizer says nothing."""
        return [v for v in self.wrong if v.kind == "undefined" and not v.sanitizer]

    def lines(self) -> Iterator[str]:
        yield (
            f"{'operator':<28}{'wrong':>7}{'undefined':>11}{'by sanitizer':>14}{'found':>7}"
            f"{'missed':>8}"
        )
        names = Counter(v.mutant.operator for v in self.wrong)
        for name in sorted(names):
            yield self._row(name, [v for v in self.wrong if v.mutant.operator == name])
        yield self._row("all", self.wrong)
        undefined = [v for v in self.wrong if v.kind == "undefined"]
        seen = len(undefined) - len(self.unseen())
        yield (
            f"{len(self.wrong)} wrong kernels, {len(self.wrong) - len(self.missed)} found "
            f"({100 * self.share():.1f} %); of {len(undefined)} of undefined meaning the sanitizer "
            f"alone finds {seen} ({100 * seen / max(len(undefined), 1):.1f} %)"
        )
        equal = [v for v in self.verdicts if v.kind == "equivalent"]
        told = sum(1 for v in equal if v.sanitizer)
        yield (
            f"{len(equal)} mutants compute the same in every run and are not counted; {told} of "
            "them are reported, for what other runs might show"
        )
        for v in self.missed:
            yield f"  missed   {v.line()}"
        for v in self.unseen():
            if v.found:
                yield f"  by comparison only   {v.line()}"
        yield (
            f"{self.right} right kernels, {len(self.accused)} accused; {self.lints} random ones "
            "reduce what lies outside a tensor, and are told"
        )
        for text in self.accused:
            yield f"  accused  {text}"

    @staticmethod
    def _row(name: str, found: list[Verdict]) -> str:
        undefined = [v for v in found if v.kind == "undefined"]
        seen = sum(1 for v in undefined if v.sanitizer)
        all_found = sum(1 for v in found if v.found)
        return (
            f"{name:<28}{len(found):>7}{len(undefined):>11}{seen:>14}{all_found:>7}"
            f"{len(found) - all_found:>8}"
        )


def measure(
    subjects: Iterator[Subject], count: int, each: int = 1 << 30, seed: int = 0, note: Any = None
) -> Report:
    """Mutants of `subjects`, `each` of one at most, until `count` of them are wrong; right ones are
    looked at in any case."""
    report = Report()
    for subject in subjects:
        right = Right(subject)
        report.right += 1
        random = subject.source == "fuzz"
        report.lints += random and "padding" in right.warned
        told = right.warned - ({"padding"} if random else set())
        if right.accused or told:
            report.accused.append(f"{subject.name}: {right.accused or told}")
            continue
        if len(report.wrong) >= count:
            continue
        made = list(mutants(subject.program))
        if len(made) > each:
            rng = np.random.default_rng(seed + report.right)
            made = [made[k] for k in sorted(rng.choice(len(made), each, replace=False))]
        for mutant in made:
            report.verdicts.append(judge(right, mutant))
            if len(report.wrong) >= count:
                break
        if note is not None:
            note(f"{subject.source} {subject.name}: {len(report.wrong)} wrong so far")
    return report
