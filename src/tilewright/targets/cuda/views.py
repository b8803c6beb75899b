"""Arrays in GPU memory as addresses, shapes and strides, whatever library they come from."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.bind import Memory, bind_sizes, check_apart, check_shape, given_part
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.op import Program
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.cuda.dlpack import CUDA, CUDA_MANAGED, is_capsule, read, row_major
from tilewright.targets.torch_tensors import is_recorded, misaligned, read_only, write_refused


@dataclass(frozen=True)
class ArrayView:
    """Where an array is and how it lies; strides count elements.

    `stream` is the one its library is working on, where the library has such a thing. `owner`
    keeps the memory alive; when it is `borrowed`, its library does not follow our stream, and the
    owner must stay until the kernel has run. `recorded`: autograd follows what happens to it.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int
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
        expected = 1
        for extent, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent > 1 and step != expected:
                return 0 in self.shape
            expected *= extent
        return True

    @property
    def span(self) -> tuple[int, int]:
        """First byte and the byte after the last."""
        if 0 in self.shape:
            return self.address, self.address
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(r for r in reach if r < 0)
        high = sum(r for r in reach if r > 0)
        bits = self.dtype.bits
        return self.address + low * bits // 8, self.address + ((high + 1) * bits + 7) // 8


def waits_for_stream(value: Any) -> bool:
    """Its library has no current stream: it is told ours, and makes that one wait for its work."""
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return True
    # PyTorch first: its interface property costs more than a launch
    if isinstance(value, ArrayView) or hasattr(value, "data_ptr"):
        return False
    if is_capsule(value):
        return True
    return not hasattr(value, "__cuda_array_interface__") and hasattr(value, "__dlpack__")


def view_of(value: Any, name: str, stream: int | None = None) -> ArrayView:
    """The view of `value`, checked to be on a GPU. Nothing is copied, nothing waits on the host."""
    if isinstance(value, ArrayView):
        return value
    root = type(value).__module__.partition(".")[0]
    try:
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            return _torch(value, name)
        if root in ("jax", "jaxlib"):
            return _dlpack(value, name, stream, read_only=True)
        # a property that raises when the memory is on the host
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is not None:
            return _interface(value, interface)
        if is_capsule(value) or (root != "numpy" and hasattr(value, "__dlpack__")):
            return _dlpack(value, name, stream)
    except CompileError as error:  # from dtype()
        raise LaunchError(
            f"{name} has elements Tilewright does not know", got=error.message
        ) from None
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(
            f"{name} could not be read as an array in GPU memory",
            expected="an array whose elements lie in GPU memory",
            got=f"{type(value).__name__}: {error}",
            fix="pass a dense array on the GPU; under torch.compile and torch.func call what "
            "kernel.as_torch_op(…) returns",
        ) from None
    if root == "numpy":
        raise _on_host(name, "a NumPy array", f"torch.from_numpy({name}).cuda()")
    raise LaunchError(
        f"{name} must be an array in GPU memory",
        expected="a PyTorch, CuPy or JAX array, or anything with __cuda_array_interface__ "
        "or __dlpack__",
        got=type(value).__name__,
        fix=f"convert it: torch.as_tensor({name}, device='cuda')",
    )


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


def _on_host(name: str, what: str, fix: str) -> LaunchError:
    return LaunchError(
        f"{name} is in host memory, but this kernel runs on the GPU",
        expected="an array in GPU memory",
        got=what,
        fix=f'pass {fix}, or compile with target="cpu"',
    )


def _torch(tensor: Any, name: str) -> ArrayView:
    if not tensor.is_cuda:
        raise _on_host(name, f"a tensor on {tensor.device}", f"{name}.cuda()")
    device = int(tensor.get_device())
    # PyTorch counts the bytes of what it calls float4_e2m1fn_x2
    paired = str(tensor.dtype).endswith("_x2")
    return ArrayView(
        address=tensor.data_ptr(),
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=dtype("uint8" if paired else tensor.dtype),
        device=device,
        stream=torch_stream(device),
        owner=tensor,
        recorded=is_recorded(tensor),
    )


