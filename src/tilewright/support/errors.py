"""Where things are and what went wrong: `Loc`, `Diagnostic`, and the errors users see.

Every error Tilewright raises on purpose is a `TilewrightError` that carries one `Diagnostic`.
Rendering shows the file, the line, a caret under the span, what was expected, what came and how
to fix it; through macros it shows the chain of call sites. TILEWRIGHT_DIAGNOSTICS=json renders the
same as one line of JSON (docs/errors.md).
"""

from __future__ import annotations

import ast
import difflib
import functools
import json
import linecache
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

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
        if not self.source.strip():
            return ""
        before = self.source[: self.column - 1].expandtabs(4)
        gutter = f"{self.line:>5} | "
        carets = "^" * max(1, len(self.text.expandtabs(4)))
        return f"{gutter}{self.source.expandtabs(4)}\n{' ' * len(gutter + before)}{carets}"

    @property
    def source(self) -> str:
        """The source line, or '' when it is not at hand."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    @property
    def text(self) -> str:
        """The text of the span."""
        return self.source[self.column - 1 : (self.end_column or self.column + 1) - 1]

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_line": self.line,
            "end_column": self.end_column or self.column + 1,
            "source": self.source,
        }


@dataclass(frozen=True)
class Edit:
    """Text that takes the place of a span of one line, columns from 1, the end not included."""

    file: str
    line: int
    column: int
    end_column: int
    text: str

    def apply(self, source: str) -> str:
        """The whole text of the file, changed."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.column - 1] + self.text + line[self.end_column - 1 :]
        return "".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "start": {"line": self.line, "column": self.column},
            "end": {"line": self.line, "column": self.end_column},
            "text": self.text,
        }


def _common(a: str, b: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def _word_start(text: str, at: int) -> int:
    while 0 < at < len(text) and _IN_WORD.match(text[at - 1]) and _IN_WORD.match(text[at]):
        at -= 1
    return at


_IN_WORD = re.compile(r"\w")

# The text of an error's span → the text that puts it right, or None where that cannot be said.
Repair = Callable[[str], str | None]


def swap(old: str, new: str) -> Repair:
    """Write `new` for `old`, which must stand in the span exactly once, on its own.

    >>> swap("flaot32", "float32")('T.Tensor((8,), "flaot32")')
    'T.Tensor((8,), "float32")'
    """
    words = re.match(r"\w", old), re.search(r"\w$", old)
    # an operator stands alone where it is not part of a longer one
    left, right = (r"\w" if word else re.escape(old) for word in words)
    pattern = re.compile(f"(?<!{left}){re.escape(old)}(?!{right})")

    def repair(text: str) -> str | None:
        found = list(pattern.finditer(text))
        if len(found) != 1:
            return None
        return text[: found[0].start()] + new + text[found[0].end() :]

    return repair


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> tuple[str, Repair | None]:
    """The fix of a name that was perhaps misspelt, and its repair; `otherwise` if none is close.

    >>> suggest("flaot32", ["float16", "float32"])[0]
    "did you mean 'float32'?"
    """
    close = difflib.get_close_matches(name, list(known), 1)
    if not close:
        return otherwise, None
    return f"did you mean {close[0]!r}?", swap(name, close[0])


def with_argument(argument: str) -> Repair:
    """Give the call that the span is one argument more, at its end."""

    def repair(text: str) -> str | None:
        inside = text[:-1].rstrip(", ")
        return f"{inside}, {argument})" if is_call(text) and inside[-1] != "(" else None

    return repair


def is_call(text: str) -> bool:
    """Whether a span is a call from its name to its last parenthesis: of one that goes on over
    several lines it is the first line only."""
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Call)
    except SyntaxError:
        return False


# The version of the JSON form: it grows when a field changes its meaning or goes.
SCHEMA = 1


