"""Nests whose iterations several threads run, where only one of them may.

Where threads hold the same elements each of them runs their iterations, and one stores to memory.
That is not enough when an iteration reads memory that it writes, or uses what an atomic gives
back: the others would read too late, or get nothing. Then one thread runs the iteration alone, and
what it wrote to fragments reaches the others through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Expr, Load, Var, const, substitute, variables
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import row_major
from tilewright.ir.op import (
    Atomic,
    Intrinsic,
    Map,
    Op,
    Store,
    op_loads,
    regions,
    walk_ops,
)
from tilewright.passes.lower.lowering import MEMORY, Lowering
from tilewright.support.errors import CompileError


def runs_once(low: Lowering, op: Map) -> bool:
    """Whether an iteration must not be run by several threads."""
    roots = aliases(low.kernel)
    read: set[str] = set()
    written: set[str] = set()
    for inner in walk_ops(op.body):
        if (
            isinstance(inner, (Atomic, Intrinsic))
            and inner.result is not None
            and any(r.buffer.space in MEMORY for r in regions(inner, reads=True, writes=True))
        ):
            return True
        read |= {roots[x.buffer.name] for x in op_loads(inner) if x.buffer.space in MEMORY}
        if isinstance(inner, Store) and inner.buffer.space in MEMORY:
            written.add(roots[inner.buffer.name])
        if isinstance(inner, Atomic):
            written.add(roots[inner.dst.buffer.name])
    return bool(read & written)


def hand_over(low: Lowering, op: Map, layout: Fragment) -> Iterable[Op]:
    """What one thread wrote to fragments in an iteration, to all that hold it."""
    places: dict[tuple[Buffer, tuple[Expr, ...]], None] = {}
    for inner in walk_ops(op.body):
        if isinstance(inner, Store) and inner.buffer.space is Space.FRAGMENT:
            if any(variables(i) - set(op.vars) for i in inner.indices):
                raise CompileError(
                    f"several threads hold this element of {inner.buffer.name}, and its iteration "
                    "may run in one of them only: it reads memory that it writes",
                    loc=inner.loc,
                    fix="split the nest: compute into shared memory first",
                )
            places[inner.buffer, inner.indices] = None
    for buffer, indices in places:
        shape = buffer.static_shape
        flat, met = low.exchange(buffer.dtype, row_major(shape).cosize(), op.loc)
        extents = tuple(const(e) for e in shape)
        scratch = Buffer(flat.name, extents, flat.dtype, flat.space, layout=row_major(shape))
        yield from met
        for source, target in ((buffer, scratch), (scratch, buffer)):
            if source is scratch:
                yield from low.join(op.loc)
            names = tuple(low.var(v.name) for v in op.vars)
            at: dict[Var, Expr] = dict(zip(op.vars, names, strict=True))
            where = tuple(substitute(i, at) for i in indices)
            store = Store(target, where, Load(source, where, op.loc), loc=op.loc)
            yield from low.op(Map(names, op.extents, (store,), layout=layout, loc=op.loc))
