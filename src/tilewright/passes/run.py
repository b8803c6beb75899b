"""Running passes: one after another, each result verified, dumped on request, and kept.

The lists are in `cuda_passes` and `cpu_passes`; a pass is a plain function with a reason for its
place.

TILEWRIGHT_DUMP: what a compilation left, in files whose names sort in the order of their making.

    <dump>/<program>.<target>/00_input.tw
                              01_<pass>.tw …
                              12_source.cu          (or .ll)
                              07_<pass>.error.txt   where a pass failed: the file before it is
                                                    what it was given

A program that is compiled again for the same target takes the place of the last one; another one
of the same name gets a folder of its own, `<program>_2.<target>`.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.ir.op import Kernel, Program, op_loads, walk_ops
from tilewright.ir.rewrite import map_kernels, naming
from tilewright.ir.scope import remembering
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.reasons import Reasons, counting, listening, merge
from tilewright.support import env
from tilewright.support.errors import Cost, Loc, TilewrightError, VerifyError, at


@dataclass(frozen=True)
class Pass:
    """One step: `run(kernel, target) -> kernel`, or `run(program, target) -> program`.

    `reason` says why it stands where it does; `stage` is what its result is verified as.
    """

    run: Callable[[Any, Target], Any]
    reason: str
    stage: Stage = Stage.TILE

    @property
    def name(self) -> str:
        return self.run.__name__

    def __call__(self, program: Program, target: Target) -> Program:
        def run(given: Program | Kernel) -> Any:
            with at(given.loc):
                return self.run(given, target)

        with naming(program):
            result: Program = run(program) if self.is_whole else map_kernels(program, run)
        return result

    @cached_property
    def is_whole(self) -> bool:
        """Whether it takes a program."""
        return next(iter(signature(self.run, follow_wrapped=False).parameters)) == "program"


class Step(NamedTuple):
    """What one pass left."""

    name: str
    program: Program


class Trace(list[Step]):
    """The program after every pass, the input first, as `(name, program)` pairs; `reasons` is why
    passes chose what they did, `costs` what of it is slow."""

    def __init__(self, steps: Iterable[Step] = (), dump: Dump | None = None) -> None:
        super().__init__(steps)
        self.reasons: Reasons = {}
        self.costs: list[Cost] = []
        self.dump = dump  # for what is made of the result

    @property
    def result(self) -> Program:
        return self[-1].program

    def after(self, name: str) -> Program:
        """The program that pass `name` left."""
        for step in self:
            if step.name == name:
                return step.program
        known = ", ".join(step.name for step in self)
        raise KeyError(f"no pass called {name!r} ran; there were {known}")


def run_pipeline(
    program: Program,
    target: Target,
    passes: Sequence[Pass],
    *,
    stage: Stage = Stage.TILE,
    dump: str | Path | None = None,
) -> Trace:
    """Run `passes` over `program`, which is at `stage`, and return what each of them left.

    Every result is verified; an error names the pass, and has as `trace` what the passes before it
    left. With `dump` (default: TILEWRIGHT_DUMP) the text after each pass goes to files (above).
    """
    files = Dump(program, target, dump)
    trace = Trace(dump=files)
    at = "input"
    try:
        with no_collection(), remembering():
            files.program("input", program)
            _check(program, stage, "input")
            trace.append(Step("input", program))
            for step in passes:
                at = step.name
                with listening() as reasons, counting() as costs:
                    program = step(program, target)
                merge(trace.reasons, reasons)
                trace.costs += [cost for cost in costs if cost not in trace.costs]
                # written first: the dump of a faulty result is the one that is wanted
                files.program(step.name, program)
                _check(program, step.stage, step.name)
                trace.append(Step(step.name, program))
    except Exception as error:
        if isinstance(error, TilewrightError):
            _relocate(error, program)
        files.error(at, error)
        error.__dict__.setdefault("trace", trace)
        raise
    return trace


@contextmanager
def no_collection() -> Iterator[None]:
    """Programs are trees: the collector finds nothing in them, and takes a tenth of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _relocate(error: TilewrightError, program: Program) -> None:
    """An error that says where an expression stands says it for this program. Equal expressions are
    one object, and its loads may be those of another kernel's text."""
    found: Loc | None = None
    for op in (op for kernel in program.kernels for op in walk_ops(kernel)):
        if op.loc is not None and error.loc is not None:
            if (op.loc.file, op.loc.line) == (error.loc.file, error.loc.line):
                return
            if found is None and any(load.loc == error.loc for load in op_loads(op)):
                found = op.loc
    if found is not None:
        error.diagnostic = replace(error.diagnostic, loc=found)


def _check(program: Program, stage: Stage, name: str) -> None:
    try:
        verify(program, stage)
    except VerifyError as error:
        found = error.diagnostic
        where = "the program given to the pipeline" if name == "input" else f"after pass {name}"
        raise VerifyError(
            f"{where}: {found.message}",
            loc=found.loc,
            expected=found.expected,
            got=found.got,
            fix=found.fix,
            notes=found.notes,
        ) from error


# ── TILEWRIGHT_DUMP ──────────────────────────────────────────────────────────────────────────

_lock = threading.Lock()
_owners: dict[Path, Program] = {}  # whose folder it is, in this process


class Dump:
    """The files of one compilation; nothing is written where nobody asked for them."""

    def __init__(self, program: Program, target: Target, where: str | Path | None = None) -> None:
        self.folder: Path | None = None
        self.number = 0
        root = env.DUMP() if where is None else str(where)
        if root:
            self.folder = _own(Path(root), _plain(program.name), _plain(str(target)), program)
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob("[0-9][0-9]_*"):
                old.unlink()

    def program(self, name: str, program: Program) -> None:
        """The program after pass `name`."""
        if self.folder is not None:
            self._write(f"{_plain(name)}.tw", print_program(program))

    def source(self, kind: str, text: str) -> None:
        """What was generated; a second one takes the place of the first."""
        if self.folder is not None:
            for old in self.folder.glob("[0-9][0-9]_source.*"):
                old.unlink()
                self.number -= 1
            self._write(f"source.{kind}", text)

    def error(self, name: str, error: Exception) -> None:
        """Pass `name` failed."""
        self._write(f"{_plain(name)}.error.txt", f"{type(error).__name__}: {error}\n")

    def _write(self, name: str, text: str) -> None:
        if self.folder is not None:
            (self.folder / f"{self.number:02}_{name}").write_text(text, encoding="utf-8")
            self.number += 1


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name) or "program"


def _own(root: Path, name: str, target: str, program: Program) -> Path:
    """The folder of a program, which no other program of this process has."""
    with _lock:
        for count in range(2, 1000):
            folder = root / f"{name}.{target}"
            if _owners.setdefault(folder, program) == program:
                break
            name = f"{_plain(program.name)}_{count}"
    return folder
