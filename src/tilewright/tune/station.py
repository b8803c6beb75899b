"""A process that compiles programs, runs them on inputs that it makes, and times them in turn.

`python -m tilewright.tune.station` reads requests, a line of JSON each, and answers in the same
order. It may hang, crash or be killed: whoever asked starts another one. Programs come as IR text
and are compiled into the cache on disk, where the process that asked finds them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir.bind import static_value
from tilewright.ir.core import *
from tilewright.ir.text import parse_program
from tilewright.runtime.backends import resolve
from tilewright.runtime.bench import supply
from tilewright.runtime.kernel import CompiledKernel
from tilewright.runtime.timing import Clock, Timer, measure
from tilewright.support.errors import TilewrightError
from tilewright.targets.arrays import Array
from tilewright.targets.entries import with_lines

Request: TypeAlias = dict[str, Any]
Answer: TypeAlias = dict[str, Any]

BLOCK = 1 << 20  # elements that are drawn; larger arrays repeat them
# of an element's difference from the first program's, relative to the largest element
BOUNDS = {"float32": 1e-4, "float64": 1e-9, "float16": 1e-2}
BOUND = 5e-2  # in narrower types, and in bfloat16


class Station:
    """Programs of one text by name, on one set of inputs; the first one's results are what others
    must have."""

    def __init__(self) -> None:
        self.runs: dict[str, Callable[[], Any]] = {}
        self.want: list[Array] | None = None
        self.memory: Memory | None = None
        self.drawn: dict[Any, Array] = {}

    def answer(self, request: Request) -> Answer:
        answers: dict[str, Callable[..., Answer]] = {
            "begin": self.begin, "compile": self.compile, "load": self.load, "time": self.time
        }  # fmt: skip
        try:
            return answers[request.pop("do")](**request)
        except TilewrightError as error:
            return {"error": error.message}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def begin(self, target: str) -> Answer:
        """Another text, for this target: memory for it, of which a GPU's takes a while to get."""
        self.runs, self.want, self.drawn = {}, None, {}
        self.memory = GpuMemory() if resolve(target).kind == "cuda" else Memory()
        return {}

    def compile(self, **job: Any) -> Answer:
        _compiled(job)
        return {}

    def load(self, name: str, inputs: Mapping[str, Any], **job: Any) -> Answer:
        """Run a program once and compare what it writes with what the first one wrote."""
        kernel = _compiled(job)
        if self.memory is None:
            self.begin(job["target"])
        assert self.memory is not None
        memory, program = self.memory, kernel.program
        sizes = {d.var: int(inputs[d.var.name]) for d in program.dims}
        args: list[Any] = []
        for param in program.params:
            given = inputs.get(param.name)
            if isinstance(param, Var):
                args.append(1 if given is None else given)
                continue
            shape = tuple(static_value(n, sizes) for n in param.shape)
            key = (param.name, shape)
            if key not in self.drawn:
                drawn = given is None
                self.drawn[key] = _drawn(shape, param.dtype) if drawn else _given(given)
            args.append(memory.array(param.name, shape, param.dtype, self.drawn[key]))
        written = [a for a, p in zip(args, program.params, strict=True)
                   if p.name in kernel.launcher.written]  # fmt: skip
        run = memory.call(kernel, args)
        start = time.perf_counter()
        run()
        results = [memory.read(array) for array in written]
        if self.want is None:
            self.want = results
        for index, (got, want) in enumerate(zip(results, self.want, strict=True)):
            if told := _differs(got, want):
                return {"error": f"result {index} differs from the first candidate's: {told}"}
        self.runs[name] = run
        return {"seconds": time.perf_counter() - start}

    def time(self, names: Sequence[str], rounds: int, burst: float) -> Answer:
        """Seconds of a call of each, in turn."""
        assert self.memory is not None
        taken = measure(
            {name: self.runs[name] for name in names},
            rounds=rounds,
            warmup=burst / 4,
            budget=float("inf"),
            burst=burst,
            pause=1e-3,
            timer=self.memory.timer(),
        )
        return {"seconds": {name: statistics.median(each) for name, each in taken.items()}}


