"""Maps whose extents are known only at launch, as loops over maps of constant extents.

    map i in n { X[i] = 0 }

    for t in 0 .. (n + 127) // 128 { map p in 128 { if t * 128 + p < n { X[t * 128 + p] = 0 } } }

Layouts deal constant extents to threads. A variable that indexes a tile, under no condition, runs
over the tile, whose size bounds it. Copies and fills of regions of such extents become maps first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    TRUE,
    Bin,
    Const,
    Expr,
    Load,
    Select,
    Var,
    compare,
    const,
    logical_and,
)
from tilewright.ir.op import (
    Atomic,
    Body,
    Copy,
    Fill,
    For,
    If,
    Kernel,
    Map,
    Op,
    Program,
    Store,
    expressions,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import map_kernels, map_ops, rebuild, substitute_vars
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.expand_copies import Names, expand_op


def bound_maps(program: Program, target: Target) -> Program:
    """`program` with maps of constant extents only."""
    names = Names(program)

    def one(kernel: Kernel) -> Kernel:
        def expand(op: Op) -> Op | None:
            moves = isinstance(op, (Copy, Fill, Atomic))
            return expand_op(op, names) if moves and _is_open(_extents(op)) else None

        def bound(op: Op) -> Op | None:
            if isinstance(op, Map) and _is_open(op.extents):
                return _bounded(op, prod(kernel.threads), names)
            return None

        return map_ops(map_ops(kernel, expand), bound)

    return map_kernels(program, one)


def has_open_extents(program: Program) -> bool:
    """Whether there is anything for this pass to do."""
    ops = (op for kernel in program.kernels for op in walk_ops(kernel))
    return any(_is_open(op.extents if isinstance(op, Map) else _extents(op)) for op in ops)


def _extents(op: Op) -> tuple[Expr, ...]:
    return tuple(e for r in regions(op, reads=True, writes=True) for e in r.extents)


def _is_open(extents: tuple[Expr, ...]) -> bool:
    return not all(isinstance(e, Const) for e in extents)


def _bounded(op: Map, threads: int, names: Names) -> Op:
    """Loops over the extents that are open, the innermost in steps of the threads."""
    vars_: list[Var] = []
    extents: list[Expr] = []
    guard: Expr = TRUE
    values: dict[Var, Expr] = {}
    loops: list[tuple[Var, Expr]] = []
    last = max(at for at, e in enumerate(op.extents) if not isinstance(e, Const))
    for at, (var, extent) in enumerate(zip(op.vars, op.extents, strict=True)):
        size = None if isinstance(extent, Const) else _tile_size(op, var)
        if isinstance(extent, Const) or size is not None:
            vars_.append(var)
            extents.append(extent if size is None else const(size, extent.dtype))
            if size is not None:
                guard = logical_and(guard, compare("<", var, extent))
        elif at == last:
            turn, inner = Var(names("t"), var.dtype), Var(names("p"), var.dtype)
            loops.append((turn, (extent + (threads - 1)) // threads))
            values[var] = turn * threads + inner
            vars_.append(inner)
            extents.append(const(threads, extent.dtype))
            guard = logical_and(guard, compare("<", values[var], extent))
        else:
            loops.append((var, extent))
    body: Body = substitute_vars(op.body, values) if values else op.body
    if guard is not TRUE:
        body = (If(guard, body, loc=op.loc),)
    if not vars_:
        vars_, extents = [Var(names("p"))], [const(1)]
    found: Op = rebuild(op, vars=tuple(vars_), extents=tuple(extents), body=body)
    for var, extent in reversed(loops):
        found = For(var, const(0, var.dtype), extent, (found,), loc=op.loc)
    return found


def _tile_size(op: Map, var: Var) -> int | None:
    """The smallest tile that `var` alone is an index of, wherever the map runs."""
    found = []
    for buffer, indices in _surely_touched(op.body):
        if buffer.space in (Space.SHARED, Space.FRAGMENT):
            sizes = zip(indices, buffer.shape, strict=True)
            found += [int(size) for index, size in sizes if index is var]
    return min(found, default=None)


def _surely_touched(body: Body) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """Elements that `body` reads or writes whatever the conditions in it are."""
    for op in body:
        for e in expressions(op):
            yield from _surely_read(e)
        if isinstance(op, Store):
            yield op.buffer, op.indices
        elif isinstance(op, For):
            ends = [int(e.value) for e in (op.start, op.stop, op.step) if isinstance(e, Const)]
            if len(ends) == 3 and len(range(*ends)):
                yield from _surely_touched(op.body)


def _surely_read(e: Expr) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    if isinstance(e, Load):
        yield e.buffer, e.indices
    first_only = isinstance(e, Select) or (isinstance(e, Bin) and e.op in ("and", "or"))
    for child in e.children[:1] if first_only else e.children:
        yield from _surely_read(child)


__all__ = ["bound_maps", "has_open_extents"]
