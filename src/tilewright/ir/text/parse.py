"""The parser of the text form: one pass over the tokens, driven by the same templates as the
printer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.text.expr import END, ExprParser, Scope, did_you_mean
from tilewright.ir.text.printer import FORMS, Form, Hole
from tilewright.support import limits


class _Parser(ExprParser):
    """Ops and programs."""

    def field(self, hole: Hole, values: dict[str, Any]) -> Any:
        if hole.kind == "Expr":
            anchor = values.get(hole.anchor) if hole.anchor else None
            return self.expr(anchor.dtype if isinstance(anchor, (Var, Buffer, Region)) else None)
        if hole.kind == "indices":
            return self.subscript(values["buffer"], self.at)
        return _READERS[hole.kind](self)

    def word(self) -> str:
        return self.string() if self.kinds[self.at] == "string" else self.next_name("a word")

    def op(self) -> Op:
        token = self.at
        form = self.form()
        values: dict[str, Any] = {}
        outer, self.binding = self.binding, []
        has_body = False
        for i, (words, hole) in enumerate(_PIECES[form.cls]):
            if hole is not None and hole.kind == "Body" and not has_body:
                has_body = True
                self.extras(form, values)
                ended = self.at
                self.undo.append([])
                self.declare_bound()
            if i > 0 and hole is not None and hole.optional and self.absent(words):
                continue
            for word in words:
                self.expect(word)
            if hole is None or (i == 0 and hole.optional and self.absent(())):
                continue
            if hole.kind == "Body":
                values[hole.name] = self.body(hole)
            elif form.cls is Let and hole.name == "value" and self.texts[self.at - 3] != ":":
                values["value"] = self.expr()
                values["var"] = self.inferred(values["value"])
            else:
                values[hole.name] = self.field(hole, values)
        if has_body:
            self.close_scope()
        else:
            self.extras(form, values)
            ended = self.at - 1
            self.declare_bound()
        self.binding = outer
        return form.cls(**values, loc=self.loc(token, ended))

    def form(self) -> Form:
        """Which op begins here; a name followed by an index or `=` is a store."""
        text, after = self.texts[self.at], self.texts[self.at + 1]
        form = _KEYWORDS.get(text)
        if form is not None and after not in ("[", "="):
            return form
        if self.kinds[self.at] == "name" and after in ("[", "="):
            return FORMS[Store]
        self.fail(f"unknown statement {self.shown()}", fix=did_you_mean(text, _KEYWORDS))

    def absent(self, words: tuple[str, ...]) -> bool:
        """Whether an optional hole, with the words before it, is left out here."""
        if words:
            ahead = self.at
            while self.kinds[ahead] == "newline":
                ahead += 1
            if self.texts[ahead] != words[0]:
                return True
            self.at = ahead
            return False
        return (
            self.kinds[self.at] in ("newline", "end")
            or self.texts[self.at] in ("{", "}")
            or (self.kinds[self.at] == "name" and self.texts[self.at + 1] == "=")
        )

    def extras(self, form: Form, values: dict[str, Any]) -> None:
        """`name=value` for the fields the template leaves out; a bare name is `=true`."""
        holes = form.extras
        while self.kinds[self.at] == "name":
            token, name = self.at, self.texts[self.at]
            hole = holes.get(name)
            if hole is None:
                self.fail(
                    f"{form.keyword or 'a store'} has no attribute {name}",
                    expected="one of " + ", ".join(holes) if holes else "the end of the line",
                    fix=did_you_mean(name, holes),
                )
            if name in values:
                self.fail(f"{name} is given twice", token)
            self.at += 1
            if hole.kind == "bool" and self.texts[self.at] != "=":
                values[name] = True
                continue
            self.expect("=")
            values[name] = self.field(hole, values)

    def operator(self) -> Operator:
        """`(a, b) -> a + b`: a function whose variables are its own."""

        def name() -> Var:
            token = self.at
            written = self.next_name("a variable's name")
            var = Var(written, self.dtype() if self.accept(":") else INT32)
            self.declare(written, var, token)
            return var

        self.undo.append([])
        vars = self.tuple_of(name)
        self.expect("->")
        found = self.exprs()
        self.close_scope()
        return Operator(vars, tuple(e for e in found if isinstance(e, Expr)))

    def declare_bound(self) -> None:
        """Makes what the op defines visible."""
        for written, what, token in self.binding:
            self.declare(written, what, token)
        self.binding = []

    def body(self, hole: Hole) -> Body:
        if hole.optional and self.texts[self.at] == "if":
            return (self.op(),)
        if self.texts[self.at] != "{":
            self.fail(f"expected '{{', found {self.shown()}", expected="'{' and a body")
        opened = self.at
        self.at += 1
        self.undo.append([])
        limits.NESTING.check(
            len(self.undo) // 2,  # passes nest deeper than kernels do
            "too many loops and branches inside each other",
            fix="join conditions with `and`, and loops over several variables in one map",
            loc=self.loc(opened),
        )

        def inner() -> Op:
            if self.kinds[self.at] == "end":
                self.fail("this body is never closed", opened, fix="add '}'")
            return self.op()

        ops = self.statements("}", inner)
        self.close_scope()
        return ops

    def statements(self, close: str, read: Callable[[], Any]) -> tuple[Any, ...]:
        """What is read up to `close`, a statement to a line."""
        found: list[Any] = []
        while True:
            self.blank_lines()
            if self.accept(close):
                return tuple(found)
            found.append(read())
            self.end_statement()

    # ── programs ─────────────────────────────────────────────────────────────────────────────

    def program(self) -> Program:
        self.blank_lines()
        token = self.at
        self.expect("program")
        name = self.word()
        loc = self.loc(token, self.at - 1)
        self.expect("{")
        kernels_at = self.header_scalars()
        dims: list[Dim] = []
        params: list[Parameter] = []
        scratch: list[Buffer] = []
        sources: list[str] = []
        for start in self.header:
            self.at = start + 1
            word = self.texts[start]
            self.binding = []
            if word == "dim":
                dims.append(self.dim())
            elif word == "source":
                sources.append(self.string())
            elif word == "scratch":
                scratch.append(self.declaration(Space.GLOBAL))
            else:
                scalar = self.scalars.get(start)
                params.append(self.declaration(Space.GLOBAL) if scalar is None else scalar)
                if scalar is not None:
                    continue
            self.declare_bound()
            self.end_statement()
        self.at = kernels_at
        kernels = self.statements("}", self.kernel)
        self.blank_lines()
        if self.kinds[self.at] != "end":
            self.fail(f"expected the end of the text, found {self.shown()}")
        return Program(
            name, tuple(params), kernels, tuple(dims), tuple(scratch), tuple(sources), loc=loc
        )

    def kernel(self) -> Op:
        if self.texts[self.at] != "kernel":
            self.fail(
                f"expected a kernel, found {self.shown()}",
                fix="parameters, dims, scratch and sources come before the first kernel"
                if self.texts[self.at] in _HEADER
                else did_you_mean(self.texts[self.at], (*_HEADER, "kernel", "}")),
            )
        return self.op()

    def header_scalars(self) -> int:
        """Finds the header's statements and declares its scalars, which shapes may mention
        before they are introduced. Returns where the header ends."""
        self.header: list[int] = []
        self.scalars: dict[int, Var] = {}
        while True:
            self.blank_lines()
            start = self.at
            word = self.texts[start]
            if word not in _HEADER:
                return start
            self.header.append(start)
            self.at += 1
            if word in ("dim", "param"):
                self.binding = []
                at, written = self.at, self.next_name("a name")
                is_scalar = word == "dim"
                kind = INT32
                if self.accept(":"):
                    kind = self.dtype()
                    is_scalar = is_scalar or self.kinds[self.at] == "newline"
                if is_scalar:
                    var = Var(self.new_name(written, at), kind)
                    self.declare(written, var, at)
                    self.scalars[start] = var
            while self.kinds[self.at] not in ("newline", "end"):
                self.at += 1

    def dim(self) -> Dim:
        var = self.scalars[self.at - 1]
        self.next_name("a name")
        if self.accept(":"):
            self.dtype()
        values: dict[str, int] = {}
        while self.kinds[self.at] == "name":
            token = self.at
            name = self.next_name("a contract")
            if name not in _CONTRACT:
                self.fail(f"dim has no attribute {name}", token, fix=did_you_mean(name, _CONTRACT))
            self.expect("=")
            values[name] = self.integer()
        return Dim(var, **values)


_CONTRACT = ("min", "max", "multiple_of")
_HEADER = ("dim", "param", "scratch", "source")
_KEYWORDS = {form.keyword: form for form in FORMS.values() if form.keyword}
# every form's pieces with their literals cut into tokens
_PIECES: dict[type[Op], tuple[tuple[tuple[str, ...], Hole | None], ...]] = {
    cls: tuple((tuple(re.findall(r",|[^\s,]+", literal)), hole) for literal, hole in form.pieces)
    for cls, form in FORMS.items()
}
_READERS: dict[str, Callable[[_Parser], Any]] = {
    "Region": _Parser.region,
    "Var": _Parser.var,
    "tuple[Var, ...]": lambda p: p.tuple_of(p.var),
    "Buffer": lambda p: p.lookup(Buffer),
    "declaration": _Parser.declaration,
    "tuple[Expr, ...]": _Parser.exprs,
    "tuple[Expr | Region, ...]": lambda p: p.exprs(regions=True),
    "str": _Parser.word,
    "int": _Parser.integer,
    "tuple[int, ...]": lambda p: p.tuple_of(p.integer),
    "bool": _Parser.literal,
    "tuple[Any, ...]": _Parser.literal,
    "AnyLayout": _Parser.layout,
    "tuple[Region, ...]": lambda p: p.tuple_of(p.region),
    "Operator": _Parser.operator,
}


def parse_program(text: str, file: str = "<ir>") -> Program:
    """The program that `text` says. Its ops' positions point into `text`, as `file`."""
    parser = _Parser(text, file)
    try:
        return parser.program()
    except RecursionError:
        parser.fail(
            "the text nests too deeply here",
            expected=f"at most {limits.NESTING()} loops and branches, and {limits.TEXT_DEPTH()} "
            "operations, inside each other",
            fix="name parts of expressions with `let`, and join loops and conditions",
        )


def parse_expr(text: str, scope: Scope | None = None, context: DType | None = None) -> Expr:
    """The expression that `text` says, over the variables and buffers in `scope`."""
    parser = _Parser(text, "<expr>", scope)
    parser.blank_lines()
    result = parser.expr(context)
    parser.blank_lines()
    if parser.kinds[parser.at] != "end":
        parser.fail(f"expected the end of the expression, found {parser.shown()}")
    return result


def parse_operator(text: str) -> Operator:
    """The function that `text` says: `(a, b) -> a + b`."""
    return _Parser(text, "<operator>").operator()


def parse_body(text: str, scope: Scope | None = None, file: str = "<ir>") -> Body:
    """The statements that `text` says, over the variables and buffers in `scope`."""
    parser = _Parser(text, file, scope)
    return parser.statements(END, parser.op)
