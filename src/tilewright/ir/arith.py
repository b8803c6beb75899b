"""Pure expressions, and the arithmetic that builds them.

Python's operators build expressions and promote types: a Python number takes the type of the
other side (a float beside an integer expression makes both float32), mixed types follow
`dtype.promote`, comparisons give bool, `/` on integers gives float32, `//` and `%` round toward
minus infinity. Arithmetic on 16-bit and narrower floats is computed in float32 and rounded once;
on bools it is that of int32. Shifts keep the type of their left side; their count is read as an
unsigned number, and by the width or more they mean what shifting bit by bit means.
"""

from __future__ import annotations

import operator as py
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, INT32, INT64, DType, promote
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.interned import Interned
from tilewright.support.errors import CompileError, swap

_Operand: TypeAlias = "Expr | int | float | bool"
_Method: TypeAlias = "Callable[[Expr, _Operand], Expr]"


def _nothing(*args: object) -> None: ...


# set by those who know: the run-time comparison that a user's code meant by `a == b` or `a != b`,
# if it was one; whether a user's code may have the text of a value; the text of an expression
asked: Callable[[str, object, object], Expr | bool | None] = _nothing
said: Callable[[object], None] = _nothing
shown: Callable[[Expr], str] = object.__repr__


class TileOperand(CompileError):
    """The other operand is a tile value, whose operator it is."""


def _operator(op: str, compares: bool = False) -> tuple[_Method, _Method]:
    """The methods that `a op b` calls on a, and else on b."""

    def left(a: Any, b: Any) -> Any:
        try:
            return compare(op, a, b) if compares else binary(op, a, b)
        except TileOperand:
            return NotImplemented

    return left, lambda a, b: binary(op, b, a)


class Expr:
    """A typed value computed at run time.

    >>> import tilewright.language as T
    >>> half = T.float16(1.5)
    >>> isinstance(half, T.PrimExpr), half.dtype.name
    (True, 'float16')
    """

    dtype: DType

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one from another process, is the object that exists."""
        kind: Any = type(self)
        return kind, tuple(getattr(self, name) for name in kind.__match_args__)

    __add__, __radd__ = _operator("+")
    __sub__, __rsub__ = _operator("-")
    __mul__, __rmul__ = _operator("*")
    __truediv__, __rtruediv__ = _operator("/")
    __floordiv__, __rfloordiv__ = _operator("//")
    __mod__, __rmod__ = _operator("%")
    __lshift__, __rlshift__ = _operator("<<")
    __rshift__, __rrshift__ = _operator(">>")
    __and__, __rand__ = _operator("&")
    __or__, __ror__ = _operator("|")
    __xor__, __rxor__ = _operator("^")
    __pow__, __rpow__ = _operator("**")

    def astype(self, dtype: Any) -> Expr:
        return cast(self, find_dtype(dtype))

    def __neg__(self) -> Expr:
        a = number(self)
        if isinstance(a, Const):
            return const(
                -a.value if a.dtype.is_float else _wrap_int(-int(a.value), a.dtype), a.dtype
            )
        return Call("neg", (a,), a.dtype)

    def __pos__(self) -> Expr:
        return number(self)

    def __abs__(self) -> Expr:
        a = number(self)
        return Call("abs", (a,), a.dtype)

    def __invert__(self) -> Expr:
        if self.dtype.is_bool:
            return logical_not(self)
        if not self.dtype.is_int:
            raise CompileError(
                f"'~' needs an integer or bool, got {self.dtype}", fix="cast it to an integer first"
            )
        return Call("invert", (self,), self.dtype)

    __lt__ = _operator("<", True)[0]
    __le__ = _operator("<=", True)[0]
    __gt__ = _operator(">", True)[0]
    __ge__ = _operator(">=", True)[0]

    # `==` between expressions asks whether they are the same tree, because expressions are keys
    # everywhere in the compiler. A user's `==` is `compare("==", …)`: the tracer rewrites it in
    # kernels and macros, and answers `asked` where a plain helper says it.

    def __eq__(self, other: object) -> Any:
        # weak references may still compare when the module's globals have gone
        found = asked("==", self, other) if asked is not None else None
        return self is other if found is None else found

    def __ne__(self, other: object) -> Any:
        found = asked("!=", self, other)
        return not self == other if found is None else found

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if isinstance(self, Const):
            return bool(self.value)
        self._not_constant(
            "Python needs a plain True or False",
            "decorate the helper that branches on it with @T.macro, or use T.if_then_else",
        )

    def __index__(self) -> int:
        if isinstance(self, Const) and isinstance(self.value, int):
            return int(self.value)
        self._not_constant(
            "a compile-time integer is needed",
            "Python's lists, ranges and sizes take constants; a table that is indexed at run "
            "time is a tensor or a T.alloc_local",
        )

    def __float__(self) -> float:
        if isinstance(self, Const):
            return float(self.value)
        self._not_constant(
            "a compile-time number is needed",
            "use T.sqrt, T.exp, … in place of Python's math, and T.cast in place of float()",
        )

    def _not_constant(self, need: str, fix: str) -> NoReturn:
        raise CompileError(
            f"a run-time value was used where {need}",
            got=f"a value of type {self.dtype}",
            fix=fix,
            code="not-constant",
        )

    def __str__(self) -> str:
        said(self)
        return shown(self)

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True, eq=False, repr=False)
class Const(Expr, metaclass=Interned):
    """A number. `value` is a bool, int or float that the type can hold exactly."""

    value: int | float | bool
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Var(Expr, metaclass=Interned):
    """A named scalar: a loop variable, block or thread index, size, `Let` or scalar parameter.

    Names are unique within a program, so equal name and type mean the same variable.
    """

    name: str
    dtype: DType = INT32


@dataclass(frozen=True, eq=False, repr=False)
class _Binary(Expr, metaclass=Interned):
    op: str
    a: Expr
    b: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return type(self)(self.op, *children)


class Bin(_Binary):
    """`a op b` for op in BIN_OPS, both sides of one type, the result of that type."""

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype


class Cmp(_Binary):
    """`a op b` for op in CMP_OPS, both sides of one type, the result bool."""

    dtype = BOOL


@dataclass(frozen=True, eq=False, repr=False)
class Select(Expr, metaclass=Interned):
    """`a` where `cond`, else `b`; loads of the side not chosen do not happen."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.a, self.b)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Select(*children)


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expr, metaclass=Interned):
    """Conversion: to nearest even; to integers toward zero, saturating, NaN to 0; to fp8 and
    narrower saturating to the largest finite value."""

    dtype: DType
    a: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return cast(children[0], self.dtype)


