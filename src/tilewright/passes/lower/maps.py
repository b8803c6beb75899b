"""Elementwise maps and fills, and copies between fragments."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir import scope
from tilewright.ir.analysis.trips import values_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import (
    TRUE,
    Expr,
    Load,
    Var,
    cast,
    const,
    substitute,
    variables,
)
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Break,
    Continue,
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
    marked,
    op_loads,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import map_exprs, rebuild
from tilewright.passes.canonicalize.rules import expand_op
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.elements import atomic_element, intrinsic, lower_sums
from tilewright.passes.lower.lowering import (
    MEMORY,
    Lowering,
    accesses_memory,
    guarded,
    located,
    unroll,
)
from tilewright.passes.lower.map_loops import MapLoop, map_loop, region_loop
from tilewright.passes.lower.vectors import lower_groups
from tilewright.support.errors import CompileError, at


def lower_map(low: Lowering, op: Map) -> Iterable[Op]:
    """Every thread does the iterations of its values."""
    fragment = map_layout(op)
    extents = tuple(int(e) for e in op.extents)
    if extents != fragment.tile:
        raise CompileError(
            "the map and its layout have different shapes",
            expected=str(extents),
            got=repr(fragment),
        )
    with low.restored():
        loop = map_loop(low, fragment, op.vars)
        once = loop.first_copy() if runs_once(low, op) else TRUE
        loop.alone = once is not TRUE
        loop.bound = frozenset(v for inner in op.body for v in bound_within(inner))
        result = None
        if loop.values > 1:
            result = lower_sums(loop, op) or lower_groups(loop, op, _body)
        if result is None:
            result = loop.emit(_body(loop, op.body))
    low.touched = low.touched or accesses_memory(op, low.fixed)
    if once is TRUE:
        yield from result
        return
    yield If(once, result)
    yield from hand_over(low, op, fragment)


def map_layout(op: Map) -> Fragment:
    """The map's layout: its own, or that of the fragment it writes by its own variables."""
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
        "this map has no layout",
        fix='use target="cpu" or "interp", or write the layout: layout="frag{tile=… tv=…}"',
    )


def _body(loop: MapLoop, body: Body) -> Body:
    found: list[Op] = []
    low = loop.low
    with low.restored():
        for op in body:
            with at(op.loc):
                found += [located(new, op.loc) for new in _op(loop, op)]
            low.ranges = scope.after(op, low.ranges)
    return tuple(found)


def _op(loop: MapLoop, op: Op) -> Iterable[Op]:
    low = loop.low
    match op:
        case Store():
            yield from _store(loop, op)
        case Atomic():
            yield from atomic_element(low, op, loop.expr, loop.index, loop.first_copy())
        case Intrinsic():
            if INTRINSICS[op.name].convergent:
                raise CompileError(
                    f"{op.name} in a map: its iterations are no threads", fix="use it outside maps"
                )
            yield from intrinsic(low, op, loop.expr, loop.index, loop.first_copy())
        case Hint() if op.name != "assume":
            return
        case Let() | Alloc() | If() | For() | While() | Break() | Continue() | Hint():
            yield _structure(loop, op)
        case _:
            raise CompileError(f"{type(op).__name__.lower()} in a map is not lowered")


def _structure(loop: MapLoop, op: Op) -> Op:
    """`op` with its expressions and bodies as a thread has them."""
    low, changes = loop.low, {}
    if isinstance(op, Let):
        loop.lets[op.var] = op.value
    if isinstance(op, For):
        values = values_of(op)
        # registers take constant indices: a loop over what a thread holds of a fragment is unrolled
        if values is not None and (op.kind in ("unroll", "vectorized") or _indexes_registers(op)):
            low.unrolled[op.var] = values
        changes["kind"] = "unroll" if op.var in low.unrolled else "serial"
    new = map_exprs(op, loop.expr)
    for f in marked(op, "body"):
        with low.restored(scope.inside(op, f.name, low.ranges)):
            changes[f.name] = _body(loop, getattr(op, f.name))
    if isinstance(op, For):
        low.unrolled.pop(op.var, None)
    return rebuild(new, **changes)


def _indexes_registers(loop: For) -> bool:
    for op in walk_ops(loop.body):
        places = [(x.buffer, x.indices) for x in op_loads(op)]
        if isinstance(op, Store):
            places.append((op.buffer, op.indices))
        for buffer, indices in places:
            if buffer.space is Space.FRAGMENT and any(loop.var in variables(i) for i in indices):
                return True
    return False


