"""A kernel of a file, found by name and compiled as a request says."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.formula.function import Made, MathFunction
from tilewright.inspect.explain import explanation
from tilewright.ir.analysis.aliases import places
from tilewright.ir.core import *
from tilewright.ir.schedule import Schedule
from tilewright.ir.target import Target
from tilewright.lang.trace import PrimFunc, trace_direct
from tilewright.runtime.backends import compiled_for, resolve
from tilewright.runtime.jit import Jit
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError, suggest
from tilewright.tools.collect import with_arrays
from tilewright.tune.configs import Autotuned

TARGET = "cuda -arch=sm_90a"  # of kernels that name none
STAND_IN = 1024  # sizes that nobody gives: of the model
SMALL = (96, 128, 256)  # of the run that has values: the first of which a kernel can be made
ELEMENTS = 1 << 19  # of all tensors of a run by the interpreter
SECTIONS = ("values", "levels", "layouts")  # that may be left out


@dataclass(frozen=True)
class Request:
    """What is to be recorded, as the page sends it. `small`: sizes of the run that has values."""

    gallery: str | None = None
    text: str | None = None
    kernel: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    small: Mapping[str, int] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""  # the kernel's own, or TARGET
    want: tuple[str, ...] = SECTIONS

    @staticmethod
    def of(told: Any) -> Request:
        """Checked: what comes from a page may be anything."""
        if not isinstance(told, Mapping):
            raise CompileError("a request is an object", got=type(told).__name__)
        _check_names("a request", told, Request)
        found = {name: value for name, value in told.items() if value is not None}
        for name, kind in _KINDS.items():
            if name in found and not isinstance(found[name], kind):
                raise CompileError(
                    f"{name} of a request has another type",
                    expected=kind.__name__,
                    got=f"{type(found[name]).__name__}: {str(found[name])[:80]}",
                )
        _check_names("a schedule", found.get("schedule", {}), Schedule)
        for name in ("sizes", "small"):
            for size, number in found.get(name, {}).items():
                if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                    raise CompileError(f"{name}: {size} must be an integer", got=repr(number)[:80])
        found["want"] = tuple(found.get("want", SECTIONS))
        return Request(**found)

    def told(self) -> dict[str, Any]:
        """Without what the page knows or has not given."""
        found = {n: v for n, v in asdict(self).items() if n not in ("text", "want")}
        return {n: v for n, v in found.items() if v or n in ("sizes", "args", "schedule")}


def _check_names(what: str, told: Mapping[str, Any], record: Any) -> None:
    known = [f.name for f in fields(record)]
    for name in told:
        if name not in known:
            raise CompileError(
                f"{what} has no field {name!r}",
                expected=", ".join(known),
                fix=suggest(name, known)[0],
            )


_KINDS: dict[str, type] = {
    "gallery": str, "text": str, "kernel": str, "target": str, "sizes": dict, "small": dict,
    "args": dict, "schedule": dict, "want": list,
}  # fmt: skip


@dataclass
class Draft:
    """A kernel as far as the passes take it: what the assembler would say is missing."""

    program: Program
    target: Target
    chosen: Mapping[str, str]

    @property
    def executable(self) -> Draft:
        return self

    @cached_property
    def trace(self) -> Sequence[tuple[str, Program]]:
        from tilewright.targets.cuda.backend import lower

        return lower(self.program, self.target)

    def explain(self, as_dict: bool = True) -> dict[str, Any]:
        """As a compiled kernel does; as many blocks share a multiprocessor as memory lets."""
        figures = []
        for kernel in self.trace[-1][1].kernels:
            ends = [at + buffer.shared_bytes for buffer, at in places(kernel).items()]
            shared, threads = max(ends, default=0), kernel.thread_count
            chip = self.target.chip
            blocks = max(1, chip.resident(threads, shared))
            figures.append({"threads": threads, "shared_bytes": shared, "blocks_per_sm": blocks,
                            "occupancy": blocks * -(-threads // 32) * 32 / chip.threads_per_sm,
                            "cluster": kernel.cluster_size})  # fmt: skip
        name = self.program.name
        return explanation(name, self.target, self.trace, figures, None, self.chosen)


@dataclass
class Subject:
    """A kernel of a file by its `name`, and what is asked about it. `size_names`: sizes that may be
    given; `compiled` for the target, and `runnable` by the interpreter at small sizes."""

    name: str
    value: Any
    request: Request
    names: tuple[str, ...] = ()
    made: Made | None = None  # of a formula

    @cached_property
    def asked_target(self) -> str:
        value = self.value.jitted if isinstance(self.value, Autotuned) else self.value
        own = str(getattr(value, "target", None) or "auto")
        return self.request.target or (TARGET if own in ("auto", "cuda") else own)

    @cached_property
    def target(self) -> Target:
        return resolve(self.asked_target)

    @cached_property
    def jit(self) -> Jit | None:
        """The function, which takes tiles and sizes."""
        value = self.value.jitted if isinstance(self.value, Autotuned) else self.value
        if isinstance(value, MathFunction):
            self.made = self._made(value)
            value = self.made.kernel
        return value if isinstance(value, Jit) else None

    def _made(self, value: MathFunction) -> Made:
        why = value.try_with({**with_arrays(self.request.args), **self.request.sizes})
        if not value._made:
            raise CompileError(f"{self.name} is a formula that nobody has called", fix=why)
        return list(value._made.values())[-1]

    @cached_property
    def small_made(self) -> Made | None:
        """A formula of fewer elements, where there are too many to interpret; with `made`."""
        found, inputs = self.made, self.made.formula.inputs if self.made else ()
        for side in SMALL[0], 32, 16, 8:
            if found is None or _elements(found) <= ELEMENTS:
                return found
            arrays = {b.name: np.zeros([min(n, side) for n in b.static_shape], b.dtype.numpy)
                      for b in inputs if b.is_static}  # fmt: skip
            try:
                other = self.value.with_schedule()  # that has met nothing yet
                other.try_with({**with_arrays(self.request.args), **arrays})
                found = next(iter(other._made.values()), found)
            except TilewrightError:  # its text knows the sizes
                break
        return found

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Of a kernel that is written directly: its `T.const` sizes, as given or stand-ins."""
        return {**dict.fromkeys(self.size_names, STAND_IN), **self.request.sizes}

    @cached_property
    def small(self) -> dict[str, int]:
        return {**dict.fromkeys(self.size_names, SMALL[0]), **self.request.small}

    @cached_property
    def size_names(self) -> list[str]:
        jit = self.jit
        if jit is None or not jit.direct or self.made is not None:
            return []
        bound = jit.calls.bind((), self._arguments(jit), partial=True)
        with compiled_for(replace(self.target, schedule=Schedule())):
            traced = trace_direct(jit.fn, (), bound, self.request.sizes, STAND_IN)
        return list(traced.named)

    def _arguments(self, jit: Jit) -> dict[str, Any]:
        """Compile-time parameters that were given."""
        return {n: v for n, v in self.request.args.items() if n in jit.signature.parameters}

    @cached_property
    def compiled(self) -> CompiledKernel | Draft:
        """A draft where no machine code is wanted: the assembler takes seconds."""
        if "levels" in self.request.want or self.target.kind != "cuda":
            return self._compile(self.asked_target)
        return self._draft()

    @cached_property
    def runnable(self) -> CompiledKernel:
        """In the interpreter under the sanitizer, at small sizes."""
        target = "interp -sanitize"
        for size in SMALL[1:] if self.size_names else ():
            try:
                return self._compile(target, small=True)
            except CompileError:  # a grid of N // 128 blocks
                self.small = {**dict.fromkeys(self.size_names, size), **self.request.small}
        return self._compile(target, small=True)

    def _given(self, jit: Jit, small: bool) -> dict[str, Any]:
        given = {**self._arguments(jit), **(self.small if small else self.sizes)}
        if not jit.direct:  # sizes of a factory are arguments like others
            given = {n: v for n, v in given.items() if n in jit.signature.parameters}
            if lacks := _missing(jit, given):
                raise CompileError(
                    f"{self.name} needs {', '.join(lacks)}",
                    expected=f"{self.name}{jit.signature}",
                    fix=f"give --args '{', '.join(f'{n}=…' for n in lacks)}'",
                    code="arguments",
                )
        return given

    def _scheduled(self, jit: Jit, target: str) -> Jit:
        schedule = dict(self.request.schedule)
        return jit.on(target).with_schedule(**schedule) if schedule else jit.on(target)

    def _compile(self, target: str, small: bool = False) -> CompiledKernel:
        if self.jit is None:
            program, out = self._program()
            schedule = dict(self.request.schedule)
            return CompiledKernel(program, target=target, out_idx=out, options=schedule)
        made = self.small_made if small else self.made
        jit = self._scheduled(made.kernel if made else self.jit, target)
        if made is not None:
            return jit.compile(*made.examples())
        return jit.compile(**self._given(jit, small))

    def _program(self) -> tuple[Program, list[int]]:
        if isinstance(self.value, CompiledKernel):
            return self.value.program, list(self.value.launcher.outputs)
        func: PrimFunc = self.value
        return func.program, func.out_idx

    def _draft(self) -> Draft:
        target = resolve(self.asked_target, **self.request.schedule)
        chosen: Mapping[str, str] = {}
        if self.jit is None:
            program = self._program()[0]
        else:
            jit = self._scheduled(self.jit, self.asked_target)
            if self.made is not None:
                program, chosen = jit.drafted(*self.made.examples())
            else:
                program, chosen = jit.drafted(**self._given(jit, False))
        return Draft(program, target, chosen)

    def source(self) -> dict[str, Any]:
        """The file's text, and where in it the kernel is."""
        import linecache

        function = getattr(self.jit, "fn", None) or getattr(self.value, "function", None)
        program = self.compiled.program if function is None else None
        if function is not None:
            lines, first = inspect.getsourcelines(inspect.unwrap(function))
            file, last = function.__code__.co_filename, first + len(lines) - 1
        else:
            assert program is not None
            kernel = program.kernels[0]
            loc = kernel.loc or program.loc
            if loc is None:
                return {"file": "", "first": 1, "lines": [], "kernel": [1, 1]}
            own = [i.loc.line for i in walk_ops(kernel) if i.loc and i.loc.file == loc.file]
            file, first, last = loc.file, min([loc.line, *own]), max([loc.line, *own])
        text = [line.rstrip("\n") for line in linecache.getlines(file)]
        return {"file": file, "first": 1, "lines": text, "kernel": [first, last]}


