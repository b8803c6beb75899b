"""The words as a table: the names of types, and what to say about a name that is none: how its
meaning is said here (`meanings`), else the words that are spelt alike."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tilewright.ir.dtype import _ALIASES, DTYPES
from tilewright.lang.meanings import MEANINGS
from tilewright.lang.types import ScalarType
from tilewright.support.errors import CompileError, entry, swap

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
    said = f"T.{name} is not a word of the language"
    words = [k for k in known if k not in _NO_WORDS]
    meaning = _meaning(name, words)
    if meaning is not None:
        meant = re.fullmatch(r"did you mean T\.(\w+)\?", meaning)
        repair = swap(name, meant.group(1)) if meant else None
        return UnknownWord(said, fix=meaning, code="unknown-word", repair=repair)
    close = difflib.get_close_matches(name, words, 3, 0.6)
    if not close:
        fix = "`dir(T)` lists the words"
        return UnknownWord(said, fix=fix, code="unknown-word")
    # one that is much closer than the others is the one
    ratio = [difflib.SequenceMatcher(None, name, word).ratio() for word in close]
    if len(close) == 1 or ratio[0] > 0.8 or ratio[0] - ratio[1] > 0.1:
        close = close[:1]
    return UnknownWord(
        said,
        fix=f"did you mean {' or '.join(f'T.{c}' for c in close)}?",
        code="unknown-word",
        repair=swap(name, close[0]) if len(close) == 1 else None,
    )


def _meaning(name: str, words: list[str]) -> str | None:
    """How another language's word is said here: the word itself, in other letters, or misspelt
    where no word of ours is nearer."""
    if name in MEANINGS:
        return MEANINGS[name]
    plain = {_plain(word): word for word in (*MEANINGS, *words)}
    if _plain(name) in plain:
        return MEANINGS.get(plain[_plain(name)])
    close = difflib.get_close_matches(_plain(name), plain, 1, 0.8)
    return MEANINGS.get(plain[close[0]]) if close else None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_NO_WORDS = ("entry", "annotations", "Any", "DTYPE_NAMES", "as_entries", "unknown_word")
