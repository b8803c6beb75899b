"""DLPack: capsules read where they lie, and memory of ours handed out in one."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from tilewright.ir.dtype import DTYPES, DType
from tilewright.support.errors import LaunchError

CPU, CUDA, CUDA_MANAGED = 1, 2, 13  # kinds of devices

_WORDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_NAMES = {
    6: "bool", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2",
    13: "float8_e5m2fnuz", 14: "float8_e8m0fnu", 15: "float6_e2m3fn", 16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def _api(name: str, result: Any, *arguments: Any) -> Any:
    # a prototype of our own: others set the shared one's types to theirs
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_OLD, _NEW = b"dltensor", b"dltensor_versioned"
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)
# for a capsule that is being destroyed: a reference to it must not be counted
_dying_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


class Contents(NamedTuple):
    """What a capsule describes; strides count elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: tuple[int, int]
    read_only: bool


def is_capsule(value: Any) -> bool:
    return type(value).__name__ == "PyCapsule" and bool(_valid(value, _OLD) or _valid(value, _NEW))


def read(capsule: Any, name: str) -> Contents:
    """The capsule stays as it is: the producer may still give it to somebody."""
    read_only = False
    if _valid(capsule, _NEW):
        versioned = _Versioned.from_address(_pointer(capsule, _NEW))
        read_only = bool(versioned.flags & 1)
        tensor = versioned.tensor
    else:
        tensor = _Tensor.from_address(_pointer(capsule, _OLD))
    element = DTYPES.get(_NAMES.get(tensor.code) or f"{_WORDS.get(tensor.code)}{tensor.bits}")
    if element is None or tensor.lanes != 1:
        raise LaunchError(
            f"{name} has elements Tilewright does not know",
            got=f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes",
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    return Contents(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        tuple(tensor.strides[: tensor.ndim]) if tensor.strides else row_major(shape),
        element,
        (tensor.device_type, tensor.device_id),
        read_only,
    )


def row_major(shape: tuple[int, ...], step: int = 1) -> tuple[int, ...]:
    """
    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


_exported: dict[int, Any] = {}  # what a consumer still uses, by the address of its record


def export(
    address: int, shape: tuple[int, ...], dtype: DType, device: tuple[int, int], owner: Any
) -> Any:
    """A capsule of row-major memory at `address`; `owner` lives until its consumer lets go."""
    code = _CODES.get(dtype.name)
    if code is None:
        code = next(c for c, word in _WORDS.items() if dtype.name == f"{word}{dtype.bits}")
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*row_major(shape))
    pointer = ctypes.POINTER(ctypes.c_int64)
    tensor = _Tensor(
        address, *device, len(shape), code, dtype.bits, 1,
        ctypes.cast(sizes, pointer), ctypes.cast(steps, pointer), 0,
    )  # fmt: skip
    managed = _Managed(tensor, None, _deleter)
    where = ctypes.addressof(managed)
    _exported[where] = (managed, sizes, steps, owner)
    return _new(where, _OLD, _destructor)


def _release(where: int) -> None:
    _exported.pop(where, None)


def _unused(capsule: int) -> None:
    if _dying_valid(capsule, _OLD):  # nobody took it: a consumer renames what it takes
        _exported.pop(_dying_pointer(capsule, _OLD), None)


_deleter, _destructor = _Deleter(_release), _Destructor(_unused)
