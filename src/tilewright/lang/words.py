"""The words as a table: the names of types, and what to say about a name that is none."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tilewright.ir.dtype import _ALIASES, DTYPES
from tilewright.lang.types import ScalarType
from tilewright.support.errors import CompileError, entry

DTYPE_NAMES: dict[str, ScalarType] = {
    name: ScalarType(name) for name in (*DTYPES, *_ALIASES) if name != "barrier"
}


class UnknownWord(CompileError, AttributeError):
    """`T.` has no such name."""


def as_entries(names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The words among `names` as functions whose errors show the user's frames only."""
    looking = ("prim_func", "macro")  # they look at the frame of their caller
    return {
        name: entry(word)
        for name, word in names.items()
        if isinstance(word, FunctionType)
        and word.__module__.startswith("tilewright.lang.")
        and word.__name__ not in (*looking, "as_entries", "unknown_word")
    }


def unknown_word(name: str, known: list[str]) -> AttributeError:
    if name.startswith("__"):
        # modules are asked for these all the time
        return AttributeError(f"module 'tilewright.language' has no attribute {name!r}")
    close = difflib.get_close_matches(name, known, 3, 0.6)
    return UnknownWord(
        f"T.{name} is not a word of the language",
        fix=f"did you mean {' or '.join(f'T.{c}' for c in close)}?" if close else "",
    )
