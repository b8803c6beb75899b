"""Typed values in LLVM IR: constants, conversions, arithmetic, for one lane or many.

A value of a narrow float type is held as its bits (`half`, or i16 for bfloat16, i8 for fp8); an
operation decodes to float32, computes and rounds once, which is what the language says. Sub-byte
integers are held in i8, wrapped after every operation. Booleans are i1 in registers, i8 in
memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tilewright.ir.arith import round_constant
from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, INT32, INT64, DType
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.llvm_text import Function

FLOAT64 = DTYPES["float64"]
UINT32 = DTYPES["uint32"]


@dataclass(frozen=True)
class Val:
    """An SSA value of `lanes` elements (1: a scalar, the same for all lanes)."""

    ref: str
    dtype: DType
    lanes: int = 1


Operand = Val | float  # a number is a constant of the type that it meets


@dataclass(frozen=True)
class Minifloat:
    """How a float of at most 8 bits is laid out. `nan`: its code's magnitude, None without NaN."""

    exponent: int
    mantissa: int
    bias: int
    nan: int | None
    signed_zero: bool = True


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
    if dtype.is_float:
        return "i16" if dtype.bits == 16 else "i8"
    raise CompileError(f"the CPU target has no values of type {dtype}")


def vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def type_of(dtype: DType, lanes: int = 1) -> str:
    return vector(element_type(dtype), lanes)


def memory_type(dtype: DType) -> str:
    return "i8" if dtype.is_bool else element_type(dtype)


def item_bytes(dtype: DType) -> int:
    """Bytes of one element in memory; sub-byte types take a byte each."""
    return max(8, dtype.bits) // 8


def is_wide(dtype: DType) -> bool:
    """float32 and float64: arithmetic happens in the type itself."""
    return dtype.is_float and dtype.bits >= 32


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


