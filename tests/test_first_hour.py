"""What a person does in the first hour: commands with inputs that are wrong, missing, empty or odd
end with an error in words; what is printed can be read; nothing needs more than the core."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
import tilewright.language as T
from tilewright.targets.cuda import nvrtc
from tilewright.tools.cli import main

ROOT = Path(__file__).parent.parent
KERNEL = """
import tilewright as tw
import tilewright.language as T

@tw.jit
def double(N):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] * 2
    return main
"""
# a file's contents, and more words of the command
MISTAKES = {
    "no such file": (None, ()),
    "a folder": (..., ()),
    "empty": ("", ()),
    "blank": ("\n\n", ()),
    "syntax": ("def f(:\n", ()),
    "no kernels": ("x = 1\n", ()),
    "raises": ("import os\nos.nothing\n", ()),
    "exits": ("import sys\nsys.exit()\n", ()),
    "exits with a word": ("import sys\nsys.exit('no')\n", ()),
    "needs a package": ("import no_such_package\n", ()),
    "not text": (b"\xff\xfe\x00\x01", ()),
    "null bytes": (b"x = 1\0\n", ()),
    "arguments left out": (KERNEL, ()),
    "arguments that are none": (KERNEL, ("--args", "N=")),
    "arguments with an error": (KERNEL, ("--args", "N=1/0")),
    "arguments of another name": (KERNEL, ("--args", "M=8")),
    "arguments of another type": (KERNEL, ("--args", "N='x'")),
    "an unknown kernel": (KERNEL, ("--args", "N=64", "--kernel", "nothing")),
    "an unknown target": (KERNEL, ("--args", "N=64", "--target", "gpu")),
    "an unknown architecture": (KERNEL, ("--args", "N=64", "--target", "cuda -arch=sm_20")),
    "an unknown option": (KERNEL, ("--args", "N=64", "--nothing")),
    "a broken program": ("program p {", ()),
}
COMMANDS = {
    "ir": (".py", ("--args", "--kernel")),
    "ir --stages": (".py", ("--args", "--kernel", "--target")),
    "explain": (".py", ("--args", "--kernel", "--target")),
    "check --time 5": (".py", ("--args", "--kernel", "--target")),
    "step": (".py", ("--args", "--kernel")),
    "bench": (".py", ("--args",)),
    "verify": (".tw", ()),
}
# each takes a process or two
SPAWNED = ("a folder", "empty", "syntax", "raises", "exits", "arguments of another name")
CASES = [
    (command, mistake)
    for command, mistake in product(COMMANDS, MISTAKES)
    if all(
        word in (*COMMANDS[command][1], "--nothing")
        for word in MISTAKES[mistake][1]
        if word.startswith("--")
    )
    and (command != "bench" or mistake in SPAWNED)
]


@pytest.mark.parametrize(("command", "mistake"), CASES)
def test_a_mistake_is_told_in_words(command, mistake, tmp_path, monkeypatch):
    text, more = MISTAKES[mistake]
    path = tmp_path / f"file{COMMANDS[command][0]}"
    if text is ...:
        path.mkdir()
    elif isinstance(text, bytes):
        path.write_bytes(text)
    elif text is not None:
        path.write_text(text)
    if command == "bench":  # whose races run in a process of their own
        told(*spawned(command.split() + [str(path), *more]))
        return
    done = CliRunner().invoke(main, [*command.split(), str(path), *more], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    told(done.exit_code, done.output)


def told(status: int, output: str) -> None:
    assert status != 0, output
    assert "Traceback" not in output and output.strip(), output
    lines = output.strip().splitlines()
    assert len(lines) <= 12, output
    assert any(re.match(r"(error|Error|Usage)|.*(NOT OK|not checked)", line) for line in lines)


def spawned(words):
    env = {"PYTHONPATH": f"{ROOT / 'src'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *words], capture_output=True, text=True, env=env,
        timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [["--nothing"], ["nothing"], ["ir"], ["explain"], ["check"], ["cache", "nothing"], ["bench"],
     ["step"], ["verify"], ["step", __file__, "--block", "x"], ["ir", __file__, "--diff", "a"]],
    ids=" ".join,
)  # fmt: skip
def test_words_that_mean_nothing(words):
    done = CliRunner().invoke(main, words)
    assert done.exit_code != 0 and isinstance(done.exception, SystemExit), done.output
    assert "rror" in done.output or "Usage" in done.output


def test_version():
    done = CliRunner().invoke(main, ["--version"])
    assert done.output == f"tilewright {tw.__version__}\n" and done.exit_code == 0


def test_explain(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(KERNEL)
    words = ["explain", str(path), "--args", "N=64", "--target", "cuda -arch=sm_89"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "sm_89" in done.output and "a block takes: threads 32" in done.output


SLOW = """
import tilewright as tw
import tilewright.language as T

