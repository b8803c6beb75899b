"""Statements of the block, outside tiles: they happen once, in order, whatever threads run them.

Random statements read and write a few elements of a tensor and of a shared tile, in loops and
branches, with thread code beside them. Thread code and the CPU are compared with the interpreter.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from devtools.fuzz.check import load
from tests.roads import on_gpu, on_threads
from tilewright.ir.target import Target
from tilewright.runtime.backends import build

HEAD = """import tilewright.language as T


@T.prim_func
def main(A: T.Tensor((4,), "int32"), B: T.Tensor((64,), "int32"), n: T.int32):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s = T.alloc_shared((64,), "int32")
        T.fill(s, 1)
"""
PLAIN = HEAD.replace("        T.fill(s, 1)\n", "        s[tx] = 1\n        T.sync_threads()\n")


def _value(r: Random) -> str:
    spots = [f"A[{r.randrange(4)}]", f"s[{r.randrange(4)}]", "n", str(r.randint(-3, 3))]
    return f"{r.choice(spots)} {r.choice('+-*')} {r.choice(spots)}"


def _statements(r: Random, depth: int) -> list[str]:
    found = []
    for _ in range(r.randint(2, 5)):
        kind = r.random()
        target = r.choice([f"A[{r.randrange(4)}]", f"s[{r.randrange(4)}]"])
        if kind < 0.6 or depth == 0:
            found.append(f"{target} = {_value(r)}")
        elif kind < 0.7:
            found.append(f"A[{r.randrange(2)}], A[{2 + r.randrange(2)}] = A[3], A[0]")
        elif kind < 0.85:
            found.append(f"for k{depth} in range({r.choice(['3', 'n'])}):")
            found += ["    " + line for line in _statements(r, depth - 1)]
        else:
            found.append(f"if {_value(r)} > 0:")
            found += ["    " + line for line in _statements(r, depth - 1)]
    return found


def source(seed: int) -> str:
    """The text of a kernel; odd ones have no tile operation."""
    r = Random(f"block statements {seed}")
    body = _statements(r, 2)
    # each thread for itself, after all that the block does
    tail = ["T.sync_threads()", "B[tx] = A[tx % 4] + s[tx]"]
    return (PLAIN if seed % 2 else HEAD) + "".join(f"        {line}\n" for line in [*body, *tail])


def run(program, target: str) -> dict[str, np.ndarray]:
    given = {"A": np.arange(1, 5, dtype=np.int32), "B": np.zeros(64, np.int32), "n": 2}
    build(program, Target.parse(target) if isinstance(target, str) else target)(given)
    return given


@pytest.mark.parametrize("target", ["cpu", *on_threads(), *on_gpu()])
@pytest.mark.parametrize("seed", range(12))
def test_they_happen_once(seed, target):
    program = load(source(seed), f"block_{seed}.py")["main"].program
    want, got = run(program, "interp"), run(program, target)
    for name in "AB":
        np.testing.assert_array_equal(got[name], want[name], err_msg=source(seed))
