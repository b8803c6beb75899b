"""Copies by threads between a fragment and memory, and stores into a peer's shared memory.

Each thread moves the elements it holds. Neighbouring registers whose elements are neighbours in
memory, in every thread, move together: as wide as the layouts and the alignment allow, 16 bytes at
most. Where several threads hold an element, one of them stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.analysis.bounds import multiple_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import (
    TRUE,
    Expr,
    Load,
    Var,
    cast,
    const,
    logical_and,
    select,
    substitute,
    variables,
    wrap,
)
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import Indices
from tilewright.ir.op import Alloc, Body, Copy, For, Hint, If, Intrinsic, Op, Store
from tilewright.ir.simplify import simplify
from tilewright.passes.layout.addresses import (
    TileAddress,
    evaluate,
    fit_index,
    layout_expr,
    swizzle_expr,
    tile_address,
)
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.map_loops import Nest, dimensions, make_nest, region_nest, used
from tilewright.passes.lower.maps import check_single
from tilewright.passes.lower.ragged import Ragged, may_end_within, ragged, vectors_in
from tilewright.support.errors import CompileError

WIDEST = 128  # bits of one access
WORD = 32  # bits of the least vector
CP_ASYNC_BYTES = (4, 8, 16)
# what engines and instructions can be told about the L2 cache; `no_allocate` is about the L1 cache
POLICIES = ("evict_first", "evict_last")
MOST_UNDER_WAY = 8  # vectors that a thread has loaded before it stores the first
MOST_UNROLLED = 8  # batches of them in a row
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
    own: Expr = TRUE  # whether the registers are the region's at all
    ragged: Ragged | None = None  # where the tensor may end within a group; not in `cond` then

    @property
    def groups(self) -> int:
        return self.nest.values // self.count

    def loop(self, *body: Op) -> Body:
        """`body` for every group; what it needs in front."""
        nest = self.nest
        if self.groups > 1:
            stop = const(self.groups)
            body = (For(self.var, const(0), stop, body, kind="unroll", loc=nest.loc),)
        return (*used(self.lets, body), *body)

    def at(self, swap: dict[Var, Expr], low: Lowering) -> Moves:
        """The same with other names for groups."""

        def rule(e: Expr) -> Expr:
            return low.simplify(substitute(e, swap))

        parted = None if self.ragged is None else self.ragged.map(rule)
        start = tuple(map(rule, self.start))
        return replace(self, start=start, cond=rule(self.cond), ragged=parted)

    def where(self, buffer: Buffer) -> Region:
        """The group's elements in memory."""
        ones = (const(1) for _ in self.start[1:])
        return Region(buffer, self.start, (*ones, const(self.count)))


def copy_memory(low: Lowering, op: Copy) -> Iterable[Op]:
    """Between a fragment and shared or global memory, by threads."""
    store = isinstance(op.src.buffer.layout, Fragment)
    held, memory = (op.src, op.dst) if store else (op.dst, op.src)
    if op.reduce is not None or memory.cta is not None:
        raise low.unsupported(op, "copies by threads stay in the block and do not reduce")
    if not store:
        check_single(held.buffer, op)
    moves = _plan(low, op, held, memory, store)
    buffer = low.flat(memory.buffer)
    low.touched = True
    yield from _align(low, memory, moves.count, op)
    alone = moves.cond if store else moves.own
    body = _move(low, op, moves, buffer, low.flat(held.buffer), moves.register, store)
    if alone is not TRUE:
        body = (If(alone, body, loc=op.loc),)
    yield from moves.loop(*body)


