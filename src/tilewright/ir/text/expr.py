"""Reads the text of expressions, regions, declarations and compile-time values; tokens, and the
names in scope while they are read.

A name that an earlier, closed scope used is made unique by a suffix, because names are unique
within a program; a name still in scope is an error. Numerals are untyped until they meet something
typed; a tree of numerals alone waits (`Pending`) for its context and falls back to int32 or
float32.
"""

from __future__ import annotations

import difflib
import json
import linecache
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewright.ir.core import *
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.ir.layout.fragment import parse_layout_or_fragment
from tilewright.ir.text.printer import (
    NOT,
    PRECEDENCE,
    RESERVED,
    call_dtype,
    common_natural,
    natural_dtype,
)
from tilewright.support import limits

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

    def fail(self, message: str, token: int | None = None, **details: Any) -> NoReturn:
        loc = self.loc(self.at if token is None else token)
        raise CompileError(message, loc=loc, **details)

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


# ── expressions ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Pending:
    """A numeral, or operators over numerals: typed by whatever it meets."""

    natural: DType
    value: int | float | None
    parts: tuple[Pending, ...]
    make: Callable[[list[Expr]], Expr] | None
    token: int


Partial = Expr | Pending


class ExprParser(Scanner):
    """What ops are made of."""

    def expr(self, context: DType | None = None) -> Expr:
        """An expression; numerals that nothing else types take type `context`."""
        token = self.at
        found = self.resolve(self.ternary(), context)
        limits.TEXT_DEPTH.check(
            written_size(found)[1],
            "this expression is too deep",
            fix="name its parts: `let x = …`",
            loc=self.loc(token, self.at - 1),
        )
        return found

    def resolve(self, e: Partial, context: DType | None = None) -> Expr:
        if isinstance(e, Expr):
            return e
        kind = context if context is not None and context.kind in _NUMERIC else e.natural
        if e.make is not None:
            return e.make([self.resolve(part, kind) for part in e.parts])
        if isinstance(e.value, float) and kind.is_int:
            self.fail(
                f"{e.value} is not an integer, but {kind} is needed here",
                e.token,
                fix=f"write {FLOAT32}({e.value}) and cast the other side",
            )
        try:
            return const(e.value, kind)
        except CompileError as error:
            self.fail(error.message, e.token, expected=error.diagnostic.expected)

    def group(
        self,
        parts: Sequence[Partial],
        make: Callable[[list[Expr]], Expr],
        *,
        waits: bool = True,
    ) -> Partial:
        """`make` over operands of one type; waits for its context when all are numerals."""
        anchor = next((p.dtype for p in parts if isinstance(p, Expr)), None)
        if anchor is None:
            pending = [p for p in parts if isinstance(p, Pending)]
            natural = common_natural([p.natural for p in pending])
            if waits:
                return Pending(natural, None, tuple(pending), make, pending[0].token)
            anchor = natural
        return make([self.resolve(p, anchor) for p in parts])

    def ternary(self, start: Partial | None = None) -> Partial:
        a = self.binary(1, start)
        if not self.accept("if"):
            return a
        cond = self.resolve(self.binary(1))
        self.expect("else")
        b = self.ternary()
        return self.group((a, b), lambda parts: Select(cond, *parts))

    def binary(self, least: int, start: Partial | None = None) -> Partial:
        left = self.unary() if start is None else start
        while True:
            op = self.texts[self.at]
            precedence = PRECEDENCE.get(op, -1)
            if precedence < least:
                return left
            self.at += 1
            if precedence == _COMPARE:
                left = self.comparison(left, op)
                continue
            right = self.binary(precedence + 1)
            # `and`, `or` never wait: their sides are bools, which are always typed
            left = self.group((left, right), _BINARY[op], waits=op not in ("and", "or"))

    def comparison(self, left: Partial, op: str) -> Partial:
        """`a < b`, and `a < b < c` for `a < b and b < c`."""
        result: Expr | None = None
        while True:
            right = self.binary(_COMPARE + 1)
            one = self.group((left, right), _BINARY[op], waits=False)
            assert isinstance(one, Cmp)
            result = one if result is None else Bin("and", result, one)
            left, op = one.b, self.texts[self.at]
            if PRECEDENCE.get(op) != _COMPARE:
                return result
            self.at += 1

    def unary(self) -> Partial:
        token, text = self.at, self.texts[self.at]
        if text == "-":
            self.at += 1
            a = self.unary()
            if isinstance(a, Pending) and a.value is not None:
                return _numeral(-a.value, token)
            x = self.resolve(a)
            return Call("neg", (x,), INT32 if x.dtype.is_bool else x.dtype)
        if text == "~":
            self.at += 1
            x = self.resolve(self.unary())
            return Call("invert", (x,), x.dtype)
        if text == "not":
            self.at += 1
            return Call("not", (self.resolve(self.binary(NOT)),), BOOL)
        return self.primary()

    def primary(self) -> Partial:
        token, kind, text = self.at, self.kinds[self.at], self.texts[self.at]
        if kind == "number":
            self.at += 1
            return _numeral(self.number(text, token), token)
        if kind == "name":
            if text in _NUMBERS or _LITERALS.get(text) is not None:
                self.at += 1
                known = _NUMBERS.get(text)
                return const(_LITERALS[text]) if known is None else _numeral(known, token)
            if self.texts[self.at + 1] == "(":
                return self.call()
            found = self.lookup(None)
            if isinstance(found, Var):
                return found
            indices = self.subscript(found, token)
            return Load(found, indices, self.loc(token, self.at - 1))
        if text == "(":
            self.at += 1
            inner = self.ternary()
            self.expect(")")
            return inner
        self.fail(f"expected an expression, found {self.shown()}", expected="an expression")

    def number(self, text: str, token: int) -> int | float:
        """The value of a numeral; Python reads no number of thousands of digits."""
        digits = int(limits.INTEGER_BITS() * math.log10(2))
        if len(text) > digits:
            self.fail(
                f"a number of {len(text)} digits",
                token,
                expected=f"at most {digits} digits; types hold 64 bits",
                fix="write a smaller number",
            )
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        return float(text) if "." in text or "e" in text.lower() else int(text)

    def subscript(self, buffer: Buffer, token: int) -> tuple[Expr, ...]:
        indices = self.listed("]", self.expr) if self.accept("[") else []
        self.check_rank(buffer, indices, token)
        return tuple(indices)

    def check_rank(self, buffer: Buffer, indices: list[Any], token: int) -> None:
        if len(indices) != buffer.rank:
            self.fail(
                f"{buffer.name} has {buffer.rank} dimensions",
                token,
                expected=f"{buffer.rank} indices",
                got=f"{len(indices)}",
            )

    def listed(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Items up to `close`, separated by commas; one may trail."""
        found: list[Any] = []
        while not self.accept(close):
            if found:
                self.expect(",")
                if self.accept(close):
                    break
            found.append(item())
        return found

    def call(self) -> Partial:
        token = self.at
        name = self.next_name("a function")
        self.expect("(")
        args: list[Partial] = []
        stated: DType | None = None
        while not self.accept(")"):
            if args:
                self.expect(",")
            text = self.texts[self.at]
            if args and text in DTYPES and self.texts[self.at + 1] == ")":
                stated = DTYPES[text]
                self.at += 1
            else:
                args.append(self.ternary())
        if name in DTYPES:
            return self.conversion(DTYPES[name], args, token)
        if name in ("min", "max") and len(args) >= 2:
            made = args[0]
            for other in args[1:]:
                made = self.group((made, other), _BINARY[name])
            return made
        if name == "select" and len(args) == 3:
            cond = self.resolve(args[0])
            return self.group(args[1:], lambda parts: Select(cond, *parts))
        function = FUNCTIONS.get(name)
        if function is None:
            known = [*FUNCTIONS, "min", "max", "select", *DTYPES]
            self.fail(f"unknown function {name}", token, fix=did_you_mean(name, known))
        if len(args) != function.arity:
            self.fail(
                f"{name} takes {function.arity} arguments", token, got=f"{len(args)} arguments"
            )
        if stated is None and function.result == "free":
            self.fail(f"{name} needs its result type", token, fix=f"write {name}(…, int32)")

        def make(parts: list[Expr]) -> Expr:
            result = stated or call_dtype(name, parts)
            assert result is not None
            return Call(name, tuple(parts), result)

        return self.group(args, make, waits=False)

    def conversion(self, to: DType, args: list[Partial], token: int) -> Expr:
        if len(args) != 1:
            self.fail(f"{to}(…) converts one value", token, got=f"{len(args)} values")
        a = args[0]
        if isinstance(a, Pending) and a.value is not None and not to.is_bool:
            return self.resolve(a, to)
        return Cast(to, self.resolve(a))

    # ── operands ─────────────────────────────────────────────────────────────────────────────

    def region(self) -> Region:
        token = self.at
        buffer = self.lookup(Buffer)
        assert isinstance(buffer, Buffer)
        starts: list[Expr] = [const(0)] * buffer.rank
        extents: list[Expr] = list(buffer.shape)
        if self.accept("["):
            axes = iter(buffer.shape)
            boxes = self.listed("]", lambda: self.axis(next(axes, const(1))))
            self.check_rank(buffer, boxes, token)
            starts, extents = [b[0] for b in boxes], [b[1] for b in boxes]
        cta = self.resolve(self.primary()) if self.accept("@") else None
        return Region(buffer, tuple(starts), tuple(extents), cta)

    def axis(self, size: Expr) -> tuple[Expr, Expr]:
        """`start`, `start:+extent`, `:+extent` or `:`."""
        if self.accept(":"):
            return const(0), size
        start = const(0) if self.texts[self.at] == ":+" else self.expr()
        return start, fold_constants(self.expr()) if self.accept(":+") else const(1)

    def var(self) -> Var:
        token = self.at
        written = self.next_name("a variable's name")
        name = self.new_name(written, token)
        var = Var(name, self.dtype() if self.accept(":") else INT32)
        self.binding.append((written, var, token))
        return var

    def inferred(self, value: Expr) -> Var:
        """The variable just read, which has no type of its own, with that of `value`."""
        written, var, token = self.binding.pop()
        self.binding.append((written, Var(var.name, value.dtype), token))
        return Var(var.name, value.dtype)

    def shape(self) -> tuple[Expr, ...]:
        return tuple(self.listed("]", lambda: fold_constants(self.expr())))

    def declaration(self, default: Space | None = None) -> Buffer:
        token = self.at
        written = self.next_name("a buffer's name")
        name = self.new_name(written, token)
        self.expect(":")
        kind = self.dtype()
        shape = self.shape() if self.accept("[") else ()
        space = self.space(default)
        strides: tuple[Expr, ...] | None = None
        layout: AnyLayout | None = None
        while self.texts[self.at] in ("strides", "layout") and self.texts[self.at + 1] == "=":
            self.at += 2
            if self.texts[self.at - 2] == "layout":
                layout = self.layout()
                continue
            self.expect("[")
            strides = self.shape()
        buffer = Buffer(name, shape, kind, space, strides, layout)
        self.binding.append((written, buffer, token))
        return buffer

    def space(self, default: Space | None) -> Space:
        spaces = {s.value: s for s in Space}
        text = self.texts[self.at]
        if text not in spaces:
            if default is not None and self.kinds[self.at] == "newline":
                return default
            self.fail(
                f"expected where the buffer lives, found {self.shown()}",
                expected=", ".join(spaces),
                fix=did_you_mean(text, spaces),
            )
        self.at += 1
        return spaces[text]

    def string(self) -> str:
        if self.kinds[self.at] != "string":
            self.fail(f"expected a string, found {self.shown()}", expected='"…"')
        try:
            text: str = json.loads(self.texts[self.at], strict=False)
        except ValueError as error:
            self.fail(f"a string with a wrong escape: {error}")
        self.at += 1
        return text

    def layout(self) -> AnyLayout:
        token = self.at
        text = self.string()
        try:
            return parse_layout_or_fragment(text)
        except (ValueError, CompileError) as error:
            message = error.message if isinstance(error, CompileError) else str(error)
            self.fail(f"not a layout: {message}", token)

    def integer(self) -> int:
        token = self.at
        value = self.literal()
        if type(value) is not int:
            self.fail("expected an integer", token, got=value)
        return value

    def literal(self) -> Any:
        """A compile-time value that says its own type."""
        token, kind, text = self.at, self.kinds[self.at], self.texts[self.at]
        if kind == "string":
            return self.string()
        if text == "(":
            self.at += 1
            return tuple(self.listed(")", self.literal))
        if text == "-" or kind == "number" or text in _NUMBERS:
            value = self.unary()
            if isinstance(value, Pending) and value.value is not None:
                return value.value
        self.at = token + 1
        if text not in _LITERALS:
            self.fail(f"expected a constant, found {text!r}", token)
        return _LITERALS[text]

    def tuple_of(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        """`(a, b)`, or one item alone."""
        return tuple(self.listed(")", item)) if self.accept("(") else (item(),)

    def exprs(self, *, regions: bool = False) -> tuple[Expr | Region, ...]:
        """Like `tuple_of`, where one item alone may itself begin with a parenthesis."""

        def item() -> Partial | Region:
            return self.region() if regions and self.accept("&") else self.ternary()

        if not self.accept("("):
            items = [item()]
        else:
            items = self.listed(")", item)
            alone = len(items) == 1 and self.texts[self.at - 2] != ","
            if alone and not isinstance(items[0], Region):
                items = [self.ternary(items[0])]
        return tuple(i if isinstance(i, Region) else self.resolve(i) for i in items)


_NUMERIC = ("float", "int", "uint")
_COMPARE = PRECEDENCE["<"]
_LITERALS = {"true": True, "false": False, "True": True, "False": False, "none": None}
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}


def _maker(op: str) -> Callable[[list[Expr]], Expr]:
    kind = Cmp if PRECEDENCE.get(op) == _COMPARE else Bin
    return lambda parts: kind(op, *parts)


_BINARY = {op: _maker(op) for op in (*PRECEDENCE, "min", "max")}


def _numeral(value: int | float, token: int) -> Pending:
    return Pending(natural_dtype(value), value, (), None, token)


def fold_constants(expr: Expr) -> Expr:
    """`expr` with arithmetic between integer constants done."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Bin) and isinstance(node.a, Const) and isinstance(node.b, Const):
            return folded(node.op, node.a, node.b)
        return None

    return transform(expr, rule)
