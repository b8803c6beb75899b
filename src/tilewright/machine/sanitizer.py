"""The sanitizer: what a kernel must not do, found exactly, access by access.

Each kind keeps shadows of the memory it watches: who wrote an element last and who read it. A
shadow entry is a number that is only meaningful above a `base`; starting a new period (a nest, the
stretch between two thread barriers) moves the base, which forgets everything at no cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.op import Atomic, Copy, Fill, Gemm, Map, Op, Reduce, Relayout, Scan
from tilewright.machine import padding
from tilewright.machine.lanes import Frame, Watch, Where
from tilewright.machine.memory import Memory, describe_index
from tilewright.machine.postmortem import of_owner
from tilewright.support.errors import Loc, SanitizerError, SanitizerWarning

if TYPE_CHECKING:
    from tilewright.machine.tile_machine import Agent

WARP = 32
TILE_OPS = (Copy, Fill, Gemm, Map, Reduce, Relayout, Scan, Atomic)


def _first(mem: Memory, where: Where, wrong: Any) -> str:
    """The first element for which `wrong` holds, in words."""
    wrong = np.asarray(wrong)
    if mem.ratio > 1:
        wrong = wrong.any(axis=-1)
    flags = np.zeros(mem.lead + mem.shape, np.bool_)
    if wrong.shape == np.shape(flags[where]):
        flags[where] = wrong
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


READ, WRITE, ATOMIC = "read", "write", "atomic"
# what an access must not meet, unordered: atomics do not disturb each other
AGAINST = {READ: (WRITE, ATOMIC), WRITE: (WRITE, READ, ATOMIC), ATOMIC: (WRITE, READ)}


class Lines:
    """Where the accesses of a period stand in the text, to name the other one of two."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, str], dict[Loc, None]] = {}

    def add(self, mem: Memory, kind: str, loc: Loc | None) -> None:
        if loc is not None:
            self.seen.setdefault((id(mem.storage), kind), {})[loc] = None

    def other(self, mem: Memory, kind: str, loc: Loc | None) -> tuple[str, ...]:
        """The accesses that one of `kind` at `loc` may have met, in words."""
        found = {
            place: how
            for how in AGAINST[kind]
            for place in self.seen.get((id(mem.storage), how), ())
        }
        if len(found) > 1:
            found.pop(loc, None)  # type: ignore[arg-type]
        verb = {READ: "read", WRITE: "written", ATOMIC: "updated atomically"}
        return tuple(f"{mem.name} is {verb[how]} at {at}" for at, how in list(found.items())[:3])


