"""Expressions as C++."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeGuard

import numpy as np

from tilewright.ir.analysis.linear import is_ring
from tilewright.ir.core import *
from tilewright.targets.cuda.names import LIBRARY, Names
from tilewright.targets.cuda.spans import Spans, below


class _Types(dict[str, str]):
    def __missing__(self, name: str) -> str:
        raise CompileError(
            f"{name} has no CUDA form",
            expected=f"one of {', '.join(self)}",
            fix="keep its bits in uint8, and decode them in the kernel",
        )


TYPES = _Types({
    "float64": "double", "float32": "float", "tfloat32": "float", "float16": "tw::float16",
    "bfloat16": "tw::bfloat16", "float8_e4m3fn": "tw::float8_e4m3fn",
    "float8_e5m2": "tw::float8_e5m2", "bool": "bool", "int32": "int", "int8": "int8_t",
    "int16": "int16_t", "int64": "int64_t", "uint8": "uint8_t", "uint16": "uint16_t",
    "uint32": "uint32_t", "uint64": "uint64_t",
})  # fmt: skip

# binding strength, as in C++
_STRENGTH = {
    "*": 12, "/": 12, "+": 11, "-": 11, "<<": 10, ">>": 10, "<": 9, "<=": 9, ">": 9, ">=": 9,
    "==": 8, "!=": 8, "&": 7, "^": 6, "|": 5, "and": 4, "or": 3, "?": 2,
}  # fmt: skip
_WORDS = {"and": "&&", "or": "||"}
_BITS = ("&", "^", "|", "<<", ">>")  # few remember how these bind: parentheses
_SMALL_FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_HALVES = {"+": "add", "-": "sub", "*": "mul"}  # instructions of float16

# of float32, in fewer instructions than the library's
_SINGLE = {"exp2": "tw::exp2", "sigmoid": "tw::sigmoid"}
_RENAMED = {"round": "rint", "abs": "fabs"}
_SAME_NAME = frozenset({"isnan", "isinf", "isfinite"})
_FAST = {
    "__exp": "tw::exp_fast", "__exp2": "tw::exp2", "__exp10": "__exp10f", "__log": "__logf",
    "__log2": "__log2f", "__log10": "__log10f", "__sin": "__sinf", "__cos": "__cosf",
    "__tan": "__tanf", "__tanh": "tw::tanh_fast", "__sigmoid": "tw::sigmoid_fast",
}  # fmt: skip
_OWN = {
    "pack_bfloat16": "tw::pack_bfloat16", "pack_float16": "tw::pack_float16",
    "min_nan": "tw::min_nan", "max_nan": "tw::max_nan", "dp4a": "__dp4a",
    "__divide": "tw::divide_fast",
}  # fmt: skip


_SUMS = {"+": "add", "-": "sub", "*": "mul"}


def print_expr(
    expr: Expr,
    names: Names,
    load: Callable[[Load], str],
    beside: str = "",
    spans: Spans | None = None,
    index: bool = False,
) -> str:
    """`expr` as C++, fit to stand `beside` an operator; `load` prints the elements it reads.

    `index`: the sum itself does not overflow (`ir.bounds`); what stands under its divisions, masks
    and choices may. Other sums of signed numbers wrap unless `spans` show that they need not.
    """
    printer = _Printer(names, load, spans or Spans())
    if index:
        printer.sums_of(expr)
    return printer.within(expr, _STRENGTH[beside] if beside else 0)


class _Printer:
    def __init__(self, names: Names, load: Callable[[Load], str], spans: Spans) -> None:
        self.names, self.load, self.spans = names, load, spans
        self.plain: set[Expr] = set()

    def sums_of(self, e: Expr) -> None:
        """`e` and the sums that it is made of do not overflow."""
        if is_ring(e) or (isinstance(e, Cast) and e.dtype.is_int and e.a.dtype.is_int):
            self.plain.add(e)
            for child in e.children:
                self.sums_of(child)

    def wraps(self, e: Expr) -> bool:
        """C++ must be told that `e` wraps."""
        if e.dtype.kind != "int" or e.dtype.bits < 32 or e in self.plain:
            return False
        return not self.spans.fits(e)

    def go(self, e: Expr) -> tuple[str, int]:
        """The text and how strongly its outermost operator binds."""
        if isinstance(e, Const):
            return _constant(e)
        if isinstance(e, Var):
            return self.names.of(e.name), 99
        if isinstance(e, Load):
            return self.load(e), 99
        if isinstance(e, (Bin, Cmp)):
            return self.binary(e)
        if isinstance(e, Select):
            parts = [self.within(x, _STRENGTH["?"] + 1) for x in e.children]
            return f"{parts[0]} ? {parts[1]} : {parts[2]}", _STRENGTH["?"]
        if isinstance(e, Cast):
            return self.cast(e)
        if isinstance(e, Call):
            return self.call(e)
        raise CompileError(f"{type(e).__name__} has no CUDA form")

    def within(self, e: Expr, least: int) -> str:
        text, strength = self.go(e)
        return text if strength >= least else f"({text})"

    def binary(self, e: Bin | Cmp) -> tuple[str, int]:
        op, kind = e.op, e.a.dtype
        if kind.name in _SMALL_FLOATS:
            raise CompileError(f"arithmetic on {kind} has not been widened")
        if op in ("//", "%"):
            return self.narrowed(e, self.division(e))
        if op in ("<<", ">>") and isinstance(e, Bin):
            return self.shift(e)
        if op in ("min", "max"):
            name = op if not kind.is_float else f"f{op}{_suffix(kind)}"
            found = f"{name}({self.go(e.a)[0]}, {self.go(e.b)[0]})", 99
            if kind.is_bool:
                found = self.infix(e, "&" if op == "min" else "|")
            elif kind.bits < 32:
                found = f"{name}(int({self.go(e.a)[0]}), int({self.go(e.b)[0]}))", 99
            return self.narrowed(e, found)
        if op == "/" and _divides_in_place(e.b):
            return f"tw::divide_by({self.go(e.a)[0]}, {_constant(e.b)[0]})", 99
        return self.narrowed(e, self.infix(e, op))

    def shift(self, e: Bin) -> tuple[str, int]:
        """By a count in range as C++ does it; by others, and of signed numbers to the left, by the
        header's functions."""
        if below(self.spans.of(e.b), e.dtype):
            if e.op == ">>" or e.dtype.kind == "uint":
                return self.narrowed(e, self.infix(e, e.op))
            if isinstance(e.b, Const) and e.dtype.bits >= 32:
                wide = f"{TYPES[f'uint{e.dtype.bits}']}({self.go(e.a)[0]})"
                return f"{TYPES[e.dtype.name]}({wide} << {_constant(e.b)[0]})", 99
        name = "tw::shift_left" if e.op == "<<" else "tw::shift_right"
        return f"{name}<{TYPES[e.dtype.name]}>({self.go(e.a)[0]}, {self.go(e.b)[0]})", 99

    def infix(self, e: Bin | Cmp, op: str) -> tuple[str, int]:
        if op in _SUMS and isinstance(e, Bin) and self.wraps(e):
            return f"tw::wrap_{_SUMS[op]}({self.go(e.a)[0]}, {self.go(e.b)[0]})", 99
        if op == "*" and e.a.dtype.name == "uint16":  # their product may be too large for int
            return f"uint32_t({self.go(e.a)[0]}) * {self.within(e.b, 13)}", 12
        strength = _STRENGTH[op]
        least = 13 if op in _BITS else strength
        left, right = self.within(e.a, least), self.within(e.b, max(least, strength + 1))
        return f"{left} {_WORDS.get(op, op)} {right}", strength

    def narrowed(self, e: Bin | Cmp, found: tuple[str, int]) -> tuple[str, int]:
        """C++ computes narrow integers as int: what wraps is cut off."""
        if isinstance(e, Bin) and e.dtype.is_int and e.dtype.bits < 32:
            return f"{TYPES[e.dtype.name]}({found[0]})", 99
        return found

    def division(self, e: Bin | Cmp) -> tuple[str, int]:
        """Rounds toward minus infinity, as `>>` and `&` do for powers of two."""
        a, b = e.a, e.b
        if a.dtype.is_float:
            a_text, b_text = self.go(a)[0], self.go(b)[0]
            floor = f"floor{_suffix(a.dtype)}({self.within(a, 12)} / {self.within(b, 13)})"
            return (floor, 99) if e.op == "//" else (f"tw::floor_mod({a_text}, {b_text})", 99)
        if isinstance(b, Const) and b.value > 0 and int(b.value) & (int(b.value) - 1) == 0:
            value = int(b.value)
            if e.op == "//":
                return f"{self.within(a, 13)} >> {value.bit_length() - 1}", _STRENGTH[">>"]
            mask = _constant(const(value - 1, a.dtype))[0] if a.dtype.bits > 32 else str(value - 1)
            return f"{self.within(a, 13)} & {mask}", _STRENGTH["&"]
        if a.dtype.kind == "uint":
            return f"{self.within(a, 12)} {'/' if e.op == '//' else '%'} {self.within(b, 13)}", 12
        name = "floor_div" if e.op == "//" else "floor_mod"
        name = f"tw::wrap_{name}" if self.overflows(a, b) else f"tw::{name}"
        if a.dtype.bits != 32:  # literals are of 32 bits
            name += f"<{TYPES[a.dtype.name]}>"
        return f"{name}({self.go(a)[0]}, {self.go(b)[0]})", 99

    def overflows(self, a: Expr, b: Expr) -> bool:
        """The quotient of these may be that of the least number and -1."""
        by = self.spans.of(b)
        if not by.lo <= -1 <= by.hi or a.dtype.bits < 32:
            return False
        return self.spans.of(a).lo == a.dtype.min_value and not self.spans.sized(Bin("//", a, b))

    def cast(self, e: Cast) -> tuple[str, int]:
        text, source, target = self.go(e.a)[0], e.a.dtype, e.dtype
        for kind in (source, target):
            if kind.name not in TYPES:
                raise CompileError(f"conversions of {kind} have no CUDA form")
        if source.name in _SMALL_FLOATS:
            text = f"tw::to_float({text})"
            if target.name == "float32":
                return text, 99
        if target.name == "float16" and (halves := self.halves(e.a)):
            return halves, 99
        small = _interval(e.a) if source.is_int and target.is_float and target.bits <= 32 else None
        if small is not None:
            return _small_number(text, source, small, target), 99
        if target.name in _SMALL_FLOATS:
            inner = text
            if source.bits == 64 and source.is_int and target.name == "bfloat16":
                inner = f"{TYPES[source.name]}({text})"
            elif not source.is_float:
                inner = (
                    f"double({text})" if source.is_int and source.bits >= 32 else f"float({text})"
                )
            return f"tw::to_{target.name}({inner})", 99
        if target.is_bool:
            return f"({text}) != 0", _STRENGTH["!="]
        if target.name == "tfloat32" and source.name != "tfloat32":
            inner = text if source.is_float and source.bits <= 32 else f"float({text})"
            return f"tw::to_tfloat32({inner})", 99
        if source.is_float and target.is_int:
            return f"tw::to_integer<{TYPES[target.name]}>({text})", 99
        return f"{TYPES[target.name]}({text})", 99

    def halves(self, e: Expr) -> str | None:
        """A float32 sum or product of float16 numbers, rounded to float16, in one instruction
        of that type: rounding to 24 bits in between, more than twice 11, changes nothing."""
        if not isinstance(e, Bin) or e.op not in _HALVES or e.dtype.name != "float32":
            return None
        parts = [self.half(x) for x in (e.a, e.b)]
        if None in parts or (isinstance(e.a, Const) and isinstance(e.b, Const)):
            return None
        return f"tw::{_HALVES[e.op]}({parts[0]}, {parts[1]})"

    def half(self, e: Expr) -> str | None:
        """A float32 number that is one of float16, as that."""
        if isinstance(e, Cast) and e.a.dtype.name == "float16":
            return self.go(e.a)[0]
        if isinstance(e, Const) and math.isfinite(e.value):
            with np.errstate(over="ignore"):
                value = np.float16(e.value)
            if float(value) == e.value:
                return f"tw::float16{{{hex(int(value.view(np.uint16)))}}}"
        return None

    def call(self, e: Call) -> tuple[str, int]:
        args = [self.go(a)[0] for a in e.args]
        kind = e.args[0].dtype
        if e.name == "neg" and self.wraps(e):
            return f"tw::wrap_neg({args[0]})", 99
        if e.name == "neg":
            text = self.within(e.args[0], 13)
            text = f"({text})" if text.startswith("-") else text  # `--x` counts down
            return self.cut(f"-{text}", 13, e.dtype)
        if e.name == "not":
            return f"!{self.within(e.args[0], 13)}", 13
        if e.name == "invert":
            return self.cut(f"~{self.within(e.args[0], 13)}", 13, e.dtype)
        if e.name == "abs" and kind.is_int:
            if kind.kind == "uint":
                return self.go(e.args[0])
            text = f"tw::wrap_abs({args[0]})" if self.wraps(e) else f"abs({args[0]})"
            return self.cut(text, 99, e.dtype)
        if e.name in ("sigmoid", "__sigmoid") and kind.name == "float64":
            return f"tw::sigmoid({args[0]})", 99
        if e.name == "reinterpret":
            return _reinterpret(args[0], e.args[0].dtype, e.dtype), 99
        if e.name in ("popcount", "clz"):
            # said, for C++ makes ints of narrower numbers
            return f"tw::{e.name}<{TYPES[kind.name]}>({args[0]})", 99
        name = _function(e.name, kind)
        if name is None:
            raise CompileError(f"{e.name} of {kind} has no CUDA form")
        return f"{name}({', '.join(args)})", 99

    def cut(self, text: str, strength: int, kind: DType) -> tuple[str, int]:
        if kind.is_int and kind.bits < 32:
            return f"{TYPES[kind.name]}({text})", 99
        return text, strength


