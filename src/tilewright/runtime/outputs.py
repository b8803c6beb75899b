"""Arrays that calls make, in the caller's library: in host memory, or on its device and stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir.core import *
from tilewright.targets.arrays import Array, stream_handle, view_of
from tilewright.targets.dlpack import CPU, export

Shapes: TypeAlias = "Sequence[tuple[int, ...] | None]"

_XLA_ALIGN = 64  # JAX copies what lies otherwise


def in_shapes(arrays: Any, shapes: Shapes) -> list[Any]:
    """The arrays, or the only one, in these shapes."""
    found = arrays if isinstance(arrays, (tuple, list)) else [arrays]
    pairs = zip(found, shapes, strict=True)
    return [x if shape is None or x.shape == shape else x.reshape(shape) for x, shape in pairs]


def stored_as(shape: tuple[int, ...], dtype: DType) -> tuple[tuple[int, ...], str]:
    """Shape and element type of the array that holds it: packed types come as bytes."""
    if dtype.packed:
        return (*shape[:-1], shape[-1] * dtype.bits // 8), "uint8"
    return shape, "float32" if dtype.name == "tfloat32" else dtype.name


def empty_like_library(library: str, shape: tuple[int, ...], dtype: DType) -> Any:
    """An uninitialised array of the caller's library in host memory; `delivered` makes it so where
    a library's arrays never change."""
    if library == "torch":
        return _torch(shape, dtype, "cpu")
    shape, name = stored_as(shape, dtype)
    if library == "jax":
        return _jax_room(shape, DTYPES[name])
    return np.empty(shape, DTYPES[name].numpy)


def delivered(library: str, made: Any) -> Any:
    """What the kernel has written, as the caller's library has it."""
    if library != "jax" or type(made).__module__.startswith("jax"):
        return made
    import jax

    return jax.dlpack.from_dlpack(HostArray(made) if isinstance(made, np.ndarray) else made)


def torch_dtype(dtype: DType) -> Any:
    """PyTorch's name for the elements of the tensor that holds it."""
    import torch

    name = stored_as((1,), dtype)[1]
    found = getattr(torch, name, None)
    if found is None:
        raise LaunchError(
            f"PyTorch has no tensors of {dtype}",
            expected="a type that torch has, or one of fewer than 8 bits (as bytes)",
            got=name,
            fix="call the kernel with NumPy arrays",
        )
    return found


def _torch(shape: tuple[int, ...], dtype: DType, device: Any, stream: int | None = None) -> Any:
    import torch

    there: AbstractContextManager[Any] = nullcontext()
    if stream is not None:
        # its allocator hands memory out for one stream
        there = torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))
    with there:
        return torch.empty(stored_as(shape, dtype)[0], dtype=torch_dtype(dtype), device=device)


def check_jax_type(element: DType) -> None:
    """JAX reads 64-bit elements as 32-bit ones, unless it is told not to."""
    import jax

    if element.bits == 64 and not jax.config.jax_enable_x64:
        raise LaunchError(
            f"JAX makes no {element} array as it is configured",
            expected="64-bit types enabled",
            got="jax_enable_x64 is off: JAX would round to 32 bits",
            fix='jax.config.update("jax_enable_x64", True), or declare a 32-bit output',
        )


def _jax_room(shape: tuple[int, ...], element: DType) -> Array:
    check_jax_type(element)
    size = int(np.prod(shape, dtype=np.int64)) * element.numpy.itemsize
    room = np.empty(size + _XLA_ALIGN, np.uint8)
    start = -room.ctypes.data % _XLA_ALIGN
    return room[start : start + size].view(element.numpy).reshape(shape)


class HostArray:
    """A NumPy array for other libraries, of types too that NumPy itself does not hand out."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        array = self.array
        element = dtype(array.dtype)
        return export(array.ctypes.data, array.shape, element, (CPU, 0), array)


# ── on a GPU ─────────────────────────────────────────────────────────────────────────────────


def maker(like: Any, library: str, stream: Any) -> Callable[[tuple[int, ...], DType], Any]:
    """`make(shape, dtype)`: a new array of the library, where `like` is."""
    handle = None if stream is None else stream_handle(stream)
    if library == "torch":
        device = "cuda" if like is None else like.device
        return lambda shape, dtype: _torch(shape, dtype, device, handle)
    if library == "cupy":
        return lambda shape, dtype: _cupy(like, shape, dtype, handle)

    def make(shape: tuple[int, ...], dtype: DType) -> Any:
        from tilewright.targets.cuda.driver import DeviceArray, driver

        if library == "jax":
            check_jax_type(dtype)  # `delivered` makes it JAX's
        found = driver()
        ordinal = found.current_ordinal() if like is None else _ordinal(like)
        element = DTYPES["uint8"] if dtype.packed else dtype
        shape = stored_as(shape, dtype)[0]
        return DeviceArray(found, found.device(ordinal), shape, element, handle or 0)

    return make


def _cupy(like: Any, shape: tuple[int, ...], dtype: DType, stream: int | None) -> Any:
    import cupy

    shape, _ = stored_as(shape, dtype)
    there = nullcontext() if stream is None else cupy.cuda.ExternalStream(stream)
    try:
        with like.device, there:
            return cupy.empty(shape, "uint8" if dtype.packed else dtype.numpy)
    except (TypeError, ValueError) as error:
        raise LaunchError(
            f"CuPy makes no array of {dtype}",
            got=str(error),
            fix="make the output yourself and pass it, without out_idx",
        ) from None


def _ordinal(like: Any) -> int:
    if hasattr(like, "__dlpack_device__"):
        return int(like.__dlpack_device__()[1])
    return view_of(like, "an argument").device or 0
