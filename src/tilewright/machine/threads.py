"""Meaning of `Intrinsic`: what has an effect, or a value that depends on other threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.ir.intrinsics import INTRINSICS
from tilewright.machine.core import *
from tilewright.machine.thread_agents import converge
from tilewright.support.show import cut, show_line


def _threads(fr: Frame, value: Value) -> Array:
    if fr.in_map:
        raise RunError("threads do not exist inside an elementwise loop")
    return np.array(np.broadcast_to(value, fr.lanes))


def _source(kind: str, fr: Frame, by: Value, width: int) -> Array:
    """The thread each thread reads from, itself where there is none."""
    threads = fr.lanes[0]
    if not by.ndim:
        return _sources(kind, threads, int(by), width)[0]
    me = np.arange(threads)
    other = _wanted(kind, me, _threads(fr, by).astype(np.int64), width)
    return np.where(other < threads, other, me)


@lru_cache(256)
def _sources(kind: str, threads: int, by: int, width: int) -> tuple[Array, bool]:
    """Of a distance that all threads share: the thread each reads from, and whether all of those
    are there while all threads run."""
    me = np.arange(threads)
    other = _wanted(kind, me, np.int64(by), width)
    most = WARP if kind in ("up", "down") else width
    fine = bool((other < threads).all()) and (kind == "sync" or 0 <= by < most)
    return np.where(other < threads, other, me), fine


_TARGET: dict[str, Callable[..., Array]] = {
    "sync": lambda lane, base, by, width: base + by % width,
    "xor": lambda lane, base, by, width: lane ^ by,
    "up": lambda lane, base, by, width: lane - by,
    "down": lambda lane, base, by, width: lane + by,
}


def _wanted(kind: str, me: Array, by: Any, width: int) -> Array:
    """The thread each thread asks for, itself where that lies outside of its group."""
    lane = me % WARP
    base = lane // width * width
    target = _TARGET[kind](lane, base, by, width)
    inside = (target >= base) & (target < base + width)
    return np.where(inside, me - lane + target, me)


def shuffle(fr: Frame, op: Intrinsic, value: Value, by: Value) -> Value:
    kind = op.name.removeprefix("shfl_")
    return _threads(fr, value)[_source(kind, fr, by, op.width or WARP)]


def require_lanes(fr: Frame, op: Intrinsic, by: Value) -> None:
    """Every running thread shuffles from a lane that is there: one that exists, runs this too, and
    that all targets take for the same. Where the lane that is asked for lies outside of the group
    `up` and `down` mean the thread's own, and `sync` counts round."""
    kind, width = op.name.removeprefix("shfl_"), op.width or WARP
    if fr.mask is None and not by.ndim and _sources(kind, fr.lanes[0], int(by), width)[1]:
        return
    running = np.array(fr.active(fr.lanes))
    me = np.arange(fr.lanes[0])
    by = _threads(fr, by).astype(np.int64)
    lane = me % WARP
    if kind != "sync":
        beyond = running & ((by < 0) | (by >= (width if kind == "xor" else WARP)))
        if beyond.any():
            at = int(np.argmax(beyond))
            raise in_lane(
                SanitizerError(
                    "shuffle-lane",
                    f"T.{op.name}: lane {lane[at]} asks for a lane {by[at]} away",
                    fix=f"shuffle by 0 … {(width if kind == 'xor' else WARP) - 1}",
                ),
                fr,
                beyond,
            )
    source = _wanted(kind, me, by, width)
    there = source < fr.lanes[0]
    there[there] &= running[source[there]]
    if not there[running].all():
        wrong = running & ~there
        at = int(np.argmax(wrong))
        beside = lane[running & (me // WARP == at // WARP)]
        exists = source[at] < fr.lanes[0]
        raise in_lane(
            SanitizerError(
                "shuffle-lane",
                f"T.{op.name}: lane {lane[at]} asks for the value of lane {source[at] % WARP}, "
                + ("which does not run this" if exists else "which this block does not have"),
                notes=(f"of warp {at // WARP} lanes {_ranges(beside)} run it",),
                fix="shuffle before the `if`, where all lanes of the warp come by; or give the "
                "shuffle a width= that keeps it among the lanes that run",
            ),
            fr,
            wrong,
        )


def _ranges(lanes: Array) -> str:
    """Numbers in words: 0 … 15, 20."""
    runs = np.split(lanes, np.flatnonzero(np.diff(lanes) != 1) + 1)
    return ", ".join(f"{r[0]} … {r[-1]}" if r.size > 1 else str(r[0]) for r in runs)


def _warps(fr: Frame, value: Value, idle: Any) -> Array:
    """Values by warp, threads that are not active (or do not exist) replaced by `idle`."""
    values = _threads(fr, value)
    values[~fr.active(fr.lanes)] = idle
    rows = -(-values.size // WARP)
    out = np.full(rows * WARP, idle, values.dtype)
    out[: values.size] = values
    return out.reshape(rows, WARP)


def _spread(fr: Frame, by_warp: Array) -> Array:
    return np.repeat(by_warp, WARP)[: fr.lanes[0]]


def ballot(fr: Frame, op: Intrinsic, pred: Value) -> Value:
    bits = _warps(fr, pred != 0, False).astype(np.uint64)
    word = (bits << np.arange(WARP, dtype=np.uint64)).sum(axis=1)
    return _spread(fr, word.astype(np.uint32))


def any_sync(fr: Frame, op: Intrinsic, pred: Value) -> Value:
    return _spread(fr, np.asarray(_warps(fr, pred != 0, False).any(axis=1)))


def all_sync(fr: Frame, op: Intrinsic, pred: Value) -> Value:
    return _spread(fr, np.asarray(_warps(fr, pred != 0, True).all(axis=1)))


_FOLDS = {"sum": "+", "max": "max", "min": "min", "and": "&", "or": "|"}


def warp_reduce(fr: Frame, op: Intrinsic, value: Value) -> Value:
    arg = op.args[0]
    dtype: DType = arg.buffer.dtype if isinstance(arg, Region) else arg.dtype
    fn = bin_fn(_FOLDS[op.name.removeprefix("warp_reduce_")], dtype)
    values, active = _threads(fr, value), fr.active(fr.lanes)
    width, out = op.width or WARP, values.copy()
    for first in range(0, values.size, width):
        group = np.flatnonzero(active[first : first + width]) + first
        if group.size:
            # the butterfly's order, so that targets can agree bit for bit
            parts = [values[g] for g in group]
            while len(parts) > 1:
                half = (len(parts) + 1) // 2
                parts = [
                    fn(parts[k], parts[k + half]) if k + half < len(parts) else parts[k]
                    for k in range(half)
                ]
            out[group] = parts[0]
    return out


_ACROSS_LANES: dict[str, Callable[..., Value]] = {
    **{f"shfl_{kind}": shuffle for kind in ("sync", "xor", "up", "down")},
    **{f"warp_reduce_{name}": warp_reduce for name in _FOLDS},
    "ballot": ballot,
    "any_sync": any_sync,
    "all_sync": all_sync,
}


@meaning(*_ACROSS_LANES)
def across_lanes(builder: Builder, op: Intrinsic, args: list[Any], fr: Frame) -> None:
    if builder.threads:
        converge(fr, op.name, some="mask=active" in op.text)
    given = [_value(fr, a) for a in args[: 1 + op.name.startswith("shfl_")]]
    if len(given) > 1 and (builder.threads or fr.agent.sanitize):
        require_lanes(fr, op, given[1])
    got = _ACROSS_LANES[op.name](fr, op, *given)
    if op.result is not None:
        fr.vars[op.result.name] = got.astype(op.result.dtype.numpy)


@meaning("pdl_wait", "pdl_launch")
def run_pdl(fr: Frame) -> None:
    """Kernels run one after another here."""


@meaning(Intrinsic)
def run_other(op: Intrinsic, fr: Frame) -> None:
    """One that is never reached does no harm."""
    if INTRINSICS[op.name].opaque:
        raise RunError(
            f"{op.name} is foreign code, which the interpreter cannot run",
            fix='compile for a GPU: target="cuda"',
        )
    raise RunError(f"the interpreter has no meaning for intrinsic {op.name}")


def _value(fr: Frame, arg: Any) -> Value:
    """Of an operand: an expression, or an element of memory."""
    if not isinstance(arg, TileRegion):
        return arg(fr)
    return gather(fr, arg.memory(fr), arg.index(fr), None)


@meaning("print")
def run_print(op: Intrinsic, args: list[Any], fr: Frame) -> None:
    """One line for uniform values and tiles, one per active lane otherwise. `op` is labelled."""
    shown, places = [_shown(fr, arg) for arg in args], op.width or 0
    lanes = [*zip(*np.nonzero(fr.active(fr.lanes)), strict=True)]
    if fr.mask is None and all(uniform for uniform, _ in shown):
        lanes = [()]
    for lane in lanes:
        row = [in_lane(lane) for _, in_lane in shown]
        line = show_line(op.text.format(*row[:places]), row[places:])
        fr.agent.block.cluster.launch.say(line)


def _shown(fr: Frame, arg: Any) -> tuple[bool, Callable[[tuple[int, ...]], Any]]:
    """What a lane prints of an operand: an element or a tile; and whether all print the same."""
    if not isinstance(arg, TileRegion) or not arg.region.tile:
        value = _value(fr, arg)
        of_lane = np.broadcast_to(value, fr.lanes).__getitem__ if value.ndim else lambda lane: value
        return not value.ndim, of_lane
    kept = long_dims(arg.region.extents)

    def squeezed(array: Array) -> Array:
        return array.reshape([array.shape[k] for k in kept])

    mem = region_memory(fr, arg)
    box = None if mem.lead else locate(fr, arg, mem)
    if box is not None:
        tile = squeezed(read_box(box))
        return True, lambda lane: tile
    starts = [np.broadcast_to(s(fr), fr.lanes) for s in arg.starts]
    extents, data, rank = extents_of(fr, arg), mem.data, len(mem.lead)
    return False, lambda lane: squeezed(
        cut(data[lane[:rank]], [int(s[lane]) for s in starts], extents)
    )


@meaning("device_assert")
def run_assert(op: Intrinsic, args: list[Any], fr: Frame) -> None:
    """The last operand holds in every active lane. `op` is labelled."""
    *places, test = (_value(fr, a) for a in args)
    wrong = (test == 0) & fr.active(fr.lanes if test.ndim or fr.mask is not None else ())
    if np.any(wrong):
        at = np.unravel_index(int(np.argmax(wrong)), fr.lanes) if wrong.ndim else ()
        shown = [np.broadcast_to(p, fr.lanes)[at] if p.ndim else p for p in places]
        fix = "it is the kernel's own: pass data that fulfils it"
        raise in_lane(RunError(op.text.format(*shown), fix=fix), fr, wrong)
