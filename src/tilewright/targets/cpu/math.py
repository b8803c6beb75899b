"""Elementary functions on vectors.

float32 functions are polynomials, fitted (weighted minimax) on the reduced range and right to
2 ulp; they are branchless, so one text serves scalars and vectors and gives both the same bits.
The fast forms of exponentials are right to 4 ulp, give zero below 2^-126 and infinity above
2^127.5, for fewer instructions. float64 calls the C library lane by lane. Narrower floats compute
in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log, log2, log10

from tilewright.ir.dtype import DTYPES, FLOAT32, INT32, DType
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.llvm_text import Function
from tilewright.targets.cpu.numbers import *

UINT8 = DTYPES["uint8"]

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


def polynomial(x: Val, coefficients: tuple[float, ...]) -> Val:
    """Highest power first. Pairs of terms, joined by powers of x²: half the steps wait for each
    other, and half the constants must be moved to where a multiply-add wants its sum."""
    low = coefficients[::-1]
    pairs: list[Operand] = [fma(b, x, a) for a, b in zip(low[::2], low[1::2], strict=False)]
    pairs += low[-1:] * (len(low) % 2)
    square = x * x
    total = pairs[-1]
    for pair in reversed(pairs[:-1]):
        total = fma(total, square, pair)
    assert isinstance(total, Val)
    return total


def clamp_ordered(x: Val, low: float, high: float) -> Val:
    """Into [low, high], NaN kept."""
    if host().keeps_nan:
        return overloaded("maximum", overloaded("minimum", x, high), low)
    x = choose(x > high, high, x)
    return choose(x < low, low, x)


def _nearest(x: Val, factor: float, bias: int) -> tuple[Val, Val]:
    """n = rint(x · factor) as a float, and a word whose lowest nine bits are n + bias."""
    magic = _MAGIC + bias
    shifted = fma(x, factor, magic)
    return shifted - magic, bits_of(shifted, INT32)


def _power(biased: Val) -> Val:
    """2^n, from n + 127 in the lowest bits."""
    return bits_of(biased << 23, FLOAT32)


def _exp_reduced(r: Val, word: Val, fast: bool) -> Val:
    """e^r · 2^n. In two steps the result may be subnormal; in one, as `fast` has it, n from
    -126 to 127 are right and those beyond give 0 and infinity."""
    y = fma(polynomial(r, _FAST_EXP if fast else _EXP), r * r, r)
    if fast:
        # not y · 2^n + 2^n, which is NaN where the power is infinite
        return (y + 1.0) * _power(word)
    half = word >> 1
    power = _power(half)
    return fma(y, power, power) * _power(word - half)


def exp(x: Val, fast: bool = False) -> Val:
    x = clamp_ordered(x, *((-88.0, 89.0) if fast else (-104.0, 89.0)))
    n, word = _nearest(x, 1 / log(2), _BIAS[fast])
    r = fma(n, -_LN2_HIGH, x)
    return _exp_reduced(fma(n, -_LN2_LOW, r), word, fast)


def exp2(x: Val, fast: bool = False) -> Val:
    x = clamp_ordered(x, *((-127.0, 128.0) if fast else (-150.0, 129.0)))
    n, word = _nearest(x, 1.0, _BIAS[fast])
    return _exp_reduced((x - n) * log(2), word, fast)


def exp10(x: Val) -> Val:
    x = clamp_ordered(x, -46.0, 39.0)
    n, word = _nearest(x, log2(10), _BIAS[False])
    r = fma(n, -_LOG10_2_HIGH, x)
    r = fma(n, -_LOG10_2_LOW, r)
    return _exp_reduced(r * log(10), word, False)


def _log_parts(x: Val) -> tuple[Val, Val, Val]:
    """The exponent, and the log of the mantissa in two parts."""
    tiny = x < 2.0**-126
    bits = bits_of(choose(tiny, x * 2.0**24, x), INT32)
    # mantissa into [√½, √2): the exponent changes where the bits of √½ are passed
    exponent = (bits - 0x3F3504F3) >> 23
    mantissa = bits - (exponent << 23)
    lift = choose(tiny, constant(x.fn, -24.0, FLOAT32), 0.0)
    e = convert("sitofp", exponent, FLOAT32) + lift
    f = bits_of(mantissa, FLOAT32) - 1.0
    square = f * f
    return e, f, fma(square, -0.5, polynomial(f, _LOG) * f * square)


def _of_special(x: Val, result: Val) -> Val:
    """`result`, or the logarithm of what has none, or an infinite one."""
    result = choose(instruction("fcmp uge", x, float("inf")), x, result)
    result = choose(x < 0.0, float("nan"), result)
    return choose(compare("==", x, 0.0), float("-inf"), result)


def _log(x: Val) -> Val:
    e, f, tail = _log_parts(x)
    low = fma(e, _LN2_LOW, tail)
    return _of_special(x, fma(e, _LN2_HIGH, f + low))


def _log2(x: Val) -> Val:
    e, f, tail = _log_parts(x)
    # log2(e) = 1.4375 + rest, so that the large part of the product is exact enough
    rest = 1 / log(2) - 1.4375
    low = fma(tail, rest, f * rest)
    low = fma(tail, 1.4375, low)
    return _of_special(x, fma(f, 1.4375, low) + e)


def _log10(x: Val) -> Val:
    e, f, tail = _log_parts(x)
    m = (f + tail) * (1 / log(10))
    low = fma(e, log10(2) - _LOG10_2_HIGH, m)
    return _of_special(x, fma(e, _LOG10_2_HIGH, low))


def sigmoid(x: Val, fast: bool = False) -> Val:
    if fast:
        return instruction("fdiv", 1.0, 1.0 + exp(negate(x), fast))
    # of the side where the exponential is small, so that nothing is lost on either
    small = exp(negate(overloaded("fabs", x)))
    negative = x < 0.0
    below = 1.0 + small
    lost = small - (below - 1.0)
    value = instruction("fdiv", choose(negative, small, 1.0), below)
    return fma(negate(value), lost, value)


def _tanh(x: Val) -> Val:
    size = overloaded("fabs", x)
    z = x * x
    near = fma(polynomial(z, _TANH) * z, x, x)
    far = constant(x.fn, 1.0, FLOAT32) - instruction("fdiv", 2.0, exp(size + size) + 1.0)
    # the sign of -0.0, which the polynomial loses, too
    return overloaded("copysign", choose(size < 0.625, near, far), x)


def _erf(x: Val) -> Val:
    size = overloaded("fabs", x)
    near = fma(polynomial(x * x, _ERF), x, x)
    capped = clamp_ordered(size, 0.0, 4.0)
    far = 1.0 - exp(polynomial(capped, _ERFC) * capped)
    return choose(size < 1.0, near, overloaded("copysign", far, x))


def _sin(x: Val) -> Val:
    zero = compare("==", x, 0.0)
    return choose(zero, x, _circular(x, 0))  # -0.0 keeps its sign


def _cos(x: Val) -> Val:
    return _circular(x, 1)


def _circular(x: Val, quadrant: int) -> Val:
    """Reduction by π/2 in float64: right to float32 up to 2^30; the caller sees to the rest."""
    wide = convert("fpext", x, FLOAT64)
    n = overloaded("rint", wide * 0.6366197723675814)
    r = fma(n, -_HALF_PI_HIGH, wide)
    r = fma(n, -_HALF_PI_LOW, r)
    y = convert("fptrunc", r, FLOAT32)
    mod4 = fma(overloaded("floor", n * 0.25), -4.0, n)
    turn = to_int(convert("fptrunc", mod4, FLOAT32), INT32) + quadrant
    z = y * y
    sine = fma(polynomial(z, _SIN) * z, y, y)
    half = fma(z, -0.5, 1.0)
    cosine = fma(polynomial(z, _COS) * z, z, half)
    value = choose(nonzero(turn & 1), cosine, sine)
    return bits_of(bits_of(value, INT32) ^ ((turn & 2) << 30), FLOAT32)


# ── calls ────────────────────────────────────────────────────────────────────────────────────


def function(name: str, args: list[Val], dtype: DType) -> Val:
    """`name(args)` for a name of `ir.intrinsics.FUNCTIONS`, of type `dtype`."""
    fast, name = name in _FAST, name.removeprefix("__")
    if name in _DIRECT:
        return _DIRECT[name](args, dtype)
    if not args[0].dtype.is_float:
        return _integer_function(name, args)
    wide = [widen(a) for a in even(*args)]
    x = wide[0]
    if name in _INSTRUCTIONS:
        result = overloaded(_INSTRUCTIONS[name], *wide)
    elif name == "divide":
        result = instruction("fdiv", *wide)
    elif name == "rsqrt":
        result = instruction("fdiv", 1.0, overloaded("sqrt", x))
    elif name in _POLYNOMIAL and x.dtype.bits == 32:
        result = _shared(name, x, fast)
    elif name == "sigmoid":
        small = libm("exp", negate(overloaded("fabs", x)))
        upper = choose(x < 0.0, small, 1.0)
        result = instruction("fdiv", upper, 1.0 + small)
    elif name == "exp10":
        result = libm("pow", 10.0, x)
    elif name in _LIBM:
        result = libm(name, *wide)
    else:
        raise CompileError(f"the CPU target has no function {name!r}")
    return narrow(result, dtype)


def _shared(name: str, x: Val, fast: bool) -> Val:
    """Call the module's own copy of a polynomial function for this number of lanes."""
    symbol = f"tilewright.{'fast.' if fast else ''}{name}.v{x.lanes}"
    module = x.fn.module
    if symbol not in module.functions:
        module.functions[symbol] = ""
        circular = name in ("sin", "cos")
        fn = Function(
            module,
            f"internal {x.type} @{symbol}({x.type} %x)",
            "nounwind" if circular else "alwaysinline nounwind",
        )
        given = replace(x, fn=fn, ref="%x")
        result = _POLYNOMIAL[name](given, **{"fast": True} if fast else {})
        if circular:
            result = _far_lanes(name, given, result)
        fn.finish(str(result))
    return replace(x, ref=x.fn.call(x.type, symbol, (x.type, x.ref)))


