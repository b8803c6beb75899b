"""Wrong kernels made of right ones are found, right ones are not accused; and a sanitizer that has
a hole is noticed. `python -m devtools mutants` measures the whole."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from devtools.mutants.judge import accuse, measure
from devtools.mutants.operators import OPERATORS, mutants
from devtools.mutants.subjects import small
from tilewright.machine import conflicts, padding, sanitizer, threads

run = sys.modules["tilewright.machine.run"]
SUBJECTS = {s.name: s for s in small()}


def test_wrong_kernels_are_found():
    names = ("reverse", "histogram", "segments", "column_min", "added_up")
    report = measure((SUBJECTS[n] for n in names), count=20, each=5, seed=1)
    assert not report.accused
    assert len(report.wrong) >= 15
    assert not report.missed and not report.unseen(), "\n".join(report.lines())


def test_right_kernels_are_not_accused():
    for subject in SUBJECTS.values():
        assert accuse(subject, subject.program) == ("", set()), subject.name


def test_every_operator_has_work():
    used = {m.operator for s in SUBJECTS.values() for m in mutants(s.program)}
    assert used >= set(OPERATORS)


HOLES = {
    "outputs hold whatever they hold": (
        "added_up", "drop a clear", run._Call, "forget", lambda self, made: None),
    "elements that stay unwritten": (
        "dots", "one block less", run, "unwritten", lambda mem: None),
    "what nothing wrote may be read": (
        "gemm", "drop a clear", sanitizer, "require_written", lambda *_: None),
    "atomics meet plain accesses": (
        "histogram", "drop a barrier", conflicts, "AGAINST",
        {"read": ("write",), "write": ("write", "read"), "atomic": ()}),
    "threads need no barrier": (
        "reverse", "drop a barrier", conflicts.ThreadRaces, "access", lambda *_: None),
    "blocks and iterations may meet": (
        "added_up", "make an atomic plain", conflicts.Conflicts, "access", lambda *_: None),
    "a lane that is not there": (
        "segments", "shuffle from another lane", threads, "require_lanes", lambda *_: None),
    "zeros from outside are data": (
        "softmax", "drop a mask", padding, "mark_reduce", lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_in_the_sanitizer_is_noticed(hole, monkeypatch):
    name, operator, where, what, instead = HOLES[hole]
    subject = SUBJECTS[name]
    made = [m for m in mutants(subject.program) if m.operator == operator]

    def found() -> int:
        with np.errstate(all="ignore"):
            said = [accuse(subject, m.program) for m in made]
        return sum(bool(text or kinds) for text, kinds in said)

    before = found()
    monkeypatch.setattr(where, what, instead)
    assert found() < before
