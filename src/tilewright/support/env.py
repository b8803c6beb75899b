"""Every environment variable Tilewright reads, declared once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# the dictionary below `os.environ`, which encodes and decodes: six times as fast
ENVIRON: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)


@dataclass(frozen=True)
class Flag:
    """One environment variable: read at each use, so tests and users may change it at any time.
    `shapes`: code that is generated depends on it, so it is part of what code is kept under."""

    name: str
    default: str
    help: str
    shapes: bool = False

    def __call__(self) -> str:
        # not `get`, which takes three times as long to find nothing: calls ask, too
        return os.environ[self.name] if self.name in os.environ else self.default  # noqa: SIM401

    @property
    def key(self) -> Any:
        """Its name in `ENVIRON`."""
        return getattr(os.environ, "encodekey", str)(self.name)

    def on(self) -> bool:
        return self().lower() not in ("", "0", "false", "off", "no")


SANITIZE = Flag("TILEWRIGHT_SANITIZE", "0", "run every kernel in the interpreter, with checks")
SANITIZE_NAN = Flag("TILEWRIGHT_SANITIZE_NAN", "0", "also report a NaN born where no input had one")
DUMP = Flag("TILEWRIGHT_DUMP", "", "folder for the IR after every pass and the source")
PRINT_LIMIT = Flag(
    "TILEWRIGHT_PRINT_LIMIT", "1024", "elements of a tile that are printed in full", shapes=True
)
TARGET = Flag("TILEWRIGHT_TARGET", "", "what target='auto' means")
CACHE = Flag("TILEWRIGHT_CACHE", "1", "keep compiled kernels on disk")
CACHE_DIR = Flag("TILEWRIGHT_CACHE_DIR", "", "where compiled kernels are kept")
CACHE_SIZE = Flag("TILEWRIGHT_CACHE_SIZE", "2048", "MiB that they may take; 0: no limit")
NUM_THREADS = Flag("TILEWRIGHT_NUM_THREADS", "", "worker threads of the CPU target")
SEED = Flag("TILEWRIGHT_SEED", "0", "seed of the interpreter's block order and interleavings")
DIAGNOSTIC = Flag("TILEWRIGHT_DIAGNOSTIC", "0", "bound and report barrier waits of CUDA kernels")
WAIT_SECONDS = Flag("TILEWRIGHT_WAIT_SECONDS", "2", "how long a diagnostic build waits")
TRACEBACK = Flag("TILEWRIGHT_TRACEBACK", "0", "errors show the frames inside Tilewright too")
DIAGNOSTICS = Flag("TILEWRIGHT_DIAGNOSTICS", "", "json: errors are lines of JSON (docs/errors.md)")
LIMITS = Flag("TILEWRIGHT_LIMITS", "1", "times the usual size that a kernel may have (limits.py)")

FLAGS = tuple(value for value in list(globals().values()) if isinstance(value, Flag))
