"""Elementary functions on vectors.

float32 functions are polynomials, fitted (weighted minimax) on the reduced range and right to
2 ulp; they are branchless, so one text serves scalars and vectors and gives both the same bits.
The fast forms of exponentials are right to 4 ulp, give zero below 2^-126 and infinity above
2^127.5, for fewer instructions. float64 calls the C library lane by lane. Narrower floats compute
in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, log2, log10

from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, INT32, DType
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.llvm_text import Function
from tilewright.targets.cpu.numbers import FLOAT64, Numbers, Operand, Val, mangle, type_of

# 1.5·2^23: adding it rounds a small float to an integer, which then sits in the low bits
_MAGIC = 12582912.0

_EXP = (0.0013950601, 0.00836895406, 0.041666206, 0.166665182, 0.5)
_FAST_EXP = (0.008312501, 0.04189033, 0.16667116, 0.4999923)  # right to 1.05e-7
_LOG = (0.0691521913, -0.11789754, 0.11873015, -0.123843603, 0.142186552, -0.166692495,
        0.200022265, -0.249999866, 0.333333105)  # fmt: skip
_TANH = (0.00214753486, -0.00818267185, 0.0217029657, -0.0539472029, 0.133332103, -0.333333313)
_ERF = (-9.68013865e-06, 0.000112705457, -0.000848471187, 0.00522107491, -0.0268654451,
        0.112837829, -0.376126379, 0.128379166)  # fmt: skip
_ERFC = (2.32076241e-06, -3.69670524e-05, 0.00023444723, -0.000572092715, -0.00168029219,
         0.021101743, -0.104053132, -0.63614583, -1.12845576)  # fmt: skip
_SIN = (2.71823706e-06, -0.000198393274, 0.00833332911, -0.166666672)
_COS = (2.44377279e-05, -0.00138873619, 0.0416666456)

# of the power of two, by whether a function is fast: in one step, or once for each of two
_BIAS = {True: 127, False: 254}
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_LOG10_2_HIGH, _LOG10_2_LOW = 0.30102539063, 4.6050389811952137e-06
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11


class Math(Numbers):
    """`Numbers` with the functions of `ir.intrinsics.FUNCTIONS`."""

    def polynomial(self, x: Val, coefficients: tuple[float, ...]) -> Val:
        """Highest power first. Pairs of terms, joined by powers of x²: half the steps wait for each
        other, and half the constants must be moved to where a multiply-add wants its sum."""
        low = coefficients[::-1]
        pairs = [self.fma(b, x, a) for a, b in zip(low[::2], low[1::2], strict=False)]
        if len(low) % 2:
            pairs.append(self.constant(low[-1], FLOAT32, x.lanes))
        square = self.mul(x, x)
        total = pairs[-1]
        for pair in reversed(pairs[:-1]):
            total = self.fma(total, square, pair)
        return total

    def mul(self, a: Operand, b: Operand) -> Val:
        return self.instruction("fmul", a, b)

    def add(self, a: Operand, b: Operand) -> Val:
        return self.instruction("fadd", a, b)

    def sub(self, a: Operand, b: Operand) -> Val:
        return self.instruction("fsub", a, b)

    def clamp_ordered(self, x: Val, low: float, high: float) -> Val:
        """Into [low, high], NaN kept."""
        if host().keeps_nan:
            x = self.overloaded("minimum", x, high)
            return self.overloaded("maximum", x, low)
        above = self.instruction("fcmp ogt", x, high)
        x = self.choose_lanes(above, high, x)
        below = self.instruction("fcmp olt", x, low)
        return self.choose_lanes(below, low, x)

    def _nearest(self, x: Val, factor: float, bias: int) -> tuple[Val, Val]:
        """n = rint(x · factor) as a float, and a word whose lowest nine bits are n + bias."""
        magic = _MAGIC + bias
        shifted = self.fma(x, factor, magic)
        return self.sub(shifted, magic), self.bits_of(shifted, INT32)

    def _power(self, biased: Val) -> Val:
        """2^n, from n + 127 in the lowest bits."""
        return self.bits_of(self.instruction("shl", biased, 23), FLOAT32)

    def _exp_reduced(self, r: Val, word: Val, fast: bool) -> Val:
        """e^r · 2^n. In two steps the result may be subnormal; in one, as `fast` has it, n from
        -126 to 127 are right and those beyond give 0 and infinity."""
        y = self.fma(self.polynomial(r, _FAST_EXP if fast else _EXP), self.mul(r, r), r)
        if fast:
            # not y · 2^n + 2^n, which is NaN where the power is infinite
            return self.mul(self.add(y, 1.0), self._power(word))
        half = self.instruction("ashr", word, 1)
        power = self._power(half)
        y = self.fma(y, power, power)
        return self.mul(y, self._power(self.instruction("sub", word, half)))

    def exp(self, x: Val, fast: bool = False) -> Val:
        x = self.clamp_ordered(x, *((-88.0, 89.0) if fast else (-104.0, 89.0)))
        n, word = self._nearest(x, 1 / log(2), _BIAS[fast])
        r = self.fma(n, -_LN2_HIGH, x)
        return self._exp_reduced(self.fma(n, -_LN2_LOW, r), word, fast)

    def exp2(self, x: Val, fast: bool = False) -> Val:
        x = self.clamp_ordered(x, *((-127.0, 128.0) if fast else (-150.0, 129.0)))
        n, word = self._nearest(x, 1.0, _BIAS[fast])
        return self._exp_reduced(self.mul(self.sub(x, n), log(2)), word, fast)

    def exp10(self, x: Val) -> Val:
        x = self.clamp_ordered(x, -46.0, 39.0)
        n, word = self._nearest(x, log2(10), _BIAS[False])
        r = self.fma(n, -_LOG10_2_HIGH, x)
        r = self.fma(n, -_LOG10_2_LOW, r)
        return self._exp_reduced(self.mul(r, log(10)), word, False)

    def _log_parts(self, x: Val) -> tuple[Val, Val, Val, Callable[[Val], Val]]:
        """(exponent, log of the mantissa in two parts, what to do for special operands)."""
        tiny = self.instruction("fcmp olt", x, 2.0**-126)
        scaled = self.choose_lanes(tiny, self.mul(x, 2.0**24), x)
        bits = self.bits_of(scaled, INT32)
        # mantissa into [√½, √2): the exponent changes where the bits of √½ are passed
        moved = self.instruction("sub", bits, 0x3F3504F3)
        exponent = self.instruction("ashr", moved, 23)
        mantissa = self.instruction("sub", bits, self.instruction("shl", exponent, 23))
        lift = self.choose_lanes(tiny, self.constant(-24.0, FLOAT32), 0.0)
        e = self.add(self.convert("sitofp", exponent, FLOAT32), lift)
        f = self.sub(self.bits_of(mantissa, FLOAT32), 1.0)
        square = self.mul(f, f)
        tail = self.fma(square, -0.5, self.mul(self.mul(self.polynomial(f, _LOG), f), square))

        def special(result: Val) -> Val:
            big = self.instruction("fcmp uge", x, float("inf"))
            result = self.choose_lanes(big, x, result)
            negative = self.instruction("fcmp olt", x, 0.0)
            result = self.choose_lanes(negative, float("nan"), result)
            zero = self.instruction("fcmp oeq", x, 0.0)
            return self.choose_lanes(zero, float("-inf"), result)

        return e, f, tail, special

    def log(self, x: Val) -> Val:
        e, f, tail, special = self._log_parts(x)
        low = self.fma(e, _LN2_LOW, tail)
        return special(self.fma(e, _LN2_HIGH, self.add(f, low)))

    def log2(self, x: Val) -> Val:
        e, f, tail, special = self._log_parts(x)
        # log2(e) = 1.4375 + rest, so that the large part of the product is exact enough
        rest = 1 / log(2) - 1.4375
        low = self.fma(tail, rest, self.mul(f, rest))
        low = self.fma(tail, 1.4375, low)
        return special(self.add(self.fma(f, 1.4375, low), e))

    def log10(self, x: Val) -> Val:
        e, f, tail, special = self._log_parts(x)
        m = self.mul(self.add(f, tail), 1 / log(10))
        low = self.fma(e, log10(2) - _LOG10_2_HIGH, m)
        return special(self.fma(e, _LOG10_2_HIGH, low))

    def sigmoid(self, x: Val, fast: bool = False) -> Val:
        if fast:
            grown = self.exp(self.negate(x), fast)
            return self.instruction("fdiv", 1.0, self.add(1.0, grown))
        # of the side where the exponential is small, so that nothing is lost on either
        small = self.exp(self.negate(self.overloaded("fabs", x)))
        negative = self.instruction("fcmp olt", x, 0.0)
        below = self.add(1.0, small)
        lost = self.sub(small, self.sub(below, 1.0))
        value = self.instruction("fdiv", self.choose_lanes(negative, small, 1.0), below)
        return self.fma(self.negate(value), lost, value)

    def tanh(self, x: Val) -> Val:
        size = self.overloaded("fabs", x)
        z = self.mul(x, x)
        near = self.fma(self.mul(self.polynomial(z, _TANH), z), x, x)
        grown = self.exp(self.add(size, size))
        far = self.sub(1.0, self.instruction("fdiv", 2.0, self.add(grown, 1.0)))
        small = self.instruction("fcmp olt", size, 0.625)
        # the sign of -0.0, which the polynomial loses, too
        return self.overloaded("copysign", self.choose_lanes(small, near, far), x)

    def erf(self, x: Val) -> Val:
        size = self.overloaded("fabs", x)
        near = self.fma(self.polynomial(self.mul(x, x), _ERF), x, x)
        capped = self.clamp_ordered(size, 0.0, 4.0)
        far = self.sub(1.0, self.exp(self.mul(self.polynomial(capped, _ERFC), capped)))
        small = self.instruction("fcmp olt", size, 1.0)
        return self.choose_lanes(small, near, self.overloaded("copysign", far, x))

    def sin(self, x: Val) -> Val:
        zero = self.instruction("fcmp oeq", x, 0.0)
        return self.choose_lanes(zero, x, self._circular(x, 0))  # -0.0 keeps its sign

    def cos(self, x: Val) -> Val:
        return self._circular(x, 1)

    def _circular(self, x: Val, quadrant: int) -> Val:
        """Reduction by π/2 in float64: right to float32 up to 2^30; the caller sees to the rest."""
        wide = self.convert("fpext", x, FLOAT64)
        scaled = self.instruction("fmul", wide, 0.6366197723675814)
        n = self.overloaded("rint", scaled)
        r = self.fma(n, -_HALF_PI_HIGH, wide)
        r = self.fma(n, -_HALF_PI_LOW, r)
        y = self.convert("fptrunc", r, FLOAT32)
        turn = self.to_int(self.convert("fptrunc", self._mod4(n), FLOAT32), INT32)
        turn = self.instruction("add", turn, quadrant)
        z = self.mul(y, y)
        sine = self.fma(self.mul(self.polynomial(z, _SIN), z), y, y)
        half = self.fma(z, -0.5, 1.0)
        cosine = self.fma(self.mul(self.polynomial(z, _COS), z), z, half)
        odd = self.nonzero(self.instruction("and", turn, 1))
        value = self.choose_lanes(odd, cosine, sine)
        sign = self.instruction("shl", self.instruction("and", turn, 2), 30)
        bits = self.instruction("xor", self.bits_of(value, INT32), sign)
        return self.bits_of(bits, FLOAT32)

    def _mod4(self, n: Val) -> Val:
        quarter = self.instruction("fmul", n, 0.25)
        return self.fma(self.overloaded("floor", quarter), -4.0, n)

    # ── calls ────────────────────────────────────────────────────────────────────────────────

    def function(self, name: str, args: list[Val], dtype: DType) -> Val:
        """`name(args)` for a name of `FUNCTIONS`, of type `dtype`."""
        fast, name = name in _FAST, name.removeprefix("__")
        first = args[0]
        if name in _DIRECT:
            return _DIRECT[name](self, args, dtype)
        if not first.dtype.is_float:
            return self._integer_function(name, args)
        wide = [self.widen(a) for a in self.even(*args)]
        if name in _INSTRUCTIONS:
            result = self.overloaded(_INSTRUCTIONS[name], *wide)
        elif name == "rsqrt":
            result = self.instruction("fdiv", 1.0, self.overloaded("sqrt", wide[0]))
        elif name in _POLYNOMIAL and wide[0].dtype.bits == 32:
            result = self._shared(name, wide[0], fast)
        elif name == "sigmoid":
            x = wide[0]
            small = self.libm("exp", self.negate(self.overloaded("fabs", x)))
            negative = self.instruction("fcmp olt", x, 0.0)
            upper = self.choose_lanes(negative, small, 1.0)
            result = self.instruction("fdiv", upper, self.add(1.0, small))
        elif name == "exp10":
            result = self.libm("pow", 10.0, wide[0])
        elif name in _LIBM:
            result = self.libm(name, *wide)
        else:
            raise CompileError(f"the CPU target has no function {name!r}")
        return self.narrow(result, dtype)

    def _shared(self, name: str, x: Val, fast: bool) -> Val:
        """Call the module's own copy of a polynomial function for this number of lanes."""
        symbol = f"tilewright.{'fast.' if fast else ''}{name}.v{x.lanes}"
        type_ = type_of(FLOAT32, x.lanes)
        module = self.fn.module
        if symbol not in module.functions:
            module.functions[symbol] = ""
            circular = name in ("sin", "cos")
            fn = Function(
                module,
                f"internal {type_} @{symbol}({type_} %x)",
                "nounwind" if circular else "alwaysinline nounwind",
            )
            inner = Math()
            inner.fn = fn
            argument = Val("%x", FLOAT32, x.lanes)
            result = getattr(inner, name)(argument, **{"fast": True} if fast else {})
            if circular:
                result = inner._far_lanes(name, argument, result)
            fn.ret(f"{type_} {result.ref}")
            fn.finish()
        return Val(self.fn.call(type_, symbol, (type_, x.ref)), FLOAT32, x.lanes)

    def _far_lanes(self, name: str, x: Val, near: Val) -> Val:
        """Where an angle is beyond 2^30 the C library reduces it."""
        size = self.overloaded("fabs", x)
        far = self.instruction("fcmp oge", size, 2.0**30)
        slot = self.fn.alloca(type_of(FLOAT32, x.lanes))
        type_ = type_of(FLOAT32, x.lanes)
        self.fn.line(f"store {type_} {near.ref}, ptr {slot}")
        any_far = far.ref
        if x.lanes > 1:
            mask = type_of(BOOL, x.lanes)
            any_far = self.fn.intrinsic(
                f"llvm.vector.reduce.or.v{x.lanes}i1", "i1", (mask, far.ref)
            )
        with self.fn.when(any_far, "far"):
            exact = self.choose_lanes(far, self.libm(name, x), near)
            self.fn.line(f"store {type_} {exact.ref}, ptr {slot}")
        return Val(self.fn.value(f"load {type_}, ptr {slot}"), FLOAT32, x.lanes)

    def _integer_function(self, name: str, args: list[Val]) -> Val:
        a = args[0]
        if name in ("floor", "ceil", "round", "trunc"):
            return a
        if name == "fmod":
            name = "srem" if a.dtype.kind == "int" else "urem"
            a, b = self.even(*args)
            return self.instruction(name, a, self.nontrapping(b))
        if name == "pow":
            return self._integer_power(*self.even(*args))
        raise CompileError(f"{name} needs a float, got {a.dtype}", fix="cast the operand first")

    def _integer_power(self, a: Val, b: Val) -> Val:
        """By squaring, over every bit an exponent that does not overflow can have."""
        result = self.constant(1, a.dtype, a.lanes)
        for _ in range(a.dtype.bits.bit_length()):
            odd = self.instruction("icmp ne", self.instruction("and", b, 1), 0)
            result = self.choose_lanes(odd, self.instruction("mul", result, a), result)
            a = self.instruction("mul", a, a)
            b = self.instruction("lshr", b, 1)
        return self.wrap(result)


