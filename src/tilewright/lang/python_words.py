"""Python's functions and operators in a kernel's text: those that have a meaning for run-time
values, and those that could make more than anybody can use."""

from __future__ import annotations

import builtins
import functools
import numbers
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tilewright.ir.expr import Expr, binary, truth, wrap
from tilewright.lang import math
from tilewright.lang.builder import word_of
from tilewright.lang.frames import Scopes, condition
from tilewright.lang.handles import Tile
from tilewright.lang.loops import Loop
from tilewright.lang.scalar import is_runtime
from tilewright.support import limits
from tilewright.support.errors import CompileError, swap


class PythonWords(Scopes):
    """Rewritten calls of Python's own functions."""

    def items(self, iterable: Any) -> Any:
        """The iterable of a comprehension."""
        if isinstance(iterable, (Loop, list, tuple, dict, str)):
            return iterable  # as it is, or there already
        return _counted(iterable)

    def power(self, op: str, a: Any, b: Any) -> Any:
        """`a ** b`, `a << b`, and a list `* b`."""
        if op == "*":
            if isinstance(a, (list, tuple)) and isinstance(b, int):
                _check_items(len(a) * b)
        elif type(a) is int and type(b) is int and b > 64:
            bits = a.bit_length() * b if op == "**" else a.bit_length() + b
            limits.INTEGER_BITS.check(
                bits, "this number is too large", got=f"{bits} bits", fix="use a smaller one"
            )
        return math.OPERATORS[op](a, b)

    def mark(self) -> int:
        """Before the sides of a choice are evaluated."""
        return len(self.builder.trail)

    def chosen(self, function: Any, cond: Any, mark: int, *args: Any, **kwargs: Any) -> Any:
        """`T.if_then_else(cond, …)`, and calls that may turn out to be one."""
        if getattr(function, "__wrapped__", None) is math.if_then_else and is_runtime(cond):
            op = self.builder.effect_since(mark)
            if op is not None:
                raise CompileError(
                    "a side of T.if_then_else does more than compute a value: both would run, "
                    "whichever is chosen",
                    got=word_of(op),
                    fix="write an `if`, or bind the result to a name on a line of its own first",
                    code="python",
                )
        return function(cond, *args, **kwargs)

    def builtin(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`max(a, b)` and its kin, of Python or, for run-time values, of the language."""
        if function in (builtins.tuple, builtins.list) and args and isinstance(args[0], range):
            _check_items(len(args[0]))
        runtime = any(is_runtime(a) for a in args)
        if function is builtins.range and runtime:
            raise CompileError(
                "a run-time range cannot be unrolled",
                expected="a compile-time integer",
                got="a run-time value",
                fix="loop over it: `for i in range(n):`",
                code="not-constant",
            )
        if function is builtins.print and (runtime or any(isinstance(a, Tile) for a in args)):
            raise CompileError(
                "Python's print runs once, at compile time, and a run-time value has none then",
                fix="use T.print",
                code="python",
                repair=swap("print", "T.print"),
            )
        if function is builtins.isinstance and runtime and _asks_for_number(args[1]):
            raise CompileError(
                "isinstance of a run-time value sees what stands for it at compile time",
                expected="T.PrimExpr, or a look at its dtype",
                fix="ask isinstance(x, T.PrimExpr) whether it is a run-time value, and x.dtype for "
                "its type",
                code="python",
            )
        if function in _FOLDED and len(args) == 1 and isinstance(args[0], Iterable):
            items = tuple(self.items(args[0]))
            if any(is_runtime(a) for a in items):
                args = items if function in (max, min) else (items,)
                runtime = True
            else:
                args = (items,)
        if runtime and not kwargs:
            ours = _BUILTINS.get(function)
            if ours is not None:
                return ours(*args)
        return function(*args, **kwargs)


def _check_items(count: int) -> None:
    limits.ITEMS.check(
        count,
        "too many items for Python to make",
        got=f"{count:,}".replace(",", " "),
        fix="loop at run time: `for i in range(n)`",
    )


def _counted(iterable: Any) -> Iterator[Any]:
    for at, item in enumerate(iterable):
        if at >= limits.ITEMS.usual:
            _check_items(at + 1)
        yield item


def _asks_for_number(kinds: Any) -> bool:
    each = kinds if isinstance(kinds, tuple) else (kinds,)
    return any(kind in (bool, int, float, complex) or kind in _NUMBERS for kind in each)


_NUMBERS = (numbers.Number, numbers.Real, numbers.Integral, numbers.Rational)


def _int(x: Any) -> Expr:
    """Toward zero; integers keep their type."""
    value = wrap(x)
    return value if value.dtype.is_int else math.cast(value, "int32")


def _float(x: Any) -> Expr:
    value = wrap(x)
    return value if value.dtype.is_float and value.dtype.bits >= 32 else math.cast(value, "float32")


def _fold(op: str) -> Callable[[Any], Any]:
    """`all` and `any`."""

    def fold(items: Any) -> Any:
        tests = [condition(item) for item in items]
        known = [bool(test) for test in tests if not isinstance(test, Expr)]
        if (op == "or") in known:
            return op == "or"
        return functools.reduce(
            functools.partial(binary, op), [test for test in tests if isinstance(test, Expr)]
        )

    return fold


_FOLDED = (max, min, any, all)
_BUILTINS: dict[Any, Callable[..., Any]] = {
    max: math.max,
    min: math.min,
    any: _fold("or"),
    all: _fold("and"),
    int: _int,
    float: _float,
    bool: lambda x: truth(wrap(x)),
    divmod: lambda a, b: (a // b, a % b),
    round: math.round,
}
