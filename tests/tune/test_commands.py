"""`tilewright tune` and `tilewright tuned`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tilewright.choose import measured
from tilewright.tools.cli import main

TEXT = """
import tilewright as tw
import tilewright.language as T


@tw.jit
def double(A):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B = T.empty((N,), "float32")
    for n in T.tile(N):
        B[n] = A[n] * 2
    return B


@tw.math
def third(x):
    return x / 3
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "_here", {})
    (tmp_path / "kernels.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)

    def run(*args):
        found = CliRunner().invoke(main, [*args])
        return found.exit_code, found.output

    return run


def test_tune_export_and_merge(run, tmp_path, monkeypatch):
    asked = ["tune", "kernels.py", "--target", "cpu", "--most", "2", "--workers", "1"]
    code, told = run(*asked, "--sizes", "N=70000", "--sizes", "N=3000")
    assert code == 0 and "double N=70000: n " in told
    run("tuned", "clear")
    code, told = run(*asked, "--sizes", "N=3000", "--export", "table.json")
    assert (
        code == 0
        and "double N=3000: n " in told
        and "× the speed of what was chosen before" in told
    )
    assert "as measured before" in run(*asked, "--sizes", "N=3000")[1]
    code, told = run("tuned")
    assert told.startswith("double(A: float32[3000], B: float32[3000])") and "µs" in told
    table = json.loads((tmp_path / "table.json").read_text())
    assert run("tuned", "clear") == (0, "1 entry removed\n") and run("tuned") == (0, "")
    assert run("tuned", "merge", "table.json") == (0, "table.json: 1 entry taken\n")
    assert run("tuned", "merge", "table.json") == (0, "table.json: 0 entries taken\n")  # no news
    table["entries"][0]["version"] = "0.0.1"
    (tmp_path / "old.json").write_text(json.dumps(table))
    assert "1 of another version of Tilewright are not used" in run("tuned", "merge", "old.json")[1]


def test_a_formula(run):
    asked = ["tune", "kernels.py", "--kernel", "third", "--target", "cpu", "--most", "2"]
    code, told = run(*asked, "--workers", "1", "--sizes", 'x="float32[3000]"')
    assert code == 0 and 'third x="float32[3000]": i ' in told, told
    code, told = run(*asked)
    assert code == 1 and "pass --sizes 'x=…' with arrays" in told


def test_a_file_that_is_no_table(run, tmp_path):
    (tmp_path / "none.json").write_text('{"entries": [{}]}')
    code, told = run("tuned", "merge", "none.json")
    assert code == 1 and "none.json is no table of measured kernels" in told


def test_a_gpu_is_needed(run, monkeypatch):
    monkeypatch.setattr("tilewright.tune.search.gpu_target", lambda: None)
    code, told = run("tune", "kernels.py", "--target", "cuda -arch=sm_90a", "--sizes", "N=8")
    assert code == 1 and "no GPU on this machine" in told and "model's choice" in told


def test_a_kernel_that_is_not_there(run):
    code, told = run("tune", "kernels.py", "--kernel", "triple")
    assert code == 1 and "has no kernel function 'triple'" in told and "double" in told


def test_a_size_that_is_missing(run):
    code, told = run("tune", "kernels.py", "--target", "cpu")
    assert code == 1 and "error: " in told and "N" in told
