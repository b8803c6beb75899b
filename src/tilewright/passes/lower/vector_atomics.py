"""Sums into tensors by several neighbouring elements at a time.

    map (i, j) { atomic add dQ[k + i, j] value=dq[i, j] }

A thread that holds neighbours, as those of a matrix product's result do, adds two or four of them
by one instruction: half as many requests, each of whole sectors. On an architecture that has none
it is as many single ones (`threads.cuh`). Elements are atomic one by one, as they were.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import TRUE, Expr, const, logical_and, substitute
from tilewright.ir.op import Atomic, Body, For, Hint, If, Intrinsic, Map
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.map_loops import Nest, used
from tilewright.passes.lower.vectors import Candidate, access_together

COUNTS = (4, 2)


def lower_sums(nest: Nest, op: Map) -> Body | None:
    """A nest of nothing but a sum, in groups of values; None where there are none."""
    (atomic, *others) = op.body
    if others or not isinstance(atomic, Atomic) or not _is_sum(atomic):
        return None
    assert atomic.value is not None
    low, dst, loc = nest.low, atomic.dst, op.loc
    idle, before = nest.table < 0, len(nest.before)
    group = low.var("g")
    for count in COUNTS:
        if nest.values % count:
            continue
        slots = idle.reshape(len(idle), -1, count)
        if not np.array_equal(slots, np.broadcast_to(slots[:, :, :1], slots.shape)):
            continue
        wanted = Candidate(dst.starts, TRUE, ())
        access = access_together(nest, dst.buffer, (), wanted, group, count, 1)
        if access is None or access.ragged is not None or access.width != count:
            continue
        groups = nest.values // count
        ranges = low.ranges.where(group, 0, groups - 1)
        first = group * count if groups > 1 else const(0)
        value = nest.expr(atomic.value)
        places = [{nest.var: first + e} for e in range(count)]
        values = (simplify(substitute(value, at), ranges, index=False) for at in places)
        ones = tuple(const(1) for _ in dst.extents[:-1])
        where = Region(dst.buffer, access.start, (*ones, const(count)))
        body: Body = (Intrinsic("atomic", (where, *values), text="op=add", loc=atomic.loc),)
        guard = simplify(substitute(nest.guard(), {nest.var: first}), ranges)
        cond: Expr = TRUE
        for test in (nest.first_copy(), guard, access.inside):
            cond = logical_and(cond, test)
        if cond is not TRUE:
            body = (If(cond, body, loc=loc),)
        if groups > 1:
            body = (For(group, const(0), const(groups), body, kind="unroll", loc=loc),)
        low.touched = True
        size = count * dst.dtype.bits // 8
        aligned = Hint("align", low.base(dst.buffer)[0], detail=(size,), loc=loc)
        return (*used(nest.before, body), aligned, *body)
    del nest.before[before:]
    return None


def _is_sum(op: Atomic) -> bool:
    return (
        op.op == "add"
        and op.dst.dtype.name == "float32"
        and op.dst.buffer.space is Space.GLOBAL
        and op.dst.cta is None
        and op.result is None
        and op.value is not None
        and op.order == "relaxed"
    )


__all__ = ["lower_sums"]
