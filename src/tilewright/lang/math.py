"""Elementwise words: scalar functions of run-time values."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from functools import reduce
from inspect import Parameter, Signature
from typing import Any

from tilewright.ir.arith import power, unify
from tilewright.ir.dtype import BOOL, FLOAT32, INT32, DType, promote
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.expr import (
    Bin,
    Call,
    Const,
    Expr,
    binary,
    compare,
    const,
    logical_not,
    select,
    wrap,
)
from tilewright.ir.expr import cast as cast_expr
from tilewright.ir.expr import ceildiv as ceildiv
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.lang.handles import Access, Tile, store
from tilewright.lang.scalar import concrete, is_runtime
from tilewright.lang.types import named
from tilewright.support.errors import CompileError, word

_max, _min = builtins.max, builtins.min


def _value(x: Any, like: DType | None = None) -> Expr:
    if isinstance(x, Tile):
        raise CompileError(
            f"T.{word()} works on elements, not on the whole of {x.name}",
            fix=f"loop over it with T.Parallel and use {x.name}[i]",
        )
    return wrap(x, like)


def _call(name: str, *args: Any) -> Expr:
    """A function of `intrinsics.FUNCTIONS`, its arguments brought to one type of its domain."""
    function = FUNCTIONS[name]
    # a plain number takes the type of the run-time value beside it
    lead = next((_value(a).dtype for a in args if not _plain(a)), None)
    exprs = [_value(a, lead) for a in args]
    kind = reduce(promote, (e.dtype for e in exprs))
    if function.domain == "float" and not kind.is_float:
        kind = FLOAT32
    elif function.domain == "any" and kind.is_bool:
        kind = INT32
    elif function.domain == "int" and not kind.is_int:
        raise CompileError(
            f"T.{name} works on integers",
            got=f"a value of type {kind}",
            fix='cast it first: T.cast(x, "int32")',
        )
    result = BOOL if function.result == "bool" else kind
    return Call(name, tuple(cast_expr(e, kind) for e in exprs), result)


def _doc(name: str, doc: str, sample: str, shown: str, whole: bool) -> str:
    """The docstring of a word that a table makes. Its example calls it with `sample`, in which x is
    0, 1, 2 …, an integer where `whole`; `shown` is what that gives."""
    to, x, row = ("M[j]", "N[j]", "M") if whole else ("Y[0, j]", "X[0, j]", "Y[0]")
    call = f"T.{name}({sample.replace('x', x)})"
    loop = f"    for j in T.Parallel(64):\n        {to} = {call}\n    # {row}: {shown}"
    return f"{doc}\n\nExample:\n{loop}\n"


_ROUNDING = ("floor", "ceil", "round", "trunc")  # which leave integers as they are
_NAMES = {1: ("x",), 2: ("a", "b"), 3: ("a", "b", "c")}


def _function(name: str, doc: str, sample: str, shown: str) -> Callable[..., Expr]:
    arity, domain = FUNCTIONS[name].arity, FUNCTIONS[name].domain

    @named(name, _doc(name, doc, sample, shown, domain == "int"))
    def word(*args: Any) -> Expr:
        if len(args) != arity:
            raise CompileError(
                f"T.{name} takes {arity} argument{'s' * (arity != 1)}",
                got=str(len(args)),
                fix="pass that many values",
            )
        whole = name in _ROUNDING and _value(args[0]).dtype.is_int
        return _value(args[0]) if whole else _call(name, *args)

    word.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(n, Parameter.POSITIONAL_ONLY) for n in _NAMES[arity]]
    )
    return word


exp = _function("exp", "eˣ.", "x", "1 2.718 7.389")
exp2 = _function("exp2", "2ˣ; on a GPU 0 where that is below 2⁻¹²⁶.", "x", "1 2 4 8")
exp10 = _function("exp10", "10ˣ.", "-x", "1 0.1 0.01")
expm1 = _function("expm1", "eˣ - 1, exact for small x.", "x", "0 1.718 6.389")
log = _function("log", "The natural logarithm.", "x + 1", "0 0.6931 1.0986")
log2 = _function("log2", "The logarithm to base 2.", "x + 1", "0 1 1.585 2")
log10 = _function("log10", "The logarithm to base 10.", "x + 1", "0 0.301 0.4771")
log1p = _function("log1p", "log(1 + x).", "x", "0 0.6931 1.0986")
sqrt = _function("sqrt", "The square root.", "x", "0 1 1.4142")
rsqrt = _function("rsqrt", "1 / √x.", "x + 1", "1 0.7071 0.5774 0.5")
sin = _function("sin", "The sine.", "x", "0 0.8415 0.9093")
cos = _function("cos", "The cosine.", "x", "1 0.5403 -0.4161")
tan = _function("tan", "The tangent.", "x", "0 1.5574 -2.185")
asin = _function("asin", "The inverse sine.", "x / 64", "0 0.015626 0.031255")
acos = _function("acos", "The inverse cosine.", "x / 64", "1.5708 1.5552")
atan = _function("atan", "The inverse tangent.", "x", "0 0.7854 1.1071")
sinh = _function("sinh", "The hyperbolic sine.", "x", "0 1.1752 3.6269")
cosh = _function("cosh", "The hyperbolic cosine.", "x", "1 1.5431 3.7622")
tanh = _function("tanh", "The hyperbolic tangent.", "x", "0 0.7616 0.964")
sigmoid = _function(
    "sigmoid", "1 / (1 + e⁻ˣ); on a GPU 0 where that is below 2⁻¹²⁶.", "x", "0.5 0.7311 0.8808"
)
erf = _function("erf", "The error function.", "x", "0 0.8427 0.9953")
atan2 = _function(
    "atan2", "The angle of the point (x, y), given y first.", "x, 1.0", "0 0.7854 1.1071"
)
copysign = _function("copysign", "The size of a with the sign of b.", "x, -1.0", "0 -1 -2")
fma = _function(
    "fma",
    "a·b + c, rounded once; on 16-bit floats to float32 and then to their type.",
    "x, x, 1.0",
    "1 2 5 10",
)
popcount = _function("popcount", "The number of bits set.", "x", "0 1 1 2")
clz = _function("clz", "The number of leading zero bits.", "x", "32 31 30 30")
isnan = _function("isnan", "Whether x is NaN.", "T.sqrt(x - 1)", "1 0 0")
isinf = _function("isinf", "Whether x is infinite.", "1.0 / x", "1 0 0")
isfinite = _function("isfinite", "Whether x is neither infinite nor NaN.", "1.0 / x", "0 1 1")
# few instructions on a GPU, a few ulp off
_FAST = "{}, in a few instructions and a few ulp off on a GPU."
fast_exp = _function("__exp", _FAST.format("eˣ"), "x", "1 2.718 7.389")
fast_exp2 = _function("__exp2", _FAST.format("2ˣ"), "x", "1 2 4 8")
fast_exp10 = _function("__exp10", _FAST.format("10ˣ"), "-x", "1 0.1 0.01")
fast_log = _function("__log", _FAST.format("natural logarithm"), "x + 1", "0 0.6931 1.0986")
fast_log2 = _function("__log2", _FAST.format("logarithm to base 2"), "x + 1", "0 1 1.585 2")
fast_log10 = _function("__log10", _FAST.format("logarithm to base 10"), "x + 1", "0 0.301 0.4771")
fast_sin = _function("__sin", _FAST.format("sine"), "x", "0 0.8415 0.9093")
fast_cos = _function("__cos", _FAST.format("cosine"), "x", "1 0.5403 -0.4161")
fast_tan = _function("__tan", _FAST.format("tangent"), "x", "0 1.5574 -2.185")
fast_tanh = _function(
    "__tanh", "hyperbolic tangent, in one instruction and 2⁻¹¹ off on a GPU.", "x", "0 0.7616 0.964"
)
fast_divide = _function("__divide", _FAST.format("a / b"), "x, x + 1", "0 0.5 0.6667 0.75")
fast_sigmoid = _function("__sigmoid", _FAST.format("1 / (1 + e⁻ˣ)"), "x", "0.5 0.7311 0.8808")


floor = _function("floor", "The largest integer not above x.", "x / 2 - 0.5", "-1 0 0 1")
ceil = _function("ceil", "The smallest integer not below x.", "x / 2 - 0.5", "0 0 1 1")
round = _function("round", "The nearest integer, halves to even.", "x / 2 - 0.5", "0 0 0 1 2")
trunc = _function("trunc", "x without its fraction.", "x / 2 - 0.5", "0 0 0 1")
nearbyint = round


def abs(x: Any) -> Any:
    """|x|.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.abs(X[2, j])
        # Y[0]: 2 1 0 1
    """
    return builtins.abs(_operand(x))


def pow(x: Any, y: Any) -> Any:
    """xʸ. A constant whole y of at most 8 makes it a product of factors x.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.pow(X[0, j], 2.0)
        # Y[0]: 0 1 4 9
    """
    return x**y if _plain(x, y) else power(_operand(x), _operand(y))


def fmod(x: Any, y: Any) -> Expr:
    """The remainder with the sign of x.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.fmod(X[2, j], 2.0)
        # Y[0]: 0 -1 0 1 0
    """
    return _call("fmod", x, y)


def _plain(*values: Any) -> bool:
    return all(isinstance(v, (bool, int, float)) for v in values)


def _fold(op: str, values: tuple[Any, ...], plain: Callable[..., Any]) -> Any:
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = tuple(values[0])
    if not values:
        raise CompileError(f"T.{op} needs at least one value", fix="pass values: T.max(a, b)")
    if _plain(*values):
        return plain(values)
    result = values[0]
    for value in values[1:]:
        a, b = unify(_operand(result), _operand(value))
        if isinstance(a, Const) and isinstance(b, Const):
            result = a if plain((a.value, b.value)) == a.value else b
        else:
            result = Bin(op, a, b)
    return result


def _operand(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float)) else _value(value)


def max(*values: Any) -> Any:
    """The largest value; of a number and NaN, the number.

    Of a tile, `T.max(x, dim=1)` is the largest along a dimension, and NaN stays.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.max(X[2, j], 0.0)
        # Y[0]: 0 0 0 1 2
    """
    return _fold("max", values, _max)


def min(*values: Any) -> Any:
    """The smallest value; of a number and NaN, the number.

    Of a tile, `T.min(x, dim=1)` is the smallest along a dimension, and NaN stays.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.min(X[0, j], 2.0)
        # Y[0]: 0 1 2 2 2
    """
    return _fold("min", values, _min)


def clamp(x: Any, min_val: Any, max_val: Any) -> Any:
    """x kept between min_val and max_val.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.clamp(X[2, j], -1.0, 1.0)
        # Y[0]: -1 -1 0 1 1
    """
    return min(max(x, min_val), max_val)


_BY_NAME = (
    "+ add, - sub, * mul, / truediv, // floordiv, % mod, ** pow, & and_, | or_, ^ xor, << lshift, "
    ">> rshift, @ matmul"
)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    op: getattr(operator, name) for op, name in map(str.split, _BY_NAME.split(", "))
}


def _operator(name: str, op: str, doc: str, sample: str, shown: str) -> Callable[[Any, Any], Any]:
    @named(name, _doc(name, doc, sample, shown, True))
    def word(a: Any, b: Any) -> Any:
        if _plain(a, b):
            return OPERATORS[op](a, b)
        return binary(op, _operand(a), _operand(b))

    return word


floordiv = _operator("floordiv", "//", "a // b, toward minus infinity.", "x - 2, 2", "-1 -1 0 0 1")
floormod = _operator("floormod", "%", "a % b, with the sign of b.", "x - 2, 3", "1 2 0 1")
shift_left = _operator(
    "shift_left", "<<", "a << b: of a's type, 0 where b is a's width or more.", "1, x % 8",
    "1 2 4 8",
)  # fmt: skip
shift_right = _operator(
    "shift_right", ">>",
    "a >> b, keeping the sign of signed types: 0 or -1 where b is a's width or more.", "x - 4, 1",
    "-2 -2 -1 -1 0",
)  # fmt: skip
bitwise_and = _operator("bitwise_and", "&", "a & b.", "x, 2", "0 0 2 2 0")
bitwise_or = _operator("bitwise_or", "|", "a | b.", "x, 1", "1 1 3 3")
bitwise_xor = _operator("bitwise_xor", "^", "a ^ b.", "x, 1", "1 0 3 2")


def truncdiv(a: Any, b: Any) -> Expr:
    """a / b toward zero.

    Example:
        for j in T.Parallel(64):
            M[j] = T.truncdiv(N[j] - 3, 2)
        # M: -1 -1 0 0 0 1
    """
    x, y = unify(_operand(a), _operand(b))
    size = builtins.abs(x) // builtins.abs(y)
    return select(compare("==", x < 0, y < 0), size, -size)


def bitwise_not(a: Any) -> Any:
    """~a.

    Example:
        for j in T.Parallel(64):
            M[j] = T.bitwise_not(N[j])
        # M: -1 -2 -3
    """
    return ~_operand(a)


def truncmod(a: Any, b: Any) -> Expr:
    """a - b · truncdiv(a, b): the remainder with the sign of a.

    Example:
        for j in T.Parallel(64):
            M[j] = T.truncmod(N[j] - 3, 2)
        # M: -1 0 -1 0 1
    """
    x, y = unify(_operand(a), _operand(b))
    return x - y * truncdiv(x, y)


def if_then_else(cond: Any, a: Any, b: Any) -> Any:
    """a where cond, else b; only the chosen side is read.

    Example:
        for j in T.Parallel(64):
            Y[0, j] = T.if_then_else(X[2, j] > 0, X[2, j], 0.0)
        # Y[0]: 0 0 0 1 2
    """
    cond = concrete(cond)
    if not is_runtime(cond):
        return a if cond else b
    return select(cond, _operand(a), _operand(b))


Select = if_then_else


def And(*values: Any) -> Any:
    """Whether all are true.

    Example:
        for j in T.Parallel(64):
            M[j] = T.And(N[j] > 0, N[j] < 3)
        # M: 0 1 1 0
    """
    return _logical("and", values)


def Or(*values: Any) -> Any:
    """Whether any is true.

    Example:
        for j in T.Parallel(64):
            M[j] = T.Or(N[j] == 0, N[j] == 3)
        # M: 1 0 0 1 0
    """
    return _logical("or", values)


def Not(value: Any) -> Any:
    """Whether it is false.

    Example:
        for j in T.Parallel(64):
            M[j] = T.Not(N[j] > 1)
        # M: 1 1 0 0
    """
    return logical_not(value) if is_runtime(value) else not value


def _logical(op: str, values: tuple[Any, ...]) -> Any:
    if _plain(*values):
        return all(values) if op == "and" else any(values)
    return reduce(lambda a, b: binary(op, _operand(a), _operand(b)), values)


# ── types and their limits ───────────────────────────────────────────────────────────────────


def infinity(dtype: Any = "float32") -> Expr:
    """+∞ of a float type; its largest value where it has none (fp8 and narrower).

    >>> T.infinity("float16").value, T.infinity("float8_e4m3fn").value
    (inf, 448.0)
    """
    kind = find_dtype(dtype)
    if not kind.is_float:
        raise CompileError(
            f"{kind} has no infinity", fix=f"use T.max_value({str(kind)!r})", got=str(kind)
        )
    return const(kind.max_value if kind.bits <= 8 else float("inf"), kind)


def max_value(dtype: Any) -> Expr:
    """The largest finite value of a type.

    >>> T.max_value("int8").value, T.max_value("float16").value
    (127, 65504.0)
    """
    kind = find_dtype(dtype)
    return const(kind.max_value, kind)


def min_value(dtype: Any) -> Expr:
    """The smallest finite value of a type.

    >>> T.min_value("int8").value, T.min_value("uint8").value
    (-128, 0)
    """
    kind = find_dtype(dtype)
    return const(kind.min_value, kind)


def cast(value: Any, dtype: Any) -> Expr:
    """`value` as `dtype`: to nearest even, to integers toward zero.

    Example:
        for j in T.Parallel(64):
            M[j] = T.cast(X[2, j] / 2, "int32")
        # M: -1 0 0 0 1
    """
    if isinstance(value, str) and not isinstance(dtype, str):
        value, dtype = dtype, value
    kind = find_dtype(dtype)
    return cast_expr(_value(value, kind), kind)


def Cast(dtype: Any, value: Any) -> Expr:
    """`cast` with the type first.

    Example:
        for j in T.Parallel(64):
            M[j] = T.Cast("int32", X[2, j] / 2)
        # M: -1 0 0 0 1
    """
    return cast(value, dtype)


def reinterpret(value: Any, dtype: Any) -> Expr:
    """The bits of `value` read as another type of the same width; the type may come first.

    Example:
        for j in T.Parallel(64):
            M[j] = T.reinterpret(X[0, j], "int32")
        # M: 0 1065353216 1073741824
    """
    if isinstance(value, (str, DType)):
        value, dtype = dtype, value
    kind, expr = find_dtype(dtype), _value(value)
    if expr.dtype.bits != kind.bits:
        raise CompileError(
            "T.reinterpret keeps the width",
            expected=f"a type of {expr.dtype.bits} bits",
            got=f"{kind} of {kind.bits} bits",
            fix="cast to an integer of the right width first",
        )
    return expr if expr.dtype == kind else Call("reinterpret", (expr,), kind)


def dp4a(a: Any, b: Any, c: Any = 0) -> Any:
    """c + the dot product of the four bytes of a and b.

    With three buffers: C[0] += A[0:4] · B[0:4].

    Example:
        for j in T.Parallel(64):
            M[j] = T.dp4a(N[j], 0x01010101, 100)
        # M: 100 101 102
    """
    if all(type(x) in (Tile, Access) for x in (a, b, c)):
        elements: Any = (t[(0,) * t.buffer.rank] if isinstance(t, Tile) else t for t in (a, b, c))
        x, y, z = elements
        if x.buffer.dtype.bits == 8:
            total: Any = z.as_expr()
            for at in range(4):
                total = total + cast(x.next(at), "int32") * cast(y.next(at), "int32")
            store(z, total)
            return None
        a, b, c = x.as_expr(), y.as_expr(), z.as_expr()
    x32, y32 = _value(a, INT32), _value(b, INT32)
    if x32.dtype.bits != 32 or not x32.dtype.is_int or x32.dtype != y32.dtype:
        raise CompileError(
            "T.dp4a takes two packed 32-bit integers",
            got=f"{x32.dtype} and {y32.dtype}",
            fix="reinterpret four int8 elements as one int32",
        )
    total = cast_expr(_value(c, INT32), x32.dtype)
    return Call("dp4a", (x32, y32, total), x32.dtype)
