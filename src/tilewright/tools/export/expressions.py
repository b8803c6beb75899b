"""Sizes as C++: functions of the values that a call knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ir.core import *
from tilewright.targets.cuda.tensormap import SM_COUNT, Value

_CALLS = {
    "+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "floormod", "min": "least",
    "max": "most", "<<": "shl", ">>": "shr",
}  # fmt: skip
_SIGNS = {"&": "&", "|": "|", "^": "^", "and": "&&", "or": "||"}


def as_number(value: Value, places: Mapping[str, int]) -> str:
    """`value` as an element of an array of `Number`s."""
    return f"TW_NUMBER({written(value, places)})"


def written(value: Value, places: Mapping[str, int]) -> str:
    """C++ of 64-bit integers. `places` says where values are.

    >>> n = Var("n")
    >>> written((n + 15) // 16, {"n": 0})
    'floordiv(add(v[0], 15), 16)'
    """

    def visit(e: Any) -> str:
        match e:
            case int():
                return str(int(e)) if abs(e) < 2**31 else f"INT64_C({e})"
            case str():
                return "v[MAX_VALUES - 1]" if e == SM_COUNT else f"v[{places[e]}]"
            case Var():
                return visit(e.name)
            case Const() if not e.dtype.is_float:
                return visit(int(e.value))
            case Bin() if e.op in _CALLS and e.dtype.is_int:
                return f"{_CALLS[e.op]}({visit(e.a)}, {visit(e.b)})"
            case Bin() if e.op in _SIGNS:
                return f"({visit(e.a)} {_SIGNS[e.op]} {visit(e.b)})"
            case Cmp():
                return f"({visit(e.a)} {e.op} {visit(e.b)})"
            case Select():
                return f"({visit(e.cond)} ? {visit(e.a)} : {visit(e.b)})"
            case Cast() if not e.dtype.is_float and not e.a.dtype.is_float:
                return visit(e.a)
            case Call("neg", (a,)) if e.dtype.is_int:
                return f"sub(0, {visit(a)})"
            case Call("abs", (a,)) if e.dtype.is_int:
                return f"most({visit(a)}, sub(0, {visit(a)}))"
        raise CompileError(
            f"the size {e} has no form in C++",
            expected="integers, sizes, + - * // %, min, max and comparisons",
            fix="pass what it depends on as a scalar, or fix the size",
            code="export",
        )

    return visit(value)
