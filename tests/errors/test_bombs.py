"""Enormous programs are refused at once, and limits can be raised."""

from __future__ import annotations

import ast
import fnmatch
import re
from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest

import tilewright as tw
import tilewright.language as T
from tests.errors import bombs
from tests.errors.case import CASES, Case
from tests.errors.test_corpus import failure
from tilewright.lang import meanings
from tilewright.lang.meanings import MEANINGS
from tilewright.runtime import backends
from tilewright.support import limits
from tilewright.support.errors import Loc

BOMBS = [case for case in CASES if case.run.__module__ == bombs.__name__]


@pytest.mark.parametrize("case", BOMBS, ids=lambda case: case.name)
def test_refused_at_once(case: Case):
    for _ in range(2):  # at the first time a target may be imported
        start = process_time()
        error = failure(case)
        taken = process_time() - start
        if taken < 1:
            break
    assert taken < 1
    assert error.diagnostic.code in ("too-large", "registers"), error


def doubled(times: int):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            x = A[0]
            for _ in (0,) * times:
                x = x + x
            A[1] = x

    return main


@pytest.mark.parametrize("target", ["interp", "cpu", "cuda"])
def test_values_that_grow_are_named(target):
    """x = x + x, 64 times, is 64 additions and not 2**64."""
    start = process_time()
    tw.compile(doubled(64), target=target)
    assert process_time() - start < 8  # the targets are imported, too


def unrolled(count: int):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in tuple(range(count)):
                A[i % 8] = i

    return main


def test_limits_can_be_raised(monkeypatch):
    count = 101
    monkeypatch.setattr(limits, "STEPS", replace(limits.STEPS, usual=200))
    with pytest.raises(tw.CompileError, match="is too large"):
        unrolled(count)
    monkeypatch.setenv("TILEWRIGHT_LIMITS", "2")
    assert unrolled(count)
    monkeypatch.setenv("TILEWRIGHT_LIMITS", "much")
    with pytest.raises(tw.CompileError, match="TILEWRIGHT_LIMITS is not a number"):
        unrolled(count)


def test_every_limit_has_a_reason():
    found = [limit for limit in vars(limits).values() if isinstance(limit, limits.Limit)]
    assert len(found) > 8
    assert all(limit.reason and limit.what for limit in found)


def test_what_is_told_instead_exists():
    """Words that errors name are words; `T.alloc_*` is a family of them."""
    texts = [*MEANINGS.values(), *meanings._ELSEWHERE.values()]
    texts += meanings._FIXES.values()
    named = {word for text in texts for word in re.findall(r"\bT\.(\w+\*?)", text)}
    assert named and all(fnmatch.filter(dir(T), word) for word in named)


def _raised(file: Path) -> list[tuple[int, str]]:
    """Errors without a fix, by line."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CompileError":
            named = {keyword.arg for keyword in node.keywords}
            if not named & {"fix", None}:
                found.append((node.lineno, ast.unparse(node)[:80]))
    return found


def test_every_error_of_the_language_says_a_fix():
    folder = Path(meanings.__file__).parent
    missing = {file.name: _raised(file) for file in folder.glob("*.py") if _raised(file)}
    assert missing == {}


@pytest.mark.parametrize("failure", [RecursionError(), MemoryError("16 TiB")])
def test_what_a_target_runs_out_of(monkeypatch, failure):
    def run_out(*_):
        raise failure

    monkeypatch.setitem(backends.BACKENDS, "interp", run_out)
    with pytest.raises(tw.CompileError, match="too large to compile for interp") as caught:
        tw.compile(doubled(1), target="interp")
    assert caught.value.loc.text == "T.Kernel(1)"


def test_refusals_of_targets_say_what_to_do(monkeypatch):
    def refuse(*_):
        raise tw.CompileError("not lowered", loc=Loc(__file__, 1))

    monkeypatch.setitem(backends.BACKENDS, "interp", refuse)
    with pytest.raises(tw.CompileError, match="not lowered") as caught:
        tw.compile(doubled(1), target="interp")
    assert "please report the kernel" in caught.value.diagnostic.fix
