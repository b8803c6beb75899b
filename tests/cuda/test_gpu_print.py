"""What `T.print` prints on a GPU: every line names its block and its place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import torch
import tilewright as tw
import tilewright.language as T


@T.prim_func
def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(2, 2, threads=128) as (bx, by):
        tx = T.get_thread_binding(0)
        s = T.alloc_shared((32, 32), "float16")
        f = T.alloc_fragment((32, 32), "float32")
        flags = T.alloc_fragment((4,), "bool")
        T.copy(A[by * 32, bx * 32], s)
        T.copy(s, f)
        for i in T.Parallel(4):
            flags[i] = i > 1
        if bx == 1 and by == 0:
            T.print(f[0:2, 0:4], "corner")
            T.print(f, "all of it")
            T.print(s[0, 0:3])
            T.print(flags)
            T.print(bx + by * 10, "number 100%")
            T.print(A[0, 33] > 1, "larger")
            if tx == 7:
                T.print(tx, "mine")
            for i, j in T.Parallel(32, 32):
                if i == 3 and j == 5:
                    T.print(f[i, j], "there")
        T.copy(f, B[by * 32, bx * 32])


a = torch.arange(64 * 64, device="cuda").reshape(64, 64).remainder(512).to(torch.float16)
b = torch.zeros(64, 64, device="cuda")
tw.compile(main, target="cuda")(a, b)
torch.cuda.synchronize()
assert bool((b == a.float()).all())
"""


@pytest.mark.gpu
def test_lines(tmp_path):
    file = tmp_path / "prints.py"
    file.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(file)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(re.match(r"block \(1, 0\)", line) for line in lines), done.stdout
    for want in (
        "block (1, 0): corner f[0:2, 0:4]: float32[2, 4]",
        "block (1, 0): f[0, 0:4] = 32 33 34 35",
        "block (1, 0): f[1, 0:4] = 96 97 98 99",
        "block (1, 0): all of it f: float32[32, 32]",
        "block (1, 0): s[0, 0:3]: float16[3] = 32 33 34",
        "block (1, 0): flags: bool[4] = False False True True",
        "block (1, 0): number 100% 1",
        "block (1, 0): larger True",
        "block (1, 0) thread 7: mine 7",
        "block (1, 0) at (3, 5): there 229",
    ):
        assert want in lines, f"{want}\n{done.stdout}"