@dataclass(frozen=True)
class Diagnostic:
    """What went wrong, where, and what to do about it. `code` is a stable word for its kind;
    `repair` is the fix where a tool can apply it."""

    message: str
    loc: Loc | None = None
    expected: str = ""
    got: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()
    code: str = ""
    repair: Repair | None = field(default=None, compare=False)
    repair_loc: Loc | None = None  # the span that `repair` changes, where it is not `loc`

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The fix as changes of the text, where it is known to the letter."""
        place = self.repair_loc or self.loc
        if place is None or self.repair is None:
            return ()
        old = place.text
        new = self.repair(old) if old else None
        if new is None or new == old:
            return ()
        # whole words: what was written and what takes its place can be shown side by side
        first = _common(old, new)
        first = _word_start(old, min(first, _word_start(new, first)))
        rest, other = old[first:][::-1], new[first:][::-1]
        last = _common(rest, other)
        last = _word_start(rest, min(last, _word_start(other, last)))
        start, end = place.column + first, place.column + len(old) - last
        return (Edit(place.file, place.line, start, end, new[first : len(new) - last]),)

    def as_dict(self, error: str = "TilewrightError") -> dict[str, Any]:
        """Plain data, as docs/errors.md describes it; `error` is the name of the class."""
        nowhere = dict.fromkeys(("file", "line", "column", "end_line", "end_column"))
        return {
            "version": SCHEMA,
            "error": error,
            "code": self.code,
            "message": self.message,
            **(self.loc.as_dict() if self.loc else {**nowhere, "source": ""}),
            "expected": self.expected,
            "got": self.got,
            "fix": self.fix,
            "edits": [edit.as_dict() for edit in self.edits],
            "notes": list(self.notes),
            "related": [
                {"message": "called from", **caller.as_dict()}
                for caller in (self.loc.callers if self.loc else ())
            ],
        }

    def json(self, error: type) -> str:
        """One line; `error` is the class, or one of a user's made of it."""
        name = next(c.__name__ for c in error.__mro__ if c.__module__ == __name__)
        return json.dumps(self.as_dict(name), ensure_ascii=False)

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
    """Base of every error raised on purpose. `str(error)` is the rendered diagnostic.

    >>> try:
    ...     tw.Target.parse("gpu")
    ... except tw.TilewrightError as error:
    ...     error.message, error.diagnostic.fix
    ("unknown target 'gpu'", 'leave it out, or write target="auto"')
    """

    code = "error"  # of errors that have no word of their own

    def __init__(
        self,
        message: str,
        *,
        loc: Loc | None = None,
        expected: object = "",
        got: object = "",
        fix: str = "",
        notes: tuple[str, ...] = (),
        code: str = "",
        repair: Repair | None = None,
        repair_loc: Loc | None = None,
    ) -> None:
        self.diagnostic = Diagnostic(
            message, loc or current_loc(), str(expected), str(got), fix, notes, code or self.code,
            repair, repair_loc,
        )  # fmt: skip
        super().__init__(message)

    def __str__(self) -> str:
        return self.json() if in_json() else self.diagnostic.render()

    def json(self) -> str:
        """The diagnostic as one line of JSON."""
        return self.diagnostic.json(type(self))

    @property
    def message(self) -> str:
        return self.diagnostic.message

    @property
    def loc(self) -> Loc | None:
        return self.diagnostic.loc


class CompileError(TilewrightError):
    """The kernel's text is wrong: it does not parse, check or fit the target.

    >>> try:
    ...     tw.compile("main")
    ... except tw.CompileError as error:
    ...     error.message
    'tw.compile takes a @T.prim_func'
    """

    code = "compile"


class VerifyError(TilewrightError):
    """IR that breaks a rule of its stage: a hand-written mistake or a faulty pass.

    >>> text = "program p { kernel main grid b in 1 threads t in 32 { wait nobody[0] phase 0 } }"
    >>> try:
    ...     tw.compile(tw.parse_ir(text), target="interp")
    ... except tw.TilewrightError as error:
    ...     error.message
    'nobody is not defined'
    """

    code = "verify"


class LaunchError(TilewrightError):
    """The arguments do not fit the kernel's declaration; nothing has run.

    >>> @T.prim_func
    ... def main(A: T.Tensor((4,), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         T.clear(A)
    >>> try:
    ...     tw.compile(main, target="interp")(np.zeros(5, np.float32))
    ... except tw.LaunchError as error:
    ...     error.diagnostic.expected, error.diagnostic.got
    ('(4,)', '(5,)')
    """

    code = "launch"


class RunError(TilewrightError):
    """The kernel did something it must not do while the interpreter ran it.

    >>> @T.prim_func
    ... def main(A: T.Tensor((4,), "int32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             T.device_assert(A[i] > 0, "not positive")
    >>> try:
    ...     tw.compile(main, target="interp")(np.zeros(4, np.int32))
    ... except tw.RunError as error:
    ...     "not positive" in error.message
    True
    """

    code = "run"


class HangError(RunError):
    """A barrier wait that did not end; a diagnostic build gave it up and says where it stands."""

    code = "hang"


