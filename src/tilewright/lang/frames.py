"""Open loops and branches while a kernel's text runs, and the bindings of names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.expr import Const, Expr, logical_not, truth, wrap
from tilewright.ir.op import If
from tilewright.lang.builder import Builder, KernelState
from tilewright.lang.handles import Tile, Tiles
from tilewright.lang.scalar import concrete, is_runtime
from tilewright.lang.state import Watch, refuse_change
from tilewright.lang.where import locate, users_frame
from tilewright.support.errors import Loc


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


@dataclass
class Scopes:
    """The loops and branches that are open, and what names are bound to."""

    builder: Builder
    frames: list[Frame] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)

    def push(self, kind: str, runtime: bool) -> Frame:
        frame = Frame(kind, runtime, loc=locate())
        if runtime:
            frame.watch = Watch(users_frame())
        self.frames.append(frame)
        return frame

    def pop(self, frame: Frame) -> None:
        while self.frames:
            top = self.frames.pop()
            top.open = False
            if top is frame:
                self.unchanged(frame.watch, KINDS.get(frame.kind, "loop"), frame.loc)
                return

    def unchanged(self, watch: Watch | None, kind: str, loc: Loc | None) -> None:
        """Compile-time state is as it was before the run-time scope."""
        found = watch.changed(self._bound) if watch is not None else None
        if found is not None:
            refuse_change(*found, kind, loc)

    def _bound(self, name: str) -> Any:
        binding = self.bindings.get(name)
        return binding.value if binding is not None else None

    def top(self) -> Frame | None:
        """The innermost run-time scope."""
        return next((f for f in reversed(self.frames) if f.runtime), None)


KINDS = {"if": "branch", "map": "T.Parallel loop"}


class Branch:
    """One `if`: chosen now when its condition is known, an op otherwise."""

    def __init__(self, env: Scopes, cond: Any) -> None:
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
