"""Things that stand for a run-time number without being an expression: they become one when an
operator or an op asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewright.ir import arith
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Const, Expr, cast
from tilewright.support.errors import CompileError

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lshift "
    "rlshift rshift rrshift and rand or ror xor rxor neg pos abs invert lt le gt ge bool index "
    "float"
).split()


class Scalar:
    """Base: `as_expr()` gives the expression, and every operator of expressions works on it."""

    def as_expr(self) -> Expr:
        raise NotImplementedError

    def astype(self, to: Any) -> Expr:
        return cast(self.as_expr(), dtype(to))

    def __eq__(self, other: object) -> Any:
        found = arith.asked("==", self, other)
        return self is other if found is None else found

    def __ne__(self, other: object) -> Any:
        found = arith.asked("!=", self, other)
        return self is not other if found is None else found

    __hash__ = object.__hash__

    def __str__(self) -> str:
        arith.said(self)
        return repr(self)


def _delegate(name: str) -> Callable[..., Any]:
    def operator(self: Scalar, *other: Any) -> Any:
        return getattr(self.as_expr(), name)(*other)

    return operator


for _name in _OPERATORS:
    setattr(Scalar, f"__{_name}__", _delegate(f"__{_name}__"))


@dataclass(eq=False, repr=False)
class Lost:
    """The value of a name after the run-time loop or branch that bound it."""

    name: str
    kind: str
    line: int
    is_tile: bool
    dtype: str  # of its value
    loop: bool  # whether the loop counts by it

    def fail(self, *_: Any) -> NoReturn:
        if self.kind == "kernel":
            raise CompileError(
                f"{self.name!r} was bound in an earlier kernel (line {self.line}) and has no value "
                "after it",
                fix="compute it again, or pass it on through T.alloc_global",
                code="lost-name",
            )
        dtype = f'"{self.dtype}"' if self.dtype else "dtype"
        fix = (
            f"before the {self.kind}: {self.name} = T.alloc_var({dtype}), then assign to it inside"
        )
        if self.is_tile:
            fix = f"allocate it before the {self.kind}"
        elif self.loop:
            fix = (
                f"keep it: last = T.alloc_var({dtype}) before the {self.kind}, last = {self.name} "
                "inside, last after it"
            )
        raise CompileError(
            f"{self.name!r} was bound inside a run-time {self.kind} (line {self.line}) and has no "
            "value after it",
            fix=fix,
            code="lost-name",
        )

    def as_expr(self) -> Expr:
        self.fail()


for _name in [*_OPERATORS, *"eq ne iter len getitem setitem call contains str format".split()]:
    setattr(Lost, f"__{_name}__", Lost.fail)


def is_runtime(value: Any) -> bool:
    """A number that only the running kernel knows."""
    return isinstance(value, Scalar) or (isinstance(value, Expr) and not isinstance(value, Const))


def concrete(value: Any) -> Any:
    """Constants as the Python numbers they are."""
    return value.value if isinstance(value, Const) else value