@T.prim_func
def long(A: T.Tensor((4096, 4096), "float32"), B: T.Tensor((4096, 4096), "float32")):
    with T.Kernel(128, threads=128) as bx:
        a, b = T.alloc_shared((1024, 32), "float32"), T.alloc_shared((32, 1024), "float32")
        c = T.alloc_fragment((1024, 1024), "float32")
        T.clear(a), T.clear(b), T.clear(c)
        for k in T.serial(1000000):
            T.gemm(a, b, c)
        T.copy(c, B[0, 0])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs an interval timer")
def test_check_keeps_its_time(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(SLOW)
    begin = time.monotonic()
    done = CliRunner().invoke(main, ["check", str(path), "--time", "2"])
    assert time.monotonic() - begin < 10, done.output
    assert "the time was over" in done.output and done.exit_code == 1


def test_the_time_of_a_check_covers_compilation(tmp_path, monkeypatch):
    from tilewright.tools import check

    def against(*_):
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(check, "against", against)
    path = tmp_path / "file.py"
    path.write_text(KERNEL)
    begin = time.monotonic()
    done = CliRunner().invoke(main, ["check", str(path), "--args", "N=64", "--time", "3"])
    assert time.monotonic() - begin < 20, done.output
    assert "cpu was not compared: the time was over" in done.output


# ── what is printed ──────────────────────────────────────────────────────────────────────────


@T.prim_func
def scale(A: T.Tensor((T.dynamic("m"), 8), "float32"), B: T.Tensor((4,), "float16"), by: T.float32):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(4):
            B[i] = A[i, 0] * by


@tw.jit
def factory(N, block=32):
    return scale


@tw.jit
def written_directly(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 32)) as bx:
        for i in T.Parallel(32):
            Y[bx * 32 + i] = X[bx * 32 + i]
    return Y


def test_kernels_say_what_they_are():
    params = "scale(A: float32[m, 8], B: float16[4], by: float32)"
    assert repr(scale) == f"<prim_func {params}>"
    assert repr(tw.compile(scale, target="cpu")) == f"<kernel {params} for cpu>"
    assert repr(factory) == "<kernel factory factory(N, block=32) for auto>"
    assert repr(written_directly.on("cpu")) == "<kernel function written_directly(X) for cpu>"


