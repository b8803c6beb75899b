"""Emitted CUDA C++ run by the host: `run(program, arguments)` gives the arrays after a launch.

The source is compiled for the host (`build`), one fiber for each thread of a block; the undefined
behaviour of C++, accesses outside of tensors and shared memory, misaligned vectors, waits that
never end and misused barriers end the run with a sentence. What is asynchronous is done late, and
threads take turns in an order that a seed says: what is missing between them shows.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from devtools.host import build
from devtools.host.build import NoCompiler, NotForHost
from tilewright.ir.bind import written_params
from tilewright.ir.dtype import FLOAT32, DType
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.machine.numbers import pack, unpack
from tilewright.targets.arrays import ArrayView, ProgramCheck
from tilewright.targets.cuda.backend import alignments, launch_spec, lower
from tilewright.targets.cuda.emit import Source, emit_program
from tilewright.targets.cuda.launch import (
    LaunchSpec,
    Map,
    Param,
    Scalar,
    Size,
    TensorPointer,
    encode_scalar,
)
from tilewright.targets.cuda.tensormap import SM_COUNT, Encoding, Sizes, evaluate, resolve

__all__ = ["Excluded", "Fault", "NoCompiler", "NotForHost", "Ready", "ready", "run"]

Array = np.ndarray[Any, np.dtype[Any]]
MULTIPROCESSORS = 2  # of the GPU that is not there
_NOBODY = 2**64 - 1  # a parameter that is no address
_SPANS = {0: 0, 1: 32, 2: 64, 3: 128}


class Excluded(Exception):
    """A kernel came to an instruction that has no meaning on the host: its name."""


class Fault(Exception):
    """What a kernel did that it must not: undefined behaviour, or an access where nothing is."""


@dataclass
class Ready:
    """A program compiled for the host. `folder` holds it."""

    program: Program
    lowered: Program
    emitted: Source
    specs: tuple[LaunchSpec, ...]
    executable: Path
    folder: tempfile.TemporaryDirectory[str]

    def __call__(
        self,
        arguments: Mapping[str, Any],
        seed: int = 0,
        seconds: float = 60.0,
        only: Collection[int] | None = None,
        scratch: Collection[str] = (),
    ) -> dict[str, Array]:
        """The arrays after a launch, in the order of threads that `seed` says; those that were
        given stay as they are. `only`: the numbers of the kernels that run; `scratch`: the names of
        scratch tensors that are shown, too."""
        given = {t.name: np.asarray(arguments[t.name]) for t in self.program.tensors}
        kinds = {t.name: t.dtype for t in self.program.tensors if _apart(given[t.name], t.dtype)}
        packed = {name: pack(given[name], kind) for name, kind in kinds.items()}
        call = _Call(self, {**given, **packed}, arguments)
        request = Path(self.folder.name) / "request"
        request.write_bytes(call.request(range(len(self.specs)) if only is None else only))
        answer = Path(self.folder.name) / "answer"
        _execute([str(self.executable), str(request), str(answer), str(seed)], seconds)
        found = call.results(answer.read_bytes(), scratch)
        for name, kind in kinds.items():
            found[name] = unpack(found[name].view(np.uint8), kind)
        return found


def run(
    program: Program,
    arguments: Mapping[str, Any],
    target: str = "cuda -arch=sm_80",
    *,
    seed: int = 0,
    seconds: float = 60.0,
) -> dict[str, Array]:
    """Compile `program` (or what holds one) for `target`, run its source on the host."""
    program = getattr(program, "program", program)
    asked = Target.parse(target)
    made = ready(program, lower(program, asked).result, asked.arch)
    return made(arguments, seed, seconds)


def ready(
    program: Program,
    lowered: Program,
    arch: str = "sm_90a",
    change: Callable[[str], str] = str,
    replaced: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
) -> Ready:
    """Thread code `lowered` of `program`, compiled for the host. `change` and `replaced` alter the
    emitted text and headers, which are bugs that are planted; `names` of its kernels then."""
    emitted = emit_program(lowered)
    if "__shared__" in "".join(lowered.sources):
        raise Excluded("__shared__ in foreign code")
    specs = tuple(launch_spec(program, kernel) for kernel in emitted.kernels)
    folder = tempfile.TemporaryDirectory(prefix="tilewright-host-")
    number = int("".join(c for c in arch if c.isdigit())) * 10
    names = names or [kernel.name for kernel in emitted.kernels]
    other = tuple(sorted((replaced or {}).items()))
    executable = build.compiled(change(emitted.text), names, number, Path(folder.name), other)
    return Ready(program, lowered, emitted, specs, executable, folder)


def _execute(command: Sequence[str], seconds: float) -> None:
    options = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, env=options)
    except subprocess.TimeoutExpired:
        raise Fault(f"it did not end within {seconds:g} s") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == 4:
        raise Excluded(said.removeprefix("excluded: "))
    if done.returncode:
        first = said.split("\n")[0] if said else f"it ended with code {done.returncode}"
        raise Fault(re.sub(r"\x1b\[[0-9;]*m", "", first).removeprefix("host: "))


class _Call:
    """A request in bytes: tensors, then launches with their parameters."""

    def __init__(self, made: Ready, arrays: Mapping[str, Array], given: Mapping[str, Any]) -> None:
        self.made, self.arrays = made, arrays
        program = made.program
        kinds = {
            t.name: FLOAT32 if t.dtype.name == "tfloat32" else t.dtype for t in program.tensors
        }
        self.views = {}
        for number, (name, array) in enumerate(arrays.items()):
            strides = tuple(s // array.itemsize for s in array.strides)
            address = (number + 1) << 40
            self.views[name] = ArrayView(address, array.shape, strides, kinds[name], 0)
        check = ProgramCheck(program, written_params(program), alignments(made.lowered))
        self.scalars = {
            s.name: encode_scalar(s.name, s.dtype, given[s.name]) for s in program.scalars
        }
        whole = {s.name: int(given[s.name]) for s in program.scalars if s.dtype.is_int}
        self.sizes: Sizes = {**check(self.views), **whole, SM_COUNT: MULTIPROCESSORS}
        self.memory = {name: _bytes_of(array) for name, array in arrays.items()}
        for b in made.lowered.scratch:
            shape = tuple(evaluate(s, self.sizes) for s in b.shape)
            strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
            address = (len(self.views) + 1) << 40
            self.views[b.name] = ArrayView(address, shape, strides, b.dtype, 0)
            self.memory[b.name] = b"\xcd" * b.dtype.storage_bytes(prod(shape))
        self.numbers = {name: n for n, name in enumerate(self.memory)}

    def request(self, only: Collection[int]) -> bytes:
        parts = [struct.pack("<Q", len(self.memory))]
        for data in self.memory.values():
            parts += [struct.pack("<QQ", len(data), 0), data]
        launches = [self.launch(n, spec) for n, spec in enumerate(self.made.specs) if n in only]
        launches = [launch for launch in launches if launch]
        return b"".join([*parts, struct.pack("<Q", len(launches)), *launches])

    def launch(self, number: int, spec: LaunchSpec) -> bytes:
        grid = [evaluate(v, self.sizes) for v in spec.grid]
        grid += [1] * (3 - len(grid))
        if 0 in grid:
            return b""
        cluster = [*spec.cluster, 1, 1][:3]
        words = (number, *grid, *cluster, spec.threads, spec.shared, len(spec.params))
        params = [self.param(p) for p in spec.params]
        return b"".join([struct.pack(f"<{len(words)}Q", *words), *params])

    def param(self, param: Param) -> bytes:
        match param:
            case TensorPointer(name):
                tensor, data = self.numbers[name], bytes(8)
            case Scalar(name):
                tensor, data = _NOBODY, self.scalars[name]
            case Size(value, dtype):
                tensor = _NOBODY
                data = encode_scalar(str(value), dtype, evaluate(value, self.sizes))
            case Map(spec):
                view = self.views[spec.tensor]
                found = resolve(spec, view.address, view.shape, view.strides, self.sizes)
                tensor, data = self.numbers[spec.tensor], _map(found, spec.dtype.bytes)
        return struct.pack("<QQ", tensor, len(data)) + data

    def results(self, answer: bytes, scratch: Collection[str] = ()) -> dict[str, Array]:
        found, at = {}, 0
        for name, data in self.memory.items():
            if name in self.arrays:
                array = self.arrays[name].copy(order="K")
                if array.nbytes:
                    part = answer[at : at + len(data)]
                    strided = np.ndarray(
                        array.shape, array.dtype, bytearray(part), 0, self.arrays[name].strides
                    )
                    array[...] = strided
                found[name] = array
            elif name in scratch:
                view = self.views[name]
                words = np.frombuffer(answer, np.uint8, len(data), at)
                found[name] = words.view(view.dtype.numpy).reshape(view.shape)
            at += len(data)
        return found


def _apart(array: Array, kind: DType) -> bool:
    """Whether elements of less than a byte come one by one, not in bytes."""
    return kind.packed and array.dtype not in (np.uint8, np.int8)


def _bytes_of(array: Array) -> bytes:
    """The memory from an array's first element to its last."""
    if not array.size:
        return b""
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    return ctypes.string_at(array.ctypes.data, last + array.itemsize)


def _map(e: Encoding, size: int) -> bytes:
    """A tensor map as `copies.cpp` reads it; its address is told there."""
    if e.empty:
        return bytes(128)
    rank = len(e.sizes)
    box = (*e.box, 0, 0, 0, 0, 0)[:5]
    words = (
        e.address % (1 << 40), rank, size, e.dtype, _SPANS[e.swizzle],
        *(*e.sizes, 0, 0, 0, 0, 0)[:5], *(*e.strides, 0, 0, 0, 0)[:4],
        box[0] | box[1] << 16 | box[2] << 32, box[3] | box[4] << 16,
    )  # fmt: skip
    return struct.pack("<16Q", *words)
