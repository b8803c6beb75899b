"""Elements that two iterations, threads or blocks touch: shadows of memory that hold who wrote an
element last and who read it.

A shadow entry is a number that is only meaningful above a `base`; starting a new period (a map,
the stretch between two thread barriers) moves the base, which forgets everything at no cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.ir.core import *
from tilewright.machine.memory import Memory

PERIOD = 1 << 32  # entries of one period: more than there are lanes, or threads between barriers
READ, WRITE, ATOMIC, UPDATE = "read", "write", "atomic", "update"
# what an access must not meet, unordered: atomics do not disturb each other
AGAINST = {READ: (WRITE, ATOMIC), WRITE: (WRITE, READ, ATOMIC), ATOMIC: (WRITE, READ)}


class Touch(NamedTuple):
    """An access of memory. `kind`: read, write, atomic, or update: one tile op reads and writes, in
    the order that it needs itself. `owners`: which lane touches what, None for all together;
    `value`: what each of them stores, where they may disagree."""

    kind: str
    mem: Memory
    where: Any
    owners: Any
    loc: Loc | None
    value: Any = None


class Lines:
    """Where the accesses of a period stand in the text, to name the other one of two."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], dict[Loc, None]] = {}

    def add(self, t: Touch) -> None:
        if t.loc is not None:
            self.seen.setdefault((id(t.mem.storage), t.kind), {})[t.loc] = None

    def other(self, t: Touch) -> tuple[str, ...]:
        """The accesses that this one may have met, in words."""
        mem = t.mem
        found = {
            place: how
            for how in AGAINST[t.kind]
            for place in self.seen.get((id(mem.storage), how), ())
        }
        if len(found) > 1:
            found.pop(t.loc, None)  # type: ignore[arg-type]
        verb = {READ: "read", WRITE: "written", ATOMIC: "updated atomically"}
        return tuple(f"{mem.name} is {verb[how]} at {at}" for at, how in list(found.items())[:3])


class Conflicts:
    """Who touched what within one period: a shadow for each kind of access, of entries
    `base + id`. Ids are 0 … span - 2; the last stands for 'several'."""

    _next = 0  # bases that no other period shares, since shadows outlive maps, blocks and kernels

    def __init__(self, name: str, ids: int = 0) -> None:
        self.name = name
        self.begin(ids)

    def begin(self, ids: int) -> None:
        """A period of as many ids."""
        self.base, self.span, self.lines = Conflicts._next, ids + 1, Lines()
        Conflicts._next += PERIOD

    def entry(self, ids: Any) -> Any:
        return self.base + ids

    def ordered(self, entries: Any, ids: Any) -> Any:
        """Where what the entries stand for cannot meet `ids`."""
        return (entries < self.base) | (entries == self.base + ids)

    def several(self, entries: Any, ids: Any) -> Any:
        """The entry that stands for what was there and `ids`."""
        return self.base + self.span - 1

    def stands_for(self, entries: Any, ids: Any) -> Any:
        """Where an entry of this period includes `ids`."""
        return (entries == self.base + ids) | (entries == self.base + self.span - 1)

    def access(self, t: Touch, ids: Any) -> Any:
        """The elements where an access by `ids` conflicts, or None."""
        kind, mem, where = t.kind, t.mem, t.where
        ids = np.asarray(ids, np.int64)
        ids = ids[..., None] if mem.ratio > 1 and ids.ndim else ids
        wrong: Any = np.False_
        for other in AGAINST[kind]:
            if f"{self.name}.{other}" in mem.storage.shadows:
                wrong = wrong | ~self.ordered(self.marks(mem, other)[where], ids)
        self.lines.add(t)
        marks, entry = self.marks(mem, kind), self.entry(ids)
        if kind == WRITE:
            marks[where] = entry
            wrong = wrong | (marks[where] != entry)
            return wrong if np.any(wrong) else None
        if np.any(wrong):
            return wrong
        old = marks[where]
        marks[where] = np.where(self.ordered(old, ids), entry, self.several(old, ids))
        for _ in range(3 if ids.ndim else 0):  # lanes of this very access may share an element
            got = marks[where]
            lost = ~self.stands_for(got, ids)
            if not lost.any():
                break
            rows = lost.any(axis=-1) if mem.ratio > 1 else lost
            marks[tuple(w[rows] for w in where)] = self.several(got[rows], ids[rows])
        return None

    def marks(self, mem: Memory, kind: str) -> Any:
        return mem.window(mem.storage.shadow(f"{self.name}.{kind}", -1))


class ThreadRaces(Conflicts):
    """Elements that two threads of a block touch with no barrier between.

    An entry is `base + stretch * span + code`: block barriers move the base, a warp's barrier
    begins a stretch of that warp. Codes: a thread, `threads + w` for several threads of warp w,
    the last for several warps.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.stretch = np.zeros(-(-threads // WARP), np.int64)
        super().__init__("thread", threads + self.stretch.size)

    def meet(self) -> None:
        """All threads meet."""
        self.begin(self.span - 1)
        self.stretch[:] = 0

    def meet_in_warps(self, mask: Any) -> None:
        """The threads of each warp that runs under `mask` meet."""
        self.stretch += np.broadcast_to(True if mask is None else mask, self.threads)[::WARP]

    def entry(self, ids: Any) -> Any:
        return self.base + self.stretch[ids // WARP] * self.span + ids

    def _warp(self, entries: Any) -> tuple[Any, Any, Any]:
        """The code, the stretch and the warp (-1: several) of entries."""
        code, stretch = (entries - self.base) % self.span, (entries - self.base) // self.span
        warp = np.where(code < self.threads, code // WARP, code - self.threads)
        return code, stretch, np.where(code < self.span - 1, warp, -1)

    def ordered(self, entries: Any, ids: Any) -> Any:
        code, stretch, warp = self._warp(entries)
        earlier = (warp == ids // WARP) & (stretch < self.stretch[ids // WARP])
        return (entries < self.base) | (code == ids) | earlier

    def several(self, entries: Any, ids: Any) -> Any:
        one = self._warp(entries)[2] == ids // WARP
        code = np.where(one, self.threads + ids // WARP, self.span - 1)
        return self.entry(ids) - ids + code

    def stands_for(self, entries: Any, ids: Any) -> Any:
        code = (entries - self.base) % self.span
        return (code == ids) | (code == self.threads + ids // WARP) | (code == self.span - 1)

    def all_read(self, t: Touch) -> Any:
        """Every thread reads the elements."""
        mem, where = t.mem, t.where
        wrong: Any = np.False_
        for other in AGAINST[READ]:
            if f"thread.{other}" in mem.storage.shadows:
                wrong = wrong | np.asarray(self.marks(mem, other)[where] >= self.base)
        self.lines.add(t)
        if self.threads == 1 or not np.any(wrong):
            self.marks(mem, READ)[where] = self.base + self.span - 1
            return None
        return wrong

    def forget(self, t: Touch) -> None:
        """An operation that the compiler synchronises touched the elements."""
        for kind in AGAINST:
            if f"thread.{kind}" in t.mem.storage.shadows:
                self.marks(t.mem, kind)[t.where] = -1
