"""Nests that gather by `cp.async` (`gathers`): each thread finds the places of its vectors and
copies them, zeros where a guard or the tensor's edge says so."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.buffer import Region
from tilewright.ir.expr import TRUE, Expr, Var, const, select, substitute
from tilewright.ir.gather import Gather, gather_of
from tilewright.ir.op import Body, For, Hint, If, Intrinsic, Let, Map, Op
from tilewright.ir.rewrite import rebuild
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.map_loops import Nest, make_nest, used
from tilewright.passes.lower.maps import lower_map, nest_layout
from tilewright.passes.lower.moves import fits_in, places_in
from tilewright.passes.lower.vectors import Access, moved_together
from tilewright.passes.overlap.gathers import SIZES
from tilewright.passes.reasons import because


def lower_nest(low: Lowering, op: Map) -> Iterable[Op]:
    """A nest as its atom says."""
    found = gather_of(op) if op.atom is not None else None
    if found is None:
        return lower_map(low, op)
    unrolled, ranges = dict(low.unrolled), low.ranges
    nest = make_nest(low, nest_layout(op), op.vars, op.loc)
    result = _gathered(nest, op, found)
    low.unrolled, low.ranges = unrolled, ranges
    if result is None:  # threads that load and store are done sooner than they need be
        because(low.kernel.name, op, "threads load and store: no vectors fit its layout")
        return lower_map(low, rebuild(op, atom=None))
    return result


def _gathered(nest: Nest, op: Map, found: Gather) -> Body | None:
    """`op` by the widest copies that its layout and both memories allow; None where none do."""
    low, loc, bits = nest.low, op.loc, found.load.dtype.bits
    extents = (const(1),) * (len(found.store.indices) - len(op.vars)) + op.extents
    starts = (*found.store.indices[: -len(op.vars)], *(const(0) for _ in op.vars))
    tile = Region(found.store.buffer, starts, extents)
    kept = tuple(v for v, e in zip(op.vars, op.extents, strict=True) if int(e) != 1)
    group = low.var("g")
    chosen = _widest(nest, tile, found, group)
    if chosen is None:
        return None
    size, source = chosen
    count = size * 8 // bits
    (place,), lets, _ = places_in(low, nest, tile, kept, group, count, op)
    rows: dict[Var, Expr] = {}
    body: list[Op] = []
    for var, value in source.named:
        row = Var(low.var("row").name, var.dtype)
        body.append(Let(row, value, loc=loc))
        rows[var] = row
    amount: Expr = const(size)
    wanted = substitute(source.inside, rows)
    if source.ragged is not None:
        amount = source.ragged.map(lambda e: substitute(e, rows)).amount(wanted, bits // 8)
    elif wanted is not TRUE:
        amount = select(wanted, amount, const(0))
    start = tuple(substitute(s, rows) for s in source.start)
    ones = (const(1) for _ in start[1:])
    there = Region(low.flat(source.buffer), start, (*ones, const(count)))
    args = (low.span(tile.buffer, place, count), there, amount)
    body.append(Intrinsic("cp_async", args, text=f"bytes={size}", loc=loc))
    groups = nest.values // count
    known = low.ranges.where(group, 0, groups - 1)
    guard = simplify(substitute(nest.guard(), {nest.var: group * count}), known)
    for test in (guard, nest.first_copy()):
        if test is not TRUE:
            body = [If(test, tuple(body), loc=loc)]
    result: Body = tuple(body)
    if groups > 1:
        result = (For(group, const(0), const(groups), result, kind="unroll", loc=loc),)
    hint = Hint("align", low.base(source.buffer)[0], detail=(size,), loc=loc)
    return (hint, *used((*nest.before, *lets), result), *result)


def _widest(nest: Nest, tile: Region, found: Gather, group: Var) -> tuple[int, Access] | None:
    """Bytes that a thread moves at a time, and from where."""
    idle = nest.table < 0
    for size in SIZES:
        count = size * 8 // found.load.dtype.bits
        if not count or nest.values % count or not fits_in(nest.low, nest, tile, count):
            continue
        slots = idle.reshape(len(idle), -1, count)
        if (slots != slots[:, :, :1]).any():
            continue
        before = len(nest.before)
        source = moved_together(nest, found, group, count)
        if source is not None:
            return size, source
        del nest.before[before:]
    return None
