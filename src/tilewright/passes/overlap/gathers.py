"""Nests that gather a shared tile out of a tensor, by `cp.async`: which can be, and what they ask
for that stays the same in a loop.

    for k { for i, j { tile[i, j] = X[table[i], k * 64 + j] } … }

A thread copies 16 bytes at a time (8 or 4 where that is all that lies together), zeros where a
guard or the tensor's edge says so. What decides where they lie (`table[i]`) is loaded once, before
the loop, and stays in registers:

    rows[i] = table[i]
    for k { for i, j { tile[i, j] = X[rows[i], k * 64 + j] } … }
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    Bin,
    Cmp,
    Const,
    Expr,
    Load,
    Var,
    const,
    loads,
    substitute,
    variables,
)
from tilewright.ir.gather import Gather, gather_of
from tilewright.ir.op import Alloc, For, Let, Map, Op, Store
from tilewright.ir.rewrite import fresh_name, rebuild
from tilewright.ir.simplify import simplify

SIZES = (16, 8, 4)  # bytes of one `cp.async`
WIDE = SIZES[0]
MOST_ROWS = 1024  # elements of what is loaded before the loop


def gather_bytes(op: Map, ranges: Ranges) -> int:
    """How many bytes one `cp.async` of the nest may move, given what holds where it stands; 0
    where none can."""
    found = gather_of(op)
    if found is None or not all(isinstance(e, Const) for e in op.extents):
        return 0
    bits = found.load.dtype.bits
    for size in SIZES:
        count = size * 8 // bits
        if count and int(op.extents[-1]) % count == 0 and _together(op, found, count, ranges):
            return size
    return 0


def _together(op: Map, found: Gather, count: int, ranges: Ranges) -> bool:
    """Whether `count` neighbours of the tile's rows are neighbours in the tensor, and either all
    of them are wanted or none."""
    buffer, indices = found.load.buffer, found.load.indices
    if count == 1 or not indices:
        return count == 1
    last, extent = op.vars[-1], int(op.extents[-1])
    group, each = Var(" group"), Var(" each")
    for v, e in zip(op.vars, op.extents, strict=True):
        ranges = ranges.where(v, 0, int(e) - 1)
    ranges = ranges.where(group, 0, extent // count - 1).where(each, 0, count - 1)

    def at(e: Expr, more: Expr, index: bool = True) -> Expr:
        return simplify(substitute(e, {last: group * count + more}), ranges, index=index)

    if any(at(e, each) is not at(e, const(0)) for e in indices[:-1]):
        return False
    if not holds_for_all(found.cond, partial(at, index=False), each, count, ranges):
        return False
    first = at(indices[-1], const(0))
    step = simplify(at(indices[-1], each) - first - each, ranges)
    if not (isinstance(step, Const) and step.value == 0) or multiple_of(first, ranges) % count:
        return False
    rows = [buffer.shape[-1]]
    if buffer.strides is not None:
        innermost = buffer.strides[-1]
        if not (isinstance(innermost, Const) and innermost.value == 1):
            return False
        rows += buffer.strides[:-1]
    return all(multiple_of(row, ranges) % count == 0 for row in rows)


def holds_for_all(
    cond: Expr, at: Callable[[Expr, Expr], Expr], each: Var, count: int, ranges: Ranges
) -> bool:
    """Whether `cond` is the same for a group of `count` neighbours: `at(e, each)` is what `e` is
    for one of them, `at(e, 0)` for the first. A border that lies between groups parts none."""
    zero = const(0)
    if at(cond, each) is at(cond, zero):
        return True
    if isinstance(cond, Bin) and cond.op in ("and", "or"):
        return all(holds_for_all(c, at, each, count, ranges) for c in cond.children)
    if not isinstance(cond, Cmp) or cond.op not in _SHIFTS or not cond.a.dtype.is_int:
        return False
    if not all(ranges.exact(at(side, each), False) for side in cond.children):
        return False
    # `first + each < 0` and `first - each <= 0` ask the same of all where first is a multiple
    first, one = (at(cond.a, e) - at(cond.b, e) for e in (zero, each))
    for sign, shift in zip((1, -1), _SHIFTS[cond.op], strict=True):
        rest = simplify(one - first - each * sign, ranges)
        if isinstance(rest, Const) and rest.value == 0:
            return multiple_of(simplify(first + shift, ranges), ranges) % count == 0
    return False


# what is added to a difference that grows, or falls, by one from neighbour to neighbour
_SHIFTS = {"<": (0, 1), ">=": (0, 1), "<=": (-1, 0), ">": (-1, 0)}


def rows_before(op: Map, loop: For, names: set[str]) -> tuple[list[Op], Map]:
    """What `op` loads from tensors to find its elements, whatever the loop's variable is, loaded
    before the loop; and the nest that reads it there."""
    found = gather_of(op)
    assert found is not None
    before: list[Op] = []
    held: dict[Load, Expr] = {}

    def hold(load: Load) -> Expr | None:
        if any(x.buffer.space is not Space.GLOBAL for x in loads(load)):
            return None
        if loop.var in variables(load):
            return None
        if load in held:
            return held[load]
        own = tuple(v for v in op.vars if v in variables(load))
        extents = tuple(op.extents[op.vars.index(v)] for v in own)
        name = fresh_name("row", names)
        if not own:
            var = Var(name, load.dtype)
            before.append(Let(var, load, loc=op.loc))
            held[load] = var
            return var
        if own[-1] is op.vars[-1] or prod(int(e) for e in extents) > MOST_ROWS:
            return None
        rows = Buffer(name, extents, load.dtype, Space.FRAGMENT)
        mine = tuple(Var(fresh_name(v.name, names), v.dtype) for v in own)
        value = substitute(load, dict(zip(own, mine, strict=True)))
        store = Store(rows, mine, value, loc=op.loc)
        before.extend((Alloc(rows, loc=op.loc), Map(mine, extents, (store,), loc=op.loc)))
        held[load] = Load(rows, own, load.loc)
        return held[load]

    def swap(e: Expr) -> Expr:
        new = hold(e) if isinstance(e, Load) and e is not found.load else None
        if new is not None:
            return new
        children = tuple(swap(c) for c in e.children)
        same = all(a is b for a, b in zip(children, e.children, strict=True))
        return e if same else e.rebuild(children)

    store = rebuild(found.store, value=swap(found.store.value))
    return before, rebuild(op, body=(store,))
