"""Rows of numbers that pass through a tile on their way from tensors to a nest, taken there.

Scales that belong to rows of a product often go through shared memory: one nest writes them, the
next one reads them. Threads then meet twice in every iteration, and warpgroups that could take
turns at the tensor core keep step.

    for k { map i { s[i] = S[i, k] * t[k] }; P = A[k]·B[k]; map i, j { C[i, j] += P[i, j] * s[i] } }

    for k { P = A[k]·B[k]; map i, j { C[i, j] += P[i, j] * (S[i, k] * t[k]) } }

The nest loads what it needs, a few numbers for each thread, and `prefetch_loads` does that one
iteration early. So it is with a copy that only threads could make (a column of a matrix). What the
bulk engine brings stays: it runs ahead by itself, and nobody meets for it.

A tile goes where it has one dimension, one writer that fills it from tensors which the kernel does
not write, and readers behind that in the same iteration which index it by other variables than
their last: a thread has few rows of a nest, but many columns.
"""

from __future__ import annotations

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const, Expr, Load, Var, loads, substitute, transform, variables
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    For,
    Hint,
    Kernel,
    Map,
    Op,
    Program,
    Role,
    Store,
    op_loads,
    read_buffers,
    touched_within,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import (
    fresh_name,
    map_exprs,
    map_kernels,
    map_ops,
    program_names,
)
from tilewright.ir.target import Target
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import BULK, leaves_early, written_by
from tilewright.passes.reasons import at_line, because

MOST = 4  # loads of a number


def inline_rows(program: Program, target: Target) -> Program:
    """Every kernel of `program` without tiles that only carry rows of numbers to nests."""
    if target.internal.inline_rows is False:
        return program
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        loops = [op for op in walk_ops(kernel) if isinstance(op, For) and _is_asked(op)]
        if not loops or any(isinstance(op, Role) for op in walk_ops(kernel)):
            return kernel
        written = written_by(kernel)
        ahead = Ahead(kernel, program, target)
        kept = {
            fill.tile.name
            for plan in ahead.plans.values()
            for fill in plan.fills.values()
            if fill.how == BULK
        }
        for loop in loops:
            for at, op in enumerate(loop.body):
                found = _row(op, written, names)
                if found is None or found[0].name in kept | ahead.viewed:
                    continue
                tile, var, value = found
                if not _is_carried(kernel, tile, loop, at):
                    continue
                kernel = _without(kernel, loop, op, tile, var, value)
                said = f"{tile.name}, written {at_line(op.loc)}, is loaded where it is needed"
                because(kernel.name, loop, said)
                # loops and statements have changed: look at them again
                return one(kernel)
        return kernel

    return map_kernels(program, one)


def _is_asked(op: For) -> bool:
    return (
        op.kind == "pipelined" and op.stages > 1 and op.order is None and not leaves_early(op.body)
    )


def _row(op: Op, written: set[str], names: set[str]) -> tuple[Buffer, Var, Expr] | None:
    """A tile of one dimension that `op` fills: its element at a variable has this value."""
    match op:
        case Map(vars=(var,), extents=(extent,), body=(Store() as store,)):
            tile, value = store.buffer, store.value
            if store.indices != (var,):
                return None
        case Copy(reduce=None, atom=None, barrier=None, cache=None):
            tile = op.dst.buffer
            if op.src.buffer.space is not Space.GLOBAL:
                return None
            long = [d for d, e in enumerate(op.src.extents) if not _is_one(e)]
            if not op.dst.is_whole or tile.rank != 1 or len(long) != 1 or op.src.cta is not None:
                return None
            var, extent = Var(fresh_name("row", names)), op.src.extents[long[0]]
            places = [s + var if d in long else s for d, s in enumerate(op.src.starts)]
            value = Load(op.src.buffer, tuple(places), op.loc)
        case _:
            return None
    if tile.space not in (Space.SHARED, Space.FRAGMENT) or tile.rank != 1:
        return None
    if extent is not tile.shape[0] or value.dtype != tile.dtype or tile.layout is not None:
        return None
    found = loads(value)
    fixed = all(x.buffer.space is Space.GLOBAL and x.buffer.name not in written for x in found)
    return (tile, var, value) if fixed and 0 < len(found) <= MOST else None


def _is_one(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 1


def _is_carried(kernel: Kernel, tile: Buffer, loop: For, at: int) -> bool:
    """Whether nothing but nests behind statement `at` of `loop` has to do with the tile, and they
    only read it, by rows."""
    inside = {id(inner) for op in loop.body for inner in walk_ops(op)}
    for op in walk_ops(kernel):
        used = tile.name in {b.name for b in (*read_buffers(op), *written_buffers(op))}
        hinted = isinstance(op, Hint) and op.buffer == tile
        if hinted or (used and id(op) not in inside):
            return False
    users = [
        k for k, op in enumerate(loop.body) if tile.name in {b.name for b, _ in touched_within(op)}
    ]
    return (
        users[1:] != []
        and users[0] == at
        and all(_reads_rows(loop.body[k], tile) for k in users[1:])
    )


def _reads_rows(op: Op, tile: Buffer) -> bool:
    if not isinstance(op, Map) or len(op.vars) < 2 or op.layout is not None:
        return False
    if any(b == tile and writes for b, writes in touched_within(op)):
        return False
    found = [x for inner in walk_ops(op) for x in op_loads(inner) if x.buffer == tile]
    rows = set(op.vars[:-1])
    return all(variables(i) and variables(i) <= rows for x in found for i in x.indices)


def _without(kernel: Kernel, loop: For, writer: Op, tile: Buffer, var: Var, value: Expr) -> Kernel:
    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == tile:
            return substitute(value, {var: e.indices[0]})
        return None

    def rule(op: Op) -> Op | Body | None:
        if op is writer or (isinstance(op, Alloc) and op.buffer == tile):
            return ()
        return map_exprs(op, lambda e: transform(e, node))

    return map_ops(kernel, rule)
