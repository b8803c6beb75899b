"""Access by lanes: loads, stores and tiles over a lane space, under masks.

A value is a NumPy scalar where it is the same in every lane, else an array that broadcasts over
the lane space: `(threads,)` in thread-level code, the map's box inside a `Map`. `Frame.mask` says
which lanes are active (None: all). Inactive lanes may compute anything and touch nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.ir.core import *
from tilewright.machine.conflicts import READ, WRITE
from tilewright.machine.memory import Memory, describe_index
from tilewright.machine.numbers import Array, Value
from tilewright.machine.state import Frame, Where, in_lane


@lru_cache(256)
def open_grid(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """One arange per axis, shaped to broadcast to `shape`; not to be written."""
    rank = len(shape)
    axes = []
    for k, n in enumerate(shape):
        axis = np.arange(n, dtype=np.int32).reshape((1,) * k + (n,) + (1,) * (rank - k - 1))
        axis.flags.writeable = False
        axes.append(axis)
    return tuple(axes)


# ── masks ────────────────────────────────────────────────────────────────────────────────────

NOTHING: Any = object()  # no lane is active


def narrow(mask: Any, cond: Value) -> Any:
    """`mask` where `cond`, or NOTHING."""
    if cond.ndim == 0:
        return mask if cond else NOTHING
    if mask is not None:
        both = mask & cond
    else:
        # a load may alias its buffer, and stores under the mask must not change the mask
        both = cond if cond.base is None else cond.copy()
    return both if both.any() else NOTHING


def narrow_not(mask: Any, cond: Value) -> Any:
    """`mask` where not `cond`, or NOTHING."""
    if cond.ndim == 0:
        return NOTHING if cond else mask
    return narrow(mask, ~cond)


def pick(cond: Value, a: Value, b: Value) -> Value:
    """`a` where `cond`, else `b`; a side that no lane took may be None."""
    if a is None or b is None:
        return b if a is None else a
    if cond.ndim == 0:
        return a if cond else b
    return np.where(cond, a, b)


def lazy_and(cond: Value, b: Value) -> Value:
    return cond if b is None else np.logical_and(cond, b)


def lazy_or(cond: Value, b: Value) -> Value:
    return cond if b is None else np.logical_or(cond, b)


# ── elements ─────────────────────────────────────────────────────────────────────────────────


def lane_axes(fr: Frame, mem: Memory) -> Where:
    """The leading index that gives each lane its own copy of a private buffer."""
    if mem.lead == fr.lanes:
        return fr.grid
    raise RunError(
        f"{mem.name} belongs to each thread, so an elementwise loop cannot use it",
        fix="allocate it inside the loop, or keep its value uniform",
    )


def out_of_range(
    fr: Frame, mem: Memory, index: tuple[int, ...], node: Load | None = None
) -> RunError:
    """The error for an index outside a shared, fragment or local buffer."""
    what = f"{describe_index(mem, index)} is outside {mem.name}"
    shape = "(" + ", ".join(map(str, mem.shape)) + ("," if len(mem.shape) == 1 else "") + ")"
    fix, loc = f"guard the access with an `if`, or make {mem.name} larger", fr.loc(node)
    if fr.agent.sanitize:
        return SanitizerError("out-of-range", f"{what}, which has shape {shape}", loc=loc, fix=fix)
    return RunError(f"out-of-range: {what}", loc=loc, expected=f"an index inside {shape}", fix=fix)


def not_inside(fr: Frame, mem: Memory, idx: Where, bad: Array, node: Load | None) -> RunError:
    shape = np.broadcast_shapes(*(np.shape(i) for i in idx), bad.shape)
    at = np.unravel_index(int(np.argmax(np.broadcast_to(bad, shape))), shape)
    first = tuple(int(np.broadcast_to(i, shape)[at]) for i in idx)
    return in_lane(out_of_range(fr, mem, first, node), fr, bad)


def outside(idx: Where, shape: tuple[int, ...]) -> Array | None:
    """Where any index is out of range, or None when all are in."""
    bad: Any = None
    for i, n in zip(idx, shape, strict=True):
        if i.ndim == 0:
            if not 0 <= i < n:
                bad = np.True_ if bad is None else np.logical_or(bad, True)
        elif i.min() < 0 or i.max() >= n:
            out = (i < 0) | (i >= n)
            bad = out if bad is None else bad | out
    return None if bad is None else np.asarray(bad)


def inside(fr: Frame, mem: Memory, idx: Where, node: Load | None) -> tuple[Array | None, Any]:
    """Where indices are outside of a tensor (an error where nothing lies around it), and the
    active lanes where they are not."""
    bad = outside(idx, mem.shape)
    if bad is None:
        return None, fr.mask
    wrong = bad if fr.mask is None else bad & fr.mask
    if not mem.pads and wrong.any():
        raise not_inside(fr, mem, idx, wrong, node)
    return bad, narrow_not(fr.mask, bad)


def gather(fr: Frame, mem: Memory, idx: Where, node: Load | None) -> Value:
    """The elements at `idx`, in every active lane."""
    if all(i.ndim == 0 for i in idx) and (not mem.lead or mem.lead == fr.lanes):
        at = tuple(map(int, idx))
        for i, n in zip(at, mem.shape, strict=True):
            if not 0 <= i < n:
                if mem.pads:
                    fr.outside = True
                    return np.zeros((), mem.dtype.numpy)[()]
                raise out_of_range(fr, mem, at, node)
        if mem.lead:
            at = (slice(None),) * len(mem.lead) + at  # type: ignore[assignment]
        if fr.watches and mem.storage.watched:
            watch_lanes(fr, mem, idx, fr.mask, node, READ)
        return mem.data[at]
    box = as_box(fr, mem, idx)
    if box is not None and (fr.mask is None or not fr.watches):
        where, axes = box
        if fr.watches:
            fr.touch(READ, mem, where, None, node)
            fr.pattern = None
        return read_along(fr, mem.data[where], axes)
    bad, live = inside(fr, mem, idx, node)
    if bad is not None:
        fr.outside = fr.outside or mem.pads
        if 0 in mem.shape:
            return np.zeros(np.broadcast_shapes(*(i.shape for i in idx)), mem.dtype.numpy)
        idx = tuple(np.clip(i, 0, n - 1) for i, n in zip(idx, mem.shape, strict=True))
    if fr.watches and mem.storage.watched and live is not NOTHING:
        watch_lanes(fr, mem, idx, live, node, READ)
        fr.pattern = None
    full = (*lane_axes(fr, mem), *idx) if mem.lead else idx
    value = mem.data[full]
    if bad is not None and mem.pads:
        value = np.where(bad, np.zeros((), mem.dtype.numpy), value)
    return value


def watch_lanes(
    fr: Frame, mem: Memory, idx: Where, mask: Any, node: Load | None, kind: str, value: Any = None
) -> None:
    """Tell the watcher which lanes touch which elements."""
    if mem.space is Space.LOCAL and fr.watches[0].registers(fr, mem, idx, kind):
        return
    if not fr.in_map and not mem.lead and mask is None and all(i.ndim == 0 for i in idx):
        fr.touch(kind, mem, tuple(map(int, idx)), None, node)
        return
    per_lane = fr.in_map or mask is not None or mem.lead or any(i.ndim for i in idx)
    shape = fr.lanes if per_lane else ()
    owners = fr.agent.lane_ids(fr)
    full = (*lane_axes(fr, mem), *idx) if mem.lead else idx
    full = tuple(np.broadcast_to(i, shape) for i in full)
    if mask is not None:
        keep = np.broadcast_to(mask, shape)
        full = tuple(i[keep] for i in full)
        owners = owners[keep]
        value = None if value is None else np.broadcast_to(value, shape)[keep]
    if owners.size:
        fr.touch(kind, mem, full, owners, node, value)


def scatter(fr: Frame, mem: Memory, idx: Where, value: Value) -> None:
    """Store `value` at `idx` in every active lane; the last lane wins where two agree."""
    one = all(i.ndim == 0 for i in idx)  # and the same element of each lane, or of all together
    uniform = one and not value.ndim
    if mem.space is Space.LOCAL and not mem.lead and not (uniform and fr.mask is None):
        mem.spread(fr.lanes)
    box = as_box(fr, mem, idx)
    if box is not None and fr.mask is None:
        where, axes = box
        if not value.ndim or all(n == 1 or k in axes for k, n in enumerate(fr.lanes)):
            if fr.watches:
                fr.touch(WRITE, mem, where)
                fr.pattern = None
            data = mem.data
            data[where] = write_along(fr, value, axes) if value.ndim else value
            mem.flush(data)
            return
    _, mask = inside(fr, mem, idx, None)
    if mask is NOTHING:
        fr.pattern = None
        return
    if fr.watches and mem.storage.watched:
        seen = mask
        if one and not fr.in_map and not mem.lead and (mask is not None or value.ndim):
            seen = _storing(fr, value, mask)
        watch_lanes(fr, mem, idx, seen, None, WRITE, value)
        fr.pattern = None
    if one and mem.space is Space.LOCAL and type(mem) is Memory and mem.lead in ((), fr.lanes):
        at: Any = (..., *map(int, idx))
        np.copyto(mem.data[at], value, where=True if mask is None else mask)
        return
    data = mem.data
    if not mem.lead and uniform:
        data[tuple(map(int, idx))] = value
        mem.flush(data)
        return
    full = (*lane_axes(fr, mem), *idx) if mem.lead else idx
    shape = np.broadcast_shapes(
        *(i.shape for i in full), value.shape, () if mask is None else mask.shape
    )
    full = tuple(np.broadcast_to(i, shape) for i in full)
    value = np.broadcast_to(value, shape)
    if mask is not None:
        keep = np.broadcast_to(mask, shape)
        full, value = tuple(i[keep] for i in full), value[keep]
    data[full if full else ...] = value if full or not value.ndim else value.reshape(-1)[-1]
    mem.flush(data)


def _storing(fr: Frame, value: Value, mask: Any) -> Any:
    """The threads that store in one place: all of them, or the first one when they agree on the
    value, since then they do not disturb each other."""
    active = np.broadcast_to(True if mask is None else mask, fr.lanes)
    values = np.broadcast_to(value, fr.lanes)[active]
    bits = values.view(np.uint8).reshape(-1, values.itemsize)
    if (bits != bits[:1]).any():
        return active
    first = np.zeros(fr.lanes, np.bool_)
    first[int(np.argmax(active))] = True
    return first


# ── boxes: what a map touches, without index arrays ─────────────────────────────


def as_box(fr: Frame, mem: Memory, idx: Where) -> tuple[Where, tuple[int, ...]] | None:
    """The box that a map touches, and the axes of the map along which its dimensions run (-1:
    none), where each index is a number, or counts along an axis of its own."""
    if mem.lead or not fr.in_map or fr.exact:
        return None
    where: list[Any] = []
    axes: list[int] = []
    for i, size in zip(idx, mem.shape, strict=True):
        low, count, axis = int(i.item(0)), i.size, -1
        if low < 0 or low + count > size:
            return None
        if count > 1:
            axis = i.shape.index(count) if count in i.shape else -1
            if axis < 0 or axis in axes or i.ndim != len(fr.lanes):
                return None
            if i is not fr.grid[axis]:
                line = i.reshape(-1)
                if line.item(-1) - low != count - 1 or not (line[1:] > line[:-1]).all():
                    return None
        where.append(low if axis < 0 else slice(low, low + count))
        axes.append(axis)
    if fr.watches:
        fr.pattern = tuple(axes), tuple(where)
    return tuple(where), tuple(axes)


def read_along(fr: Frame, value: Array, axes: tuple[int, ...]) -> Value:
    """Elements of a box, for each lane."""
    if axes == (*range(len(fr.lanes)),):
        return value
    used = [axis for axis in axes if axis >= 0]
    shape = [n if k in used else 1 for k, n in enumerate(fr.lanes)]
    order = sorted(range(len(used)), key=used.__getitem__)
    return value.transpose(order).reshape(shape) if used else value


def write_along(fr: Frame, value: Value, axes: tuple[int, ...]) -> Value:
    """The inverse of `read_along`."""
    if axes == (*range(len(fr.lanes)),):
        return value
    used = [axis for axis in axes if axis >= 0]
    full = np.broadcast_to(value, fr.lanes)
    part = full[tuple(slice(None) if k in used else 0 for k in range(full.ndim))]
    return part.transpose([sorted(used).index(axis) for axis in used])


# ── tiles ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TileRegion:
    """A `Region` with its expressions compiled."""

    region: Region
    starts: tuple[Callable[[Frame], Value], ...]
    extents: tuple[Callable[[Frame], Value] | int, ...]
    cta: Callable[[Frame], Value] | None

    @property
    def buffer(self) -> Buffer:
        return self.region.buffer

    def index(self, fr: Frame) -> Where:
        return tuple([s(fr) for s in self.starts])

    def memory(self, fr: Frame) -> Memory:
        return fr.bufs[self.region.buffer.name]


@dataclass
class Box:
    """A region with its coordinates known: in range from `low` to `high`, `pad` cut off before."""

    mem: Memory
    extents: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    pad: tuple[int, ...]

    @property
    def where(self) -> Where:
        return tuple(map(slice, self.low, self.high))

    @property
    def inner(self) -> Where:
        """The part of the tile that lies inside the buffer."""
        return tuple(
            slice(p, p + h - lo) for p, lo, h in zip(self.pad, self.low, self.high, strict=True)
        )

    @property
    def is_whole(self) -> bool:
        return all(h - lo == e for lo, h, e in zip(self.low, self.high, self.extents, strict=True))

    @property
    def is_empty(self) -> bool:
        return any(h <= lo for lo, h in zip(self.low, self.high, strict=True))


def uniform_int(fr: Frame, value: Value, what: str, among: Any = None) -> int:
    """`value` as an integer on which the running lanes (or those `among` them) agree."""
    if not value.ndim:
        return int(value)
    chosen = fr.active(fr.lanes) if among is None else among
    first, *_ = values = np.broadcast_to(value, fr.lanes)[chosen]
    if (values != first).any():
        raise RunError(
            f"{what} differs between threads, but this operation is collective",
            fix="use a uniform value, or thread-level loads and stores",
        )
    return int(first)


def extents_of(fr: Frame, tile: TileRegion) -> tuple[int, ...]:
    return tuple(
        e if isinstance(e, int) else uniform_int(fr, e(fr), "an extent") for e in tile.extents
    )


def region_memory(fr: Frame, tile: TileRegion) -> Memory:
    name = tile.buffer.name
    if tile.cta is None:
        return fr.bufs[name]
    rank = uniform_int(fr, tile.cta(fr), "a cluster rank")
    return fr.agent.block.cluster.block(rank).existing(name)


def locate(fr: Frame, tile: TileRegion, mem: Memory | None = None) -> Box | None:
    """The box a region stands for, or None when its start differs between lanes."""
    mem = region_memory(fr, tile) if mem is None else mem
    extents = extents_of(fr, tile)
    starts: list[int] = []
    for start in tile.starts:
        value = start(fr)
        if value.ndim:
            if value.size and (fr.in_map or (value != value.reshape(-1)[0]).any()):
                return None
            value = value.reshape(-1)[0]
        starts.append(int(value))
    box = clip(mem, starts, extents)
    if not mem.is_global and not box.is_whole:
        last = (s if s < 0 else max(s, min(s + e - 1, n))
                for s, e, n in zip(starts, extents, mem.shape, strict=True))  # fmt: skip
        raise out_of_range(fr, mem, tuple(last))
    return box


def clip(mem: Memory, starts: Sequence[int], extents: Sequence[int], shape: Any = None) -> Box:
    """The part of a tile that lies inside the buffer, or inside of `shape`."""
    low, high = [], []
    for s, e, n in zip(starts, extents, shape or mem.shape, strict=True):
        low.append(min(max(s, 0), n))
        high.append(max(min(s + e, n), low[-1]))
    pad = (max(lo - s, 0) for lo, s in zip(low, starts, strict=True))
    return Box(mem, tuple(extents), tuple(low), tuple(high), tuple(pad))


def read_box(box: Box) -> Array:
    """The tile, zero outside a global tensor. May alias the buffer."""
    part = box.mem.data[box.where]
    if box.is_whole:
        return part
    out = np.zeros(box.extents, box.mem.dtype.numpy)
    out[box.inner] = part
    return out


def write_box(box: Box, value: Value) -> None:
    """Store the tile, dropping what lies outside. `value` broadcasts to the extents."""
    if value.ndim and not box.is_whole:
        value = np.broadcast_to(value, box.extents)[box.inner]
    data = box.mem.data
    data[box.where] = value
    box.mem.flush(data)


# ── tile ops ─────────────────────────────────────────────────────────────────────────────────


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
        fix="go through another tile",
    )


def tile_box(fr: Frame, tile: TileRegion, mem: Memory | None = None) -> Box:
    """The box of a collective op's operand."""
    box = locate(fr, tile, mem)
    if box is None or box.mem.lead:
        raise RunError(
            f"the place of {tile.buffer.name} differs between threads, but this operation "
            "is collective",
            fix="use uniform coordinates",
        )
    return box


def require_collective(fr: Frame) -> None:
    if fr.is_partial:
        raise RunError(
            "a tile operation stands under a guard that differs between threads",
            fix="make the guard uniform, or write it with thread-level loads and stores",
        )


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def fit(value: Array, extents: tuple[int, ...]) -> Array:
    """`value` shaped as `extents`."""
    if squeezed(value.shape) != squeezed(extents):
        raise RunError(
            "the shapes of a copy do not match",
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
