"""The names in a kernel's text and what they stand for, kept beside its program for tools.

A name may stand for a buffer, an expression, or any compile-time value of Python. They are not
part of a program: programs that are equal may come from different texts, and passes drop them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.core import *


@dataclass(frozen=True)
class Symbol:
    """`name` stands for `value` (a `Buffer`, an `Expr` or a value of Python) from `loc` on."""

    name: str
    value: Any
    loc: Loc


@dataclass
class Symbols:
    """What a text binds, in order, and the names around it: its function's closure and globals."""

    entries: list[Symbol] = field(default_factory=list)
    closure: Mapping[str, Any] = field(default_factory=dict)
    scope: Mapping[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any, loc: Loc | None) -> None:
        if loc is not None:
            self.entries.append(Symbol(name, value, loc))

    def visible(self, loc: Loc) -> Iterator[Symbol]:
        """Names of the function or macro call that `loc` stands in, the nearest above it last."""
        here = [s for s in self.entries if s.loc.file == loc.file and s.loc.callers == loc.callers]
        yield from (s for s in here if s.loc.line > loc.line)
        yield from (s for s in here if s.loc.line <= loc.line)


_KNOWN: dict[int, Symbols] = {}


def keep_symbols(program: Program, symbols: Symbols) -> None:
    """Remember `symbols` for as long as `program` lives."""
    _KNOWN[id(program)] = symbols
    weakref.finalize(program, _KNOWN.pop, id(program), None)


def symbols_of(program: Program) -> Symbols:
    """What was kept for `program`; nothing for one that was read from text."""
    return _KNOWN.get(id(program)) or Symbols()