def _interval(e: Expr) -> tuple[int, int] | None:
    """What an integer expression of up to 32 bits lies between, where its text tells: within 22
    bits, which all floats of 32 bits have room for."""
    match e:
        case Bin("&", a, Const(value)) | Bin("&", Const(value), a) if value >= 0:
            found: tuple[int, int] | None = (0, int(value))
        case Const(value):
            found = int(value), int(value)
        case Bin("+" | "-" as op, a, b) if e.dtype.bits == 32 and e.dtype.kind == "int":
            left, right = _interval(a), _interval(b)
            if left is None or right is None:
                return None
            low, high = right if op == "+" else (-right[1], -right[0])
            found = left[0] + low, left[1] + high
        case Cast(_, a) if a.dtype.is_int and a.dtype.bits < e.dtype.bits == 32:
            found = _interval(a)
            if found is not None and found[0] < 0 and e.dtype.kind == "uint":
                return None  # what is negative wraps
        case _ if e.dtype.bits <= 16 and not e.dtype.is_bool:
            low = -(1 << (e.dtype.bits - 1)) if e.dtype.kind == "int" else 0
            found = low, low + (1 << e.dtype.bits) - 1
        case _:
            return None
    return found if found is not None and max(map(abs, found)) < 1 << 22 else None


def _small_number(text: str, source: DType, span: tuple[int, int], target: DType) -> str:
    """An integer between the ends of `span` as a float, exact before it is rounded: added to a
    number whose last digit is 1. Instructions that convert have a quarter of the rate."""
    whole = text if source.bits == 32 and source.kind == "int" else f"int({text})"
    if target.name == "float16" and span[0] >= -512 and span[1] < 512:
        return f"tw::small_float16({whole})"
    number = f"tw::small_float({whole})"
    return f"tw::to_{target.name}({number})" if target.name != "float32" else number


