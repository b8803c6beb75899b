"""Random kernels over tile values: a short run, and bugs that it finds. The long one:
`python -m devtools.fuzz.tile_values`."""

from __future__ import annotations

import pytest

from devtools.fuzz.tile_values import hunt, make
from tilewright.ir.core import TRUE
from tilewright.lang import carry
from tilewright.lang.axes import Axis
from tilewright.lang.values import Value

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("target, count", [("interp -sanitize", 6), ("cpu", 1)])
def test_a_short_run_finds_nothing(target, count):
    report = hunt(count, 0, target, seconds=4)
    assert not report.findings, str(report.findings[0])
    assert report.kinds["ok"] >= 1, report


def test_a_seed_is_a_program():
    assert make(7).text == make(7).text != make(8).text


# what a bug replaces, by what, and where programs begin to show it as what
BUGS = {
    "padding counts": (Axis, "inside", lambda self, place: TRUE, 5, "mismatch"),
    "values change with what they were made of": (carry, "live", lambda builder: [], 4, "crash"),
    "copies outlive what they show": (
        Value,
        "is_carried",
        property(lambda self: False),
        85,
        "mismatch",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    owner, attribute, wrong, seed, kind = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    report = hunt(20, seed, "interp", seconds=30)
    assert report.findings and report.findings[0].kind == kind, report.kinds
    assert "kernel(" in report.findings[0].program.text
