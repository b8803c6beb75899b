"""The sanitizer: what a kernel must not do, found exactly, access by access.

Each kind keeps shadows of the memory it watches: who wrote an element last and who read it. A
shadow entry is a number that is only meaningful above a `base`; starting a new period (a nest, the
stretch between two thread barriers) moves the base, which forgets everything at no cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.interp.lanes import Frame, Watch, Where
from tilewright.interp.memory import Memory, describe_index
from tilewright.interp.postmortem import of_owner
from tilewright.ir.buffer import Space
from tilewright.ir.op import Atomic, Copy, Fill, Gemm, Map, Op, Reduce, Relayout, Scan
from tilewright.support.errors import Loc, SanitizerError

if TYPE_CHECKING:
    from tilewright.interp.machine import Agent

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


def require_written(mem: Memory, where: Where, loc: Loc | None) -> None:
    """Every element at `where` has been written."""
    valid = mem.storage.valid
    if valid is None:
        return
    known = mem.window(valid)[where]
    if not np.all(known):
        raise SanitizerError(
            "uninitialized",
            f"{_first(mem, where, ~np.asarray(known))} is read, but nothing wrote it",
            loc=loc,
            fix=f"write {mem.name} before it is read: "
            + (f"T.clear({mem.name}), T.fill or T.copy" if mem.shape else "T.alloc_var(…, init=…)"),
        )


class Conflicts:
    """Who touched what within one period: two shadows of entries `base + id`."""

    def __init__(self, name: str) -> None:
        self.write_name, self.read_name = f"{name}.write", f"{name}.read"
        self.base = 0
        self.span = 1  # ids 0 … span - 2; the last stands for 'several'

    @property
    def several(self) -> int:
        return self.base + self.span - 1

    def write(self, mem: Memory, where: Where, ids: Any) -> Any:
        """The elements where this write conflicts, or None."""
        ids = self._ids(mem, ids)
        writers = mem.window(mem.storage.shadow(self.write_name, -1))
        readers = mem.window(mem.storage.shadow(self.read_name, -1))
        wrong = self._other(writers[where], ids) | self._other(readers[where], ids)
        writers[where] = ids
        wrong = wrong | (writers[where] != ids)
        return wrong if np.any(wrong) else None

    def read(self, mem: Memory, where: Where, ids: Any) -> Any:
        ids = self._ids(mem, ids)
        writers = mem.window(mem.storage.shadow(self.write_name, -1))
        wrong = self._other(writers[where], ids)
        if np.any(wrong):
            return wrong
        readers = mem.window(mem.storage.shadow(self.read_name, -1))
        new = np.where(self._other(readers[where], ids), self.several, ids)
        readers[where] = new
        lost = readers[where] != new
        if np.any(lost):
            if np.ndim(lost) and all(isinstance(w, np.ndarray) for w in where):
                rows = lost.any(axis=-1) if mem.ratio > 1 else lost
                readers[tuple(w[rows] for w in where)] = self.several
            else:
                readers[where] = self.several
        return None

    def _ids(self, mem: Memory, ids: Any) -> Any:
        ids = self.base + np.asarray(ids, np.int64)
        return ids[..., None] if mem.ratio > 1 and ids.ndim else ids

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

    def atomic(self, mem: Memory, where: Where, block: int) -> Any:
        entry = self.base + block
        writers = mem.window(mem.storage.shadow(self.write_name, -1))
        readers = mem.window(mem.storage.shadow(self.read_name, -1))
        wrong = self._other(writers[where], entry) | self._other(readers[where], entry)
        marks = mem.window(mem.storage.shadow("block.atomic", -1))
        marks[where] = np.where(self._other(marks[where], entry), self.several, entry)
        return wrong if np.any(wrong) else None

    def mixes(self, mem: Memory, where: Where, block: int) -> Any:
        """Elements another block updates atomically."""
        marks = mem.window(mem.storage.shadow("block.atomic", -1))
        wrong = self._other(marks[where], self.base + block)
        return wrong if np.any(wrong) else None


class ThreadRaces:
    """Elements that two threads of a block touch with no barrier between.

    An entry is `base + stretch * span + code`: block barriers move the base, warp barriers begin
    a stretch. Codes: a thread, `threads + w` for several threads of warp w, the last for several
    warps.
    """

    _next = 1

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.warps = -(-threads // WARP)
        self.span = threads + self.warps + 1
        self.base = 0
        self.stretch = 0
        self.meet("block")

    def meet(self, scope: str) -> None:
        if scope == "warp":
            self.stretch += 1
        else:
            ThreadRaces._next += (self.stretch + 1) * self.span
            self.base, self.stretch = ThreadRaces._next, 0

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
            | (same_warp & (stretch < self.stretch))
        )

    def access(self, mem: Memory, where: Where, ids: Any, *, writes: bool) -> Any:
        ids = np.asarray(ids, np.int64)
        ids = ids[..., None] if mem.ratio > 1 and ids.ndim else ids
        writers = mem.window(mem.storage.shadow("thread.write", -1))
        readers = mem.window(mem.storage.shadow("thread.read", -1))
        entry = self.base + self.stretch * self.span + ids
        wrong = ~self._ordered(writers[where], ids)
        if writes:
            wrong = wrong | ~self._ordered(readers[where], ids)
            writers[where] = entry
            wrong = wrong | (writers[where] != entry)
            return wrong if np.any(wrong) else None
        if np.any(wrong):
            return wrong
        old = readers[where]
        readers[where] = np.where(self._ordered(old, ids), entry, self._several(old, ids))
        for _ in range(3):  # lanes of this very load may share an element
            got = readers[where]
            code = (got - self.base) % self.span
            lost = ~((code == ids) | (code == self.threads + ids // WARP) | (code == self.span - 1))
            if not lost.any():
                break
            rows = lost.any(axis=-1) if mem.ratio > 1 else lost
            readers[tuple(w[rows] for w in where)] = self._several(got[rows], ids[rows])
        return None

    def _several(self, entries: Any, ids: Any) -> Any:
        offset = entries - self.base
        code = offset % self.span
        warp = np.where(code < self.threads, code // WARP, code - self.threads)
        one = (warp == ids // WARP) & (code < self.span - 1)
        new = np.where(one, self.threads + ids // WARP, self.span - 1)
        return self.base + self.stretch * self.span + new

    def all_read(self, mem: Memory, where: Where) -> Any:
        """Every thread reads the elements."""
        writers = mem.window(mem.storage.shadow("thread.write", -1))
        readers = mem.window(mem.storage.shadow("thread.read", -1))
        wrong = np.asarray(writers[where] >= self.base)
        if self.threads == 1 or not wrong.any():
            readers[where] = self.base + self.stretch * self.span + self.span - 1
            return None
        return wrong

    def forget(self, mem: Memory, where: Where) -> None:
        """An operation that the compiler synchronises touched the elements."""
        for name in ("thread.write", "thread.read"):
            if name in mem.storage.shadows:
                mem.window(mem.storage.shadows[name])[where] = -1


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

    def synced(self, fr: Frame, scope: str) -> None:
        if self.threads is not None:
            self.threads.meet(scope)

    def read(self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None) -> None:
        try:
            require_written(mem, where, loc)
        except SanitizerError as error:
            if owners is not None and mem.storage.valid is not None:
                known = np.asarray(mem.window(mem.storage.valid)[where])
                of_owner(error, fr, mem, where, owners, ~known)
            raise
        self._touch(fr, mem, where, owners, loc, writes=False)

    def write(self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None) -> None:
        self._touch(fr, mem, where, owners, loc, writes=True)
        if mem.storage.valid is not None:
            mem.window(mem.storage.valid)[where] = True

    def atomic(self, fr: Frame, mem: Memory, where: Where, loc: Loc | None) -> None:
        if not (isinstance(fr.op, Atomic) and fr.op.op == "store"):
            require_written(mem, where, loc)
        if mem.storage.valid is not None:
            mem.window(mem.storage.valid)[where] = True
        if mem.is_global:
            self._report_block(mem, where, self.races.atomic(mem, where, self.block), loc)
        if self.threads is not None:
            self.threads.forget(mem, where)

    def _touch(
        self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None, *, writes: bool
    ) -> None:
        if mem.space is Space.LOCAL:
            return
        if fr.in_map:
            step = self.nest.write if writes else self.nest.read
            wrong = step(mem, where, owners)
            if wrong is not None:
                how = "written by one iteration and touched by another"
                error = SanitizerError(
                    "parallel-conflict",
                    f"{_first(mem, where, wrong)} is {how}",
                    loc=loc,
                    fix="make the iterations independent, or use a serial loop or an atomic",
                )
                raise of_owner(error, fr, mem, where, owners, wrong)
        if mem.is_global:
            step = self.races.write if writes else self.races.read
            wrong = step(mem, where, self.block)
            if wrong is None:
                wrong = self.races.mixes(mem, where, self.block)
            self._report_block(mem, where, wrong, loc)
        if self.threads is not None and mem.space in (Space.SHARED, Space.GLOBAL):
            self._thread(fr, mem, where, owners, loc, writes)

    def _report_block(self, mem: Memory, where: Where, wrong: Any, loc: Loc | None) -> None:
        if wrong is not None:
            raise SanitizerError(
                "block-race",
                f"{_first(mem, where, wrong)} is written by one block and touched by another",
                loc=loc,
                fix="let blocks write disjoint elements, use atomics, or split the kernel in two",
            )

    def _thread(
        self, fr: Frame, mem: Memory, where: Where, owners: Any, loc: Loc | None, writes: bool
    ) -> None:
        races = self.threads
        assert races is not None
        if fr.in_map or _is_tile(fr.op) or (owners is None and writes):
            races.forget(mem, where)
            return
        if owners is None:
            wrong = races.all_read(mem, where)
        else:
            first = int(self.agent.ids[0])
            wrong = races.access(mem, where, np.asarray(owners) - first, writes=writes)
        if wrong is not None:
            error = SanitizerError(
                "race",
                f"{_first(mem, where, wrong)} is written by one thread and touched by another "
                "with no barrier between",
                loc=loc,
                fix="put T.sync_threads() between the two",
            )
            raise error if owners is None else of_owner(error, fr, mem, where, owners, wrong)


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
