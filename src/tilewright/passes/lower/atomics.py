"""Atomics: of one element, by a thread or once for all threads of an instance, and of tiles.

    map (i, j) { atomic add dQ[k + i, j] value=dq[i, j] }

A thread that holds neighbours, as those of a gemm's result do, adds two or four of them by one
instruction: half as many requests, each of whole sectors. On an architecture that has none it is as
many single ones (`threads.cuh`). Elements are atomic one by one, as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import TRUE, Expr, Load, cast, const, logical_and, substitute
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Alloc, Atomic, Body, Fence, If, Intrinsic, Let, Map, Op, Store
from tilewright.ir.rewrite import rebuild
from tilewright.ir.simplify import simplify
from tilewright.passes.canonicalize.rules import expand_op
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.access import Candidate, Groups, find_access
from tilewright.passes.lower.lowering import WARP, Lowering, guarded
from tilewright.passes.lower.map_loops import MapLoop

_BITS = ("and", "or", "xor")
_ARITHMETIC = ("add", "max", "min", "exch", "load", "store")
COUNTS = (4, 2)  # elements that an instruction adds
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
        raise low.unsupported("atomics work on global memory and the block's shared memory")
    if not has_atomic(op):
        raise low.unsupported(f"there is no atomic {op.op} of {dst.dtype}")
    if op.result is not None and once is not TRUE:
        raise low.unsupported(
            "several threads do this iteration, and only one of them would get the old value",
            "give the map a layout in which every element has one thread",
        )
    starts = tuple(index(s) for s in dst.starts)
    cond = once
    if dst.buffer.space is Space.GLOBAL:
        within = low.within(dst.buffer, starts)
        cond = logical_and(cond, within)
        where = Region(dst.buffer, starts, dst.extents)
    else:
        where = low.span(dst.buffer, low.offset(dst.buffer, starts), 1)
    low.touched = True
    args: tuple[Expr | Region, ...] = (where,)
    if op.value is not None:
        args += (expr(op.value),)
    text = f"op={op.op}"
    fence: Body = () if op.order == "relaxed" else (Fence("gpu"),)
    if op.result is None and op.op != "load":
        body: Body = (*fence, Intrinsic("atomic", args, text=text), *fence)
        yield from body if cond is TRUE else (If(cond, body),)
        return
    if cond is TRUE:
        yield from (*fence, Intrinsic("atomic", args, op.result, text=text), *fence)
        return
    kind = dst.dtype
    kept = Buffer(low.var("kept").name, (), kind, Space.LOCAL)
    old = low.var("old", kind)
    yield Alloc(kept, init=const(0, kind))
    body = (*fence, Intrinsic("atomic", args, old, text=text), *fence)
    yield If(cond, (*body, Store(kept, (), old)))
    if op.result is not None:
        yield Let(op.result, Load(kept, (), op.loc))


def lower_atomic(low: Lowering, op: Atomic) -> Iterable[Op]:
    """By each thread that it differs in; otherwise by one for all, which get its old value."""
    if op.dst.tile:
        yield from _tile(low, op)
        return
    if op.src is not None:
        if op.src.buffer.space is Space.FRAGMENT:
            raise low.unsupported("an element of a fragment is no value outside a tile op")
        value = cast(Load(op.src.buffer, op.src.starts, op.loc), op.dst.dtype)
        op = rebuild(op, src=None, value=value)
    if low.by_each_thread(op) or low.instance.solo:
        yield from atomic_element(low, op, low.value, low.index)
        return
    yield from low.meet()
    if op.result is None:
        once = tuple(atomic_element(low, op, low.value, low.index))
        yield from low.by_leader(*once)
        return
    if low.instance.threads == WARP and low.instance.leader is not None:
        yield from _by_warp(low, op)
        return
    kind = op.dst.dtype
    scratch, met = low.exchange(kind, (1,))
    old = low.var("old", kind)
    inner = rebuild(op, result=old)
    yield from met
    place, spot = low.flat(scratch), (const(0),)
    body = (*atomic_element(low, inner, low.value, low.index), Store(place, spot, old))
    yield from low.by_leader(*body)
    yield from low.join()
    yield Let(op.result, Load(place, spot, op.loc))


def _by_warp(low: Lowering, op: Atomic) -> Iterable[Op]:
    """One lane does it; its old value reaches the others of the warp by a shuffle."""
    where = low.plain(op).dst
    if where.buffer.space is not Space.GLOBAL or not has_atomic(op) or op.value is None:
        raise low.unsupported(f"there is no atomic {op.op} of {op.dst.dtype} for a warp")
    if low.within(where.buffer, where.starts) is not TRUE:
        raise low.unsupported(
            f"the element of {where.buffer.name} may be outside of it",
            fix="bound its index, by `assume` or by the sizes' contract",
        )
    args = (where, low.value(op.value))
    yield Intrinsic("atomic_of_warp", args, op.result, text=f"op={op.op}")


def _tile(low: Lowering, op: Atomic) -> Iterable[Op]:
    """Every element by a thread that holds it, or by a map over memory."""
    tile = op.dst.static_tile
    layout = coalesced(tile, low.instance.threads)
    held = None if op.src is None else op.src.buffer.layout
    if op.src is not None and isinstance(held, Fragment):
        if not op.src.is_whole or held.tile != tile:
            raise low.unsupported(
                f"an atomic of a part of {op.src.buffer.name}", "copy the part out first"
            )
        layout = held.drop_repeats()
    found = expand_op(op, low.names)
    assert isinstance(found, Map)
    return low.op(rebuild(found, layout=layout))


# ── sums of neighbours ───────────────────────────────────────────────────────────────────────


def lower_sums(loop: MapLoop, op: Map) -> Body | None:
    """A map of nothing but a sum, in groups of values; None where there are none."""
    (atomic, *others) = op.body
    if others or not isinstance(atomic, Atomic) or atomic.value is None or not _is_sum(atomic):
        return None
    low, dst = loop.low, atomic.dst
    var = low.var("g")
    for count in COUNTS:
        groups = Groups(loop, var, count)
        access = find_access(groups, dst.buffer, Candidate(dst.starts))
        if access is None or access.ragged is not None or access.width != count:
            continue
        value, ranges = loop.expr(atomic.value), groups.ranges
        places = [{loop.var: groups.first + e} for e in range(count)]
        values = (simplify(substitute(value, at), ranges, index=False) for at in places)
        args: tuple[Expr | Region, ...] = (access.where(low), *values)
        cond = logical_and(loop.first_copy(), groups.at(loop.guard()))
        sums = Intrinsic("atomic", args, text="op=add", loc=atomic.loc)
        low.touched = True
        body = guarded(logical_and(cond, access.inside), (sums,))
        return (*access.align(low), *groups.emit(body))
    return None


def _is_sum(op: Atomic) -> bool:
    return (
        op.op == "add"
        and op.dst.dtype.name == "float32"
        and op.dst.buffer.space is Space.GLOBAL
        and op.dst.cta is None
        and op.result is None
        and op.order == "relaxed"
    )
