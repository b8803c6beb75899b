"""Reductions that take more than registers and lanes of one warp: across warps, of parts, with
idle slots, between types, from and to memory.

Each thread folds what it holds of a row; lanes that hold other parts of it exchange; what is left,
one partial result per warp (or thread), goes through shared memory, and everybody who keeps a
result folds the parts in their order along the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    TRUE,
    Expr,
    Load,
    Var,
    cast,
    compare,
    const,
    logical_and,
    select,
    substitute,
)
from tilewright.ir.layout.fragment import IDLE, Fragment
from tilewright.ir.layout.layout import Indices, Layout
from tilewright.ir.op import Alloc, Body, Copy, For, If, Intrinsic, Map, Op, Reduce, Relayout, Store
from tilewright.ir.rewrite import rebuild
from tilewright.ir.simplify import simplify
from tilewright.passes.layout.addresses import fit_index
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.folds import ALL_FOLDS, accumulates_in, element_value, identity
from tilewright.passes.lower.lowering import Lowering, chosen
from tilewright.passes.lower.map_loops import Nest, region_fragment, region_nest, used
from tilewright.support.distinct import distinct
from tilewright.support.errors import CompileError


@dataclass(frozen=True)
class _Parts:
    """What threads hold of a tile's rows. `members[u]`: the values that fold into partial u;
    `rows[t, u]`: the row of partial u in thread t, -1 where there is none; `lanes` exchange;
    `rank[t]` of `ranks` is the place of the thread's part along the row, `first[t]` whether it is
    the one to tell it."""

    members: list[list[int]]
    rows: Indices
    lanes: tuple[int, ...]
    rank: Indices
    ranks: int
    first: Indices


def reduce_any(low: Lowering, op: Reduce) -> Iterable[Op]:
    """`op` by the general way."""
    if op.src.buffer.space is not Space.FRAGMENT:
        yield from _from_memory(low, op)
        return
    if op.src.dtype.bits < 8 or op.dst.dtype.bits < 8:
        raise low.unsupported(op, f"reductions of {op.src.dtype} are not lowered")
    dim, tile = _axis(op)
    rest = tile[:dim] + tile[dim + 1 :]
    kind = accumulates_in(op.op, op.src.dtype, op.dst.dtype)
    unrolled, ranges = dict(low.unrolled), low.ranges
    nest, kept, find = region_nest(low, op.src, op)
    if not nest.movable or any(k not in nest.tables for k in kept):
        raise low.unsupported(
            op,
            f"the part of {op.src.buffer.name} that is reduced begins at a place known only at "
            "run time",
            "unroll the loop around, or copy the part out first",
        )
    if not all(_is_sum(nest.tables[k]) for k in kept):
        low.unrolled, low.ranges = unrolled, ranges
        yield from _spread_anew(low, op, dim, tile)
        return
    low.unrolled[nest.var] = range(nest.values)
    register = find()
    parts = _parts(low, op, nest, kept, dim, rest)
    partial = Buffer(
        low.var(f"{op.dst.buffer.name}_part").name,
        (const(len(parts.members)),),
        kind,
        Space.LOCAL,
    )
    body: list[Op] = [Alloc(partial, loc=op.loc)]
    body += _fold_registers(low, op, nest, register, partial, parts)
    body += _exchange_lanes(low, op, partial, parts)
    places = [nest.named[k] for d, k in enumerate(kept) if d != dim or len(kept) == len(rest)]
    rows: Expr = const(0)
    inside: Expr = TRUE
    for place, extent in zip(places, rest, strict=True):
        rows = rows * extent + place
        for cond in (compare(">=", place, 0), compare("<", place, extent)):
            if low.proves(cond) is not True:
                inside = logical_and(inside, cond)
    low.unrolled, low.ranges = unrolled, ranges
    direct = _direct(low, op, parts) if parts.ranks == 1 else None
    if direct is not None:
        yield from used(nest.before, tuple(body))
        yield from body
        yield from _keep(low, op, partial, direct)
        return
    scratch, met = low.exchange(kind, parts.ranks * prod(rest), op.loc)
    scratch = scratch.with_layout(Layout(parts.ranks * prod(rest)))
    body += met
    body += _tell(low, op, nest, partial, scratch, parts, rows, inside, prod(rest))
    yield from used(nest.before, tuple(body))
    yield from body
    yield from low.join(op.loc)
    yield from low.op(_gather(low, op, scratch, parts.ranks, rest))


def _axis(op: Reduce) -> tuple[int, tuple[int, ...]]:
    """The dimension of the source's tile that is reduced, and the tile; units are dropped unless
    it is one that is reduced."""
    tile, target = op.src.static_tile, op.dst.static_tile
    if op.dim < len(tile):
        left = tile[: op.dim] + tile[op.dim + 1 :]
        if tuple(e for e in left if e != 1) == target:
            return op.dim, tile
    extents = tuple(int(e) for e in op.src.extents)
    before = sum(1 for e in extents[: op.dim] if e != 1)
    if extents[op.dim] != 1:
        return before, tile
    return before, (*tile[:before], 1, *tile[before:])


def _from_memory(low: Lowering, op: Reduce) -> Iterable[Op]:
    """The source into registers first."""
    dim, tile = _axis(op)
    vector = max(128 // op.src.dtype.bits, 1)
    while tile[-1] % vector:
        vector //= 2
    layout = coalesced(tile, low.instance.threads, vector)
    name = low.var(f"{op.src.buffer.name}_held").name
    shape = tuple(const(e) for e in tile)
    held = Buffer(name, shape, op.src.dtype, Space.FRAGMENT, layout=layout)
    yield from low.op(Alloc(held, loc=op.loc))
    yield from low.op(Copy(op.src, whole(held), atom="threads", loc=op.loc))
    yield from reduce_any(low, rebuild(op, src=whole(held), dim=dim))


def _is_sum(table: Indices) -> bool:
    """Whether coordinates are a function of the thread plus one of the value."""
    return np.array_equal(table, table[:, :1] + table[:1] - table[0, 0])


def _spread_anew(low: Lowering, op: Reduce, dim: int, tile: tuple[int, ...]) -> Iterable[Op]:
    """The source in another layout first: threads that hold parts of several rows."""
    layout = coalesced(tile, low.instance.threads)
    name = low.var(f"{op.src.buffer.name}_held").name
    shape = tuple(const(e) for e in tile)
    held = Buffer(name, shape, op.src.dtype, Space.FRAGMENT, layout=layout)
    yield from low.op(Alloc(held, loc=op.loc))
    yield from low.op(Relayout(op.src, whole(held), via="shared", loc=op.loc))
    yield from reduce_any(low, rebuild(op, src=whole(held), dim=dim))


# ── who folds what ───────────────────────────────────────────────────────────────────────────


def _parts(
    low: Lowering, op: Reduce, nest: Nest, kept: tuple[Var, ...], dim: int, rest: tuple[int, ...]
) -> _Parts:
    threads = nest.fragment.threads
    tables = [nest.tables[k] for k in kept]
    if len(tables) == len(rest):  # a unit dimension is reduced
        tables.insert(dim, np.zeros((threads, nest.values), np.int64))
    own = [t[:, 0] for t in tables]
    steps = [t[0] - t[0, 0] for t in tables]
    keys = list(zip(*(s.tolist() for d, s in enumerate(steps) if d != dim), strict=True))
    keys = keys or [()] * nest.values
    order = sorted(set(keys))
    members = [[v for v in range(nest.values) if keys[v] == key] for key in order]

    valid = nest.table != IDLE
    firsts = [group[0] for group in members]
    rows = np.zeros((threads, len(members)), np.int64)
    real = np.ones_like(rows, dtype=bool)
    others = [t for d, t in enumerate(tables) if d != dim]
    for table, extent in zip(others, rest, strict=True):
        at = table[:, firsts]
        real &= (at >= 0) & (at < extent)
        rows = rows * extent + at
    rows = np.where(real, rows, -1)

    place = np.stack([o for d, o in enumerate(own) if d != dim] or [np.zeros_like(own[dim])])
    along = own[dim]
    number = np.arange(threads)
    lanes = []
    for bit in (1 << i for i in range(5)):
        if threads % (2 * bit):
            break
        other = number ^ bit
        if np.array_equal(place[:, other], place) and (along[other] != along).all():
            lanes.append(bit)
    while lanes and not _exchange_fits(lanes, place, along):
        lanes.pop()
    told = along[number & ~sum(lanes)]
    values = distinct(told)
    rank = np.searchsorted(values, told)
    _, which = np.unique(np.vstack([place, told]), axis=1, return_index=True)
    first = np.zeros(threads, bool)
    first[which] = True
    _, which = np.unique(np.vstack([place, along]), axis=1, return_index=True)
    held = nest.table[which]
    held = np.sort(held[held != IDLE])
    expected = prod(op.src.static_tile)
    if len(held) != expected or (held[1:] == held[:-1]).any() or not valid.any():
        raise CompileError(
            "this reduction is not lowered: threads hold parts of a row that overlap or leave "
            "some of it out",
            loc=op.loc,
            got=repr(nest.fragment),
        )
    told_rows = rows[first] * len(values) + rank[first][:, None]
    if len(distinct(told_rows[rows[first] >= 0])) != len(values) * prod(rest):
        raise CompileError(
            "this reduction is not lowered: rows are held in different numbers of parts",
            loc=op.loc,
            got=repr(nest.fragment),
        )
    return _Parts(members, rows, tuple(lanes), rank, len(values), first)


def _exchange_fits(lanes: list[int], place: Indices, along: Indices) -> bool:
    """Whether each set of threads that exchange has different parts of a row, and other sets of
    the row have the same ones or none of them."""
    number = np.arange(len(along))
    orbit = np.zeros((1,), np.int64)
    for bit in lanes:
        orbit = np.concatenate([orbit, orbit ^ bit])
    seen = np.sort(along[number[:, None] ^ orbit], axis=1)
    if (seen[:, 1:] == seen[:, :-1]).any():
        return False
    told = along[number & ~sum(lanes)]
    whole = np.unique(np.vstack([place, along, told, seen.T]), axis=1)
    return bool(whole.shape[1] == np.unique(np.vstack([place, along]), axis=1).shape[1])


def _fold_registers(
    low: Lowering, op: Reduce, nest: Nest, register: Expr, partial: Buffer, parts: _Parts
) -> Iterable[Op]:
    folding, kind = ALL_FOLDS[op.op], partial.dtype
    source = low.flat(op.src.buffer)
    guard = nest.guard()

    def element(value: Expr) -> Expr:
        at = {nest.var: value}
        found = Load(source, (simplify(substitute(register, at), low.ranges),), op.loc)
        folded = element_value(op.op, found, kind)
        cond = simplify(substitute(guard, at), low.ranges)
        return select(cond, folded, identity(op.op, kind)) if cond is not TRUE else folded

    sizes = {len(m) for m in parts.members}
    table = np.array(parts.members) if len(sizes) == 1 else None
    u, k = low.var("u"), low.var("k")
    index = None if table is None else fit_index(table.T, (k, u))
    if index is None:
        for u_at, group in enumerate(parts.members):
            for k_at, v in enumerate(group):
                more = element(const(v))
                if k_at:
                    more = folding.fold(Load(partial, (const(u_at),), op.loc), more)
                yield Store(partial, (const(u_at),), more, loc=op.loc)
        return
    count, groups = len(parts.members[0]), len(parts.members)
    low.ranges = low.ranges.where(u, 0, groups - 1).where(k, 0, count - 1)
    start = Store(partial, (u,), element(substitute(index, {k: const(0)})), loc=op.loc)
    yield For(u, const(0), const(groups), (start,), kind="unroll", loc=op.loc)
    if count > 1:
        u2, k2 = low.var("u"), low.var("k")
        low.ranges = low.ranges.where(u2, 0, groups - 1).where(k2, 1, count - 1)
        more = element(substitute(index, {k: k2, u: u2}))
        step: Op = Store(
            partial, (u2,), folding.fold(Load(partial, (u2,), op.loc), more), loc=op.loc
        )
        step = For(u2, const(0), const(groups), (step,), kind="unroll", loc=op.loc)
        yield For(k2, const(1), const(count), (step,), kind="unroll", loc=op.loc)


def _exchange_lanes(low: Lowering, op: Reduce, partial: Buffer, parts: _Parts) -> Iterable[Op]:
    if not parts.lanes:
        return
    folding = ALL_FOLDS[op.op]
    u = low.var("u")
    total: Expr = Load(partial, (u,), op.loc)
    body: list[Op] = []
    for lane in parts.lanes:
        own, let = low.let("own", total, op.loc)
        other = low.var("other", partial.dtype)
        body += [let, Intrinsic("shfl_xor", (own, const(lane)), other, loc=op.loc)]
        total = folding.fold(own, other)
    body.append(Store(partial, (u,), total, loc=op.loc))
    count = len(parts.members)
    yield For(u, const(0), const(count), tuple(body), kind="unroll", loc=op.loc)


# ── results ──────────────────────────────────────────────────────────────────────────────────


def _direct(low: Lowering, op: Reduce, parts: _Parts) -> list[int] | None:
    """For each register of the result the partial that it is, the same in all threads."""
    target = op.dst.buffer.layout
    if not isinstance(target, Fragment) or not op.dst.is_whole:
        return None
    if target.threads != low.instance.threads or target.drop_repeats().values != target.values:
        return None
    wanted = target.table()
    found = []
    for d in range(target.values):
        need = wanted[:, d : d + 1]
        fits = ((parts.rows == need) | (need < 0)).all(axis=0)
        if not fits.any():
            return None
        found.append(int(fits.argmax()))
    return found


def _keep(low: Lowering, op: Reduce, partial: Buffer, which: list[int]) -> Iterable[Op]:
    target = low.flat(op.dst.buffer)
    d = low.var("d")
    index = fit_index(np.array(which), (d,)) if len(which) > 1 else const(which[0])
    if index is not None:
        body = Store(target, (d,), _final(op, Load(partial, (index,)), target, (d,)), loc=op.loc)
        yield For(d, const(0), const(len(which)), (body,), kind="unroll", loc=op.loc)
        return
    for at, u in enumerate(which):
        value = _final(op, Load(partial, (const(u),)), target, (const(at),))
        yield Store(target, (const(at),), value, loc=op.loc)


def _final(op: Reduce, total: Expr, target: Buffer, at: tuple[Expr, ...]) -> Expr:
    """A total, with the old value when that stays, as the result's type."""
    if not op.clear:
        old = Load(target, at, op.loc)
        kind = total.dtype
        if op.op in ("any", "all"):
            mine: Expr = element_value(op.op, old, kind)
        else:
            mine = cast(old, kind)
        total = ALL_FOLDS[op.op].fold(mine, total)
    return cast(total, op.dst.dtype)