def _size_test(test: str) -> Callable[[Math, list[Val], DType], Val]:
    """A function that compares an operand's size with infinity."""
    return lambda m, args, _: m.instruction(
        test, m.overloaded("fabs", m.widen(args[0])), float("inf")
    )


def _isnan(m: Math, args: list[Val], dtype: DType) -> Val:
    wide = m.widen(args[0])
    return m.instruction("fcmp uno", wide, wide)


def _not(m: Math, args: list[Val], dtype: DType) -> Val:
    return m.instruction("xor", args[0], True)


def _invert(m: Math, args: list[Val], dtype: DType) -> Val:
    return m.wrap(m.instruction("xor", args[0], -1))


def _unsigned(m: Math, a: Val) -> Val:
    """A sub-byte integer without the copies of its sign."""
    return m.instruction("and", a, (1 << a.dtype.bits) - 1) if a.dtype.bits < 8 else a


def _popcount(m: Math, args: list[Val], dtype: DType) -> Val:
    return m.resize(m.overloaded("ctpop", _unsigned(m, args[0])), dtype)


def _clz(m: Math, args: list[Val], dtype: DType) -> Val:
    a = _unsigned(m, args[0])
    type_ = type_of(a.dtype, a.lanes)
    ref = m.fn.intrinsic(f"llvm.ctlz.{mangle(type_)}", type_, (type_, a.ref), ("i1", "false"))
    found = Val(ref, a.dtype, a.lanes)
    if a.dtype.bits < 8:
        found = m.instruction("sub", found, 8 - a.dtype.bits)
    return m.resize(found, dtype)


