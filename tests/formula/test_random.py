"""Random formulas: a short run, and bugs that it finds. The long one:
`python -m devtools.fuzz.formulas`."""

from __future__ import annotations

import pytest

from devtools.fuzz.formulas import DYNAMIC, hunt, judge, make
from tilewright.formula import masks, merge
from tilewright.formula.tiles import text


@pytest.mark.parametrize("target, count", [
    ("cpu", 50), ("threads", 10), ("dynamic", 10), ("cpu plans", 20),
])  # fmt: skip
def test_a_short_run_finds_nothing(target, count):
    report = hunt(count, 0, target, seconds=4)
    assert not report.findings, str(report.findings[0])
    assert report.kinds["ok"] >= 1, report


def test_a_softmax_of_which_only_rows_are_left():
    """Windows of one query, as long as calls say, leave no exponent beside the row's."""
    kind, reason, finding = judge(make(1019), DYNAMIC)
    assert kind == "ok", (reason, finding)


def test_a_seed_is_a_formula():
    assert make(7).text == make(7).text != make(8).text


def _all_of_it(self, index, _, was=text.Writer._plain_index):
    return was(self, index, self.kernel.extents.get(index, -1))


# what a bug replaces, by what, and where formulas begin to show it as what
BUGS = {
    "all of a dimension is read for a part of it": (
        (text.Writer, "_plain_index", _all_of_it), 284, "crash",
    ),
    "dimensions become one that are used apart": (
        (merge, "_only_together", lambda *_: True), 0, "crash",
    ),
    "a loop ends too early": ((masks, "stop", masks.first), 580, "mismatch"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    bug, seed, kind = BUGS[name]
    monkeypatch.setattr(*bug)
    report = hunt(10, seed, "interp", seconds=20)
    assert report.findings and report.findings[0].kind == kind, report.kinds
    assert "def formula(" in str(report.findings[0])
