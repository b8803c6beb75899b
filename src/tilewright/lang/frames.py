"""What is open while a kernel's text runs: loops and branches, and what names stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.ir.expr import Const, Expr, logical_not, truth, wrap
from tilewright.ir.op import If
from tilewright.lang.builder import KernelState
from tilewright.lang.handles import Tile, Tiles
from tilewright.lang.scalar import concrete, is_runtime
from tilewright.lang.state import Watch
from tilewright.lang.where import locate
from tilewright.support.errors import Loc

if TYPE_CHECKING:
    from tilewright.lang.env import Env


@dataclass(eq=False)
class Frame:
    """An open loop or branch of this function. `runtime` ones become ops."""

    kind: str
    runtime: bool
    open: bool = True
    loc: Loc | None = None
    watch: Watch | None = None  # of run-time ones


@dataclass
class Binding:
    value: Any
    frame: Frame | None
    loc: Loc | None
    loop: bool = False  # by the loop itself
    kernel: KernelState | None = None


class Branch:
    """One `if`: chosen now when its condition is known, an op otherwise."""

    def __init__(self, env: Env, cond: Any) -> None:
        self.env = env
        self.cond = condition(cond)
        self.runtime = isinstance(self.cond, Expr)
        if isinstance(self.cond, Expr):
            self.cond = env.builder.settle(self.cond)  # before the branch writes anything
        self.then_body: Any = ()
        self.frame: Frame | None = None
        self.loc = locate() if self.runtime else None

    def then(self) -> bool:
        if not isinstance(self.cond, Expr):
            return bool(self.cond)
        self._open(self.cond)
        return True

    def end_then(self) -> None:
        if self.runtime:
            self.then_body = self._close()

    def orelse(self) -> bool:
        if not isinstance(self.cond, Expr):
            return not self.cond
        self._open(logical_not(self.cond))
        return True

    def end(self) -> None:
        if not isinstance(self.cond, Expr):
            return
        orelse = self._close() if self.frame is not None else ()
        self.env.builder.emit(If(self.cond, self.then_body, orelse, loc=self.loc))

    def _open(self, guard: Expr) -> None:
        self.frame = self.env.push("if", True)
        if self.env.builder.kernel is not None:
            self.env.builder.kernel.guards.append(guard)
        self.env.builder.open()

    def _close(self) -> Any:
        if self.env.builder.kernel is not None:
            self.env.builder.kernel.guards.pop()
        if self.frame is not None:
            self.env.pop(self.frame)
            self.frame = None
        return self.env.builder.close()


def condition(cond: Any) -> Any:
    """A bool expression, or the plain value when it is known."""
    cond = concrete(cond)
    if isinstance(cond, (Tile, Tiles)):
        return bool(Tile.__bool__(cond))  # type: ignore[arg-type]
    if is_runtime(cond):
        expr = truth(wrap(cond))
        return expr.value if isinstance(expr, Const) else expr
    return cond