def _move(
    low: Lowering,
    op: Copy,
    moves: Moves,
    memory: Buffer,
    registers: Buffer,
    first: Expr,
    store: bool,
) -> Body:
    """One group of elements between `memory` and registers `first` … of `registers`; a load reads
    zeros where `moves.cond` does not hold, stores are the caller's to guard. Where caches are told
    something, single elements move by instructions too."""
    kind, held = memory.dtype, registers.dtype
    kept = f" cache={op.cache}" if op.cache and memory.space is Space.GLOBAL else ""
    if moves.count == 1 and not kept:
        if store:
            value: Expr = Load(registers, (first,), op.loc)
            return (Store(memory, moves.start, cast(value, kind), loc=op.loc),)
        value = cast(Load(memory, moves.start, op.loc), held)
        if moves.cond is not TRUE:
            value = select(moves.cond, value, const(0, held))
        return (Store(registers, (first,), value, loc=op.loc),)
    name = ("store_" if store else "load_") + memory.space.value
    text = f"type={kind.name} count={moves.count}{kept}"
    span = Region(registers, (first,), (const(moves.count),))
    where = moves.where(memory)

    def each(of: Callable[[Expr, tuple[Expr]], Op]) -> Op:
        if moves.count == 1:
            return of(const(0), (first,))
        var = low.var("v")
        place = simplify(first + var, low.ranges)
        loop = (of(var, (place,)),)
        return For(var, const(0), const(moves.count), loop, kind="unroll", loc=op.loc)

    def clear(_: Expr, place: tuple[Expr]) -> Op:
        return Store(registers, place, const(0, held), loc=op.loc)

    def narrow(var: Expr, place: tuple[Expr]) -> Op:
        return Store(piece, (var,), cast(Load(registers, place, op.loc), kind), loc=op.loc)

    def widen(var: Expr, place: tuple[Expr]) -> Op:
        return Store(registers, place, cast(Load(piece, (var,), op.loc), held), loc=op.loc)

    before: Body = ()
    vectors: Body
    if kind == held or (moves.count > 1 and (kind.name, held.name) in _CONVERTED):
        args = (where, span) if store else (span, where)
        vectors = (Intrinsic(name, args, text=text, loc=op.loc),)
    else:
        # converted element by element beside a vector of the memory's own type
        piece = Buffer(low.var("piece").name, (const(moves.count),), kind, Space.LOCAL)
        whole = Region(piece, (const(0),), (const(moves.count),))
        before = (Alloc(piece, loc=op.loc),)
        args = (where, whole) if store else (whole, where)
        done = Intrinsic(name, args, text=text, loc=op.loc)
        vectors = (each(narrow), done) if store else (done, each(widen))
    wanted = TRUE if store else moves.cond
    if wanted is not TRUE:
        vectors = (If(wanted, vectors, (each(clear),), loc=op.loc),)
    if moves.ragged is not None:
        places, slots = (memory, moves.start), (registers, first)
        vectors = (moves.ragged.move(low, vectors, places, slots, store, op.loc, wanted),)
    return (*before, *vectors)


def _align(low: Lowering, memory: Region, count: int, op: Copy) -> Iterable[Op]:
    if memory.buffer.space is Space.GLOBAL and count > 1:
        size = count * memory.dtype.bits // 8
        yield Hint("align", low.base(memory.buffer)[0], detail=(size,), loc=op.loc)


# ── from memory to memory ────────────────────────────────────────────────────────────────────


