"""When the text of a kernel reads an element.

`A[i]` in an expression is read where it stands, but becomes part of the program only when an op
uses it: an operand of a sum, an entry of a dict, a default argument. Until then it is a `Read`,
which knows the moment. `Builder.emit` turns reads into loads; one whose memory has been written
in between is named at its own place first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewright.ir import arith
from tilewright.ir.expr import Bin, Expr, Load, Select, loads
from tilewright.ir.op import Op


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
        found = arith.asked("==", self, other)
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
    ops: list[Op] = field(default_factory=list)
    early: dict[int, list[Op]] = field(default_factory=dict)  # what to put before op number …
    crossing: list[Read] = field(default_factory=list)  # reads from before the loop

    def closed(self) -> tuple[Op, ...]:
        if not self.early:
            return tuple(self.ops)
        found: list[Op] = []
        for at, op in enumerate(self.ops):
            found += [*self.early.get(at, ()), op]
        return (*found, *self.early.get(len(self.ops), ()))