def _store(loop: MapLoop, op: Store) -> Iterable[Op]:
    low = loop.low
    flat = low.flat(op.buffer)
    value = loop.expr(op.value)
    if op.buffer.space is Space.FRAGMENT:
        check_single(op.buffer)
        register = loop.register(op.buffer, op.indices, op.loc)
        yield Store(flat, (register,), value)
        return
    cond: Expr = TRUE
    if op.buffer.space is Space.SHARED:
        indices: tuple[Expr, ...] = (loop.offset(op.buffer, op.indices),)
    else:
        indices = tuple(loop.index(i) for i in op.indices)
    if op.buffer.space is Space.GLOBAL:
        cond = loop.low.within(op.buffer, indices)
    once = loop.first_copy() if op.buffer.space in MEMORY else TRUE
    store = guarded(cond, (Store(flat, indices, value),))
    yield from guarded(once, store)


# ── iterations that several threads hold ─────────────────────────────────────────────────────
#
# Each thread that holds an element runs its iteration, and one of them stores to memory. That is
# not enough when an iteration reads memory that it writes, or uses what an atomic gives back: the
# others would read too late, or get nothing. Then one thread runs the iteration alone, and what it
# wrote to fragments reaches the others through shared memory.


def runs_once(low: Lowering, op: Map) -> bool:
    """Whether an iteration must not be run by several threads."""
    read: set[str] = set()
    written: set[str] = set()
    for inner in walk_ops(op.body):
        if (
            isinstance(inner, (Atomic, Intrinsic))
            and inner.result is not None
            and any(r.buffer.space in MEMORY for r in regions(inner, reads=True, writes=True))
        ):
            return True
        read |= {low.root(x.buffer) for x in op_loads(inner) if x.buffer.space in MEMORY}
        if isinstance(inner, Store) and inner.buffer.space in MEMORY:
            written.add(low.root(inner.buffer))
        if isinstance(inner, Atomic):
            written.add(low.root(inner.dst.buffer))
    return bool(read & written)


def hand_over(low: Lowering, op: Map, layout: Fragment) -> Iterable[Op]:
    """What one thread wrote to fragments in an iteration, to all that hold it."""
    places: dict[tuple[Buffer, tuple[Expr, ...]], None] = {}
    for inner in walk_ops(op.body):
        if isinstance(inner, Store) and inner.buffer.space is Space.FRAGMENT:
            if any(variables(i) - set(op.vars) for i in inner.indices):
                raise CompileError(
                    f"several threads hold this element of {inner.buffer.name}, and its iteration "
                    "may run in one of them only: it reads memory that it writes",
                    loc=inner.loc,
                    fix="split the map: compute into shared memory first",
                )
            places[inner.buffer, inner.indices] = None
    for buffer, indices in places:
        scratch, met = low.exchange(buffer.dtype, buffer.static_shape)
        yield from met
        for source, target in ((buffer, scratch), (scratch, buffer)):
            if source is scratch:
                yield from low.join()
            names = tuple(low.var(v.name) for v in op.vars)
            at: dict[Var, Expr] = dict(zip(op.vars, names, strict=True))
            where = tuple(substitute(i, at) for i in indices)
            store = Store(target, where, Load(source, where, op.loc))
            yield from low.op(Map(names, op.extents, (store,), layout=layout))


def check_single(buffer: Buffer) -> None:
    """A fragment that is written holds each element once in a thread."""
    fragment = buffer.layout
    assert isinstance(fragment, Fragment)
    if fragment.drop_repeats().values != fragment.values:
        raise CompileError(
            f"{buffer.name} holds elements in several registers of one thread",
            got=repr(fragment),
        )


# ── fills ────────────────────────────────────────────────────────────────────────────────────


def lower_fill(low: Lowering, op: Fill) -> Iterable[Op]:
    """A fragment register by register; memory by a map of the block's threads."""
    buffer = op.dst.buffer
    if buffer.space is Space.FRAGMENT:
        op = low.plain(op)
        value = cast(op.value, op.dst.dtype)
        if op.dst.is_whole:
            registers, var = low.flat(buffer), low.var("v")
            body = Store(registers, (var,), value)
            return (unroll(var, int(registers.shape[0]), (body,)),)
        check_single(buffer)
        with low.restored():
            loop, _, place = region_loop(low, op.dst)
        return loop.emit((Store(low.flat(buffer), (place,), value),))
    found = expand_op(op, low.names)
    assert found is not None
    if buffer.space is Space.LOCAL:
        return low.op(unrolled(found))
    if not isinstance(found, Map):
        found = Map((low.var("i"),), (const(1),), (found,))
    layout = widest_layout(low, op.dst, tuple(int(e) for e in found.extents))
    return low.op(rebuild(found, layout=layout))


def unrolled(op: Op) -> Op:
    """A nest of loops without its loops: registers have no addresses."""
    if not isinstance(op, For):
        return op
    return rebuild(op, body=tuple(map(unrolled, op.body)), kind="unroll")


def widest_layout(low: Lowering, region: Region, tile: tuple[int, ...]) -> Fragment:
    """The block's threads over a region of memory, 16 bytes each where the tile divides."""
    vector = max(128 // region.dtype.bits, 1)
    while tile[-1] % vector:
        vector //= 2
    return coalesced(tile, low.instance.threads, vector)
