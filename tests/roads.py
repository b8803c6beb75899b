"""The ways a kernel's text becomes results, as targets that take and fill NumPy arrays.

Beside the CPU and the interpreter: the CUDA road up to thread code, run by the thread interpreter
(no GPU; races, missing waits and poison are errors), with Hopper's features and with those of
sm_80 alone; and the same on a GPU, marked `gpu`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tilewright import machine
from tilewright.ir.dtype import DType
from tilewright.ir.op import Program, walk_ops
from tilewright.ir.target import ARCHITECTURES, Target
from tilewright.passes.run import Trace
from tilewright.runtime.backends import BACKENDS
from tilewright.support.errors import CompileError, LaunchError, Loc, RunError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel

HOPPER = Target.parse("cuda")
AMPERE = HOPPER.like("sm_80")
_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@lru_cache(maxsize=32)
def _lowered(program: Program, target: Target, places: tuple[Loc | None, ...]) -> Trace:
    """Kernels are run with several sizes, on several roads: the passes see each program once.
    `places`: equal programs of other lines are told from it, which errors name."""
    return lower(program, target)


class ThreadCode:
    """The program as thread code, one interpreted thread for each of the GPU's."""

    source = ""

    def __init__(self, program: Program, target: Target) -> None:
        places = (program.loc, *(op.loc for each in program.kernels for op in walk_ops(each)))
        self.trace = _lowered(program, replace(target, kind="cuda"), places)

    def __call__(self, args: Any) -> None:
        machine.run_threads(self.trace.result, dict(args), seed=1)


class OnDevice:
    """A compiled kernel that is given host arrays: they go to the GPU and come back."""

    def __init__(self, program: Program, target: Target) -> None:
        self.program = program
        self.kernel = CudaKernel(program, replace(target, kind="cuda"))
        self.source, self.trace = self.kernel.source, self.kernel.trace

    def __call__(self, args: Any) -> None:
        kinds = {tensor.name: tensor.dtype for tensor in self.program.tensors}
        with watched(self.program.name):
            there = {n: to_device(v, kinds[n]) if n in kinds else v for n, v in args.items()}
            self.kernel(there)
        for name, kind in kinds.items():
            if args[name].flags.writeable:
                args[name][...] = from_device(there[name], args[name], kind)


lost = ""  # what ended the device for this process, if anything did


@contextmanager
def watched(name: str, seconds: float = 30.0) -> Iterator[None]:
    """Launches that end within `seconds`; after a hang or a fault nothing more is launched."""
    global lost
    import torch

    if lost:
        raise RunError(f"not run: {lost}")
    try:
        yield
        done = torch.cuda.Event()
        done.record()
        until = time.monotonic() + seconds
        while not done.query():
            if time.monotonic() > until:
                raise RunError(f"{name} did not end within {seconds:g} s")
            time.sleep(0.0002)
    except (CompileError, LaunchError):
        raise  # before anything ran
    except Exception as error:
        lost = f"{name} left the device unusable: {type(error).__name__}"
        raise


def leave_if_lost() -> None:
    """Ends the process where its device would keep it from ending."""
    if lost:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def to_device(array: np.ndarray, kind: DType) -> Any:
    """A tensor on the GPU with the array's elements, strides and all."""
    import torch

    if kind.packed:
        per = 8 // kind.bits
        bits = array.view(np.uint8) & ((1 << kind.bits) - 1)
        parts = bits.reshape(*array.shape[:-1], -1, per).astype(np.uint8)
        packed = sum(parts[..., i] << (i * kind.bits) for i in range(per))
        return torch.from_numpy(np.ascontiguousarray(packed, np.uint8)).cuda()
    word = getattr(torch, _WORDS[array.dtype.itemsize])
    steps = tuple(s // array.itemsize for s in array.strides)
    made = torch.empty_strided(array.shape, steps, dtype=word, device="cuda")
    made.copy_(torch.from_numpy(np.array(array, order="C").view(_WORDS[array.dtype.itemsize])))
    return made.view(getattr(torch, "float32" if kind.name == "tfloat32" else kind.name))


def from_device(tensor: Any, like: np.ndarray, kind: DType) -> np.ndarray:
    import torch

    if kind.packed:
        from tilewright.machine.numbers import unpack

        return unpack(tensor.cpu().numpy(), kind)
    word = _WORDS[like.dtype.itemsize]
    return tensor.view(getattr(torch, word)).cpu().contiguous().numpy().view(like.dtype)


# names of their own, so that `TILEWRIGHT_TARGET=cuda_arrays` sends a whole page or script there
for kind, backend in (("cuda_threads", ThreadCode), ("cuda_arrays", OnDevice)):
    BACKENDS[kind] = backend
    ARCHITECTURES[kind] = ARCHITECTURES["cuda"]

THREADS = {
    "threads-sm_90a": replace(HOPPER, kind="cuda_threads"),
    "threads-sm_80": replace(AMPERE, kind="cuda_threads"),
}
DEVICE = {
    "gpu-sm_90a": replace(HOPPER, kind="cuda_arrays"),
    "gpu-sm_80": replace(AMPERE, kind="cuda_arrays"),
}


def on_gpu(*names: str) -> list[Any]:
    """Parameters that need a GPU: with Hopper's features, or the named sets."""
    return [pytest.param(DEVICE[n], id=n, marks=pytest.mark.gpu) for n in names or ("gpu-sm_90a",)]


def on_threads(*names: str) -> list[Any]:
    """Parameters for the thread interpreter: with both sets of features, or the named ones."""
    return [pytest.param(THREADS[n], id=n) for n in names or THREADS]


def is_cuda(target: str | Target) -> bool:
    return isinstance(target, Target) and target.kind.startswith("cuda")
