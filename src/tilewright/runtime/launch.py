"""From the caller's arguments to checked arrays: nothing runs until everything fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.ir.bind import (
    Memory,
    array_sizes,
    check_apart,
    check_shape,
    describe,
    does_not_fit,
    given_part,
    in_order,
    shape_of,
    unused_params,
    written_params,
)
from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var
from tilewright.ir.op import Program
from tilewright.runtime.arrays import (
    Array,
    address_of,
    as_numpy,
    delivered,
    empty_like_library,
    library_of,
    reach,
    unpack,
)
from tilewright.support.errors import LaunchError
from tilewright.support.show import brief
from tilewright.targets.torch_tensors import (
    is_recorded,
    misaligned,
    read_only,
    write_counter,
    write_refused,
)

Args = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """Checked arguments, and what to do and return once the kernel has run."""

    args: Args
    sizes: dict[Var, int]
    library: str  # the caller's
    outputs: tuple[Any, ...] = ()
    after: tuple[Callable[[], None], ...] = ()

    def finish(self) -> Any:
        for action in self.after:
            action()
        made = [delivered(self.library, output) for output in self.outputs]
        return None if not made else made[0] if len(made) == 1 else made


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
        self.made = tuple(self.params[i].name for i in self.outputs)
        self.dynamic = bool(program.dims)

    def prepare(self, given: Sequence[Any], named: Mapping[str, Any] | None = None) -> Call:
        given = self.in_order(given, named or {})
        library = next((found for v in given if (found := library_of(v))), "numpy")
        arrays: dict[str, Array] = {}  # as the kernel takes them
        memory: dict[str, Array] = {}  # as the caller has them
        scalars: dict[str, Any] = {}
        absent: list[str] = []
        after: list[Callable[[], None]] = []
        for i, value in zip(self.inputs, given, strict=True):
            param = self.params[i]
            if isinstance(param, Var):
                scalars[param.name] = _scalar(param, value)
            elif value is None and param.name in self.unused:
                absent.append(param.name)
            else:
                memory[param.name] = as_numpy(value, param.name)
                arrays[param.name] = self._elements(param, memory[param.name], value, after)
                if param.name in self.written and library_of(value) == "torch":
                    if is_recorded(value):
                        raise write_refused(value, param.name)
                    after.append(partial(write_counter(), value))
        sizes = self._sizes(arrays)
        outputs = []
        for tensor in self.program.tensors:
            if tensor.name in absent:
                arrays[tensor.name] = np.zeros(shape_of(tensor, sizes), tensor.dtype.numpy)
        for i in self.outputs:
            param = self.params[i]
            assert isinstance(param, Buffer)
            outputs.append(empty_like_library(library, shape_of(param, sizes), param.dtype))
            memory[param.name] = as_numpy(outputs[-1], param.name)
            arrays[param.name] = self._elements(param, memory[param.name], outputs[-1], after)
        for tensor in self.program.tensors:
            array = arrays[tensor.name]
            strides = tuple(s // array.itemsize for s in array.strides)
            check_shape(tensor, array.shape, strides, array.flags.c_contiguous, sizes)
        check_apart(
            self.written,
            {name: _memory(array) for name, array in memory.items()},
            lambda a, b: np.shares_memory(memory[a], memory[b]),
        )
        args: Args = {
            p.name: arrays[p.name] if isinstance(p, Buffer) else scalars[p.name]
            for p in self.params
        }
        return Call(args, sizes, library, tuple(outputs), tuple(after))

    def in_order(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        return in_order(self.program.name, [self.params[i].name for i in self.inputs], given, named)

    def _sizes(self, arrays: dict[str, Array]) -> dict[Var, int]:
        if not self.dynamic:
            return {}
        return array_sizes(given_part(self.program, arrays), arrays)

    def _elements(
        self, param: Buffer, array: Array, value: Any, after: list[Callable[[], None]]
    ) -> Array:
        dtype, written = param.dtype, param.name in self.written
        as_bytes = dtype.packed and array.dtype in (np.uint8, np.int8)
        if array.dtype != dtype.numpy and not as_bytes:
            raise LaunchError(
                f"{param.name} has the wrong dtype",
                expected=f"{dtype}, or its bytes as uint8" if dtype.packed else str(dtype),
                got=str(array.dtype),
                fix=f"convert it to {dtype}, or declare {param.name} as {array.dtype}",
            )
        if written and not array.flags.writeable:
            raise read_only(param.name, value)
        if not array.flags.aligned:
            raise misaligned(param.name, array.itemsize, address_of(array))
        if not as_bytes:
            return array
        if not array.ndim:
            raise LaunchError(
                f"{param.name} must have {param.rank} dimensions",
                expected=describe(param.shape),
                got="()",
                fix=f"reshape it to {describe(param.shape)}, {8 // dtype.bits} elements a byte",
            )
        elements, pack = unpack(array, dtype)
        if written:
            after.append(lambda: pack(elements))
        return elements


def _position(index: Any, count: int) -> int:
    if not isinstance(index, int):
        raise LaunchError(
            "out_idx must be positions of parameters",
            expected="a number, or a list of numbers",
            got=repr(index)[:60],
            fix="-1 is the last parameter: out_idx=[-1]",
        )
    if not -count <= index < count:
        raise LaunchError(
            f"out_idx {index} is not among {count} parameters",
            expected=f"{-count} … {count - 1}",
            got=str(index),
            fix="-1 is the last parameter",
        )
    return index % count


def _scalar(param: Var, value: Any) -> Any:
    dtype: DType = param.dtype
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(value, bool) or (isinstance(value, int) and not dtype.is_bool):
        if dtype.is_int and not dtype.min_value <= value <= dtype.max_value:
            raise does_not_fit(param.name, value, dtype)
        try:
            with np.errstate(over="ignore"):
                return dtype.numpy.type(value)
        except OverflowError:
            raise does_not_fit(param.name, value, dtype) from None
    if isinstance(value, float) and dtype.is_float:
        with np.errstate(over="ignore"):
            return dtype.numpy.type(value)
    raise LaunchError(
        f"{param.name} must be a number of type {dtype}",
        expected=str(dtype),
        got=f"{type(value).__name__}: {brief(value)}",
        fix=f"pass a plain {'int' if dtype.is_int else 'number'}, or declare it otherwise",
    )


def _memory(array: Array) -> Memory:
    low, high = reach(array)
    at = address_of(array)
    return Memory(array.shape, array.strides, array.itemsize, (at + low, at + high))
