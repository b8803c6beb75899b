"""The user's position while a kernel is traced: the innermost frame of their own code, with the
call sites that led to it."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from types import CodeType, FrameType, TracebackType

from tilewright.support.errors import Loc, is_own, locate_calls

_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Code objects made by rewriting a user's function, with the column where each line's first
# statement starts (Python 3.10 keeps no columns of its own).
_REWRITTEN: dict[CodeType, dict[int, int]] = {}


def register(code: CodeType, columns: dict[int, int]) -> None:
    """`code` and everything nested in it is a user's code."""
    _REWRITTEN[code] = columns
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            register(inner, columns)


@lru_cache(maxsize=1024)
def _is_theirs(filename: str) -> bool:
    """The user's own: not ours, and not Python's library (which holds site-packages)."""
    library = filename.startswith(_LIBRARY) and "site-packages" not in filename
    return not (is_own(filename) or library or filename.startswith("<frozen"))


@lru_cache(maxsize=256)
def _positions(code: CodeType) -> tuple[tuple[int | None, ...], ...]:
    find = getattr(code, "co_positions", None)
    return tuple(find()) if find is not None else ()


def _span(code: CodeType, lasti: int, line: int) -> Loc:
    column, end = _REWRITTEN.get(code, {}).get(line, 0), None
    positions = _positions(code)
    if 0 <= lasti // 2 < len(positions):
        first, last, start, stop = positions[lasti // 2]
        if first == line and start is not None:
            column, end = start, stop if last == line else None
    column, end = characters(code.co_filename, line, column, end)
    return Loc(code.co_filename, line, column + 1, end + 1 if end is not None else None)


def characters(file: str, line: int, start: int, stop: int | None) -> tuple[int, int | None]:
    """Offsets into a line as Python gives them, in bytes of UTF-8, as counts of characters."""
    text = linecache.getline(file, line)
    if text.isascii():
        return start, stop
    data = text.encode()
    count = [len(data[:at].decode(errors="replace")) for at in (start, stop or 0)]
    return count[0], None if stop is None else count[1]


def _chain(spans: list[Loc]) -> Loc | None:
    if not spans:
        return None
    kept = [spans[0]]
    for span in spans[1:]:
        # a lambda made by the rewriting runs on the line of the frame that calls it
        if (span.file, span.line) != (kept[-1].file, kept[-1].line):
            kept.append(span)
    first = kept[0]
    return Loc(first.file, first.line, first.column, first.end_column, tuple(kept[1:]))


def locate() -> Loc | None:
    """Where the user's code is now."""
    frame: FrameType | None = sys._getframe(1)
    spans: list[Loc] = []
    depth = 0
    while frame is not None:
        code = frame.f_code
        if code in _REWRITTEN:
            spans.append(_span(code, frame.f_lasti, frame.f_lineno))
            depth = len(spans)
        elif code is _ROOT:
            break
        elif _is_theirs(code.co_filename):
            spans.append(_span(code, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return _chain(spans[:depth] or spans[:1])


def locate_traceback(traceback: TracebackType | None) -> tuple[Loc | None, FrameType | None]:
    """Where the user's code was when an exception left it, and that frame."""
    spans: list[Loc] = []
    found: FrameType | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code in _REWRITTEN or (spans and _is_theirs(code.co_filename)):
            spans.insert(0, _span(code, traceback.tb_lasti, traceback.tb_lineno))
            found = traceback.tb_frame
        traceback = traceback.tb_next
    return _chain(spans), found


_ROOT: CodeType | None = None


def set_root(code: CodeType) -> None:
    """Frames outside `code`, which runs a traced function, are of no interest."""
    global _ROOT
    _ROOT = code


locate_calls(locate)
