"""The programs that schedules are derived for, named by a text that makes them again.

`rings(seed=7)` and other kinds of `devtools.fuzz.programs.KINDS` are random ones; other names are
those of a file's dict `schedules`, e.g. `gemm_relu(M=65, N=8, K=64)`.
"""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from devtools.compare import UNITS
from devtools.fuzz.check import load
from devtools.fuzz.programs import KINDS, make
from devtools.fuzz.recipe import render
from tilewright import machine
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Var
from tilewright.ir.op import Program
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.tools.compare import difference

Array = np.ndarray[Any, np.dtype[Any]]
Args = dict[str, Any]
_SHARE = {"rings": 0.5, "tiles": 0.1}  # of all programs; those of files have the rest
_NEAR = {2: 2.0**-8, 4: 2.0**-20, 8: 2.0**-40}  # of the kernels of files, by size of the result


@dataclass
class Subject:
    """A program, its launches, and what each of them leaves when nothing is scheduled."""

    name: str
    program: Program
    launches: Sequence[Callable[[], Args]]
    exact: bool
    unit: float = 0.0  # how far floats may be off (`compare.difference`); 0: see `_NEAR`
    wanted: dict[int, dict[str, Array]] = field(default_factory=dict)
    found: list[Program] = field(default_factory=list)  # the schedules derived so far

    def want(self, number: int) -> dict[str, Array]:
        """The arrays after a launch of the program as it is written."""
        if number not in self.wanted:
            args = self.launches[number]()
            machine.run(self.program, args, sanitize=True)
            self.wanted[number] = {n: a for n, a in args.items() if isinstance(a, np.ndarray)}
        return self.wanted[number]

    def wrong(self, number: int, args: Args) -> str:
        """How `args` after a launch differ from what they should be, or ''."""
        for name, want in self.want(number).items():
            got = args[name]
            if not self.exact and not self.unit and want.dtype.kind not in "biu":
                unit = _NEAR[max(want.dtype.itemsize, 2)]
                with np.errstate(all="ignore"):
                    a, b = got.astype(np.float64), want.astype(np.float64)
                    # float32 differences of nearly equal numbers leave some 2**-24 of them
                    near = np.isclose(a, b, 2 * unit, max(unit / 64, 2.0**-22), True)
                    got = np.where(near, want, got)
            told = difference(want, got, self.unit)
            if told:
                return f"{name}: {told}"
        return ""


def draw_program(rng: Random, file: str = "") -> str:
    """The name of a random program."""
    kind = rng.random() * (1.0 if file else sum(_SHARE.values()))
    for name, share in _SHARE.items():
        if kind < share:
            return f"{name}(seed={rng.randrange(1_000_000)})"
        kind -= share
    known = kernels(file)
    name = rng.choice(list(known))
    given = known[name][0](rng)
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in given.items())})"


@cache
def kernels(file: str) -> Mapping[str, tuple[Callable[[Random], Args], Callable[..., Any]]]:
    """The dict `schedules` of a Python file."""
    here = [str(Path.cwd()), str(Path(file).resolve().parent)]
    sys.path[:0] = here
    try:
        found = runpy.run_path(file, run_name="<tilewright>").get("schedules")
    finally:
        for folder in here:
            sys.path.remove(folder)
    if not isinstance(found, dict):
        raise CompileError(
            f"{file} has no dict `schedules`",
            fix="map names to (draw, make); see zoo/schedules.py",
        )
    return found


@lru_cache(8)
def subject(name: str, file: str = "") -> Subject:
    """The program of a name."""
    try:
        call = ast.parse(name, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, AssertionError, ValueError) as error:
        raise CompileError(
            f"{name!r} names no program", expected="a name and literals, as in rings(seed=7)"
        ) from error
    word = call.func.id
    if word in KINDS:
        return _fuzzed(name, make(int(given["seed"]), word))
    known = kernels(file) if file else {}
    if word not in known:
        raise CompileError(
            f"unknown program {word!r}", expected=", ".join([*KINDS, *known]),
            fix="" if file else "name the file that has it",
        )  # fmt: skip
    function, sizes, exact = known[word][1](**given)
    program = function.program
    return Subject(name, program, [lambda: _arguments(program, sizes)], exact)


def _fuzzed(name: str, recipe: Any) -> Subject:
    source = render(recipe)
    space = load(source, f"{name}.py")
    units = [u for n, u in UNITS.items() if n in source]
    exact = bool(space["EXACT"])
    launches = [partial(space["arguments"], **case) for case in space["CASES"]]
    unit = 0.0 if exact else max(units, default=2.0**-8)
    return Subject(name, space["program"].program, launches, exact, unit)


def _arguments(program: Program, sizes: Mapping[str, int]) -> Args:
    """Small integers: sums of products of them are exact."""
    rng = np.random.default_rng(0)
    made: Args = {}
    for param in program.params:
        if not isinstance(param, Buffer):
            made[param.name] = 1
            continue
        shape = tuple(sizes.get(s.name, 1) if isinstance(s, Var) else int(s) for s in param.shape)
        low = 0 if param.dtype.is_int else -2
        made[param.name] = rng.integers(low, 3, shape).astype(np.float32).astype(param.dtype.numpy)
    return made


def legal(found: Subject) -> str:
    """Why the program, as it is written, may not run; '' where it may."""
    try:
        for number in range(len(found.launches)):
            found.want(number)
    except TilewrightError as error:
        return error.message
    return ""
