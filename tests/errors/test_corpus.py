"""Every wrong program gets the error it deserves, at the place it deserves."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path

import pytest

import tilewright
from tests.errors import (
    bombs,
    control,
    declarations,
    launching,
    parts,
    porting,
    sanitizing,
    targets,
    threads,
    tiles,
    values,
)
from tests.errors.case import CASES, Case
from tilewright import TilewrightError
from tilewright.support.errors import Loc

PACKAGE = str(Path(tilewright.__file__).parent) + os.sep
MODULES = (
    tiles, control, threads, declarations, launching, sanitizing, porting, targets, bombs,
    values, parts,
)  # fmt: skip
# before 3.11 Python keeps lines only
HAS_COLUMNS = sys.version_info >= (3, 11)


def failure(case: Case) -> TilewrightError:
    try:
        case.run()
    except TilewrightError as error:
        return error
    raise AssertionError(f"{case.name} went through")


@cache
def known(case: Case) -> TilewrightError:
    """The same, made once; the frames that it came from are not kept."""
    error = failure(case)
    error.__context__ = None
    return error.with_traceback(None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_error(case: Case):
    error = known(case)
    text = str(error)
    assert isinstance(error, case.error), text
    for word in case.words:
        assert word in text, f"{word!r} is missing from:\n{text}"

    line, column, width = case.mark()
    assert error.loc is not None, text
    assert error.loc.file == case.run.__code__.co_filename
    assert error.loc.line == line, text
    said, source, carets = text.split("\n")[:3]
    assert said.startswith(f"{error.loc.file}:{line}:")
    written = linecache.getline(error.loc.file, line).rstrip("\n")
    assert source == f"{line:>5} | {written}"
    if case.iteration and HAS_COLUMNS:
        assert column <= error.loc.column < column + width, text
    elif HAS_COLUMNS:
        assert carets == " " * (len("12345 | ") + column - 1) + "^" * width, text

    found = error.diagnostic
    assert found.fix, text
    # names of our classes and addresses say nothing to a user
    assert not re.search(r"object at 0x|_tw_|tilewright\.\w+\.\w+", text), text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_traceback_is_the_users(case: Case):
    error = failure(case)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    inside = [file for file in files if file.startswith(PACKAGE)]
    assert len(inside) <= (0 if HAS_COLUMNS else 1), inside


LAUNCHES = [case for case in CASES if case.run.__module__ == launching.__name__]


@pytest.mark.parametrize("case", LAUNCHES, ids=lambda case: case.name)
def test_nothing_runs_with_a_wrong_argument(case: Case, monkeypatch):
    def run(*_):
        raise AssertionError("the kernel ran")

    monkeypatch.setattr("tilewright.runtime.backends.InterpExecutable.__call__", run)
    assert isinstance(failure(case), tilewright.LaunchError)


def test_tabs_and_wide_spans(tmp_path: Path):
    file = tmp_path / "tabs.py"
    file.write_text("if x:\n\ty = wrong(1)\n")
    assert Loc(str(file), 2, 6, 14).excerpt() == (
        "    2 |     y = wrong(1)\n                ^^^^^^^^"
    )
    assert Loc(str(file), 2, 6, 99).excerpt().endswith(" ^^^^^^^^")
    assert Loc(str(file), 9, 1).excerpt() == ""


def test_the_corpus_is_there():
    assert len(CASES) >= 280
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.run.__module__ for case in CASES} == {module.__name__ for module in MODULES}


SCRIPTS = [
    "tiles-copy_shapes",
    "control-misspelt_word",
    "control-misspelt_name",
    "control-if_in_a_plain_helper",
    "control-word_outside_any_kernel_function",
    "declarations-misspelt_dtype_of_a_parameter",
    "declarations-factory_without_return",
    "declarations-forgotten_decorator",
    "declarations-unknown_target",
    "launching-dtype",
    "threads-ptx_on_the_cpu",
    "sanitizing-block_race",
]


def test_scripts(tmp_path: Path):
    """What a user sees who runs the file: their own lines, then the message, and no more."""
    named = {case.name: case for case in CASES}
    running = []
    for name in SCRIPTS:
        file = tmp_path / f"{name.replace('-', '_')}.py"
        file.write_text(named[name].script())
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{PACKAGE}.."}
        running.append(
            subprocess.Popen(
                [sys.executable, str(file)], stderr=subprocess.PIPE, text=True, env=environment
            )
        )
        if len(running) % 2 == 0:
            running[-1].wait(120)
    for name, process in zip(SCRIPTS, running, strict=True):
        _, shown = process.communicate(timeout=120)
        assert process.returncode == 1, f"{name}: {shown}"
        assert shown.count("Traceback (most recent call last)") == 1, shown
        frames = re.findall(r'^  File "(.*)", line', shown, re.MULTILINE)
        assert frames, shown
        assert sum(f.startswith(PACKAGE) for f in frames) <= (0 if HAS_COLUMNS else 1), shown
        last = re.split(r"^tilewright\.support\.errors\.|^tilewright\.", shown, flags=re.M)[-1]
        for word in named[name].words:
            assert word in last, f"{name}: {word!r} is missing from:\n{last}"


def test_everything_on_request(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TRACEBACK", "1")
    error = failure(CASES[0])
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert any(file.startswith(PACKAGE) for file in files)
