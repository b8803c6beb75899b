"""The printer of the text form, and what it shares with the parser: templates and field kinds.

Both sides read `Op.syntax` and the field marks. A template is cut into (words, hole) pieces; the
fields it does not mention follow as `name=value` when they differ from their default, before the
first body if there is one. A hole whose field has its default value is left out together with the
words before it (`else {orelse}`).

A numeral is printed without its type where the parser finds the type again: beside an operand of
known type, as a value stored to a buffer, or where int32 and float32 are meant anyway.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilewright.ir import arith
from tilewright.ir.core import *
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.ir.op import View as ViewOp

# ── templates ────────────────────────────────────────────────────────────────────────────────

_SPECIAL_KINDS: dict[tuple[type[Op], str], str] = {
    (Alloc, "buffer"): "declaration",
    (ViewOp, "buffer"): "declaration",
    (Store, "indices"): "indices",
}
# A numeral in one of VALUE_FIELDS takes the type of the variable or buffer the op fills.
ANCHORS: dict[type[Op], str] = {
    Let: "var",
    For: "var",
    Store: "buffer",
    Alloc: "buffer",
    Fill: "dst",
    Atomic: "dst",
}
VALUE_FIELDS = frozenset(("value", "init", "start", "stop", "step"))


@dataclass(frozen=True)
class Hole:
    """A field as the text sees it; `kind`: its annotation, without `| None`."""

    name: str
    kind: str
    default: Any
    anchor: str | None

    @property
    def optional(self) -> bool:
        return self.default is not dataclasses.MISSING


@dataclass(frozen=True)
class Form:
    """An op class's text: pieces of (literal, hole), and the fields that follow by name."""

    cls: type[Op]
    pieces: tuple[tuple[str, Hole | None], ...]
    extras: dict[str, Hole]

    @property
    def keyword(self) -> str:
        return self.pieces[0][0].split(" ")[0]


def _form(cls: type[Op]) -> Form:
    holes: dict[str, Hole] = {}
    for f in dataclasses.fields(cls):
        if "mark" not in f.metadata:
            continue
        kind = _SPECIAL_KINDS.get((cls, f.name), str(f.type).removesuffix(" | None"))
        anchor = ANCHORS.get(cls) if f.name in VALUE_FIELDS else None
        holes[f.name] = Hole(f.name, kind, f.default, anchor)
    cut = re.split(r"\{(\w+)\}", cls.syntax)
    literals, names = cut[0::2], cut[1::2]
    pieces: list[tuple[str, Hole | None]] = [
        (text, holes.pop(name)) for text, name in zip(literals, names, strict=False)
    ]
    if literals[-1]:
        pieces.append((literals[-1], None))
    return Form(cls, tuple(pieces), holes)


FORMS: dict[type[Op], Form] = {cls: _form(cls) for cls in OPS.values()}

# ── names and numerals ───────────────────────────────────────────────────────────────────────

RESERVED = frozenset(
    ["and", "or", "not", "if", "else", "true", "false", "True", "False", "inf", "nan", *DTYPES]
)
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PRECEDENCE = {
    "or": 1, "and": 2, "<": 4, "<=": 4, "==": 4, "!=": 4, ">": 4, ">=": 4, "|": 5, "^": 6, "&": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "//": 10, "%": 10,
}  # fmt: skip
TERNARY, NOT, UNARY, PRIMARY = 0, 3, 11, 12
_UINT64 = DTYPES["uint64"]
# No numeral has this type: as a context it asks for an explicit one.
_EXPLICIT = BARRIER


def natural_dtype(value: int | float) -> DType:
    """The type of a numeral that stands alone."""
    if isinstance(value, float):
        return FLOAT32
    if -(1 << 31) <= value < 1 << 31:
        return INT32
    return INT64 if -(1 << 63) <= value < 1 << 63 else _UINT64


def common_natural(types: Sequence[DType]) -> DType:
    """The type of several numerals that meet without anything typed among them."""
    if FLOAT32 in types:
        return FLOAT32
    return max(types, key=(INT32, INT64, _UINT64).index)


