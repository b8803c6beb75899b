"""Variables that iterations of `T.Parallel` would hand on to each other, or to the code after it.

An iteration has a copy of its own of every variable and local array that it changes. A value that
one iteration leaves in it reaches neither the next one nor the code after the loop, so a program
that reads it there means something else than its text says.
"""

from __future__ import annotations

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const
from tilewright.ir.op import (
    Alloc,
    Body,
    For,
    If,
    Kernel,
    Map,
    Op,
    View,
    While,
    bodies,
    op_loads,
    regions,
    walk_ops,
    written_buffers,
)
from tilewright.support.errors import CompileError, Loc

Written = dict[Buffer, Loc | None]  # where a local was changed, in a T.Parallel that has ended


def check_carried(kernel: Kernel) -> None:
    """Nothing reads a local that an iteration of `T.Parallel`, but not this one, wrote."""
    if any(walk_ops(kernel, Map)):
        seen = {op.source for op in walk_ops(kernel, View)}
        _Check(seen).body(kernel.body, {}, frozenset(), frozenset())


class _Check:
    def __init__(self, viewed: set[Buffer]) -> None:
        self.viewed = viewed  # other names of them may have been written

    def body(
        self, ops: Body, lost: Written, shared: frozenset[Buffer], fresh: frozenset[Buffer]
    ) -> tuple[Written, frozenset[Buffer]]:
        """`lost` are locals that a T.Parallel left without a value, `shared` those that iterations
        of the one around change, `fresh` those of them that this iteration has written. Returns
        `lost` and `fresh` after `ops`."""
        for op in ops:
            lost, fresh = self.step(op, lost, shared, fresh)
        return lost, fresh

    def step(
        self, op: Op, lost: Written, shared: frozenset[Buffer], fresh: frozenset[Buffer]
    ) -> tuple[Written, frozenset[Buffer]]:
        self.reads(op, lost, shared - fresh)
        if isinstance(op, Map):
            own = {x.buffer for x in walk_ops(op.body, Alloc, View)}
            changed = {
                b: x.loc
                for x in walk_ops(op.body)
                for b in written_buffers(x)
                if b.space is Space.LOCAL and b not in own and b not in self.viewed
            }
            inner = (shared - fresh) | changed.keys()
            self.body(op.body, lost, frozenset(inner), frozenset())
            return {**lost, **changed}, fresh - changed.keys()
        if isinstance(op, If):
            one = self.body(op.then, lost, shared, fresh)
            two = self.body(op.orelse, lost, shared, fresh)
            return {**one[0], **two[0]}, one[1] & two[1]
        if isinstance(op, (For, While)):
            once = self.body(op.body, lost, shared, fresh)
            again = self.body(op.body, {**lost, **once[0]}, shared, fresh)
            return ({**lost, **again[0]}, once[1] if _runs(op) else fresh)
        for inner_body in bodies(op):
            lost, fresh = self.body(inner_body, lost, shared, fresh)
        if isinstance(op, Alloc):
            written = [op.buffer]
        else:
            written = [b for b in written_buffers(op) if b.space is Space.LOCAL]
        if written:
            lost = {b: loc for b, loc in lost.items() if b not in written}
            fresh = fresh | frozenset(written)
        return lost, fresh

    def reads(self, op: Op, lost: Written, others: frozenset[Buffer]) -> None:
        found = [(load.buffer, load.loc) for load in op_loads(op)]
        found += [(region.buffer, None) for region in regions(op, reads=True)]
        for buffer, loc in found:
            if buffer.space is not Space.LOCAL:
                continue
            here = loc if loc is not None and op.loc and loc.line == op.loc.line else op.loc
            if buffer in others:
                raise CompileError(
                    f"{buffer.name} is read before this iteration of T.Parallel has written it, "
                    "and iterations change it",
                    loc=here,
                    expected=f"a {buffer.name} that each iteration writes before it reads it",
                    got="a value from another iteration: each has a copy of its own",
                    fix=_FIX,
                    code="parallel-conflict",
                )
            if buffer in lost:
                raise CompileError(
                    f"{buffer.name} is read after the T.Parallel whose iterations changed it",
                    loc=here,
                    got="a copy of its own in each iteration, and none after them"
                    + (f"; changed at {lost[buffer]}" if lost[buffer] else ""),
                    fix=_FIX,
                    code="parallel-conflict",
                )


_FIX = (
    "keep the values in T.alloc_fragment and combine them with T.reduce_sum (or T.reduce_max …), "
    "add to shared memory or a tensor with T.atomic_add, or loop with T.serial"
)


def _runs(op: For | While) -> bool:
    """The body runs at least once, as far as can be seen."""
    if isinstance(op, While):
        return False
    start, stop = op.start, op.stop
    return isinstance(start, Const) and isinstance(stop, Const) and start.value < stop.value
