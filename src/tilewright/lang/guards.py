"""What Python itself does with run-time values of a kernel's text: comparing them inside its
containers, hashing them as keys, writing them as text.

Expressions are keys everywhere in the compiler, where `==` and `hash` mean the tree. While a kernel
is traced, the same calls by a user's code mean the number, which nobody knows yet: a comparison
becomes an expression, which Python's containers refuse as a condition; a hash or a text is refused
here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from tilewright.ir import arith
from tilewright.ir.expr import Const, Expr, Load, compare, wrap
from tilewright.lang.reads import Read
from tilewright.lang.scalar import Scalar
from tilewright.lang.where import ORIGINS, by_theirs
from tilewright.support.errors import CompileError

TRACING: ContextVar[bool] = ContextVar("tracing", default=False)
_QUOTING: ContextVar[bool] = ContextVar("quoting", default=False)


def is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float, Expr, Scalar)) or hasattr(value, "item")


def _asked(
    op: str,
    a: object,
    b: object,
    # bound here because weak references may still compare when the module's globals have gone
    tracing: ContextVar[bool] = TRACING,
) -> Expr | bool | None:
    """`a == b` said by a user's code, or by a container of theirs, while a kernel is traced."""
    if not tracing.get() or not by_theirs(sys._getframe(2)):
        return None
    if not is_number(a) or not is_number(b):
        return None
    found = compare(op, wrap(a), wrap(b))
    return bool(found.value) if isinstance(found, Const) else found


def _said(value: object) -> None:
    """A user's code asks for the text of `value`."""
    if isinstance(value, Const) or not TRACING.get() or _QUOTING.get():
        return
    if by_theirs(sys._getframe(2)):
        raise CompileError(
            "a run-time value has no text at compile time",
            got=f"a value of type {wrap(value).dtype}",
            fix="T.print shows values while the kernel runs; {x!r} writes the expression",
            code="not-constant",
        )


@contextmanager
def quoting() -> Iterator[None]:
    """Messages may show expressions."""
    token = _QUOTING.set(True)
    try:
        yield
    finally:
        _QUOTING.reset(token)


def _hash(plain: Any) -> Any:
    """`plain`, a hash of expressions, for the compiler; a user's code hashes numbers."""

    # bound here: this is called for every part of every expression
    def guarded(self: Any, getframe: Any = sys._getframe, origin: Any = ORIGINS.get) -> int:
        frame = getframe(1)
        if origin(frame.f_code.co_filename) in _INNER:
            return plain(self)  # type: ignore[no-any-return]
        if TRACING.get() and by_theirs(frame):
            if isinstance(self, Const):
                return hash(self.value)
            raise CompileError(
                "a dict or a set is looked up with a run-time value",
                expected="a key that is known at compile time",
                got=f"a value of type {wrap(self).dtype}",
                fix="choose with an `if`, or keep the values in a tensor and index that",
                code="not-constant",
            )
        return plain(self)  # type: ignore[no-any-return]

    return guarded


_INNER = ("ours", "nobody")
# Hashing by a function of Python would slow the whole compiler down, so it is watched only while
# some kernel is traced.
_PLAIN = {Expr: object.__hash__, Load: Load.__hash__, Read: Read.__hash__}
_GUARDED = {kind: _hash(plain) for kind, plain in _PLAIN.items()}
_lock = Lock()
_watchers = 0


def _watch(by: int) -> None:
    global _watchers
    with _lock:
        _watchers += by
        if _watchers == max(by, 0):  # the first came, or the last has gone
            for kind, chosen in (_GUARDED if by > 0 else _PLAIN).items():
                setattr(kind, "__hash__", chosen)  # noqa: B010


@contextmanager
def guarded() -> Iterator[None]:
    """A kernel is traced."""
    token = TRACING.set(True)
    _watch(1)
    try:
        yield
    finally:
        _watch(-1)
        TRACING.reset(token)


arith.asked, arith.said = _asked, _said
setattr(Scalar, "__hash__", _hash(object.__hash__))  # noqa: B010
