"""Random formulas: a short run, and bugs that it finds. The long one:
`python -m devtools.fuzz.formulas`."""

from __future__ import annotations

import pytest

from devtools.fuzz.formulas import hunt, make
from tilewright.formula import masks, merge, text


@pytest.mark.parametrize("target, count", [("cpu", 50), ("threads", 10)])
def test_a_short_run_finds_nothing(target, count):
    report = hunt(count, 0, target, seconds=4)
    assert not report.findings, str(report.findings[0])
    assert report.kinds["ok"] >= 1, report


def test_a_seed_is_a_formula():
    assert make(7).text == make(7).text != make(8).text


# what a bug replaces, by what
BUGS = {
    "all of a dimension is read for a part of it": (
        text.Writer,
        "_plain_index",
        lambda self, index, _, was=text.Writer._plain_index: was(
            self, index, self.kernel.extents.get(index, -1)
        ),
    ),
    "dimensions become one that are folded apart": (merge, "_only_together", lambda *_: True),
    "a loop ends too early": (
        masks,
        "stop",
        lambda var: masks.first(var),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    owner, attribute, wrong = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    report = hunt(200, 0, "interp", seconds=30)
    assert report.findings, report.kinds
    assert "def formula(" in str(report.findings[0])
