"""Things that stand for a run-time number without being an expression: they become one when an
operator or an op asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Const, Expr, cast

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lshift "
    "rlshift rshift rrshift and rand or ror xor rxor neg pos abs invert lt le gt ge bool index"
).split()


class Scalar:
    """Base: `as_expr()` gives the expression, and every operator of expressions works on it."""

    def as_expr(self) -> Expr:
        raise NotImplementedError

    def astype(self, to: Any) -> Expr:
        return cast(self.as_expr(), dtype(to))


def _delegate(name: str) -> Callable[..., Any]:
    def operator(self: Scalar, *other: Any) -> Any:
        return getattr(self.as_expr(), name)(*other)

    return operator


for _name in _OPERATORS:
    setattr(Scalar, f"__{_name}__", _delegate(f"__{_name}__"))


def is_runtime(value: Any) -> bool:
    """A number that only the running kernel knows."""
    return isinstance(value, Scalar) or (isinstance(value, Expr) and not isinstance(value, Const))


def concrete(value: Any) -> Any:
    """Constants as the Python numbers they are."""
    return value.value if isinstance(value, Const) else value