class SanitizerError(RunError):
    """What the sanitizer reports: `kind` is a stable word such as 'out-of-range' or 'race'.

    >>> @T.prim_func
    ... def main(A: T.Tensor((4,), "int32")):
    ...     with T.Kernel(1, threads=32):
    ...         tile = T.alloc_shared((4,), "int32")
    ...         T.copy(tile, A)  # nothing wrote the tile
    >>> try:
    ...     tw.compile(main, target="interp -sanitize")(np.zeros(4, np.int32))
    ... except tw.SanitizerError as error:
    ...     error.kind
    'uninitialized'
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        loc: Loc | None = None,
        fix: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{kind}: {message}", loc=loc, fix=fix, notes=notes, code=kind)
        self.kind = kind


class PerformanceWarning(UserWarning):
    """A kernel that is right, and slower than its text suggests. Each is given once in a process;
    in a test, make it an error:

    >>> @T.prim_func
    ... def double(A: T.Tensor((128,), "float32")):
    ...     with T.Kernel(1, threads=128):
    ...         for i in T.Parallel(128):
    ...             A[i] = A[i] * 2
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", tw.PerformanceWarning)
    ...     kernel = tw.compile(double, target="cuda")
    >>> kernel.name
    'double'
    """


class Cost(NamedTuple):
    """A reason why a kernel is slow, and where."""

    kernel: str
    loc: Loc | None
    text: str


_told: set[Cost] = set()


def warn_of(cost: Cost) -> None:
    """A `PerformanceWarning` at the line of the kernel's text, once in a process."""
    if cost in _told:
        return
    _told.add(cost)
    _warn(PerformanceWarning(f"{cost.kernel}: {cost.text}"), cost.loc)


def _warn(warning: Warning, loc: Loc | None) -> None:
    """Warn, at the place that it is about."""
    if loc is None:
        warnings.warn(warning, stacklevel=3)
    else:
        warnings.warn_explicit(warning, type(warning), loc.file, loc.line)


class SanitizerWarning(UserWarning):
    """What the sanitizer warns of: legal, and seldom meant. `kind` is a stable word.

    >>> @tw.jit(target="interp -sanitize")
    ... def half(A):
    ...     A: T.Tensor((4,), "float32")
    ...     B = T.empty((4,), "float32")
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(2):
    ...             B[i] = A[i]
    ...     return B
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     _ = half(np.ones(4, np.float32))
    >>> found[0].message.kind
    'unwritten'
    """

    def __init__(self, kind: str, message: str, *, loc: Loc | None = None, fix: str = "") -> None:
        self.kind = kind
        self.diagnostic = Diagnostic(f"{kind}: {message}", loc, fix=fix, code=kind)
        super().__init__(message)

    def __str__(self) -> str:
        return self.diagnostic.json(type(self)) if in_json() else self.diagnostic.render()

    def give(self) -> None:
        """Warn, at the place that it is about."""
        _warn(self, self.diagnostic.loc)


def in_json() -> bool:
    """Whether errors are to be read by a program."""
    return env.DIAGNOSTICS().lower() == "json"


def _hooked(before: Callable[..., Any]) -> Callable[..., Any]:
    """What an uncaught error does in JSON mode: one line, and no traceback around it."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, TilewrightError) and in_json():
            print(error.json(), file=sys.stderr)
        else:
            before(kind, error, trace)

    return hook


if in_json():
    sys.excepthook = _hooked(sys.excepthook)


# The tracer installs how to find the user's position, so that a type error raised deep inside
# expression building still points at the user's line.
_locator: ContextVar[Callable[[], Loc | None] | None] = ContextVar("locator", default=None)


_outside: list[Callable[[], Loc | None]] = []


# The op that is being rewritten: what is made of it has its place, and so have errors.
here: ContextVar[Loc | None] = ContextVar("here", default=None)


def current_loc() -> Loc | None:
    """The user's position: that of the op that is being rewritten, of the kernel's text while it is
    traced, of a call otherwise."""
    locate = _locator.get() or (_outside[0] if _outside else None)
    return here.get() or (locate() if locate else None)


def occurrence(loc: Loc | None, own: Loc | None) -> Loc | None:
    """Where a part of an op at `own` stands, of which an expression says `loc`. Equal expressions
    are one object, which remembers whoever wrote it first: only a place on the op's line counts."""
    if loc is None or own is None:
        return loc or own
    return loc if (loc.file, loc.line) == (own.file, own.line) else own


def locate_calls(locate: Callable[[], Loc | None]) -> None:
    """How to find the user's position while no kernel is traced."""
    _outside[:] = [locate]


@contextmanager
def locating(locate: Callable[[], Loc | None]) -> Iterator[None]:
    """Errors raised inside point where `locate()` says."""
    token, before = _locator.set(locate), here.set(None)
    try:
        yield
    finally:
        here.reset(before)
        _locator.reset(token)


@contextmanager
def at(loc: Loc | None) -> Iterator[None]:
    """Ops made and errors raised inside that say no place have `loc`; as outside, if it is None."""
    before = here.set(loc or here.get())
    try:
        yield
    finally:
        here.reset(before)


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


_CALL = next(each for each in entry.__code__.co_consts if isinstance(each, CodeType))


def word() -> str:
    """The word of the language that runs, for messages: the innermost `entry`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back
    return frame.f_locals["function"].__name__ if frame is not None else ""


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
