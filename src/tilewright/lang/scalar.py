"""Things that stand for a run-time number without being an expression: they become one when an
operator or an op asks."""

from __future__ import annotations

from typing import Any

from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Const, Expr, cast, compare


class Scalar:
    """Base: `as_expr()` gives the expression, operators build on it."""

    def as_expr(self) -> Expr:
        raise NotImplementedError

    def astype(self, to: Any) -> Expr:
        return cast(self.as_expr(), dtype(to))

    def __add__(self, other: Any) -> Expr:
        return self.as_expr() + other

    def __radd__(self, other: Any) -> Expr:
        return other + self.as_expr()

    def __sub__(self, other: Any) -> Expr:
        return self.as_expr() - other

    def __rsub__(self, other: Any) -> Expr:
        return other - self.as_expr()

    def __mul__(self, other: Any) -> Expr:
        return self.as_expr() * other

    def __rmul__(self, other: Any) -> Expr:
        return other * self.as_expr()

    def __truediv__(self, other: Any) -> Expr:
        return self.as_expr() / other

    def __rtruediv__(self, other: Any) -> Expr:
        return other / self.as_expr()

    def __floordiv__(self, other: Any) -> Expr:
        return self.as_expr() // other

    def __rfloordiv__(self, other: Any) -> Expr:
        return other // self.as_expr()

    def __mod__(self, other: Any) -> Expr:
        return self.as_expr() % other

    def __rmod__(self, other: Any) -> Expr:
        return other % self.as_expr()

    def __pow__(self, other: Any) -> Expr:
        return self.as_expr() ** other

    def __rpow__(self, other: Any) -> Expr:
        return other ** self.as_expr()

    def __lshift__(self, other: Any) -> Expr:
        return self.as_expr() << other

    def __rlshift__(self, other: Any) -> Expr:
        return other << self.as_expr()

    def __rshift__(self, other: Any) -> Expr:
        return self.as_expr() >> other

    def __rrshift__(self, other: Any) -> Expr:
        return other >> self.as_expr()

    def __and__(self, other: Any) -> Expr:
        return self.as_expr() & other

    def __rand__(self, other: Any) -> Expr:
        return other & self.as_expr()

    def __or__(self, other: Any) -> Expr:
        return self.as_expr() | other

    def __ror__(self, other: Any) -> Expr:
        return other | self.as_expr()

    def __xor__(self, other: Any) -> Expr:
        return self.as_expr() ^ other

    def __rxor__(self, other: Any) -> Expr:
        return other ^ self.as_expr()

    def __neg__(self) -> Expr:
        return -self.as_expr()

    def __pos__(self) -> Expr:
        return self.as_expr()

    def __abs__(self) -> Expr:
        return abs(self.as_expr())

    def __invert__(self) -> Expr:
        return ~self.as_expr()

    def __lt__(self, other: Any) -> Expr:
        return compare("<", self.as_expr(), other)

    def __le__(self, other: Any) -> Expr:
        return compare("<=", self.as_expr(), other)

    def __gt__(self, other: Any) -> Expr:
        return compare(">", self.as_expr(), other)

    def __ge__(self, other: Any) -> Expr:
        return compare(">=", self.as_expr(), other)

    def __bool__(self) -> bool:
        return bool(self.as_expr())

    def __index__(self) -> int:
        return self.as_expr().__index__()


def is_runtime(value: Any) -> bool:
    """A number that only the running kernel knows."""
    return isinstance(value, Scalar) or (isinstance(value, Expr) and not isinstance(value, Const))


def concrete(value: Any) -> Any:
    """Constants as the Python numbers they are."""
    return value.value if isinstance(value, Const) else value
