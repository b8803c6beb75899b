"""The command line, the examples and the demo, as a person runs them."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.commands import ROOT, tilewright
from tilewright.ir.text import parse_program
from tilewright.tools.cli import main


def run(*command, **env):
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"} | env,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_ir_of_a_file_parses_back():
    done = run("-m", "tilewright", "ir", "examples/matmul.py", "--stage", "tile")
    assert done.returncode == 0, done.stderr
    program = parse_program(done.stdout)
    assert program.name == "matmul_relu_kernel"


def test_ir_graph():
    done = run("-m", "tilewright", "ir", "examples/matmul.py", "--graph")
    assert done.returncode == 0, done.stderr
    assert "2 -> 0 (next iteration) A_shared: write after read" in done.stdout


def test_ir_after_a_pass():
    done = tilewright("ir", "examples/matmul.py", "--stage", "fuse_maps")
    assert done.returncode == 0, done.stderr
    parse_program(done.stdout)


def test_ir_of_a_factory_with_arguments():
    file = "zoo/softmax/softmax.py"
    done = tilewright("ir", file, "--args", "M=8, N=64")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("program main") == 3


FORMULAS = """
import tilewright as tw
import tilewright.math as tm


@tw.math
def soft(x):
    return tm.softmax(x, axis=-1)


@tw.math
def product(x, y):
    return x @ y
"""


@pytest.fixture
def on_formulas(tmp_path):
    """A command on a file of formulas that nobody has called, in this process."""
    path = tmp_path / "formulas.py"
    path.write_text(FORMULAS)
    return lambda *words: CliRunner().invoke(main, [words[0], str(path), *words[1:]])


def test_arrays_by_type_and_shape(on_formulas):
    soft = ("--kernel", "soft", "--args", 'x="float32[3, 5]"')
    assert "sum{j2 < 5}" in on_formulas("ir", *soft, "--stage", "math").output
    parse_program(on_formulas("ir", *soft).output)
    done = on_formulas("check", *soft, "--target", "cpu")
    assert done.exit_code == 0 and "soft" in done.output, done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sizes", 'x="floot32[3]"'), "did you mean 'float32'?"),
        (("--sizes", "x=3"), "soft was given no array"),
        ((), "soft: call it in the file, or pass --args 'x=…' with arrays"),
    ],
)
def test_arrays_that_are_none(on_formulas, words, said):
    done = on_formulas("ir", "--kernel", "soft", "--stage", "math", *words)
    assert done.exit_code == 1 and said in done.output
    assert "click" not in done.output  # nor any other place that is not the user's


def test_a_place_in_a_formula_of_a_command(on_formulas):
    given = 'x="float32[3, 5]", y="float32[6, 7]"'
    done = on_formulas("explain", "--kernel", "product", "--args", given)
    assert done.exit_code == 1 and "formulas.py:13:12: matmul of shapes" in done.output


def test_unknown_stage_is_named():
    done = tilewright("ir", "examples/matmul.py", "--stage", "nowhere")
    assert done.returncode != 0 and "fuse_maps" in done.stderr
    assert "Traceback" not in done.stderr


def test_stages_are_listed():
    done = tilewright("ir", "examples/matmul.py", "--stages", "--target", "cuda")
    assert done.returncode == 0, done.stderr
    words = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert words[0] == "tile" and words[-1] == "lower_threads" and "pipeline_loops" in words
    assert "no change" in done.stdout and "lines" in done.stdout


def test_what_passes_changed():
    file = "examples/matmul.py"
    done = tilewright("ir", file, "--diff", "tile", "expand_copies", "--target", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--- tile\n+++ expand_copies\n@@") and "\n+" in done.stdout
    done = tilewright("ir", file, "--diff", "tile", "tile")
    assert done.stdout == "tile and tile are the same\n"
    done = tilewright("ir", file, "--changed", "--target", "cpu")
    assert "+++ fuse_maps" in done.stdout and "# nothing changed in: " in done.stdout
    done = tilewright("ir", file, "--changed", "--stage", "tile")
    assert done.returncode == 2 and "choose one of" in done.stderr


def test_a_close_stage_is_suggested():
    done = tilewright("ir", "examples/matmul.py", "--stage", "fuse_map")
    assert done.returncode == 1 and "did you mean 'fuse_maps'?" in done.stderr
    assert "there are: tile, " in done.stderr and "Traceback" not in done.stderr


# what a pass of the CUDA target refuses
REFUSED = """
import tilewright.language as T

@T.prim_func
def main(A: T.StridedTensor((8, 8), (16, 1), "int4"), B: T.Tensor((8, 8), "int32")):
    with T.Kernel(1, threads=64):
        T.copy(A, B)
