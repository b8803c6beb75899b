"""The kernels that a Python file makes when it is run."""

from __future__ import annotations

import contextlib
import inspect
import re
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.formula.function import MathFunction
from tilewright.ir.dtype import dtype
from tilewright.ir.formula import Formula
from tilewright.ir.op import Program
from tilewright.lang.trace import PrimFunc
from tilewright.runtime.jit import Jit
from tilewright.runtime.kernel import CompiledKernel
from tilewright.runtime.launch import Launcher
from tilewright.support.errors import CompileError, Loc, TilewrightError
from tilewright.tune.configs import Autotuned

_ARRAY = re.compile(r"\s*(\w+)\s*\[([\d\s,]*)\]\s*")


@dataclass(frozen=True)
class Found:
    """A kernel, what the file calls it (or the function that made it), and the tensors that a
    call of it makes."""

    program: Program
    name: str = ""
    made: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A function that makes kernels, but not with the arguments at hand, and why; `error` where
    no others would do."""

    name: str
    why: str
    error: TilewrightError | None = None


@dataclass
class Collected:
    """What a file makes; `chosen` are the arguments, for factories and kernels alike."""

    found: list[Found]
    skipped: list[Skipped]
    chosen: dict[str, Any]


def collect_all(file: str, arguments: str = "", only: str | None = None) -> Collected:
    """Run `file` (not as `__main__`, its output sent to stderr) and return its kernels.

    Counted are prim_funcs and compiled kernels among the file's names, what its jitted functions
    have compiled, and factories that `arguments` or their defaults suffice to call; where the
    file has the name `only`, what that makes.
    """
    found: dict[Program, Found] = {}
    skipped: list[Skipped] = []
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            names = _run(file)
            chosen = with_arrays(parse_arguments(arguments, names))
            rest = dict.fromkeys(chosen)
            for name, value in (names if only not in names else {only: names[only]}).items():
                made, why = _of(value, chosen, rest)
                for launcher in made:
                    program = launcher.program
                    found.setdefault(program, Found(program, name, launcher.made))
                    for each in (*(d.var for d in program.dims), *program.params):
                        rest.pop(each.name, None)
                if isinstance(why, TilewrightError):
                    skipped.append(Skipped(name, why.message, why))
                elif why and not made:
                    skipped.append(Skipped(name, why))
    finally:
        sys.path.pop(0)
    if found and rest and not skipped:
        unknown = next(iter(rest))
        raise CompileError(
            f"no kernel of {file} takes {unknown!r}",
            fix=f"leave it out of --args {_quoted(arguments)}",
            code="arguments",
        )
    return Collected(list(found.values()), skipped, chosen)


def formulas(
    file: str, name: str | None = None, arguments: str = ""
) -> tuple[list[Formula], list[Skipped]]:
    """The formulas that `file` has called, or that `arguments` suffice to call; and functions of
    which there are none."""
    names = file_names(file)
    chosen = with_arrays(parse_arguments(arguments, names))
    found: list[Formula] = []
    skipped: list[Skipped] = []
    for each, value in names.items():
        if isinstance(value, MathFunction) and name in (None, each, value.function.__name__):
            why = value.try_with(chosen)
            found += value.formulas
            skipped += [Skipped(each, why)] if why else []
    return found, skipped


def file_names(file: str) -> dict[str, Any]:
    """What the file defines, once it has run; its folder stays in the path for what it imports."""
    sys.path.insert(0, str(Path(file).resolve().parent))
    return _run(file)


def missing_text(skipped: Sequence[Skipped]) -> str:
    """What to do about functions that were passed over, a line each."""
    return "\n".join(f"  {each.name}: {each.why}" for each in skipped)


def _run(file: str) -> dict[str, Any]:
    try:
        return runpy.run_path(file, run_name="<tilewright>")
    except TilewrightError:
        raise
    except (Exception, SystemExit) as error:
        raise CompileError(
            f"{file} failed while it ran: {told(error, file)}", loc=_place(error, file)
        ) from error


def _place(error: BaseException, file: str) -> Loc | None:
    """The last line of the file that an error went through, or that does not read as Python."""
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno:
        return Loc(file, error.lineno, error.offset or 1, error.end_offset or None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return Loc(file, frames[-1].lineno or 1) if frames else None


def told(error: BaseException, file: str) -> str:
    """An error of a user's file in one line, with the last of its lines that it went through."""
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"{said} (line {lines[-1]})" if lines else said


def parse_arguments(
    arguments: str, names: dict[str, Any], option: str = "--args"
) -> dict[str, Any]:
    if not arguments.strip():
        return {}
    try:
        return dict(eval(f"dict({arguments})", dict(names)))
    except Exception as error:
        raise CompileError(
            f"{option} {arguments!r} does not read as keyword arguments: {error}",
            fix=f"write them as in a call, e.g. {option} 'M=1024, N=512'",
        ) from None


def with_arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    """'float32[8, 64]' as an array of that type and shape, by which formulas are traced."""
    return {name: _array(value) for name, value in given.items()}


def _array(value: Any) -> Any:
    match = _ARRAY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    shape = [int(n) for n in match[2].split(",") if n.strip()]
    return np.zeros(shape, dtype(match[1]).numpy)


def _of(
    value: Any, chosen: dict[str, Any], rest: dict[str, None]
) -> tuple[list[Launcher], str | TilewrightError]:
    """The programs of one name of the file, as they are launched; without any, why, or the error
    in its text. Of `rest`, the arguments that nothing has taken, it removes its own."""
    if isinstance(value, PrimFunc):
        return [Launcher(value.program, value.out_idx)], ""
    if isinstance(value, CompiledKernel):
        return [value.launcher], ""
    if isinstance(value, MathFunction):
        why = value.try_with(chosen)
        for name in value.signature.parameters:
            rest.pop(name, None)
        return [made.launcher for made in value.kernels], why
    value = value.jitted if isinstance(value, Autotuned) else value
    if not isinstance(value, Jit):
        return [], ""
    programs = [getattr(k, "kernel", k).launcher for k in value._kernels.values()]
    usable, missing = usable_of(value, chosen)
    if value.direct:
        if usable or not programs:
            try:
                programs.append(_compiled(value, usable).launcher)
            except TilewrightError as error:
                if error.diagnostic.code != "arguments":
                    return programs, error
                return programs, f"{error.message}; give sizes and options with --args 'M=…'"
    elif not missing and (usable or not programs):
        out = value.out_idx
        indices = [out] if isinstance(out, int) else list(out or [])
        programs.append(Launcher(value.prim_func(**usable).program, indices))
    for name in usable:
        rest.pop(name, None)
    given = [f"{n}={v!r}" for n, v in usable.items()]
    need = ", ".join([*given, *(f"{n}=…" for n in missing)])
    return programs, f"pass --args {_quoted(need)}" if missing else ""


def _compiled(value: Jit, usable: dict[str, Any]) -> CompiledKernel:
    """Arrays may be left out, and sizes come by name; of `usable`, those of other kernels go."""
    while True:
        try:
            return value.on("interp").compile(**usable)
        except CompileError as error:
            told = error.diagnostic
            if told.code != "arguments" or usable.pop(told.got, None) is None:
                raise


def usable_of(value: Jit, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Of arguments those that a jitted function takes, and the parameters that lack one."""
    parameters = value.signature.parameters
    usable = {k: v for k, v in chosen.items() if k in parameters or value.direct}
    missing = [
        n for n, p in parameters.items() if p.default is inspect.Parameter.empty
        and n not in usable and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    return usable, missing


def _quoted(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"
