"""Machine code as text, where one of NVIDIA's disassemblers is around."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

from tilewright.support.errors import TilewrightError


@cache
def disassembler() -> str:
    """Path of nvdisasm or cuobjdump: from the Python package, the PATH or a CUDA toolkit."""
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    folders = [f"{p}/nvidia/{part}/bin" for p in packages for part in ("cu13", "cuda_nvdisasm")]
    toolkits = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    folders += [f"{t}/bin" for t in toolkits if t]
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    for tool in ("nvdisasm", "cuobjdump"):
        if found := shutil.which(tool, path=path):
            return found
    raise TilewrightError(
        "showing machine code needs a disassembler, and none was found",
        expected="nvdisasm or cuobjdump: the Python package, on PATH, or under CUDA_HOME/bin",
        fix="pip install 'nvidia-cuda-nvdisasm>=13,<14'",
    )


def disassemble(cubin: bytes, *, lines: bool = False) -> str:
    """The SASS of every kernel in `cubin`; `lines` adds the source position of instructions."""
    tool = disassembler()
    flags = ["--dump-sass"] if Path(tool).stem == "cuobjdump" else ["-c", *["-g"] * lines]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, *flags, file.name], capture_output=True, text=True, timeout=120
        )
    if done.returncode:
        raise TilewrightError(
            f"{Path(tool).name} could not read the code", got=(done.stderr or done.stdout)[:400]
        )
    return done.stdout