def name_text(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name not in RESERVED else f"`{name}`"


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _float_text(value: float, dtype: DType) -> str:
    """The shortest usual decimal that the type reads back as `value`."""
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    for text in (str(dtype.numpy.type(value)), repr(value)):
        with suppress(ValueError):
            if repr(round_constant(float(text), dtype)) == repr(value):
                return text if any(c in text for c in ".e") else text + ".0"
    return repr(value)


# ── expressions ──────────────────────────────────────────────────────────────────────────────


class _Printer:
    """Prints expressions and ops; remembers which subtrees are made of numerals only."""

    def __init__(self) -> None:
        self._naturals: dict[int, DType | None] = {}
        self.out: list[str] = []
        self.begun: list[tuple[int, Op]] = []  # ops, and how much stood there before

    def natural(self, e: Expr) -> DType | None:
        """The type `e`'s text has by itself when it holds nothing but untyped numerals."""
        if isinstance(e, Const):
            return None if e.dtype.is_bool else natural_dtype(e.value)
        if not isinstance(e, Select) and not (isinstance(e, Bin) and e.op not in ("and", "or")):
            return None
        if id(e) not in self._naturals:
            a, b = self.natural(e.a), self.natural(e.b)
            both = None if a is None or b is None else common_natural([a, b])
            self._naturals[id(e)] = both
        return self._naturals[id(e)]

    def contexts(self, args: Sequence[Expr], context: DType | None) -> Sequence[DType | None]:
        """For operands that share a type: what each may rely on to type its numerals."""
        naturals = [self.natural(a) for a in args]
        for a, natural in zip(args, naturals, strict=True):
            if natural is None:
                return [None if n is None else a.dtype for n in naturals]
        first = args[0].dtype
        if all(a.dtype == first for a in args) and first == (
            context or common_natural([n for n in naturals if n is not None])
        ):
            return [first] * len(args)
        return [_EXPLICIT] + [first] * (len(args) - 1)

    def expr(self, e: Expr, context: DType | None = None, least: int = 0) -> str:
        text, precedence = self._render(e, context)
        return text if precedence >= least else f"({text})"

    def _render(self, e: Expr, context: DType | None) -> tuple[str, int]:
        if isinstance(e, Var):
            return name_text(e.name), PRIMARY
        if isinstance(e, Const):
            return self._const(e, context)
        if isinstance(e, Load):
            return name_text(e.buffer.name) + self.indices(e.indices), PRIMARY
        if isinstance(e, (Bin, Cmp)):
            chains = isinstance(e, Cmp)
            left, right = self.contexts((e.a, e.b), None if chains else context)
            if e.op in ("min", "max"):
                return f"{e.op}({self.expr(e.a, left)}, {self.expr(e.b, right)})", PRIMARY
            p = PRECEDENCE.get(e.op, UNARY)  # unknown ones only in error messages
            return f"{self.expr(e.a, left, p + chains)} {e.op} {self.expr(e.b, right, p + 1)}", p
        if isinstance(e, Select):
            left, right = self.contexts((e.a, e.b), context)
            a, c, b = self.expr(e.a, left, 1), self.expr(e.cond, None, 1), self.expr(e.b, right)
            return f"{a} if {c} else {b}", TERNARY
        if isinstance(e, Cast):
            inner = self.expr(e.a, _EXPLICIT if isinstance(e.a, Const) else None)
            return f"{e.dtype}({inner})", PRIMARY
        if isinstance(e, Call):
            return self._call(e)
        raise TypeError(f"no text for {type(e).__name__}")

    def _const(self, e: Const, context: DType | None) -> tuple[str, int]:
        if e.dtype.is_bool:
            return ("true" if e.value else "false"), PRIMARY
        text = _float_text(float(e.value), e.dtype) if e.dtype.is_float else str(int(e.value))
        if e.dtype == (context or natural_dtype(e.value)):
            return text, UNARY if text[0] == "-" else PRIMARY
        return f"{e.dtype}({text})", PRIMARY

    def _call(self, e: Call) -> tuple[str, int]:
        if e.name == "not" and e.dtype.is_bool:
            return f"not {self.expr(e.args[0], None, NOT)}", NOT
        if e.name == "invert" and e.dtype == e.args[0].dtype:
            return f"~{self.expr(e.args[0], None, UNARY)}", UNARY
        if e.name == "neg" and self.natural(e.args[0]) is None:
            a = e.args[0]
            if e.dtype == (INT32 if a.dtype.is_bool else a.dtype):
                return f"-{self.expr(a, None, UNARY)}", UNARY
        args = [
            self.expr(a, c) for a, c in zip(e.args, self.contexts(e.args, None), strict=True)
        ] if e.args else []  # fmt: skip
        if e.dtype != call_dtype(e.name, e.args):
            args.append(str(e.dtype))
        return f"{e.name}({', '.join(args)})", PRIMARY

    # ── operands ─────────────────────────────────────────────────────────────────────────────

    def indices(self, indices: Sequence[Expr]) -> str:
        return f"[{', '.join(self.expr(i) for i in indices)}]" if indices else ""

    def region(self, r: Region) -> str:
        axes = zip(r.starts, r.extents, r.buffer.shape, strict=True)
        full = [start is _ZERO and extent is size for start, extent, size in axes]
        text = name_text(r.buffer.name)
        if not all(full):
            parts = []
            for start, extent, whole in zip(r.starts, r.extents, full, strict=True):
                if extent is _ONE:
                    parts.append(self.expr(start))
                elif whole:
                    parts.append(":")
                else:
                    parts.append(f"{self.expr(start)}:+{self.expr(extent)}")
            text += f"[{', '.join(parts)}]"
        if r.cta is not None:
            cta = self.expr(r.cta)
            text += f"@{cta}" if _PLAIN.fullmatch(cta) or cta.isdigit() else f"@({cta})"
        return text

    def var(self, v: Var) -> str:
        return name_text(v.name) + ("" if v.dtype == INT32 else f": {v.dtype}")

    def declaration(self, b: Buffer) -> str:
        text = f"{name_text(b.name)}: {b.dtype}{self.indices(b.shape)} {b.space.value}"
        if b.strides is not None:
            text += f" strides=[{', '.join(self.expr(s) for s in b.strides)}]"
        if b.layout is not None:
            text += f" layout={json.dumps(repr(b.layout))}"
        return text

    def literal(self, value: Any) -> str:
        """A compile-time value whose type is not known from its field."""
        if value is None or isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (int, float)):
            return repr(value)
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, tuple):
            inner = ", ".join(map(self.literal, value))
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        raise CompileError(f"a {type(value).__name__} has no text in the IR", got=repr(value)[:80])

    def value(self, hole: Hole, value: Any, op: Op) -> str:
        if hole.anchor:
            return self.expr(value, getattr(op, hole.anchor).dtype)
        if hole.kind == "str" and hole.default != "":
            return _word(value)
        return _WRITERS.get(hole.kind, _Printer.literal)(self, value)

    def listed(self, items: Sequence[Any], item: Callable[[Any], str]) -> str:
        return item(items[0]) if len(items) == 1 else f"({', '.join(map(item, items))})"

    def operand(self, value: Expr | Region) -> str:
        return "&" + self.region(value) if isinstance(value, Region) else self.expr(value)

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def op(self, op: Op, indent: str) -> None:
        self.begun.append((len(self.out), op))
        form = FORMS[type(op)]
        extras = form.extras
        out = self.out
        for i, (literal, hole) in enumerate(form.pieces):
            if hole is None:
                out.append(literal)
                continue
            value = getattr(op, hole.name)
            if i > 0 and hole.optional and value == hole.default:
                continue
            if hole.kind == "Body":
                self._extras(op, extras)
                extras = {}
                out.append(literal)
                self._body(value, indent, chained=hole.optional)
                continue
            out += literal, self.value(hole, value, op)
        self._extras(op, extras)

    def _extras(self, op: Op, extras: dict[str, Hole]) -> None:
        for name, hole in extras.items():
            value = getattr(op, name)
            if value != hole.default:
                self.out.append(f" {name}={self.value(hole, value, op)}")

    def _body(self, body: Body, indent: str, *, chained: bool) -> None:
        if chained and len(body) == 1 and isinstance(body[0], If):
            self.op(body[0], indent)
            return
        if not body:
            self.out.append("{}")
            return
        inner = indent + "  "
        self.out.append("{\n")
        for op in body:
            self.out.append(inner)
            self.op(op, inner)
            self.out.append("\n")
        self.out.append(indent + "}")

    def program(self, p: Program) -> None:
        out = self.out
        out.append(f"program {_word(p.name)} {{\n")
        for dim in p.dims:
            out.append(f"  dim {self.var(dim.var)}")
            for f in dataclasses.fields(Dim)[1:]:
                value = getattr(dim, f.name)
                out.append("" if value == f.default else f" {f.name}={value}")
            out.append("\n")
        for param in p.params:
            if isinstance(param, Buffer):
                out.append(f"  param {self.declaration(param)}\n")
            else:
                out.append(f"  param {name_text(param.name)}: {param.dtype}\n")
        out += [f"  scratch {self.declaration(b)}\n" for b in p.scratch]
        out += [f"  source {json.dumps(text, ensure_ascii=False)}\n" for text in p.sources]
        for kernel in p.kernels:
            out.append("  ")
            self.op(kernel, "  ")
            out.append("\n")
        out.append("}\n")


