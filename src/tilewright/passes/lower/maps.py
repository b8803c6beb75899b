"""Elementwise nests and fills, and copies between fragments."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir import scope
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import TRUE, Call, Const, Expr, Load, cast, const, substitute, variables
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Break,
    Continue,
    Copy,
    Fill,
    For,
    Hint,
    If,
    Intrinsic,
    Let,
    Map,
    Op,
    Store,
    While,
    bound_within,
    op_loads,
    walk_ops,
)
from tilewright.ir.rewrite import rebuild
from tilewright.ir.simplify import simplify
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.atomics import atomic_element
from tilewright.passes.lower.foreign import foreign
from tilewright.passes.lower.lowering import MEMORY, Lowering, accesses_memory
from tilewright.passes.lower.map_loops import Nest, make_nest, region_nest
from tilewright.passes.lower.replicated import hand_over, runs_once
from tilewright.passes.lower.vector_atomics import lower_sums
from tilewright.passes.lower.vectors import lower_groups
from tilewright.support.errors import CompileError

UINT32 = dtype("uint32")
PACK = {"bfloat16": "pack_bfloat16", "float16": "pack_float16"}


def lower_map(low: Lowering, op: Map) -> Iterable[Op]:
    """Every thread does the iterations of its values."""
    fragment = nest_layout(op)
    extents = tuple(int(e) for e in op.extents)
    if extents != fragment.tile:
        raise CompileError(
            "the nest and its layout have different shapes",
            loc=op.loc,
            expected=str(extents),
            got=repr(fragment),
        )
    unrolled, ranges = dict(low.unrolled), low.ranges
    nest = make_nest(low, fragment, op.vars, op.loc)
    once = nest.first_copy() if runs_once(low, op) else TRUE
    nest.alone = once is not TRUE
    nest.bound = frozenset(v for inner in op.body for v in bound_within(inner))
    result = None
    if nest.values > 1:
        result = lower_sums(nest, op) or lower_groups(nest, op, _body)
    if result is None:
        result = nest.loop(_body(nest, op.body))
    low.unrolled, low.ranges = unrolled, ranges
    low.touched = low.touched or accesses_memory(op, low.fixed)
    if once is TRUE:
        yield from result
        return
    yield If(once, result, loc=op.loc)
    yield from hand_over(low, op, fragment)


def nest_layout(op: Map) -> Fragment:
    """The nest's layout: its own, or that of the fragment it writes by its own variables."""
    if isinstance(op.layout, Fragment):
        return op.layout
    for inner in walk_ops(op.body):
        if (
            isinstance(inner, Store)
            and isinstance(inner.buffer.layout, Fragment)
            and inner.indices == op.vars
        ):
            return inner.buffer.layout
    raise CompileError(
        "this nest has no layout",
        loc=op.loc,
        fix='use target="cpu" or "interp", or write the layout: layout="frag{tile=… tv=…}"',
    )


def _body(nest: Nest, body: Body) -> Body:
    found: list[Op] = []
    low = nest.low
    before = low.ranges
    for op in body:
        found += _op(nest, op)
        low.ranges = scope.after(op, low.ranges)
    low.ranges = before
    return tuple(found)


def _op(nest: Nest, op: Op) -> Iterable[Op]:
    low = nest.low
    if isinstance(op, Store):
        yield from _store(nest, op)
    elif isinstance(op, Let):
        nest.lets[op.var] = op.value
        yield rebuild(op, value=nest.expr(op.value))
    elif isinstance(op, Alloc) and op.buffer.space is Space.LOCAL:
        yield rebuild(op, init=None if op.init is None else nest.expr(op.init))
    elif isinstance(op, If):
        yield rebuild(
            op,
            cond=nest.expr(op.cond),
            then=_inside(nest, op, "then", op.then),
            orelse=_inside(nest, op, "orelse", op.orelse),
        )
    elif isinstance(op, For):
        yield from _for(nest, op)
    elif isinstance(op, While):
        yield rebuild(op, cond=nest.expr(op.cond), body=_inside(nest, op, "body", op.body))
    elif isinstance(op, (Break, Continue)):
        yield op
    elif isinstance(op, Hint):
        if op.name == "assume" and op.value is not None:
            yield rebuild(op, value=nest.expr(op.value))
    elif isinstance(op, Atomic):
        yield from atomic_element(low, op, nest.expr, nest.index, nest.first_copy())
    elif isinstance(op, Intrinsic):
        if INTRINSICS[op.name].convergent:
            raise low.unsupported(
                op, f"{op.name} in a map: its iterations are no threads", "use it outside maps"
            )
        yield from foreign(low, op, nest.expr, nest.index, nest.first_copy())
    else:
        raise low.unsupported(op, f"{type(op).__name__.lower()} in a map is not lowered")


def _inside(nest: Nest, op: Op, name: str, body: Body) -> Body:
    low = nest.low
    before = low.ranges
    low.ranges = scope.inside(op, name, before)
    result = _body(nest, body)
    low.ranges = before
    return result


def _for(nest: Nest, op: For) -> Iterable[Op]:
    low = nest.low
    constant = all(isinstance(e, Const) for e in (op.start, op.stop, op.step))
    # registers take constant indices: a loop over what a thread holds of a fragment is unrolled
    if constant and (op.kind in ("unroll", "vectorized") or _indexes_registers(op)):
        low.unrolled[op.var] = range(int(op.start), int(op.stop), int(op.step))
    body = _inside(nest, op, "body", op.body)
    kind = "unroll" if low.unrolled.pop(op.var, None) is not None else "serial"
    yield rebuild(
        op,
        start=nest.expr(op.start),
        stop=nest.expr(op.stop),
        step=nest.expr(op.step),
        body=body,
        kind=kind,
    )