STEPS = sorted((ROOT / "examples" / "tutorial").glob("[0-9]*.py"))
WITHOUT = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cuda", "torch", "cupy", "jax", "nvidia"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("step", [STEPS[4], STEPS[6]], ids=lambda s: s.stem)
def test_the_tutorial_needs_the_core_alone(step, tmp_path):
    env = {"PYTHONPATH": f"{ROOT / 'src'}", "PATH": "/usr/bin:/bin"}
    env["TILEWRIGHT_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(step)], capture_output=True, text=True, env=env,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if step.stem.startswith("05"):
        assert "a block takes: threads 256, shared_bytes " in done.stdout
        assert nvrtc.INSTALL in done.stdout


def test_the_demo_says_what_is_good_and_what_comes_next():
    from zoo import demo

    assert "more is better" in demo.BETTER and "examples/tutorial/01_vector_add.py" in demo.NEXT
    for path in re.findall(r"\S+\.(?:py|md)", demo.NEXT):
        assert (ROOT / path).exists()


TWO = """
import tilewright as tw
import tilewright.language as T

@tw.jit
def scale(X, by=2.0):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    for n in T.tile(N):
        Y[n] = X[n] * by
    return Y

@tw.jit
def added(A, B):
    M, n = T.const("M"), T.dynamic("n")
    A: T.Tensor((M, n), "float32")
    B: T.Tensor((M, n), "float32")
    C = T.empty((M, n), "float32")
    for i, j in T.tile(M, n):
        C[i, j] = A[i, j] + B[i, j]
    return C
"""
WRONG = """
@tw.jit
def wrong(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    for n in T.tile(N):
        Y[n] = X[n] @ X[n]
    return Y
"""


def said_of(tmp_path, text, *words):
    path = tmp_path / "file.py"
    path.write_text(text)
    done = CliRunner().invoke(main, [words[0], str(path), *words[1:]])
    return done.exit_code, done.output


def test_each_kernel_takes_its_own_of_the_arguments(tmp_path):
    status, said = said_of(tmp_path, TWO, "check", "--args", "N=8, M=3, n=5", "--seeds", "1")
    assert status == 0 and "2 kernels, 0 findings, 0 not checked" in said
    assert said.count("(2 runs") == 2, said  # of `added` for one size only
    status, said = said_of(tmp_path, TWO, "ir", "--args", "N=8")
    assert status == 0 and "left out: added: nothing determines the size 'M'" in said
    for words, why in {
        ("--args", "N=8, M=3, Q=1"): "no kernel of .*file.py takes 'Q'",
        ("--args", "N=8, M=3", "--kernel", "scal"): "no kernel named 'scal'; it has scale, added$",
        ("--args", "N=8.5", "--kernel", "scale"): "(?s)the size N must be .*integer.*got: *8.5",
        (
            "--args",
            "N='int8[3]'",
            "--kernel",
            "scale",
        ): "(?s)the size N must be .*integer.*got: *array",
    }.items():
        status, said = said_of(tmp_path, TWO, "ir", *words)
        assert status == 1 and re.search(why, said), said


@pytest.mark.parametrize("command", ["ir", "explain", "check"])
def test_a_mistake_in_a_kernel_is_told_at_its_line(command, tmp_path):
    """Not as arguments that are missing."""
    head = "import tilewright as tw\nimport tilewright.language as T\n"
    status, said = said_of(tmp_path, head + WRONG, command, "--args", "N=8")
    assert status == 1 and "file.py:10:16: the left side of @ is no matrix" in said
    assert "need arguments" not in said
    status, said = said_of(tmp_path, TWO + WRONG, command, "--args", "N=8, M=2")
    assert status == 1 and "file.py:30:16: the left side of @ is no matrix" in said
    assert "scale" in said  # the others are shown


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["ir", "--target", "cuda:sm_70"], "unknown target"),
        (["check", "--time", "-1"], "is not in the range"),
        (["tune", "--sizes", "N=8", "--export", "no_such/table.json"], "'no_such' does not exist"),
        (["studio", "--export", "no_such/page.html"], "'no_such' does not exist"),
        (["step", "--kernel", "scale", "--args", "N=8", "--break", "x"], "the line is no number"),
        (["step", "--kernel", "scale", "--args", "N=8", "--break", "99"], "99 does not exist"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_an_option_that_cannot_be_is_refused_first(words, why, tmp_path):
    status, said = said_of(tmp_path, TWO, *words)
    assert status != 0 and why in said and "Traceback" not in said, said


def test_a_step_in_no_block_says_so():
    x, shown = np.ones(8, np.float32), io.StringIO()
    tw.debug(written_directly, x, block=9, stdin=io.StringIO("c\n"), stdout=shown)
    assert shown.getvalue() == "the kernel ran to its end; no op of block 9 ran\n"


def test_a_target_that_nothing_here_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("tilewright.tools.check.gpu_target", lambda: None)
    words = ("check", "--args", "N=8, M=3", "--target", "cuda")
    status, said = said_of(tmp_path, TWO, *words)
    assert status == 1 and "--target threads" in said and "finding" not in said


@pytest.mark.parametrize(
    ("text", "line"), {"x = 1\ndef f(:\n": 2, "import os\nos.nothing\n": 2}.items()
)
def test_a_file_that_fails_is_shown_at_its_line(text, line, tmp_path):
    status, said = said_of(tmp_path, text, "ir")
    source = text.splitlines()[line - 1]
    assert status == 1 and f"file.py:{line}:" in said and f"{line} | {source}" in said, said
