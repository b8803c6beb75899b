"""Foreign code and messages as C++: `ptx`, `call_extern`, `print`, `device_assert`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from tilewright.ir.buffer import Region, Space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ir.op import Intrinsic
from tilewright.support.errors import CompileError, Loc
from tilewright.targets.cuda.emit_expr import TYPES, Names


class Writer(Protocol):
    """What the emitter offers to print with."""

    functions: dict[str, str]
    names: Names

    def expr(self, expr: Expr) -> str: ...
    def operand(self, operand: Expr | Region) -> str: ...
    def pointer(self, operand: Expr | Region) -> str: ...
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


def _ptx(w: Writer, op: Intrinsic) -> None:
    """`$0` is the result when there is one, `$1` … the operands."""
    first = 0 if op.result is not None else 1
    text = op.text.replace("%", "%%")
    text = re.sub(r"\$(\d+)", lambda m: f"%{int(m[1]) - first}", text)
    outputs = ""
    if op.result is not None:
        kind, name = op.result.dtype, w.names.of(op.result.name)
        mark = _mark(kind, op)
        w.line(f"{TYPES[kind.name]} {name};", op.loc)
        outputs = f'"={mark}"({_bits(name, kind)})'
    inputs = []
    for arg in op.args:
        if isinstance(arg, Region):
            short = arg.buffer.space in (Space.SHARED, Space.BARRIER)
            inputs.append(f'"{"r" if short else "l"}"({w.operand(arg)})')
        else:
            inputs.append(f'"{_mark(arg.dtype, op)}"({_bits(w.expr(arg), arg.dtype)})')
    w.line(f'asm volatile({_quoted(text)} : {outputs} : {", ".join(inputs)} : "memory");', op.loc)


def _bits(text: str, kind: DType) -> str:
    return f"({text}).bits" if kind.name in ("float16", "bfloat16") else text


def _call_extern(w: Writer, op: Intrinsic) -> None:
    text = f"{op.text}({', '.join(w.pointer(a) for a in op.args)})"
    if op.result is not None:
        text = f"const {TYPES[op.result.dtype.name]} {w.names.of(op.result.name)} = {text}"
    w.line(f"{text};", op.loc)


# ── messages ─────────────────────────────────────────────────────────────────────────────────


def _shown(w: Writer, arg: Expr) -> tuple[str, str]:
    """How printf shows a value, and the value."""
    kind, text = arg.dtype, w.expr(arg)
    if kind.is_float:
        if kind.bits <= 16:
            text = f"tw::to_float({text})"
        return "%.9g", f"double({text})"
    if kind.bits == 64:
        return ("%lld", text) if kind.kind == "int" else ("%llu", text)
    return ("%u", f"unsigned({text})") if kind.kind == "uint" else ("%d", f"int({text})")


def _printf(w: Writer, op: Intrinsic, text: str, args: list[str]) -> None:
    w.functions["printf"] = 'extern "C" __device__ int printf(const char*, ...);\n'
    where = ["int(blockIdx.x)", "int(blockIdx.y)", "int(blockIdx.z)", "int(threadIdx.x)"]
    form = "block (%d, %d, %d) thread %d: " + text + "\n"
    w.line(f"printf({', '.join([_quoted(form), *where, *args])});", op.loc)


def _print(w: Writer, op: Intrinsic) -> None:
    shown = [_shown(w, a) for a in op.args if isinstance(a, Expr)]
    words = [op.text.replace("%", "%%")] * bool(op.text) + [form for form, _ in shown]
    _printf(w, op, " ".join(words), [value for _, value in shown])


def _device_assert(w: Writer, op: Intrinsic) -> None:
    (test,) = op.args
    assert isinstance(test, Expr)
    message = "device_assert failed" + (f": {op.text}" if op.text else "")
    w.line(f"if (!({w.expr(test)})) {{", op.loc)
    _printf(w, op, message.replace("%", "%%"), [])
    w.line("__trap();")
    w.line("}")


FOREIGN: dict[str, Callable[[Writer, Intrinsic], None]] = {
    "ptx": _ptx,
    "call_extern": _call_extern,
    "print": _print,
    "device_assert": _device_assert,
}
