"""The words as a table: the names of types, and what to say about a name that is none."""

from __future__ import annotations

import difflib

from tilewright.ir.dtype import _ALIASES, DTYPES
from tilewright.lang.types import ScalarType
from tilewright.support.errors import CompileError

DTYPE_NAMES: dict[str, ScalarType] = {
    name: ScalarType(name) for name in (*DTYPES, *_ALIASES) if name != "barrier"
}


class UnknownWord(CompileError, AttributeError):
    """`T.` has no such name."""


def unknown_word(name: str, known: list[str]) -> AttributeError:
    if name.startswith("__"):
        # modules are asked for these all the time
        return AttributeError(f"module 'tilewright.language' has no attribute {name!r}")
    close = difflib.get_close_matches(name, known, 3, 0.6)
    return UnknownWord(
        f"T.{name} is not a word of the language",
        fix=f"did you mean {' or '.join(f'T.{c}' for c in close)}?" if close else "",
    )
