"""Exported kernels on a GPU, from C++."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.export.library import COMPILER, HERE, needs_compiler, write_export
from tilewright.targets.cuda.driver import driver

pytestmark = [pytest.mark.gpu, needs_compiler]
KERNELS = ["product", "open_product", "clustered", "two_steps", "softmax"]
SIZES = ["M=512, N=384, K=256", "N=256", "width=256", "x='float32[40, 24]'"]


def include() -> Path:
    """The driver's header; where no toolkit is installed, that of the tests."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    compiler = shutil.which("nvcc")
    homes += [str(Path(compiler).resolve().parents[1])] if compiler else []
    found = [Path(h) / "include" for h in homes if h and (Path(h) / "include/cuda.h").is_file()]
    return found[0] if found else HERE / "stub"


def libcuda() -> Path:
    """The driver that this process has loaded."""
    mapped = Path("/proc/self/maps").read_text().split()
    return next(Path(word) for word in mapped if "/libcuda.so" in word)


def test_a_program_in_cpp(tmp_path):
    arch = driver().device(0).arch
    words = [w for k in KERNELS for w in ("--kernel", k)]
    words += [w for s in SIZES for w in ("--sizes", s)]
    folder = write_export(tmp_path / "kernels", *words, "--arch", arch)
    made = [COMPILER, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I", include(), "-I",
            folder, HERE / "gpu_main.cpp", *folder.glob("*.cpp"), "-o", tmp_path / "main",
            libcuda(), f"-Wl,-rpath,{libcuda().parent}"]  # fmt: skip
    done = subprocess.run([str(w) for w in made], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=120)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert said.count(": fine") == 8
    assert "host memory: 1 product: A is not in memory that the GPU knows" in said
    assert "shape: 1 product: C has the wrong size in dimension 1: expected 384" in said
