"""Reductions along a dimension.

Each thread folds what it holds of a row; lanes of a warp that hold other parts of it exchange by
butterfly, in a fixed order: every lane folds the same pairs, so all copies of a result have the
same bits. Where several warps have parts of a row, the partial results go through shared memory,
and everybody who keeps a result folds them in their order along the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import add, and_, mul, or_, xor

import numpy as np

from tilewright.passes.lower.core import *
from tilewright.passes.lower.maps import widest_layout
from tilewright.passes.lower.relayout import tile_map
from tilewright.support.distinct import distinct

# ── folds ────────────────────────────────────────────────────────────────────────────────────


def _keep_nan(op: str, a: Expr, b: Expr) -> Expr:
    return Call(f"{op}_nan", (a, b), a.dtype) if a.dtype.is_float else Bin(op, a, b)


def _magnitude(a: Expr) -> Expr:
    return Call("abs", (a,), a.dtype)


def _number(op: str) -> Callable[[Expr], Expr]:
    """What is folded of an element where NaN is skipped: `max(NaN, x)` is x."""
    return lambda a: Bin(op, a, identity(op, a.dtype))


@dataclass(frozen=True)
class Folding:
    """How two partial results become one, and what is folded of an element."""

    fold: Callable[[Expr, Expr], Expr]
    of: Callable[[Expr], Expr] = lambda a: a
    idempotent: bool = False


_max, _min, _most, _least = (
    functools.partial(fold, op) for fold in (_keep_nan, Bin) for op in ("max", "min")
)
FOLDS: dict[str, Folding] = {
    "sum": Folding(add),
    "prod": Folding(mul),
    "max": Folding(_max, idempotent=True),
    "min": Folding(_min, idempotent=True),
    "abssum": Folding(add, _magnitude),
    "absmax": Folding(_max, _magnitude, True),
    "max_num": Folding(_most, _number("max"), True),
    "min_num": Folding(_least, _number("min"), True),
    "absmax_num": Folding(_most, lambda a: _most(_magnitude(a), const(0, a.dtype)), True),
    "and": Folding(and_, idempotent=True),
    "or": Folding(or_, idempotent=True),
    "xor": Folding(xor),
    # of truth values, as 0 and 1
    "any": Folding(or_, idempotent=True),
    "all": Folding(and_, idempotent=True),
}
TRUTHS = ("any", "all")


def accumulates_in(op: str, src: DType, dst: DType) -> DType:
    """The type that partial results have: the wider of the two, at least 32 bits."""
    if op in TRUTHS:
        return INT32
    bits = max(src.bits, dst.bits, 32)
    if src.is_float or dst.is_float:
        wide = 64 in (k.bits for k in (src, dst) if k.is_float)
        return DTYPES["float64" if wide else "float32"]
    signed = "int" in (src.kind, dst.kind) or dst.is_bool
    return DTYPES[f"{'' if signed else 'u'}int{bits}"]


def element_value(op: str, value: Expr, kind: DType) -> Expr:
    """What is folded of an element."""
    return cast(truth(value), kind) if op in TRUTHS else FOLDS[op].of(cast(value, kind))


# ── reductions ───────────────────────────────────────────────────────────────────────────────


def lower_reduce(low: Lowering, op: Reduce) -> Iterable[Op]:
    """Partial results over registers, then exchanges between lanes, then between warps."""
    dim, tile = _axis(op)
    if not op.src.buffer.is_fragment:
        layout = widest_layout(low, op.src, tile)
        return _held(low, op, dim, layout, lambda to: Copy(op.src, to, atom="threads"))
    with low.restored():
        loop, kept, register = region_loop(low, op.src)
        if not loop.movable or any(k not in loop.tables for k in kept):
            raise CompileError(
                f"the part of {op.src.name} that is reduced begins at a place known only at "
                "run time",
                fix="unroll the loop around, or copy the part out first",
            )
        coords = [loop.tables[k] for k in kept]
        places = [loop.named[k] for k in kept]
        if len(coords) < len(tile):  # a unit dimension is reduced
            coords.insert(dim, np.zeros_like(loop.table))
            places.insert(dim, const(0))
        parts = find_parts(coords, loop.table, dim, tile)
        if parts is not None:
            others = [(p, e) for d, (p, e) in enumerate(zip(places, tile, strict=True)) if d != dim]
            return _reduced(low, op, loop, register, parts, others)
    # threads that hold parts of several rows
    layout = coalesced(tile, low.instance.threads)
    return _held(low, op, dim, layout, lambda to: Relayout(op.src, to, via="shared"))


def _held(
    low: Lowering, op: Reduce, dim: int, layout: Fragment, move: Callable[[Region], Op]
) -> Iterable[Op]:
    """The source into registers of another layout first."""
    name = low.var(f"{op.src.name}_held").name
    shape = tuple(const(e) for e in layout.tile)
    held = whole(Buffer(name, shape, op.src.dtype, Space.FRAGMENT, layout=layout))
    for each in (Alloc(held.buffer), move(held)):
        yield from low.op(each)
    yield from lower_reduce(low, rebuild(op, src=held, dim=dim))


def _axis(op: Reduce) -> tuple[int, tuple[int, ...]]:
    """The dimension of the source's tile that is reduced, and the tile; units are dropped unless
    it is one that is reduced."""
    tile, before = op.src.static_tile, within_tile(op.src, op.axis)
    unit = (1,) if int(op.src.extents[op.axis]) == 1 else ()
    return before, (*tile[:before], *unit, *tile[before:])


def within_tile(region: Region, dim: int) -> int:
    """How many dimensions of the region's tile come before `dim` of its extents."""
    return sum(int(e) != 1 for e in region.extents[:dim])


