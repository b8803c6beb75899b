"""`tilewright check`: what it finds, with which inputs, and how it says so."""

import re

import pytest

import tilewright as tw
import tilewright.language as T
from tests.commands import tilewright
from tilewright.ir.dtype import DTYPES
from tilewright.tools import check as tool
from tilewright.tools import compare
from tilewright.tools.collect import collect_all
from tilewright.tools.inputs import arguments, sizes


def report(prim, chosen=None, **plan):
    end = tool.time.monotonic() + 60
    return tool.check_program(prim.program, chosen or {}, tool.Plan(**plan), end, tool.Progress())


BAD = """
import tilewright as tw
import tilewright.language as T

m = T.dynamic("m")

@T.prim_func
def racy(X: T.Tensor((m,), "float32"), Y: T.Tensor((m,), "float32")):
    with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
        t = T.get_thread_binding(0)
        tile = T.alloc_shared((64,), "float32")
        tile[t] = X[bx * 64 + t]
        Y[bx * 64 + t] = tile[63 - t]

@T.prim_func
def fine(X: T.Tensor((m,), "float32")):
    with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
        for i in T.Parallel(64):
            X[bx * 64 + i] = X[bx * 64 + i] * 2

@tw.jit
def factory(M, N, block=4):
    @T.prim_func
    def inner(X: T.Tensor((M, N), "float32")):
        with T.Kernel(M, threads=32) as b:
            for j in T.Parallel(N):
                X[b, j] = X[b, j] * 2
    return inner
"""


