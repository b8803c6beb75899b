"""Which loops are written out, and which addresses are computed before them.

Of `inside ? x[i, j] : 0` and `if (inside) y[i, j] = …` the compiler makes a branch for each
iteration, and in each it computes 64 bits of address anew: 20 of 55 instructions of an element of a
gather. What of the address no iteration changes is a pointer before the loop; what is left are
constants of the accesses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from typing import Any

from tilewright.ir.analysis.trips import values_of
from tilewright.ir.core import *
from tilewright.targets.cuda.emit_expr import TYPES

LARGE = 2 * 255 * 4  # bytes of an array that is no longer mostly in registers
FEW = 8  # iterations that are written out all the same
MOST = 4  # pointers of a loop: two registers each
HELD = 128  # registers of what all iterations move: the assembler might load it all first

Exprs = tuple[Expr, ...]
Place = tuple[Buffer, Exprs]


def is_written_out(op: For) -> bool:
    """Whether iterations are code of their own. Over an array that local memory holds, many are
    not: that would not bring it into registers, and takes the assembler minutes."""
    return op.kind == "unroll" and not (len(values_of(op) or ()) > FEW and _walks_memory(op))


def _walks_memory(op: For) -> bool:
    for inner in walk_ops(op.body):
        for x, _ in elements_of(inner):
            large = x.buffer.is_local and x.buffer.bytes > LARGE
            if large and any(op.var in variables(i) for i in x.indices):
                return True
    return False


def hoist(w: Any, loop: For) -> list[Place]:
    """Write pointers to where the guarded accesses of a loop begin; these accesses."""
    found = [each for each in _found(loop, w.spans.unrolled) if each[0] not in w.rows]
    for (buffer, indices), changes, fixed, moving in found:
        row = w.names.of(f"{buffer.name}.{len(w.lines)}")
        kind, name = "const " * (not changes) + TYPES[buffer.dtype.name], w.names.of(buffer.name)
        begin = w.index(buffer, fixed, inside=False)  # guards come later
        w.line(f"{kind}* {row} = tw::computed({name} + ({begin}));")
        w.rows[buffer, indices] = row, w.index(buffer, moving)
    return [place for place, *_ in found]


def _found(loop: For, unrolled: Collection[Var]) -> list[tuple[Place, bool, Exprs, Exprs]]:
    """Guarded accesses of global memory, whether they may write, and by dimension what no iteration
    changes of their indices and what only the numbers of iterations do."""
    if _moved(loop) > HELD * 32:
        return []
    inside = {loop.var}
    for op in walk_ops(loop.body, For, Let):
        inside.add(op.var)
    found: dict[Place, tuple[bool, Exprs, Exprs]] = {}
    for buffer, indices, changes in _guarded(loop, inside):
        place = buffer, indices
        if len(indices) < 2 or any(map(loads, indices)) or buffer.space is not Space.GLOBAL:
            continue
        parts = [_parted(index, inside) for index in indices]
        moving = {name for _, part in parts for name in variables(part)}
        if loop.var in moving and moving <= set(unrolled):
            changes |= place in found and found[place][0]
            found[place] = changes, tuple(a for a, _ in parts), tuple(b for _, b in parts)
    return [(place, *rest) for place, rest in found.items()] if len(found) <= MOST else []


def _moved(op: Op) -> int:
    """Bits that a thread loads from global memory, and stores there."""
    if isinstance(op, For):
        return len(values_of(op) or ()) * sum(map(_moved, op.body))
    if isinstance(op, Intrinsic) and op.name in ("load_global", "store_global"):
        sides = (x.dtype.bits for x in op.args if isinstance(x, Region) and x.buffer.is_global)
        return int(op.fields["count"]) * sum(sides)
    own = sum(x.dtype.bits for x, _ in elements_of(op) if x.buffer.is_global)
    return own + sum(_moved(each) for body in bodies(op) for each in body)


def _guarded(loop: For, inside: Set[Var]) -> Iterator[tuple[Buffer, Exprs, bool]]:
    """Of one element each, or where several begin, and whether that is written."""
    for op in walk_ops(loop.body):
        for expr in expressions(op):
            for node in walk(expr):
                if isinstance(node, Select):
                    for side in (node.a, node.b):
                        for each in walk(side):
                            if isinstance(each, Load):
                                yield each.buffer, each.indices, False
    branches = [op for op in walk_ops(loop.body, If) if {*variables(op.cond)} & inside]
    for branch in branches:
        for op in walk_ops((*branch.then, *branch.orelse)):
            for place, writes in elements_of(op):
                yield place.buffer, place.indices, writes
            for part in op.args if isinstance(op, Intrinsic) else ():
                if isinstance(part, Region) and part.cta is None:
                    yield part.buffer, part.starts, True


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