def _reduced(
    low: Lowering,
    op: Reduce,
    loop: MapLoop,
    register: Expr,
    parts: Parts,
    others: list[tuple[Expr, int]],
) -> Iterable[Op]:
    """`others` are the coordinates and extents that make the row."""
    kind, folding = accumulates_in(op.op, op.src.dtype, op.dst.dtype), FOLDS[op.op]
    held = op.dst.buffer.layout
    once = not isinstance(held, Fragment) or held.drop_repeats().values == held.values
    direct = held_parts(low, op.dst, parts.rows) if once and parts.ranks == 1 else None
    if direct is not None:
        parts = replace(parts, members=[parts.members[u] for u in direct])
    rows = len(parts.members)
    alike = direct is not None and kind == op.src.dtype == op.dst.dtype and op.op not in TRUTHS
    partial = low.local(f"{op.dst.name}_part", kind, rows)
    target = low.flat(op.dst.buffer)
    # the old value of a maximum takes part like an element: it is the same in all lanes, and
    # folding it more than once changes nothing
    old = target if alike and folding.idempotent and not op.clear else None
    body: list[Op] = [Alloc(partial)]
    body += _fold_registers(low, op, loop, register, partial, parts.members, old)

    d = low.var("d")
    total: Expr = Load(partial, (d,))
    end: list[Op] = []
    for lane in parts.lanes:
        own, let = low.let("own", total)
        other = low.var("other", kind)
        end += [let, Intrinsic("shfl_xor", (own, const(lane)), other)]
        total = folding.fold(own, other)
    if direct is not None:
        final = total if old is not None else _final(op, total, target, (d,))
        end.append(Store(target, (d,), final))
    elif end:
        end.append(Store(partial, (d,), total))
    if end:
        body.append(unroll(d, rows, tuple(end)))
    if direct is not None:
        return (*used(loop.before, tuple(body)), *body)

    size = prod(e for _, e in others)

    def tell(scratch: Buffer) -> Iterable[Op]:
        return _tell(low, op, loop, partial, low.flat(scratch), parts, others)

    scratch, told = low.exchange(kind, (parts.ranks * size,), tell)
    body += told
    gather = _gather(low, op, scratch, parts.ranks, size)
    return (*used(loop.before, tuple(body)), *body, *low.op(gather))


