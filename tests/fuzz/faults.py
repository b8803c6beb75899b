"""Faults for workers of the fuzzer, importable in their processes."""

from __future__ import annotations

import os

from devtools.fuzz import run as fuzz


def die() -> None:
    """Every program ends its process."""
    fuzz.judge = lambda *given: os._exit(3)  # type: ignore[assignment]
