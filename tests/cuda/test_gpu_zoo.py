"""Every kernel of the zoo on a real GPU, with Hopper's features and with those of sm_80, against
the interpreter. `pytest -m gpu`; a child process per kernel, so that a fault spoils no other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.test_zoo import KERNELS, TARGETS, arguments, copies, program
from tilewright import machine
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import CudaKernel

pytestmark = pytest.mark.gpu
_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def run_kernel(name: str) -> dict[str, float]:
    """By features, how far the results are from the interpreter's, relative to what is allowed."""
    import torch

    tile, given = program(name), arguments(program(name))
    want = copies(given)
    machine.run(tile, want)
    kinds = {t.name: t.dtype.name for t in tile.tensors}

    def there(key: str, value: object) -> object:
        if not isinstance(value, np.ndarray):
            return value
        words = np.array(value, order="C").view(_WORDS[value.dtype.itemsize])
        return torch.from_numpy(words).cuda().view(getattr(torch, kinds[key]))

    found = {}
    for arch, target in TARGETS.items():
        args = {key: there(key, value) for key, value in given.items()}
        CudaKernel(tile, target)(args)
        torch.cuda.synchronize()
        worst = 0.0
        for key, value in want.items():
            if not isinstance(value, np.ndarray):
                continue
            words = getattr(torch, _WORDS[value.dtype.itemsize])
            got = args[key].view(words).cpu().numpy().view(value.dtype).astype(np.float64)
            unit = 2.0**-8 if value.dtype.itemsize == 2 else 2.0**-18
            allowed = 2 * unit * np.abs(value.astype(np.float64)) + unit / 16
            off = np.abs(got - value.astype(np.float64)) / allowed
            worst = max(worst, float(np.where(np.isfinite(off), off, np.inf).max(initial=0.0)))
        found[arch] = worst
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_on_gpu(name: str):
    for arch, worst in run_guarded(run_kernel, name, timeout=120).items():
        assert worst <= 1.0, arch
