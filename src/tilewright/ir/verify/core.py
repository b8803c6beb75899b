"""What the verifier's rules stand on: stages, the context of an op, names in scope, and the
checks that many rules share. Every failure raises `VerifyError` at the op's position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, NoReturn, TypeVar

from tilewright.ir.core import *
from tilewright.ir.text.printer import FORMS, print_op
from tilewright.ir.text.scan import did_you_mean
from tilewright.support.errors import Loc, VerifyError, occurrence


class Stage(Enum):
    """How far a program has come. TILE: layouts, atoms and sync are optional. LAID_OUT: all
    chosen. THREAD: scalars, loops, intrinsics and sync only."""

    TILE = "tile"
    LAID_OUT = "laid_out"
    THREAD = "thread"


@dataclass
class Context:
    """Where the verifier is: the op, what is in scope and what encloses it."""

    program: Program
    stage: Stage
    op: Op | None = None
    kernel: Kernel | None = None
    has_roles: bool = False
    enclosing: list[Op] = field(default_factory=list)
    vars: dict[str, Var] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: dict[str, Op | None] = field(default_factory=dict)

    @property
    def laid_out(self) -> bool:
        return self.stage is Stage.LAID_OUT

    def inside(self, *classes: type[Op]) -> Op | None:
        """The innermost enclosing op of one of `classes`."""
        return next((op for op in reversed(self.enclosing) if isinstance(op, classes)), None)

    def fail(self, message: str, **details: Any) -> NoReturn:
        """Raise for the op, or another as `op`, at its position or the nearest one around it."""
        op: Op | None = details.pop("op", self.op)
        loc = occurrence(details.pop("loc", None), op.loc if op is not None else None)
        for outer in reversed(self.enclosing):
            loc = loc or outer.loc
        if op is not None and op.loc is None and type(op) in FORMS:
            details["notes"] = (f"in: {print_op(op).splitlines()[0]}",)
        raise VerifyError(message, loc=loc or self.program.loc, **details)

    # ── what the op's operands must be ───────────────────────────────────────────────────────

    def integer(self, expr: Expr | None, what: str) -> None:
        if expr is not None and not expr.dtype.is_int:
            self.fail(f"{what} must be an integer", expected="an integer", got=str(expr.dtype))

    def boolean(self, expr: Expr, what: str) -> None:
        if not expr.dtype.is_bool:
            self.fail(
                f"{what} must be a bool",
                expected="bool",
                got=str(expr.dtype),
                fix=f"compare: {expr} != 0",
            )

    def dtype(self, got: DType, expected: DType, what: str) -> None:
        if got != expected:
            self.fail(
                f"{what} has another type than what it goes to",
                expected=str(expected),
                got=str(got),
                fix=f"convert it: {expected}(…)",
            )

    def one_of(self, value: Any, known: tuple[Any, ...] | dict[str, Any], what: str) -> None:
        if value not in known:
            self.fail(
                f"unknown {what} {value!r}",
                expected="one of " + ", ".join(map(str, known)),
                fix=did_you_mean(str(value), map(str, known)),
            )


Check = Callable[[Any, Context], None]
C = TypeVar("C", bound=Check)
RULES: dict[str, list[Check]] = {}  # by the name of an op's class


def rule(check: C) -> C:
    """A check of the ops that its first parameter is annotated with."""
    for name in check.__annotations__["op"].split(" | "):
        RULES.setdefault(name, []).append(check)
    return check


# ── names ────────────────────────────────────────────────────────────────────────────────────


def define(what: Var | Buffer, context: Context) -> None:
    """Bring a variable or buffer into scope; its name must be new in the whole program."""
    if what.name in context.names:
        before = context.names[what.name]
        where = f" at {before.loc}" if before is not None and before.loc else ""
        context.fail(
            f"{what.name} is defined twice{where}",
            expected="names that are unique within the program",
            fix="rename one (rewrite.rename_unique gives a copied body fresh names)",
        )
    context.names[what.name] = context.op
    if isinstance(what, Var):
        context.vars[what.name] = what
    else:
        context.buffers[what.name] = what


def use_var(var: Var, context: Context, loc: Loc | None = None) -> None:
    found = context.vars.get(var.name)
    if found is var:
        return
    if found is not None:
        context.fail(
            f"{var.name} is used as {var.dtype} but defined as {found.dtype}",
            loc=loc,
            expected=str(found.dtype),
            got=str(var.dtype),
        )
    where = "is not in scope here" if var.name in context.names else "is never defined"
    if var.name in context.buffers:
        where = "is a buffer, not a variable"
    fix = did_you_mean(var.name, context.vars) or (
        f"make {var.name} a parameter, or a size of one: sizes are known from the shapes of tensors"
    )
    context.fail(f"variable {var.name} {where}", loc=loc, fix=fix)


def use_buffer(buffer: Buffer, context: Context, loc: Loc | None = None) -> None:
    found = context.buffers.get(buffer.name)
    if found is buffer or found == buffer:
        return
    if found is None:
        where = "is not in scope here" if buffer.name in context.names else "is never allocated"
        fix = did_you_mean(buffer.name, context.buffers)
        context.fail(f"buffer {buffer.name} {where}", loc=loc, fix=fix)
    different = [
        name
        for name in ("shape", "dtype", "space", "strides", "layout")
        if getattr(found, name) != getattr(buffer, name)
    ]
    context.fail(
        f"{buffer.name} here is not the buffer that was allocated: {', '.join(different)} differ",
        loc=loc,
        expected=", ".join(_shown(getattr(found, name)) for name in different),
        got=", ".join(_shown(getattr(buffer, name)) for name in different),
        fix="replace it everywhere (rewrite.replace_buffers)",
    )


def _shown(value: Any) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else str(value)


def block_threads(kernel: Kernel) -> int:
    return prod(kernel.threads)


def block_warps(kernel: Kernel) -> int:
    return -(-block_threads(kernel) // WARP)
