"""Errors for editors and other programs: TILEWRIGHT_DIAGNOSTICS=json."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import tilewright
from tests.errors.case import CASES, Case
from tests.errors.test_corpus import HAS_COLUMNS, known
from tilewright import CompileError
from tilewright.support.errors import Edit, Loc, swap, with_argument

ROOT = Path(__file__).parents[2]
FIELDS = {
    "version": int,
    "error": str,
    "code": str,
    "message": str,
    "file": str,
    "line": int,
    "column": int,
    "end_line": int,
    "end_column": int,
    "source": str,
    "expected": str,
    "got": str,
    "fix": str,
    "edits": list,
    "notes": list,
    "related": list,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fields(case: Case):
    error = known(case)
    told = json.loads(error.json())
    assert "\n" not in error.json()
    assert {name: type(value) for name, value in told.items()} == FIELDS
    line, column, width = case.mark()
    assert (told["version"], told["line"], told["end_line"]) == (1, line, line)
    if HAS_COLUMNS and not case.iteration:
        assert (told["column"], told["end_column"]) == (column, column + width)
    assert told["file"] == case.run.__code__.co_filename
    assert told["source"] == Path(told["file"]).read_text().splitlines()[line - 1]
    assert told["error"] in ("CompileError", "LaunchError", "RunError", "SanitizerError")
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", told["code"]), told["code"]
    said = " ".join(str(value) for value in told.values())
    for word in case.words:
        if word not in ("fix:", "expected:", "called from", "line"):
            assert word.removeprefix("fix: ") in said.replace('\\"', '"'), word


def test_codes_are_documented():
    page = (ROOT / "docs" / "errors.md").read_text() + (
        ROOT / "docs" / "interpreter.md"
    ).read_text()
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", page))
    source = [file.read_text() for file in (ROOT / "src").rglob("*.py")]
    used = {code for text in source for code in re.findall(r'\bcode ?= ?"([a-z-]+)"', text)}
    assert used - {"error"} <= told


def test_text_is_json_on_request(monkeypatch):
    error = known(CASES[0])
    assert not str(error).startswith("{")
    monkeypatch.setenv("TILEWRIGHT_DIAGNOSTICS", "json")
    assert json.loads(str(error))["message"] == error.message
    assert error.diagnostic.render().startswith(str(error.loc))


def test_an_error_without_a_place():
    told = json.loads(CompileError("nowhere", fix="none").json())
    assert told["message"] == "nowhere" and told["edits"] == [] and told["related"] == []


def test_calls_are_related_places():
    named = {case.name: case for case in CASES}
    told = json.loads(known(named["control-if_in_a_plain_helper"]).json())
    (caller,) = told["related"]
    assert caller["message"] == "called from" and "relu(A[0])" in caller["source"]


def test_a_script_prints_one_line(tmp_path: Path):
    named = {case.name: case for case in CASES}
    file = tmp_path / "wrong.py"
    file.write_text(named["control-misspelt_word"].script())
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"} | _json(),
        timeout=120,
    )
    assert done.returncode == 1
    told = json.loads(done.stderr)
    assert (told["file"], told["code"]) == (str(file), "unknown-word")
    (edit,) = told["edits"]
    start, end = edit["start"], edit["end"]
    changed = Edit(edit["file"], start["line"], start["column"], end["column"], edit["text"])
    assert "T.alloc_shared((8,)" in changed.apply(file.read_text())


def test_the_command_line_prints_one_line(tmp_path: Path):
    file = tmp_path / "wrong.tw"
    file.write_text("program p { kernel k grid b in 1 threads t in 32 { stor } }")
    done = tilewright("verify", file, **_json())
    assert done.returncode == 1
    assert json.loads(done.stderr)["file"] == str(file)


def _json() -> dict[str, str]:
    return {"TILEWRIGHT_DIAGNOSTICS": "json"}


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("f(blok)", "blok", "block", "f(block)"),
        ("f(blok, blok)", "blok", "block", None),  # which one?
        ("f(bloks)", "blok", "block", None),
        ("a // 2 + b / 3", "/", "//", "a // 2 + b // 3"),
        ("a / 2 + b / 3", "/", "//", None),
    ],
)
def test_swap(text, old, new, result):
    assert swap(old, new)(text) == result


def test_an_argument_goes_into_whole_calls():
    assert with_argument("x=1")("f(a)") == "f(a, x=1)"
    assert with_argument("x=1")("f()") is None
    assert with_argument("x=1")("f(g(a)") is None  # the rest is on the next line


def test_edits_are_whole_words(tmp_path: Path):
    file = tmp_path / "text.py"
    file.write_text('x = f("flaot32", 1)\n')
    loc = Loc(str(file), 1, 5, 20)
    (edit,) = CompileError("m", loc=loc, repair=swap("flaot32", "float32")).diagnostic.edits
    assert edit == Edit(str(file), 1, 8, 15, "float32")
    assert edit.apply(file.read_text()) == 'x = f("float32", 1)\n'
    assert CompileError("m", loc=loc, repair=swap("int", "uint")).diagnostic.edits == ()
