"""Tokens of the text form, and the names in scope while it is read.

A name that an earlier, closed scope used is made unique by a suffix, because names are unique
within a program; a name still in scope is an error.
"""

from __future__ import annotations

import difflib
import linecache
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NoReturn

from tilewright.ir.core import *
from tilewright.ir.text.printer import RESERVED
from tilewright.support.errors import CompileError, Loc

Scope = Mapping[str, Var | Buffer]

_NUMBER = r"0[xX][0-9a-fA-F]+|(?:\d+\.(?!\.)\d*|\.\d+|\d+(?=[eE][-+]?\d))(?:[eE][-+]?\d+)?|\d+"
_TOKEN = re.compile(
    rf"""(?P<skip>[ \t\r]+|\#[^\n]*|\\[ \t\r]*\n)
      | (?P<newline>[\n;])
      | (?P<number>{_NUMBER})
      | (?P<name>[A-Za-z_]\w*|`[^`\n]+`)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<symbol>->|\.\.|:\+|<<|>>|//|<=|>=|==|!=|[-+*/%&|^~<>=()\[\]{{}},:@])""",
    re.VERBOSE | re.ASCII,
)
_OPEN, _CLOSE = "([", ")]"
END = "the end"  # no token reads like this


class Scanner:
    """The text cut into tokens, newlines inside brackets left out; a position in them, and what the
    names read so far mean."""

    def __init__(self, text: str, file: str, scope: Scope | None = None) -> None:
        self.file = file
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.offsets: list[int] = []
        depth, at = 0, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                what = "an unfinished string" if text[at] == '"' else f"a stray {text[at]!r}"
                raise CompileError(f"{what} in the IR text", loc=self.span(at, at + 1))
            kind, word = str(match.lastgroup), match.group()
            if kind == "symbol":
                depth += (word in _OPEN) - (word in _CLOSE)
                if word in "{}":
                    depth = 0
            if kind != "skip" and not (kind == "newline" and depth > 0):
                self.kinds.append(kind)
                self.texts.append(word)
                self.offsets.append(at)
            at = match.end()
        self.kinds += ["newline", "end"]
        self.texts += ["\n", END]
        self.offsets += [len(text)] * 2
        self.at = 0
        self.scope: dict[str, Var | Buffer] = dict(scope or {})
        self.defined: dict[str, int] = {}  # name as written → token, for names in scope
        self.used: set[str] = {n.name for n in self.scope.values()}
        self.undo: list[list[tuple[str, Var | Buffer | None]]] = [[]]
        self.binding: list[tuple[str, Var | Buffer, int]] = []  # what the op being read defines

    # ── tokens ───────────────────────────────────────────────────────────────────────────────

    def span(self, start: int, end: int) -> Loc:
        """From one offset to another."""
        line = bisect_right(self.line_starts, start)
        base = self.line_starts[line - 1]
        end = min(end, self.line_starts[line] - 1) if line < len(self.line_starts) else end
        return Loc(self.file, line, start - base + 1, max(end, start + 1) - base + 1)

    def loc(self, first: int, last: int | None = None) -> Loc:
        last = first if last is None else last
        return self.span(self.offsets[first], self.offsets[last] + len(self.texts[last]))

    def fail(
        self,
        message: str,
        token: int | None = None,
        *,
        expected: str = "",
        got: str = "",
        fix: str = "",
    ) -> NoReturn:
        loc = self.loc(self.at if token is None else token)
        raise CompileError(message, loc=loc, expected=expected, got=got, fix=fix)

    def shown(self) -> str:
        return {"newline": "the end of the line", "end": "the end of the text"}.get(
            self.kinds[self.at], repr(self.texts[self.at])
        )

    def expect(self, word: str) -> None:
        if self.texts[self.at] != word:
            self.fail(f"expected {word!r}", expected=repr(word), got=self.shown())
        self.at += 1

    def accept(self, word: str) -> bool:
        found = self.texts[self.at] == word
        self.at += found
        return found

    def blank_lines(self) -> None:
        while self.kinds[self.at] == "newline":
            self.at += 1

    def end_statement(self) -> None:
        if self.kinds[self.at] != "newline" and self.texts[self.at] != "}":
            self.fail(
                f"expected the end of the statement, found {self.shown()}",
                fix="start a new line, or separate statements with ';'",
            )

    def next_name(self, what: str) -> str:
        if self.kinds[self.at] != "name":
            self.fail(f"expected {what}, found {self.shown()}", expected=what)
        self.at += 1
        return self.texts[self.at - 1].strip("`")

    # ── names ────────────────────────────────────────────────────────────────────────────────

    def new_name(self, written: str, token: int) -> str:
        """A unique name for what the text calls `written`."""
        if written in self.scope:
            before = self.defined.get(written)
            where = f" on line {self.loc(before).line}" if before is not None else ""
            self.fail(f"{written} is already defined{where}", token, fix="choose another name")
        if self.texts[token][0] != "`" and written in RESERVED:
            self.fail(f"{written} is a reserved word", token, fix=f"write `{written}`")
        name, n = written, 0
        while name in self.used:
            n += 1
            name = f"{written}_{n}"
        self.used.add(name)
        return name

    def declare(self, written: str, what: Var | Buffer, token: int) -> None:
        self.undo[-1].append((written, self.scope.get(written)))
        self.scope[written] = what
        self.defined[written] = token

    def close_scope(self) -> None:
        for written, before in reversed(self.undo.pop()):
            if before is None:
                del self.scope[written]
            else:
                self.scope[written] = before

    def lookup(self, want: type[Var] | type[Buffer] | None) -> Var | Buffer:
        token = self.at
        what = {Var: "a variable", Buffer: "a buffer", None: "a value"}[want]
        name = self.next_name(what)
        found = self.scope.get(name)
        if found is None or (want is not None and not isinstance(found, want)):
            alike = [n for n, v in self.scope.items() if want is None or isinstance(v, want)]
            message = f"{name} is not defined" if found is None else f"{name} is not {what}"
            self.fail(message, token, fix=did_you_mean(name, alike))
        return found

    def dtype(self) -> DType:
        token = self.at
        name = self.next_name("a type")
        try:
            return dtype(name)
        except CompileError as e:
            self.fail(e.message, token, expected=e.diagnostic.expected, fix=e.diagnostic.fix)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A fix naming the closest of `known`, or nothing."""
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {close[0]}?" if close else ""
