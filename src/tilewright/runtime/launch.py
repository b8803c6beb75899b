"""From the caller's arguments to checked arrays: nothing runs until everything fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.bind import (
    array_sizes,
    describe,
    given_part,
    in_order,
    static_value,
    unused_params,
    written_params,
)
from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Var
from tilewright.ir.op import Program
from tilewright.runtime.arrays import Array, as_numpy, empty_like_library, library_of, unpack
from tilewright.support.errors import LaunchError

Args = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """Checked arguments, what to return, and what to do once the kernel has run."""

    args: Args
    results: tuple[Any, ...]
    after: tuple[Callable[[], None], ...] = ()


class Launcher:
    """Checks and converts the arguments of one program; made once, used at every call."""

    def __init__(self, program: Program, outputs: Sequence[int] = ()) -> None:
        self.program = program
        self.params = program.params
        self.outputs = tuple(_position(i, len(program.params)) for i in outputs)
        for i in self.outputs:
            if isinstance(self.params[i], Var):
                raise LaunchError(
                    f"out_idx names {self.params[i].name}, which is a scalar",
                    expected="positions of tensor parameters",
                    fix="return a number through a tensor of one element",
                )
        self.written = written_params(program)
        self.unused = unused_params(program)
        self.inputs = tuple(i for i in range(len(self.params)) if i not in self.outputs)
        self.dynamic = bool(program.dims)

    def prepare(self, given: Sequence[Any], named: dict[str, Any] | None = None) -> Call:
        given = self.in_order(given, named or {})
        raw: dict[str, Any] = {}
        arrays: dict[str, Array] = {}
        after: list[Callable[[], None]] = []
        for i, value in zip(self.inputs, given, strict=True):
            param = self.params[i]
            raw[param.name] = value
            if isinstance(param, Var):
                raw[param.name] = _scalar(param, value)
            elif value is not None or param.name not in self.unused:
                arrays[param.name] = self._array(param, value, after)
        sizes = self._sizes(arrays)
        for tensor in self.program.tensors:
            if tensor.name in raw and raw[tensor.name] is None:
                shape = tuple(static_value(s, sizes) for s in tensor.shape)
                arrays[tensor.name] = np.zeros(shape, tensor.dtype.numpy)
        library = next((library_of(v) for v in given if library_of(v)), "numpy")
        for i in self.outputs:
            param = self.params[i]
            assert isinstance(param, Buffer)
            shape = tuple(static_value(s, sizes) for s in param.shape)
            raw[param.name] = empty_like_library(library, shape, param.dtype)
            arrays[param.name] = self._array(param, raw[param.name], after)
        for tensor in self.program.tensors:
            _check_shape(tensor, arrays[tensor.name], sizes)
        self._check_overlap(arrays)
        args: Args = {
            p.name: arrays[p.name] if isinstance(p, Buffer) else raw[p.name] for p in self.params
        }
        results = tuple(raw[self.params[i].name] for i in self.outputs)
        return Call(args, results, tuple(after))

    def in_order(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        return in_order(self.program.name, [self.params[i].name for i in self.inputs], given, named)

    def _sizes(self, arrays: dict[str, Array]) -> dict[Var, int]:
        if not self.dynamic:
            return {}
        return array_sizes(given_part(self.program, arrays), arrays)

    def _array(self, param: Buffer, value: Any, after: list[Callable[[], None]]) -> Array:
        array = as_numpy(value, param.name)
        dtype = param.dtype
        if dtype.packed and array.dtype in (np.uint8, np.int8):
            if param.name in self.written and not array.flags.writeable:
                raise _read_only(param)
            elements, pack = unpack(array, dtype)
            if param.name in self.written:
                after.append(lambda: pack(elements))
            return elements
        if array.dtype != dtype.numpy:
            raise LaunchError(
                f"{param.name} has the wrong dtype",
                expected=str(dtype),
                got=str(array.dtype),
                fix=f"convert it to {dtype}, or declare {param.name} as {array.dtype}",
            )
        if param.name in self.written and not array.flags.writeable:
            raise _read_only(param)
        if not array.flags.aligned:
            raise LaunchError(
                f"{param.name} is not aligned to its {array.itemsize}-byte elements",
                fix="pass a copy: np.ascontiguousarray(x)",
            )
        return array

    def _check_overlap(self, arrays: dict[str, Array]) -> None:
        spans = {}
        for name in self.written:
            if name in arrays and arrays[name].size:
                spans[name] = np.lib.array_utils.byte_bounds(arrays[name])
        for name, (low, high) in spans.items():
            for other, array in arrays.items():
                if other == name or not array.size:
                    continue
                start, stop = np.lib.array_utils.byte_bounds(array)
                if start < high and low < stop and np.shares_memory(arrays[name], array):
                    raise LaunchError(
                        f"{name} is written and overlaps {other}",
                        expected="a written parameter that shares no memory with another",
                        fix=f"pass a copy of {other}, or write to a new array",
                    )


def _position(index: int, count: int) -> int:
    if not -count <= index < count:
        raise LaunchError(
            f"out_idx {index} is not among {count} parameters",
            expected=f"{-count} … {count - 1}",
            got=str(index),
            fix="-1 is the last parameter",
        )
    return index % count


def _read_only(param: Buffer) -> LaunchError:
    return LaunchError(
        f"{param.name} is written by the kernel, but the array is read-only",
        fix="pass a writable copy",
    )


def _scalar(param: Var, value: Any) -> Any:
    dtype: DType = param.dtype
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(value, bool) or (isinstance(value, int) and not dtype.is_bool):
        if dtype.is_int and not dtype.min_value <= value <= dtype.max_value:
            raise LaunchError(
                f"{param.name} = {value} does not fit {dtype}",
                expected=f"{dtype.min_value} … {dtype.max_value}",
                got=str(value),
                fix=f"declare {param.name} as T.int64",
            )
        return dtype.numpy.type(value)
    if isinstance(value, float) and dtype.is_float:
        return dtype.numpy.type(value)
    raise LaunchError(
        f"{param.name} must be a number of type {dtype}",
        expected=str(dtype),
        got=f"{type(value).__name__}: {value!r}"[:60],
        fix=f"pass a plain {'int' if dtype.is_int else 'number'}, or declare it otherwise",
    )


def _check_shape(tensor: Buffer, array: Array, sizes: dict[Var, int]) -> None:
    want = tuple(_value(s, sizes) for s in tensor.shape)
    if array.shape != want:
        got = str(array.shape)
        if len(array.shape) != len(want):
            raise LaunchError(
                f"{tensor.name} must have {len(want)} dimensions",
                expected=describe(tensor.shape),
                got=got,
                fix=f"reshape it to {describe(tensor.shape)}",
            )
        axis = next(i for i, (a, b) in enumerate(zip(array.shape, want, strict=True)) if a != b)
        raise LaunchError(
            f"{tensor.name} has the wrong size in dimension {axis}",
            expected=str(want)
            if all(isinstance(s, Const) for s in tensor.shape)
            else f"{want}, declared as {describe(tensor.shape)}",
            got=got,
            fix="pass an array of that shape, or compile the kernel for this one",
        )
    if tensor.strides is None:
        if not array.flags.c_contiguous:
            raise LaunchError(
                f"{tensor.name} must be contiguous (row-major)",
                got=f"strides of {tuple(s // array.itemsize for s in array.strides)} elements",
                fix="pass np.ascontiguousarray(x) / x.contiguous(), or declare T.StridedTensor",
            )
        return
    expect = tuple(_value(s, sizes) for s in tensor.strides)
    got_strides = tuple(s // array.itemsize for s in array.strides)
    for axis, (a, b, extent) in enumerate(zip(got_strides, expect, want, strict=True)):
        if a != b and extent > 1:
            raise LaunchError(
                f"{tensor.name} has the wrong stride in dimension {axis}",
                expected=f"{expect} elements",
                got=f"{got_strides} elements",
                fix="pass an array with these strides, or declare others",
            )


def _value(size: Expr, sizes: dict[Var, int]) -> int:
    return int(size.value) if isinstance(size, Const) else static_value(size, sizes)
