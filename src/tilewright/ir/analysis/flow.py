"""One forward walk over structured code: what holds before and after each op, joined where paths
meet, loops repeated to a fixed point.

A walk may change the code on its way: `visit` puts ops in front of the one that it is asked about.
What stands in a loop is decided anew in every round, so the last round, with all that the loop
carries, decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Generic, TypeAlias, TypeVar

from tilewright.ir.core import *
from tilewright.support.errors import at, here

S = TypeVar("S")
Loop: TypeAlias = For | While
Path: TypeAlias = tuple[
    tuple[int, str], ...
]  # from the kernel's body: which op, which of its bodies


# ops of which a walk looks at the ops inside one by one: a map is one op, and barriers order the
# warps of a role
ENTERED = (For, If, While)


class Flow(Generic[S]):
    """States `S` are values that `==` tells apart; no method changes one that it is given."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []  # around, the innermost last
        self.jumps: list[list[S]] = []  # of each of them, where `break` and `continue` leave it

    def join(self, a: S, b: S) -> S:
        """What holds where two paths meet."""
        raise NotImplementedError

    def visit(self, op: Op, state: S, out: list[Op]) -> S:
        """After `op`, or after the head of one with bodies; what it adds to `out` stands before."""
        raise NotImplementedError

    def again(self, loop: Loop, state: S, out: list[Op]) -> S:
        """At the end of an iteration whose body is `out`: a condition is evaluated again."""
        return self.visit(loop, state, out) if isinstance(loop, While) else state

    def carried(self, loop: Loop, state: S) -> S:
        """What of the end of an iteration matters to the next."""
        return state

    def body(self, body: Body, state: S) -> tuple[Body, S]:
        out: list[Op] = []
        with at(None):
            for op in body:
                here.set(op.loc or here.get())
                state = self.op(op, state, out)
        return same(out, body), state

    def op(self, op: Op, state: S, out: list[Op]) -> S:
        """After all of `op`, which goes into `out`."""
        state = self.visit(op, state, out)
        if isinstance(op, (Break, Continue)) and self.jumps:
            self.jumps[-1].append(state)
        elif isinstance(op, Role) and self.runs(op):
            body, state = self.body(op.body, state)
            op = rebuild(op, body=body)
        elif isinstance(op, ENTERED):
            op, state = self.inside(op, state, out)
        out.append(op)
        return state

    def runs(self, role: Role) -> bool:
        """Whether the walk is that of a role's warps."""
        return False

    def inside(self, op: Loop | If, state: S, out: list[Op]) -> tuple[Op, S]:
        """`op` and what holds after its bodies; `out` is in front of it."""
        if not isinstance(op, If):
            return self.loop(op, state)
        then, one = self.arm(op, op.then, state)
        orelse, other = self.arm(op, op.orelse, state)
        return rebuild(op, then=then, orelse=orelse), self.join(one, other)

    def arm(self, op: If, body: Body, state: S) -> tuple[Body, S]:
        return self.body(body, state)

    def loop(self, loop: Loop, state: S) -> tuple[Op, S]:
        while True:
            self.loops.append(loop)
            self.jumps.append([])
            body, end = self.body(loop.body, state)
            self.loops.pop()
            for left in self.jumps.pop():
                end = self.join(end, left)
            out = list(body)
            end = self.again(loop, end, out)
            around = self.join(state, self.carried(loop, end))
            if around == state:
                return rebuild(loop, body=same(out, body)), self.join(state, end)
            state = around


def same(ops: Sequence[Op], body: Body) -> Body:
    """`ops`, as the tuple `body` where it holds just these."""
    return body if len(ops) == len(body) and all(map(is_, ops, body)) else tuple(ops)


# ── places ───────────────────────────────────────────────────────────────────────────────────


def paths(kernel: Kernel) -> dict[int, Path]:
    """Where ops are, by their ids."""
    found: dict[int, Path] = {}

    def go(body: Body, at: Path) -> None:
        for k, op in enumerate(body):
            found[id(op)] = (*at, (k, ""))
            if isinstance(op, (*ENTERED, Role)):
                for f in marked(op, "body"):
                    go(getattr(op, f.name), (*at, (k, f.name)))

    go(kernel.body, ())
    return found


def chain(kernel: Kernel, path: Path) -> list[Op]:
    """The ops that `path` goes through, outermost first."""
    found: list[Op] = [kernel]
    name = "body"
    for index, into in path:
        found.append(getattr(found[-1], name)[index])
        name = into
    return found[1:]


def body_at(kernel: Kernel, at: Path) -> Body:
    """The body that ops with paths of `at` and one more step are in."""
    found: Body = getattr(chain(kernel, at)[-1], at[-1][1]) if at else kernel.body
    return found
