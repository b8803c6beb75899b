"""The user's position while a kernel is traced: the innermost frame of their own code, with the
call sites that led to it."""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from types import CodeType, FrameType, TracebackType

from tilewright.support.definitions import ByCode, nested
from tilewright.support.errors import Loc, is_own, locate_calls, word

_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Code objects made by rewriting a user's function, with the column where each line's first
# statement starts (Python 3.10 keeps no columns of its own).
_REWRITTEN: ByCode[dict[int, int]] = ByCode()
_REWRITTEN_IDS = _REWRITTEN.by_id  # every frame of a stack is asked for every op


def register(code: CodeType, columns: dict[int, int]) -> None:
    """`code` and everything nested in it is a user's code."""
    for each in nested(code):
        _REWRITTEN[each] = columns


def users_frame() -> FrameType:
    """The innermost frame that runs a rewritten function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame.f_code) not in _REWRITTEN_IDS:
        frame = frame.f_back
    assert frame is not None
    return frame


def is_theirs(frame: FrameType) -> bool:
    """The user's own: not ours, and not of a library that calls us for them."""
    return (ORIGINS.get(frame.f_code.co_filename) or _origin(frame)) == "theirs"


def by_theirs(frame: FrameType | None) -> bool:
    """Whether a user's code runs, perhaps through Python's library."""
    while frame is not None:
        known = ORIGINS.get(frame.f_code.co_filename) or _origin(frame)
        if known != "library":
            return known in ("theirs", "behalf")
        frame = frame.f_back
    return False


def _origin(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    library = file.startswith(_LIBRARY) and "site-packages" not in file
    library |= str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "jax", "click")
    ours = "ours" if is_own(frame) else "theirs"
    found = "library" if library or file.startswith("<frozen") else ours
    if file != "<string>":  # the name of anybody's
        ORIGINS[file] = found
    return found


# the file of functions that act on values for the user's text
BEHALF = f"{__file__}:behalf"
# by file: every frame of a stack is asked for every op; callbacks of weak references, which the
# collector calls anywhere, are nobody's
ORIGINS: dict[str, str] = {weakref.__file__: "nobody", BEHALF: "behalf"}


def _positions(code: CodeType) -> tuple[tuple[int | None, ...], ...]:
    """By identity: code that PyTorch makes has slices among its constants, and then no hash."""
    found = _POSITIONS.get(code)
    if found is None:
        find = getattr(code, "co_positions", None)
        found = _POSITIONS[code] = tuple(find()) if find is not None else ()
    return found


def _span(code: CodeType, lasti: int) -> Loc:
    known = _SPANS_BY_ID.get(id(code))
    if known is None:
        _SPANS[code] = {}
        known = _SPANS_BY_ID[id(code)]
    found = known[1].get(lasti)
    if found is None:
        found = known[1][lasti] = _find_span(code, lasti, _line(code, lasti))
    return found


def _line(code: CodeType, lasti: int) -> int:
    """As frames know it, which walk all lines up to it whenever they are asked."""
    lines = (line for first, end, line in code.co_lines() if first <= lasti < end)
    return next(lines, None) or code.co_firstlineno


_SPANS: ByCode[dict[int, Loc]] = ByCode()
_POSITIONS: ByCode[tuple[tuple[int | None, ...], ...]] = ByCode()
_SPANS_BY_ID = _SPANS.by_id


def _find_span(code: CodeType, lasti: int, line: int) -> Loc:
    column, end = (_REWRITTEN.get(code) or {}).get(line), None
    positions = _positions(code)
    if 0 <= lasti // 2 < len(positions):
        first, last, start, stop = positions[lasti // 2]
        if first == line and start is not None:
            column, end = start, stop if last == line else None
    return span_of(code.co_filename, line, column, end)


def span_of(file: str, line: int, start: int | None, stop: int | None) -> Loc:
    """A span of a line from offsets as Python gives them: counts of UTF-8 bytes, None where the
    span does not begin or end on the line."""
    data = linecache.getline(file, line).rstrip().encode()
    if not data:
        return Loc(file, line, (start or 0) + 1, None if stop is None else stop + 1)
    if start is None:
        start = len(data) - len(data.lstrip())
    stop = len(data) if stop is None else stop
    first, last = (len(data[:at].decode(errors="replace")) for at in (start, stop))
    return Loc(file, line, first + 1, max(last, first + 1) + 1)


def _chain(spans: list[Loc]) -> Loc | None:
    if not spans:
        return None
    kept = [spans[0]]
    for span in spans[1:]:
        # a lambda made by the rewriting runs on the line of the frame that calls it
        if (span.file, span.line) != (kept[-1].file, kept[-1].line):
            kept.append(span)
    first = kept[0]
    if len(kept) == 1:
        return first
    return Loc(first.file, first.line, first.column, first.end_column, tuple(kept[1:]))


def what_runs(name: str) -> str:
    """The word of the language that runs; what runs the kernel is none."""
    name = name or word()
    by_text = name.startswith("__") or name in ("prim_func", "macro")
    return "a tile value" if by_text else f"T.{name}"


def locate() -> Loc | None:
    """Where the user's code is now."""
    frame: FrameType | None = sys._getframe(1)
    spans: list[Loc] = []
    depth = 0
    while frame is not None:
        code = frame.f_code
        if id(code) in _REWRITTEN_IDS:
            spans.append(_span(code, frame.f_lasti))
            depth = len(spans)
        elif id(code) in _ROOTS:
            break
        elif (
            ORIGINS.get(code.co_filename) != "ours"  # most of them
            and is_theirs(frame)
            and code.co_filename != "<string>"  # such as dataclasses' methods
        ):
            spans.append(_span(code, frame.f_lasti))
        frame = frame.f_back
    return _chain(spans[:depth] or spans[:1])


def locate_traceback(traceback: TracebackType | None) -> tuple[Loc | None, FrameType | None]:
    """Where the user's code was when an exception left it, and that frame."""
    spans: list[Loc] = []
    found: FrameType | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code in _REWRITTEN or (spans and is_theirs(traceback.tb_frame)):
            spans.insert(0, _span(code, traceback.tb_lasti))
            found = traceback.tb_frame
        traceback = traceback.tb_next
    return _chain(spans), found


def frames_of_theirs(traceback: TracebackType | None) -> int:
    """How deep the user's own code was."""
    count = 0
    while traceback is not None:
        count += is_theirs(traceback.tb_frame)
        traceback = traceback.tb_next
    return count


_ROOTS: dict[int, CodeType] = {}


def set_root(code: CodeType) -> None:
    """Frames outside `code`, which runs a traced function or a command, are of no interest."""
    _ROOTS[id(code)] = code


locate_calls(locate)