def _reinterpret(m: Math, args: list[Val], dtype: DType) -> Val:
    a = args[0]
    if a.dtype.is_bool:
        a = m.convert("zext", a, DTYPES["uint8"])
    if dtype.is_bool:
        return m.nonzero(Val(a.ref, DTYPES["uint8"], a.lanes))
    return m.bits_of(a, dtype)


def _dp4a(m: Math, args: list[Val], dtype: DType) -> Val:
    a, b, c = m.even(*args)
    total = m.resize(c, dtype)
    for byte in range(4):
        parts = []
        for x in (a, b):
            down = "ashr" if x.dtype.kind == "int" else "lshr"
            parts.append(m.instruction(down, m.instruction("shl", x, 24 - 8 * byte), 24))
        p, q = (m.resize(part, dtype) for part in parts)
        total = m.instruction("add", total, m.instruction("mul", p, q))
    return total


def _fma(m: Math, args: list[Val], dtype: DType) -> Val:
    if not args[0].dtype.is_float:
        return m.binary("+", m.binary("*", args[0], args[1]), args[2])
    return m.narrow(m.overloaded("fma", *(m.widen(a) for a in m.even(*args))), dtype)


_DIRECT: dict[str, Callable[[Math, list[Val], DType], Val]] = {
    "neg": lambda m, args, dtype: m.negate(m.cast(args[0], dtype)),
    "abs": lambda m, args, dtype: m.absolute(args[0]),
    "not": _not,
    "invert": _invert,
    "popcount": _popcount,
    "clz": _clz,
    "isnan": _isnan,
    "isinf": _size_test("fcmp oeq"),
    "isfinite": _size_test("fcmp olt"),
    "reinterpret": _reinterpret,
    "dp4a": _dp4a,
    "fma": _fma,
}
_INSTRUCTIONS = {name: name for name in ("sqrt", "floor", "ceil", "trunc", "copysign")}
_INSTRUCTIONS["round"] = "roundeven"
# methods of `Math`, and those that have a fast form
_POLYNOMIAL = frozenset("exp exp2 exp10 log log2 log10 sigmoid tanh erf sin cos".split())
_FAST = ("__exp", "__exp2", "__sigmoid")
_LIBM = frozenset(
    "exp exp2 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh erf pow fmod "
    "atan2".split()
)
