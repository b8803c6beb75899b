"""A loop whose slots are waited for and handed back, and which may run statements late.

Without late statements it is one loop. With them (`skew`) it has three sections: what the first
iteration begins with, the loop over the rest, in which the late statements belong to the iteration
before, and what is left of the last. Whatever belongs to a statement (the wait for a slot's bytes,
the release of a slot) is said once and appears in every section that has the statement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tilewright.ir.buffer import Buffer, element
from tilewright.ir.expr import Expr, Load, Var, compare, const, substitute
from tilewright.ir.op import Arrive, Body, For, If, Let, Op, Store, Wait
from tilewright.ir.rewrite import fresh_name, rebuild, rename_unique, substitute_vars
from tilewright.passes.matrix_groups import Release
from tilewright.passes.rings import Place, Ring, mentioned, slotted
from tilewright.passes.skew import Skew


class Section:
    """Code of one section: the statements whose `shifts` it has, and the slots they use."""

    def __init__(self, work: Sections, name: str, shifts: tuple[int, ...]) -> None:
        self.work = work
        self.name = name
        self.shifts = shifts
        self.head: list[Op] = []
        self._slots: dict[tuple[Buffer, int], Expr] = {}

    def slot(self, ring: Ring, behind: int) -> Expr:
        """The slot that the iteration `behind` this one uses."""
        if ring.stages == 1:
            return const(0)
        key = ring.counter, behind % ring.stages
        if key not in self._slots:
            loop = self.work.loop
            kind = "slot" if not behind else "done"
            var = Var(fresh_name(f"{loop.var.name}_{kind}", self.work.names))
            value = ring.slot(ring.stages - behind) if behind else ring.slot()
            self.head.append(Let(var, value, loc=loop.loc))
            self._slots[key] = var
        return self._slots[key]


Mark: TypeAlias = Callable[[Section], list[Op]]


def always(ops: list[Op]) -> Mark:
    return lambda section: ops


WHOLE, FIRST, REST, LAST = "whole", "first", "rest", "last"


class Sections:
    """`parts`: what each statement of `loop` has become. `rings`: those that it goes round."""

    def __init__(
        self, skew: Skew | None, loop: For, parts: list[list[Op]], names: set[str]
    ) -> None:
        self.loop = loop
        self.parts = parts
        self.names = names
        self.rings: list[Ring] = []
        self.skewed = skew is not None
        self.late = skew.late if skew else frozenset[int]()
        everything = range(len(parts))
        self.order = list(skew.order) if skew else list(everything)
        self._before: dict[int, list[Mark]] = {}
        self._behind: dict[int, list[Mark]] = {}
        self._ends: list[Mark] = []
        self.after: list[Op] = []  # behind the loop, if it ran at all
        self.values: dict[Var, Expr] = {}
        if skew:  # names stand for their values: statements of two iterations use them
            for op in loop.body:
                if isinstance(op, Let):
                    self.values[op.var] = substitute(op.value, self.values)

    def shift(self, k: int) -> int:
        return int(k in self.late)

    def in_time(self, statements: Iterable[int]) -> list[int]:
        """In the order in which an iteration's own come."""
        return sorted(statements, key=lambda k: (self.shift(k), self.order.index(k)))

    def before(self, k: int, mark: Mark, *, early: bool = False) -> None:
        marks = self._before.setdefault(k, [])
        marks.insert(0, mark) if early else marks.append(mark)

    def at(self, place: Place, mark: Mark) -> None:
        (self._before if place.ahead else self._behind).setdefault(place.at, []).append(mark)

    def waited_for(self, ring: Ring, k: int) -> None:
        """Statement `k` is the first that uses what a slot of `ring` brings."""

        def mark(section: Section) -> list[Op]:
            assert ring.full is not None
            behind = self.shift(k)
            full = element(ring.full, section.slot(ring, behind))
            return [Wait(full, ring.phase(behind), loc=self.loop.body[k].loc)]

        self.before(k, mark, early=True)

    def handed_back(
        self, ring: Ring, last: int, place: Place, free: list[Op], warps: int, again: bool
    ) -> None:
        """A slot of `ring`, used by statement `last` at last, is the producer's again at `place`,
        where `free` says what must be over. `again`: the last iteration's slots are needed too."""
        loop, behind = self.loop, self.shift(last) + place.lag

        def arrive(slot: Expr) -> list[Op]:
            assert ring.free is not None
            free, count = element(ring.free, slot), const(warps)
            places = [free]
            if ring.peers > 1:  # whoever fills the slot asks all who use it
                places = [dataclasses.replace(free, cta=const(p)) for p in range(ring.peers)]
            return [Arrive(place, count=count, by="warps", loc=loop.loc) for place in places]

        def mark(section: Section) -> list[Op]:
            if section.name == (LAST if not behind else FIRST):
                return []
            found = arrive(section.slot(ring, behind))
            if section.name == WHOLE and behind:
                guarded = If(compare(">", loop.var, loop.start), tuple(found), loc=loop.loc)
                return [*free, guarded]
            return [*free, *found]

        self.at(place, mark)

        def end(section: Section) -> list[Op]:
            """Where the place's own statement is missing."""
            if self.shift(place.at) in section.shifts:
                return []
            if section.name == LAST and not again:
                return []
            return mark(section)

        self._ends.append(end)
        if place.lag and again:
            behind_all = Section(self, LAST, ())
            back = arrive(behind_all.slot(ring, behind))
            latest = [rebuild(op, lag=0) if isinstance(op, Release) else op for op in free]
            self.after += [*latest, *behind_all.head, *back]

    # ── code ─────────────────────────────────────────────────────────────────────────────────

    def loops(self, finish: Callable[[list[Op]], Body], runs: bool) -> list[Op]:
        """All sections, each body `finish`ed. `runs`: the loop is known to have iterations."""
        loop = self.loop
        kind = "persistent" if loop.kind == "persistent" else "serial"
        plain = rebuild(loop, kind=kind, stages=0, order=None, stage=None)

        def guarded(body: Iterable[Op]) -> list[Op]:
            if runs:
                return list(body)
            return [If(compare("<", loop.start, loop.stop), tuple(body), loc=loop.loc)]

        if not self.skewed:
            body = finish(self.code(Section(self, WHOLE, (0,)), loop.var))
            return [rebuild(plain, body=body), *(guarded(self.after) if self.after else ())]
        turns = (loop.stop - loop.start - 1) // loop.step
        end = Var(fresh_name(f"{loop.var.name}_last", self.names), loop.var.dtype)
        first = finish(self.code(Section(self, FIRST, (0,)), loop.start))
        rest = finish(self.code(Section(self, REST, (0, 1)), loop.var, loop.var - loop.step))
        last = finish(self.code(Section(self, LAST, (1,)), end, end))
        sections = (
            *rename_unique(first, self.names),
            rebuild(plain, start=loop.start + loop.step, body=rest),
            Let(end, loop.start + turns * loop.step, loc=loop.loc),
            *rename_unique(last, self.names),
            *self.after,
        )
        return guarded(sections)

    def code(self, section: Section, value: Expr, late: Expr | None = None) -> list[Op]:
        """The section's statements. The loop's variable is `value`, and `late` in late ones."""
        body: list[Op] = []
        for k in self.order:
            if self.shift(k) not in section.shifts:
                continue
            for mark in self._before.get(k, ()):
                body += mark(section)
            body += self.statement(
                k, section, late if late is not None and k in self.late else value
            )
            for mark in self._behind.get(k, ()):
                body += mark(section)
        for mark in self._ends:
            body += mark(section)
        tail: list[Op] = []
        if section.name != LAST:
            for counter in dict.fromkeys(ring.counter for ring in self.rings):
                turned = Load(counter, ()) + 1
                tail.append(Store(counter, (), turned, loc=self.loop.loc))
        return [*section.head, *body, *tail]

    def statement(self, k: int, section: Section, value: Expr) -> Body:
        found = tuple(self.parts[k])
        for ring in self.rings:
            if any(not ring.slots.keys().isdisjoint(mentioned(op)) for op in found):
                slot = section.slot(ring, self.shift(k))
                found = tuple(slotted(op, ring.slots, slot) for op in found)
        own = {self.loop.var: value}
        values = {name: substitute(e, own) for name, e in self.values.items()}
        if value is not self.loop.var or values:
            found = substitute_vars(found, {**values, **own})
        return found