_WRITERS: dict[str, Callable[[_Printer, Any], str]] = {
    "Expr": _Printer.expr,
    "Region": _Printer.region,
    "Var": _Printer.var,
    "Buffer": lambda p, buffer: name_text(buffer.name),
    "declaration": _Printer.declaration,
    "indices": _Printer.indices,
    "AnyLayout": lambda p, layout: json.dumps(repr(layout)),
    "tuple[Var, ...]": lambda p, items: p.listed(items, p.var),
    "tuple[Expr, ...]": lambda p, items: p.listed(items, p.expr),
    "tuple[Expr | Region, ...]": lambda p, items: p.listed(items, p.operand),
    "tuple[int, ...]": lambda p, items: p.listed(items, str),
    "tuple[Region, ...]": lambda p, items: p.listed(items, p.region),
    "Operator": lambda p, by: f"{p.listed(by.vars, p.var)} -> {p.listed(by.result, p.expr)}",
}
_ZERO, _ONE = const(0), const(1)


def call_dtype(name: str, args: Sequence[Expr]) -> DType | None:
    """The result type of a pure function that its text does not have to say."""
    function = FUNCTIONS.get(name)
    if function is None or function.result == "free" or not args:
        return None
    return BOOL if function.result == "bool" else args[0].dtype


