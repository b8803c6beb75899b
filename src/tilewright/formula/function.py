"""`@tw.math`: a function of arrays that runs as a tile program."""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tilewright.formula.front.trace import trace
from tilewright.formula.inline import normalize
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.formula.tiles.program import TileProgram, program_of
from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Formula, reads
from tilewright.support.errors import CompileError

Kind: TypeAlias = "tuple[str, tuple[int, ...], Any]"


class MathFunction:
    """A formula, called with arrays. Kernels are made for the shapes and types that it meets.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> @tw.math
    ... def double(x):
    ...     return x + x
    >>> double(np.arange(3, dtype=np.float32)).tolist()
    [0.0, 2.0, 4.0]
    """

    def __init__(
        self, function: Callable[..., Any], target: Any = None, schedule: Any = None
    ) -> None:
        self.function, self.target, self.schedule = function, target, schedule or {}
        self.signature = inspect.signature(function)
        self._made: dict[tuple[Any, ...], _Made] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made, arrays = self._of(args, kwargs)
        return made.run(arrays)

    def with_schedule(self, **choices: Any) -> MathFunction:
        """The same formula with parts of its schedule given: `tiles={"i": 128}`, by the names of
        the loops in `tile()`, `threads`, `stages`, …; the rest is chosen."""
        return MathFunction(self.function, self.target, {**self.schedule, **choices})

    def formula(self, *args: Any, **kwargs: Any) -> Formula:
        """The formula for arguments like these."""
        return self._of(args, kwargs)[0].formula

    def tile(self, *args: Any, **kwargs: Any) -> str:
        """The tile program for arguments like these, as Python text."""
        return self._of(args, kwargs)[0].program.text

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What was decided for arguments like these: kernels, loops, rounding, and what each
        kernel's schedule is."""
        made, arrays = self._of(args, kwargs)
        return made.explained(arrays)

    @property
    def formulas(self) -> list[Formula]:
        """Those of the shapes and types that it has met."""
        return [made.formula for made in self._made.values()]

    @property
    def kernels(self) -> list[Any]:
        return [made.kernel.compile(*made.examples()) for made in self._made.values()]

    def try_with(self, arguments: Mapping[str, Any]) -> str:
        """Meet these arguments, if they suffice; what to do if they do not."""
        known = {n: a for n, a in arguments.items() if n in self.signature.parameters}
        try:
            bound = self.signature.bind(**known)
        except TypeError:
            words = ", ".join(f"{n}=…" for n in self.signature.parameters)
            return (
                "" if self._made else f"call it in the file, or pass --args '{words}' with arrays"
            )
        self._of(bound.args, bound.kwargs)
        return ""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What is given, by name."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def traced(self, kinds: list[Kind], fixed: dict[str, Any]) -> Formula:
        """The formula for arrays like these, and arguments that are none."""
        return trace(self.function, kinds, fixed)

    def _of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Made, list[Any]]:
        given = self.arguments(args, kwargs)
        arrays = {n: a for n, a in given.items() if _is_array(a)}
        fixed = {n: a for n, a in given.items() if n not in arrays}
        kinds = [(n, tuple(map(int, a.shape)), find_dtype(a.dtype)) for n, a in arrays.items()]
        key = (*kinds, *((n, repr(a)) for n, a in fixed.items()))
        if key not in self._made:
            self._made[key] = self._make(kinds, fixed)
        return self._made[key], list(arrays.values())

    def _make(self, kinds: list[Kind], fixed: dict[str, Any]) -> _Made:
        if not kinds:
            raise CompileError(
                f"{self.__name__} was given no array",  # type: ignore[attr-defined]
                fix="call it with NumPy, PyTorch or JAX arrays; numbers are constants of a formula",
                code="arguments",
            )
        formula = self.traced(kinds, fixed)
        _check_elements(formula)
        return _Made(formula, self.target, self.schedule)


def _check_elements(formula: Formula) -> None:
    """Kernels have something to do."""
    shapes = [(b.name, b.static_shape) for b in (*formula.inputs, *formula.outputs)]
    shapes += [(a.name, tuple(x.extent for x in (*a.axes, *a.over))) for a in formula.arrays]
    for name, shape in shapes:
        if 0 in shape:
            raise CompileError(
                f"{name} of {formula.name} has no elements: there is nothing to compute",
                got=f"shape {shape}",
                fix="where a size may be 0, return the empty array before the function is called",
                code="arguments",
            )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


