"""Exports as libraries of this process: compiled by a C++ compiler, called by ctypes."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.commands import tilewright
from tilewright.targets.arrays import ArrayView

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs.py"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
OK, CONTRACT, MACHINE, DRIVER = range(4)
TYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "float8_e8m0fnu int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
).split()


class Tensor(ctypes.Structure):
    """tw_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 8), ("strides", ctypes.c_int64 * 8),
    ]  # fmt: skip


def tensor(x: np.ndarray | ArrayView | None) -> Tensor | None:
    if x is None:
        return None
    if isinstance(x, np.ndarray):
        steps = tuple(s // x.itemsize for s in x.strides)
        return tensor_of(x.ctypes.data, x.dtype.name, x.shape, steps)
    return tensor_of(x.address, x.dtype.name, x.shape, x.strides)


def tensor_of(address, dtype, shape, strides) -> Tensor:
    found = Tensor(address, TYPES.index(dtype), len(shape))
    found.shape[: len(shape)] = shape
    found.strides[: len(shape)] = strides
    return found


def write_export(folder: Path, *words: str) -> Path:
    done = tilewright("export", PROGRAMS, *words, "-o", folder)
    assert done.returncode == 0, done.stderr
    return folder


_NUMBERS = count()  # a library that is loaded again would be the first one


class Library:
    """An export, compiled with `more` options and files."""

    def __init__(self, folder: Path, *more: str) -> None:
        name = json.loads((folder / "manifest.json").read_text())["name"]
        library = folder.parent / f"{folder.name}{next(_NUMBERS)}.so"
        files = [*folder.glob("*.cpp"), *folder.glob("*.o")]
        command = [COMPILER, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
                   "-shared", "-fPIC", *more, *map(str, files), "-o", str(library), "-lm",
                   "-lpthread"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self.name, self.code = name, ctypes.CDLL(str(library))
        getattr(self.code, f"{name}_message").restype = ctypes.c_char_p

    def __call__(self, kernel: str, *arguments, stream: int = 0) -> int:
        """Arrays, views, None, integers (as int64) and floats (as float32)."""
        given = []
        for x in arguments:
            if isinstance(x, (np.ndarray, ArrayView, Tensor)) or x is None:
                held = x if isinstance(x, Tensor) else tensor(x)
                given.append(None if held is None else ctypes.byref(held))
            else:
                given.append(ctypes.c_float(x) if isinstance(x, float) else ctypes.c_int64(x))
        return getattr(self.code, f"{self.name}_{kernel}")(*given, ctypes.c_void_p(stream))

    @property
    def message(self) -> str:
        return getattr(self.code, f"{self.name}_message")().decode()
