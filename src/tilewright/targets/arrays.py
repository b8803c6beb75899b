"""Arrays of every library, in host memory or on a GPU, as addresses, shapes and strides; and what
the tensors that a program declares ask of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.bind import Memory, bind_sizes, check_apart, check_shape, given_part
from tilewright.ir.core import *
from tilewright.targets.dlpack import CPU, CUDA, CUDA_MANAGED, is_capsule, read, row_major
from tilewright.targets.torch_tensors import is_recorded, misaligned, read_only, write_refused

Array = np.ndarray[Any, np.dtype[Any]]
_type_of = cache(dtype)  # NumPy takes 30 µs to say what a type of its own is called


@dataclass(frozen=True)
class ArrayView:
    """Where an array is and how it lies; strides count elements, `device` is None in host memory.

    `stream` is the one its library is working on, where the library has such a thing. `owner`
    keeps the memory alive; when it is `borrowed`, its library does not follow our stream, and the
    owner must stay until the kernel has run. `recorded`: autograd follows what happens to it.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int | None
    stream: int | None = None
    read_only: bool = False
    owner: Any = None
    borrowed: bool = False
    recorded: bool = False

    @property
    def contiguous(self) -> bool:
        """Row-major without gaps; the strides of axes of length 1 do not matter.

        >>> ArrayView(0, (4, 1, 3), (3, 99, 1), dtype("int8"), 0).contiguous
        True
        """
        lies = zip(self.shape, self.strides, row_major(self.shape), strict=True)
        return 0 in self.shape or all(n == 1 or step == dense for n, step, dense in lies)

    @property
    def reach(self) -> tuple[int, int]:
        """The first byte and the byte after the last, counted from its address.

        >>> ArrayView(0, (4, 2), (-8, 1), dtype("int16"), None).reach
        (-48, 4)
        """
        if 0 in self.shape:
            return 0, 0
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)
        bits = self.dtype.bits
        return low * bits // 8, ((high + 1) * bits + 7) // 8

    @property
    def span(self) -> tuple[int, int]:
        """First byte and the byte after the last."""
        low, high = self.reach
        return self.address + low, self.address + high

    def seen_in(self, shape: tuple[int, ...]) -> ArrayView:
        """The same elements in another shape, where they lie so; else itself."""
        if prod(shape) != prod(self.shape) or not self.contiguous:
            return self
        return replace(self, shape=shape, strides=row_major(shape))

    def apart(self, other: ArrayView) -> tuple[int, int]:
        """Between which distances of the other's address from its own the two may meet."""
        if 0 in self.shape + other.shape:
            return 0, 0
        (low, high), (start, stop) = self.reach, other.reach
        return low - stop, high - start

    def addressed(self) -> Array:
        """As NumPy takes it; of GPU memory, what must not be read."""
        return np.asarray(_Interface(self)).view(self.dtype.numpy)

    def numpy(self) -> Array:
        """The elements, of an array in host memory."""
        if isinstance(self.owner, np.ndarray):
            return self.owner
        return self.addressed() if 0 not in self.shape else np.empty(self.shape, self.dtype.numpy)


class _Interface:
    def __init__(self, view: ArrayView) -> None:
        self.view, size = view, view.dtype.numpy.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (view.address, view.read_only),
            "shape": view.shape,
            "strides": tuple(s * size for s in view.strides),
            "typestr": f"|V{size}",
        }


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
    try:
        return bool(value.__dlpack_device__()[0] == CPU)
    except Exception:  # on a device that DLPack does not know, or traced by JAX
        return False


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def view_of(value: Any, name: str, stream: int | None = None, *, host: bool = False) -> ArrayView:
    """The view of `value`, checked to be on a GPU, or in `host` memory. Nothing is copied, nothing
    waits on the host."""
    if isinstance(value, ArrayView):
        return value
    library, place = library_of(value), "host memory" if host else "GPU memory"
    try:
        # a property that raises when the memory is on the host; PyTorch's costs more than a launch
        if not host and library in ("", "cupy", "dlpack"):
            interface = getattr(value, "__cuda_array_interface__", None)
            if interface is not None:
                return _interface(value, interface)
        if library:
            return _READERS[library](value, name, stream, host)
    except CompileError as error:  # from dtype()
        raise LaunchError(
            f"{name} has the wrong dtype: elements Tilewright does not know",
            expected="one of the types that T names",
            got=error.message,
            fix=f"convert {name}, or pass its bytes as uint8",
        ) from None
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(
            f"{name} could not be read as an array in {place}",
            expected=f"an array whose elements lie in {place}",
            got=f"{type(value).__name__}: {str(error).splitlines()[0] if str(error) else error!r}",
            fix=_FIXES.get(library, f"pass a dense array in {place}"),
        ) from None
    kinds, copy = "a PyTorch, CuPy or JAX array", f"torch.as_tensor({name}, device='cuda')"
    if host:
        kinds, copy = "a NumPy array, a PyTorch tensor", f"np.asarray({name})"
    raise LaunchError(
        f"{name} must be an array" + ("" if host else " in GPU memory"),
        expected=f"{kinds}, or anything with __dlpack__",
        got=type(value).__name__,
        fix=f"convert it: {copy}",
    )


