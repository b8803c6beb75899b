"""Running kernels step by step: states, and pdb driven by scripts."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.tools.step import Debugger

ROOT = Path(__file__).parent.parent


@T.macro
def scale(tile: T.FragmentBuffer, by):
    for i, j in T.Parallel(4, 8):
        tile[i, j] = tile[i, j] * by  # scaled


def make(M=8, bm=4):
    @T.prim_func
    def main(A: T.Tensor((M, 8), "float32"), B: T.Tensor((M, 8), "float32")):
        with T.Kernel(T.ceildiv(M, bm), threads=32) as bx:
            row = bx * bm
            s = T.alloc_shared((bm, 8), "float32")  # first
            acc = T.alloc_fragment((bm, 8), "float32")
            n = T.alloc_var("int32", init=0)
            T.copy(A[row, 0], s)  # load
            T.clear(acc)  # clear
            for k in T.serial(2):  # loop
                for i, j in T.Parallel(bm, 8):
                    x = s[i, j] + k
                    acc[i, j] += x  # add
                n = n + 1  # count
            scale(acc, 2.0)  # call
            T.copy(acc, B[row, 0])  # store

    return main


LINES = Path(__file__).read_text().splitlines()


def line_of(mark):
    (found,) = [n for n, text in enumerate(LINES, 1) if text.endswith(f"  # {mark}")]
    return found


def arrays():
    return np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((8, 8), np.float32)


# ── states ───────────────────────────────────────────────────────────────────────────────────


def test_states():
    a, b = arrays()
    seen = [(s.block, s.line, s.source) for s in tw.trace_run(make(), a, b)]
    one = [line for block, line, _ in seen if block == (0,)]
    assert one == [line for block, line, _ in seen if block == (1,)]
    assert one[0] == line_of("first") and one[-1] == line_of("store")
    assert one.count(line_of("add")) == 2 and one.count(line_of("scaled")) == 1
    assert all(text for *_, text in seen)
    np.testing.assert_array_equal(b, (a * 2 + 1) * 2)


def test_names_are_those_of_the_text():
    a, b = arrays()
    for state in tw.trace_run(make(), a, b, block=1):
        assert state.block == (1,) and state.file == __file__
        names = state.names
        assert names["bx"] == 1 and (
            names["row"] == 4 if not state.loc.callers else "row" not in names
        )
        if state.line == line_of("clear"):
            np.testing.assert_array_equal(names["s"], a[4:])
            assert names["n"] == 0 and "k" not in names
        if state.line == line_of("add"):
            assert names["x"].shape == (4, 8) and names["i"].shape == (4, 1)
            np.testing.assert_array_equal(names["x"], a[4:] + names["k"])
        if state.line == line_of("count"):
            assert names["n"] == names["k"]
        if state.line == line_of("scaled"):
            break
    np.testing.assert_array_equal(names["tile"], a[4:] * 2 + 1)  # a macro's own names
    assert names["by"] == 2.0 and names["i"].shape == (4, 1)
    assert state.loc.callers[0].line == line_of("call")
    assert b[:4].any() and not b[4:].any()  # the run ended with the loop over it


def test_states_are_copies_of_their_moment():
    states = tw.trace_run(make(), *arrays())
    first = next(states)
    names = first.names
    next(states)
    with pytest.raises(tw.RunError, match="has gone on"):
        first.names
    assert names["bx"] == 0
    states.close()


def test_errors_come_where_the_next_state_would():
    @T.prim_func
    def bad(X: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), "int32")
            T.copy(X, tile)
            for i in T.Parallel(8):
                X[i] = tile[i + X[i]]

    last = None
    with pytest.raises(tw.SanitizerError, match="out-of-range") as caught:
        for state in tw.trace_run(bad, np.array([0, 1, 0, 0, 0, 0, 9, 0], np.int32)):
            last = (state.line, state.names)
    assert last[0] == caught.value.loc.line
    assert "iteration (6,)" in str(caught.value) and "i = 6" in str(caught.value)


def test_what_is_stepped():
    @tw.jit(target="cpu", out_idx=[-1])
    def twice(N):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(N):
                    B[i] = A[i] * 2

        return main

    @tw.jit(target="cpu")
    def direct(A, by=2):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        B = T.empty((N,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] * by
        return B

    a = np.arange(4, dtype=np.float32)
    quiet = {"stdin": io.StringIO("c\n"), "stdout": io.StringIO()}
    np.testing.assert_array_equal(tw.debug(twice(4), a, **quiet), a * 2)
    quiet = {"stdin": io.StringIO("c\n"), "stdout": io.StringIO()}
    np.testing.assert_array_equal(tw.debug(direct, a, by=3, **quiet), a * 3)
    assert [s.names["by"] for s in tw.trace_run(direct, a, by=3)][-1:] == [3]
    with pytest.raises(tw.CompileError, match="only kernels") as caught:
        tw.debug(twice, a)
    assert "call the factory first" in str(caught.value)
    with pytest.raises(tw.LaunchError, match="wrong dtype"):
        next(tw.trace_run(twice(4), a.astype(np.float64)))


def test_roles_are_named():
    text = """program p {
      param A: float32[64] global
      kernel k grid b in 1 threads t in 64 {
        alloc s: float32[64] shared
        role one warps 0 + 1 { fill s[0:+32] = 1.0 }
        role two warps 1 + 1 { fill s[32:+32] = 2.0 }
        sync block
        copy s -> A
      }
    }"""
    program = tw.parse_ir(text, "p.tw")
    states = list(tw.trace_run(program, np.zeros(64, np.float32)))
    assert {"one", "two"} <= {s.role for s in states}


# ── pdb ──────────────────────────────────────────────────────────────────────────────────────


def session(commands, kernel=None, args=None, **options):
    out = io.StringIO()
    a, b = args or arrays()
    script = io.StringIO("\n".join(commands) + "\n")
    tw.debug(kernel or make(), a, b, stdin=script, stdout=out, **options)
    return out.getvalue(), b


def stops(text):
    """The lines at which a session stood."""
    return [int(n) for n in re.findall(re.escape(f"> {__file__}(") + r"(\d+)\)", text)]


def test_next_and_print():
    text, _ = session(["n"] * 3 + ["p row, bm, A.shape", "n", "p s[0, :3].tolist()", "pp n", "q"])
    first = line_of("first")
    assert stops(text) == [first, first + 1, first + 2, first + 3, first + 4]
    assert "block (0,)" in text and "-> T.copy(A[row, 0], s)  # load" in text
    assert "4, (8, 8))" in text and "[0.0, 1.0, 2.0]" in text


def test_breakpoints_and_continue():
    add = line_of("add")
    text, b = session([f"b {add}", "c", "p k", "c", "p int(k), x.shape", "cl 1", "c"])
    assert stops(text) == [line_of("first"), add, add] and "(1, (4, 8))" in text
    assert "the kernel ran to its end" in text and b.any()


def test_conditions_and_one_block():
    add = line_of("add")
    text, _ = session([f"b {add}, k == 1", "c", "p int(bx), int(k)", "q"], block=1)
    assert stops(text) == [line_of("first"), add] and "(1, 1)" in text
    assert "block (0,)" not in text
    text, _ = session(["p int(k)", "q"], breakpoints=[add])
    assert stops(text) == [add]
    text, _ = session([f"tbreak {add}", "c", "c"])
    assert stops(text) == [line_of("first"), add]


def test_until_and_step_into_macros():
    call = line_of("call")
    text, _ = session([f"until {call}", "w", "p by", "p tile.shape", "u", "p bm", "r", "q"])
    inside = line_of("scaled") - 1
    assert stops(text)[:2] == [line_of("first"), line_of("store")]  # a macro is stepped over
    text, _ = session(
        [f"b {inside}", "c", "w", "p by", "p tile.shape", "s", "p i.shape", "u", "p bm", "r", "q"]
    )
    assert f"({call})main()" in text and f"({inside})macro()" in text  # the call, then the macro
    assert "2.0" in text and "(4, 8)" in text and "(4, 1)" in text
    assert stops(text)[-1] == line_of("store")


def test_values_can_be_changed():
    text, b = session([f"b {line_of('store')}", "c", "!acc[...] = 7", "cl 1", "c"])
    assert (b[:4] == 7).all() and (b[4:] != 7).all()


def test_display_follows_from_stop_to_stop():
    add = line_of("add")
    text, _ = session(
        [f"b {add}", "c", "display int(k)", "display acc[0, 0]", "c", "n", "undisplay", "n", "q"]
    )
    assert "display int(k): 0" in text and "display int(k): 1" in text
    assert text.count("display acc[0, 0]") >= 2


def test_list_where_and_jump():
    text, _ = session(["l", "w", "j 3", "whatis bx", "q"])
    assert "  ->\t" in text and "runs forward only" in text and "numpy.int32" in text
    assert "interp/" not in text  # none of the interpreter's own frames


def test_an_error_stops_at_its_op():
    @T.prim_func
    def bad(A: T.Tensor((8, 8), "float32"), B: T.Tensor((8, 8), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8, 8), "float32")
            for i, j in T.Parallel(8, 8):
                B[i, j] = s[i, j]  # unwritten

    out = io.StringIO()
    with pytest.raises(tw.SanitizerError, match="uninitialized"):
        tw.debug(bad, *arrays(), stdin=io.StringIO("c\np s.shape\nq\n"), stdout=out)
    text = out.getvalue()
    assert "nothing wrote it" in text and "stands at the op that failed" in text
    assert stops(text)[-1] == line_of("unwritten") and "(8, 8)" in text


def test_end_of_input_quits():
    text, b = session([])
    assert not b.any()


def test_a_wrong_breakpoint_is_refused():
    with pytest.raises(tw.CompileError, match="no breakpoint at 99999"):
        tw.debug(make(), *arrays(), breakpoints=[99999], stdin=io.StringIO(""))


def test_debuggers_do_not_share_breakpoints():
    session([f"b {line_of('add')}", "q"])
    text, _ = session(["c"])
    assert stops(text) == [line_of("first")]
    assert isinstance(Debugger(make().program, None), Debugger)


def test_command(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(
        "import tilewright.language as T\n"
        "m = T.dynamic('m')\n"
        "@T.prim_func\n"
        "def main(A: T.Tensor((m,), 'float32')):\n"
        "    with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:\n"
        "        s = T.alloc_shared((32,), 'float32')\n"
        "        T.copy(A[bx * 32], s)\n"
        "        T.copy(s, A[bx * 32])\n"
    )
    command = [sys.executable, "-m", "tilewright", "step", str(file), "--args", "m=40"]
    done = subprocess.run(
        [*command, "--block", "1", "--break", "8"],
        input="p int(bx), s.shape, A.shape\nc\n",
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert "(1, (32,), (40,))" in done.stdout and "kernel.py(8)main()" in done.stdout