def _indexes_registers(loop: For) -> bool:
    for op in walk_ops(loop.body):
        places = [(x.buffer, x.indices) for x in op_loads(op)]
        if isinstance(op, Store):
            places.append((op.buffer, op.indices))
        for buffer, indices in places:
            if buffer.space is Space.FRAGMENT and any(loop.var in variables(i) for i in indices):
                return True
    return False


def _store(nest: Nest, op: Store) -> Iterable[Op]:
    low = nest.low
    flat = low.flat(op.buffer)
    value = nest.expr(op.value)
    if op.buffer.space is Space.FRAGMENT:
        check_single(op.buffer, op)
        register = nest.register(op.buffer, op.indices, op.loc)
        yield Store(flat, (register,), value, loc=op.loc)
        return
    cond: Expr = TRUE
    if op.buffer.space is Space.SHARED:
        indices: tuple[Expr, ...] = (nest.offset(op.buffer, op.indices),)
    else:
        indices = tuple(nest.index(i) for i in op.indices)
    if op.buffer.space is Space.GLOBAL:
        cond = nest.low.within(op.buffer, indices)
    store: Op = Store(flat, indices, value, loc=op.loc)
    for test in (cond, nest.first_copy() if op.buffer.space in MEMORY else TRUE):
        if test is not TRUE:
            store = If(test, (store,), loc=op.loc)
    yield store


def check_single(buffer: Buffer, op: Op) -> None:
    """A fragment that is written holds each element once in a thread."""
    fragment = buffer.layout
    assert isinstance(fragment, Fragment)
    if fragment.drop_repeats().values != fragment.values:
        raise CompileError(
            f"{buffer.name} holds elements in several registers of one thread",
            loc=op.loc,
            got=repr(fragment),
        )


# ── fills ────────────────────────────────────────────────────────────────────────────────────


def lower_fill(low: Lowering, op: Fill) -> Iterable[Op]:
    """A fragment register by register; memory by a nest of the block's threads."""
    buffer = op.dst.buffer
    if buffer.space is Space.FRAGMENT and op.dst.is_whole:
        fragment = buffer.layout
        assert isinstance(fragment, Fragment)
        op = low.plain(op)
        var = low.var("v")
        body = Store(low.flat(buffer), (var,), cast(op.value, op.dst.dtype), loc=op.loc)
        yield For(var, const(0), const(fragment.values), (body,), kind="unroll", loc=op.loc)
        return
    if buffer.space is Space.FRAGMENT:
        check_single(buffer, op)
        op = low.plain(op)
        unrolled, ranges = dict(low.unrolled), low.ranges
        nest, _, register = region_nest(low, op.dst, op)
        place = register()
        low.unrolled, low.ranges = unrolled, ranges
        value = cast(op.value, op.dst.dtype)
        yield from nest.loop((Store(low.flat(buffer), (place,), value, loc=op.loc),))
        return
    names = tuple(low.var(f"i{d}") for d in range(len(op.dst.tile)))
    store = Store(buffer, op.dst.at(names), cast(op.value, op.dst.dtype), loc=op.loc)
    if buffer.space is Space.LOCAL:
        loop: Op = store
        for name, extent in reversed(list(zip(names, op.dst.tile, strict=True))):
            loop = For(name, const(0), extent, (loop,), kind="unroll", loc=op.loc)
        yield from low.op(loop)
        return
    tile = op.dst.static_tile
    if not tile:
        names, tile = (low.var("i0"),), (1,)
    extents = tuple(const(e) for e in tile)
    layout = widest_spread(low, op.dst, tile)
    yield from low.op(Map(names, extents, (store,), layout=layout, loc=op.loc))


def widest_spread(low: Lowering, region: Region, tile: tuple[int, ...]) -> Fragment:
    """The block's threads over a region of memory, 16 bytes each where the tile divides."""
    vector = max(128 // region.dtype.bits, 1)
    while tile[-1] % vector:
        vector //= 2
    return coalesced(tile, low.instance.threads, vector)


# ── from fragment to fragment ────────────────────────────────────────────────────────────────


def copy_fragment(low: Lowering, op: Copy) -> Iterable[Op]:
    """Registers to registers; float32 to 16 bits in pairs, one instruction each."""
    source, target = op.src.buffer, op.dst.buffer
    fragment = target.layout
    assert isinstance(fragment, Fragment)
    check_single(target, op)
    unrolled, ranges = dict(low.unrolled), low.ranges
    nest, kept, find = region_nest(low, op.dst, op)
    indices = op.src.at(kept)
    register = nest.register(source, indices, op.loc)
    place = find()
    low.unrolled, low.ranges = unrolled, ranges
    src, dst = low.flat(source), low.flat(target)
    pack = PACK.get(op.dst.dtype.name) if op.src.dtype.name == "float32" else None
    if pack is None or fragment.values % 2 or not op.dst.is_whole:
        value = cast(Load(src, (register,), op.loc), op.dst.dtype)
        body: Op = Store(dst, (place,), value, loc=op.loc)
        if op.dst.is_whole:
            stop = const(fragment.values)
            yield For(nest.var, const(0), stop, (body,), kind="unroll", loc=op.loc)
        else:
            yield from nest.loop((body,))
        return
    pair = low.var("v")
    inside = low.ranges.where(pair, 0, fragment.values // 2 - 1)
    places = [substitute(register, {nest.var: pair * 2 + i}) for i in (0, 1)]
    both = tuple(Load(src, (simplify(p, inside),), op.loc) for p in places)
    packed = Call(pack, both, UINT32)
    body = Intrinsic("store_packed", (low.span(target, pair * 2, 2), packed), loc=op.loc)
    yield For(pair, const(0), const(fragment.values // 2), (body,), kind="unroll", loc=op.loc)
