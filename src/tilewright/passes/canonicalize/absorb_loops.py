"""A loop that is all a nest does becomes one more axis of the nest, when its turns are
independent: then the axis that is contiguous in memory can be the vector, whichever it is."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.bounds import stride_of
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const, Expr, Var, is_pure, substitute, variables
from tilewright.ir.op import (
    Body,
    For,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Store,
    op_loads,
    walk_ops,
)
from tilewright.ir.rewrite import map_ops, substitute_vars
from tilewright.ir.target import Target


def absorb_loops(kernel: Kernel, target: Target) -> Kernel:
    """`map i { for k { … } }` becomes `map (i, k) { … }`."""
    viewed = aliases(kernel).viewed

    def visit(op: Op) -> Op | None:
        while isinstance(op, Map) and (wider := _absorb(op, viewed)) is not None:
            op = wider
        return op

    return map_ops(kernel, visit)


def _absorb(nest: Map, viewed: set[str]) -> Map | None:
    *lets, loop = nest.body or (None,)
    if not isinstance(loop, For) or not all(isinstance(op, Let) for op in lets):
        return None
    values: dict[Var, Expr] = {}
    for op in lets:
        assert isinstance(op, Let)
        if not is_pure(op.value):
            return None
        values[op.var] = substitute(op.value, values)
    plain = isinstance(loop.start, Const) and loop.start.value == 0
    plain = plain and isinstance(loop.step, Const) and loop.step.value == 1
    stop = substitute(loop.stop, values)
    if not plain or variables(stop) & set(nest.vars) or not is_pure(stop):
        return None
    body = substitute_vars(loop.body, values)
    if not _independent(body, loop.var, viewed):
        return None
    return replace(
        nest, vars=(*nest.vars, loop.var), extents=(*nest.extents, stop), body=body, layout=None
    )


def _independent(body: Body, var: Var, viewed: set[str]) -> bool:
    """Stores only, each to places of its own turn, and nothing reads what another turn writes."""
    ops = list(walk_ops(body))
    stores = [op for op in ops if isinstance(op, Store)]
    if not all(isinstance(op, (Store, Let, If)) for op in ops):
        return False
    written = {op.buffer.name: op.indices for op in stores}
    found = {op.var for op in ops if isinstance(op, Let)}  # in each turn
    places = [tuple(i for i in op.indices if not variables(i) & found) for op in stores]
    if not all(_separates(place, var) for place in places):
        return False
    if any(op.buffer.space is Space.LOCAL for op in stores):
        return False
    if any(op.indices != written[op.buffer.name] for op in stores) or viewed & set(written):
        return False
    return all(
        written.get(load.buffer.name, load.indices) == load.indices
        for op in ops
        for load in op_loads(op)
    )


def _separates(indices: tuple[Expr, ...], var: Var) -> bool:
    """Two turns of the loop never store to one place: an index is linear in its variable."""
    return any(stride_of(index, var) not in (0, None) for index in indices)
