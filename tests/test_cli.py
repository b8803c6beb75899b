"""The command line, the examples and the demo, as a person runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.ir.text import parse_program

ROOT = Path(__file__).parent.parent


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


def test_ir_after_a_pass():
    done = run("-m", "tilewright", "ir", "examples/matmul.py", "--stage", "fuse_maps")
    assert done.returncode == 0, done.stderr
    parse_program(done.stdout)


def test_ir_of_a_factory_with_arguments():
    file = "zoo/softmax/softmax.py"
    done = run("-m", "tilewright", "ir", file, "--args", "M=8, N=64")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("program main") == 3


def test_unknown_stage_is_named():
    done = run("-m", "tilewright", "ir", "examples/matmul.py", "--stage", "nowhere")
    assert done.returncode != 0 and "fuse_maps" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_shows_the_place(tmp_path):
    bad = tmp_path / "bad.tw"
    bad.write_text("program p {\n  kernel k grid b in 1 threads t in 32 {\n    brake\n  }\n}\n")
    done = run("-m", "tilewright", "verify", str(bad))
    assert done.returncode == 1
    assert "bad.tw:3:5" in done.stderr and "break" in done.stderr


def test_dump(tmp_path):
    done = run("examples/matmul.py", TILEWRIGHT_DUMP=str(tmp_path))
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.rglob("*.tw"))
    assert len(files) > 3
    for file in files:
        parse_program(file.read_text(), str(file))


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