def torch_stream(device: int) -> int:
    """The handle of PyTorch's current stream."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device) if raw else torch.cuda.current_stream(device).cuda_stream)


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


def _dlpack(value: Any, name: str, stream: int | None, *, read_only: bool = False) -> ArrayView:
    if is_capsule(value):
        capsule, found = value, read(value, name)
        kind = found.device[0]
    else:
        capsule, found = None, None
        kind = int(value.__dlpack_device__()[0])
    if kind not in (CUDA, CUDA_MANAGED):
        raise _on_host(name, type(value).__name__, "an array on the GPU")
    if found is None:
        # the producer makes `stream` wait for what it has under way; 1 is the legacy default
        capsule = value.__dlpack__(stream=stream or 1)
        found = read(capsule, name)
    shape, strides, element = found.shape, found.strides, found.dtype
    if element.packed:
        shape, strides, element = _bytes(shape, strides, element, name)
    return ArrayView(
        address=found.address,
        shape=shape,
        strides=strides,
        dtype=element,
        device=found.device[1],
        read_only=read_only or found.read_only,
        owner=(value, capsule),
        borrowed=True,
    )


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


# ── arrays against the tensors a program declares ────────────────────────────────────────────


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
        program = given_part(self.program, views)  # None may stand for what no kernel touches
        for tensor in program.tensors:
            self._check_element(tensor.name, tensor.dtype, views[tensor.name])
        shapes = {t.name: self._shape(t.dtype, views[t.name]) for t in program.tensors}
        strides = {name: view.strides for name, view in views.items()}
        sizes = bind_sizes(program, shapes, strides)
        for tensor in program.tensors:
            view = views[tensor.name]
            check_shape(tensor, shapes[tensor.name], view.strides, view.contiguous, sizes)
        check_apart(
            self.written,
            {name: Memory(v.shape, v.strides, 1, v.span) for name, v in views.items()},
            lambda a, b: _share(views[a], views[b]),
        )
        return {var.name: value for var, value in sizes.items()}

    def _shape(self, dtype: DType, view: ArrayView) -> tuple[int, ...]:
        if not dtype.packed:
            return view.shape
        return (*view.shape[:-1], view.shape[-1] * 8 // dtype.bits)

    def _check_element(self, name: str, dtype: DType, view: ArrayView) -> None:
        allowed = {dtype.name}
        if dtype.name == "tfloat32":
            allowed = {"float32"}
        elif dtype.packed:  # bytes that hold several elements
            allowed = {"uint8", "int8", dtype.name}
        if view.dtype.name not in allowed:
            raise LaunchError(
                f"{name} has the wrong dtype",
                expected=" or ".join(sorted(allowed)),
                got=str(view.dtype),
                fix=f"convert it to {dtype}, or declare {name} as {view.dtype}",
            )
        unit = self.align.get(name, max(dtype.bits // 8, 1))
        if view.address % unit:
            raise misaligned(name, unit, view.address)
        if name in self.written and view.recorded:
            raise write_refused(view.owner, name)
        if name in self.written and view.read_only:
            raise read_only(name, view.owner[0] if view.borrowed else view.owner)


def _share(a: ArrayView, b: ArrayView) -> bool:
    """Whether an element of one lies in one of the other: rows may interleave. NumPy computes it
    from addresses, which it does not look behind."""
    return np.shares_memory(_Addresses(a).array, _Addresses(b).array)


class _Addresses:
    """A view as NumPy takes it, of memory that must not be read."""

    def __init__(self, view: ArrayView) -> None:
        size = view.dtype.bytes
        self.__array_interface__ = {
            "version": 3,
            "data": (view.address, True),
            "shape": view.shape,
            "strides": tuple(s * size for s in view.strides),
            "typestr": f"|V{size}",
        }

    @property
    def array(self) -> Any:
        return np.asarray(self)
