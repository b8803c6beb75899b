"""The sanitizer: what a kernel must not do, found exactly, access by access."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.analysis.uniform import TILE_OPS
from tilewright.machine import padding
from tilewright.machine.core import *
from tilewright.support.errors import SanitizerWarning


def _first(mem: Memory, where: Where, wrong: Any) -> str:
    """The first element for which `wrong` holds, in words."""
    wrong = np.asarray(wrong)
    if mem.ratio > 1:
        wrong = wrong.any(axis=-1)
    flags = np.zeros(mem.lead + mem.shape, np.bool_)
    if wrong.shape == np.shape(flags[where]):
        np.logical_or.at(flags, where, wrong)  # it may hold one element several times
    else:
        flags[where] = True
    at = np.unravel_index(int(np.argmax(flags)), flags.shape) if flags.shape else ()
    return describe_index(mem, tuple(int(i) for i in at[len(mem.lead) :]))


def require_written(mem: Memory, where: Where, loc: Loc | None, how: str = "read") -> None:
    """Every element at `where` has been written."""
    valid = mem.storage.valid
    if valid is None:
        return
    known = mem.window(valid)[where]
    if not np.all(known):
        raise SanitizerError(
            "uninitialized",
            f"{_first(mem, where, ~np.asarray(known))} is {how}, but nothing wrote it",
            loc=loc,
            fix=f"write {mem.name} before it is {how}: " + _writing(mem),
        )


def _writing(mem: Memory) -> str:
    if mem.is_global:
        return (
            f"T.clear({mem.name}) or T.fill in a kernel of its own before this one; or pass an "
            "array that holds what it starts from"
        )
    return f"T.clear({mem.name}), T.fill or T.copy" if mem.shape else "T.alloc_var(…, init=…)"


def unwritten(mem: Memory) -> SanitizerWarning | None:
    """A warning where some element of a tensor that the call made was never written."""
    valid = mem.storage.valid
    if valid is None or mem.buffer.partial or valid.all():
        return None
    missing: Any = ~mem.window(valid)
    if mem.ratio > 1:
        missing = missing.any(axis=-1)
    first = np.unravel_index(int(np.argmax(missing)), missing.shape)
    count, size = int(missing.sum()), missing.size
    many = f"{size} elements are" if count == size else f"{count} of {size} elements are"
    return SanitizerWarning(
        "unwritten",
        f"{mem.name} is an output, and {many} never written; the first is "
        f"{describe_index(mem, tuple(map(int, first)))}",
        loc=mem.buffer.loc,
        fix="let the grid and its loops cover it; where this is meant, say T.empty(..., "
        "partial=True), or pass the array as an argument",
    )


class Sanitizer(Watch):
    """Watches one agent's accesses."""

    exact = True

    def __init__(self, agent: Agent, races: Conflicts, *, threads: bool) -> None:
        self.agent = agent
        self.races = races
        self.map = Conflicts("map")
        self.threads = ThreadRaces(int(agent.ids.size)) if threads else None

    def enter_map(self, fr: Frame) -> None:
        self.map.begin(int(np.prod(fr.lanes)))

    def synced(self, fr: Frame, scope: str) -> None:
        if self.threads is not None and scope == "warp":
            self.threads.meet_in_warps(fr.mask)
        elif self.threads is not None:
            self.threads.meet()

    def access(self, fr: Frame, t: Touch) -> None:
        mem, where = t.mem, t.where
        if t.kind == UPDATE:
            self.access(fr, t._replace(kind=READ))
            t = t._replace(kind=WRITE)
        sets = isinstance(fr.op, Atomic) and fr.op.op == "store"
        if t.kind == READ or (t.kind == ATOMIC and not sets):
            self._require_written(fr, t)
        self._meet(fr, t)
        if t.kind == WRITE:
            self._mark(fr, t)
        if t.kind != READ and mem.storage.valid is not None:
            mem.window(mem.storage.valid)[where] = True

    def _mark(self, fr: Frame, t: Touch) -> None:
        """What is written is data, unless the op said otherwise."""
        marks, fr.storing = fr.storing, None
        if marks is None or t.owners is None:
            padding.written(t.mem, t.where, None)
            return
        covers = np.size(t.owners) == t.mem.size and not t.mem.is_global
        if covers and np.all(marks == padding.BLANK):
            padding.blank(t.mem)
            return
        by_lane = np.broadcast_to(marks, fr.lanes).reshape(-1)
        padding.written(t.mem, t.where, by_lane[np.asarray(t.owners)])

    def _require_written(self, fr: Frame, t: Touch) -> None:
        try:
            how = READ if t.kind == READ else "updated atomically"
            require_written(t.mem, t.where, t.loc, how)
        except SanitizerError as error:
            if t.owners is not None and t.mem.storage.valid is not None:
                known = np.asarray(t.mem.window(t.mem.storage.valid)[t.where])
                of_owner(error, fr, t, ~known)
            raise

    def _meet(self, fr: Frame, t: Touch) -> None:
        """The access must not meet others, unordered."""
        mem = t.mem
        if mem.space is Space.LOCAL:
            return
        met: list[tuple[Conflicts, str, Any]] = []
        if fr.in_map:
            met.append((self.map, "iteration", self.map.access(t, t.owners)))
        if mem.is_global:
            linear = self.agent.block.linear
            met.append((self.races, "block", self.races.access(t, linear)))
        if self.threads is not None and mem.space in (Space.SHARED, Space.GLOBAL):
            met.append((self.threads, "thread", self._thread(fr, t)))
        for races, who, wrong in met:
            if wrong is None:
                continue
            name, more, fix = _CONFLICTS[who]
            error = SanitizerError(
                name,
                f"{_first(mem, t.where, wrong)} is {meets(t.kind, who)}{more}",
                loc=t.loc,
                notes=races.lines.other(t),
                fix=fix,
            )
            if who == "block" or t.owners is None:
                raise error
            raise of_owner(error, fr, t, wrong)

    def _thread(self, fr: Frame, t: Touch) -> Any:
        races = self.threads
        assert races is not None
        alone = t.owners is None and t.kind != READ
        if fr.in_map or alone or type(fr.op) in TILE_OPS:
            return races.forget(t)
        if t.owners is None:
            return races.all_read(t)
        return races.access(t, np.asarray(t.owners) - int(self.agent.ids[0]))


_CONFLICTS = {
    "iteration": (
        "parallel-conflict",
        "",
        "make the iterations independent, use a serial loop, or let every access be atomic "
        "(T.atomic_add, T.atomic_load)",
    ),
    "block": (
        "block-race",
        "",
        "let blocks write disjoint elements, use atomics, or split the kernel in two",
    ),
    "thread": ("race", " with no barrier between", "put T.sync_threads() between the two"),
}


def meets(kind: str, who: str) -> str:
    """What two of `who` do to one element, where the second access is of this kind."""
    if kind == ATOMIC:
        return f"updated atomically by one {who} and touched plainly by another"
    return f"written by one {who} and touched by another"
