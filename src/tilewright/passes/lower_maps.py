"""Elementwise nests and fills, and copies between fragments."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir import scope
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import TRUE, Call, Const, Expr, Load, cast, const, substitute
from tilewright.ir.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Fill,
    For,
    If,
    Intrinsic,
    Let,
    Map,
    Op,
    Store,
    walk_ops,
)
from tilewright.ir.rewrite import rebuild
from tilewright.ir.simplify import simplify
from tilewright.passes.lowering import MEMORY, Lowering, accesses_memory
from tilewright.passes.nests import Nest, make_nest
from tilewright.support.errors import CompileError

UINT32 = dtype("uint32")
PACK = {"bfloat16": "pack_bfloat16", "float16": "pack_float16"}


def lower_map(low: Lowering, op: Map) -> Iterable[Op]:
    """Every thread does the iterations of its values."""
    fragment = _layout(op)
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
    body = _body(nest, op.body)
    result = nest.loop(body)
    low.unrolled, low.ranges = unrolled, ranges
    low.touched = low.touched or accesses_memory(op)
    yield from result


def _layout(op: Map) -> Fragment:
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
        notes=("layouts are not derived for CUDA yet: only scheduled programs compile",),
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
            then=_body(nest, op.then),
            orelse=_body(nest, op.orelse),
        )
    elif isinstance(op, For):
        yield from _for(nest, op)
    else:
        raise low.unsupported(op, f"{type(op).__name__.lower()} in a map is not lowered yet")


def _for(nest: Nest, op: For) -> Iterable[Op]:
    low = nest.low
    constant = all(isinstance(e, Const) for e in (op.start, op.stop, op.step))
    if constant and op.kind in ("unroll", "vectorized"):
        low.unrolled[op.var] = range(int(op.start), int(op.stop), int(op.step))
    before = low.ranges
    low.ranges = scope.inside(op, "body", low.ranges)
    body = _body(nest, op.body)
    low.ranges = before
    kind = "unroll" if low.unrolled.pop(op.var, None) is not None else "serial"
    yield rebuild(
        op,
        start=nest.expr(op.start),
        stop=nest.expr(op.stop),
        step=nest.expr(op.step),
        body=body,
        kind=kind,
    )


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
    """A whole fragment, register by register."""
    fragment = op.dst.buffer.layout
    if not isinstance(fragment, Fragment) or not op.dst.is_whole:
        raise low.unsupported(
            op, "fills of whole fragments are lowered only", "fill the rest in a map"
        )
    op = low.plain(op)
    flat = low.flat(op.dst.buffer)
    var = low.var("v")
    body = Store(flat, (var,), cast(op.value, op.dst.dtype), loc=op.loc)
    yield For(var, const(0), const(fragment.values), (body,), kind="unroll", loc=op.loc)


# ── from fragment to fragment ────────────────────────────────────────────────────────────────


def copy_fragment(low: Lowering, op: Copy) -> Iterable[Op]:
    """Registers to registers; float32 to 16 bits in pairs, one instruction each."""
    source, target = op.src.buffer, op.dst.buffer
    fragment = target.layout
    assert isinstance(fragment, Fragment)
    if not (op.src.is_whole and op.dst.is_whole and source.static_shape == target.static_shape):
        raise low.unsupported(op, "copies between parts of fragments are not lowered yet")
    check_single(target, op)
    unrolled, ranges = dict(low.unrolled), low.ranges
    names = tuple(low.var(f"i{d}") for d in range(len(fragment.tile)))
    pack = PACK.get(op.dst.dtype.name) if op.src.dtype.name == "float32" else None
    nest = make_nest(low, fragment, names, op.loc)
    register = nest.register(source, names, op.loc)
    low.unrolled, low.ranges = unrolled, ranges
    src, dst = low.flat(source), low.flat(target)
    if pack is None or fragment.values % 2:
        value = cast(Load(src, (register,), op.loc), op.dst.dtype)
        body: Op = Store(dst, (nest.var,), value, loc=op.loc)
        yield For(nest.var, const(0), const(fragment.values), (body,), kind="unroll", loc=op.loc)
        return
    pair = low.var("v")
    inside = low.ranges.where(pair, 0, fragment.values // 2 - 1)
    places = [substitute(register, {nest.var: pair * 2 + i}) for i in (0, 1)]
    both = tuple(Load(src, (simplify(p, inside),), op.loc) for p in places)
    packed = Call(pack, both, UINT32)
    body = Intrinsic("store_packed", (low.span(target, pair * 2, 2), packed), loc=op.loc)
    yield For(pair, const(0), const(fragment.values // 2), (body,), kind="unroll", loc=op.loc)
