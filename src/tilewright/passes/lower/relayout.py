"""Fragments spread anew: within the registers of each thread, by shuffles within warps, or through
shared memory, whichever is cheapest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilewright.passes.lower.core import *
from tilewright.support.distinct import distinct

# issue slots: a shuffle or a shared access takes two, a select one; two barriers and the latency
# of a store and a load through shared memory
SHUFFLE, ACCESS, SELECT, TRIP = 2, 2, 1, 60


@dataclass(frozen=True)
class Step:
    """One register of the result: `lane[thread]` says who has it, `register[thread]` where, one
    shuffle for each register that anybody needs. `lane` None: everybody has it himself."""

    register: tuple[int, ...]
    lane: tuple[int, ...] | None = None

    @property
    def cost(self) -> int:
        return len(set(self.register)) * (SELECT if self.lane is None else SHUFFLE + SELECT)


@lru_cache(maxsize=256)
def plan_relayout(src: Fragment, dst: Fragment) -> tuple[Step, ...] | None:
    """How each register of `dst` comes from `src` without shared memory; None when it cannot."""
    if src.threads != dst.threads or src.tile != dst.tile:
        return None
    need = dst.table()
    here = src.locate(need)
    steps = []
    for k in range(dst.values):
        free = need[:, k] == IDLE
        own = here[:, k]
        if ((own >= 0) | free).all():
            steps.append(Step(_settled(own, free)))
            continue
        found = _in_warp(src, need[:, k], free)
        if found is None:
            return None
        lane, register = found
        steps.append(Step(_settled(register, free), tuple(lane.tolist())))
    return tuple(steps)


def _settled(values: Indices, free: Any) -> tuple[int, ...]:
    """`values`, with what fits best where nothing is needed."""
    used = distinct(values[~free])
    if len(used) <= 1:
        return tuple(np.full(len(values), used[0] if len(used) else 0).tolist())
    return tuple(np.where(free, used[0], values).tolist())


def _in_warp(src: Fragment, need: Indices, free: Any) -> tuple[Indices, Indices] | None:
    """For each thread a lane of its warp that holds what it needs, and the register there."""
    number, table = np.arange(len(need)), src.table()
    first = number // WARP * src.elements
    keys = np.where(table == IDLE, -1, first[:, None] + table).reshape(-1)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], first + need)
    slot = order[np.minimum(at, keys.size - 1)]
    if ((keys[slot] != first + need) & ~free).any():
        return None
    lane = np.where(free, number % WARP, slot // src.values % WARP)
    return lane, np.where(free, 0, slot % src.values)


def relayout_cost(src: Fragment, dst: Fragment, dtype: DType) -> tuple[str, int]:
    """How a `Relayout` from `src` to `dst` would be done ('registers', 'shuffle' or 'shared') and
    about how many issue slots of a thread it takes.

    >>> from tilewright.ir.dtype import FLOAT32
    >>> from tilewright.ir.layout.fragment import repeat, spatial
    >>> relayout_cost(spatial(32, 1) * repeat(1, 4), repeat(1, 4) * spatial(32, 1), FLOAT32)
    ('registers', 4)
    """
    words = max(dtype.bits // 32, 1)
    steps = plan_relayout(src, dst)
    shared = ACCESS * words * (src.values + dst.values) + TRIP
    if steps is None:
        return "shared", shared
    cost = words * sum(step.cost for step in steps)
    if all(step.lane is None for step in steps):
        return "registers", cost
    simple = all(step.lane is None or _lane_expr(step.lane) is not None for step in steps)
    return ("shuffle", cost) if simple and cost <= shared else ("shared", shared)


def _lane_expr(lane: tuple[int, ...]) -> Expr | None:
    """The lane as a function of its own number, where all warps do the same."""
    first = lane[:WARP]
    same = all(lane[i : i + WARP] == first for i in range(0, len(lane), WARP))
    return fit_index(np.asarray(first), (Var("lane"),)) if same else None


def lower_relayout(low: Lowering, op: Relayout) -> Iterable[Op]:
    src, dst = op.src.buffer.fragment, op.dst.buffer.fragment
    low.check_spread(op.src.name, src)
    low.check_spread(op.dst.name, dst)
    whole = op.src.is_whole and op.dst.is_whole and src.tile == dst.tile
    kind = (op.via or relayout_cost(src, dst, op.src.dtype)[0]) if whole else "shared"
    if kind == "shared":
        yield from _through_shared(low, op)
        return
    steps = plan_relayout(src, dst)
    if steps is None or (kind == "registers" and any(s.lane is not None for s in steps)):
        raise CompileError(
            f"threads do not hold what they need of {op.src.name} for via={kind}",
            fix="leave via= out, or use via=shared",
        )
    source, target = low.flat(op.src.buffer), low.flat(op.dst.buffer)
    if all(s.lane is None and len(set(s.register)) == 1 for s in steps):
        var = low.var("v")
        index = fit_index(np.array([s.register[0] for s in steps]), (var,))
        if index is not None:
            body: Op = Store(target, (var,), Load(source, (index,)))
            yield unroll(var, len(steps), (body,))
            return
    thread = low.instance.thread
    for k, step in enumerate(steps):
        options = sorted(set(step.register))
        values: list[Expr] = [Load(source, (const(register),)) for register in options]
        if step.lane is not None:
            lane = chosen(low, low.simplify(thread % WARP), step.lane[:WARP])
            for i, value in enumerate(values):
                got = low.var("got", source.dtype)
                yield Intrinsic("shfl_sync", (value, lane), got)
                values[i] = got
        result = values.pop()
        if values:
            which = chosen(low, thread, [options.index(r) for r in step.register])
            for i, value in reversed([*enumerate(values)]):
                result = select(compare("==", which, i), value, result)
        yield Store(target, (const(k),), result)


# ── through shared memory ────────────────────────────────────────────────────────────────────


def _padded(tile: tuple[int, ...], kind: DType) -> Layout:
    """Row-major, rows apart by 16 bytes more: columns then lie in different banks."""
    pad = max(128 // kind.bits, 1) if len(tile) > 1 else 0
    strides, step = [], 1
    for d in reversed(range(len(tile))):
        strides.append(step)
        step = step * tile[d] + (pad if d == len(tile) - 1 else 0)
    return Layout(tile, tuple(reversed(strides)))


def _through_shared(low: Lowering, op: Relayout) -> Iterable[Op]:
    tile = op.src.static_tile or (1,)
    layout = _padded(tile, op.src.dtype)
    scratch, told = low.exchange(op.src.dtype, tile, partial(into_scratch, low, op), layout)
    return (*told, *low.op(through_scratch(low, op.dst, scratch, False)))


def into_scratch(low: Lowering, op: Relayout, scratch: Buffer) -> Iterable[Op]:
    return low.op(through_scratch(low, op.src, scratch, True))


def through_scratch(low: Lowering, region: Region, scratch: Buffer, out: bool) -> Op:
    """A tile into `scratch`, or out of it."""

    def element(coords: tuple[Expr, ...]) -> tuple[Op]:
        here, there = (region.buffer, region.at(coords)), (scratch, coords or (const(0),))
        (source, spot), (target, place) = (here, there) if out else (there, here)
        value = cast(Load(source, spot), target.dtype)
        return (Store(target, place, value),)

    return tile_map(low, region, element)


def tile_map(low: Lowering, region: Region, body: Callable[[tuple[Expr, ...]], Body]) -> Map:
    """A map of `body`, of an element's coordinates, over a region: a fragment's in the threads that
    hold it, memory in all threads."""
    fragment, tile = region.buffer.layout, region.static_tile
    if not isinstance(fragment, Fragment):
        layout = coalesced(tile or (1,), low.instance.threads)
    elif region.is_whole:
        layout = fragment.drop_repeats()
    else:
        held = Held(low, region)
        try:
            layout = Fragment.fit(held.tile or (1,), held.table)
        except LayoutError:
            raise CompileError(
                f"threads hold this part of {region.name} in a way that is no layout",
                got=repr(fragment),
                fix="use the whole tile",
            ) from None
    names = tuple(low.var(f"i{d}") for d in range(len(layout.tile)))
    coords = tuple(n for n, e in zip(names, layout.tile, strict=True) if e != 1)
    extents = tuple(const(e) for e in layout.tile)
    return Map(names, extents, body(coords), layout=layout)