def copy_between(low: Lowering, op: Copy) -> Iterable[Op]:
    """Global to shared memory and back (or within), through registers or by `cp.async`: threads
    along the last dimension, vectors as wide as both sides allow."""
    if op.reduce is not None or op.src.cta is not None or op.dst.cta is not None:
        raise low.unsupported(op, "copies by threads stay in the block and do not reduce")
    if Space.LOCAL in (op.src.buffer.space, op.dst.buffer.space):
        yield from _copy_alone(low, op)
        return
    unrolled, ranges = dict(low.unrolled), low.ranges
    source, target, count = _both_sides(low, op)
    low.unrolled, low.ranges = unrolled, ranges
    size = count * op.src.dtype.bits // 8
    low.touched = True
    yield from _align(low, op.src, count, op)
    yield from _align(low, op.dst, count, op)
    src, dst = low.flat(op.src.buffer), low.flat(op.dst.buffer)
    if op.atom == "cp_async" and size in CP_ASYNC_BYTES:
        amount: Expr = const(size)
        if source.ragged is not None:
            amount = source.ragged.amount(source.cond, op.src.dtype.bits // 8)
        elif source.cond is not TRUE:
            amount = select(source.cond, amount, const(0))
        body: Op = Intrinsic(
            "cp_async",
            (target.where(dst), source.where(src), amount),
            text=f"bytes={size}" + (f" cache={op.cache}" if op.cache in POLICIES else ""),
            loc=op.loc,
        )
        inside = source.nest.guard()
        if inside is not TRUE:
            inside = _at_group(low, inside, source.nest.var, source.var, count, source.groups)
            body = If(inside, (body,), loc=op.loc)
        yield from _whole_loop(low, source, target, (body,), 1)
        return
    batch = max(b for b in range(1, MOST_UNDER_WAY + 1) if source.groups % b == 0)
    piece = Buffer(low.var("piece").name, (const(batch * count),), op.src.dtype, Space.LOCAL)
    body_of: list[Op] = [Alloc(piece, loc=op.loc)]
    for side, memory, store in ((source, src, False), (target, dst, True)):
        b = low.var("b")
        low.ranges = ranges.where(b, 0, batch - 1)
        low.ranges = low.ranges.where(side.var, 0, source.groups // batch - 1)
        moved, first = side, wrap(0)
        if batch > 1:
            index = side.var * batch + b if source.groups > batch else b
            moved, first = side.at({side.var: index}, low), b * count
        part = _move(low, op, moved, memory, piece, first, store)
        if store and moved.cond is not TRUE:
            part = (If(moved.cond, part, loc=op.loc),)
        if batch > 1:
            part = (For(b, const(0), const(batch), part, kind="unroll", loc=op.loc),)
        body_of += part
    low.ranges = ranges
    yield from _whole_loop(low, source, target, tuple(body_of), batch)


def _copy_alone(low: Lowering, op: Copy) -> Iterable[Op]:
    """What each thread copies for itself, from or to its own array."""
    for region in (op.src, op.dst):
        if region.buffer.space is Space.FRAGMENT:
            raise low.unsupported(
                op, f"{region.buffer.name} is spread over threads, which do not copy it alone"
            )
    names = tuple(low.var(f"i{d}") for d in range(len(op.src.tile)))
    value = cast(Load(op.src.buffer, op.src.at(names), op.loc), op.dst.dtype)
    body: Op = Store(op.dst.buffer, op.dst.at(names), value, loc=op.loc)
    for name, extent in reversed(list(zip(names, op.src.tile, strict=True))):
        body = For(name, const(0), extent, (body,), kind="unroll", loc=op.loc)
    yield from low.op(body)


def _whole_loop(
    low: Lowering, source: Moves, target: Moves, body: Body, batch: int
) -> Iterable[Op]:
    count = source.groups // batch
    if count > 1:
        kind = "unroll" if count <= MOST_UNROLLED else "serial"
        stop = const(count)
        body = (For(source.var, const(0), stop, body, kind=kind, loc=source.nest.loc),)
    yield from used((*source.lets, *target.lets), body)
    yield from body


def _both_sides(low: Lowering, op: Copy) -> tuple[Moves, Moves, int]:
    """How threads go over both sides of `op` together: the widest that both allow."""
    if op.src.static_tile != op.dst.static_tile:
        raise low.unsupported(op, "the two sides of a copy have one shape")
    tile = op.src.static_tile
    shape = tile or (1,)
    widest = max(op.src.dtype.bits, op.dst.dtype.bits)
    narrowest = min(op.src.dtype.bits, op.dst.dtype.bits)
    if widest < 8:
        raise low.unsupported(op, f"copies of {op.src.dtype} by threads are not lowered")
    count = WIDEST // widest
    while True:
        while shape[-1] % count:
            count //= 2
        fragment = coalesced(shape, low.instance.threads, count)
        names = tuple(low.var(f"i{d}") for d in range(len(shape)))
        nest = make_nest(low, fragment, names, op.loc)
        kept = names if tile else ()
        if count == 1 or (
            count * narrowest >= WORD
            and all(fits_in(low, nest, r, count) for r in (op.src, op.dst))
        ):
            break
        count //= 2
    var = low.var("v")
    sides = []
    for region in (op.src, op.dst):
        start, lets, within = places_in(low, nest, region, kept, var, count, op)
        parted = _ragged(low, region, start, var, count, nest.values // count)
        cond = nest.guard() if parted is not None else logical_and(nest.guard(), within)
        cond = _at_group(low, cond, nest.var, var, count, nest.values // count)
        place = const(0)
        sides.append(Moves(nest, count, var, place, start, cond, tuple(lets), ragged=parted))
    once = nest.first_copy()
    sides[0] = replace(sides[0], lets=(*nest.before, *sides[0].lets))
    if once is not TRUE:
        sides[1] = replace(sides[1], cond=logical_and(once, sides[1].cond))
    return sides[0], sides[1], count


def store_remote(low: Lowering, op: Copy) -> Iterable[Op]:
    """A fragment into a peer's shared memory: every element once, and by `remote_store` its bytes
    counted there."""
    counted = op.atom == "remote_store"
    if not isinstance(op.src.buffer.layout, Fragment) or op.dst.buffer.space is not Space.SHARED:
        raise low.unsupported(op, "remote stores go from a fragment to shared memory")
    if counted and (op.dst.cta is None or op.barrier is None or op.barrier.cta is not op.dst.cta):
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
    low.touched = low.touched or not counted
    barrier = (op.barrier,) if op.barrier is not None else ()
    name = "store_remote" if counted else "store_cluster"
    body: Op = Intrinsic(name, (where, registers, *barrier), text=f"words={words}", loc=op.loc)
    if moves.cond is not TRUE:
        body = If(moves.cond, (body,), loc=op.loc)
    yield from moves.loop(body)


# ── who moves what ───────────────────────────────────────────────────────────────────────────


def _plan(low: Lowering, op: Copy, held: Region, memory: Region, store: bool) -> Moves:
    fragment = held.buffer.layout
    assert isinstance(fragment, Fragment)
    if held.static_tile != memory.static_tile:
        raise low.unsupported(op, "the two sides of a copy have one shape")
    if memory.dtype.bits < 8 or held.dtype.bits < 8:
        raise low.unsupported(op, f"copies of {memory.dtype} by threads are not lowered")
    unrolled, ranges = dict(low.unrolled), low.ranges
    nest, kept, find = region_nest(low, held, op)
    low.unrolled[nest.var] = range(nest.values)
    repeats = held.is_whole and nest.values != fragment.values
    register = find()
    most = 1 if repeats or not nest.movable else WIDEST // memory.dtype.bits
    least = max(WORD // memory.dtype.bits, 1)
    count = most
    while count >= least and (
        nest.values % count
        or not fits_in(low, nest, memory, count)
        or not _in_row(register, nest, count, held.dtype.bits)
    ):
        count //= 2
    count = count if count >= least else 1
    var = low.var("v")
    groups = nest.values // count
    start, lets, within = places_in(low, nest, memory, kept, var, count, op)
    parted = _ragged(low, memory, start, var, count, groups)
    within = TRUE if parted is not None else within
    cond = logical_and(nest.guard(), within)
    own: Expr = TRUE
    if store:
        cond = logical_and(nest.first_copy(), cond)
    elif nest.inside is not TRUE:
        # what lies outside the region keeps its value
        own, cond = nest.guard(), within
        own = _at_group(low, own, nest.var, var, count, groups)
    cond = _at_group(low, cond, nest.var, var, count, groups)
    register = _at_group(low, register, nest.var, var, count, groups)
    low.unrolled, low.ranges = unrolled, ranges
    return Moves(nest, count, var, register, start, cond, (*nest.before, *lets), own, parted)


def _ragged(
    low: Lowering, memory: Region, start: tuple[Expr, ...], var: Var, count: int, groups: int
) -> Ragged | None:
    """How groups of `count` elements that begin at `start` may be in `memory` by a part."""
    if count == 1 or memory.buffer.space is not Space.GLOBAL:
        return None
    return ragged(low, memory.buffer, start, count, low.ranges.where(var, 0, groups - 1))


def _in_row(register: Expr, nest: Nest, count: int, bits: int) -> bool:
    """Whether each `count` values have consecutive registers from a whole word on. What else
    registers depend on, unrolled variables, moves them as a whole."""
    others = {v: np.int64(0) for v in variables(register) - {nest.var}}
    try:
        found = evaluate(register, {**others, nest.var: np.arange(nest.values)})
    except CompileError:
        return False
    table = np.broadcast_to(found, (nest.values,)).reshape(-1, count)
    begins = table[:, 0] % max(WORD // bits, 1)
    return np.array_equal(table, table[:, :1] + np.arange(count)) and not begins.any()


def places_in(
    low: Lowering,
    nest: Nest,
    memory: Region,
    kept: tuple[Var, ...],
    var: Var,
    count: int,
    op: Op,
) -> tuple[tuple[Expr, ...], list[Op], Expr]:
    """Where group `var` begins in `memory`, what that needs, and whether it is in the tensor."""
    indices = memory.at(kept)
    groups = nest.values // count
    if memory.buffer.space is Space.SHARED:
        address = _address(low, memory, op)
        found = None if address is None else _split_offset(low, nest, address, var, count, op)
        if found is None:
            at = nest.offset(memory.buffer, indices)
            return (_at_group(low, at, nest.var, var, count, groups),), [], TRUE
        lets, offset = found
        return (offset,), lets, TRUE
    inside = tuple(nest.index(i) for i in indices)
    within: Expr = TRUE
    if memory.buffer.space is Space.GLOBAL:
        within = low.within(memory.buffer, inside)
    start = tuple(_at_group(low, i, nest.var, var, count, groups) for i in inside)
    return start, [], within


def _address(low: Lowering, memory: Region, op: Op) -> TileAddress | None:
    """Where the region lies, if its base and the tile inside separate."""
    if memory.buffer.name in low.shifts:
        return None
    try:
        return tile_address(memory, low.ranges, op.loc)
    except CompileError:
        return None


def _at_group(low: Lowering, e: Expr, value: Var, group: Var, count: int, groups: int) -> Expr:
    """`e` at the first value of a group."""
    first: Expr = group * count if groups > 1 else const(0)
    return simplify(substitute(e, {value: first}), low.ranges.where(group, 0, groups - 1))


def _linear(nest: Nest, address: TileAddress) -> Indices:
    """[thread, value]: offsets from the region's base, before the swizzle; -1 in idle slots."""
    table = nest.table
    found: Indices = np.where(table < 0, -1, address.offsets().reshape(-1)[table])
    return found


def _neighbours(table: Indices, count: int) -> bool:
    """Whether each group of `count` values begins at a multiple of it and goes up by one, or is
    idle as a whole."""
    groups = table.reshape(len(table), -1, count)
    first = groups[:, :, :1]
    idle = first[:, :, 0] < 0
    plain = np.array_equal(groups[~idle], (first + np.arange(count))[~idle])
    return bool(plain and (groups[idle] < 0).all() and not (first[~idle] % count).any())


def fits_in(low: Lowering, nest: Nest, memory: Region, count: int) -> bool:
    """Whether groups of `count` values of the nest are vectors of `memory`."""
    if memory.buffer.space is Space.SHARED:
        if memory.buffer.name in low.shifts:
            return False
        try:
            address = tile_address(memory, low.ranges, nest.loc)
        except CompileError:
            return False
        swizzle = address.swizzle
        return (
            _neighbours(_linear(nest, address), count)
            and multiple_of(address.base, low.ranges) % count == 0
            and (not swizzle.bits or count <= 1 << swizzle.base)
        )
    return memory.buffer.space is Space.GLOBAL and _global_fits(low, nest, memory, count)


def _global_fits(low: Lowering, nest: Nest, memory: Region, count: int) -> bool:
    """The last dimension is contiguous, rows and the region begin on `count` elements. The
    tensor itself does: the launch checks it (`hint align`)."""
    if not memory.extents or int(memory.extents[-1]) == 1:
        return False
    table = nest.table
    last = np.where(table < 0, -1, table % int(memory.extents[-1]))
    return (
        _neighbours(last, count)
        and multiple_of(memory.starts[-1], low.ranges) % count == 0
        and vectors_in(low, memory.buffer, count)
        and (
            multiple_of(memory.buffer.shape[-1], low.ranges) % count == 0
            or may_end_within(low, memory.buffer)
        )
    )


def _split_offset(
    low: Lowering, nest: Nest, address: TileAddress, var: Var, count: int, op: Op
) -> tuple[list[Op], Expr] | None:
    """The offset of a group as a base per thread and a constant per group; None where threads and
    values do not separate.

    The swizzle is linear over bits: where the threads' part, the groups' part and the base share
    none, each is swizzled by itself, and the groups' part becomes a constant."""
    if (nest.table < 0).any() or nest.part is not None or not nest.movable:
        return None
    table = _linear(nest, address)
    if not np.array_equal(table, table[:, :1] + table[:1] - table[0, 0]):
        return None
    places, steps = table[:, 0], table[0, ::count] - table[0, 0]
    layouts = dimensions(nest.fragment)
    if layouts is None:
        return None
    dims = [d for d, size in enumerate(nest.fragment.tile) if size != 1]
    parts = [
        layout_expr(mode, simplify(layout_expr(layouts[d][0], low.instance.thread)))
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
