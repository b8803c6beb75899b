"""Atomics: of one element, by a thread or once for all threads of an instance, and of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import TRUE, Expr, Load, cast, const, logical_and
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Alloc, Atomic, Body, Fence, If, Intrinsic, Let, Map, Op, Store
from tilewright.ir.rewrite import rebuild
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.lowering import WARP, Lowering

_BITS = ("and", "or", "xor")
_ARITHMETIC = ("add", "max", "min", "exch", "load", "store")
Rewrite = Callable[[Expr], Expr]


def has_atomic(op: Atomic) -> bool:
    """Whether the type has this atomic: words of 16, 32 and 64 bits, bits of integers."""
    kind = op.dst.dtype
    if kind.bits not in (16, 32, 64) or kind.is_bool:
        return False
    return op.op in _ARITHMETIC or (op.op in _BITS and kind.is_int)


def atomic_element(
    low: Lowering, op: Atomic, expr: Rewrite, index: Rewrite, once: Expr = TRUE
) -> Iterable[Op]:
    """An atomic of one element by the thread that comes here; nothing outside a tensor."""
    dst = op.dst
    if dst.buffer.space not in (Space.GLOBAL, Space.SHARED) or dst.cta is not None:
        raise low.unsupported(op, "atomics work on global memory and the block's shared memory")
    if not has_atomic(op):
        raise low.unsupported(op, f"there is no atomic {op.op} of {dst.dtype}")
    if op.result is not None and once is not TRUE:
        raise low.unsupported(
            op,
            "several threads do this iteration, and only one of them would get the old value",
            "give the nest a layout in which every element has one thread",
        )
    starts = tuple(index(s) for s in dst.starts)
    cond = once
    if dst.buffer.space is Space.GLOBAL:
        within = low.within(dst.buffer, starts)
        cond = logical_and(cond, within)
        where = Region(dst.buffer, starts, dst.extents)
    else:
        where = low.span(dst.buffer, low.offset(dst.buffer, starts, op.loc), 1)
    low.touched = True
    args: tuple[Expr | Region, ...] = (where,)
    if op.value is not None:
        args += (expr(op.value),)
    text = f"op={op.op}"
    fence: Body = () if op.order == "relaxed" else (Fence("gpu", loc=op.loc),)
    if op.result is None and op.op != "load":
        body: Body = (*fence, Intrinsic("atomic", args, text=text, loc=op.loc), *fence)
        yield from body if cond is TRUE else (If(cond, body, loc=op.loc),)
        return
    if cond is TRUE:
        yield from (*fence, Intrinsic("atomic", args, op.result, text=text, loc=op.loc), *fence)
        return
    kind = dst.dtype
    kept = Buffer(low.var("kept").name, (), kind, Space.LOCAL)
    old = low.var("old", kind)
    yield Alloc(kept, init=const(0, kind), loc=op.loc)
    body = (*fence, Intrinsic("atomic", args, old, text=text, loc=op.loc), *fence)
    yield If(cond, (*body, Store(kept, (), old, loc=op.loc)), loc=op.loc)
    if op.result is not None:
        yield Let(op.result, Load(kept, (), op.loc), loc=op.loc)


def lower_atomic(low: Lowering, op: Atomic) -> Iterable[Op]:
    """By each thread that it differs in; otherwise by one for all, which get its old value."""
    if op.dst.tile:
        yield from _tile(low, op)
        return
    if op.src is not None:
        if op.src.buffer.space is Space.FRAGMENT:
            raise low.unsupported(op, "an element of a fragment is no value outside a tile op")
        value = cast(Load(op.src.buffer, op.src.starts, op.loc), op.dst.dtype)
        op = rebuild(op, src=None, value=value)
    if low.by_each_thread(op) or low.instance.solo:
        yield from atomic_element(low, op, low.value, low.index)
        return
    yield from low.meet(op.loc)
    if op.result is None:
        once = tuple(atomic_element(low, op, low.value, low.index))
        yield from low.by_leader(*once)
        return
    if low.instance.threads == WARP and low.instance.leader is not None:
        yield from _by_warp(low, op)
        return
    kind = op.dst.dtype
    place, met = low.exchange(kind, 1, op.loc)
    old = low.var("old", kind)
    inner = rebuild(op, result=old)
    yield from met
    spot = (const(0),)
    body = (*atomic_element(low, inner, low.value, low.index), Store(place, spot, old, loc=op.loc))
    yield from low.by_leader(*body)
    yield from low.join(op.loc)
    yield Let(op.result, Load(place, spot, op.loc), loc=op.loc)


def _by_warp(low: Lowering, op: Atomic) -> Iterable[Op]:
    """One lane does it; its old value reaches the others of the warp by a shuffle."""
    where = low.plain(op).dst
    if where.buffer.space is not Space.GLOBAL or not has_atomic(op) or op.value is None:
        raise low.unsupported(op, f"there is no atomic {op.op} of {op.dst.dtype} for a warp")
    if low.within(where.buffer, where.starts) is not TRUE:
        raise low.unsupported(
            op,
            f"the element of {where.buffer.name} may be outside of it",
            fix="bound its index, by `assume` or by the sizes' contract",
        )
    args = (where, low.value(op.value))
    yield Intrinsic("atomic_of_warp", args, op.result, text=f"op={op.op}", loc=op.loc)


def _tile(low: Lowering, op: Atomic) -> Iterable[Op]:
    """Every element by a thread that holds it, or by a nest over memory."""
    names = tuple(low.var(f"i{d}") for d in range(len(op.dst.tile)))

    tile = op.dst.static_tile
    layout = coalesced(tile, low.instance.threads)
    value = op.value
    if op.src is not None:
        held = op.src.buffer.layout
        value = cast(Load(op.src.buffer, op.src.at(names), op.loc), op.dst.dtype)
        if isinstance(held, Fragment):
            if not op.src.is_whole or held.tile != tile:
                raise low.unsupported(
                    op, f"an atomic of a part of {op.src.buffer.name}", "copy the part out first"
                )
            layout = held.drop_repeats()
    ones = tuple(const(1) for _ in op.dst.extents)
    one = rebuild(op, dst=Region(op.dst.buffer, op.dst.at(names), ones), src=None, value=value)
    extents = tuple(const(e) for e in tile)
    yield from low.op(Map(names, extents, (one,), layout=layout, loc=op.loc))
