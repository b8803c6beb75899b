"""Operators on tile values and on tiles of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tilewright.lang.math import OPERATORS
from tilewright.lang.scalar import is_number
from tilewright.lang.values import *


def _computed(*exprs: Any) -> list[Any]:
    """Operands of arithmetic: floats as float32 at least, integers as int32 at least."""
    kinds = [e.dtype for e in exprs if isinstance(e, Expr)]
    kind = reduce(promote, kinds)
    if any(isinstance(e, float) for e in exprs) and not kind.is_float:
        kind = FLOAT32
    if kind.is_float and kind.bits < 32:
        kind = FLOAT32
    elif (kind.is_int and kind.bits < 32) or kind.is_bool:
        kind = INT32
    return [cast(wrap(e, kind), kind) for e in exprs]


def arithmetic(op: str) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Expr:
        x, y = _computed(a, b)
        if op == "/" and x.dtype.is_int:
            x, y = cast(x, FLOAT32), cast(y, FLOAT32)
        return wrap(compare(op, x, y) if op in CMP_OPS else OPERATORS[op](x, y))

    return compute


def logical(op: str) -> Callable[[Any, Any], Any]:
    """& | ^: of conditions, conditions."""

    def compute(a: Any, b: Any) -> Expr:
        x, y = wrap(a), wrap(b)
        if x.dtype.is_bool and y.dtype.is_bool:
            if op == "^":
                return compare("!=", x, y)
            return binary({"&": "and", "|": "or"}[op], x, y)
        return wrap(OPERATORS[op](*_computed(a, b)))  # a literal takes the other's type

    return compute


def combine(op: str, a: Any, b: Any) -> Any:
    """`a op b`, where one is a tile."""
    if op == "@":
        return WORDS["product"](value_of(a), value_of(b))
    if op == "+":
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Value) and (made := one.plus(other)) is not None:
                return made
    if op in ("//", "%", "<<", ">>") and is_tile(b):
        b = _with_ones(value_of(b))
    function = logical(op) if op in ("&", "|", "^") else arithmetic(op)
    return lift(function, a, b, what=f"`{op}`")


def _with_ones(value: Value) -> Value:
    """A value that is 1 in padding, by which dividing and shifting are no fault there."""
    ragged = [axis for axis in value.axes if axis.is_ragged]
    if not ragged or not value.kind.is_int:
        return value

    def at(places: Places) -> Expr:
        return select(inside(value.axes, places, ragged), value.element(places), 1)

    return Value(value.axes, value.kind, at, (value,))


def _operator(op: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not (is_tile(other) or is_number(other)):
            return NotImplemented
        return combine(op, other, self) if swapped else combine(op, self, other)

    return method


_METHODS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^", "matmul": "@",
}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}


def give_operators(kind: type) -> None:
    for name, op in _METHODS.items():
        setattr(kind, f"__{name}__", _operator(op))
        setattr(kind, f"__r{name}__", _operator(op, swapped=True))
    for name, op in _COMPARE.items():
        setattr(kind, f"__{name}__", _operator(op))
    setattr(kind, "__neg__", lambda self: lift(lambda x: -_computed(x)[0], self))  # noqa: B010
    setattr(kind, "__pos__", lambda self: self)  # noqa: B010
    setattr(kind, "__abs__", lambda self: lift(abs, self))  # noqa: B010
    setattr(kind, "__invert__", lambda self: lift(_inverted, self))  # noqa: B010


def _inverted(x: Expr) -> Expr:
    return logical_not(x) if x.dtype.is_bool else ~_computed(x)[0]


give_operators(Value)
give_operators(Tiles)
for _name, _op in _METHODS.items():
    setattr(Tiles, f"__i{_name}__", _operator(_op))
setattr(Tiles, "T", property(lambda self: value_of(self).T))  # noqa: B010
