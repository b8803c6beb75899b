"""Run-time numbers while a kernel is traced: what stands for one, when the text reads an element,
and what Python itself may do with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from tilewright.ir import arith
from tilewright.ir.core import *
from tilewright.lang.where import ORIGINS, by_theirs
from tilewright.support.forks import fork_lock

OPERATORS = (
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


# set by the builder: whether numbers are computed with as tile values are
widens: Callable[[], bool] = bool
_KEEPS = frozenset("pos abs lt le gt ge bool index float".split())


def _delegate(name: str) -> Callable[..., Any]:
    def operator(self: Scalar, *other: Any) -> Any:
        expr = self.as_expr()
        if expr.dtype.bits < 32 and name not in _KEEPS and not expr.dtype.is_bool and widens():
            expr = cast(expr, FLOAT32 if expr.dtype.is_float else INT32)
        return getattr(expr, f"__{name}__")(*other)

    return operator


for _name in OPERATORS:
    setattr(Scalar, f"__{_name}__", _delegate(_name))


@dataclass(frozen=True, eq=False, repr=False)
class Number(Scalar):
    """A number of a narrow type in a kernel over tiles."""

    expr: Expr

    def as_expr(self) -> Expr:
        return self.expr

    dtype = property(lambda self: self.expr.dtype)


def as_number(value: Any) -> Any:
    """A number as the text has it: what is computed with it is not narrow over tiles."""
    if not isinstance(value, Expr) or value.dtype.bits >= 32 or value.dtype.is_bool:
        return value
    return Number(value) if widens() else value


@dataclass(eq=False, repr=False)
class Lost:
    """The value of a name after the run-time loop or branch that bound it."""

    name: str
    kind: str
    line: int
    is_tile: bool
    dtype: str  # of its value
    loop: bool  # whether the loop counts by it
    told: str = ""  # what to do, where it is no number

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
        if self.told:
            fix = self.told
        elif self.is_tile:
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


for _name in [*OPERATORS, *"eq ne iter len getitem setitem call contains str format".split()]:
    setattr(Lost, f"__{_name}__", Lost.fail)


def not_lost(value: Any) -> Any:
    """`value`, which must not be lost."""
    if isinstance(value, Lost):
        value.fail()
    return value


def is_runtime(value: Any) -> bool:
    """A number that only the running kernel knows."""
    return isinstance(value, Scalar) or (isinstance(value, Expr) and not isinstance(value, Const))


def concrete(value: Any) -> Any:
    """Constants as the Python numbers they are."""
    return value.value if isinstance(value, Const) else value


# ── when the text reads an element ───────────────────────────────────────────────────────────────

# `A[i]` in an expression is read where it stands, but becomes part of the program only when an op
# uses it: an operand of a sum, an entry of a dict, a default argument. Until then it is a `Read`,
# which knows the moment. `Builder.emit` turns reads into loads; one whose memory has been written
# in between is named at its own place first.


class Moment(NamedTuple):
    """A point of the trace: an open body, and what had happened before."""

    order: int  # counts reads
    body: int  # serial number of the innermost open body
    at: int  # how many ops that body had
    writes: int  # how many ops had written the buffer
    sure: bool  # not in a side of a condition that may not be taken

    @property
    def scope(self) -> tuple[int, int, bool]:
        """Reads of one element in one scope give one value."""
        return self.body, self.writes, self.sure


@dataclass(frozen=True, eq=False, repr=False)
class Read(Load):
    """A load that no op holds yet."""

    moment: Moment = field(default=Moment(0, 0, 0, 0, True))

    def __eq__(self, other: object) -> Any:
        asked = getattr(arith, "asked", None)  # modules may have gone
        found = asked("==", self, other) if asked is not None else None
        if found is not None:
            return found
        return (
            type(other) is Read
            and self.buffer == other.buffer
            and self.indices == other.indices
            and self.moment.scope == other.moment.scope
        )

    def __hash__(self) -> int:
        return hash((self.buffer, self.indices, self.moment.scope))

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Read(self.buffer, children, self.loc, self.moment)


def reads(expr: Expr) -> list[Read]:
    """The reads in `expr`; asked for each time that it is used, and kept with it."""
    below: list[Read] | None = expr.__dict__.get("_reads")
    if below is None:
        below = [x for x in loads(expr) if type(x) is Read and x is not expr]
        expr.__dict__["_reads"] = below
    return [expr, *below] if type(expr) is Read else below


def conditional_reads(expr: Expr) -> list[Read]:
    """Reads that happen only where a condition inside `expr` says so."""
    if isinstance(expr, Select):
        return conditional_reads(expr.cond) + reads(expr.a) + reads(expr.b)
    if isinstance(expr, Bin) and expr.op in ("and", "or"):
        return conditional_reads(expr.a) + reads(expr.b)
    return [read for child in expr.children for read in conditional_reads(child)]


@dataclass
class OpenBody:
    """A body that is being built."""

    serial: int
    loop: bool  # whether it runs more than once
    order: int  # of the first read inside
    log: int  # how many writes came before
    guard: Expr | None = None  # of a branch
    parallel: bool = False
    counters: Sequence[tuple[Var, Expr, Expr, Expr]] = ()  # of loops: start, stop, step
    warps: tuple[int, int] | None = None  # of a placement: the first, and how many
    ops: list[Op] = field(default_factory=list)
    # what to put before op number …, with its order
    early: dict[int, list[tuple[int, Op]]] = field(default_factory=dict)
    crossing: list[Read] = field(default_factory=list)  # reads from before the loop

    def closed(self) -> tuple[Op, ...]:
        if not self.early:
            return tuple(self.ops)
        found: list[Op] = []
        for at in range(len(self.ops) + 1):
            found += [op for _, op in self.early.get(at, ())]
            found += self.ops[at : at + 1]
        return tuple(found)


# ── what Python itself does with run-time values ─────────────────────────────────────────────────

# Expressions are keys everywhere in the compiler, where `==` and `hash` mean the tree. While a
# kernel is traced, the same calls by a user's code mean the number, which nobody knows yet: a
# comparison becomes an expression, which Python's containers refuse as a condition; a hash or a
# text is refused here.

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
_lock = fork_lock()
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
