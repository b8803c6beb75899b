"""A loop whose slots are waited for and handed back, and which may run statements late.

Without late statements it is one loop. With them (`skew`) it has three sections: what the first
iteration begins with, the loop over the rest, in which the late statements belong to the iteration
before, and what is left of the last. Whatever belongs to a statement (the wait for a slot's bytes,
the release of a slot) is said once and appears in every section that has the statement.

Where two iterations have a tile each (`Copies`), registers take constant indices: the loop runs two
iterations at a time, and what is left of the last is one of two sections, by the number of
iterations. No product is left running where the loop begins again: which tile's it is, the
assembler could not tell (C7514).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tilewright.passes.core import *
from tilewright.passes.overlap.rings import Ring, Skew, plain_loop, slotted
from tilewright.passes.sync.matrix_groups import NumberedGemm, Release


class Place(NamedTuple):
    """Where a slot is filled again, or handed back to who does: after (`ahead`: before) statement
    `at`, `lag` iterations after the one that read it."""

    at: int
    ahead: bool = False
    lag: int = 0


@dataclass
class Copies:
    """Tiles that every other iteration has instead of others, and the numbers of the products into
    them."""

    tiles: dict[Buffer, Buffer] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def swapped(self, ops: Iterable[Op], parity: int) -> Body:
        """`ops` of the iteration `parity`, by its own tiles."""
        if not self.tiles or parity % 2 == 0:
            return tuple(ops)

        def number(op: Op) -> Op | None:
            if isinstance(op, NumberedGemm):
                return rebuild(op, number=self.numbers.get(op.number, op.number))
            if isinstance(op, Release):
                return rebuild(op, numbers=tuple(self.numbers.get(n, n) for n in op.numbers))
            return None

        return map_body(replace_buffers(tuple(ops), self.tiles), number)


def copies_of(tiles: Iterable[Buffer], kernel: Kernel) -> Copies:
    """A second tile for each of `tiles`, and numbers for the products into it."""
    twins = {t: dataclasses.replace(t, name=fresh_name(t.name)) for t in tiles}
    products = list(walk_ops(kernel, NumberedGemm))
    most = max((op.number for op in products), default=0)
    return Copies(twins, {op.number: op.number + most for op in products if op.c.buffer in twins})


@dataclass
class Section:
    """Code of one section: statements of the iteration itself (shift 0), late ones of the iteration
    before (1), or both. `parity` of its iteration; `head`: names of slots."""

    loop: For
    shifts: tuple[int, ...] = ()
    parity: int = 0
    head: list[Op] = field(default_factory=list)
    slots: dict[tuple[Buffer, Expr | int], Expr] = field(default_factory=dict)

    def slot(self, ring: Ring, ahead: Expr | int = 0, kind: str = "slot") -> Expr:
        """The slot of the iteration that comes so far ahead."""
        if ring.stages == 1:
            return const(0)
        key = ring.counter, ahead % ring.stages
        if key not in self.slots:
            var = fresh_var(f"{self.loop.var.name}_{kind}")
            self.head.append(Let(var, ring.slot(ahead)))
            self.slots[key] = var
        return self.slots[key]

    def behind(self, ring: Ring, count: int) -> Expr:
        """The slot of the iteration that came so far before."""
        return self.slot(ring, ring.stages - count, "done") if count else self.slot(ring)


Mark: TypeAlias = Callable[[Section], Iterable[Op]]


def always(ops: list[Op]) -> Mark:
    return lambda section: ops


class Sections:
    """`parts`: what each statement of `loop` has become. `rings`: those that it goes round."""

    def __init__(self, skew: Skew | None, loop: For, parts: list[list[Op]]) -> None:
        self.loop = loop
        self.parts = parts
        self.rings: list[Ring] = []
        self.skewed = skew is not None
        self.late = skew.late if skew else frozenset[int]()
        self.order = list(skew.order if skew else range(len(parts)))
        self._marks: dict[tuple[int, bool], list[Mark]] = {}
        self._ends: list[Mark] = []
        self.after: list[Op] = []  # after the loop, if it ran at all
        self.copies = Copies()
        self.settled = True  # no product into a copy runs where the loop begins again
        # names stand for their values: statements of two iterations use them
        self.values = let_values(loop.body) if skew else {}

    def shift(self, k: int) -> int:
        return int(k in self.late)

    def in_time(self, statements: Iterable[int]) -> list[int]:
        """In the order in which an iteration's own come."""
        return sorted(statements, key=lambda k: (self.shift(k), self.order.index(k)))

    def at(self, place: Place, mark: Mark) -> None:
        self._marks.setdefault(place[:2], []).append(mark)

    def before(self, k: int, mark: Mark) -> None:
        """`mark` first of all that comes before statement `k`."""
        self._marks.setdefault((k, True), []).insert(0, mark)

    def waited_for(self, ring: Ring, k: int) -> None:
        """Statement `k` is the first that uses what a slot of `ring` brings."""
        behind = self.shift(k)
        self.before(k, lambda section: [ring.wait(section.behind(ring, behind), behind)])

    def handed_back(
        self, ring: Ring, last: int, place: Place, free: list[Op], warps: int, again: bool
    ) -> None:
        """A slot of `ring`, used by statement `last` at last, is the producer's again at `place`,
        where `free` says what must be over. `again`: the last iteration's slots are needed too."""
        loop, behind = self.loop, self.shift(last) + place.lag
        missing = (0,) if behind else (1,)  # the section that has no such iteration

        def mark(section: Section) -> Iterable[Op]:
            if self.skewed and section.shifts == missing:
                return ()
            found = ring.release(section.behind(ring, behind), warps)
            if behind and not self.skewed:
                begun = loop.var > loop.start
                return *free, If(begun, tuple(found))
            return *self.copies.swapped(free, section.parity - behind), *found

        def end(section: Section) -> Iterable[Op]:
            """Where the place's own statement is missing."""
            over = section.shifts == (1,) and not again
            return () if over or self.shift(place.at) in section.shifts else mark(section)

        self.at(place, mark)
        self._ends.append(end)
        if place.lag > self.shift(place.at) and again:
            behind_all = Section(loop)
            back = ring.release(behind_all.behind(ring, behind), warps)
            latest = [rebuild(op, lag=0) if isinstance(op, Release) else op for op in free]
            self.after += [*latest, *behind_all.head, *back]

    # ── code ─────────────────────────────────────────────────────────────────────────────────

    def loops(self, finish: Callable[[list[Op]], Body], runs: bool) -> list[Op]:
        """All sections, each body `finish`ed. `runs`: the loop is known to have iterations."""
        loop, step, plain = self.loop, self.loop.step, plain_loop(self.loop)

        def guarded(body: list[Op]) -> list[Op]:
            if runs or not body:
                return body
            return [If(loop.start < loop.stop, tuple(body))]

        def code(value: Expr, *shifts: int, parity: int = 0) -> Body:
            return finish(self.code(Section(loop, shifts, parity), value))

        def again(value: Expr, *shifts: int, parity: int = 0) -> Body:
            return rename_unique(code(value, *shifts, parity=parity))

        if not self.skewed:
            return [rebuild(plain, body=code(loop.var, 0)), *guarded(self.after)]
        trips = (loop.stop - loop.start - 1) // step
        end = fresh_var(f"{loop.var.name}_last", dtype=loop.var.dtype)
        first, body = code(loop.start, 0), code(loop.var, 0, 1, parity=1)
        stop = loop.stop
        if not self.copies.tiles:
            left = code(end, 1)
            first, left = (rename_unique(each) for each in (first, left))
        else:
            body += again(loop.var + step, 0, 1)
            if self.settled:
                numbers = self.copies.numbers
                body += (Release((*numbers, *numbers.values())),)
            stop, step = stop - step, step * 2
            even = again(end, 1, parity=1)
            odd = again(end, 0, 1, parity=1) + again(end, 1)
            is_odd = compare("!=", trips % 2, 0)
            left = (If(is_odd, odd, even),)
            if isinstance(is_odd, Const):
                left = odd if is_odd.value else even
            first = rename_unique(first)
        rest = rebuild(plain, start=loop.start + loop.step, stop=stop, step=step, body=body)
        last = Let(end, loop.start + trips * loop.step)
        return guarded([*first, rest, last, *left, *self.after])

    def code(self, section: Section, value: Expr) -> list[Op]:
        """The section's statements. The loop's variable is `value`: in late ones beside others, the
        iteration's before."""
        body: list[Op] = []
        for k in self.order:
            if self.shift(k) in section.shifts:
                late = self.shift(k) and 0 in section.shifts
                with at(self.loop.body[k].loc):
                    for mark in self._marks.get((k, True), ()):
                        body += mark(section)
                    body += self.statement(k, section, value - self.loop.step if late else value)
                    for mark in self._marks.get((k, False), ()):
                        body += mark(section)
        for mark in self._ends:
            body += mark(section)
        if section.shifts != (1,):  # the iteration is the next one's
            counters = {ring.counter: ring for ring in self.rings}
            body += [ring.advance() for ring in counters.values()]
        return [*section.head, *body]

    def statement(self, k: int, section: Section, value: Expr) -> Body:
        found = tuple(self.parts[k])
        for ring in self.rings:
            if any(not ring.slots.keys().isdisjoint(mentioned(op)) for op in found):
                slot = section.behind(ring, self.shift(k))
                found = tuple(slotted(op, ring.slots, slot) for op in found)
        own = {self.loop.var: value}
        values = {name: substitute(e, own) for name, e in self.values.items()}
        if value is not self.loop.var or values:
            found = substitute_vars(found, {**values, **own})
        return self.copies.swapped(found, section.parity - self.shift(k))
