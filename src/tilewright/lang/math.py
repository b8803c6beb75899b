"""Elementwise words: scalar functions of run-time values."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import reduce
from typing import Any

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
    unify,
    wrap,
)
from tilewright.ir.expr import cast as cast_expr
from tilewright.ir.expr import ceildiv as ceildiv
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.lang.handles import Tile, Tiles
from tilewright.lang.scalar import is_runtime
from tilewright.support.errors import CompileError

_max, _min = builtins.max, builtins.min


def _value(x: Any, word: str, like: DType | None = None) -> Expr:
    if isinstance(x, (Tile, Tiles)):
        raise CompileError(
            f"T.{word} works on elements, not on the whole of {x.name}",
            fix=f"loop over it with T.Parallel and use {x.name}[i]",
        )
    return wrap(x, like)


def _call(name: str, *args: Any) -> Expr:
    """A function of `intrinsics.FUNCTIONS`, its arguments brought to one type of its domain."""
    function = FUNCTIONS[name]
    # a plain number takes the type of the run-time value beside it
    lead = next((_value(a, name).dtype for a in args if not _plain(a)), None)
    exprs = [_value(a, name, lead) for a in args]
    kind = reduce(promote, (e.dtype for e in exprs))
    if function.domain == "float" and not kind.is_float:
        kind = FLOAT32
    elif function.domain == "int" and not kind.is_int:
        raise CompileError(f"T.{name} works on integers", got=f"a value of type {kind}")
    result = BOOL if function.result == "bool" else kind
    return Call(name, tuple(cast_expr(e, kind) for e in exprs), result)


def _function(name: str, doc: str) -> Callable[..., Expr]:
    def word(*args: Any) -> Expr:
        if len(args) != FUNCTIONS[name].arity:
            raise CompileError(
                f"T.{name} takes {FUNCTIONS[name].arity} argument"
                f"{'s' * (FUNCTIONS[name].arity != 1)}",
                got=str(len(args)),
            )
        return _call(name, *args)

    word.__name__ = word.__qualname__ = name
    word.__doc__ = doc
    return word


exp = _function("exp", "eˣ.")
exp2 = _function("exp2", "2ˣ.")
exp10 = _function("exp10", "10ˣ.")
log = _function("log", "The natural logarithm.")
log2 = _function("log2", "The logarithm to base 2.")
log10 = _function("log10", "The logarithm to base 10.")
log1p = _function("log1p", "log(1 + x).")
sqrt = _function("sqrt", "The square root.")
rsqrt = _function("rsqrt", "1 / √x.")
sin = _function("sin", "The sine.")
cos = _function("cos", "The cosine.")
tan = _function("tan", "The tangent.")
asin = _function("asin", "The inverse sine.")
acos = _function("acos", "The inverse cosine.")
atan = _function("atan", "The inverse tangent.")
sinh = _function("sinh", "The hyperbolic sine.")
cosh = _function("cosh", "The hyperbolic cosine.")
tanh = _function("tanh", "The hyperbolic tangent.")
sigmoid = _function("sigmoid", "1 / (1 + e⁻ˣ).")
erf = _function("erf", "The error function.")
atan2 = _function("atan2", "The angle of the point (x, y), given y first.")
copysign = _function("copysign", "The size of a with the sign of b.")
fma = _function("fma", "a·b + c, rounded once.")
popcount = _function("popcount", "The number of bits set.")
clz = _function("clz", "The number of leading zero bits.")
isnan = _function("isnan", "Whether x is NaN.")
isinf = _function("isinf", "Whether x is infinite.")
isfinite = _function("isfinite", "Whether x is neither infinite nor NaN.")
fast_exp = _function("__exp", "Fast eˣ, a few ulp off on a GPU.")
fast_exp2 = _function("__exp2", "Fast 2ˣ, a few ulp off on a GPU.")
fast_exp10 = _function("__exp10", "Fast 10ˣ, a few ulp off on a GPU.")
fast_log = _function("__log", "Fast natural logarithm, a few ulp off on a GPU.")
fast_log2 = _function("__log2", "Fast logarithm to base 2, a few ulp off on a GPU.")
fast_log10 = _function("__log10", "Fast logarithm to base 10, a few ulp off on a GPU.")
fast_sin = _function("__sin", "Fast sine, a few ulp off on a GPU.")
fast_cos = _function("__cos", "Fast cosine, a few ulp off on a GPU.")
fast_tan = _function("__tan", "Fast tangent, a few ulp off on a GPU.")
fast_sigmoid = _function("__sigmoid", "Fast 1 / (1 + e⁻ˣ), a few ulp off on a GPU.")


def _rounding(name: str, doc: str) -> Callable[[Any], Expr]:
    def word(x: Any) -> Expr:
        expr = _value(x, name)
        return expr if expr.dtype.is_int else _call(name, expr)

    word.__name__ = word.__qualname__ = name
    word.__doc__ = doc
    return word


floor = _rounding("floor", "The largest integer not above x.")
ceil = _rounding("ceil", "The smallest integer not below x.")
round = _rounding("round", "The nearest integer, halves to even.")
trunc = _rounding("trunc", "x without its fraction.")
nearbyint = round


def abs(x: Any) -> Any:
    """|x|."""
    return builtins.abs(x) if _plain(x) else builtins.abs(_value(x, "abs"))


def pow(x: Any, y: Any) -> Any:
    """xʸ."""
    return x**y if _plain(x, y) else _call("pow", x, y)


def fmod(x: Any, y: Any) -> Expr:
    """The remainder with the sign of x."""
    return _call("fmod", x, y)


def _plain(*values: Any) -> bool:
    return all(isinstance(v, (bool, int, float)) for v in values)


def _fold(op: str, values: tuple[Any, ...], plain: Callable[..., Any]) -> Any:
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = tuple(values[0])
    if not values:
        raise CompileError(f"T.{op} needs at least one value")
    if _plain(*values):
        return plain(values)
    result = values[0]
    for value in values[1:]:
        a, b = unify(_operand(result, op), _operand(value, op))
        if isinstance(a, Const) and isinstance(b, Const):
            result = a if plain((a.value, b.value)) == a.value else b
        else:
            result = Bin(op, a, b)
    return result


def _operand(value: Any, op: str) -> Any:
    return value if isinstance(value, (bool, int, float)) else _value(value, op)


def max(*values: Any) -> Any:
    """The largest value; of a number and NaN, the number."""
    return _fold("max", values, _max)


def min(*values: Any) -> Any:
    """The smallest value; of a number and NaN, the number."""
    return _fold("min", values, _min)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x kept between low and high."""
    return min(max(x, low), high)