def _far_lanes(name: str, x: Val, near: Val) -> Val:
    """Where an angle is beyond 2^30 the C library reduces it."""
    fn = x.fn
    far = overloaded("fabs", x) >= 2.0**30
    slot = fn.alloca(x.type)
    fn.line(f"store {near}, ptr {slot}")
    with fn.when(any_lane(far), "far"):
        fn.line(f"store {choose(far, libm(name, x), near)}, ptr {slot}")
    return x.next(f"load {x.type}, ptr {slot}")


def _integer_function(name: str, args: list[Val]) -> Val:
    a, *_ = even(*args)
    if name in ("floor", "ceil", "round", "trunc"):
        return a
    if name == "fmod":
        _, b = even(*args)
        return instruction("srem" if a.dtype.kind == "int" else "urem", a, nontrapping(b))
    if name == "pow":
        return _integer_power(*even(*args))
    raise CompileError(f"{name} needs a float, got {a.dtype}", fix="cast the operand first")


def _integer_power(a: Val, b: Val) -> Val:
    """By squaring, over every bit an exponent that does not overflow can have."""
    result = constant(a.fn, 1, a.dtype, a.lanes)
    for _ in range(a.dtype.bits.bit_length()):
        odd = instruction("icmp ne", b & 1, 0)
        result = choose(odd, result * a, result)
        a = a * a
        b = instruction("lshr", b, 1)
    return wrap(result)