# ── who folds what ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Parts:
    """What threads hold of a tile's rows. `members[u]`: the values that fold into partial u;
    `rows[t, u]`: the row of partial u in thread t, -1 where there is none; `lanes` exchange, those
    whose numbers differ by each in turn; `rank[t]` of `ranks` is the place of the thread's part
    along the row, `first[t]` whether it is the one to tell it."""

    members: list[list[int]]
    rows: Indices
    lanes: tuple[int, ...]
    rank: Indices
    ranks: int
    first: Indices


def find_parts(
    coords: Sequence[Indices], held: Indices, dim: int, tile: Sequence[int]
) -> Parts | None:
    """How threads hold the rows of a tile along `dim`: [thread, value] of each coordinate and of
    the element. None where coordinates are no function of the thread plus one of the value, or
    parts do not fold into one result a row."""
    if not all(np.array_equal(t, t[:, :1] + t[:1] - t[0, 0]) for t in coords):
        return None
    threads, values = held.shape
    own = [t[:, 0] for t in coords]
    others = [d for d in range(len(tile)) if d != dim]
    steps = [(coords[d][0] - own[d][0]).tolist() for d in others]
    keys = list(zip(*steps, strict=True)) or [()] * values
    members = [[v for v in range(values) if keys[v] == key] for key in sorted(set(keys))]
    if len({len(group) for group in members}) > 1:
        return None

    firsts = [group[0] for group in members]
    rows = np.zeros((threads, len(members)), np.int64)
    real = np.ones_like(rows, dtype=bool)
    for d in others:
        at = coords[d][:, firsts]
        real &= (at >= 0) & (at < tile[d])
        rows = rows * tile[d] + at
    rows = np.where(real, rows, -1)

    along = own[dim]
    place = np.stack([own[d] for d in others] or [np.zeros_like(along)])
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
    parts = distinct(told)
    rank = np.searchsorted(parts, told)
    first, once = np.zeros(threads, bool), np.zeros(threads, bool)
    for chosen_ones, part in ((first, told), (once, along)):
        chosen_ones[np.unique(np.vstack([place, part]), axis=1, return_index=True)[1]] = True
    elements = np.sort(held[once], axis=None)
    elements = elements[elements != IDLE]
    if len(elements) != prod(tile) or (elements[1:] == elements[:-1]).any():
        return None  # parts of a row overlap, or leave some of it out
    told_rows = rows[first] * len(parts) + rank[first][:, None]
    if len(distinct(told_rows[rows[first] >= 0])) * tile[dim] != len(parts) * prod(tile):
        return None  # rows are held in different numbers of parts
    return Parts(members, rows, tuple(lanes), rank, len(parts), first)


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


def held_parts(low: Lowering, region: Region, rows: Indices) -> list[int] | None:
    """For each register of a fragment the part that it is, the same in all threads; `rows[t, u]` is
    the element of part u in thread t. None where threads need what others have."""
    target = region.buffer.layout
    if not isinstance(target, Fragment) or not region.is_whole:
        return None
    if target.threads != low.instance.threads:
        return None
    wanted = target.table()[:, :, None]  # [thread, register, part]
    fits = ((rows[:, None] == wanted) | (wanted < 0)).all(axis=0)
    return fits.argmax(axis=1).tolist() if fits.any(axis=1).all() else None


# ── code ─────────────────────────────────────────────────────────────────────────────────────