@pytest.fixture
def bad(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    return file


# ── inputs ───────────────────────────────────────────────────────────────────────────────────


def test_sizes_stay_within_their_contracts():
    m = T.dynamic("m", min=8, max=100, multiple_of=8)
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
            A[bx, 0] = 1

    found = sizes(main.program, {})
    ms, ns = {c["m"] for c in found}, {c["n"] for c in found}
    assert ms <= set(range(8, 97, 8)) and {8, 32, 64} <= ms and 40 in ms
    assert {0, 1, 32, 33, 64} <= ns
    assert any(c["m"] == 8 and c["n"] > 32 for c in found)
    assert {c["n"] for c in sizes(main.program, {"n": 5})} == {5}
    assert sizes(tw.parse_ir("program p { kernel k grid b in 1 threads t in 32 { } }"), {}) == [{}]


@pytest.mark.parametrize("kind", sorted(DTYPES))
def test_arrays_of_every_type(kind):
    if kind == "barrier":
        pytest.skip("not of tensors")

    @T.prim_func
    def main(A: T.Tensor((4, 8), kind), s: T.float32, n: T.int32):
        with T.Kernel(1, threads=32):
            T.sync_threads()

    for data in ("integers", "floats"):
        got = arguments(main.program, {}, data, 0, {"n": 9})
        assert got["A"].shape == (4, 8) and got["A"].dtype == DTYPES[kind].numpy
        assert got["n"] == 9 and got["s"] > 0


def test_strided_inputs():
    @T.prim_func
    def main(A: T.StridedTensor((2, 3), (8, 2), "int32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(2, 3):
                A[i, j] = A[i, j] + 1

    assert not report(main).findings


# ── findings ─────────────────────────────────────────────────────────────────────────────────


def test_blocks_in_another_order():
    @T.prim_func
    def main(A: T.Tensor((4,), "int32"), B: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as bx:
            B[bx] = A[0]
            A[0] = bx

    kinds = {str(f).split(": ")[1] for f in report(main).findings.values()}
    assert "block-race" in kinds


def test_a_target_that_differs(monkeypatch):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                A[i] = A[i] + 1

    assert not report(main).findings
    run = compare.run_kernel

    def wrong(kernel, given, program):
        found = run(kernel, given, program)
        found["A"][7] += 1
        return found

    monkeypatch.setattr(compare, "run_kernel", wrong)
    (finding,) = report(main).findings.values()
    assert "mismatch on cpu" in str(finding) and "1 of 64 differ, first at (7,)" in str(finding)


def test_thread_code_is_a_target():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 64), "float16")
            T.copy(A, s)
            for i, j in T.Parallel(64, 64):
                B[i, j] = s[j, i]

    found = report(main, targets=("threads", "cpu"), seeds=1)
    assert not found.findings and found.compared == ["threads", "cpu"]


def test_values_that_matter_are_told():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((8,), "int32")
            T.copy(A, s)
            for k in T.serial(4):
                for i in T.Parallel(8):
                    A[i] = s[i * 2 - k] // (n - k)

    (out_of_range, *_) = map(str, report(main, {"n": 3}).findings.values())
    assert "out-of-range" in out_of_range
    assert "in block (0,), iteration (4,): i = 4, k = 0" in out_of_range or "n = 3" in out_of_range


def test_time_is_bounded():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(64, threads=32) as bx:
            for k in T.serial(1000000):
                for j in T.Parallel(64):
                    A[bx, j] = A[bx, j] + 1

    end = tool.time.monotonic() + 1
    found = tool.check_program(main.program, {}, tool.Plan(), end, tool.Progress())
    assert tool.time.monotonic() < end + 5
    assert found.notes == ["the time was over after 0 of 4 inputs"] and not found.findings


# ── the command ──────────────────────────────────────────────────────────────────────────────


def test_findings_are_reported(bad):
    done = tilewright("check", bad, "--seeds", "1")
    assert done.returncode == 1, done.stderr
    assert "racy" in done.stdout and "bad.py:13:" in done.stdout and "race: tile[" in done.stdout
    assert "in block (0,), thread" in done.stdout and "seen with: m=1, integers" in done.stdout
    assert f"fine ({bad}:16): fine" in done.stdout
    assert "not checked: factory: pass --args 'M=…, N=…'" in done.stdout
    assert "2 kernels, 1 finding, 1 not checked" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_one_kernel_that_is_fine(bad):
    done = tilewright("check", bad, "--kernel", "fine", "--args", "m=100", "--target", "cpu")
    assert done.returncode == 0, done.stdout
    assert "fine (4 runs, compared with cpu)" in done.stdout


def test_factories_take_arguments(bad):
    done = tilewright("check", bad, "--kernel", "inner", "--args", "M=3, N=5")
    assert done.returncode == 0, done.stdout + done.stderr
    done = tilewright("check", bad, "--kernel", "inner")
    assert done.returncode == 1
    assert "made no kernel named 'inner'" in done.stderr
    assert "factory: pass --args 'M=…, N=…'" in done.stderr


def test_kernels_that_cannot_be_interpreted(tmp_path):
    file = tmp_path / "foreign.py"
    file.write_text(
        "import tilewright.language as T\n@T.prim_func\n"
        "def main(A: T.Tensor((32,), 'int32')):\n    with T.Kernel(1, threads=32):\n"
        "        t = T.get_thread_binding(0)\n        T.ptx('nop;')\n        A[t] = t\n"
    )
    done = tilewright("check", file)
    assert done.returncode == 1 and "not checked" in done.stdout
    assert "foreign code" in done.stdout and "0 findings, 1 not checked" in done.stdout


def test_direct_kernels(tmp_path):
    file = tmp_path / "direct.py"
    file.write_text(
        "import tilewright as tw\nimport tilewright.language as T\n\n@tw.jit\n"
        "def double(A, by=2):\n    N = T.const('N')\n    A: T.Tensor((N,), 'float32')\n"
        "    B = T.empty((N,), 'float32')\n    with T.Kernel(1, threads=32):\n"
        "        for i in T.Parallel(N):\n            B[i] = A[i] * by\n    return B\n"
    )
    done = tilewright("check", file, "--args", "N=40")
    assert done.returncode == 0, done.stdout + done.stderr
    done = tilewright("check", file)
    assert done.returncode == 1 and "--args" in done.stderr


def test_the_environment_does_not_interfere(bad):
    done = tilewright("check", bad, "--kernel", "fine", TILEWRIGHT_SANITIZE="1")
    assert done.returncode == 0, done.stdout


def test_collected(bad):
    made = collect_all(str(bad), "M=2, N=3")
    assert [f.program.name for f in made.found] == ["racy", "fine", "inner"]
    assert not made.skipped and made.chosen == {"M": 2, "N": 3}
    assert [s.name for s in collect_all(str(bad)).skipped] == ["factory"]


MADE = """
import tilewright as tw
import tilewright.language as T

@tw.jit(out_idx=[-1])
def half(N=64):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = X[i]

    return main

@tw.jit
def added(X):
    X: T.Tensor((4, 8), "float32")
    Y = T.empty((8,), "float32")
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(8):
            T.atomic_add(Y[i], X[bx, i])
    return Y

@tw.jit
def meant(X):
    X: T.Tensor((4,), "float32")
    Y = T.empty((8,), "float32", partial=True)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(4):
            Y[i] = X[i]
    return Y
"""


def test_what_a_call_makes_holds_nothing(tmp_path, capsys):
    file = tmp_path / "made.py"
    file.write_text(MADE)
    got = collect_all(str(file))
    assert {f.name: f.made for f in got.found} == {"half": ("Y",), "added": ("Y",), "meant": ("Y",)}
    status = tool.run_command(got.found, [], {}, tool.Plan(seeds=1))
    said = capsys.readouterr().out
    assert status == 1  # for `added`
    assert "uninitialized: Y[0] is updated atomically, but nothing wrote it" in said
    assert re.search(r"warning: .*made.py:8:\d+: unwritten: Y is an output, and 32 of 64", said)
    assert "half" in said and "the first is Y[32]" in said and said.count("warning:") == 1
