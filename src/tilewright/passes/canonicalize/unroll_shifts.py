"""Write out short constant loops whose variable shifts the place in a fragment.

Registers have constant numbers only. In

    for s in 0 … 2 { map (i, j) in (16, 512) { half[i, j] = acc[i + s * 16, j] } }

the element that a thread reads depends on s, so all of `acc` would go through shared memory; with
the loop written out, each copy of the nest reads registers. A copy of a part of a fragment that
begins at a place known only at run time becomes a nest, for which shared memory serves.
"""

from __future__ import annotations

from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Const, Expr, Load, Var, cast, const, variables
from tilewright.ir.op import (
    Body,
    Break,
    Continue,
    Copy,
    For,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Reduce,
    Role,
    Scan,
    Store,
    op_loads,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_name,
    map_body,
    map_kernels,
    program_names,
    rebuild,
    rename_unique,
    substitute_vars,
)
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.simplify_indices import simplify_operands
from tilewright.passes.reasons import because

MOST_TRIPS = 16
MOST_OPS = 256  # once written out


def unroll_shifts(program: Program, target: Target) -> Program:
    """`program` whose nests and copies find their parts of fragments at constant places, as far
    as short loops go."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if any(walk_ops(kernel, Role)):
            return kernel
        body = _written_out(kernel.body, kernel.name, names)
        return rebuild(kernel, body=map_body(body, lambda op: _nest(op, names)))

    return map_kernels(program, one)


def _written_out(body: Body, kernel: str, names: set[str]) -> Body:
    found: list[Op] = []
    for op in body:
        if isinstance(op, For) and _is_short(op) and _shifts(op):
            because(kernel, op, "written out: its variable says which registers of a fragment")
            for value in _values(op):
                copy = _with(rename_unique(op.body, names), op.var, value)
                found += _written_out(copy, kernel, names)
            continue
        inner = {name: _written_out(getattr(op, name), kernel, names) for name in _body_fields(op)}
        found.append(rebuild(op, **inner) if inner else op)
    return tuple(found)


def _body_fields(op: Op) -> list[str]:
    if isinstance(op, Map):
        return []
    return [
        name for name in ("body", "then", "orelse") if isinstance(getattr(op, name, None), tuple)
    ]


def _values(op: For) -> range:
    return range(int(op.start), int(op.stop), int(op.step))


def _is_short(op: For) -> bool:
    if op.kind not in ("serial", "unroll"):
        return False
    if not all(isinstance(e, Const) for e in (op.start, op.stop, op.step)):
        return False
    trips, ops = len(_values(op)), list(walk_ops(op.body))
    if any(isinstance(x, (Break, Continue)) for x in ops):
        return False
    return trips <= MOST_TRIPS and trips * len(ops) <= MOST_OPS


def _shifts(loop: For) -> bool:
    """Whether the place of something in a fragment depends on the loop's variable."""
    moving = {loop.var}
    for op in walk_ops(loop.body):
        if isinstance(op, Let) and variables(op.value) & moving:
            moving.add(op.var)
    for op in walk_ops(loop.body):
        if isinstance(op, Map):
            for inner in walk_ops(op.body):
                places = [(x.buffer, x.indices) for x in op_loads(inner)]
                if isinstance(inner, Store):
                    places.append((inner.buffer, inner.indices))
                for buffer, indices in places:
                    if buffer.space is Space.FRAGMENT and any(
                        variables(i) & moving for i in indices
                    ):
                        return True
        elif isinstance(op, (Copy, Reduce, Scan)):
            for region in regions(op, reads=True, writes=True):
                if region.buffer.space is Space.FRAGMENT and any(
                    variables(s) & moving for s in region.starts
                ):
                    return True
    return False


def _with(body: Body, var: Var, value: int) -> Body:
    """`body` at one value of its variable; names for what is constant there are put in too."""
    values: dict[Var, Expr] = {var: const(value, var.dtype)}
    while values:
        body = map_body(substitute_vars(body, values), simplify_operands)
        known = [op for op in body if isinstance(op, Let) and isinstance(op.value, Const)]
        values = {op.var: op.value for op in known}
        body = tuple(op for op in body if op not in known)
    return body


def _nest(op: Op, names: set[str]) -> Op | None:
    """A copy whose part of a fragment begins at a place known only at run time, as a nest."""
    if not isinstance(op, Copy) or op.atom is not None:
        return None
    moving = [
        r
        for r in (op.src, op.dst)
        if r.buffer.space is Space.FRAGMENT and not all(isinstance(s, Const) for s in r.starts)
    ]
    if not moving or not all(isinstance(e, Const) for e in op.src.tile):
        return None
    vars = tuple(Var(fresh_name("e", names)) for _ in op.src.tile)
    value = cast(Load(op.src.buffer, _places(op.src, vars), op.loc), op.dst.dtype)
    store = Store(op.dst.buffer, _places(op.dst, vars), value, loc=op.loc)
    return Map(vars, op.src.tile, (store,), loc=op.loc)


def _places(region: Region, vars: tuple[Var, ...]) -> tuple[Expr, ...]:
    rest = list(vars)
    return tuple(
        start if isinstance(extent, Const) and extent.value == 1 else start + rest.pop(0)
        for start, extent in zip(region.starts, region.extents, strict=True)
    )


__all__ = ["unroll_shifts"]
