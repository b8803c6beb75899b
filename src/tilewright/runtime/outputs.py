"""Outputs that a call on a GPU makes: in the caller's library, on its device and stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tilewright.ir.bind import bind_sizes, given_part, static_value
from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import DTYPES, DType
from tilewright.ir.expr import Var
from tilewright.runtime.arrays import check_jax_type, library_of, stored_as, torch_loaded
from tilewright.runtime.launch import Launcher
from tilewright.support.errors import LaunchError
from tilewright.targets.cuda.dlpack import is_capsule
from tilewright.targets.cuda.driver import DeviceArray, driver
from tilewright.targets.cuda.views import stream_handle, view_of


class OutputMaker:
    """A caller of all parameters, as a caller of those that `out_idx` does not name."""

    def __init__(self, launcher: Launcher, call: Callable[..., None]) -> None:
        self.launcher, self.call = launcher, call
        self.names = [launcher.params[i].name for i in launcher.inputs]
        self.made = [p for i in launcher.outputs if isinstance(p := launcher.params[i], Buffer)]
        self.strided = any(t.strides is not None for t in launcher.program.tensors)
        self._shapes: dict[Any, list[tuple[int, ...]]] = {}

    def __call__(self, *given: Any, **named: Any) -> Any:
        streams = {}
        if "stream" not in self.names and "stream" in named:
            streams["stream"] = named.pop("stream")
        values = self.launcher.in_order(given, named)
        make = maker(values, streams.get("stream"))
        outputs = [
            make(shape, b.dtype) for shape, b in zip(self.shapes(values), self.made, strict=True)
        ]
        places = dict(zip(self.launcher.inputs, values, strict=True))
        places.update(zip(self.launcher.outputs, outputs, strict=True))
        self.call(*(places[i] for i in range(len(places))), **streams)
        results = [finish(values, output) for output in outputs]
        return results[0] if len(results) == 1 else results

    def shapes(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """The outputs' shapes, which follow from the inputs'."""
        if self.strided:  # strides give sizes too
            return self._evaluate(self.sizes(values))
        key = tuple(getattr(v, "shape", None) for v in values) if self.launcher.dynamic else ()
        found = self._shapes.get(key)
        if found is None:
            found = self._evaluate(self.sizes(values) if self.launcher.dynamic else {})
            if None not in key:
                if len(self._shapes) >= 1024:
                    self._shapes.clear()
                self._shapes[key] = found
        return found

    def _evaluate(self, sizes: Mapping[Var, int]) -> list[tuple[int, ...]]:
        return [tuple(static_value(s, sizes) for s in b.shape) for b in self.made]

    def sizes(self, values: Sequence[Any]) -> Mapping[Var, int]:
        shapes, strides = {}, {}
        for i, value in zip(self.launcher.inputs, values, strict=True):
            b = self.launcher.params[i]
            if not isinstance(b, Buffer) or value is None:
                continue
            view = view_of(value, b.name)
            shape = view.shape
            if b.dtype.packed and shape:
                shape = (*shape[:-1], shape[-1] * 8 // b.dtype.bits)
            shapes[b.name], strides[b.name] = shape, view.strides
        return bind_sizes(given_part(self.launcher.program, shapes), shapes, strides)


def maker(values: Sequence[Any], stream: Any) -> Callable[[tuple[int, ...], DType], Any]:
    """`make(shape, dtype)`: a new array like the first among `values`."""
    like = next((v for v in values if library_of(v) not in ("", "numpy") or is_capsule(v)), None)
    library = library_of(like)
    if like is None and torch_loaded():
        library = "torch"
    handle = None if stream is None else stream_handle(stream)
    make = {"torch": _torch, "cupy": _cupy, "jax": _jax}.get(library, _ours)
    return lambda shape, dtype: make(like, shape, dtype, handle)


def finish(values: Sequence[Any], output: Any) -> Any:
    """`output`, once it is written, as the caller's library has it: JAX's arrays never change."""
    if isinstance(output, DeviceArray) and any(library_of(v) == "jax" for v in values):
        import jax

        return jax.dlpack.from_dlpack(output)
    return output


def _torch(like: Any, shape: tuple[int, ...], dtype: DType, stream: int | None) -> Any:
    import torch

    shape, name = stored_as(shape, dtype)
    device = torch.device("cuda") if like is None else like.device
    there: AbstractContextManager[Any] = nullcontext()
    if stream is not None:
        # its allocator hands memory out for one stream
        there = torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))
    with there:
        return torch.empty(shape, dtype=getattr(torch, name), device=device)


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


def _jax(like: Any, shape: tuple[int, ...], dtype: DType, stream: int | None) -> Any:
    check_jax_type(dtype)
    return _ours(like, shape, dtype, stream)  # `finish` makes it JAX's


def _ours(like: Any, shape: tuple[int, ...], dtype: DType, stream: int | None) -> Any:
    found = driver()
    shape, _ = stored_as(shape, dtype)
    ordinal = found.current_ordinal() if like is None else _ordinal(like)
    element = DTYPES["uint8"] if dtype.packed else dtype
    return DeviceArray(found, found.device(ordinal), shape, element, stream or 0)


def _ordinal(like: Any) -> int:
    if hasattr(like, "__dlpack_device__"):
        return int(like.__dlpack_device__()[1])
    return view_of(like, "an argument").device