def _elsewhere(name: str, where: str, copy: str, host: bool) -> LaunchError:
    """`where` it is, and a `copy` that would do."""
    if host:
        message, here, target = f"on {where}, but this kernel runs on the CPU", "host", "cuda"
    else:
        message, here, target = "in host memory, but this kernel runs on the GPU", "GPU", "cpu"
    return LaunchError(
        f"{name} is {message}",
        expected=f"an array in {here} memory",
        got=where,
        fix=f'pass {copy}, or compile with target="{target}"',
    )


def _numpy(value: Array, name: str, stream: int | None, host: bool) -> ArrayView:
    if not host:
        raise _elsewhere(name, "a NumPy array", f"torch.from_numpy({name}).cuda()", host)
    if isinstance(value, np.ma.MaskedArray):
        raise LaunchError(
            f"{name} is a masked array, and a kernel sees no masks",
            expected="a plain array",
            got="numpy.ma.MaskedArray",
            fix=f"pass {name}.filled(…), or its data: {name}.data",
        )
    address, size = int(value.__array_interface__["data"][0]), value.itemsize
    element = _type_of(value.dtype if value.dtype.isnative else str(value.dtype))
    if not value.flags.aligned:
        raise misaligned(name, size, address)
    strides = tuple(s // size for s in value.strides)
    frozen = not value.flags.writeable
    return ArrayView(address, value.shape, strides, element, None, read_only=frozen, owner=value)


def _torch(tensor: Any, name: str, stream: int | None, host: bool) -> ArrayView:
    if tensor.is_cuda is host or (host and tensor.device.type != "cpu"):
        where = str(tensor.device) if host else f"a tensor on {tensor.device}"
        raise _elsewhere(name, where, f"{name}.{'cpu' if host else 'cuda'}()", host)
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError("it shows other numbers than its memory holds")
    device = None if host else int(tensor.get_device())
    # PyTorch counts the bytes of what it calls float4_e2m1fn_x2
    paired = str(tensor.dtype).endswith("_x2")
    return ArrayView(
        address=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=_type_of("uint8" if paired else tensor.dtype),
        device=device,
        stream=None if device is None else torch_stream(device),
        owner=tensor,
        recorded=is_recorded(tensor),
    )


def torch_stream(device: int) -> int:
    """The handle of PyTorch's current stream."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)


def _jax(value: Any, name: str, stream: int | None, host: bool) -> ArrayView:
    """JAX's arrays never change: they are read-only, and a written parameter refuses them."""
    if not host:
        return replace(_dlpack(value, name, stream, host), read_only=True)
    devices = getattr(value, "devices", None)
    platforms = {d.platform for d in devices()} if devices else set()
    if platforms - {"cpu"}:  # NumPy would fetch a copy
        raise _elsewhere(name, f"JAX's {', '.join(platforms)}", f"np.asarray({name})", host)
    return _numpy(np.asarray(value), name, stream, host)


def _cupy(value: Any, name: str, stream: int | None, host: bool) -> ArrayView:
    raise _elsewhere(name, "CuPy's GPU", f"cupy.asnumpy({name})", host)


def _interface(value: Any, interface: dict[str, Any]) -> ArrayView:
    address, read_only = interface["data"]
    element = dtype(getattr(value, "dtype", None) or np.dtype(interface["typestr"]))
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    stream = interface.get("stream")
    return ArrayView(
        address=int(address),
        shape=shape,
        strides=row_major(shape) if strides is None else tuple(s // element.bytes for s in strides),
        dtype=element,
        device=_device_of(value, int(address)),
        # the protocol's 1 and 2 are the legacy and per-thread default streams' handles
        stream=None if stream is None else int(stream),
        read_only=bool(read_only),
        owner=value,
    )


def _device_of(value: Any, address: int) -> int:
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[1])
    from tilewright.targets.cuda.driver import driver

    found = driver()
    if found.device_count == 1 or not address:
        return 0
    kind = found.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(found.call(found.api.cuPointerGetAttribute(kind, address)))


def _dlpack(value: Any, name: str, stream: int | None, host: bool) -> ArrayView:
    """Not NumPy's reader: it knows no bfloat16 and no float8."""
    capsule = value if is_capsule(value) else None
    kind = int(value.__dlpack_device__()[0]) if capsule is None else read(value, name).device[0]
    if kind not in ((CPU,) if host else (CUDA, CUDA_MANAGED)):
        where = f"a device of DLPack's kind {kind}" if host else type(value).__name__
        raise _elsewhere(name, where, f"a copy in {'host' if host else 'GPU'} memory", host)
    if capsule is None:
        # the producer makes `stream` wait for what it has under way; 1 is the legacy default
        capsule = _capsule(value) if host else value.__dlpack__(stream=stream or 1)
    found = read(capsule, name)
    shape, strides, element = found.shape, found.strides, found.dtype
    if element.packed:
        shape, strides, element = _bytes(shape, strides, element, name)
    return ArrayView(
        address=found.address,
        shape=shape,
        strides=strides,
        dtype=element,
        device=None if host else found.device[1],
        read_only=found.read_only,
        owner=(value, capsule),
        borrowed=True,
    )


def _capsule(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=(1, 0))  # so that it may say that it is read-only
    except TypeError:
        return value.__dlpack__()


def _bytes(
    shape: tuple[int, ...], strides: tuple[int, ...], kind: DType, name: str
) -> tuple[tuple[int, ...], tuple[int, ...], DType]:
    """An array of elements that share bytes as the bytes."""
    per = 8 // kind.bits
    if not shape or strides[-1] != 1 or any(n % per for n in (shape[-1], *strides[:-1])):
        raise LaunchError(
            f"{name} has {kind} elements that do not fill whole bytes",
            expected=f"rows of a multiple of {per} elements, next to each other",
            got=f"shape {shape}, strides {strides}",
            fix="pass a contiguous copy, or its bytes as uint8",
        )
    steps = (*(s // per for s in strides[:-1]), 1)
    return (*shape[:-1], shape[-1] // per), steps, dtype("uint8")


_READERS: dict[str, Callable[[Any, str, int | None, bool], ArrayView]] = {
    "numpy": _numpy,
    "torch": _torch,
    "jax": _jax,
    "cupy": _cupy,
    "dlpack": _dlpack,
}
_FIXES = {
    "torch": "pass a dense tensor; under torch.compile and torch.func call what "
    "kernel.as_torch_op(…) returns",
    "jax": "inside jax.jit call it by tilewright.jax.call(kernel, …)",
}


# ── arrays and streams of a call on a GPU ────────────────────────────────────────────────────


def waits_for_stream(value: Any) -> bool:
    """Its library has no current stream: it is told ours, and makes that one wait for its work."""
    library = library_of(value)
    if library == "dlpack":
        return not hasattr(value, "__cuda_array_interface__")
    return library == "jax"


def read_arrays(arrays: Mapping[str, Any], stream: Any) -> tuple[dict[str, ArrayView], int]:
    """The arrays' views and the stream to launch on: `stream`, or the one their libraries use."""
    number = None if stream is None else stream_handle(stream)
    told = {name for name, value in arrays.items() if waits_for_stream(value)}
    views = {n: view_of(value, n) for n, value in arrays.items() if n not in told}
    where = common_stream(views) if number is None else number
    return {n: views[n] if n in views else view_of(v, n, where) for n, v in arrays.items()}, where


def common_device(views: Mapping[str, ArrayView]) -> int | None:
    """The device all arrays are on; None without arrays."""
    devices = {view.device: name for name, view in views.items()}
    if len(devices) > 1:
        (a, first), (b, second) = list(devices.items())[:2]
        raise LaunchError(
            "the arguments are on different GPUs",
            expected="one device",
            got=f"{first} on cuda:{a}, {second} on cuda:{b}",
        )
    return next(iter(devices), None)


def common_stream(views: Mapping[str, ArrayView]) -> int:
    """The stream the arrays' libraries are working on: no order could be kept with two."""
    streams = {0 if v.stream == 1 else v.stream: n for n, v in views.items()}
    streams.pop(None, None)
    if len(streams) > 1:
        (a, first), (b, second) = list(streams.items())[:2]
        raise LaunchError(
            "the arguments' libraries are working on different streams",
            got=f"{first}: {a:#x}, {second}: {b:#x}",
            fix="pass stream=, and let it wait for the others",
        )
    return next(iter(streams), None) or 0


def stream_handle(stream: Any) -> int:
    """A stream as the driver's handle: an integer, PyTorch's, CuPy's, cuda.core's."""
    if hasattr(stream, "__cuda_stream__"):
        pair = stream.__cuda_stream__
        return int((pair() if callable(pair) else pair)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise LaunchError(
            "stream must be a CUDA stream",
            expected="a PyTorch or CuPy stream, or the driver's handle as an integer",
            got=type(stream).__name__,
        ) from None


# ── arrays against the tensors a program declares ────────────────────────────────────────────


def sizes_of(program: Program, views: Mapping[str, ArrayView]) -> dict[Var, int]:
    """The sizes of a call, from the arrays that are given: None may stand for what no kernel
    touches."""
    if not program.dims:
        return {}
    program = given_part(program, views)
    shapes = {t.name: _shape(t.dtype, views[t.name]) for t in program.tensors}
    return bind_sizes(program, shapes, {name: view.strides for name, view in views.items()})


def _shape(dtype: DType, view: ArrayView) -> tuple[int, ...]:
    """In elements, of which bytes hold several; NumPy's arrays of packed types do not."""
    if not (dtype.packed and view.shape) or (view.device is None and view.dtype.packed):
        return view.shape
    return (*view.shape[:-1], view.shape[-1] * 8 // dtype.bits)


class ProgramCheck:
    """`check(views) -> sizes by name` for `CudaModule.caller`; `written` names the parameters
    some kernel writes, `align` the bytes a tensor's address must be a multiple of."""

    def __init__(
        self, program: Program, written: Collection[str], align: Mapping[str, int] | None = None
    ) -> None:
        self.program = program
        self.written = frozenset(written)
        self.align = dict(align or {})

    def __call__(self, views: Mapping[str, ArrayView]) -> dict[str, int]:
        return {var.name: value for var, value in self.sizes(views).items()}

    def sizes(self, views: Mapping[str, ArrayView]) -> dict[Var, int]:
        tensors = [t for t in self.program.tensors if t.name in views]
        for tensor in tensors:
            self._check_element(tensor.name, tensor.dtype, views[tensor.name])
        sizes = sizes_of(self.program, views)
        for tensor in tensors:
            view = views[tensor.name]
            shape = _shape(tensor.dtype, view)
            check_shape(tensor, shape, view.strides, view.contiguous, sizes)
        # rows may interleave: NumPy computes it from addresses, which it does not look behind
        check_apart(
            self.written,
            {name: Memory(v.shape, v.strides, 1, v.span) for name, v in views.items()},
            lambda a, b: np.shares_memory(views[a].addressed(), views[b].addressed()),
        )
        return sizes

    def _check_element(self, name: str, dtype: DType, view: ArrayView) -> None:
        allowed = {"float32" if dtype.name == "tfloat32" else dtype.name}
        if dtype.packed:  # bytes that hold several elements
            allowed |= {"uint8", "int8"}
        if view.dtype.name not in allowed:
            raise LaunchError(
                f"{name} has the wrong dtype",
                expected=" or ".join(sorted(allowed)),
                got=str(view.dtype),
                fix=f"convert it to {dtype}, or declare {name} as {view.dtype}",
            )
        if not view.address and 0 not in view.shape:
            raise LaunchError(
                f"{name} has no memory",
                expected="an array whose elements are somewhere",
                got="an address of 0, as of a PyTorch tensor whose storage was freed",
                fix=f"fill {name} before the call",
            )
        unit = self.align.get(name, max(dtype.bits // 8, 1))
        if view.address % unit:
            raise misaligned(name, unit, view.address)
        if name in self.written and view.recorded:
            raise write_refused(view.owner, name)
        if name in self.written and view.read_only:
            raise read_only(name, view.owner[0] if view.borrowed else view.owner)
