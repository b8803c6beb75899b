"""The tutorial runs and is its pages; puzzles have solutions, and wrong answers a reason."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import pytest

import tests.roads  # noqa: F401  (cuda_threads, cuda_arrays)

ON_GPU = pytest.param("cuda_arrays", marks=pytest.mark.gpu)
EXAMPLES = Path(__file__).parent.parent / "examples"
PAGES = Path(__file__).parent.parent / "docs" / "tutorial"
STEPS = sorted((EXAMPLES / "tutorial").glob("[0-9]*.py"))

sys.path.insert(0, str(EXAMPLES / "puzzles"))
check = runpy.run_path(str(EXAMPLES / "puzzles" / "check.py"))
PUZZLES = check["PUZZLES"]
sys.path.remove(str(EXAMPLES / "puzzles"))


@pytest.mark.parametrize("target", ["", ON_GPU])
@pytest.mark.parametrize("path", STEPS, ids=lambda p: p.stem)
def test_step(path, target, monkeypatch):
    """It checks itself, and prints what it shows; its kernels are short."""
    monkeypatch.setenv("TILEWRIGHT_TARGET", target)  # of `auto`
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(path))
    assert out.getvalue() or target  # a GPU prints past Python's stdout
    text = path.read_text()
    assert "# **Try**" in text
    for line in re.findall(r"^#     (.*)$", text, re.M):  # what it says that is printed
        assert line.strip() in out.getvalue() or target
    for kernel in re.findall(r"^@tw\.jit.*?^    return \w+$", text, re.M | re.S):
        assert len(kernel.strip().splitlines()) <= 48, "longer than a screen"


def test_ten_steps_as_pages():
    made = runpy.run_path(str(EXAMPLES / "tutorial" / "pages.py"))["pages"]()
    assert len(made) == 10
    stale = [path.name for path, text in made.items() if path.read_text() != text]
    assert not stale, "run: python examples/tutorial/pages.py"
    index = (PAGES / "README.md").read_text()
    assert set(PAGES.glob("*.md")) == {*made, PAGES / "README.md"}
    assert all(f"({path.name})" in index for path in made)


# ── puzzles ──────────────────────────────────────────────────────────────────────────────────

HOLE = r"( *)# ── your part ──\n.*?# ── end ──\n"
EMPTY = (
    r"\1# ── your part ──\n\1raise NotImplementedError  # write it here instead\n\1# ── end ──\n"
)


@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda p: p.name)
def test_puzzle(puzzle, capsys):
    solution = puzzle.solution.read_text()
    assert puzzle.file.read_text() == re.sub(HOLE, EMPTY, solution, flags=re.S)
    assert puzzle.hints and re.search(HOLE, solution, re.S)
    assert check["report"](puzzle, puzzle.solution), capsys.readouterr().out
    assert not check["report"](puzzle)
    assert "the hole is still there" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["cuda_threads", ON_GPU])
@pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda p: p.name)
def test_solution_on_cuda(puzzle, target):
    """As thread code, which is interpreted, and on a GPU."""
    make = runpy.run_path(str(puzzle.solution))["puzzle"]
    for sizes in puzzle.sizes:
        check["compare"](puzzle, make(*sizes), sizes, target)


WRONG = [
    (1, "X[n] + 10", "X[n] + 11", ["the first is Y[0]", "expected"]),
    (1, "T.tile(N)", "T.tile(N - 9)", ["Y[247]: nothing wrote it"]),
    (1, "X[n] + 10", "X + 10", ["X is a whole tile", "X[:], or with tile indices"]),
    (2, "A[m, None]", "A[m]", ["the shapes do not broadcast", "(m,) and (n,)"]),
    (3, "total += ", "total = ", ["with sizes (8, 128)"]),
    (3, "n in T.tile(N, size=64)", "n in T.tile(T.each(N))", ["no dimension 1"]),
    (4, "T.atomic_add(out[0], T.sum(A[n] * B[n], dim=0))", "out[0] += T.sum(A[n] * B[n], dim=0)",
     ["block-race"]),
    (6, "T.atomic_add(Y[ids[m], :], X[m, :])", "Y[ids[m], :] += X[m, :]", ["parallel-conflict"]),
    (7, "total * T.exp(top - new)", "total", ["elements of Y are wrong"]),
    (8, " - 8", "", ["elements of C are wrong"]),
    (8, 'T.cast(w, "float16").T', "w.T", ["the sides have different types", "float16 @ float32"]),
    (10, "x[i + k]", "x[i + k + 1]", ["index 132 is outside dimension 0 of x", "fix:"]),
    (11, "            T.clear(c)\n", "", ["uninitialized", "T.clear(c)"]),
    (11, "T.Pipelined(T.ceildiv(K, 32), num_stages=3)", "T.serial(T.ceildiv(K, 32))",
     ["nothing in the kernel is pipelined"]),
    (12, "            T.sync_threads()\n", "", ["race", "T.sync_threads()"]),
]  # fmt: skip


@pytest.mark.parametrize(("number", "old", "new", "told"), WRONG)
def test_wrong_answer(number, old, new, told, tmp_path, capsys):
    puzzle = PUZZLES[number - 1]
    text = puzzle.solution.read_text()
    assert old in text
    answer = tmp_path / "answer.py"
    answer.write_text(text.replace(old, new))
    assert not check["report"](puzzle, answer)
    out = capsys.readouterr().out
    assert all(part in out for part in told), out
