"""Typed values in LLVM IR: constants, conversions, arithmetic, for one lane or many.

A value of a narrow float type is held as its bits (`half`, or i16 for bfloat16, i8 for fp8); an
operation decodes to float32, computes and rounds once, which is what the language says. Sub-byte
integers are held in i8, wrapped after every operation. Booleans are i1 in registers, i8 in
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tilewright.ir.arith import round_constant
from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, DType
from tilewright.targets.cpu.llvm_text import Function

FLOAT64 = DTYPES["float64"]
UINT32 = DTYPES["uint32"]


Operand: TypeAlias = "Val | float"  # a number is a constant of the type that it meets


def _operator(op: str) -> Callable[[Val, Operand], Val]:
    """One machine instruction, by the type of its operands; `binary` is the language's operator."""

    def apply(a: Val, b: Operand) -> Val:
        if op in _COMPARE:
            return compare(op, a, b)
        right = "ashr" if a.dtype.kind == "int" else "lshr"
        shifts = {"<<": "shl", ">>": right}
        return instruction((_FLOAT_OPS if a.dtype.is_float else _INT_OPS | shifts)[op], a, b)

    return apply


@dataclass(frozen=True)
class Val:
    """An SSA value of `lanes` elements (1: a scalar, the same for all lanes), which operators
    compute with by instructions appended to `fn`."""

    fn: Function = field(repr=False)
    ref: str
    dtype: DType
    lanes: int = 1

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"

    @property
    def type(self) -> str:
        return type_of(self.dtype, self.lanes)

    def next(self, text: str, dtype: DType | None = None, lanes: int = 0) -> Val:
        """The result of an instruction, of this value's type and lanes where nothing else is
        said."""
        return Val(self.fn, self.fn.value(text), dtype or self.dtype, lanes or self.lanes)

    __add__, __sub__, __mul__ = map(_operator, "+-*")
    __and__, __or__, __xor__ = map(_operator, "&|^")
    __lshift__, __rshift__ = _operator("<<"), _operator(">>")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("<", "<=", ">", ">="))

    def __rsub__(self, a: float) -> Val:
        return constant(self.fn, a, self.dtype) - self

    def __radd__(self, a: float) -> Val:
        return constant(self.fn, a, self.dtype) + self


@dataclass(frozen=True)
class Minifloat:
    """How a float of at most 8 bits is laid out. `nan`: its code's magnitude, None without NaN."""

    exponent: int
    mantissa: int
    bias: int
    nan: int | None
    signed_zero: bool = True

    @property
    def sign(self) -> int:
        """The place of the sign's bit."""
        return self.exponent + self.mantissa


MINIFLOATS = {
    "float8_e4m3fn": Minifloat(4, 3, 7, 0x7F),
    "float8_e5m2": Minifloat(5, 2, 15, 0x7E),
    "float8_e4m3fnuz": Minifloat(4, 3, 8, 0x80, signed_zero=False),
    "float8_e5m2fnuz": Minifloat(5, 2, 16, 0x80, signed_zero=False),
    "float6_e2m3fn": Minifloat(2, 3, 1, None),
    "float6_e3m2fn": Minifloat(3, 2, 3, None),
    "float4_e2m1fn": Minifloat(2, 1, 1, None),
}


_BOOL_OPS = {
    "and": "and", "or": "or", "&": "and", "|": "or", "^": "xor", "min": "and", "max": "or",
}  # fmt: skip
_FLOAT_OPS = {"+": "fadd", "-": "fsub", "*": "fmul"}
_INT_OPS = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_COMPARE = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}


def element_type(dtype: DType) -> str:
    """The LLVM type of one element in a register."""
    if dtype.is_bool:
        return "i1"
    if dtype.is_int:
        return f"i{max(8, dtype.bits)}"
    names = {"float64": "double", "float32": "float", "tfloat32": "float", "float16": "half"}
    if dtype.name in names:
        return names[dtype.name]
    return "i16" if dtype.bits == 16 else "i8"


def vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def type_of(dtype: DType, lanes: int = 1) -> str:
    return vector(element_type(dtype), lanes)


def memory_type(dtype: DType) -> str:
    return "i8" if dtype.is_bool else element_type(dtype)


def item_bytes(dtype: DType) -> int:
    """Bytes of one element in memory; sub-byte types take a byte each."""
    return max(8, dtype.bits) // 8


def literal(value: float | int | bool, dtype: DType) -> str:
    """One element as LLVM writes it."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_int:
        bits = max(8, dtype.bits)
        number = int(value)
        return str(number - (1 << bits) if number >> (bits - 1) == 1 else number)
    if dtype.bits == 64 or dtype.bits == 32:
        exact = float(value) if dtype.bits == 64 else round_constant(float(value), FLOAT32)
        return f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"
    code = int.from_bytes(
        np.array(round_constant(float(value), dtype), dtype.numpy).tobytes(), "little"
    )
    return f"0xH{code:04X}" if dtype.name == "float16" else str(code)


def mangle(type_: str) -> str:
    """A type's suffix in the name of an overloaded intrinsic."""
    if type_.startswith("<"):
        lanes, _, inner = type_[1:-1].partition(" x ")
        return f"v{lanes}{mangle(inner)}"
    return {"float": "f32", "double": "f64", "half": "f16"}.get(type_, type_)


# ── constants and lanes ──────────────────────────────────────────────────────────────────────


def constant(fn: Function, value: float | int | bool, dtype: DType, lanes: int = 1) -> Val:
    return splat(Val(fn, literal(value, dtype), dtype), lanes)


