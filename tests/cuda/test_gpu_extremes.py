"""The ends of every type on a GPU: the interpreter's results, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from devtools.fuzz.run import judge
from tests.cuda import extreme_programs as programs
from tests.cuda.test_extremes import KINDS, arrays_of
from tilewright.runtime.kernel import CompiledKernel
from tilewright.tools.compare import SIGNED, difference, run_kernel

pytestmark = pytest.mark.gpu


def on_gpu(prim_func, given):
    program = prim_func.program
    return run_kernel(CompiledKernel(program, target="cuda"), given, program)


@pytest.mark.parametrize("kind", KINDS)
def test_integers(kind):
    program, want = programs.integers(kind), arrays_of(kind)
    tw.compile(program, target="interp")(*want.values())
    assert difference(want["O"], on_gpu(program, arrays_of(kind))["O"]) == ""


def test_conversions():
    want = programs.conversion_data()
    tw.compile(programs.conversions, target="interp")(*want.values())
    got = on_gpu(programs.conversions, programs.conversion_data())
    for name in want:
        assert difference(want[name], got[name], SIGNED) == "", name


@pytest.mark.parametrize("loop", programs.LOOPS)
def test_run_time_steps(loop):
    want, given = (np.zeros(programs.N, np.int32) for _ in range(2))
    tw.compile(programs.steps, target="interp")(want, *loop)
    got = on_gpu(programs.steps, {"B": given, **dict(zip("abs", loop, strict=True))})
    assert difference(want, got["B"]) == ""


@pytest.mark.parametrize("seed", range(8))
def test_random_arithmetic(seed):
    verdict = judge(seed, ["interp", "cuda"], "numbers")
    assert verdict.kind == "ok", verdict
