"""The wheel: pure Python, small, complete, and enough to run and to export a kernel."""

from __future__ import annotations

import email
import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest

from tests.commands import ROOT

pytestmark = pytest.mark.slow
MOST = 2 << 20
USE = """
import sys, numpy as np, tilewright as tw, tilewright.language as T
@T.prim_func
def double(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            B[i] = A[i] * 2
if __name__ == "__main__":
    found = tw.compile(double, out_idx=[-1], target="cpu")(np.arange(8, dtype=np.float32))
    assert found.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    print(tw.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    own = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", *own, "-w", folder, ROOT]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the build backend, hatchling, is neither installed nor to be had")
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_size_and_contents(wheel):
    assert wheel.name.endswith("-py3-none-any.whl") and wheel.stat().st_size <= MOST
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(metadata))
    assert {n.split("/")[0].split("-")[0] for n in names} == {"tilewright"}
    package = ROOT / "src" / "tilewright"
    wanted = {
        f"tilewright/{f.relative_to(package).as_posix()}"
        for f in package.rglob("*")
        if f.suffix in (".py", ".h", ".cuh", ".typed") and "__pycache__" not in f.parts
    }
    assert wanted <= set(names)
    assert told["Requires-Python"] == ">=3.10"
    assert {"jax", "torch", "cuda"} <= set(told.get_all("Provides-Extra"))
    needs = [n for n in told.get_all("Requires-Dist") if "extra ==" not in n]
    assert {n.split(">")[0] for n in needs} == {
        "numpy", "ml-dtypes", "llvmlite", "click", "rich", "filelock",
    }  # fmt: skip


def test_an_installed_wheel_runs_a_kernel_and_exports_it(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    file = tmp_path / "use.py"
    file.write_text(USE)
    env = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run([sys.executable, file], cwd=tmp_path, env=env, capture_output=True,
                         text=True)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().startswith(str(site))
    export = [sys.executable, "-m", "tilewright", "export", file, "--target", "cpu", "-o",
              tmp_path / "out"]  # fmt: skip
    done = subprocess.run(export, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len([*(tmp_path / "out").glob("*.o")]) == 1