def print_expr(expr: Expr) -> str:
    """The text of an expression."""
    return _Printer().expr(expr)


arith.shown = print_expr


def print_op(op: Op) -> str:
    """The text of an op, its bodies included, without a final newline."""
    printer = _Printer()
    printer.op(op, "")
    return "".join(printer.out)


def print_program(program: Program) -> str:
    """The text of a program; `parse_program` reads it back."""
    printer = _Printer()
    printer.program(program)
    return "".join(printer.out)


def print_located(program: Program) -> list[tuple[str, Loc | None]]:
    """The lines of `print_program`, each with the place of the op that begins in it."""
    printer = _Printer()
    printer.program(program)
    at: dict[int, Loc | None] = {}
    line = done = 0
    for before, op in printer.begun:
        line += "".join(printer.out[done:before]).count("\n")
        done = before
        at.setdefault(line, op.loc)
    return [(text, at.get(n)) for n, text in enumerate("".join(printer.out).splitlines())]


def print_signature(program: Program) -> str:
    """Its name and parameters, in a line.

    >>> from tilewright.ir.text import parse_program
    >>> print_signature(parse_program("program p { dim m\\n param A: float16[m, 8] global }"))
    'p(A: float16[m, 8])'
    """
    sizes: dict[Parameter, str] = {p: _Printer().indices(p.shape) for p in program.tensors}
    params = (f"{p.name}: {p.dtype}{sizes.get(p, '')}" for p in program.params)
    return f"{program.name}({', '.join(params)})"
