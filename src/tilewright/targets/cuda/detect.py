"""Whether this machine has a GPU that code of ours runs on, asked once and cheaply: without the
driver's library nothing is imported, and no context is made."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec

from tilewright.ir.chips import arch_for
from tilewright.support.errors import TilewrightError

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def gpu_target() -> str | None:
    """The target for the first GPU of this machine; None where there is none, or none that the
    architectures we compile for run on, or what compiling and launching needs is not installed."""
    if not has_library() or not has_bindings():
        return None
    from tilewright.targets.cuda.driver import driver

    try:
        return target_for(*driver().capability(0))
    except TilewrightError:
        return None


def target_for(major: int, minor: int) -> str | None:
    """The target for a GPU of this compute capability, if there is one.

    >>> target_for(9, 0), target_for(8, 6), target_for(7, 5)
    ('cuda -arch=sm_90a', 'cuda -arch=sm_86', None)
    """
    arch = arch_for(major, minor)
    return arch and f"cuda -arch={arch}"


def has_library() -> bool:
    """Whether the driver's library loads."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def has_bindings() -> bool:
    try:
        return find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False
