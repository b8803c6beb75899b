"""Every matrix instruction on a real GPU, bit by bit against NumPy on small integers.
`pytest -m gpu`. A child process per family: one that hangs or faults spoils no other."""

from functools import cache

import numpy as np
import pytest

from tests.cuda.atom_programs import CASES
from tilewright.ir.dtype import dtype
from tilewright.ir.target import Target
from tilewright.support.errors import RunError
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import compile_program

# words of the same width, in which PyTorch and NumPy agree
_WORDS = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}


def family(name):
    """The instruction and its types: mma_s8_u8, matrices, …"""
    parts = name.split("_")
    return "_".join(parts[:3] if "mma" in parts[0] else parts[:1])


def run_case(case):
    """A sentence about what is wrong, or nothing."""
    import torch

    def on_gpu(array, kind):
        word = _WORDS[dtype(kind).bits]
        name = "float32" if kind == "tfloat32" else kind
        flat = torch.from_numpy(np.ascontiguousarray(array).view(word)).cuda()
        return flat.view(getattr(torch, name))

    inputs = case.inputs()
    wanted = case.wanted(inputs)
    arrays = {**inputs, **{n: np.full_like(w, 77) for n, w in wanted.items()}}
    args = {n: on_gpu(a, case.tensors[n][1]) for n, a in arrays.items()}
    compile_program(case.program, Target.parse("cuda"))(args)
    torch.cuda.synchronize()
    for name, want in wanted.items():
        word = _WORDS[dtype(case.tensors[name][1]).bits]
        found = args[name].view(getattr(torch, word)).cpu().numpy()
        wrong = np.argwhere(found != want.view(word))
        if len(wrong):
            at = tuple(wrong[0])
            value = found.view(want.dtype)[at]
            return f"{name}: {len(wrong)} of {want.size} wrong; at {at} {value}, not {want[at]}"
    return ""


def run_family(which):
    """What is wrong with each program of a family; a fault ends it for those behind."""
    found = {}
    for name, case in CASES.items():
        if family(name) == which:
            try:
                found[name] = run_case(case)
            except RunError as error:
                found[name] = str(error)
                break
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
                if "CUDA" in str(error):
                    break
    return found


@cache
def results(which):
    return run_guarded(run_family, which, timeout=180)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_gpu(name):
    assert results(family(name)).get(name, "not run: one before it failed") == ""
