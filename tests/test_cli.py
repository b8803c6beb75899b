"""The command line, the examples and the demo, as a person runs them."""

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
    assert done.stdout.count("program main") == 2


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
