"""The drawings of speeds are those of the results files, and show nothing else."""

from __future__ import annotations

import json
import re
import runpy
import sys
from xml.etree import ElementTree

import pytest

from tests.commands import ROOT

NAMES = ("speed.svg", "roofline.svg")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plots():
    before = list(sys.path)
    yield runpy.run_path(str(ROOT / "benchmarks" / "plots.py"))
    sys.path[:] = before


@pytest.fixture(scope="module")
def measured():
    """Every speed in the results files, as (race, how the drawings write it)."""
    found = set()
    for path in (ROOT / "benchmarks" / "results").glob("*_h200.json"):
        told = json.loads(path.read_text())
        for race in told.get("races", ()) if isinstance(told, dict) else ():
            for about in race.get("contenders", {}).values():
                if "tflops" in about:
                    found.add((race["race"], f"{about['tflops']:.0f}"))
                if "terabytes_per_second" in about:
                    found.add((race["race"], f"{about['terabytes_per_second']:.2f}"))
    return found


def drawn(name):
    return ElementTree.fromstring((ROOT / "docs" / name).read_text(encoding="utf-8"))


def test_drawings_are_those_of_the_files(plots):
    made = {path.name: make() for path, make in plots["DRAWINGS"].items()}
    assert set(made) == set(NAMES)
    for name, text in made.items():
        kept = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert kept == text, "run: python benchmarks/plots.py"
        assert len(kept) <= 60_000


def test_every_bar_was_measured(plots, measured):
    numbers = [
        t.text for t in drawn("speed.svg").iter(f"{SVG}text") if "n" in t.get("class").split()
    ]
    shown = {label for name in ("COMPUTE", "MEMORY") for label in plots[name]}
    races = {row.race for row in plots["tables"].ROWS if row.label in shown}
    assert len(races) == len(shown) == 12 and len(numbers) > 40
    assert set(numbers) <= {said for race, said in measured if race in races}
    # and a bar is as long as its number says
    bars = [r for r in drawn("speed.svg").iter(f"{SVG}rect") if r.get("class") is None]
    assert len(bars) == len(numbers)
    for most, unit in ((plots["PEAK_TFLOPS"], ""), (4.5, ".")):
        for bar, said in zip(bars, numbers, strict=True):
            if ("." in said) == bool(unit):
                length = float(said) / most * plots["LONG"]
                assert float(bar.get("width")) == pytest.approx(length, abs=0.5)


def test_every_point_was_measured(plots, measured):
    points = [
        t.text for p in drawn("roofline.svg").iter(f"{SVG}path") for t in p.iter(f"{SVG}title")
    ]
    assert len(points) > 70
    for told in points:
        race, speed, intensity = re.fullmatch(
            r"(.*): (\d+) TFLOP/s, ([\d.]+) operations a byte", told
        ).groups()
        assert (race, speed) in measured
        assert plots["LOW"][0] < float(intensity) < plots["HIGH"][0]
        assert float(speed) < plots["PEAK_TFLOPS"]


def test_limits_are_the_pages(plots):
    """`docs/measuring.md` says them in words."""
    page = (ROOT / "docs" / "measuring.md").read_text()
    said = f"{plots['PEAK_TFLOPS']:.0f} TFLOP/s and {plots['PEAK_TERABYTES']:.1f} TB/s"
    assert said in page


def test_bytes_of_races(plots):
    races = ("gemm 2x3x5", "attention 1x2x3 head 4 causal", "mla 1x1x1")
    assert [plots["bytes_of"](race) for race in races] == [62, 192, 3328]
