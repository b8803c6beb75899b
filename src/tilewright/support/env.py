"""Every environment variable Tilewright reads, declared once."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """One environment variable: read at each use, so tests and users may change it at any time."""

    name: str
    default: str
    help: str

    def __call__(self) -> str:
        return os.environ.get(self.name, self.default)

    def on(self) -> bool:
        return self().lower() not in ("", "0", "false", "off", "no")


SANITIZE = Flag("TILEWRIGHT_SANITIZE", "0", "run every kernel in the interpreter, with checks")
SANITIZE_NAN = Flag("TILEWRIGHT_SANITIZE_NAN", "0", "also report a NaN born where no input had one")
DUMP = Flag("TILEWRIGHT_DUMP", "", "folder that receives the IR after every pass")
TARGET = Flag("TILEWRIGHT_TARGET", "", "what target='auto' means")
CACHE_DIR = Flag("TILEWRIGHT_CACHE_DIR", "", "where compiled kernels are kept")
NUM_THREADS = Flag("TILEWRIGHT_NUM_THREADS", "", "worker threads of the CPU target")
SEED = Flag("TILEWRIGHT_SEED", "0", "seed of the interpreter's block order and interleavings")
DIAGNOSTIC = Flag("TILEWRIGHT_DIAGNOSTIC", "0", "bound and report barrier waits of CUDA kernels")
WAIT_SECONDS = Flag("TILEWRIGHT_WAIT_SECONDS", "2", "how long a diagnostic build waits")
TRACEBACK = Flag("TILEWRIGHT_TRACEBACK", "0", "errors show the frames inside Tilewright too")

FLAGS = (
    SANITIZE, SANITIZE_NAN, DUMP, TARGET, CACHE_DIR, NUM_THREADS, SEED, DIAGNOSTIC, WAIT_SECONDS,
    TRACEBACK,
)  # fmt: skip