def floordiv(a: Any, b: Any) -> Any:
    """a // b, toward minus infinity."""
    return (
        a // b if _plain(a, b) else binary("//", _operand(a, "floordiv"), _operand(b, "floordiv"))
    )


def floormod(a: Any, b: Any) -> Any:
    """a % b, with the sign of b."""
    return a % b if _plain(a, b) else binary("%", _operand(a, "floormod"), _operand(b, "floormod"))


def truncdiv(a: Any, b: Any) -> Expr:
    """a / b toward zero."""
    x, y = unify(_operand(a, "truncdiv"), _operand(b, "truncdiv"))
    size = builtins.abs(x) // builtins.abs(y)
    return select(compare("==", x < 0, y < 0), size, -size)


def shift_left(a: Any, b: Any) -> Any:
    """a << b."""
    return (
        a << b
        if _plain(a, b)
        else binary("<<", _operand(a, "shift_left"), _operand(b, "shift_left"))
    )


def shift_right(a: Any, b: Any) -> Any:
    """a >> b, keeping the sign of signed types."""
    return (
        a >> b
        if _plain(a, b)
        else binary(">>", _operand(a, "shift_right"), _operand(b, "shift_right"))
    )


def bitwise_and(a: Any, b: Any) -> Any:
    """a & b."""
    return a & b if _plain(a, b) else binary("&", _operand(a, "&"), _operand(b, "&"))


def bitwise_or(a: Any, b: Any) -> Any:
    """a | b."""
    return a | b if _plain(a, b) else binary("|", _operand(a, "|"), _operand(b, "|"))


def bitwise_xor(a: Any, b: Any) -> Any:
    """a ^ b."""
    return a ^ b if _plain(a, b) else binary("^", _operand(a, "^"), _operand(b, "^"))