class Conflicts:
    """Who touched what within one period: a shadow for each kind of access, of entries
    `base + id`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.base = 0
        self.span = 1  # ids 0 … span - 2; the last stands for 'several'
        self.lines = Lines()

    @property
    def several(self) -> int:
        return self.base + self.span - 1

    def access(self, mem: Memory, where: Where, ids: Any, kind: str, loc: Loc | None) -> Any:
        """The elements where this access conflicts, or None."""
        ids = self.base + np.asarray(ids, np.int64)
        ids = ids[..., None] if mem.ratio > 1 and ids.ndim else ids
        wrong: Any = np.False_
        for other in AGAINST[kind]:
            if f"{self.name}.{other}" in mem.storage.shadows:
                wrong = wrong | self._other(self._marks(mem, other)[where], ids)
        self.lines.add(mem, kind, loc)
        marks = self._marks(mem, kind)
        if kind == WRITE:
            marks[where] = ids
            wrong = wrong | (marks[where] != ids)
        elif not np.any(wrong):
            new = np.where(self._other(marks[where], ids), self.several, ids)
            marks[where] = new
            lost = marks[where] != new
            if np.any(lost):
                if np.ndim(lost) and all(isinstance(w, np.ndarray) for w in where):
                    rows = lost.any(axis=-1) if mem.ratio > 1 else lost
                    marks[tuple(w[rows] for w in where)] = self.several
                else:
                    marks[where] = self.several
        return wrong if np.any(wrong) else None

    def _marks(self, mem: Memory, kind: str) -> Any:
        return mem.window(mem.storage.shadow(f"{self.name}.{kind}", -1))

    def _other(self, entries: Any, ids: Any) -> Any:
        return (entries >= self.base) & (entries != ids)


class BlockRaces(Conflicts):
    """Global elements that one block writes and another touches, within one kernel."""

    _periods = 0

    def __init__(self, blocks: int) -> None:
        super().__init__("block")
        BlockRaces._periods += 1
        # shadows of scratch tensors outlive a kernel, so periods of all kernels differ
        self.base = BlockRaces._periods << 32
        self.span = blocks + 1


class ThreadRaces:
    """Elements that two threads of a block touch with no barrier between.

    An entry is `base + stretch * span + code`: block barriers move the base, a warp's barrier
    begins a stretch of that warp. Codes: a thread, `threads + w` for several threads of warp w,
    the last for several warps.
    """

    _next = 1

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.warps = -(-threads // WARP)
        self.span = threads + self.warps + 1
        self.base = 0
        self.stretch = np.zeros(self.warps, np.int64)
        self.lines = Lines()
        self.meet()

    def meet(self) -> None:
        """All threads meet."""
        ThreadRaces._next += (int(self.stretch.max()) + 1) * self.span
        self.base = ThreadRaces._next
        self.stretch[:] = 0
        self.lines = Lines()

    def meet_in_warps(self, mask: Any) -> None:
        """The threads of each warp that runs under `mask` meet."""
        self.stretch += np.broadcast_to(True if mask is None else mask, self.threads)[::WARP]

    def _ordered(self, entries: Any, ids: Any) -> Any:
        """Where what the entries stand for is over before threads `ids` go on."""
        offset = entries - self.base
        code, stretch = offset % self.span, offset // self.span
        thread = code < self.threads
        warp = np.where(thread, code // WARP, code - self.threads)
        same_warp = (warp == ids // WARP) & (code < self.span - 1)
        return (
            (entries < self.base)
            | (thread & (code == ids))
            | (same_warp & (stretch < self.stretch[ids // WARP]))
        )

    def access(self, mem: Memory, where: Where, ids: Any, kind: str, loc: Loc | None) -> Any:
        """The elements where this access by threads `ids` conflicts, or None."""
        ids = np.asarray(ids, np.int64)
        ids = ids[..., None] if mem.ratio > 1 and ids.ndim else ids
        entry = self.base + self.stretch[ids // WARP] * self.span + ids
        wrong: Any = np.False_
        for other in AGAINST[kind]:
            if f"thread.{other}" in mem.storage.shadows:
                wrong = wrong | ~self._ordered(self._marks(mem, other)[where], ids)
        self.lines.add(mem, kind, loc)
        marks = self._marks(mem, kind)
        if kind == WRITE:
            marks[where] = entry
            wrong = wrong | (marks[where] != entry)
            return wrong if np.any(wrong) else None
        if np.any(wrong):
            return wrong
        old = marks[where]
        marks[where] = np.where(self._ordered(old, ids), entry, self._several(old, ids))
        for _ in range(3):  # lanes of this very access may share an element
            got = marks[where]
            code = (got - self.base) % self.span
            lost = ~((code == ids) | (code == self.threads + ids // WARP) | (code == self.span - 1))
            if not lost.any():
                break
            rows = lost.any(axis=-1) if mem.ratio > 1 else lost
            marks[tuple(w[rows] for w in where)] = self._several(got[rows], ids[rows])
        return None

    def _marks(self, mem: Memory, kind: str) -> Any:
        return mem.window(mem.storage.shadow(f"thread.{kind}", -1))

    def _several(self, entries: Any, ids: Any) -> Any:
        offset = entries - self.base
        code = offset % self.span
        warp = np.where(code < self.threads, code // WARP, code - self.threads)
        one = (warp == ids // WARP) & (code < self.span - 1)
        new = np.where(one, self.threads + ids // WARP, self.span - 1)
        return self.base + self.stretch[ids // WARP] * self.span + new

    def all_read(self, mem: Memory, where: Where, loc: Loc | None) -> Any:
        """Every thread reads the elements."""
        wrong: Any = np.False_
        for other in AGAINST[READ]:
            if f"thread.{other}" in mem.storage.shadows:
                wrong = wrong | np.asarray(self._marks(mem, other)[where] >= self.base)
        self.lines.add(mem, READ, loc)
        if self.threads == 1 or not np.any(wrong):
            every = self.base + self.span - 1
            self._marks(mem, READ)[where] = every
            return None
        return wrong

    def forget(self, mem: Memory, where: Where) -> None:
        """An operation that the compiler synchronises touched the elements."""
        for kind in AGAINST:
            if f"thread.{kind}" in mem.storage.shadows:
                self._marks(mem, kind)[where] = -1


class Sanitizer(Watch):
    """Watches one agent's accesses."""

    exact = True

    def __init__(self, agent: Agent, races: BlockRaces, *, threads: bool) -> None:
        self.agent = agent
        self.block = agent.block.linear
        self.races = races
        self.nest = Conflicts("map")
        self.threads = ThreadRaces(int(agent.ids.size)) if threads else None

    def enter_map(self, fr: Frame) -> None:
        self.nest.span = int(np.prod(fr.lanes)) + 1
        self.nest.base = _NEST_PERIODS.take(self.nest.span)
        self.nest.lines = Lines()

    def synced(self, fr: Frame, scope: str) -> None:
        if self.threads is not None and scope == "warp":
            self.threads.meet_in_warps(fr.mask)
        elif self.threads is not None:
            self.threads.meet()

    def read(self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None) -> None:
        self._require_written(fr, mem, where, owners, loc)
        self._touch(fr, mem, where, owners, loc, READ)

    def write(self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None) -> None:
        self._touch(fr, mem, where, owners, loc, WRITE)
        self._mark(fr, mem, where, owners)
        if mem.storage.valid is not None:
            mem.window(mem.storage.valid)[where] = True

    def atomic(self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None) -> None:
        if not (isinstance(fr.op, Atomic) and fr.op.op == "store"):
            self._require_written(fr, mem, where, owners, loc, "updated atomically")
        self._touch(fr, mem, where, owners, loc, ATOMIC)
        if mem.storage.valid is not None:
            mem.window(mem.storage.valid)[where] = True

    def _mark(self, fr: Frame, mem: Memory, where: Where, owners: Any) -> None:
        """What is written is data, unless the op said otherwise."""
        marks, fr.storing = fr.storing, None
        if marks is None or owners is None:
            padding.written(mem, where, None)
            return
        covers = np.size(owners) == mem.size and not mem.is_global
        if covers and np.all(marks == padding.BLANK):
            padding.blank(mem)
            return
        by_lane = np.broadcast_to(marks, fr.lanes).reshape(-1)
        padding.written(mem, where, by_lane[np.asarray(owners)])

    def _require_written(
        self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None, how: str = READ
    ) -> None:
        try:
            require_written(mem, where, loc, how)
        except SanitizerError as error:
            if owners is not None and mem.storage.valid is not None:
                known = np.asarray(mem.window(mem.storage.valid)[where])
                of_owner(error, fr, mem, where, owners, ~known)
            raise

    def _touch(
        self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None, kind: str
    ) -> None:
        if mem.space is Space.LOCAL:
            return
        if fr.in_map:
            wrong = self.nest.access(mem, where, owners, kind, loc)
            if wrong is not None:
                error = SanitizerError(
                    "parallel-conflict",
                    f"{_first(mem, where, wrong)} is {meets(kind, 'iteration')}",
                    loc=loc,
                    notes=self.nest.lines.other(mem, kind, loc),
                    fix="make the iterations independent, use a serial loop, or let every access "
                    "be atomic (T.atomic_add, T.atomic_load)",
                )
                raise of_owner(error, fr, mem, where, owners, wrong)
        if mem.is_global:
            wrong = self.races.access(mem, where, self.block, kind, loc)
            if wrong is not None:
                raise SanitizerError(
                    "block-race",
                    f"{_first(mem, where, wrong)} is {meets(kind, 'block')}",
                    loc=loc,
                    notes=self.races.lines.other(mem, kind, loc),
                    fix="let blocks write disjoint elements, use atomics, or split the kernel in "
                    "two",
                )
        if self.threads is not None and mem.space in (Space.SHARED, Space.GLOBAL):
            self._thread(fr, mem, where, owners, loc, kind)

    def _thread(
        self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None, kind: str
    ) -> None:
        races = self.threads
        assert races is not None
        alone = owners is None and kind != READ
        if fr.in_map or alone or (_is_tile(fr.op) and not isinstance(fr.op, Atomic)):
            races.forget(mem, where)
            return
        if owners is None:
            wrong = races.all_read(mem, where, loc)
        else:
            first = int(self.agent.ids[0])
            wrong = races.access(mem, where, np.asarray(owners) - first, kind, loc)
        if wrong is not None:
            error = SanitizerError(
                "race",
                f"{_first(mem, where, wrong)} is {meets(kind, 'thread')} with no barrier between",
                loc=loc,
                notes=races.lines.other(mem, kind, loc),
                fix="put T.sync_threads() between the two",
            )
            raise error if owners is None else of_owner(error, fr, mem, where, owners, wrong)


def meets(kind: str, who: str) -> str:
    """What two of `who` do to one element, where the second access is of this kind."""
    if kind == ATOMIC:
        return f"updated atomically by one {who} and touched plainly by another"
    return f"written by one {who} and touched by another"


def _is_tile(op: Op | None) -> bool:
    return isinstance(op, TILE_OPS)


class _Periods:
    """Bases that no other period shares, since shadows outlive nests and blocks."""

    def __init__(self) -> None:
        self.next = 1

    def take(self, ids: int) -> int:
        base = self.next
        self.next += ids
        return base


_NEST_PERIODS = _Periods()
