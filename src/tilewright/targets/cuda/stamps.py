"""Launches of traced builds: each is waited for, and its stamps are read back (`stamp_ops`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.support.errors import LaunchError
from tilewright.targets.cuda.launch import CudaModule, Step, TensorPointer

UNWRITTEN = 0xCD  # bytes of stamps that nobody made


@dataclass(frozen=True)
class Stamps:
    """What one launch left: `words[section, slot]` is a pair (`begin_stamps` in threads.cuh)."""

    kernel: int  # its number in the program
    grid: tuple[int, ...]
    words: np.ndarray[Any, np.dtype[np.uint32]]


class StampedModule(CudaModule):
    """A module whose launches leave `taken`, the stamps of the last call."""

    waits = True
    taken: tuple[Stamps, ...] = ()

    def run(self, steps: tuple[Step, ...]) -> None:
        self.taken = tuple(map(self._run, steps))

    def _run(self, step: Step) -> Stamps:
        found = self.driver
        stream, shape = step.config.stream or 0, self.scratch[-1].static_shape
        place = step.spec.params.index(TensorPointer(self.scratch[-1].name))
        address = ctypes.c_uint64.from_address(step.memory[0][place]).value
        words = np.empty(shape, np.uint32)
        with found.active(step.device):
            if found.is_capturing(stream):
                raise LaunchError(
                    f"a trace waits for {step.spec.kernel}: no graph can capture it",
                    fix="trace outside of the capture",
                )
            found.fill(address, UNWRITTEN, words.nbytes, stream)
            super().run((step,))
            found.read(address, words.ctypes.data, words.nbytes, stream)
        return Stamps(self.specs.index(step.spec), tuple(step.config.grid), words)
