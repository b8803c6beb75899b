"""Arrays from other libraries as NumPy views, and new ones in the caller's library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tilewright.ir.dtype import DTYPES, DType, dtype
from tilewright.support.errors import LaunchError
from tilewright.targets.cuda.dlpack import export, is_capsule, read

Array = np.ndarray[Any, np.dtype[Any]]
CPU_DEVICE = 1  # as DLPack numbers kinds of devices
_XLA_ALIGN = 64  # JAX copies what lies otherwise


def library_of(value: Any) -> str:
    """'numpy', 'torch', 'jax', 'cupy', 'dlpack', or '' for something that is no array."""
    if isinstance(value, np.ndarray):
        return "numpy"
    if torch_loaded() and isinstance(value, sys.modules["torch"].Tensor):
        return "torch"
    root = type(value).__module__.partition(".")[0]
    if root == "cupy":
        return root
    if root in ("jax", "jaxlib"):
        return "jax" if hasattr(value, "shape") else ""
    return "dlpack" if hasattr(value, "__dlpack__") or is_capsule(value) else ""


def torch_loaded() -> bool:
    return hasattr(sys.modules.get("torch"), "Tensor")


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
            return _jax_platform(value) == "cpu"
        case "dlpack" if hasattr(value, "__dlpack_device__"):
            return int(value.__dlpack_device__()[0]) == CPU_DEVICE
    return False


def _jax_platform(value: Any) -> str:
    """Where a JAX array is; nowhere while a function is traced."""
    devices = getattr(value, "devices", None)
    try:
        return ", ".join(sorted({d.platform for d in devices()})) if devices else ""
    except Exception:  # a tracer's
        return ""


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def as_numpy(value: Any, name: str) -> Array:
    """A NumPy view of `value`'s memory, no copy; its dtype may be one of ml_dtypes'."""
    library = library_of(value)
    reader = _READERS.get(library)
    if reader is None:
        raise LaunchError(
            f"{name} must be an array",
            expected="a NumPy array, a PyTorch tensor, or anything with __dlpack__",
            got=type(value).__name__,
            fix="convert it: np.asarray(x)",
        )
    try:
        return reader(value, name)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise LaunchError(
            f"{name} could not be read as an array in host memory",
            expected="an array whose elements lie in host memory",
            got=f"{type(value).__name__}: {str(error).splitlines()[0] if str(error) else error!r}",
            fix=_FIXES.get(library, "pass a NumPy array of it"),
        ) from None


def _numpy(value: Array, name: str) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise LaunchError(
            f"{name} is a masked array, and a kernel sees no masks",
            expected="a plain array",
            got="numpy.ma.MaskedArray",
            fix=f"pass {name}.filled(…), or its data: {name}.data",
        )
    return value


def _torch(tensor: Any, name: str) -> Array:
    if tensor.device.type != "cpu":
        raise _elsewhere(name, str(tensor.device), f"{name}.cpu()")
    tensor = tensor.detach()
    word = str(tensor.dtype).removeprefix("torch.")
    if word.endswith("_x2"):  # PyTorch counts the bytes of what it calls float4_e2m1fn_x2
        carrier, ours = "uint8", np.dtype(np.uint8)
    elif word in DTYPES and DTYPES[word].numpy.isbuiltin != 1:
        # NumPy has no such type of its own: look at the bits through an integer of the same width
        carrier, ours = ("int16" if tensor.itemsize == 2 else "uint8"), DTYPES[word].numpy
    else:
        view: Array = tensor.numpy()
        return view
    torch = sys.modules["torch"]
    return np.asarray(tensor.view(getattr(torch, carrier)).numpy()).view(ours)


def _jax(value: Any, name: str) -> Array:
    platform = _jax_platform(value)
    if platform not in ("cpu", ""):  # NumPy would fetch a copy
        raise _elsewhere(name, f"JAX's {platform}", f"np.asarray({name})")
    # JAX arrays never change; the view is read-only, and a written parameter refuses it
    return np.asarray(value)


def _cupy(value: Any, name: str) -> Array:
    raise _elsewhere(name, "CuPy's GPU", f"cupy.asnumpy({name})")


def _dlpack(value: Any, name: str) -> Array:
    """Not NumPy's reader: it knows no bfloat16 and no float8."""
    if not is_capsule(value):
        kind, _ = value.__dlpack_device__()
        if int(kind) != CPU_DEVICE:
            raise _elsewhere(
                name, f"a device of DLPack's kind {int(kind)}", "a copy in host memory"
            )
        value = _capsule(value)
    found = read(value, name)
    if found.device[0] != CPU_DEVICE:
        raise _elsewhere(name, f"a device of DLPack's kind {found.device[0]}", "a copy of it")
    # sub-byte elements share bytes there, and have one each in NumPy: bytes are what both have
    element = DTYPES["uint8"] if found.dtype.packed else found.dtype
    shape, strides = found.shape, found.strides
    if found.dtype.packed:
        shape = (*shape[:-1], shape[-1] * found.dtype.bits // 8)
        strides = (*(s * found.dtype.bits // 8 for s in strides[:-1]), 1)
    return _from_memory(found.address, shape, strides, element, found.read_only, value)


def _capsule(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=(1, 0))  # so that it may say that it is read-only
    except TypeError:
        return value.__dlpack__()


class _Memory:
    """Memory as NumPy takes it; the array that reads it keeps `owner`."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__, self.owner = interface, owner


def _from_memory(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    element: DType,
    read_only: bool,
    owner: Any,
) -> Array:
    if 0 in shape:
        return np.empty(shape, element.numpy)
    size = element.numpy.itemsize
    interface = {
        "version": 3,
        "data": (address, read_only),
        "shape": shape,
        "strides": tuple(s * size for s in strides),
        "typestr": f"<u{size}" if size > 1 else "|u1",
    }
    return np.asarray(_Memory(interface, owner)).view(element.numpy)


def _elsewhere(name: str, where: str, copy: str) -> LaunchError:
    return LaunchError(
        f"{name} is on {where}, but this kernel runs on the CPU",
        expected="an array in host memory",
        got=where,
        fix=f'compile with target="cuda", or pass {copy}',
    )


_READERS: dict[str, Callable[[Any, str], Array]] = {
    "numpy": _numpy,
    "torch": _torch,
    "jax": _jax,
    "cupy": _cupy,
    "dlpack": _dlpack,
}
_FIXES = {
    "torch": "pass a dense tensor on the CPU; under torch.compile and torch.func call what "
    "kernel.as_torch_op(…) returns",
    "jax": "inside jax.jit call the kernel through jax.pure_callback",
}


def address_of(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def reach(array: Array) -> tuple[int, int]:
    """The first byte of an array and the byte after its last, counted from its address.

    >>> reach(np.zeros((4, 8), np.int16)[::-1, :2])
    (-48, 4)
    """
    if not array.size:
        return 0, 0
    ends = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0) + array.itemsize


# ── making ───────────────────────────────────────────────────────────────────────────────────


def stored_as(shape: tuple[int, ...], dtype: DType) -> tuple[tuple[int, ...], str]:
    """Shape and element type of the array that holds it: packed types come as bytes."""
    if dtype.packed:
        return (*shape[:-1], shape[-1] * dtype.bits // 8), "uint8"
    return shape, "float32" if dtype.name == "tfloat32" else dtype.name


def empty_like_library(library: str, shape: tuple[int, ...], dtype: DType) -> Any:
    """An uninitialised array of the caller's library; `delivered` makes it so where a library's
    arrays never change."""
    shape, name = stored_as(shape, dtype)
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=torch_dtype(dtype), device="cpu")
    if library == "jax":
        return _jax_room(shape, DTYPES[name])
    return np.empty(shape, DTYPES[name].numpy)


def delivered(library: str, made: Any) -> Any:
    """What the kernel has written, as the caller's library has it."""
    if library != "jax":
        return made
    import jax

    return jax.dlpack.from_dlpack(HostArray(made))


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
        return CPU_DEVICE, 0

    def __dlpack__(self, **_: Any) -> Any:
        array = self.array
        element = dtype(array.dtype)
        return export(array.ctypes.data, array.shape, element, (CPU_DEVICE, 0), array)


# ── packed elements ──────────────────────────────────────────────────────────────────────────


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
