"""The kernels that a Python file makes when it is run."""

from __future__ import annotations

import contextlib
import inspect
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.ir.op import Program
from tilewright.lang import PrimFunc
from tilewright.runtime.jit import Jit
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import CompileError, TilewrightError


@dataclass(frozen=True)
class Found:
    program: Program


def collect(file: str, arguments: str = "") -> list[Found]:
    """Run `file` (not as `__main__`, its output sent to stderr) and return its kernels.

    Counted are prim_funcs and compiled kernels among the file's names, what its jitted functions
    have compiled, and factories that `arguments` or their defaults suffice to call.
    """
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            names = _run(file)
            chosen = parse_arguments(arguments, names)
            programs = [p for value in names.values() for p in _of(value, chosen)]
    finally:
        sys.path.pop(0)
    return [Found(p) for p in dict.fromkeys(programs)]


def _run(file: str) -> dict[str, Any]:
    try:
        return runpy.run_path(file, run_name="<tilewright>")
    except TilewrightError:
        raise
    except Exception as error:
        raise CompileError(
            f"{file} failed while it ran: {type(error).__name__}: {error}"
        ) from error


def parse_arguments(arguments: str, names: dict[str, Any]) -> dict[str, Any]:
    if not arguments.strip():
        return {}
    try:
        return dict(eval(f"dict({arguments})", dict(names)))
    except Exception as error:
        raise CompileError(
            f"--args {arguments!r} does not read as keyword arguments: {error}",
            fix="write them as in a call, e.g. --args 'M=1024, N=512'",
        ) from None


def _of(value: Any, chosen: dict[str, Any]) -> list[Program]:
    if isinstance(value, PrimFunc):
        return [value.program]
    if isinstance(value, CompiledKernel):
        return [value.program]
    if not isinstance(value, Jit):
        return []
    made = [k[0] if isinstance(k, tuple) else k for k in value._kernels.values()]
    programs = [k.program for k in made]
    if not value.direct:
        parameters = value.signature.parameters
        usable = {k: v for k, v in chosen.items() if k in parameters}
        missing = [
            n for n, p in parameters.items() if p.default is inspect.Parameter.empty
            and n not in usable and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]  # fmt: skip
        if not missing and (usable or not programs):
            programs.append(value.prim_func(**usable).program)
    return programs
