"""Python's functions and operators in a kernel's text: those that have a meaning for run-time
values, and those that could make more than anybody can use."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

from tilewright.ir.expr import truth, wrap
from tilewright.lang import math
from tilewright.lang.handles import Tile
from tilewright.lang.loops import Loop
from tilewright.lang.scalar import is_runtime
from tilewright.support import limits
from tilewright.support.errors import CompileError, swap


class PythonWords:
    """What rewritten calls of Python's own words do."""

    def items(self, iterable: Any) -> Any:
        """What a comprehension runs over."""
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
        return OPERATORS[op](a, b)

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
        if function in (max, min) and len(args) == 1 and isinstance(args[0], (list, tuple)):
            args = tuple(args[0])
        if not kwargs and any(is_runtime(a) for a in args):
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


_BUILTINS: dict[Any, Callable[..., Any]] = {
    max: math.max,
    min: math.min,
    int: lambda x: math.cast(x, "int32"),
    float: lambda x: math.cast(x, "float32"),
    bool: lambda x: truth(wrap(x)),
    round: math.round,
}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "@": lambda a, b: a @ b,
}
