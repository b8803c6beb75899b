"""Where things are and what went wrong: `Loc`, `Diagnostic`, and the errors users see.

Every error Tilewright raises on purpose is a `TilewrightError` that carries one `Diagnostic`.
Rendering shows the file, the line, a caret under the span, what was expected, what came and how
to fix it; through macros it shows the chain of call sites.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from tilewright.support import env

P = ParamSpec("P")
R = TypeVar("R")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class Loc:
    """A span of source text. Lines and columns count from 1; `callers` runs innermost first."""

    file: str
    line: int
    column: int = 1
    end_column: int | None = None
    callers: tuple[Loc, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """The source line with a caret under the span, or '' when the source is not at hand."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        before = text[: self.column - 1].expandtabs(4)
        span = text[self.column - 1 : (self.end_column or self.column + 1) - 1].expandtabs(4)
        gutter = f"{self.line:>5} | "
        carets = "^" * max(1, len(span))
        return f"{gutter}{text.expandtabs(4)}\n{' ' * len(gutter + before)}{carets}"


@dataclass(frozen=True)
class Diagnostic:
    """What went wrong, where, and what to do about it."""

    message: str
    loc: Loc | None = None
    expected: str = ""
    got: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        lines = [f"{self.loc}: {self.message}" if self.loc else self.message]
        if self.loc:
            lines.append(self.loc.excerpt())
            for caller in self.loc.callers:
                lines += [f"called from {caller}", caller.excerpt()]
        for label, text in (
            ("expected", self.expected),
            ("got", self.got),
            *(("note", note) for note in self.notes),
            ("fix", self.fix),
        ):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join(line for line in lines if line)


class TilewrightError(Exception):
    """Base of every error raised on purpose. `str(error)` is the rendered diagnostic."""

    def __init__(
        self,
        message: str,
        *,
        loc: Loc | None = None,
        expected: str = "",
        got: str = "",
        fix: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        loc = loc or current_loc()
        self.diagnostic = Diagnostic(message, loc, expected, got, fix, notes)
        super().__init__(message)

    def __str__(self) -> str:
        return self.diagnostic.render()

    @property
    def message(self) -> str:
        return self.diagnostic.message

    @property
    def loc(self) -> Loc | None:
        return self.diagnostic.loc


class CompileError(TilewrightError):
    """The kernel's text is wrong: it does not parse, check or fit the target."""


class VerifyError(TilewrightError):
    """IR that breaks a rule of its stage: a hand-written mistake or a faulty pass."""


class LaunchError(TilewrightError):
    """The arguments do not fit the kernel's declaration; nothing has run."""


class RunError(TilewrightError):
    """The kernel did something it must not do while the interpreter ran it."""


class HangError(RunError):
    """A barrier wait that did not end; a diagnostic build gave it up and says where it stands."""


class SanitizerError(RunError):
    """What the sanitizer reports: `kind` is a stable word such as 'out-of-range' or 'race'."""

    def __init__(self, kind: str, message: str, *, loc: Loc | None = None, fix: str = "") -> None:
        super().__init__(f"{kind}: {message}", loc=loc, fix=fix)
        self.kind = kind


# The tracer installs how to find the user's position, so that a type error raised deep inside
# expression building still points at the user's line.
_locator: ContextVar[Callable[[], Loc | None] | None] = ContextVar("locator", default=None)


_outside: list[Callable[[], Loc | None]] = []


def current_loc() -> Loc | None:
    """The user's position: that of the kernel's text while it is traced, of a call otherwise."""
    locate = _locator.get() or (_outside[0] if _outside else None)
    return locate() if locate else None


def locate_calls(locate: Callable[[], Loc | None]) -> None:
    """How to find the user's position while no kernel is traced."""
    _outside[:] = [locate]


@contextmanager
def locating(locate: Callable[[], Loc | None]) -> Iterator[None]:
    """Errors raised inside point where `locate()` says."""
    token = _locator.set(locate)
    try:
        yield
    finally:
        _locator.reset(token)


# ── tracebacks ───────────────────────────────────────────────────────────────────────────────


def is_own(frame: FrameType) -> bool:
    """Whether a frame runs Tilewright's code, methods that `dataclass` wrote included."""
    file = frame.f_code.co_filename
    return file.startswith(_PACKAGE) or (
        file == "<string>" and str(frame.f_globals.get("__name__")).startswith("tilewright.")
    )


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """A function that users call: its errors show their frames and none of ours.

    TILEWRIGHT_TRACEBACK=1 shows all of them.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TilewrightError as error:
            if env.TRACEBACK.on():
                raise
            error.__cause__, error.__suppress_context__ = None, True
            error.__traceback__ = _their_frames(error.__traceback__)
            if sys.version_info < (3, 11):  # a bare `raise` there brings the old frames back
                raise error
            raise

    return call


def _their_frames(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        if not is_own(traceback.tb_frame):
            kept.append(traceback)
        traceback = traceback.tb_next
    found: TracebackType | None = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