class Memory:
    """Arrays in host memory. An array is made anew for each program: it may be written."""

    def timer(self) -> Timer:
        return Clock()

    def array(self, name: str, shape: tuple[int, ...], kind: DType, block: Array) -> Any:
        return np.resize(block, shape) if block.shape != shape else block.copy()

    def read(self, array: Any) -> Array:
        return np.array(array)

    def call(self, kernel: CompiledKernel, args: list[Any]) -> Callable[[], Any]:
        return lambda: kernel(*args)


class GpuMemory(Memory):
    """Arrays on the GPU and a stream of our own, whose launches can be captured: that takes neither
    PyTorch nor CuPy, whose imports take longer than measuring."""

    def __init__(self) -> None:
        from tilewright.targets.cuda.driver import driver

        self.driver = driver()
        self.device = self.driver.device(0)
        self.driver.make_current(self.device)
        self.stream = int(self.driver.call(self.driver.api.cuStreamCreate(1)))
        self.kept: dict[Any, Any] = {}

    def timer(self) -> Timer:
        from tilewright.runtime.timing import StreamGraphs

        return StreamGraphs(self.driver, self.stream)

    def array(self, name: str, shape: tuple[int, ...], kind: DType, block: Array) -> Any:
        from tilewright.targets.cuda.driver import DeviceArray

        made = self.kept.get((name, shape))
        if made is None:
            made = DeviceArray(self.driver, self.device, shape, kind, self.stream)
            self.kept[name, shape] = made
        self.driver.synchronize(self.stream)
        flat = np.ascontiguousarray(block).view(np.uint8).reshape(-1)
        total = kind.storage_bytes(int(np.prod(shape)))
        api, call, address = self.driver.api, self.driver.call, made.memory.address
        done = min(total, flat.size)
        if done:
            call(api.cuMemcpyHtoD(address, flat.ctypes.data, done))
        while 0 < done < total:  # what is there, once more after it
            size = min(done, total - done)
            call(api.cuMemcpyDtoD(address + done, address, size))
            done += size
        return made

    def read(self, array: Any) -> Array:
        made = np.empty(array.shape, array.dtype.numpy)
        self.driver.read(array.memory.address, made.ctypes.data, made.nbytes, self.stream)
        return made

    def call(self, kernel: CompiledKernel, args: list[Any]) -> Callable[[], Any]:
        return lambda: kernel(*args, stream=self.stream)


def _compiled(job: Mapping[str, Any]) -> CompiledKernel:
    program = with_lines(parse_program(job["program"]), job["lines"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CompiledKernel(program, target=job["target"])


def _given(array: Any) -> Array:
    """An array, or one in a file."""
    return np.load(array) if isinstance(array, str) else np.asarray(array)


def _drawn(shape: tuple[int, ...], kind: DType) -> Array:
    """Floats between -1 and 1, as many as are drawn. Integers are 0: they may be indices."""
    count = min(int(np.prod(shape)), BLOCK)
    if not kind.is_float:
        return np.zeros((count,), kind.numpy)
    return supply("uniform", (count,), kind, np.random.default_rng(count))


def _differs(got: Array, want: Array) -> str:
    if np.array_equal(got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8)):
        return ""
    a, b = got.astype(np.float64), want.astype(np.float64)
    bound = BOUNDS.get(str(want.dtype), BOUND) if want.dtype.kind not in "iub" else 0.0
    with np.errstate(all="ignore"):
        near = bound * max(np.nanmax(np.abs(b), initial=0.0, where=np.isfinite(b)), 1e-30)
        bad = ~((a == b) | (np.abs(a - b) <= near) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return ""
    return f"{int(bad.sum())} of {bad.size} elements, e.g. {a[bad][0]:g} and not {b[bad][0]:g}"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a kernel prints is no answer
    station = Station()
    for line in sys.stdin:
        answers.write(json.dumps(station.answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