class _Made:
    """A formula of known shapes, its program, and the kernel when it has been called."""

    def __init__(self, formula: Formula, target: Any, schedule: dict[str, Any]) -> None:
        self.formula, self.target, self.schedule = formula, target, schedule
        self.normal = normalize(formula)

    @functools.cached_property
    def program(self) -> TileProgram:
        return program_of(self.normal)

    @functools.cached_property
    def kernel(self) -> Any:
        kernel = load(self.program)
        kernel = kernel.on(self.target) if self.target is not None else kernel
        return kernel.with_schedule(**self.schedule) if self.schedule else kernel

    def examples(self) -> list[Any]:
        """Arrays like those that it takes."""
        return [np.zeros(b.static_shape, b.dtype.numpy) for b in self.normal.formula.inputs]

    def _shaped(self, arrays: list[Any]) -> list[Any]:
        return [a.reshape(b.static_shape) for a, b in
                zip(arrays, self.normal.formula.inputs, strict=True)]  # fmt: skip

    def run(self, arrays: list[Any]) -> Any:
        found = self.kernel(*self._shaped(arrays))
        several = isinstance(found, (tuple, list))
        outputs = [
            o.reshape(self.normal.shapes[b.name])
            for o, b in zip(found if several else [found], self.formula.outputs, strict=True)
        ]
        return tuple(outputs) if several else outputs[0]

    def explained(self, arrays: list[Any]) -> str:
        program = self.program
        lines = [str(self.formula), "", *moved(program, self.normal.formula)]
        for kernel in program.kernels:
            lines += ["", *_kernel_lines(program, kernel)]
        lines += [f"in memory: {name} {why}" for name, why in program.apart.items()]
        lines += [f"rounding: {where}" for where in program.rounded]
        chosen = self.kernel.compile(*self._shaped(arrays)).explain()
        return "\n".join([*lines, "", program.text, str(chosen)])


def _kernel_lines(program: TileProgram, kernel: KernelPlan) -> list[str]:
    """What one kernel computes, what becomes of its axes, and what its loop keeps."""
    name = kernel.output.name
    axes = ", ".join(f"{v.name} {role}" for v, role in kernel.roles.items())
    inside = [f.name for f in kernel.folds if f.name != name]
    lines = [f"kernel {name}: {axes}"]
    lines += [f"  fused: {', '.join(inside)}"] if inside else []
    loop = program.loops.get(name)
    if loop is not None:
        kept = ", ".join(s.var.name for s in loop.stream.state)
        lines.append(f"  a loop over {kernel.stream[-1].var.name} keeps {kept}")
        lines += [f"  {line}" for line in (*loop.stream.notes, *str(loop.verdict).splitlines())]
    return lines


def moved(program: TileProgram, formula: Formula) -> list[str]:
    """The bytes that the kernels read and write, each array once, against the least possible."""

    def size(buffers: Iterable[Buffer]) -> int:
        return sum(b.bytes for b in dict.fromkeys(buffers))

    given = {b.name: b for b in formula.inputs}
    written = {a.name: a.buffer for kernel in program.kernels for a in kernel.outputs}
    total = 0
    for kernel in program.kernels:
        own = {a.name for a in kernel.outputs}
        reading = {r.buffer.name for a in (*kernel.folds, *kernel.outputs) for r in reads(a)} - own
        found = {n: b for n, b in (given | written).items() if n in reading | own}
        total += size(found.values())
    least = size([*formula.inputs, *formula.outputs])
    return [f"kernels: {len(program.kernels)}, {total:,} bytes moved, {least:,} at the least"]


def load(program: TileProgram) -> Any:
    """The kernel of a program's text, compiled as if it had been read from a file."""
    digest = hashlib.sha256(program.text.encode()).hexdigest()[:12]
    name = f"<tile program {program.name} {digest}>"
    linecache.cache[name] = (len(program.text), None, program.text.splitlines(True), name)
    scope: dict[str, Any] = {"__name__": f"tile_program_{program.name}"}
    exec(compile(program.text, name, "exec"), scope)
    return scope[program.name]


def math(function: Callable[..., Any] | None = None, *, target: Any = None) -> Any:
    """Make a tile program of a function of arrays: `@tw.math` or `@tw.math(target="cpu")`."""
    if function is None:
        return functools.partial(math, target=target)
    return MathFunction(function, target)
