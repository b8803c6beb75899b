"""Meaning of memory and compute ops, synchronous forms. Asynchronous ones are in `events.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.arith import Expr, Var
from tilewright.ir.buffer import Load
from tilewright.ir.core import *
from tilewright.machine import padding
from tilewright.machine.conflicts import ATOMIC, READ, UPDATE, WRITE
from tilewright.machine.lanes import (
    NOTHING,
    Box,
    TileRegion,
    inside,
    locate,
    read_box,
    region_memory,
    scatter,
    uniform_int,
    write_box,
)
from tilewright.machine.meaning import Builder, Run, meaning, tile_meaning
from tilewright.machine.memory import Memory
from tilewright.machine.numbers import (
    Array,
    Value,
    atomic_fn,
    cast_fn,
    matrix,
    product,
    reduced,
    scanned,
)
from tilewright.machine.state import Frame, Where
from tilewright.support.errors import RunError, SanitizerError


def watch(fr: Frame, kind: str, box: Box, where: Where | None = None) -> None:
    if fr.watches and not box.is_empty:
        fr.touch(kind, box.mem, box.where if where is None else where)


def watch_meeting(fr: Frame, op: Op) -> bool:
    """Whether the agent's threads meet in the middle of `op`; then they know of each other."""
    return any(w.met_inside(fr, op) for w in fr.watches)


def watch_overlap(fr: Frame, src: Box, dst: Box, *, in_place: bool = False) -> None:
    """An op that reads one place and writes another must not write what it reads; `in_place`:
    but each element may be read where it is written."""
    if not fr.exact or src.mem.storage is not dst.mem.storage:
        return
    x, y = src.mem.data[src.where], dst.mem.data[dst.where]
    places = [(a.__array_interface__["data"], a.strides) for a in (np.squeeze(x), np.squeeze(y))]
    if (in_place and places[0] == places[1]) or not np.shares_memory(x, y):
        return
    raise SanitizerError(
        "parallel-conflict",
        f"the part of {dst.mem.name} that is written overlaps the part of {src.mem.name} that is "
        "read",
        loc=fr.loc(),
        fix="go through another tile",
    )


def tile_box(fr: Frame, tile: TileRegion, mem: Memory | None = None) -> Box:
    """The box of a collective op's operand."""
    box = locate(fr, tile, mem)
    if box is None or box.mem.lead:
        raise RunError(
            f"the place of {tile.buffer.name} differs between threads, but this operation "
            "is collective",
            loc=fr.loc(),
            fix="use uniform coordinates",
        )
    return box


def require_collective(fr: Frame) -> None:
    if fr.is_partial:
        raise RunError(
            "a tile operation stands under a guard that differs between threads",
            loc=fr.loc(),
            fix="make the guard uniform, or write it with thread-level loads and stores",
        )


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def fit(value: Array, extents: tuple[int, ...], op: Op) -> Array:
    """`value` shaped as `extents`."""
    if squeezed(value.shape) != squeezed(extents):
        raise RunError(
            "the shapes of a copy do not match",
            loc=op.loc,
            expected=f"{squeezed(extents)} after unit extents drop",
            got=f"{squeezed(value.shape)}",
        )
    return np.reshape(value, extents)


def needed(src: Box, dst: Box) -> Where:
    """The part of `src` whose copy lands inside `dst`."""
    if dst.is_whole:
        return src.where
    cuts = [
        (s.start, s.stop)
        for s, e in zip(dst.inner, dst.extents, strict=True)
        if e != 1
    ]  # fmt: skip
    where: list[Any] = []
    for lo, pad, hi, extent in zip(src.low, src.pad, src.high, src.extents, strict=True):
        if extent == 1 or not cuts:
            where.append(slice(lo, hi))
            continue
        first, last = cuts.pop(0)
        begin = max(lo, lo - pad + first)
        where.append(slice(begin, max(min(hi, lo - pad + last), begin)))
    return tuple(where)


# ── copies ───────────────────────────────────────────────────────────────────────────────────


