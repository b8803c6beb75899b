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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.ir.analysis.effects import mentioned
from tilewright.ir.buffer import Buffer, element
from tilewright.ir.expr import Const, Expr, Load, Var, compare, const, substitute
from tilewright.ir.op import Arrive, Body, For, If, Kernel, Let, Op, Store, Wait, walk_ops
from tilewright.ir.rewrite import (
    fresh_name,
    map_body,
    rebuild,
    rename_unique,
    replace_buffers,
    substitute_vars,
)
from tilewright.passes.overlap.rings import Place, Ring, Skew, slotted
from tilewright.passes.sync.matrix_groups import NumberedGemm, Release


@dataclass
class Copies:
    """Tiles that every other iteration has instead of others, and the numbers of the products into
    them."""

    tiles: dict[Buffer, Buffer] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)

    def swapped(self, ops: Sequence[Op], turn: int) -> list[Op]:
        """`ops` of the iteration `turn`, by its own tiles."""
        if not self.tiles or turn % 2 == 0:
            return list(ops)

        def number(op: Op) -> Op | None:
            if isinstance(op, NumberedGemm):
                return rebuild(op, number=self.numbers.get(op.number, op.number))
            if isinstance(op, Release):
                return rebuild(op, numbers=tuple(self.numbers.get(n, n) for n in op.numbers))
            return None

        return list(map_body(replace_buffers(tuple(ops), self.tiles), number))

    @property
    def all_numbers(self) -> tuple[int, ...]:
        return (*self.numbers, *self.numbers.values())


def copies_of(tiles: Iterable[Buffer], kernel: Kernel, names: set[str]) -> Copies:
    """A second tile for each of `tiles`, and numbers for the products into it."""
    found = Copies({t: dataclasses.replace(t, name=fresh_name(t.name, names)) for t in tiles})
    products = list(walk_ops(kernel, NumberedGemm))
    most = max((op.number for op in products), default=0)
    copied = [op.number for op in products if op.c.buffer in found.tiles]
    found.numbers.update((number, number + most) for number in copied)
    return found


class Section:
    """Code of one section: the statements whose `shifts` it has, and the slots they use. `turn`:
    its iteration is an even or an odd one."""

    def __init__(self, work: Sections, name: str, shifts: tuple[int, ...], turn: int = 0) -> None:
        self.work = work
        self.name = name
        self.shifts = shifts
        self.turn = turn
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
        self.copies = Copies()
        self.settled = True  # no product into a copy runs where the loop begins again
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
            return [*self.copies.swapped(free, section.turn - behind), *found]

        self.at(place, mark)

        def end(section: Section) -> list[Op]:
            """Where the place's own statement is missing."""
            if self.shift(place.at) in section.shifts:
                return []
            if section.name == LAST and not again:
                return []
            return mark(section)

        self._ends.append(end)
        if place.lag > self.shift(place.at) and again:
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

        def rest(turn: int, value: Expr) -> Body:
            section = Section(self, REST, (0, 1), turn)
            return finish(self.code(section, value, value - loop.step))

        def last(turn: int) -> Body:
            return finish(self.code(Section(self, LAST, (1,), turn), end, end))

        def again(body: Body) -> Body:
            return rename_unique(body, self.names)

        first = finish(self.code(Section(self, FIRST, (0,)), loop.start))
        body = rest(1, loop.var)
        stop, step = loop.stop, loop.step
        if not self.copies.tiles:
            left = last(0)
            first, left = again(first), again(left)
        else:
            body = (*body, *again(rest(0, loop.var + loop.step)))
            if self.settled:
                body = (*body, Release(self.copies.all_numbers, loc=loop.loc))
            stop, step = loop.stop - loop.step, loop.step * 2
            even, odd = again(last(1)), (*again(rest(1, end)), *again(last(0)))
            is_odd = compare("!=", turns % 2, 0)
            if isinstance(is_odd, Const):
                left = odd if is_odd.value else even
            else:
                left = (If(is_odd, odd, even, loc=loop.loc),)
            first = again(first)
        sections = (
            *first,
            rebuild(plain, start=loop.start + loop.step, stop=stop, step=step, body=body),
            Let(end, loop.start + turns * loop.step, loc=loop.loc),
            *left,
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
        return tuple(self.copies.swapped(found, section.turn - self.shift(k)))