class Numbers:
    """Arithmetic, appended to `fn`."""

    fn: Function

    # ── constants and lanes ──────────────────────────────────────────────────────────────────

    def constant(self, value: float | int | bool, dtype: DType, lanes: int = 1) -> Val:
        return self.splat(Val(literal(value, dtype), dtype), lanes)

    def splat(self, a: Val, lanes: int) -> Val:
        """`a` in every lane."""
        if a.lanes == lanes:
            return a
        if not a.ref.startswith("%"):
            text = ", ".join([f"{element_type(a.dtype)} {a.ref}"] * lanes)
            return Val(f"<{text}>", a.dtype, lanes)
        type_ = type_of(a.dtype, lanes)
        one = self.fn.value(f"insertelement {type_} poison, {element_type(a.dtype)} {a.ref}, i32 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        ref = self.fn.value(f"shufflevector {type_} {one}, {type_} poison, {zeros}")
        return Val(ref, a.dtype, lanes)

    def even(self, *operands: Operand) -> tuple[Val, ...]:
        """Operands of as many lanes each; numbers take the type of the first value."""
        dtype = next(x.dtype for x in operands if isinstance(x, Val))
        values = [x if isinstance(x, Val) else self.constant(x, dtype) for x in operands]
        lanes = max(v.lanes for v in values)
        return tuple(self.splat(v, lanes) for v in values)

    def lane(self, a: Val, index: int) -> Val:
        if a.lanes == 1:
            return a
        text = f"extractelement {type_of(a.dtype, a.lanes)} {a.ref}, i32 {index}"
        return Val(self.fn.value(text), a.dtype)

    def gather(self, parts: list[Val]) -> Val:
        """Scalars as the lanes of one vector."""
        lanes, dtype = len(parts), parts[0].dtype
        type_, ref = type_of(dtype, lanes), "poison"
        for i, part in enumerate(parts):
            ref = self.fn.value(
                f"insertelement {type_} {ref}, {element_type(dtype)} {part.ref}, i32 {i}"
            )
        return Val(ref, dtype, lanes)

    def bits_of(self, a: Val, dtype: DType) -> Val:
        """The same bits as another type of the same width."""
        source, target = type_of(a.dtype, a.lanes), type_of(dtype, a.lanes)
        if source == target:
            return Val(a.ref, dtype, a.lanes)
        return Val(self.fn.value(f"bitcast {source} {a.ref} to {target}"), dtype, a.lanes)

    # ── instructions ─────────────────────────────────────────────────────────────────────────

    def instruction(self, name: str, a: Operand, b: Operand) -> Val:
        """Comparisons give bools, others what they take."""
        a, b = self.even(a, b)
        ref = self.fn.value(f"{name} {type_of(a.dtype, a.lanes)} {a.ref}, {b.ref}")
        return Val(ref, BOOL if name[1:4] == "cmp" else a.dtype, a.lanes)

    def overloaded(self, name: str, *operands: Operand) -> Val:
        """An intrinsic whose operands and result share one type."""
        args = self.even(*operands)
        type_ = type_of(args[0].dtype, args[0].lanes)
        ref = self.fn.intrinsic(
            f"llvm.{name}.{mangle(type_)}", type_, *((type_, a.ref) for a in args)
        )
        return Val(ref, args[0].dtype, args[0].lanes)

    def convert(self, name: str, a: Val, dtype: DType) -> Val:
        text = f"{name} {type_of(a.dtype, a.lanes)} {a.ref} to {type_of(dtype, a.lanes)}"
        return Val(self.fn.value(text), dtype, a.lanes)

    def choose_lanes(self, cond: Val, a: Operand, b: Operand) -> Val:
        """`a` where `cond`, else `b`."""
        a, b = self.even(a, b)
        if cond.lanes > 1:
            a, b = self.splat(a, cond.lanes), self.splat(b, cond.lanes)
        type_ = type_of(a.dtype, a.lanes)
        text = f"select {type_of(BOOL, cond.lanes)} {cond.ref}, {type_} {a.ref}, {type_} {b.ref}"
        return Val(self.fn.value(text), a.dtype, a.lanes)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        return self.overloaded("fmuladd", a, b, c)

    # ── conversions ──────────────────────────────────────────────────────────────────────────

    def cast(self, a: Val, dtype: DType) -> Val:
        """The language's conversion, exactly."""
        source = a.dtype
        if source == dtype:
            return a
        if dtype.name == "tfloat32":
            return self._to_tfloat32(self.cast(a, FLOAT32))
        if dtype.is_bool:
            return self.nonzero(a)
        if source.is_bool:
            if dtype.is_int:
                return self.convert("zext", a, dtype)
            return self.narrow(self.convert("uitofp", a, self.compute_type(dtype)), dtype)
        if source.is_int and dtype.is_int:
            return self.resize(a, dtype)
        if source.is_int:
            # beyond 2^24 float32 would round before bfloat16 does, beyond 2^53 float64
            through = FLOAT64 if dtype.name == "bfloat16" and source.bits >= 32 else None
            if through is not None and source.bits == 64:
                a = self._sticky(a)
            through = through or self.compute_type(dtype)
            name = "sitofp" if source.kind == "int" else "uitofp"
            return self.narrow(self.convert(name, a, through), dtype)
        wide = self.widen(a)
        if dtype.is_int:
            return self.to_int(wide, dtype)
        return self.narrow(wide, dtype)

    def _sticky(self, a: Val) -> Val:
        """A 64-bit integer that float64 holds and bfloat16 rounds as it does `a`: of a large one
        the last twelve bits only count as whether there are any."""
        signed = a.dtype.kind == "int"
        top = self.instruction("ashr" if signed else "lshr", a, 40)
        sign = self.instruction("ashr", a, 63) if signed else 0
        small = self.instruction("icmp eq", top, sign)
        some = self.instruction("icmp ne", self.instruction("and", a, 0xFFF), 0)
        bit = self.instruction("shl", self.convert("zext", some, a.dtype), 11)
        kept = self.instruction("or", self.instruction("and", a, -0x1000 % (1 << 64)), bit)
        return self.choose_lanes(small, a, kept)

    def compute_type(self, dtype: DType) -> DType:
        """The type arithmetic on `dtype` happens in."""
        return FLOAT32 if dtype.is_float and dtype.bits < 32 else dtype

    def nonzero(self, a: Val) -> Val:
        if a.dtype.is_bool:
            return a
        wide = self.widen(a)
        name = "fcmp une" if wide.dtype.is_float else "icmp ne"
        return self.instruction(name, wide, 0)

    def resize(self, a: Val, dtype: DType) -> Val:
        have, want = max(8, a.dtype.bits), max(8, dtype.bits)
        if have > want:
            a = self.convert("trunc", a, dtype)
        elif have < want:
            a = self.convert("sext" if a.dtype.kind == "int" else "zext", a, dtype)
        return self.wrap(Val(a.ref, dtype, a.lanes))

    def wrap(self, a: Val) -> Val:
        """A sub-byte integer brought back into its range."""
        if not a.dtype.is_int or a.dtype.bits >= 8:
            return a
        shift = 8 - a.dtype.bits
        right = "ashr" if a.dtype.kind == "int" else "lshr"
        return self.instruction(right, self.instruction("shl", a, shift), shift)

    def to_int(self, a: Val, dtype: DType) -> Val:
        """Toward zero, saturating, NaN to 0."""
        kind = "fptosi" if dtype.kind == "int" else "fptoui"
        wide = DTYPES[f"{dtype.kind}{max(32, dtype.bits)}"]
        source, target = type_of(a.dtype, a.lanes), type_of(wide, a.lanes)
        name = f"llvm.{kind}.sat.{mangle(target)}.{mangle(source)}"
        found = Val(self.fn.intrinsic(name, target, (source, a.ref)), wide, a.lanes)
        if dtype.bits < 32:
            sign = "s" if dtype.kind == "int" else "u"
            found = self.overloaded(f"{sign}min", found, dtype.max_value)
            if sign == "s":
                found = self.overloaded("smax", found, dtype.min_value)
            found = self.convert("trunc", found, dtype)
        return found

    def widen(self, a: Val) -> Val:
        """Narrow floats as float32, everything else as it is."""
        if not a.dtype.is_float or a.dtype.bits >= 32:
            return a
        if a.dtype.name == "float16":
            return self.convert("fpext", a, FLOAT32)
        word = self.convert("zext", a, UINT32)
        if a.dtype.name == "bfloat16":
            return self.bits_of(self.instruction("shl", word, 16), FLOAT32)
        if a.dtype.name == "float8_e8m0fnu":
            return self._decode_scale(word)
        return self._decode(word, MINIFLOATS[a.dtype.name], a.dtype)

    def narrow(self, a: Val, dtype: DType) -> Val:
        """A float32 or float64 rounded to `dtype`."""
        if dtype == a.dtype:
            return a
        if is_wide(dtype):
            if dtype.bits == a.dtype.bits:
                return Val(a.ref, dtype, a.lanes)
            return self.convert("fptrunc" if dtype.bits < a.dtype.bits else "fpext", a, dtype)
        if a.dtype.bits == 64:
            a = self._round_to_odd(a)
        if dtype.name == "float16":
            return self.convert("fptrunc", a, dtype)
        if dtype.name == "bfloat16":
            return self._to_bfloat16(a, dtype)
        if dtype.name == "float8_e8m0fnu":
            return self._encode_scale(a, dtype)
        return self._encode(a, MINIFLOATS[dtype.name], dtype)

    def _round_to_odd(self, a: Val) -> Val:
        """float64 to float32 such that a second rounding gives what one rounding would."""
        near = self.convert("fptrunc", a, FLOAT32)
        back = self.convert("fpext", near, FLOAT64)
        bits = self.bits_of(near, UINT32)
        beyond = self.instruction(
            "fcmp ogt", self.overloaded("fabs", back), self.overloaded("fabs", a)
        )
        down = self.instruction("sub", bits, self.convert("zext", beyond, UINT32))
        odd = self.instruction("or", down, 1)
        inexact = self.instruction("fcmp one", back, a)
        return self.bits_of(self.choose_lanes(inexact, odd, bits), FLOAT32)

    def _round_bits(self, bits: Val, drop: int) -> Val:
        """The upper bits of a word, `drop` lower ones rounded off to nearest even."""
        odd = self.instruction("and", self.instruction("lshr", bits, drop), 1)
        half = (1 << (drop - 1)) - 1
        total = self.instruction("add", self.instruction("add", bits, half), odd)
        return self.instruction("lshr", total, drop)

    def _to_tfloat32(self, a: Val) -> Val:
        bits = self.bits_of(a, UINT32)
        rounded = self.instruction("shl", self._round_bits(bits, 13), 13)
        size = self.overloaded("fabs", a)
        finite = self.instruction("fcmp olt", size, float("inf"))
        found = self.bits_of(self.choose_lanes(finite, rounded, bits), FLOAT32)
        return Val(found.ref, DTYPES["tfloat32"], a.lanes)

    def _to_bfloat16(self, a: Val, dtype: DType) -> Val:
        bits = self.bits_of(a, UINT32)
        quiet = self.instruction("lshr", self.instruction("or", bits, 1 << 22), 16)
        nan = self.instruction("fcmp uno", a, a)
        word = self.choose_lanes(nan, quiet, self._round_bits(bits, 16))
        return self.convert("trunc", word, dtype)

    def _decode(self, code: Val, form: Minifloat, dtype: DType) -> Val:
        magnitude = self.instruction("and", code, (1 << (form.exponent + form.mantissa)) - 1)
        small = self.bits_of(self.instruction("shl", magnitude, 23 - form.mantissa), FLOAT32)
        scaled = self.instruction("fmul", small, 2.0 ** (127 - form.bias))
        bits = self.bits_of(scaled, UINT32)
        if form.nan is not None:
            nan: Operand = 0x7FC00000
            if dtype.name == "float8_e5m2":
                infinite = self.instruction("icmp eq", magnitude, 0x7C)
                nan = self.choose_lanes(infinite, self.constant(0x7F800000, UINT32), nan)
                special = self.instruction("icmp uge", magnitude, 0x7C)
            else:
                whole = magnitude if form.signed_zero else code
                special = self.instruction("icmp eq", whole, form.nan)
            bits = self.choose_lanes(special, nan, bits)
        sign_bit = form.exponent + form.mantissa
        sign = self.instruction("shl", self.instruction("and", code, 1 << sign_bit), 31 - sign_bit)
        return self.bits_of(self.instruction("or", bits, sign), FLOAT32)

    def _encode(self, a: Val, form: Minifloat, dtype: DType) -> Val:
        """Round to nearest even, saturate, keep NaN where the type has one."""
        bits = self.bits_of(a, UINT32)
        size = self.overloaded("minnum", self.overloaded("fabs", a), dtype.max_value)
        normal = self._round_bits(self.bits_of(size, UINT32), 23 - form.mantissa)
        rebias = (127 - form.bias) << form.mantissa
        normal = self.instruction("sub", normal, rebias)
        # below the normals the quantum is fixed: adding a power of two whose last bit is that
        # quantum makes the adder round
        magic = 2.0 ** (23 + 1 - form.bias - form.mantissa)
        shifted = self.instruction("fadd", size, magic)
        base = int(np.float32(magic).view(np.uint32))
        tiny = self.instruction("sub", self.bits_of(shifted, UINT32), base)
        is_tiny = self.instruction("fcmp olt", size, 2.0 ** (1 - form.bias))
        code = self.choose_lanes(is_tiny, tiny, normal)
        sign_bit = form.exponent + form.mantissa
        sign = self.instruction("and", self.instruction("lshr", bits, 31 - sign_bit), 1 << sign_bit)
        signed = self.instruction("or", code, sign)
        if not form.signed_zero:
            zero = self.instruction("icmp eq", code, 0)
            signed = self.choose_lanes(zero, code, signed)
        # types without NaN make it negative zero, like ml_dtypes
        nan: Operand = 1 << sign_bit if form.nan is None else form.nan
        if form.nan is not None and form.signed_zero:
            nan = self.instruction("or", sign, form.nan)
        signed = self.choose_lanes(self.instruction("fcmp uno", a, a), nan, signed)
        return self.convert("trunc", signed, dtype)

    def _decode_scale(self, code: Val) -> Val:
        """float8_e8m0fnu: a bare exponent."""
        bits = self.instruction("shl", code, 23)
        zero = self.instruction("icmp eq", code, 0)
        bits = self.choose_lanes(zero, 1 << 22, bits)
        nan = self.instruction("icmp eq", code, 255)
        bits = self.choose_lanes(nan, 0x7FC00000, bits)
        return self.bits_of(bits, FLOAT32)

    def _encode_scale(self, a: Val, dtype: DType) -> Val:
        low = self.overloaded("maxnum", a, dtype.min_value)
        size = self.overloaded("minnum", low, dtype.max_value)
        bits = self.bits_of(size, UINT32)
        code = self._round_bits(bits, 23)
        floor = self.instruction("fcmp ole", size, 2.0**-127)
        code = self.choose_lanes(floor, 0, code)
        code = self.choose_lanes(self.instruction("fcmp uno", a, a), 255, code)
        return self.convert("trunc", code, dtype)

    # ── arithmetic ───────────────────────────────────────────────────────────────────────────

    def binary(self, op: str, a: Val, b: Val) -> Val:
        """`a op b` of one type, by the language's rules."""
        a, b = self.even(a, b)
        dtype = a.dtype
        if dtype.is_float and dtype.bits < 32:
            # rounded here: machines that have the narrow type would fuse across it
            wide = self._float_binary(op, self.widen(a), self.widen(b), contract="")
            return self.narrow(wide, dtype)
        if dtype.is_float:
            return self._float_binary(op, a, b)
        if dtype.is_bool:
            return self.instruction(_BOOL_OPS[op], a, b)
        return self.wrap(self._int_binary(op, a, b))

    def _float_binary(self, op: str, a: Val, b: Val, contract: str = " contract") -> Val:
        plain = {"+": "fadd", "-": "fsub", "*": "fmul"}
        if op in plain:
            return self.instruction(plain[op] + contract, a, b)
        if op == "/":
            return self.instruction("fdiv", a, b)
        if op in ("min", "max"):
            return self.overloaded(f"{op}num", a, b)
        if op == "//":
            return self.overloaded("floor", self.instruction("fdiv", a, b))
        # C's remainder, moved to the divisor's sign
        rest = self.remainder(a, b)
        off = self.instruction("fcmp une", rest, 0.0)
        negative = self.instruction("fcmp olt", rest, 0.0)
        differs = self.instruction("xor", negative, self.instruction("fcmp olt", b, 0.0))
        move = self.instruction("and", off, differs)
        moved = self.choose_lanes(move, self.instruction("fadd", rest, b), rest)
        return self.choose_lanes(off, moved, self.overloaded("copysign", 0.0, b))

    def remainder(self, a: Val, b: Val) -> Val:
        """C's fmod, lane by lane: the machine has no instruction for it."""
        return self.libm("fmod", a, b)

    def libm(self, name: str, *operands: Operand) -> Val:
        """A function of the C math library, called per lane."""
        args = self.even(*operands)
        dtype = args[0].dtype
        symbol = name if dtype.bits == 64 else f"{name}f"
        type_ = element_type(dtype)
        self.fn.module.declare(symbol, type_, *([type_] * len(args)))
        self.fn.module.imports.add(symbol)
        parts = []
        for i in range(args[0].lanes):
            scalars = [(type_, self.lane(a, i).ref) for a in args]
            parts.append(Val(self.fn.call(type_, symbol, *scalars), dtype))
        return parts[0] if len(parts) == 1 else self.gather(parts)

    def _int_binary(self, op: str, a: Val, b: Val) -> Val:
        signed = a.dtype.kind == "int"
        plain = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
        if op in plain:
            return self.instruction(plain[op], a, b)
        if op in ("<<", ">>"):
            return self._shift_by(op, a, b, signed)
        if op in ("min", "max"):
            return self.overloaded(f"{'s' if signed else 'u'}{op}", a, b)
        return self._divide(op, a, b, signed)

    def _shift_by(self, op: str, a: Val, b: Val, signed: bool) -> Val:
        """By a count of any size, read as unsigned: LLVM defines those below the width alone."""
        bits, count = max(8, a.dtype.bits), self._constant_of(b)
        name = "shl" if op == "<<" else "ashr" if signed else "lshr"
        if count is not None and 0 <= count < bits:
            return self.instruction(name, a, b)
        if name == "ashr":
            return self.instruction(name, a, self.overloaded("umin", b, bits - 1))
        small = self.instruction("icmp ult", b, bits)
        return self.choose_lanes(small, self.instruction(name, a, b), 0)

    def _divide(self, op: str, a: Val, b: Val, signed: bool) -> Val:
        constant = self._constant_of(b)
        if constant is not None and constant > 0 and constant & (constant - 1) == 0:
            if op == "%":
                return self.instruction("and", a, constant - 1)
            return self.instruction("ashr" if signed else "lshr", a, constant.bit_length() - 1)
        safe = b if constant is not None else self.nontrapping(b)
        if not signed:
            return self.instruction("udiv" if op == "//" else "urem", a, safe)
        quotient = self.instruction("sdiv", a, safe)
        rest = self.instruction("sub", a, self.instruction("mul", quotient, safe))
        off = self.instruction("icmp ne", rest, 0)
        differs = self.instruction("icmp slt", self.instruction("xor", rest, safe), 0)
        move = self.instruction("and", off, differs)
        if op == "%":
            return self.choose_lanes(move, self.instruction("add", rest, safe), rest)
        lower = self.instruction("sub", quotient, 1)
        found = self.choose_lanes(move, lower, quotient)
        if constant is None:
            minus = self.instruction("icmp eq", b, -1)
            found = self.choose_lanes(minus, self.instruction("sub", 0, a), found)
        return found

    def nontrapping(self, b: Val) -> Val:
        """A divisor for a division that a lazy side would not have run."""
        bad = self.instruction("icmp eq", b, 0)
        if b.dtype.kind == "int":
            bad = self.instruction("or", bad, self.instruction("icmp eq", b, -1))
        return self.choose_lanes(bad, 1, b)

    @staticmethod
    def _constant_of(a: Val) -> int | None:
        text = a.ref
        if text.startswith("<"):
            first = text[1:-1].split(",")[0].split()[-1]
            same = all(part.split()[-1] == first for part in text[1:-1].split(","))
            text = first if same else "%"
        return None if text.startswith("%") else int(text)

    def compare(self, op: str, a: Val, b: Val) -> Val:
        a, b = self.even(self.widen(a), self.widen(b))
        if a.dtype.is_float:
            return self.instruction(f"fcmp {'u' if op == '!=' else 'o'}{_COMPARE[op]}", a, b)
        sign = "" if op in ("==", "!=") else "s" if a.dtype.kind == "int" else "u"
        return self.instruction(f"icmp {sign}{_COMPARE[op]}", a, b)

    def negate(self, a: Val) -> Val:
        if a.dtype.is_float:
            wide = self.widen(a)
            type_ = type_of(wide.dtype, wide.lanes)
            ref = self.fn.value(f"fneg {type_} {wide.ref}")
            return self.narrow(Val(ref, wide.dtype, wide.lanes), a.dtype)
        return self.wrap(self.instruction("sub", 0, a))

    def absolute(self, a: Val) -> Val:
        if a.dtype.is_float:
            return self.narrow(self.overloaded("fabs", self.widen(a)), a.dtype)
        if a.dtype.kind == "uint" or a.dtype.is_bool:
            return a
        return self.wrap(self.overloaded("smax", a, self.negate(a)))

    def keep_nan(self, op: str, a: Val, b: Val) -> Val:
        """Reduction's min and max: a NaN on either side is the result."""
        if a.dtype.is_float:
            wide = self.overloaded(f"{op}imum", self.widen(a), self.widen(b))
            return self.narrow(wide, a.dtype)
        return self.binary(op, a, b)


__all__ = ["FLOAT64", "INT32", "INT64", "MINIFLOATS", "Numbers", "Val", "UINT32"]
