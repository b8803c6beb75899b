"""Random Python in kernels: a short run, and bugs that it finds. The long one:
`python -m devtools meaning`."""

from __future__ import annotations

from functools import partial, reduce

import pytest

from devtools.fuzz.python_meaning import Finding, hunt, make, render
from tilewright.lang import logic, scalar
from tilewright.lang.builder import Builder
from tilewright.lang.logic import Logic
from tilewright.lang.state import Watch


def test_a_short_run_finds_nothing():
    kinds, finding = hunt(100)
    assert finding is None, f"{finding.kind}: {finding.said}\n{finding.source}"
    assert kinds["ok"] >= 45 and kinds["refused"] >= 10, kinds


def test_on_the_cpu_too():
    kinds, finding = hunt(6, 40, "cpu")
    assert finding is None, finding


def test_a_seed_is_a_program():
    assert render(make(7)) == render(make(7)) != render(make(8))


# what a bug replaces, by what, and a word of the programs that show it
BUGS = {
    "and, or are truths": (logic, "_decided", lambda op, sides: reduce(
        partial(logic._joined, op), map(logic.condition, sides)), " or "),
    "reads are late": (Builder, "writes", lambda self, buffer: 0, "A[i]"),
    "state may change": (Watch, "changed", lambda self, bound: None, ""),
    "keys are trees": (scalar, "by_theirs", lambda frame: False, ""),
    "tuples are their first items": (
        Logic, "_compare_items", lambda self, op, a, b: self._compare(op, a[0], b[0]), "["),
    "a range has no end": (
        Logic, "_in_range", lambda self, op, a, span: logic.compare(">=", a, span[0]), "range"),
    "any is all": (logic, "_BUILTINS", {
        **logic._BUILTINS, any: logic._BUILTINS[all]}, "any("),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    owner, attribute, wrong, word = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    kinds, finding = hunt(300)
    assert isinstance(finding, Finding), kinds
    assert finding.kind == "mismatch" and word in finding.source, finding
    assert len(finding.source.splitlines()) < 24, finding.source
