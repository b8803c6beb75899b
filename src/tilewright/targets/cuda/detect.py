"""Whether this machine has a GPU that code of ours runs on, asked once and cheaply: the driver's
library itself is asked, so that nothing is imported, and no context is made."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

from tilewright.ir.chips import arch_for

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


@cache
def gpu_target() -> str | None:
    """The target for the first GPU of this machine; None where there is none, or none that the
    architectures we compile for run on, or what compiling and launching needs is not installed."""
    found = library()
    if found is None or not has_bindings():
        return None
    capability = capability_of(found)
    return capability and target_for(*capability)


@cache
def gpu_name() -> str:
    """What the driver calls the first GPU of this machine; '' where there is none."""
    found, device, name = library(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if found is None or found.cuInit(0) or found.cuDeviceGet(ctypes.byref(device), 0):
        return ""
    return "" if found.cuDeviceGetName(name, len(name), device) else name.value.decode()


def target_for(major: int, minor: int) -> str | None:
    """The target for a GPU of this compute capability, if there is one.

    >>> target_for(9, 0), target_for(8, 6), target_for(7, 5)
    ('cuda -arch=sm_90a', 'cuda -arch=sm_86', None)
    """
    arch = arch_for(major, minor)
    return arch and f"cuda -arch={arch}"


def library() -> Any:
    """The driver's library; None where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def capability_of(library: Any) -> tuple[int, int] | None:
    """The compute capability of the first GPU that the driver knows; None where it knows none."""
    device, found = ctypes.c_int(), ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGet(ctypes.byref(device), 0):
        return None
    values = []
    for attribute in _CAPABILITY:
        if library.cuDeviceGetAttribute(ctypes.byref(found), attribute, device):
            return None
        values.append(found.value)
    major, minor = values
    return major, minor


def has_bindings() -> bool:
    try:
        return find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False