def copy_now(fr: Frame, op: Copy, src: Box, dst: Box) -> None:
    """dst = src, as one collective step."""
    if dst.is_empty and 0 not in dst.extents:
        return
    part = needed(src, dst)
    watch_overlap(fr, src, dst, in_place=True)
    if all(s.stop > s.start for s in part):
        watch(fr, READ, src, part)
    watch(fr, WRITE if op.reduce is None else ATOMIC, dst)
    if fr.agent.sanitize:
        padding.copied(op, src, dst)
    store_tile(op, dst, moved(op, src, dst))


def moved(op: Copy, src: Box, dst: Box) -> Array:
    """The tile that a copy stores, in the destination's type and shape."""
    value = fit(read_box(src), dst.extents, op)
    return np.asarray(cast_fn(src.mem.dtype, dst.mem.dtype)(value))


def store_tile(op: Copy, dst: Box, value: Array) -> None:
    if op.reduce is not None:
        value = np.asarray(atomic_fn(op.reduce, dst.mem.dtype)(read_box(dst), value))
    write_box(dst, value)


def each_lane(b: Builder, dst: Region, value: Callable[[Sequence[Expr]], Expr]) -> Run:
    """A tile whose place differs between lanes: each lane stores its elements one by one."""
    coords = [Var(f"{dim} of a tile", INT32) for dim in range(len(dst.tile))]
    store = run_store(b, Store(dst.buffer, dst.at(coords), value(coords)))
    extents = b.operands(*dst.tile)

    def run(fr: Frame) -> None:
        for point in np.ndindex(*(uniform_int(fr, e(fr), "an extent") for e in extents)):
            fr.vars.update((var.name, np.int32(i)) for var, i in zip(coords, point, strict=True))
            store(fr)

    return run


@tile_meaning(Copy)
def run_copy(b: Builder, op: Copy) -> Run:
    src, dst = b.operands(op.src, op.dst)
    if op.multicast is not None or op.barrier is not None:
        raise RunError("only bulk copies take a barrier or a multicast mask", loc=op.loc)
    by_lane = each_lane(b, op.dst, lambda at: Load(op.src.buffer, op.src.at(at)))

    def run(fr: Frame) -> None:
        there, here = locate(fr, src), locate(fr, dst)
        if there and here and not there.mem.lead and not here.mem.lead:
            require_collective(fr)
            copy_now(fr, op, there, here)
        elif op.reduce is not None or src.cta is not None or dst.cta is not None:
            raise RunError("a reducing or remote copy must have uniform coordinates", loc=op.loc)
        else:
            by_lane(fr)

    return run


@tile_meaning(Relayout)
def run_relayout(b: Builder, op: Relayout) -> Run:
    src, dst = b.operands(op.src, op.dst)
    plain = Copy(op.src, op.dst, loc=op.loc)

    def run(fr: Frame) -> None:
        require_collective(fr)
        copy_now(fr, plain, tile_box(fr, src), tile_box(fr, dst))
        watch_meeting(fr, op)

    return run


@tile_meaning(Fill)
def run_fill(b: Builder, op: Fill) -> Run:
    dst, value = b.operands(op.dst, op.value)
    to = cast_fn(op.value.dtype, op.dst.buffer.dtype)
    by_lane = each_lane(b, op.dst, lambda at: op.value)

    def run(fr: Frame) -> None:
        what, box = to(value(fr)), locate(fr, dst)
        if (
            what.ndim
            or box is None
            or box.mem.lead
            or (fr.is_partial and box.mem.space is Space.LOCAL)
        ):
            by_lane(fr)
            return
        require_collective(fr)
        watch(fr, WRITE, box)
        write_box(box, what)
        if fr.agent.sanitize and box.is_whole and not box.mem.is_global:
            padding.filled(box)

    return run


@meaning(Store)
def run_store(b: Builder, op: Store) -> Run:
    value, name = b.evaluate(op.value), op.buffer.name
    to = cast_fn(op.value.dtype, op.buffer.dtype)
    indices = [b.evaluate(i, index=True) for i in op.indices]
    marks = padding.Tracer(b.evaluate, op.value, op) if b.evaluate.sanitize else None

    def run(fr: Frame) -> None:
        idx = tuple(i(fr) for i in indices)
        fr.outside = False
        new = to(value(fr))
        if marks is not None:
            fr.storing = marks(fr)
        scatter(fr, fr.bufs[name], idx, new)
        fr.storing = None

    return run