def _fold_registers(
    low: Lowering,
    op: Reduce,
    loop: MapLoop,
    register: Expr,
    partial: Buffer,
    members: list[list[int]],
    old: Buffer | None,
) -> Iterable[Op]:
    """The partial of each row folds its values, and what it was in `old`."""
    folding, kind = FOLDS[op.op], partial.dtype
    source, guard = low.flat(op.src.buffer), loop.guard()

    def step(value: Expr, row: Expr, more: bool) -> Op:
        swap = {loop.var: value}
        found = Load(source, (low.simplify(substitute(register, swap)),), op.loc)
        folded = element_value(op.op, found, kind)
        cond = low.simplify(substitute(guard, swap))
        if cond is not TRUE:
            folded = select(cond, folded, identity(op.op, kind))
        if more:
            folded = folding.fold(Load(partial, (row,)), folded)
        elif old is not None:
            folded = folding.fold(Load(old, (row,)), folded)
        return Store(partial, (row,), folded)

    rows, count = len(members), len(members[0])
    for first, end in ((0, 1), (1, count)):
        k, d = (low.var(stem) for stem in "kd")
        index = fit_registers(np.array(members).T, (k, d))
        if index is None:
            raise CompileError("the registers of a row are no simple function of its elements")
        low.ranges = low.ranges.where(k, first, end - 1).where(d, 0, rows - 1)
        body = step(index if first else substitute(index, {k: const(0)}), d, first > 0)
        body = unroll(d, rows, (body,))
        if end > first:
            yield unroll(k, end, (body,), start=first) if first else body


def _final(op: Reduce, total: Expr, target: Buffer, spot: tuple[Expr, ...]) -> Expr:
    """A total, with the old value when that stays, as the result's type."""
    if not op.clear:
        old, kind = Load(target, spot), total.dtype
        mine = element_value(op.op, old, kind) if op.op in TRUTHS else cast(old, kind)
        total = FOLDS[op.op].fold(mine, total)
    return cast(total, op.dst.dtype)


def _tell(
    low: Lowering,
    op: Reduce,
    loop: MapLoop,
    partial: Buffer,
    scratch: Buffer,
    parts: Parts,
    others: list[tuple[Expr, int]],
) -> Iterable[Op]:
    """Partial results into `scratch[rank, row]`."""
    places, extents = zip(*others, strict=True) if others else ((), ())
    row, inside, size = wrap(ravel(places, extents)), low.in_box(places, extents), prod(extents)
    thread = low.instance.thread
    rank = chosen(low, thread, parts.rank.tolist()) if parts.ranks > 1 else const(0)
    name, let = low.let("rank", rank)
    yield let
    firsts = np.array([group[0] for group in parts.members])
    u = low.var("u")
    low.ranges = low.ranges.where(u, 0, len(firsts) - 1).where(name, 0, parts.ranks - 1)
    value = fit_registers(firsts, (u,))
    assert value is not None  # members of one tile
    at = {loop.var: value}
    place = low.simplify(name * size + substitute(row, at))
    store = Store(scratch, (place,), Load(partial, (u,)))
    body = guarded(low.simplify(substitute(inside, at)), (store,))
    once = TRUE if parts.first.all() else chooses(low, parts.first)
    yield from guarded(once, (unroll(u, len(firsts), body),))


def chooses(low: Lowering, keep: Indices) -> Expr:
    """True in the threads of `keep`."""
    thread = low.instance.thread
    number = np.arange(len(keep))
    zero = ((1 << (len(keep) - 1).bit_length()) - 1) & ~int(np.bitwise_or.reduce(number[keep]))
    if np.array_equal((number & zero) == 0, keep):
        return compare("==", thread & zero, 0)
    return compare("==", chosen(low, thread, keep.astype(np.int64).tolist()), 1)


def _gather(low: Lowering, op: Reduce, scratch: Buffer, ranks: int, size: int) -> Op:
    """Everybody who keeps a result folds its parts."""
    total = low.local("total", scratch.dtype)

    def fold(coords: tuple[Expr, ...]) -> Body:
        row: Expr = wrap(ravel(coords, op.dst.static_tile))
        body: Body = ()
        value: Expr = Load(scratch, (row,))
        if ranks > 1:
            q = low.var("q")
            part = Load(scratch, (q * size + row,))
            more = FOLDS[op.op].fold(Load(total, ()), part)
            step = Store(total, (), more)
            rest = unroll(q, ranks, (step,), start=1)
            body = (Alloc(total, init=value), rest)
            value = Load(total, ())
        spot = op.dst.at(coords)
        final = _final(op, value, op.dst.buffer, spot)
        return (*body, Store(op.dst.buffer, spot, final))

    return tile_map(low, op.dst, fold)