def _divides_in_place(divisor: Expr) -> TypeGuard[Const]:
    """Whether a product with the reciprocal and one correction give the rounded quotient: not where
    that overflows, nor with a significand of ones only. A power of two is left to the compiler."""
    if not isinstance(divisor, Const) or divisor.dtype.name != "float32":
        return False
    size, _ = math.frexp(divisor.value)
    return 1 < abs(divisor.value) <= 2.0**60 and abs(size) not in (0.5, 1 - 2.0**-24)


def _suffix(kind: DType) -> str:
    return "" if kind.name == "float64" else "f"


def _function(name: str, kind: DType) -> str | None:
    """The C++ function for `name` on `kind`."""
    if name in _OWN:
        return _OWN[name]
    if not kind.is_float:
        found = {"pow": "tw::int_pow", "fmod": "tw::int_rem"}.get(name)
        # constants of narrow types are printed as int
        return found and f"{found}<{TYPES[kind.name]}>"
    if name in _FAST:
        if kind.name != "float64":
            return _FAST[name]
        name = name.removeprefix("__")
    if name in _SAME_NAME:
        return name
    if name in _SINGLE and kind.name != "float64":
        return _SINGLE[name]
    if name in LIBRARY or name in _RENAMED:
        return _RENAMED.get(name, name) + _suffix(kind)
    return None