# ── compute ──────────────────────────────────────────────────────────────────────────────────


def gemm_operands(b: Builder, op: Gemm) -> tuple[list[TileRegion], Callable[[Frame], Value]]:
    if op.meta is not None:
        raise RunError("sparse gemm is not interpreted yet", loc=op.loc)
    return b.operands(op.a, op.b, op.c), b.evaluate(op.clear)


@tile_meaning(Gemm)
def run_gemm(b: Builder, op: Gemm) -> Run:
    tiles, clear = gemm_operands(b, op)
    nan = b.evaluate.nan

    def run(fr: Frame) -> None:
        require_collective(fr)
        x, y, c = (tile_box(fr, t) for t in tiles)
        fresh = bool(uniform_int(fr, clear(fr), "clear"))
        watch(fr, READ, x)
        watch(fr, READ, y)
        watch_overlap(fr, x, c)
        watch_overlap(fr, y, c)
        before = padding.box_marks(c) if fr.agent.sanitize else None
        watch(fr, WRITE if fresh else UPDATE, c)
        if fr.agent.sanitize:
            padding.multiplied(op, x, y, c, before, fresh)
        value = gemm_value(op, x, y, c, fresh)
        if nan:
            _no_new_nan(
                fr, "gemm", value, [read_box(x), read_box(y), *([read_box(c)] * (not fresh))]
            )
        write_box(c, value)

    return run


def gemm_value(op: Gemm, x: Box, y: Box, c: Box, fresh: bool) -> Array:
    """What a gemm stores into c."""
    old = read_box(c)
    a2, b2 = matrix(read_box(x), "a"), matrix(read_box(y), "b")
    c2 = matrix(old, "c")
    types = (x.mem.dtype, y.mem.dtype, c.mem.dtype)
    start = np.zeros(c2.shape, c2.dtype) if fresh else c2
    return np.reshape(product(op, a2, b2, start, types), old.shape)


def _no_new_nan(fr: Frame, what: str, value: Array, inputs: list[Array]) -> None:
    def nan(x: Array) -> bool:
        return bool(np.isnan(x.astype(np.float64)).any())

    if nan(value) and not any(map(nan, inputs)):
        raise SanitizerError("nan", f"NaN is born in this {what}", loc=fr.loc())


@tile_meaning(Reduce)
def run_reduce(b: Builder, op: Reduce) -> Run:
    src, dst = b.operands(op.src, op.dst)
    nan = b.evaluate.nan

    def run(fr: Frame) -> None:
        require_collective(fr)
        x, y = tile_box(fr, src), tile_box(fr, dst)
        watch(fr, READ, x)
        watch_meeting(fr, op)
        marks = (padding.box_marks(x), padding.box_marks(y)) if fr.agent.sanitize else (None, None)
        watch(fr, WRITE if op.clear else UPDATE, y)
        tile, axis = read_box(x), op.axis
        padding.reduced(fr, op, tile, marks[0], y, marks[1], axis)
        out_shape = tile.shape[:axis] + tile.shape[axis + 1 :]
        old = None if op.clear else read_box(y).reshape(out_shape)
        value = reduced(op, tile, old, x.mem.dtype, y.mem.dtype, axis)
        if nan and y.mem.dtype.is_float:
            _no_new_nan(fr, "reduction", value, [tile] if old is None else [tile, old])
        write_box(y, value.reshape(y.extents))

    return run


@tile_meaning(Scan)
def run_scan(b: Builder, op: Scan) -> Run:
    src, dst = b.operands(op.src, op.dst)

    def run(fr: Frame) -> None:
        require_collective(fr)
        x, y = tile_box(fr, src), tile_box(fr, dst)
        if x.mem is y.mem and x.where == y.where:  # in place
            watch(fr, UPDATE, y)
            if watch_meeting(fr, op):
                watch(fr, UPDATE, y)
        else:
            watch(fr, READ, x)
            watch_meeting(fr, op)
            watch(fr, WRITE, y)
        tile = read_box(x)
        value = scanned(op.op, tile, x.mem.dtype, y.mem.dtype, op.axis, op.reverse)
        write_box(y, fit(value, y.extents, op))

    return run