def bitwise_not(a: Any) -> Any:
    """~a."""
    return ~a if _plain(a) else ~_value(a, "~")


def truncmod(a: Any, b: Any) -> Expr:
    """a - b · truncdiv(a, b)."""
    x, y = unify(_operand(a, "truncmod"), _operand(b, "truncmod"))
    return x - y * truncdiv(x, y)


def if_then_else(cond: Any, a: Any, b: Any) -> Any:
    """a where cond, else b; only the chosen side is read."""
    cond = cond.value if isinstance(cond, Const) else cond
    if not is_runtime(cond):
        return a if cond else b
    for side in (a, b):
        if not isinstance(side, (bool, int, float)):
            _value(side, "if_then_else")
    return select(cond, a, b)


Select = if_then_else


def And(*values: Any) -> Any:
    """Whether all are true."""
    return _logical("and", values)


def Or(*values: Any) -> Any:
    """Whether any is true."""
    return _logical("or", values)


def Not(value: Any) -> Any:
    """Whether it is false."""
    return logical_not(value) if is_runtime(value) else not value


def _logical(op: str, values: tuple[Any, ...]) -> Any:
    if _plain(*values):
        return all(values) if op == "and" else any(values)
    result: Any = values[0]
    for value in values[1:]:
        result = binary(op, _operand(result, op), _operand(value, op))
    return result


# ── types and their limits ───────────────────────────────────────────────────────────────────


def infinity(dtype: Any = "float32") -> Expr:
    """+∞ of a float type."""
    kind = find_dtype(dtype)
    if not kind.is_float:
        raise CompileError(
            f"{kind} has no infinity", fix=f"use T.max_value({str(kind)!r})", got=str(kind)
        )
    if kind.bits <= 8:
        return const(kind.max_value, kind)
    return const(float("inf"), kind)


def max_value(dtype: Any) -> Expr:
    """The largest finite value of a type."""
    kind = find_dtype(dtype)
    return const(kind.max_value, kind)


def min_value(dtype: Any) -> Expr:
    """The smallest finite value of a type."""
    kind = find_dtype(dtype)
    return const(kind.min_value, kind)


def cast(value: Any, dtype: Any) -> Expr:
    """`value` as `dtype`: to nearest even, to integers toward zero."""
    if isinstance(value, str) and not isinstance(dtype, str):
        value, dtype = dtype, value
    kind = find_dtype(dtype)
    return cast_expr(_value(value, "cast", kind), kind)


def Cast(dtype: Any, value: Any) -> Expr:
    """`cast` with the type first."""
    return cast(value, dtype)


def reinterpret(value: Any, dtype: Any) -> Expr:
    """The bits of `value` read as another type of the same width; the type may come first."""
    if isinstance(value, (str, DType)):
        value, dtype = dtype, value
    kind, expr = find_dtype(dtype), _value(value, "reinterpret")
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
    """
    from tilewright.lang.handles import Access, store

    if all(isinstance(x, (Tile, Access)) for x in (a, b, c)):
        x, y, z = (_first(t) for t in (a, b, c))
        if x.buffer.dtype.bits == 8:
            total: Any = z.as_expr()
            for at in range(4):
                total = total + cast(_next(x, at), "int32") * cast(_next(y, at), "int32")
            store(z, total)
            return None
        a, b, c = x.as_expr(), y.as_expr(), z.as_expr()
    x32, y32 = _value(a, "dp4a", INT32), _value(b, "dp4a", INT32)
    if x32.dtype.bits != 32 or not x32.dtype.is_int or x32.dtype != y32.dtype:
        raise CompileError(
            "T.dp4a takes two packed 32-bit integers", got=f"{x32.dtype} and {y32.dtype}"
        )
    total = cast_expr(_value(c, "dp4a", INT32), x32.dtype)
    return Call("dp4a", (x32, y32, total), x32.dtype)


def _first(value: Any) -> Any:
    return value[(0,) * value.buffer.rank] if isinstance(value, Tile) else value


def _next(access: Any, at: int) -> Any:
    return access.tile[access.indices[:-1] + (access.indices[-1] + at,)]
