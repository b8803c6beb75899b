"""Tiles that a role loads with `T.copy`, by the bulk engine where it can.

They mean what they say: the role's threads wait for the bytes before the next statement that uses
one of the tiles, and before others may learn that the role has come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.dtype import BARRIER, INT32
from tilewright.ir.expr import const
from tilewright.ir.op import (
    Alloc,
    BarrierInit,
    Body,
    Copy,
    For,
    Kernel,
    Map,
    Op,
    Program,
    While,
)
from tilewright.ir.rewrite import fresh_name, rebuild
from tilewright.ir.target import Target
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.single_copies import SingleCopies


@dataclass
class RoleCopies:
    """Finds the copies of a kernel's roles that the engine makes. `made`: the barriers and counters
    that these need."""

    kernel: Kernel  # all roles, and no loop that runs ahead
    program: Program
    target: Target
    names: set[str]
    gives: Callable[[Op], bool]
    made: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = Ahead(self.kernel, self.program, self.target)
        self.single = SingleCopies(
            self.kernel, self.target, found, self.barrier, self.counter, self.gives
        )

    def barrier(self, name: str, count: int) -> Buffer:
        made = Buffer(fresh_name(name, self.names), (const(count),), BARRIER, Space.BARRIER)
        loc = self.kernel.loc
        self.made += [Alloc(made, loc=loc), BarrierInit(whole(made), const(1), loc=loc)]
        return made

    def counter(self, name: str) -> Buffer:
        made = Buffer(fresh_name(name, self.names), (), INT32, Space.LOCAL)
        self.made.append(Alloc(made, const(0), loc=self.kernel.loc))
        return made

    def engaged(self, role: Kernel) -> Kernel:
        """`role`, a kernel of one role's code, with such copies."""
        ranges = scope.entry(role, self.program.dims)
        return rebuild(role, body=self.body(role.body, ranges, looped=False))

    def body(self, body: Body, ranges: Ranges, *, looped: bool) -> Body:
        found: list[Op] = []
        for op in body:
            if isinstance(op, Copy) and op.src.buffer.space is Space.GLOBAL:
                found.append(self.single.engaged(op, ranges))
            elif isinstance(op, Map):
                found.append(op)
            else:
                inside = looped or isinstance(op, (For, While))
                found.append(scope.map_inside(op, ranges, partial(self.body, looped=inside)))
            ranges = scope.after(op, ranges)
        return self.single.loads(found, looped)