def _elements(made: Made) -> int:
    each = (*made.formula.inputs, *made.formula.outputs)
    return sum(prod(b.static_shape) for b in each if b.is_static)


def _missing(jit: Jit, given: Mapping[str, Any]) -> list[str]:
    """The arguments that a factory lacks."""
    open_ones = (p for p in jit.signature.parameters.values() if p.default is p.empty)
    named = (p.name for p in open_ones if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [name for name in named if name not in given]


def kernels_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """What a file defines that can be watched, in order."""
    kinds = (Jit, Autotuned, MathFunction, PrimFunc, CompiledKernel)
    return {name: value for name, value in names.items() if isinstance(value, kinds)}


def subject_of(names: Mapping[str, Any], request: Request, file: str) -> Subject:
    """The kernel that a request names, or the first of the file's own."""
    found = kernels_of(names)
    if not found:
        raise CompileError(
            f"{file} makes no kernel",
            expected="a function under @tw.jit or @tw.math, or a @T.prim_func, at its top level",
            fix="define one, or name another file",
        )
    if request.kernel is None:
        known = {**request.args, **request.sizes}
        able = (n for n, v in found.items()
                if not isinstance(v, Jit) or v.direct or not _missing(v, known))  # fmt: skip
        name = next(able, next(iter(found)))
    elif request.kernel in found:
        name = request.kernel
    else:
        raise CompileError(
            f"{file} makes no kernel named {request.kernel!r}",
            expected=" or ".join(found),
            fix=suggest(request.kernel, found)[0],
        )
    return Subject(name, found[name], request, tuple(found))
