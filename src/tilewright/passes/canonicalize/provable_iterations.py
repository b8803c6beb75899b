"""For which iterations of a loop a condition inside holds at every point, found in front of it.

A condition is a sum that must not be negative. With the loop variable's share aside, what varies
inside the loop is taken at its least, and the rest is known in front of it: a division gives the
first or the last iteration. What is found is sure, not sharp: there may be others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, reduce

from tilewright.ir.analysis.bounds import NEGATED, Ranges
from tilewright.ir.analysis.effects import written_in
from tilewright.ir.analysis.intervals import limits
from tilewright.ir.analysis.linear import Linear, TooLarge, build_sum, factors, product
from tilewright.ir.buffer import Space
from tilewright.ir.dtype import INT64, DType
from tilewright.ir.expr import (
    TRUE,
    Bin,
    Call,
    Cmp,
    Const,
    Expr,
    Load,
    Var,
    binary,
    cast,
    compare,
    const,
    logical_not,
    variables,
    walk,
)
from tilewright.ir.op import (
    Body,
    For,
    If,
    bodies,
    bound_within,
    written_buffers,
)
from tilewright.ir.simplify import simplify
from tilewright.passes.canonicalize.rules import Facts

WIDEST = 1 << 62  # sums beyond this are not divided
CONNECTIVES = {"and": "and", "or": "or", "&": "and", "|": "or"}  # of conditions


@dataclass(frozen=True)
class Span:
    """Iterations from every one of `lows` on, and before every one of `highs`, if all of `given`
    are so; none otherwise."""

    lows: tuple[Expr, ...] = ()
    highs: tuple[Expr, ...] = ()
    given: tuple[Expr, ...] = ()

    def __and__(self, other: Span) -> Span:
        pairs = (self.lows, other.lows), (self.highs, other.highs), (self.given, other.given)
        return Span(*(tuple(dict.fromkeys(a + b)) for a, b in pairs))


EVERYWHERE = Span()


def _outermost(op: str, bounds: tuple[Expr, ...]) -> Expr | None:
    return reduce(lambda a, b: binary(op, a, b), bounds) if bounds else None


def surely_written(body: Body) -> set[str]:
    """Scalars that have values behind `body`, whichever way control takes."""
    found: set[str] = set()
    for op in body:
        if isinstance(op, If):
            found |= surely_written(op.then) & surely_written(op.orelse)
        elif not bodies(op):
            scalars = [b for b in written_buffers(op) if b.space is Space.LOCAL and not b.shape]
            found |= {b.name for b in scalars}
    return found


class SureSpans:
    """For which iterations of `loop` conditions inside hold. `ranges` hold in front of it, and the
    scalars `written` have values there."""

    def __init__(
        self, loop: For, ranges: Ranges, facts: Facts, written: Collection[str] = ()
    ) -> None:
        self.loop = loop
        self.ranges = ranges
        self.facts = facts
        self.written = written
        self.inner = {loop.var, *(var for op in loop.body for var in bound_within(op))}

    @cached_property
    def changed(self) -> set[str]:
        return written_in(self.loop.body)

    def fixed(self, e: Expr) -> bool:
        """`e` is the same in all iterations, elements and threads, and can be had in advance."""
        for node in walk(e):
            match node:
                case Var() if node in self.inner:
                    return False
                case Load() if not self.lasting(node):
                    return False
                case Bin("//" | "%", _, d) if d.dtype.is_int:
                    # one that would not have run must not divide by zero
                    span = self.ranges.value(d, False)
                    if span.lo <= 0 <= span.hi:
                        return False
        return self.facts.uniform(e)

    def lasting(self, load: Load) -> bool:
        """What is loaded is the same throughout the loop, and may be loaded in vain."""
        buffer = load.buffer
        if buffer.name in self.facts.viewed:
            return False
        if buffer.space is Space.GLOBAL:
            return buffer.name not in self.facts.written
        # one that is not written yet may stand in a branch, or a loop, that does not run
        return buffer.name in self.written and buffer.name not in self.changed

    def holds(self, cond: Expr, want: bool, ranges: Ranges) -> Span | None:
        """Iterations in which `cond` surely is `want` at every point; None: nobody knows any.
        `ranges` hold where it is evaluated."""
        found: Span | None = None
        match cond:
            case Const(value):
                return EVERYWHERE if bool(value) is want else None
            case Call("not", (inner,)):
                return self.holds(inner, not want, ranges)
            case Bin("and" | "or" | "&" | "|", a, b):
                one, other = self.holds(a, want, ranges), self.holds(b, want, ranges)
                if (CONNECTIVES[cond.op] == "or") is want:
                    found = _either(one, other)
                elif one is not None and other is not None:
                    found = one & other
            case Cmp(op, a, b) if a.dtype.is_int:
                found = self.compared(op if want else NEGATED[op], a, b, ranges)
        if found is None and self.fixed(cond):
            return Span(given=(cond if want else logical_not(cond),))
        return found

    def compared(self, op: str, a: Expr, b: Expr, ranges: Ranges) -> Span | None:
        if op in ("==", "!="):
            return None
        gap = ranges.form(b, False) - ranges.form(a, False)
        if op in (">", ">="):
            gap = gap.scaled(-1)
        gap = gap.plus(-1) if op in ("<", ">") else gap
        fits = [self.fitting(side, ranges) for side in (a, b)]
        if fits == [EVERYWHERE, EVERYWHERE] and ranges.evaluate(gap, False).lo >= 0:
            return EVERYWHERE
        found = self.solved(gap, ranges) if None not in fits else None
        for span in fits:
            found = found & span if found is not None and span is not None else None
        return found

    def fitting(self, side: Expr, ranges: Ranges) -> Span | None:
        """Iterations in which `side` surely does not overflow: all by proof, or all or none by a
        question at run time."""
        if ranges.exact(side, False):
            return EVERYWHERE
        form, full, k = ranges.form(side, False), limits(side.dtype), self.loop.var
        known = {atom: c for atom, c in form.terms.items() if self.fixed(atom)}
        rest = {atom: c for atom, c in form.terms.items() if atom not in known}
        slope = rest.pop(k, 0)
        if max(side.dtype.bits, k.dtype.bits) > 32 or any(k in variables(atom) for atom in rest):
            return None
        value, span = self.wide(Linear(known)), ranges.evaluate(Linear(rest, form.const), False)
        least, most = full.lo - span.lo, full.hi - span.hi
        if value is None or abs(slope) > full.hi or not -WIDEST <= least <= most <= WIDEST:
            return None
        fits: Expr = TRUE
        ends = (cast(self.loop.start, INT64), cast(self.loop.stop, INT64) - 1) if slope else (0,)
        for end in ends:
            total = value + end * slope if slope else value
            above = compare(">=", total, const(least, INT64))
            below = compare("<=", total, const(most, INT64))
            fits = binary("and", fits, binary("and", above, below))
        return Span(given=(fits,))

    def solved(self, form: Linear, ranges: Ranges) -> Span | None:
        """Iterations in which `form` ≥ 0 at every point."""
        undivided = self.undivided(form, ranges)
        if undivided is None:
            return None
        slope, least, rest = 0, undivided.const, dict[Expr, int]()
        for atom, c in undivided.terms.items():
            if atom is self.loop.var:
                slope = c
            elif self.fixed(atom):
                rest[atom] = c
            elif self.loop.var in variables(atom):
                return None
            else:
                least += ranges.evaluate(Linear({atom: c}), False).lo
        known = Linear(rest, least)
        if slope == 0:
            if not rest:
                return EVERYWHERE if least >= 0 else None
            value = self.wide(known)
            return None if value is None else Span(given=(compare(">=", value, 0),))
        if slope > 0:  # k ≥ -known / slope
            edge = self.quotient(known.scaled(-1).plus(slope - 1), slope)
            return None if edge is None else Span(lows=(edge,))
        edge = self.quotient(known.plus(-slope), -slope)  # k < known / -slope + 1
        return None if edge is None else Span(highs=(edge,))

    def undivided(self, form: Linear, ranges: Ranges) -> Linear | None:
        """A sum that is ≥ 0 only where `form` is, without quotients that vary in the loop."""
        for _ in range(4):
            atom = next((a for a in form.terms if _is_quotient(a) and not self.fixed(a)), None)
            if atom is None:
                return form
            assert isinstance(atom, Bin) and isinstance(atom.b, Const)
            if not ranges.exact(atom.a, False):
                return None
            # x // c lies in (x - c + 1) / c … x / c, and c · form ≥ 1 - c says form ≥ 0
            c, times = int(atom.b.value), form.terms[atom]
            others = (form - Linear({atom: times})).scaled(c)
            form = others + ranges.form(atom.a, False).scaled(times)
            form = form.plus(c - 1 - max(times, 0) * (c - 1))
        return None

    def quotient(self, form: Linear, by: int) -> Expr | None:
        """⌊form / by⌋, `form` of what is fixed, as the loop counts; None where it may not fit."""
        kind = self.loop.var.dtype
        span = self.ranges.evaluate(form, False)
        parts = [factor for atom in form.terms for factor in factors(atom)]
        narrow = kind.min_value <= span.lo and span.hi <= kind.max_value
        if narrow and by <= kind.max_value and all(part.dtype == kind for part in parts):
            try:
                return self.simple(build_sum(form, kind) // by)
            except TooLarge:
                return None
        value = self.wide(form)
        if value is None or by > WIDEST:
            return None
        start, stop = (cast(e, INT64) for e in (self.loop.start, self.loop.stop))
        return cast(binary("min", stop, binary("max", start, value // by)), kind)

    def wide(self, form: Linear) -> Expr | None:
        """`form` of what is fixed in 64 bits; None where even these may not hold it."""
        span = self.ranges.evaluate(form, False)
        if max(-span.lo, span.hi) > WIDEST:
            return None
        wide = {_widened(atom, INT64): c for atom, c in form.terms.items()}
        try:
            return build_sum(Linear(wide, form.const), INT64)
        except TooLarge:
            return None

    def simple(self, e: Expr) -> Expr:
        return simplify(e, self.ranges, index=False)

    # ── what is known of spans in advance ────────────────────────────────────────────────────

    def trimmed(self, span: Span) -> Span:
        """`span` without bounds that exclude no iteration."""
        start, stop = self.loop.start, self.loop.stop
        return Span(
            tuple(x for x in span.lows if not self.proves(compare("<=", x, start))),
            tuple(x for x in span.highs if not self.proves(compare(">=", x, stop))),
            tuple(x for x in span.given if not self.proves(x)),
        )

    def proves(self, cond: Expr) -> bool:
        return self.ranges.prove(cond, False) is True

    def empty(self, span: Span) -> bool:
        """Surely no iteration is in `span`."""
        start, stop = self.loop.start, self.loop.stop
        return (
            any(self.reaches(x, stop) for x in span.lows)
            or any(self.reaches(start, x) for x in span.highs)
            or any(self.reaches(x, y) for x in span.lows for y in span.highs)
            or any(self.ranges.prove(x, False) is False for x in span.given)
        )

    def reaches(self, a: Expr, b: Expr) -> bool:
        """a ≥ b follows from intervals: a proof from all facts takes too long to be asked often."""
        if not (self.ranges.exact(a, False) and self.ranges.exact(b, False)):
            return False
        gap = self.ranges.form(a, False) - self.ranges.form(b, False)
        return self.ranges.evaluate(gap, False).lo >= 0


def _either(a: Span | None, b: Span | None) -> Span | None:
    """Iterations that are in one of two: both where they are open to the same side, else one."""
    if a is None or b is None:
        return a if b is None else b
    ends = [(_outermost("max", span.lows), _outermost("min", span.highs)) for span in (a, b)]
    match ends if not (a.given or b.given) else ():
        case [(None, x), (None, y)] if x is not None and y is not None:
            return Span(highs=(binary("max", x, y),))
        case [(x, None), (y, None)] if x is not None and y is not None:
            return Span(lows=(binary("min", x, y),))
    return min(a, b, key=lambda span: len(span.lows) + len(span.highs) + len(span.given))


def _is_quotient(atom: Expr) -> bool:
    return (
        isinstance(atom, Bin)
        and atom.op == "//"
        and isinstance(atom.b, Const)
        and atom.dtype.is_int
        and atom.b.value > 0
    )


def _widened(atom: Expr, kind: DType) -> Expr:
    return product(cast(factor, kind) for factor in factors(atom))