# ── atomics ──────────────────────────────────────────────────────────────────────────────────


@tile_meaning(Atomic)
def run_atomic(b: Builder, op: Atomic) -> Run:
    (dst, value, src), dtype = b.operands(op.dst, op.value, op.src), op.dst.buffer.dtype
    fn = atomic_fn(op.op, dtype)
    to = None if op.value is None else cast_fn(op.value.dtype, dtype)
    single = all(isinstance(e, Const) and e.value == 1 for e in op.dst.extents)

    def operand(fr: Frame) -> Value:
        return np.zeros((), dtype.numpy)[()] if value is None or to is None else to(value(fr))

    if single and op.src is None:
        result = None if op.result is None else op.result.name

        folds = b.evaluate.sanitize and op.op in ("max", "min") and op.value is not None
        marks = padding.Tracer(b.evaluate, op.value, op) if folds and op.value is not None else None

        def run_element(fr: Frame) -> None:
            idx = dst.index(fr)
            fr.outside = False
            given = operand(fr)
            fr.storing = None if marks is None else marks(fr)
            old = atomic_elements(fr, region_memory(fr, dst), idx, given, fn, op)
            fr.storing = None
            if result is not None:
                fr.vars[result] = old

        return run_element

    def run_tile(fr: Frame) -> None:
        require_collective(fr)
        box = tile_box(fr, dst)
        if src is None:
            got = np.asarray(np.broadcast_to(operand(fr), box.extents))
        else:
            there = tile_box(fr, src)
            watch(fr, READ, there, needed(there, box))
            got = fit(read_box(there), box.extents, op)
            got = np.asarray(cast_fn(there.mem.dtype, dtype)(got))
        if box.is_empty:
            return
        watch(fr, ATOMIC, box)
        write_box(box, np.asarray(fn(read_box(box), got)))

    return run_tile


def fold_in(mem: Memory, places: Where, given: Array, fn: Callable[[Any, Any], Any]) -> Array:
    """Elements become `fn` of what they were and what is given, one after another; what each one
    found."""
    data = mem.data
    if places and np.unique(np.ravel_multi_index(places, mem.shape)).size == given.size:
        old = data[places]
        data[places] = fn(old, given)
    else:
        old = np.empty(given.size, data.dtype)
        for k, new in enumerate(given):
            place = tuple(int(p[k]) for p in places)
            old[k] = data[place]
            data[place] = fn(old[k], new)
    mem.flush(data)
    return np.asarray(old)


def atomic_elements(
    fr: Frame, mem: Memory, idx: Where, value: Value, fn: Callable[[Any, Any], Any], op: Atomic
) -> Value:
    """One atomic per active lane, in lane order; the old values."""
    per_lane = fr.in_map or fr.mask is not None or value.ndim or any(i.ndim for i in idx)
    shape = fr.lanes if per_lane else ()
    at = tuple(np.broadcast_to(i, shape) for i in idx)
    _, live = inside(fr, mem, at, None)
    out = np.zeros(shape, mem.dtype.numpy)
    if live is NOTHING:
        return out[()]
    ok = np.broadcast_to(True if live is None else live, shape)
    places = tuple(i[ok].astype(np.int64) for i in at)
    given = np.broadcast_to(value, shape)[ok]
    if fr.watches:
        owners = fr.agent.lane_ids(fr)[ok] if per_lane else None
        if fr.agent.sanitize:
            found = 0 if fr.storing is None else np.broadcast_to(fr.storing, shape)[ok]
            padding.updated(fr, op, mem, places, found)
        fr.touch(ATOMIC, mem, places, owners)
    if op.result is None and op.op == "add" and mem.dtype.bits >= 32 and places:
        data = mem.data
        np.add.at(data, places, given)
        mem.flush(data)
    else:
        out[ok] = fold_in(mem, places, given, fn)
    return out[()]
