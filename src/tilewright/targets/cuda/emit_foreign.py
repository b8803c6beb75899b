"""Foreign code and messages as C++: `ptx`, `call_extern`, `print`, `device_assert`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from string import Formatter
from typing import Protocol

from tilewright.ir.core import *
from tilewright.targets.cuda.emit_expr import TYPES
from tilewright.targets.cuda.names import Names


class Writer(Protocol):
    """What the emitter offers to print with."""

    functions: dict[str, str]
    names: Names

    @property
    def used(self) -> set[Var]: ...

    def expr(self, expr: Expr) -> str: ...
    def operand(self, operand: Expr | Region) -> str: ...
    def pointer(self, operand: Expr | Region) -> str: ...
    def element(self, buffer: Buffer, indices: Iterable[Expr]) -> str: ...
    def line(self, text: str, loc: Loc | None = None) -> None: ...


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ── ptx ──────────────────────────────────────────────────────────────────────────────────────

_BY_BITS = {16: "h", 32: "r", 64: "l"}


def _mark(kind: DType, op: Intrinsic) -> str:
    """The asm constraint of a register of `kind`."""
    found = {"float32": "f", "tfloat32": "f", "float64": "d"}.get(kind.name)
    found = found or (None if kind.is_bool else _BY_BITS.get(kind.bits))
    if found is None:
        raise CompileError(
            f"ptx has no registers of {kind}",
            loc=op.loc,
            expected="16, 32 or 64 bits",
            fix="cast it to int32 and back",
        )
    return found


def _ptx(w: Writer, op: Intrinsic) -> str:
    """`$0` is the result when there is one, `$1` … the operands, written ones first. A register
    that is written is no operand's: the text may write it before it has read all (`&`)."""
    first = 0 if op.result is not None else 1
    text = op.text.replace("%", "%%")
    text = re.sub(r"\$(\d+)", lambda m: f"%{int(m[1]) - first}", text)
    outputs = []
    if op.result is not None:
        kind, name = op.result.dtype, w.names.of(op.result.name)
        mark = _mark(kind, op)
        w.line(f"{TYPES[kind.name]} {name};", op.loc)
        outputs.append(f'"=&{mark}"({_bits(name, kind)})')
    for arg in op.args[: op.width or 0]:
        assert isinstance(arg, Region)
        kind = arg.buffer.dtype
        outputs.append(f'"+&{_mark(kind, op)}"({_bits(w.element(arg.buffer, arg.starts), kind)})')
    inputs = []
    for arg in op.args[op.width or 0 :]:
        if isinstance(arg, Region):
            short = arg.buffer.space in (Space.SHARED, Space.BARRIER)
            inputs.append(f'"{"r" if short else "l"}"({w.operand(arg)})')
        else:
            inputs.append(f'"{_mark(arg.dtype, op)}"({_bits(w.expr(arg), arg.dtype)})')
    written, read = ", ".join(outputs), ", ".join(inputs)
    return f'asm volatile({_quoted(text)} : {written} : {read} : "memory")'


def _bits(text: str, kind: DType) -> str:
    return f"({text}).bits" if kind.name in ("float16", "bfloat16") else text


def _call_extern(w: Writer, op: Intrinsic) -> str:
    """Elements are passed as values: no reference reaches them. What returns nothing may have been
    given a type, as long as nothing uses it."""
    args = [
        f"{TYPES[a.dtype.name]}({w.expr(a)})" if isinstance(a, Load) else w.pointer(a)
        for a in op.args
    ]
    text = f"{op.text}({', '.join(args)})"
    if op.result is not None and op.result in w.used:
        text = f"const {TYPES[op.result.dtype.name]} {w.names.of(op.result.name)} = {text}"
    return text


# ── messages ─────────────────────────────────────────────────────────────────────────────────


def _shown(w: Writer, arg: Expr) -> tuple[str, str]:
    """How printf shows a value, and the value."""
    kind, text = arg.dtype, w.expr(arg)
    if kind.is_bool:
        return "%s", f'({text}) ? "True" : "False"'
    if kind.is_float:
        if kind.bits <= 16:
            # as many digits as tell their values apart
            return "%.6g", f"double(tw::to_float({text}))"
        return ("%.17g" if kind.bits == 64 else "%.9g"), f"double({text})"
    if kind.bits == 64:
        return ("%lld", text) if kind.kind == "int" else ("%llu", text)
    return ("%u", f"unsigned({text})") if kind.kind == "uint" else ("%d", f"int({text})")


def _printf(w: Writer, text: str, shown: Iterable[tuple[str, str]]) -> str:
    w.functions["printf"] = 'extern "C" __device__ int printf(const char*, ...);\n'
    return f"printf({', '.join([_quoted(text), *(value for _, value in shown)])})"


def _form(op: Intrinsic, forms: list[str]) -> str:
    """The text of a labelled op (`ir.messages`) as printf wants it, places in its holes."""
    places, form = iter(forms[: op.width or 0]), ""
    for literal, hole, _, _ in Formatter().parse(op.text):
        form += literal.replace("%", "%%") + (next(places) if hole is not None else "")
    return form


def _print(w: Writer, op: Intrinsic) -> str:
    """One line: its text, values after it."""
    shown = [_shown(w, a) for a in op.args if isinstance(a, Expr)]
    forms = [form for form, _ in shown]
    text = " ".join([_form(op, forms), *forms[op.width or 0 :]])
    return _printf(w, text + "\n", shown)


def _device_assert(w: Writer, op: Intrinsic) -> None:
    *places, test = op.args
    assert isinstance(test, Expr)
    shown = [_shown(w, place) for place in places if isinstance(place, Expr)]
    w.line(f"if (!({w.expr(test)})) {{", op.loc)
    form = _form(op, [form for form, _ in shown])
    w.line(_printf(w, form + "\n", shown) + ";")
    w.line("__trap();")
    w.line("}")


FOREIGN: dict[str, Callable[[Writer, Intrinsic], str | None]] = {
    "ptx": _ptx,
    "call_extern": _call_extern,
    "print": _print,
    "device_assert": _device_assert,
}
