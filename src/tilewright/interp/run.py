"""The entry point: bind arguments, compile the program's steps once, run its kernels in order."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.interp.lanes import Frame
from tilewright.interp.machine import CompiledKernel, Launch, Options
from tilewright.interp.memory import Memory, allocate
from tilewright.ir.bind import array_sizes, describe
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Var
from tilewright.ir.op import Program
from tilewright.support.errors import LaunchError


@dataclass
class RunResult:
    """What a run left behind besides the arrays it changed in place."""

    sizes: dict[str, int]
    printed: list[str] = field(default_factory=list)


_compiled: OrderedDict[Any, tuple[Program, list[CompiledKernel]]] = OrderedDict()
_KEEP = 64


def compiled_kernels(program: Program, options: Options) -> list[CompiledKernel]:
    """The program's kernels as steps; the last few programs are remembered."""
    key = (id(program), options.sanitize, options.nan, options.explicit)
    found = _compiled.get(key)
    if found is None:
        found = _compiled[key] = (program, [CompiledKernel(k, options) for k in program.kernels])
        while len(_compiled) > _KEEP:
            _compiled.popitem(last=False)
    _compiled.move_to_end(key)
    return found[1]


def run(
    program: Program,
    args: Mapping[str, Any],
    *,
    sanitize: bool = False,
    nan: bool = False,
    seed: int = 0,
    explicit: bool | None = None,
) -> RunResult:
    """Run `program` on NumPy arrays, which are changed in place.

    `args` maps parameter names to arrays (of `DType.numpy`, one item per element) or numbers.
    `sanitize` reports what a kernel must not do as `SanitizerError`; `nan` also a NaN born where
    no operand had one. `seed` picks block order and interleavings. `explicit` says whether the
    kernel places every synchronisation between its own threads itself; by default that holds for
    kernels with roles, barriers or asynchronous instructions in which every instruction is chosen.
    """
    options = Options(sanitize, nan, seed, explicit)
    with np.errstate(all="ignore"):
        kernels = compiled_kernels(program, options)
        arrays = {t.name: _array(t, args) for t in program.tensors}
        sizes = array_sizes(program, arrays)
        values: dict[str, Any] = {v.name: v.dtype.numpy.type(n) for v, n in sizes.items()}
        for scalar in program.scalars:
            values[scalar.name] = _scalar(scalar, args)
        memories, copied = _tensors(program, arrays, values, kernels, options)
        result = RunResult({v.name: n for v, n in sizes.items()})

        def say(line: str) -> None:
            result.printed.append(line)
            print(line)

        launch = Launch(memories, values, options, say)
        rng = random.Random(seed)
        for kernel in kernels:
            launch.run(kernel, rng)
        for name, memory in copied.items():
            arrays[name][...] = memory.data
    return result


def _array(tensor: Buffer, args: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if tensor.name not in args:
        raise LaunchError(f"no argument for {tensor.name}")
    value = args[tensor.name]
    if not isinstance(value, np.ndarray):
        raise LaunchError(
            f"{tensor.name} must be a NumPy array here", got=f"a {type(value).__name__}"
        )
    if value.dtype != tensor.dtype.numpy:
        raise LaunchError(
            f"{tensor.name} has the wrong element type",
            expected=str(tensor.dtype.numpy),
            got=str(value.dtype),
        )
    return value


def _scalar(var: Var, args: Mapping[str, Any]) -> Any:
    if var.name not in args:
        raise LaunchError(f"no argument for {var.name}")
    return np.asarray(args[var.name]).astype(var.dtype.numpy)[()]


def _tensors(
    program: Program,
    arrays: dict[str, np.ndarray[Any, Any]],
    values: dict[str, Any],
    kernels: list[CompiledKernel],
    options: Options,
) -> tuple[dict[str, Memory], dict[str, Memory]]:
    """Memory of every tensor, and of those that were copied because their array will not do."""
    units = {name: f for k in kernels for name, f in k.families.items()}
    probe = Frame(None, ())  # type: ignore[arg-type]
    probe.vars = dict(values)
    memories: dict[str, Memory] = {}
    copied: dict[str, Memory] = {}
    for tensor in program.tensors:
        array = arrays[tensor.name]
        shape = tuple(int(kernels[0].evaluate(s)(probe)) for s in tensor.shape) if kernels else ()
        if kernels and array.shape != shape:
            raise LaunchError(
                f"{tensor.name} has the wrong shape",
                expected=f"{describe(tensor.shape)} = {shape}",
                got=str(array.shape),
            )
        family = units.get(tensor.name)
        direct = family is None or (array.flags.c_contiguous and not family.packed)
        memories[tensor.name] = allocate(
            tensor,
            array.shape,
            array=array if direct else np.ascontiguousarray(array),
            unit=family.unit if family else 0,
            packed=family.packed if family else False,
        )
        if not direct:
            copied[tensor.name] = memories[tensor.name]
    for tensor in program.scratch:
        shape = tuple(int(kernels[0].evaluate(s)(probe)) for s in tensor.shape)
        family = units.get(tensor.name)
        memories[tensor.name] = allocate(
            tensor,
            shape,
            unit=family.unit if family else 0,
            packed=family.packed if family else False,
            track=options.sanitize,
        )
    return memories, copied