def _reinterpret(text: str, source: DType, target: DType) -> str:
    names = {
        ("float32", "int32"): "__float_as_int",
        ("float32", "uint32"): "__float_as_uint",
        ("int32", "float32"): "__int_as_float",
        ("uint32", "float32"): "__uint_as_float",
    }
    found = names.get((source.name, target.name))
    if found is not None:
        return f"{found}({text})"
    if source.bits != target.bits or source.name not in TYPES or target.name not in TYPES:
        raise CompileError(f"reinterpret from {source} to {target} has no CUDA form")
    return f"tw::bits_as<{TYPES[target.name]}>({text})"


def _constant(e: Const) -> tuple[str, int]:
    kind = e.dtype
    if kind.is_bool:
        return ("true" if e.value else "false"), 99
    if kind.is_int:
        suffix = {"int64": "ll", "uint32": "u", "uint64": "ull"}.get(kind.name, "")
        if e.value == kind.min_value and kind.kind == "int" and kind.bits >= 32:
            return f"(-{-(int(e.value) + 1)}{suffix} - 1)", 99  # no literal has this value
        text = f"{e.value}{suffix}"
        return (text, 99) if e.value >= 0 else (text, 13)
    value = float(e.value)
    if math.isinf(value) or math.isnan(value):
        bits = {"inf": "0x7f800000", "-inf": "0xff800000"}.get(str(value), "0x7fffffff")
        text = f"__uint_as_float({bits}u)"
        if kind.name == "float64":
            return f"double({text})", 99
    else:
        text = repr(value) + ("" if kind.name == "float64" else "f")
    if kind.name in _SMALL_FLOATS:
        return f"tw::to_{kind.name}({text})", 99
    return (text, 13) if text.startswith("-") else (text, 99)
