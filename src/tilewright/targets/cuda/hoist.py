"""Which addresses are computed before a loop that is written out.

Of `inside ? x[i, j] : 0` the compiler makes a branch for each iteration, and in each it computes 64
bits of address anew: 20 of 55 instructions of an element of a gather. What of the address no
iteration changes is a pointer before the loop; what is left are constants of the loads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tilewright.ir.core import *
from tilewright.targets.cuda.emit_expr import TYPES

MOST = 4  # pointers of a loop: two registers each

Exprs = tuple[Expr, ...]


def hoist(w: Any, loop: For) -> list[Load]:
    """Write pointers to where the guarded loads of a loop begin; these loads."""
    found = [each for each in _found(loop, w.spans.unrolled) if each[0] not in w.rows]
    for load, fixed, moving in found:
        row = w.names.of(f"{load.buffer.name}.{len(w.lines)}")
        kind, name = TYPES[load.buffer.dtype.name], w.names.of(load.buffer.name)
        begin = w.index(load.buffer, fixed, inside=False)  # guards come later
        w.line(f"const {kind}* {row} = {name} + ({begin});")
        w.rows[load] = f"{row}[{w.index(load.buffer, moving)}]"
    return [load for load, _, _ in found]


def _found(loop: For, unrolled: Collection[Var]) -> list[tuple[Load, Exprs, Exprs]]:
    """Guarded loads from global memory, and by dimension what no iteration changes of their
    indices and what only the numbers of iterations do."""
    inside = {loop.var}
    for op in walk_ops(loop.body, For, Let):
        inside.add(op.var)
    found: dict[Load, tuple[Exprs, Exprs]] = {}
    for load in _guarded(loop):
        if len(load.indices) < 2 or load in found or any(map(loads, load.indices)):
            continue
        parts = [_parted(index, inside) for index in load.indices]
        moving = {name for _, part in parts for name in variables(part)}
        if loop.var in moving and moving <= set(unrolled):
            found[load] = tuple(a for a, _ in parts), tuple(b for _, b in parts)
    return [(load, *both) for load, both in found.items()] if len(found) <= MOST else []


def _guarded(loop: For) -> Iterator[Load]:
    for op in walk_ops(loop.body):
        for expr in expressions(op):
            for node in walk(expr):
                if isinstance(node, Select):
                    for side in (node.a, node.b):
                        for each in walk(side):
                            if isinstance(each, Load) and each.buffer.space is Space.GLOBAL:
                                yield each


def _parted(index: Expr, inside: set[Var]) -> tuple[Expr, Expr]:
    """An index as a sum of what names nothing of a loop, and the rest."""
    fixed: Expr = const(0)
    moving: Expr = const(0)
    ahead = [index]
    while ahead:
        term = ahead.pop()
        if isinstance(term, Bin) and term.op == "+" and {*variables(term)} & inside:
            ahead += [term.b, term.a]
        elif {*variables(term)} & inside:
            moving = moving + term
        else:
            fixed = fixed + term
    return fixed, moving