def _tell(
    low: Lowering,
    op: Reduce,
    nest: Nest,
    partial: Buffer,
    scratch: Buffer,
    parts: _Parts,
    rows: Expr,
    inside: Expr,
    size: int,
) -> Iterable[Op]:
    """Partial results into `scratch[rank, row]`."""
    thread = low.instance.thread
    rank = chosen(low, thread, parts.rank.tolist()) if parts.ranks > 1 else const(0)
    name, let = low.let("rank", rank, op.loc)
    once: Expr = TRUE
    if not parts.first.all():
        once = _chooses(low, parts.first)
    yield let
    stores: list[Op] = []
    firsts = np.array([group[0] for group in parts.members])
    u = low.var("u")
    value = fit_index(firsts, (u,)) if len(firsts) > 1 else const(int(firsts[0]))
    low.ranges = low.ranges.where(u, 0, len(firsts) - 1).where(name, 0, parts.ranks - 1)

    def store(at: Expr, v: Expr) -> Op:
        place = low.simplify(name * size + substitute(rows, {nest.var: v}))
        found: Op = Store(low.flat(scratch), (place,), Load(partial, (at,), op.loc), loc=op.loc)
        cond = low.simplify(substitute(inside, {nest.var: v}))
        return found if cond is TRUE else If(cond, (found,), loc=op.loc)

    if value is not None:
        body = (store(u, value),)
        stores.append(For(u, const(0), const(len(firsts)), body, kind="unroll", loc=op.loc))
    else:
        stores += [store(const(i), const(int(v))) for i, v in enumerate(firsts)]
    yield from stores if once is TRUE else (If(once, tuple(stores), loc=op.loc),)