def _unsigned(a: Val) -> Val:
    """A sub-byte integer without the copies of its sign."""
    return a & ((1 << a.dtype.bits) - 1) if a.dtype.bits < 8 else a


def _clz(args: list[Val], dtype: DType) -> Val:
    a = _unsigned(args[0])
    name = f"llvm.ctlz.{mangle(a.type)}"
    found = replace(a, ref=a.fn.intrinsic(name, a.type, (a.type, a.ref), ("i1", "false")))
    if a.dtype.bits < 8:
        found = found - (8 - a.dtype.bits)
    return resize(found, dtype)


def _reinterpret(args: list[Val], dtype: DType) -> Val:
    a = args[0]
    if a.dtype.is_bool:
        a = convert("zext", a, UINT8)
    return nonzero(replace(a, dtype=UINT8)) if dtype.is_bool else bits_of(a, dtype)


def _dp4a(args: list[Val], dtype: DType) -> Val:
    a, b, c = even(*args)
    total = resize(c, dtype)
    for byte in range(4):
        p, q = ((x << 24 - 8 * byte) >> 24 for x in (a, b))
        total = total + resize(p, dtype) * resize(q, dtype)
    return total


def _fma(args: list[Val], dtype: DType) -> Val:
    if not args[0].dtype.is_float:
        return binary("+", binary("*", args[0], args[1]), args[2])
    return narrow(overloaded("fma", *(widen(a) for a in even(*args))), dtype)


def _size(args: list[Val]) -> Val:
    return overloaded("fabs", widen(args[0]))


_DIRECT: dict[str, Callable[[list[Val], DType], Val]] = {
    "neg": lambda args, dtype: negate(cast(args[0], dtype)),
    "abs": lambda args, dtype: absolute(args[0]),
    "not": lambda args, dtype: args[0] ^ True,
    "invert": lambda args, dtype: wrap(args[0] ^ -1),
    "popcount": lambda args, dtype: resize(overloaded("ctpop", _unsigned(args[0])), dtype),
    "clz": _clz,
    "isnan": lambda args, dtype: is_nan(widen(args[0])),
    "isinf": lambda args, dtype: compare("==", _size(args), float("inf")),
    "isfinite": lambda args, dtype: _size(args) < float("inf"),
    "reinterpret": _reinterpret,
    "dp4a": _dp4a,
    "fma": _fma,
}
_INSTRUCTIONS = {name: name for name in ("sqrt", "floor", "ceil", "trunc", "copysign")}
_INSTRUCTIONS |= {"round": "roundeven", "min_nan": "minimum", "max_nan": "maximum"}
_POLYNOMIAL: dict[str, Callable[..., Val]] = {
    "exp": exp, "exp2": exp2, "exp10": exp10, "log": _log, "log2": _log2, "log10": _log10,
    "sigmoid": sigmoid, "tanh": _tanh, "erf": _erf, "sin": _sin, "cos": _cos,
}  # fmt: skip
_FAST = ("__exp", "__exp2", "__sigmoid")
_LIBM = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh erf pow fmod "
    "atan2".split()
)
