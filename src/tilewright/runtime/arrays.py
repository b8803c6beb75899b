"""Arrays from other libraries as NumPy views, and new ones in the caller's library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.support.errors import LaunchError

Array = np.ndarray[Any, np.dtype[Any]]
CPU_DEVICE = 1  # as DLPack numbers kinds of devices


def library_of(value: Any) -> str:
    """'numpy', 'torch', 'jax', 'cupy', 'dlpack', or '' for something that is no array."""
    if isinstance(value, np.ndarray):
        return "numpy"
    root = type(value).__module__.partition(".")[0]
    if root in ("torch", "cupy"):
        return root
    if root in ("jax", "jaxlib"):
        return "jax"
    return "dlpack" if hasattr(value, "__dlpack__") else ""


def are_on_host(values: Iterable[Any]) -> bool:
    """Whether there are arrays among `values`, and all of them are in host memory."""
    places = [_is_on_host(v) for v in values if library_of(v) and hasattr(v, "shape")]
    return bool(places) and all(places)


def _is_on_host(value: Any) -> bool:
    match library_of(value):
        case "numpy":
            return True
        case "torch":
            return not value.is_cuda
        case "jax":
            return all(device.platform == "cpu" for device in value.devices())
        case "dlpack" if hasattr(value, "__dlpack_device__"):
            return int(value.__dlpack_device__()[0]) == CPU_DEVICE
    return False


def as_numpy(value: Any, name: str) -> Array:
    """A NumPy view of `value`'s memory, no copy; its dtype may be one of ml_dtypes'."""
    if isinstance(value, np.ndarray):
        return value
    library = library_of(value)
    try:
        if library == "torch":
            return _torch_view(value, name)
        if library == "jax":
            # JAX arrays never change; the view is read-only, and a written parameter refuses it
            return np.asarray(value)
        if library == "dlpack":
            return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(
            f"{name} could not be read as an array in host memory",
            got=f"{type(value).__name__}: {error}",
        ) from None
    if library == "cupy":
        raise LaunchError(
            f"{name} is in GPU memory, but this kernel runs on the CPU",
            fix='compile with target="cuda", or pass cupy.asnumpy(...)',
        )
    raise LaunchError(
        f"{name} must be an array",
        expected="a NumPy array, a PyTorch tensor, or anything with __dlpack__",
        got=type(value).__name__,
        fix="convert it: np.asarray(x)",
    )


def _torch_view(tensor: Any, name: str) -> Array:
    if tensor.device.type != "cpu":
        raise LaunchError(
            f"{name} is on {tensor.device}, but this kernel runs on the CPU",
            fix='compile with target="cuda", or pass tensor.cpu()',
        )
    tensor = tensor.detach()
    special = _TORCH_SPECIAL.get(str(tensor.dtype))
    if special is None:
        view: Array = tensor.numpy()
        return view
    # NumPy has no such type of its own: look at the bits through an integer of the same width
    import torch

    carrier, ours = special
    return np.asarray(tensor.view(getattr(torch, carrier)).numpy()).view(_ml(ours))


_TORCH_SPECIAL = {
    "torch.bfloat16": ("int16", "bfloat16"),
    "torch.float8_e4m3fn": ("uint8", "float8_e4m3fn"),
    "torch.float8_e5m2": ("uint8", "float8_e5m2"),
    "torch.float8_e8m0fnu": ("uint8", "float8_e8m0fnu"),
}


def _ml(name: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, name)


def stored_as(shape: tuple[int, ...], dtype: DType) -> tuple[tuple[int, ...], str]:
    """Shape and element type of the array that holds it: packed types come as bytes."""
    if dtype.packed:
        return (*shape[:-1], shape[-1] * dtype.bits // 8), "uint8"
    return shape, "float32" if dtype.name == "tfloat32" else dtype.name


def empty_like_library(library: str, shape: tuple[int, ...], dtype: DType) -> Any:
    """An uninitialised array of the caller's library."""
    shape, name = stored_as(shape, dtype)
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, name))
    return np.empty(shape, np.uint8 if dtype.packed else dtype.numpy)


def unpack(packed: Array, dtype: DType) -> tuple[Array, Callable[[Array], None]]:
    """Bytes that hold `8 / bits` elements each, low bits first → one element per item, and the
    function that packs changed elements back."""
    per = 8 // dtype.bits
    raw = packed.view(np.uint8)
    mask = (1 << dtype.bits) - 1
    parts = [(raw >> (i * dtype.bits)) & mask for i in range(per)]
    bits = np.stack(parts, axis=-1).reshape(*raw.shape[:-1], raw.shape[-1] * per)
    elements = _from_bits(bits.astype(np.uint8), dtype)

    def pack(changed: Array) -> None:
        low = changed.view(np.uint8) & mask
        grouped = low.reshape(*raw.shape, per)
        total = np.zeros(raw.shape, np.uint8)
        for i in range(per):
            total |= grouped[..., i] << (i * dtype.bits)
        raw[...] = total

    return elements, pack


def _from_bits(bits: Array, dtype: DType) -> Array:
    if dtype.kind == "int":  # ml_dtypes keeps signed values sign-extended in their byte
        sign = 1 << (dtype.bits - 1)
        bits = ((bits.astype(np.int16) ^ sign) - sign).astype(np.int8).view(np.uint8)
    return bits.view(dtype.numpy)


def torch_loaded() -> bool:
    return "torch" in sys.modules