def splat(a: Val, lanes: int) -> Val:
    """`a` in every lane."""
    if a.lanes == lanes:
        return a
    if not a.ref.startswith("%"):
        text = ", ".join([f"{element_type(a.dtype)} {a.ref}"] * lanes)
        return replace(a, ref=f"<{text}>", lanes=lanes)
    type_ = type_of(a.dtype, lanes)
    one = a.fn.value(f"insertelement {type_} poison, {element_type(a.dtype)} {a.ref}, i32 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    return a.next(f"shufflevector {type_} {one}, {type_} poison, {zeros}", lanes=lanes)


def even(*operands: Operand) -> tuple[Val, ...]:
    """Operands of as many lanes each; numbers take the type of the first value."""
    first = next(x for x in operands if isinstance(x, Val))
    values = [x if isinstance(x, Val) else constant(first.fn, x, first.dtype) for x in operands]
    lanes = max(v.lanes for v in values)
    return tuple(splat(v, lanes) for v in values)


def extract(a: Val, index: int) -> Val:
    return a if a.lanes == 1 else a.next(f"extractelement {a}, i32 {index}", lanes=1)


def gather(parts: list[Val]) -> Val:
    """Scalars as the lanes of one vector."""
    if len(parts) == 1:
        return parts[0]
    found = replace(parts[0], ref="poison", lanes=len(parts))
    for i, part in enumerate(parts):
        found = found.next(f"insertelement {found}, {part}, i32 {i}")
    return found


def shuffle(a: Val, b: Val, lanes: list[int]) -> Val:
    """The lanes of `a` and `b`, counted through both, that `lanes` lists."""
    mask = ", ".join(f"i32 {i}" for i in lanes)
    text = f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{mask}>"
    return a.next(text, lanes=len(lanes))


def bits_of(a: Val, dtype: DType) -> Val:
    """The same bits as another type of the same width."""
    same = type_of(a.dtype) == type_of(dtype)
    return replace(a, dtype=dtype) if same else convert("bitcast", a, dtype)


# ── instructions ─────────────────────────────────────────────────────────────────────────────


def instruction(name: str, a: Operand, b: Operand) -> Val:
    """Comparisons give bools, others what they take."""
    a, b = even(a, b)
    return a.next(f"{name} {a}, {b.ref}", BOOL if name[1:4] == "cmp" else a.dtype)


def overloaded(name: str, *operands: Operand) -> Val:
    """An intrinsic whose operands and result share one type."""
    args = even(*operands)
    type_ = args[0].type
    ref = args[0].fn.intrinsic(
        f"llvm.{name}.{mangle(type_)}", type_, *((type_, a.ref) for a in args)
    )
    return replace(args[0], ref=ref)


def convert(name: str, a: Val, dtype: DType) -> Val:
    return a.next(f"{name} {a} to {type_of(dtype, a.lanes)}", dtype)


def choose(cond: Val, a: Operand, b: Operand) -> Val:
    """`a` where `cond`, else `b`."""
    a, b = even(a, b)
    if cond.lanes > 1:
        a, b = splat(a, cond.lanes), splat(b, cond.lanes)
    return a.next(f"select {cond}, {a}, {b}")


def fma(a: Operand, b: Operand, c: Operand) -> Val:
    return overloaded("fmuladd", a, b, c)


def any_lane(a: Val) -> str:
    """An i1 that says whether a bool is true in some lane."""
    if a.lanes == 1:
        return a.ref
    return a.fn.intrinsic(f"llvm.vector.reduce.or.v{a.lanes}i1", "i1", (a.type, a.ref))


# ── conversions ──────────────────────────────────────────────────────────────────────────────


def cast(a: Val, dtype: DType) -> Val:
    """The language's conversion, exactly."""
    source = a.dtype
    if source == dtype:
        return a
    if dtype.name == "tfloat32":
        return to_tfloat32(cast(a, FLOAT32))
    if dtype.is_bool:
        return nonzero(a)
    if source.is_bool and dtype.is_int:
        return convert("zext", a, dtype)
    if source.is_int and dtype.is_int:
        return resize(a, dtype)
    if not source.is_float:
        # beyond 2^24 float32 would round before bfloat16 does, beyond 2^53 float64
        through = FLOAT32 if dtype.bits < 32 else dtype
        if dtype.name == "bfloat16" and source.is_int and source.bits >= 32:
            through = FLOAT64
            a = _sticky(a) if source.bits == 64 else a
        name = "sitofp" if source.kind == "int" else "uitofp"
        return narrow(convert(name, a, through), dtype)
    return to_int(widen(a), dtype) if dtype.is_int else narrow(widen(a), dtype)


def _sticky(a: Val) -> Val:
    """A 64-bit integer that float64 holds and bfloat16 rounds as it does `a`: of a large one
    the last twelve bits only count as whether there are any."""
    top = a >> 40
    small = instruction("icmp eq", top, a >> 63 if a.dtype.kind == "int" else 0)
    some = instruction("icmp ne", a & 0xFFF, 0)
    bit = convert("zext", some, a.dtype) << 11
    return choose(small, a, (a & (-0x1000 % (1 << 64))) | bit)


def nonzero(a: Val) -> Val:
    return a if a.dtype.is_bool else compare("!=", a, 0)


def resize(a: Val, dtype: DType) -> Val:
    have, want = max(8, a.dtype.bits), max(8, dtype.bits)
    if have > want:
        a = convert("trunc", a, dtype)
    elif have < want:
        a = convert("sext" if a.dtype.kind == "int" else "zext", a, dtype)
    return wrap(replace(a, dtype=dtype))


def wrap(a: Val) -> Val:
    """A sub-byte integer brought back into its range."""
    if not a.dtype.is_int or a.dtype.bits >= 8:
        return a
    return (a << 8 - a.dtype.bits) >> 8 - a.dtype.bits


def to_int(a: Val, dtype: DType) -> Val:
    """Toward zero, saturating, NaN to 0."""
    kind, sign = ("fptosi", "s") if dtype.kind == "int" else ("fptoui", "u")
    wide = DTYPES[f"{dtype.kind}{max(32, dtype.bits)}"]
    target = type_of(wide, a.lanes)
    name = f"llvm.{kind}.sat.{mangle(target)}.{mangle(a.type)}"
    found = Val(a.fn, a.fn.intrinsic(name, target, (a.type, a.ref)), wide, a.lanes)
    if dtype.bits < 32:
        found = overloaded(f"{sign}min", found, dtype.max_value)
        if sign == "s":
            found = overloaded("smax", found, dtype.min_value)
        found = convert("trunc", found, dtype)
    return found


def widen(a: Val) -> Val:
    """Narrow floats as float32, everything else as it is."""
    if not a.dtype.is_float or a.dtype.bits >= 32:
        return a
    if a.dtype.name == "float16":
        return convert("fpext", a, FLOAT32)
    word = convert("zext", a, UINT32)
    if a.dtype.name == "bfloat16":
        return bits_of(word << 16, FLOAT32)
    if a.dtype.name == "float8_e8m0fnu":
        return _decode_scale(word)
    return _decode(word, MINIFLOATS[a.dtype.name], a.dtype)


def narrow(a: Val, dtype: DType) -> Val:
    """A float32 or float64 rounded to `dtype`."""
    if dtype == a.dtype:
        return a
    if dtype.bits >= 32:
        if dtype.bits == a.dtype.bits:
            return replace(a, dtype=dtype)
        return convert("fptrunc" if dtype.bits < a.dtype.bits else "fpext", a, dtype)
    if a.dtype.bits == 64:
        a = _round_to_odd(a)
    if dtype.name == "float16":
        return convert("fptrunc", a, dtype)
    if dtype.name == "bfloat16":
        return _to_bfloat16(a, dtype)
    if dtype.name == "float8_e8m0fnu":
        return _encode_scale(a, dtype)
    return _encode(a, MINIFLOATS[dtype.name], dtype)


def _round_to_odd(a: Val) -> Val:
    """float64 to float32 such that a second rounding gives what one rounding would."""
    near = convert("fptrunc", a, FLOAT32)
    back = convert("fpext", near, FLOAT64)
    bits = bits_of(near, UINT32)
    beyond = overloaded("fabs", back) > overloaded("fabs", a)
    odd = (bits - convert("zext", beyond, UINT32)) | 1
    return bits_of(choose(instruction("fcmp one", back, a), odd, bits), FLOAT32)


def _round_bits(bits: Val, drop: int) -> Val:
    """The upper bits of a word, `drop` lower ones rounded off to nearest even."""
    odd = (bits >> drop) & 1
    return (bits + ((1 << drop - 1) - 1) + odd) >> drop


def to_tfloat32(a: Val) -> Val:
    bits = bits_of(a, UINT32)
    rounded = _round_bits(bits, 13) << 13
    finite = overloaded("fabs", a) < float("inf")
    found = bits_of(choose(finite, rounded, bits), FLOAT32)
    return replace(found, dtype=DTYPES["tfloat32"])


def _to_bfloat16(a: Val, dtype: DType) -> Val:
    bits = bits_of(a, UINT32)
    quiet = (bits | 1 << 22) >> 16
    word = choose(is_nan(a), quiet, _round_bits(bits, 16))
    return convert("trunc", word, dtype)


def is_nan(a: Val) -> Val:
    return instruction("fcmp uno", a, a)


def _decode(code: Val, form: Minifloat, dtype: DType) -> Val:
    magnitude = code & ((1 << form.sign) - 1)
    bits = (magnitude << 23 - form.mantissa) + ((127 - form.bias) << 23)
    # not by float32 numbers below the normals: some threads flush those to zero, as XLA's do
    tiny = convert("uitofp", magnitude, FLOAT32) * 2.0 ** (1 - form.bias - form.mantissa)
    bits = choose(magnitude < 1 << form.mantissa, bits_of(tiny, UINT32), bits)
    if form.nan is not None:
        nan: Operand = 0x7FC00000
        if dtype.name == "float8_e5m2":
            infinite = instruction("icmp eq", magnitude, 0x7C)
            nan = choose(infinite, constant(code.fn, 0x7F800000, UINT32), nan)
            special = magnitude >= 0x7C
        else:
            whole = magnitude if form.signed_zero else code
            special = instruction("icmp eq", whole, form.nan)
        bits = choose(special, nan, bits)
    sign = (code & 1 << form.sign) << 31 - form.sign
    return bits_of(bits | sign, FLOAT32)


def _encode(a: Val, form: Minifloat, dtype: DType) -> Val:
    """Round to nearest even, saturate, keep NaN where the type has one."""
    bits = bits_of(a, UINT32)
    size = overloaded("minnum", overloaded("fabs", a), dtype.max_value)
    normal = _round_bits(bits_of(size, UINT32), 23 - form.mantissa)
    normal = normal - ((127 - form.bias) << form.mantissa)
    # below the normals the quantum is fixed: adding a power of two whose last bit is that
    # quantum makes the adder round
    magic = 2.0 ** (23 + 1 - form.bias - form.mantissa)
    tiny = bits_of(size + magic, UINT32) - int(np.float32(magic).view(np.uint32))
    code = choose(size < 2.0 ** (1 - form.bias), tiny, normal)
    sign = (bits >> 31 - form.sign) & 1 << form.sign
    signed = code | sign
    if not form.signed_zero:
        signed = choose(instruction("icmp eq", code, 0), code, signed)
    # types without NaN make it negative zero, like ml_dtypes
    nan: Operand = 1 << form.sign if form.nan is None else form.nan
    if form.nan is not None and form.signed_zero:
        nan = sign | form.nan
    return convert("trunc", choose(is_nan(a), nan, signed), dtype)


def _decode_scale(code: Val) -> Val:
    """float8_e8m0fnu: a bare exponent."""
    bits = code << 23
    bits = choose(instruction("icmp eq", code, 0), 1 << 22, bits)
    bits = choose(instruction("icmp eq", code, 255), 0x7FC00000, bits)
    return bits_of(bits, FLOAT32)


def _encode_scale(a: Val, dtype: DType) -> Val:
    low = overloaded("maxnum", a, dtype.min_value)
    size = overloaded("minnum", low, dtype.max_value)
    code = _round_bits(bits_of(size, UINT32), 23)
    code = choose(size <= 2.0**-127, 0, code)
    return convert("trunc", choose(is_nan(a), 255, code), dtype)


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────


def binary(op: str, a: Val, b: Val) -> Val:
    """`a op b` of one type, by the language's rules."""
    a, b = even(a, b)
    dtype = a.dtype
    if dtype.is_float and dtype.bits < 32:
        # rounded here: machines that have the narrow type would fuse across it
        return narrow(_float_binary(op, widen(a), widen(b), contract=""), dtype)
    if dtype.is_float:
        return _float_binary(op, a, b)
    if dtype.is_bool:
        return instruction(_BOOL_OPS[op], a, b)
    return wrap(_int_binary(op, a, b))


def _float_binary(op: str, a: Val, b: Val, contract: str = " contract") -> Val:
    if op in _FLOAT_OPS:
        return instruction(_FLOAT_OPS[op] + contract, a, b)
    if op == "/":
        return instruction("fdiv", a, b)
    if op in ("min", "max"):
        return overloaded(f"{op}num", a, b)
    if op == "//":
        return overloaded("floor", instruction("fdiv", a, b))
    # C's remainder, moved to the divisor's sign
    rest = libm("fmod", a, b)
    off = compare("!=", rest, 0.0)
    differs = (rest < 0.0) ^ (b < 0.0)
    moved = choose(off & differs, rest + b, rest)
    return choose(off, moved, overloaded("copysign", 0.0, b))


def libm(name: str, *operands: Operand) -> Val:
    """A function of the C math library, called per lane: the machine has no instruction for it."""
    args = even(*operands)
    first = args[0]
    symbol = name if first.dtype.bits == 64 else f"{name}f"
    type_, module = element_type(first.dtype), first.fn.module
    module.declare(symbol, type_, *([type_] * len(args)))
    module.imports.add(symbol)
    parts = []
    for i in range(first.lanes):
        scalars = [(type_, extract(a, i).ref) for a in args]
        parts.append(Val(first.fn, first.fn.call(type_, symbol, *scalars), first.dtype))
    return gather(parts)


def _int_binary(op: str, a: Val, b: Val) -> Val:
    if op in _INT_OPS:
        return instruction(_INT_OPS[op], a, b)
    if op in ("<<", ">>"):
        return _shift_by(op, a, b)
    if op in ("min", "max"):
        return overloaded(f"{'s' if a.dtype.kind == 'int' else 'u'}{op}", a, b)
    return _divide(op, a, b)


def _shift_by(op: str, a: Val, b: Val) -> Val:
    """By a count of any size, read as unsigned: LLVM defines those below the width alone."""
    bits, count = max(8, a.dtype.bits), _constant_of(b)
    if count is not None and 0 <= count < bits:
        return a << b if op == "<<" else a >> b
    if op == ">>" and a.dtype.kind == "int":
        return a >> overloaded("umin", b, bits - 1)
    small = instruction("icmp ult", b, bits)
    return choose(small, a << b if op == "<<" else a >> b, 0)


def _divide(op: str, a: Val, b: Val) -> Val:
    number = _constant_of(b)
    if number is not None and number > 0 and number & (number - 1) == 0:
        return a & (number - 1) if op == "%" else a >> number.bit_length() - 1
    safe = b if number is not None else nontrapping(b)
    if a.dtype.kind != "int":
        return instruction("udiv" if op == "//" else "urem", a, safe)
    quotient = instruction("sdiv", a, safe)
    rest = a - quotient * safe
    off = instruction("icmp ne", rest, 0)
    move = off & ((rest ^ safe) < 0)
    if op == "%":
        return choose(move, rest + safe, rest)
    found = choose(move, quotient - 1, quotient)
    if number is None:
        minus = instruction("icmp eq", b, -1)
        found = choose(minus, 0 - a, found)
    return found


def nontrapping(b: Val) -> Val:
    """A divisor for a division that a lazy side would not have run."""
    bad = instruction("icmp eq", b, 0)
    if b.dtype.kind == "int":
        bad = bad | instruction("icmp eq", b, -1)
    return choose(bad, 1, b)


def _constant_of(a: Val) -> int | None:
    text = a.ref
    if text.startswith("<"):
        words = {part.split()[-1] for part in text[1:-1].split(",")}
        text = words.pop() if len(words) == 1 else "%"
    return None if text.startswith("%") else int(text)


def compare(op: str, a: Val, b: Operand) -> Val:
    a, b = even(widen(a), widen(b) if isinstance(b, Val) else b)
    if a.dtype.is_float:
        return instruction(f"fcmp {'u' if op == '!=' else 'o'}{_COMPARE[op]}", a, b)
    sign = "" if op in ("==", "!=") else "s" if a.dtype.kind == "int" else "u"
    return instruction(f"icmp {sign}{_COMPARE[op]}", a, b)


def negate(a: Val) -> Val:
    if a.dtype.is_float:
        wide = widen(a)
        return narrow(wide.next(f"fneg {wide}"), a.dtype)
    return wrap(0 - a)


def absolute(a: Val) -> Val:
    if a.dtype.is_float:
        return narrow(overloaded("fabs", widen(a)), a.dtype)
    return wrap(overloaded("smax", a, negate(a))) if a.dtype.kind == "int" else a
