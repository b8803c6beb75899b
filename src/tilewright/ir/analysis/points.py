"""Integer expressions at many points at once, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.ir.core import *

_quietly = np.errstate(divide="ignore")  # a quotient that is not asked for may divide by 0
_NUMPY: dict[str, Callable[..., Any]] = {
    **{op: FOLD[op] for op in ("+", "-", "*", "&", "|", "^", "<<", ">>", *CMP_OPS)},
    "//": _quietly(np.floor_divide), "%": _quietly(np.remainder), "neg": np.negative,
    "min": np.minimum, "max": np.maximum, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not,
}  # fmt: skip


def wrapped(found: Any, kind: DType) -> Any:
    """`found` as `kind` holds it; an index of 32 or 64 bits that overflows is undefined."""
    if not kind.is_int or kind.bits == 64 or kind == INT32:
        return found
    least = int(kind.min_value)
    return (found - least) % (1 << kind.bits) + least


def evaluate(
    expr: Expr, values: Mapping[Var, Any], held: Callable[[Any, DType], Any] = wrapped
) -> Any:
    """An integer or bool expression over arrays of its variables' values; `held`: what a type
    makes of a result."""
    if isinstance(expr, Var):
        return values[expr]
    parts = (evaluate(child, values, held) for child in expr.children)
    match expr:
        case Const(value) if (expr.dtype.is_int or expr.dtype.is_bool) and value < 1 << 63:
            return np.int64(value)
        case Bin(op) | Cmp(op) | Call(op) if op in _NUMPY:
            return held(_NUMPY[op](*parts), expr.dtype)
        case Select():
            return np.where(*parts)
        case Cast(a=a) if expr.dtype.is_int:
            return held(np.add(evaluate(a, values, held), 0), expr.dtype)  # bools count
        case Cast(a=a) if expr.dtype.is_bool:
            return np.not_equal(evaluate(a, values, held), 0)
    raise CompileError(f"{expr} is not known at compile time")


def at_most(expr: Expr, values: Mapping[Var, Any], is_data: Callable[[Expr], bool]) -> Any:
    """What `expr` does not exceed if data are not negative; None where nothing bounds it.

    >>> n, length = Var("n"), Var("length")
    >>> e = (binary("min", length, n) - length + 7) // 8
    >>> int(at_most(e, {n: 16}, lambda x: length in variables(x)))
    2
    """
    if not is_data(expr):
        return evaluate(expr, values)
    match expr:
        case Bin(op="min"):
            found = [at_most(part, values, is_data) for part in expr.children]
            known = [x for x in found if x is not None]
            return np.minimum(known[0], known[-1]) if known else None
        case Bin(op="+" | "*" | "//" as op, a=a, b=Const(value=by)) if by > 0:
            most = at_most(a, values, is_data)
            return None if most is None else _NUMPY[op](most, np.int64(by))
        case Bin(op="-", a=a):
            return at_most(a, values, is_data)
    return None