"""


def test_stages_before_a_failure(tmp_path):
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    done = tilewright("ir", str(file), "--stages", "--target", "cuda")
    assert done.returncode == 1 and "reduce_by_atomics" in done.stdout
    assert "pack_elements" not in done.stdout and "A has strides" in done.stderr
    done = tilewright("ir", str(file), "--stage", "lower_threads", "--target", "cuda")
    assert done.returncode == 1 and "then a pass failed: " in done.stderr


def test_verify_shows_the_place(tmp_path):
    bad = tmp_path / "bad.tw"
    bad.write_text("program p {\n  kernel k grid b in 1 threads t in 32 {\n    brake\n  }\n}\n")
    done = tilewright("verify", str(bad))
    assert done.returncode == 1
    assert "bad.tw:3:5" in done.stderr and "break" in done.stderr


COMPILE = "import runpy, tilewright as tw; tw.compile(runpy.run_path({!r})[{!r}], target={!r})"


@pytest.mark.parametrize(
    "target, last", [("cpu", "source.ll"), ("cuda", "source.cu"), ("interp", "tile.tw")]
)
def test_dump(tmp_path, target, last):
    code = COMPILE.format("examples/debugging.py", "turned", target)
    done = run("-c", code, TILEWRIGHT_DUMP=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"turned.{target}")
    names = sorted(file.name for file in folder.iterdir())
    assert [int(name[:2]) for name in names] == [*range(len(names))]
    assert names[-1].endswith(f"_{last}")
    for file in folder.glob("*.tw"):
        parse_program(file.read_text(), str(file))


def test_dump_of_a_failure(tmp_path):
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    done = run("-c", COMPILE.format(str(file), "main", "cuda"), TILEWRIGHT_DUMP=str(tmp_path / "x"))
    assert done.returncode == 1
    (folder,) = (tmp_path / "x").iterdir()
    *before, last = sorted(f.name for f in folder.iterdir())
    assert before[0] == "00_input.tw" and before[-1].endswith("_reduce_by_atomics.tw")
    assert last.endswith("_pack_elements.error.txt")
    assert "A has strides" in (folder / last).read_text()


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_reference_kernel(target):
    done = run("examples/matmul.py", TILEWRIGHT_TARGET=target)
    assert done.returncode == 0, done.stderr
    assert f"on {target}" in done.stdout


def test_reference_kernel_under_the_sanitizer():
    done = run("examples/matmul.py", TILEWRIGHT_SANITIZE="1")
    assert done.returncode == 0, done.stderr
    assert "interp -sanitize" in done.stdout


def test_demo():
    done = run("-m", "zoo.demo")
    assert done.returncode == 0, done.stdout + done.stderr
    for kernel in ("GEMM + ReLU", "softmax", "flash attention", "RMSNorm + SiLU"):
        assert kernel in done.stdout


RACES = """
import os, time
import numpy as np
from tilewright.profiler import Race

def races(n=64):
    a = np.ones((n, n))

    def product():
        return {"matmul": lambda: a @ a, "einsum": lambda: np.einsum("ij,jk->ik", a, a)}

    check = lambda: {"ok": True, "error": 0.0, "bound": 1e-6}
    yield Race(f"product {n}", product, check, work=2 * n**3, about={"shape": [n, n, n]})
    yield Race("hangs", {"sleeper": lambda: time.sleep(60)})
    yield Race("crashes", {"it": lambda: os._exit(3)})
    yield Race("raises", {"it": lambda: 1 / 0})
    wrong = lambda: {"contender": "it", "ok": False, "why": "all wrong"}
    yield Race("wrong", {"it": lambda: None, "other": a.copy}, wrong, work=a.nbytes, unit="B")
"""


def bench(tmp_path, *more):
    file, out = tmp_path / "my_races.py", tmp_path / "out.json"
    file.write_text(RACES)
    options = ("--rounds", "10", "--burst-ms", "0.1", "--out", str(out), "--args", "n=32")
    done = run("-m", "tilewright", "bench", str(file), *options, *more)
    return done, json.loads(out.read_text()) if out.exists() else None


def test_bench(tmp_path):
    done, report = bench(tmp_path, "--only", "product*")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "einsum" in done.stdout and "FLOP/s" in done.stdout
    (race,) = report["races"]
    assert race["race"] == "product 32" and race["shape"] == [32, 32, 32]
    assert race["checks"] == [{"ok": True, "error": 0.0, "bound": 1e-6}]
    for one in race["contenders"].values():
        assert len(one["times_ms"]) == 10 and one["ms"] > 0 and one["spread"] >= 0
        assert one["tflops"] == pytest.approx(2 * 32**3 / one["ms"] / 1e9)
    assert report["command"].startswith("tilewright bench my_races.py --rounds 10")
    assert str(tmp_path) not in json.dumps(report)
    assert {"gpu", "driver", "cuda", "clocks", "settings"} <= set(report)
    assert {"python", "numpy", "tilewright"} <= set(report["versions"])


def test_bench_outlives_bad_races(tmp_path):
    done, report = bench(tmp_path, "--timeout", "4")
    assert done.returncode == 1
    found = {race["race"]: race for race in report["races"]}
    assert list(found) == ["product 32", "hangs", "crashes", "raises", "wrong"]
    assert found["hangs"]["failed"] == "killed after 4 s"
    assert found["crashes"]["failed"].endswith("exit code 3")
    assert found["raises"]["failed"].startswith("ZeroDivisionError")
    assert list(found["wrong"]["contenders"]) == ["other"] and not found["wrong"]["ok"]


def test_bench_of_a_file_without_races(tmp_path):
    done = run("-m", "tilewright", "bench", "examples/matmul.py")
    assert done.returncode == 1 and "defines no races" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*_scheduled.py")))
def test_benchmarks_have_the_common_options(file):
    done = run(str(file), "--help")
    assert done.returncode == 0, done.stderr
    for option in ("--out", "--rounds", "--timeout", "--shapes", "--force", "--quick"):
        assert option in done.stdout