@dataclass(frozen=True, eq=False, repr=False)
class Call(Expr, metaclass=Interned):
    """A pure function from `intrinsics.FUNCTIONS` applied to expressions."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Call(self.name, children, self.dtype)


BIN_OPS = ("+", "-", "*", "/", "//", "%", "min", "max", "&", "|", "^", "<<", ">>", "and", "or")
CMP_OPS = ("<", "<=", "==", "!=", ">", ">=")
FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "+": py.add, "-": py.sub, "*": py.mul, "//": py.floordiv, "%": py.mod, "min": min, "max": max,
    "&": py.and_, "|": py.or_, "^": py.xor, "<<": py.lshift, ">>": py.rshift,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b,
    "<": py.lt, "<=": py.le, "==": py.eq, "!=": py.ne, ">": py.gt, ">=": py.ge,
}  # fmt: skip
_ARITHMETIC = frozenset(("+", "-", "*", "//", "%", "min", "max"))
# integers that leave the other side as it is: on the left, on the right
_NEUTRAL = {"+": (0, 0), "-": (None, 0), "*": (1, 1), "//": (None, 1)}

TRUE = Const(True, BOOL)
FALSE = Const(False, BOOL)


def const(value: Any, dtype: DType | None = None) -> Const:
    """A constant, by default int32 (int64 when it needs it), float32 or bool.

    >>> const(3).dtype, const(1 << 40).dtype, const(0.5).dtype
    (int32, int64, float32)
    """
    if type(value) is int and (dtype is None or dtype is INT32) and -(1 << 31) <= value < 1 << 31:
        return Const(value, INT32)  # most of them
    value = value.item() if hasattr(value, "item") else value
    if dtype is None:
        if isinstance(value, bool):
            dtype = BOOL
        elif isinstance(value, int):
            dtype = INT32 if -(1 << 31) <= value < (1 << 31) else INT64
        else:
            dtype = FLOAT32
    if dtype.is_bool:
        return Const(bool(value), dtype)
    if dtype.is_int:
        if not isinstance(value, (int, bool)) and value != int(value):
            raise CompileError(
                f"{value} is not an integer, so it is no {dtype} constant",
                fix="round it, or use a float type",
            )
        value = int(value)
        if not dtype.min_value <= value <= dtype.max_value:
            span = f"{dtype.min_value}…{dtype.max_value}"
            raise CompileError(
                f"{value if value.bit_length() < 200 else 'this number'} does not fit {dtype}",
                expected=f"a value in {span}",
                fix="use a smaller number, or a float",
                code="too-large",
            )
        return Const(value, dtype)
    return Const(round_constant(float(value), dtype), dtype)


def round_constant(value: float, dtype: DType) -> float:
    """`value` rounded to `dtype` by the rules of `Cast`."""
    if dtype.bits >= 16 and -256 <= value <= 256 and value == int(value):
        return value  # which every such type holds
    import numpy as np

    if dtype.bits <= 8 and value == value:
        value = min(max(value, float(dtype.min_value)), float(dtype.max_value))
    with np.errstate(all="ignore"):
        return float(np.float64(value).astype(dtype.numpy))


def wrap(value: _Operand | Any, like: DType | None = None) -> Expr:
    """`value` as an expression; a Python number takes type `like` when that can hold it."""
    if isinstance(value, Expr):
        return value
    as_expr = getattr(value, "as_expr", None)
    if as_expr is not None:
        expr: Expr = as_expr()
        return expr
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        name, tile = getattr(value, "name", None), hasattr(value, "tile_value")
        raise (TileOperand if tile else CompileError)(
            f"a {'tile' if tile or name else type(value).__name__} cannot be used as a value",
            expected="a number or a run-time value",
            got=repr(value)[:80],
            fix=_instead(value, name),
            code="not-a-value",
        )
    if like is None:
        return const(value)
    if isinstance(value, float) and like.is_int:
        return const(value, FLOAT32)
    if isinstance(value, bool) and not like.is_bool:
        value = int(value)
    if like.is_bool and not isinstance(value, bool):
        return const(value)
    if like.is_int and not like.min_value <= value <= like.max_value:
        return const(value)
    return const(value, like)


def _instead(value: Any, name: Any) -> str:
    if value is None:
        return "a word or a function that returns nothing gives None"
    if isinstance(value, tuple) and any(hasattr(each, "tile_value") for each in value):
        each = "give each axis of T.tile a name: `for m, n in T.tile(M, N)`"
        return f"{each}; size= pins a size, and T.tile((low, high)) is a range"
    return f"use an element of it: {name}[…]" if isinstance(name, str) else "use a number"


def unify(a: _Operand, b: _Operand) -> tuple[Expr, Expr]:
    """Both sides as expressions of one type."""
    if isinstance(a, Expr):
        if isinstance(b, Expr):
            if a.dtype is b.dtype:
                return a, b
        elif type(b) is int and _holds(a.dtype, b):
            return a, Const(b, a.dtype)
    elif type(a) is int and isinstance(b, Expr) and _holds(b.dtype, a):
        return Const(a, b.dtype), b
    x = wrap(a, b.dtype if isinstance(b, Expr) else None)
    y = wrap(b, x.dtype)
    x = wrap(a, y.dtype) if not isinstance(a, Expr) else x
    common = promote(x.dtype, y.dtype)
    return cast(x, common), cast(y, common)


def _holds(kind: DType, value: int) -> bool:
    return kind.is_int and kind.min_value <= value <= kind.max_value


def cast(a: Expr, dtype: DType) -> Expr:
    """`a` converted; constants and no-op conversions fold."""
    if a.dtype == dtype:
        return a
    if isinstance(a, Const):
        if dtype.is_float:
            return const(float(a.value), dtype)
        if dtype.is_bool:
            return const(a.value != 0, dtype)
        if a.value != a.value:
            return const(0, dtype)
        low, high = int(dtype.min_value), int(dtype.max_value)
        if a.dtype.is_float:
            return const(int(min(max(a.value, low), high)), dtype)
        return const(_wrap_int(int(a.value), dtype), dtype)
    return Cast(dtype, a)


def _wrap_int(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.max_value else value


def number(a: Expr) -> Expr:
    """`a`, a bool as the int32 that arithmetic takes it for."""
    return cast(a, INT32) if a.dtype.is_bool else a


def binary(op: str, a: _Operand, b: _Operand) -> Expr:
    """`a op b`, promoted; integer constants fold."""
    if op in _ARITHMETIC:  # most of them
        x, y = unify(a, b)
        return folded(op, *((number(x), number(y)) if x.dtype.is_bool else (x, y)))
    if op in ("<<", ">>"):
        return _shift(op, a, b)
    if op == "**":
        return power(a, b)
    x, y = unify(a, b)
    if op in ("and", "or"):
        x, y = truth(x), truth(y)
    if op == "/" and not x.dtype.is_float:
        x, y = cast(number(x), FLOAT32), cast(number(y), FLOAT32)
    if op in ("&", "|", "^"):
        _require_integer(op, x, y)
    return folded(op, x, y)


def _require_integer(op: str, x: Expr, y: Expr) -> None:
    if x.dtype.is_float or y.dtype.is_float:
        raise CompileError(
            f"'{op}' needs integers, got {x.dtype if x.dtype.is_float else y.dtype}",
            fix="a power is **"
            if op == "^" and isinstance(y, Const)
            else 'use T.reinterpret("int32", x) for its bits, or T.cast(x, "int32") for its value',
            repair=swap("^", "**") if op == "^" and isinstance(y, Const) else None,
            code="dtype",
        )


def _shift(op: str, a: _Operand, b: _Operand) -> Expr:
    """A shift has the type of its left side; its count is an unsigned number that may be large."""
    x = number(wrap(a, b.dtype if isinstance(b, Expr) and not b.dtype.is_float else None))
    y = number(wrap(b, x.dtype if not x.dtype.is_float else None))
    _require_integer(op, x, y)
    if isinstance(y, Const):
        if y.value < 0:
            raise CompileError(
                f"a shift by a negative constant: '{op} {y.value}'",
                expected="a count of 0, 1, 2, …",
                fix=f"shift the other way: {'>>' if op == '<<' else '<<'} {-y.value}",
                code="arithmetic",
            )
        # by the width or more, bit by bit: nothing of the number is left but its sign
        if op == "<<" and y.value >= x.dtype.bits:
            return const(0, x.dtype)
        if y.value >= x.dtype.bits and x.dtype.kind == "uint":
            return const(0, x.dtype)
        count = min(int(y.value), x.dtype.bits - 1)
        if count <= x.dtype.max_value:
            return folded(op, x, const(count, x.dtype))
    if y.dtype.bits > x.dtype.bits:  # a count must not lose its upper bits
        wide = DTYPES[f"{x.dtype.kind}{y.dtype.bits}"]
        return cast(folded(op, cast(x, wide), cast(y, wide)), x.dtype)
    return folded(op, x, cast(y, x.dtype))


MOST_FACTORS = 8  # of a power that is written as a product, within 4 ulp of the exact one


def power(a: _Operand, b: _Operand) -> Expr:
    """a ** b: a product where b is a small constant integer."""
    x, y = (number(side) for side in unify(a, b))
    if isinstance(y, Const) and abs(y.value) <= MOST_FACTORS and y.value == int(y.value):
        found = _product(x, int(y.value))
        if found is not None:
            return found
    return Call("pow", (x, y), x.dtype)


def _product(x: Expr, count: int) -> Expr | None:
    """x to the power of `count`, by squaring; narrow floats are rounded once, at the end."""
    if count < -1 or (count < 0 and not x.dtype.is_float):
        return None  # the inverse of a product may leave the range although its power does not
    if x.dtype.is_float and x.dtype.bits < 32:
        wide = _product(cast(x, FLOAT32), count)
        return None if wide is None else cast(wide, x.dtype)
    if count == -1:
        return binary("/", const(1.0, x.dtype), x)
    total: Expr | None = None
    square = x
    while count:
        if count % 2:
            total = square if total is None else binary("*", total, square)
        count //= 2
        square = binary("*", square, square) if count else square
    return const(1, x.dtype) if total is None else total


def folded(op: str, x: Expr, y: Expr) -> Expr:
    """`x op y` for sides of one type, folded when both are integers and nothing wraps."""
    if op in ("//", "%") and isinstance(y, Const) and not y.value and not y.dtype.is_float:
        raise CompileError(
            "division by a constant zero", expected="a divisor that is not 0",
            fix="check the sizes it is computed from", code="arithmetic")  # fmt: skip
    if isinstance(x, Const) and isinstance(y, Const) and not x.dtype.is_float:
        count = y.value
        if op in ("<<", ">>") and not 0 <= count < x.dtype.bits:
            count = x.dtype.bits  # as an unsigned number it is large
        value = FOLD[op](x.value, count)
        if op in CMP_OPS or op in ("and", "or"):
            return TRUE if value else FALSE
        return const(_wrap_int(int(value), x.dtype), x.dtype)
    if op in _NEUTRAL and x.dtype.is_int:
        left, right = _NEUTRAL[op]
        if isinstance(y, Const) and y.value == right:
            return x
        if isinstance(x, Const) and x.value == left:
            return y
    if op == "and" and isinstance(x, Const):
        return y if x.value else FALSE
    if op == "or" and isinstance(x, Const):
        return TRUE if x.value else y
    return Cmp(op, x, y) if op in CMP_OPS else Bin(op, x, y)


def compare(op: str, a: _Operand, b: _Operand) -> Expr:
    return folded(op, *unify(a, b))


def select(cond: _Operand, a: _Operand, b: _Operand) -> Expr:
    c = truth(wrap(cond))
    x, y = unify(a, b)
    if isinstance(c, Const):
        return x if c.value else y
    return Select(c, x, y)


def truth(a: Expr) -> Expr:
    """`a` as a bool: itself, or `a != 0`."""
    return a if a.dtype.is_bool else compare("!=", a, const(0, a.dtype))


def logical_not(a: _Operand) -> Expr:
    x = truth(wrap(a))
    if isinstance(x, Const):
        return FALSE if x.value else TRUE
    return Call("not", (x,), BOOL)
