"""Copies by threads between a fragment and memory, and stores into a peer's shared memory.

Each thread moves the elements it holds. Neighbouring registers whose elements are neighbours in
memory, in every thread, move together: as wide as the layouts and the alignment allow, 16 bytes at
most. Where several threads hold an element, one of them stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.bounds import multiple_of
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import TRUE, Expr, Load, Var, binary, cast, const, select, substitute
from tilewright.ir.fragment import Fragment
from tilewright.ir.layout import Indices
from tilewright.ir.op import Body, Copy, For, Hint, If, Intrinsic, Op, Store
from tilewright.ir.simplify import simplify
from tilewright.passes.addresses import (
    TileAddress,
    fit_index,
    layout_expr,
    swizzle_expr,
    tile_address,
)
from tilewright.passes.lower_maps import check_single
from tilewright.passes.lowering import Lowering
from tilewright.passes.nests import Nest, make_nest, used
from tilewright.support.errors import CompileError

WIDEST = 128  # bits of one access
WORD = 32  # bits of the least vector
# pairs (in memory, in registers) whose vectors the header converts
_CONVERTED = {("bfloat16", "float32"), ("float16", "float32")}


@dataclass(frozen=True)
class Moves:
    """`count` elements at a time: `var` numbers the groups of a thread, `register` and `start`
    (indices of `memory`'s buffer) give the first element of each, `cond` whether it is moved."""

    nest: Nest
    count: int
    var: Var
    register: Expr
    start: tuple[Expr, ...]
    cond: Expr
    lets: Body

    def loop(self, *body: Op) -> Body:
        """`body` for every group; what it needs in front."""
        nest = self.nest
        groups = nest.values // self.count
        if groups > 1:
            stop = const(groups)
            body = (For(self.var, const(0), stop, body, kind="unroll", loc=nest.loc),)
        return (*used(self.lets, body), *body)


def copy_memory(low: Lowering, op: Copy) -> Iterable[Op]:
    """Between a fragment and shared or global memory, by threads."""
    store = isinstance(op.src.buffer.layout, Fragment)
    held, memory = (op.src, op.dst) if store else (op.dst, op.src)
    if op.reduce is not None or memory.cta is not None:
        raise low.unsupported(op, "copies by threads stay in the block and do not reduce")
    if not store:
        check_single(held.buffer, op)
    moves = _plan(low, op, held, memory, store)
    where = Region(
        low.flat(memory.buffer),
        moves.start,
        (*(const(1) for _ in moves.start[1:]), const(moves.count)),
    )
    flat = low.flat(held.buffer)
    body: Op
    if moves.count == 1:
        element = Load(where.buffer, moves.start, op.loc)
        if store:
            value: Expr = Load(flat, (moves.register,), op.loc)
            body = Store(where.buffer, moves.start, cast(value, memory.dtype), loc=op.loc)
        else:
            value = cast(element, held.dtype)
            if moves.cond is not TRUE:
                value = select(moves.cond, value, const(0, held.dtype))
            body = Store(flat, (moves.register,), value, loc=op.loc)
    else:
        registers = low.span(held.buffer, moves.register, moves.count)
        name = ("store_" if store else "load_") + memory.buffer.space.value
        args = (where, registers) if store else (registers, where)
        text = f"type={memory.dtype.name} count={moves.count}"
        body = Intrinsic(name, args, text=text, loc=op.loc)
        if not store and moves.cond is not TRUE:
            var = low.var("v")
            place = (simplify(moves.register + var, low.ranges),)
            zero: Op = Store(flat, place, const(0, held.dtype), loc=op.loc)
            zeros = For(var, const(0), const(moves.count), (zero,), kind="unroll", loc=op.loc)
            body = If(moves.cond, (body,), (zeros,), loc=op.loc)
    if store and moves.cond is not TRUE:
        body = If(moves.cond, (body,), loc=op.loc)
    low.touched = True
    if memory.buffer.space is Space.GLOBAL and moves.count > 1:
        size = moves.count * memory.dtype.bits // 8
        yield Hint("align", memory.buffer, detail=(size,), loc=op.loc)
    yield from moves.loop(body)


def store_remote(low: Lowering, op: Copy) -> Iterable[Op]:
    """A fragment into a peer's shared memory: every element once, its bytes counted there."""
    if not isinstance(op.src.buffer.layout, Fragment) or op.dst.buffer.space is not Space.SHARED:
        raise low.unsupported(op, "remote stores go from a fragment to shared memory")
    if op.dst.cta is None or op.barrier is None or op.barrier.cta is not op.dst.cta:
        raise CompileError(
            "a remote store and its barrier are in the same block of the cluster",
            loc=op.loc,
            expected="-> tile[…]@rank barrier=ready[…]@rank, with one rank",
        )
    if op.src.dtype != op.dst.dtype:
        raise low.unsupported(op, f"remote stores do not convert {op.src.dtype} to {op.dst.dtype}")
    moves = _plan(low, op, op.src, op.dst, True)
    if moves.count * op.src.dtype.bits % 32:
        raise low.unsupported(op, f"remote stores move words of 32 bits, not one {op.src.dtype}")
    where = low.span(op.dst.buffer, moves.start[0], moves.count, op.dst.cta)
    registers = low.span(op.src.buffer, moves.register, moves.count)
    words = moves.count * op.src.dtype.bits // 32
    body: Op = Intrinsic(
        "store_remote", (where, registers, op.barrier), text=f"words={words}", loc=op.loc
    )
    if moves.cond is not TRUE:
        body = If(moves.cond, (body,), loc=op.loc)
    yield from moves.loop(body)


# ── who moves what ───────────────────────────────────────────────────────────────────────────


def _plan(low: Lowering, op: Copy, held: Region, memory: Region, store: bool) -> Moves:
    fragment = held.buffer.layout
    assert isinstance(fragment, Fragment)
    if not held.is_whole:
        raise low.unsupported(op, f"copies of parts of {held.buffer.name} are not lowered yet")
    if held.static_tile != memory.static_tile:
        raise low.unsupported(op, "the two sides of a copy have one shape")
    unrolled, ranges = dict(low.unrolled), low.ranges
    names = tuple(low.var(f"i{d}") for d in range(len(fragment.tile)))
    nest = make_nest(low, fragment, names, op.loc)
    repeats = nest.values != fragment.values
    whole = nest.fragment.cover == nest.fragment.tile
    register = nest.register(held.buffer, names, op.loc)
    plain = memory.dtype == held.dtype or (memory.dtype.name, held.dtype.name) in _CONVERTED
    most = WIDEST // memory.dtype.bits if whole and not repeats and plain else 1
    least = max(WORD // memory.dtype.bits, 1)

    inner = iter(n for n, size in zip(names, fragment.tile, strict=True) if size != 1)
    indices = [
        s if int(e) == 1 else s + next(inner)
        for s, e in zip(memory.starts, memory.extents, strict=True)
    ]
    cond = nest.guard()
    lets: list[Op] = []
    if memory.buffer.space is Space.SHARED:
        address = tile_address(memory, low.ranges, op.loc)
        count = _widest(most, least, nest, lambda n: _shared_fits(low, nest, address, n))
        var = low.var("v")
        found = _split_offset(low, nest, address, var, count, op)
        if found is None:
            at = nest.offset(memory.buffer, indices)
            start: tuple[Expr, ...] = (_at_group(low, at, nest.var, var, count),)
        else:
            lets, offset = found
            start = (offset,)
    else:
        inside = tuple(nest.index(i) for i in indices)
        count = _widest(most, least, nest, lambda n: _global_fits(low, nest, memory, n))
        within = nest.low.within(memory.buffer, inside)
        if within is not TRUE:
            cond = within if cond is TRUE else binary("and", cond, within)
        var = low.var("v")
        start = tuple(_at_group(low, i, nest.var, var, count) for i in inside)
    if store:
        once = nest.first_copy()
        if once is not TRUE:
            cond = once if cond is TRUE else binary("and", once, cond)
    cond = _at_group(low, cond, nest.var, var, count)
    register = _at_group(low, register, nest.var, var, count)
    low.unrolled, low.ranges = unrolled, ranges
    return Moves(nest, count, var, register, start, cond, (*nest.before, *lets))


def _at_group(low: Lowering, e: Expr, value: Var, group: Var, count: int) -> Expr:
    """`e` at the first value of a group."""
    groups = len(low.unrolled[value]) // count
    first: Expr = group * count if groups > 1 else const(0)
    return simplify(substitute(e, {value: first}), low.ranges.where(group, 0, groups - 1))


def _widest(most: int, least: int, nest: Nest, fits: Callable[[int], bool]) -> int:
    """The most elements, a power of two from `least` to `most`, that move together; else one."""
    count = most
    while count >= least and (nest.values % count or not fits(count)):
        count //= 2
    return count if count >= least else 1


def _linear(nest: Nest, address: TileAddress) -> Indices:
    """[thread, value]: offsets from the region's base, before the swizzle."""
    found: Indices = address.offsets().reshape(-1)[nest.fragment.table()]
    return found


def _neighbours(table: Indices, count: int) -> bool:
    """Whether each group of `count` values begins at a multiple of it and goes up by one."""
    groups = table.reshape(len(table), -1, count)
    first = groups[:, :, :1]
    return np.array_equal(groups, first + np.arange(count)) and not (first % count).any()


def _shared_fits(low: Lowering, nest: Nest, address: TileAddress, count: int) -> bool:
    swizzle = address.swizzle
    return (
        _neighbours(_linear(nest, address), count)
        and multiple_of(address.base, low.ranges) % count == 0
        and (not swizzle.bits or count <= 1 << swizzle.base)
    )


def _global_fits(low: Lowering, nest: Nest, memory: Region, count: int) -> bool:
    """The last dimension is contiguous, rows and the region begin on `count` elements. The
    tensor itself does: the launch checks it (`hint align`)."""
    buffer = memory.buffer
    if buffer.strides is not None or int(memory.extents[-1]) == 1:
        return False
    last = np.unravel_index(nest.fragment.table(), nest.fragment.tile)[-1]
    return (
        _neighbours(np.asarray(last, np.int64), count)
        and multiple_of(memory.starts[-1], low.ranges) % count == 0
        and multiple_of(buffer.shape[-1], low.ranges) % count == 0
    )


def _split_offset(
    low: Lowering, nest: Nest, address: TileAddress, var: Var, count: int, op: Copy
) -> tuple[list[Op], Expr] | None:
    """The offset of a group as a base per thread and a constant per group; None where threads and
    values do not separate.

    The swizzle is linear over bits: where the threads' part, the groups' part and the base share
    none, each is swizzled by itself, and the groups' part becomes a constant."""
    if nest.fragment.cover != nest.fragment.tile:
        return None
    table = _linear(nest, address)
    if not np.array_equal(table, table[:, :1] + table[:1] - table[0, 0]):
        return None
    places, steps = table[:, 0], table[0, ::count] - table[0, 0]
    dims = [d for d, size in enumerate(nest.fragment.tile) if size != 1]
    parts = [
        layout_expr(mode, simplify(layout_expr(nest.fragment.along(d)[0], low.instance.thread)))
        for mode, d in zip(address.modes, dims, strict=True)
    ]
    place = low.simplify(sum(parts, const(0)))
    swizzle = address.swizzle
    names = (var,) if len(steps) > 1 else ()
    shared = int(np.bitwise_or.reduce(places)) & int(np.bitwise_or.reduce(steps))
    period = 1 << (swizzle.base + swizzle.shift + swizzle.bits)
    apart = not shared and multiple_of(address.base, low.ranges) % period == 0
    if not swizzle.bits or apart:
        step = fit_index(swizzle(steps) if names else np.zeros((), np.int64), names)
        if step is not None:
            at, let = low.let("at", low.simplify(swizzle_expr(swizzle, place)), op.loc)
            inner = at ^ step if swizzle.bits else at + step
            return [let], simplify(address.base + inner, low.ranges)
    plain = fit_index(steps if names else np.zeros((), np.int64), names)
    if plain is None:
        return None
    at, let = low.let("at", low.simplify(address.base + place), op.loc)
    return [let], swizzle_expr(swizzle, at + plain)
