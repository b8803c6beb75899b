"""Gathered products and convolutions on a real GPU: a producer, all threads alike, the features of
sm_80, and through registers, exactly on small integers. `pytest -m gpu`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.test_gathers import arguments, rows_of, windows
from tests.roads import from_device, to_device
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import compile_program

pytestmark = pytest.mark.gpu
CUDA = Target.parse("cuda")
TARGETS = {
    "roles": CUDA.choosing(roles=True),
    "blocks that stay": CUDA.choosing(roles=True).choosing(persistent=True),
    "all alike": CUDA.choosing(roles=False),
    "as sm_80": CUDA.like("sm_80"),
    "through registers": CUDA.choosing(async_gathers=False),
}
PROGRAMS = {
    **{f"rows, {n} stages": lambda n=n: rows_of(K=512, stages=n, tiles=140) for n in (2, 3, 4)},
    "rows of bfloat16": lambda: rows_of(K=512, dtype="bfloat16", tiles=7),
    "rows of 8 bytes": lambda: rows_of(K=100),
    "rows of 4 bytes": lambda: rows_of(K=66),
    "a table in shared memory": lambda: rows_of("shared", K=512, tiles=5),
    "a table in registers": lambda: rows_of("fragment", K=512, tiles=5),
    "one iteration": lambda: rows_of(K=64),
    "windows": windows,
    "windows, 4 stages": lambda: windows(channels=128, stages=4),
}


def run_program(name: str) -> list[str]:
    """Targets under which results differ from the interpreter's."""
    import torch

    program = PROGRAMS[name]()
    given = arguments(program)
    want = {n: a.copy() for n, a in given.items()}
    machine.run(program, want)
    kinds = {t.name: t.dtype for t in program.tensors}
    wrong = []
    for told, target in TARGETS.items():
        kernel = compile_program(program, target)
        args = {n: to_device(a, kinds[n]) for n, a in given.items()}
        for _ in range(5):  # a race need not show the first time
            kernel(args)
            torch.cuda.synchronize()
            if not np.array_equal(from_device(args["C"], want["C"], kinds["C"]), want["C"]):
                wrong.append(told)
                break
    return wrong


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_gpu(name: str):
    assert run_guarded(run_program, name, timeout=240) == []
