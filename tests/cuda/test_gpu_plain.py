"""Programs without roles on a real GPU against the interpreter: exactly, on small integers; within
rounding where functions are approximated. `pytest -m gpu`. A child process per handful: one that
hangs or faults spoils few others."""

from functools import cache

import numpy as np
import pytest

from tests.cuda.fuzzed_programs import FUZZED
from tests.cuda.plain_programs import PROGRAMS as PLAIN
from tests.cuda.test_plain import arguments, parsed
from tests.cuda.tile_programs import TILES
from tests.roads import from_device, to_device
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.support.errors import RunError
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import compile_program

HANDFUL = 12
# which thread comes first is the hardware's to say
UNORDERED = ("threads_atomic_results",)
STRIDED = ("strided",)  # wants an array of its own
PROGRAMS = PLAIN | FUZZED | TILES
NAMES = [name for name in PROGRAMS if name not in (*UNORDERED, *STRIDED)]


def run_program(name):
    """A sentence about what is wrong, or nothing."""
    import torch

    program = parsed(name)
    want = arguments(program)
    kinds = {t.name: t.dtype for t in program.tensors}
    args = {n: to_device(a, kinds[n]) for n, a in want.items()}
    machine.run(program, want, explicit=False)
    compile_program(program, Target.parse("cuda"))(args)
    torch.cuda.synchronize()
    for key, value in want.items():
        found = from_device(args[key], value, kinds[key])
        problem = compare(name, found, value)
        if problem:
            return f"{key}: {problem}"
    return ""


def compare(name, found, want):
    if want.dtype.kind in "iub":
        wrong = found != want
    else:
        a, b = found.astype(np.float64), want.astype(np.float64)
        close = {2: 8e-3, 1: 0.13}.get(want.dtype.itemsize, 1e-5)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if name.startswith("functions"):
            same |= np.abs(a - b) <= close * np.abs(b) + close * 1e-2
        wrong = ~same
    if not wrong.any():
        return ""
    at = tuple(np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} wrong; at {at} {found[at]}, not {want[at]}"


def run_handful(number):
    found = {}
    for name in NAMES[number * HANDFUL : (number + 1) * HANDFUL]:
        try:
            found[name] = run_program(name)
        except RunError as error:
            found[name] = str(error)
            break
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            if "CUDA" in str(error):
                break
    return found


@cache
def results(number):
    return run_guarded(run_handful, number, timeout=240)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_gpu(name):
    found = results(NAMES.index(name) // HANDFUL)
    assert found.get(name, "not run: one before it failed") == ""
