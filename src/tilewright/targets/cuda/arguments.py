"""The declaration's side of a launch: arrays against the tensors a program declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.ir.bind import (
    bind_sizes,
    check_places,
    check_size,
    check_strides,
    given_part,
    overlaps,
    static_value,
)
from tilewright.ir.dtype import DType
from tilewright.ir.op import Program
from tilewright.support.errors import LaunchError
from tilewright.targets.cuda.launch import not_contiguous
from tilewright.targets.cuda.views import ArrayView
from tilewright.targets.torch_tensors import write_refused


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
            view, name = views[tensor.name], tensor.name
            want = tuple(static_value(s, sizes) for s in tensor.shape)
            check_size(tensor, shapes[name], want)
            if tensor.strides is None:
                if not view.contiguous:
                    raise not_contiguous(name, view)
            else:
                steps = tuple(static_value(s, sizes) for s in tensor.strides)
                check_strides(name, view.strides, steps, want)
        self._check_overlap(views)
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
            raise LaunchError(
                f"{name} does not start at a multiple of {unit} bytes",
                expected=f"an address that is a multiple of {unit}",
                got=f"{view.address:#x}",
                fix="pass a copy: x.clone()",
            )
        if name in self.written and view.recorded:
            raise write_refused(view.owner, name)
        if name in self.written and view.read_only:
            raise LaunchError(
                f"{name} is written by the kernel, but the array is read-only",
                expected="an array that may be written",
                got="a read-only array",
                fix="pass a writable copy; JAX arrays never change: let the kernel make its "
                "outputs (out_idx=[…], or T.empty) and return them",
            )

    def _check_overlap(self, views: Mapping[str, ArrayView]) -> None:
        for name in self.written & views.keys():
            check_places(name, views[name].shape, views[name].strides)
        spans = {name: view.span for name, view in views.items()}
        for a, b in combinations(spans, 2):
            if not self.written & {a, b}:
                continue
            (low, high), (start, stop) = spans[a], spans[b]
            if start < high and low < stop and _share(views[a], views[b]):
                raise overlaps(*((a, b) if a in self.written else (b, a)), spans)


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
