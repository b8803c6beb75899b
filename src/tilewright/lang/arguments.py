"""Checks of arguments that many words share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tilewright.ir.expr import Const, Expr, wrap
from tilewright.support.errors import CompileError, swap

F = TypeVar("F", bound=Callable[..., Any])


def named(name: str, doc: str) -> Callable[[F], F]:
    """A word that a table makes."""

    def name_it(word: F) -> F:
        word.__name__ = word.__qualname__ = name
        word.__doc__ = doc
        return word

    return name_it


def static_int(value: Any, what: str, least: int | None = None) -> int:
    """`value` as a compile-time integer."""
    expr = value if isinstance(value, Expr) else None
    if isinstance(expr, Const):
        value = expr.value
    if isinstance(value, bool) or not hasattr(value, "__index__") or (
        expr is not None and not isinstance(expr, Const)
    ):  # fmt: skip
        raise CompileError(
            f"{what} must be a compile-time integer",
            got="a run-time value" if expr is not None else repr(value)[:60],
            fix="use a number, or an argument of the factory",
            code="not-constant",
        )
    number = int(value.__index__())
    if least is not None and number < least:
        raise CompileError(
            f"{what} must be at least {least}", got=str(number), fix=f"write {least} or more"
        )
    return number


def integer(
    value: Any,
    what: str,
    fix: str = "divide with // instead of /, or cast with T.int32(...)",
    bools: bool = False,
) -> Expr:
    """`value` as an integer expression."""
    expr = wrap(value)
    if not (expr.dtype.is_int or (bools and expr.dtype.is_bool)):
        raise CompileError(
            f"{what} must be an integer",
            got=repr(value) if isinstance(value, float) else f"a value of type {expr.dtype}",
            fix=fix,
            code="not-integer",
            repair=swap("/", "//"),
        )
    return expr


def one_of(value: Any, known: Collection[Any], what: str, fix: str) -> Any:
    """`value` where it is known; what it stands for, in a mapping."""
    if value not in known:
        raise CompileError(
            what,
            expected=", ".join(repr(each) for each in known if each is not None),
            got=repr(value),
            fix=fix,
        )
    return known[value] if isinstance(known, Mapping) else value
