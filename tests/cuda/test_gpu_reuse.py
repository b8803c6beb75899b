"""Shared memory laid over one another, on a real GPU: wherever that saves bytes, whether or not it
pays; and what `target="auto"` makes of this machine. `pytest -m gpu`."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.cuda.test_gpu_zoo import run_kernel
from tests.passes.test_reuse_shared import AMPERE, HOPPER, phases, turns
from tilewright import machine
from tilewright.passes.memory import place_shared
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import CudaKernel

pytestmark = pytest.mark.gpu
ZOO = ("gemm", "gemm_two_warpgroups", "gemm_transposed", "flash_causal", "flash_two_warpgroups")


def eager() -> None:
    """In this process, which is a test's own, every byte counts; what others compiled does not."""
    os.environ["TILEWRIGHT_CACHE"] = "0"
    place_shared._blocks = lambda kernel, chip, shared: -shared


def run_zoo(name: str) -> dict[str, float]:
    eager()
    return run_kernel(name)


def run_small(name: str) -> int:
    """How many runs, of 20 with each set of features, differ from the interpreter."""
    import torch

    eager()
    program = {"phases": phases.program, "turns": turns(64)}[name]
    (tensor, _) = program.tensors
    x = np.random.default_rng(0).integers(-9, 9, tensor.static_shape).astype(np.float32)
    want = {"X": x, "Y": np.zeros_like(x)}
    machine.run(program, want)
    wrong = 0
    for target in (HOPPER, HOPPER.without(*(HOPPER.features - AMPERE.features))):
        kernel = CudaKernel(program, target)
        assert any(about == "shared memory" for _, about in kernel.trace.reasons)
        for _ in range(20):
            there = {"X": torch.from_numpy(x).cuda(), "Y": torch.zeros(x.shape).cuda()}
            kernel(there)
            wrong += not np.array_equal(there["Y"].cpu().numpy(), want["Y"])
    return wrong


def run_auto() -> tuple[str, bool]:
    import torch

    import tilewright as tw

    os.environ.pop("TILEWRIGHT_TARGET", None)
    kernel = tw.compile(phases)
    x = np.ones((2, 64, 512), np.float32)
    host = np.zeros_like(x)
    kernel(x, host)  # on the CPU
    there = torch.zeros(x.shape).cuda()
    kernel(torch.from_numpy(x).cuda(), there)
    return kernel.target.kind, bool((host == 1).all() and (there == 1).all().item())


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str):
    for arch, worst in run_guarded(run_zoo, name, timeout=120).items():
        assert worst <= 1.0, arch


@pytest.mark.parametrize("name", ["phases", "turns"])
def test_phases_and_turns(name: str):
    assert run_guarded(run_small, name, timeout=120) == 0


def test_auto_is_this_gpu():
    assert run_guarded(run_auto, timeout=120) == ("cuda", True)