def _chooses(low: Lowering, keep: Indices) -> Expr:
    """True in the threads of `keep`."""
    thread = low.instance.thread
    number = np.arange(len(keep))
    zero = ((1 << (len(keep) - 1).bit_length()) - 1) & ~int(np.bitwise_or.reduce(number[keep]))
    if np.array_equal((number & zero) == 0, keep):
        return compare("==", thread & zero, 0)
    return compare("==", chosen(low, thread, keep.astype(np.int64).tolist()), 1)


def _gather(low: Lowering, op: Reduce, scratch: Buffer, ranks: int, rest: tuple[int, ...]) -> Op:
    """Everybody who keeps a result folds its parts."""
    kind: DType = scratch.dtype
    tile = op.dst.static_tile
    size = prod(rest)
    if isinstance(op.dst.buffer.layout, Fragment):
        layout, names, region = region_fragment(low, op.dst, op)
    else:
        layout = coalesced(tile or (1,), low.instance.threads)
        names = tuple(low.var(f"i{d}") for d in range(len(layout.tile)))
        region = names if tile else ()
    row: Expr = const(0)
    for name, extent in zip(region, tile, strict=True):
        row = row * extent + name
    indices = op.dst.at(region)
    total = Buffer(low.var("total").name, (), kind, Space.LOCAL)
    body: Body = ()
    value: Expr = Load(scratch, (row,), op.loc)
    if ranks > 1:
        q = low.var("q")
        more = ALL_FOLDS[op.op].fold(
            Load(total, (), op.loc), Load(scratch, (q * size + row,), op.loc)
        )
        step = Store(total, (), more, loc=op.loc)
        loop = For(q, const(1), const(ranks), (step,), kind="unroll", loc=op.loc)
        body = (Alloc(total, init=value, loc=op.loc), loop)
        value = Load(total, (), op.loc)
    final = _final(op, value, op.dst.buffer, indices)
    body = (*body, Store(op.dst.buffer, indices, final, loc=op.loc))
    return Map(names, tuple(const(e) for e in layout.tile), body, layout=layout, loc=op.loc)
