"""Code is the same in every process: nothing that it is made of is in the order of hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import tilewright as tw
import tilewright.language as T
from tilewright.ir.target import Target
from tilewright.targets.cpu import backend
from tilewright.targets.cpu.emit import emit_module
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.emit import emit_program

ROOT = Path(__file__).resolve().parents[2]


@tw.jit
def windows(A, B, C, D):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B: T.Tensor((M, N), "float32")
    C: T.Tensor((M, N), "float32")
    D: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        rows, found = m.index[:, None], T.zeros((m, n))
        for k in range(3):
            at = n.index + k
            found += A[rows, at] * B[rows, at] + C[rows, at] * D[rows, at]
        Y[m, n] = found
    return Y


@T.prim_func
def ends(A: T.Tensor((100,), "float32"), B: T.Tensor((90,), "float32")):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(64):
            if bx * 30 + i - 3 < 80:
                if bx * 30 + i > 5:
                    B[bx * 30 + i - 7] = A[bx * 30 + i] * 2


def sources() -> list[str]:
    """Made anew, not taken from the disk."""
    x = np.broadcast_to(np.float32(0), (64, 352))
    program = windows.on("cuda -arch=sm_90a").compile(x, x, x, x).program
    cuda = emit_program(lower(program, Target.parse("cuda -arch=sm_90a")).result).text
    cpu = emit_module(backend.lower(ends.program, Target.parse("cpu")).result, "")[0].text()
    return [cuda, cpu]


def test_hashes_do_not_order_code():
    script = "import json; from tests.runtime.test_same_code import *; print(json.dumps(sources()))"
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2", "3")
    ]  # fmt: skip
    said = [json.loads(run.communicate(timeout=200)[0]) for run in runs]
    assert "A_window" in said[0][0] and "llvm.smin" in said[0][1]
    assert said[0] == said[1] == said[2]
