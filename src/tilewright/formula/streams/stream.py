"""Streams: reductions that use one another's results, in one pass over their axis.

A formula gives `Level`s: reductions over one axis, each of which may use the results of those
before it. A `Stream` computes them all in one loop over blocks of the axis. It keeps a state, one
number for each of its `Fold`s, `Center`s and `Sum`s, and a step brings them up to date in order:

    Fold    new = monoid(old, the block's terms)                  terms know nothing that runs
    Center  new = value                                           of results that are known so far
    Sum     new = Σ coefficient(old centers, new centers) · old sums + Σ the block's terms
    Result  a level's value, of what is known so far              not state

Two states of disjoint parts combine likewise: folds by their monoid, centers from the results,
and sums by moving both sides to the new centers. Online softmax is a stream of one fold (the
maximum), one center (that maximum) and a sum for each later reduction:

    m = max x,  l = Σ exp(x - m),  o = Σ exp(x - m) / l · v

    Fold("top", "max", x)      Center("c", m)      Sum("s0", exp(x - c), shifted by exp(c.old - c))

All of it is expressions over variables. Of a level's body these are the elements that the axis
runs over (`elements`, the index along the axis among them), earlier levels, and anything else,
which stays the same along the axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tilewright.ir.arith import Expr, Var
from tilewright.ir.expr import variables
from tilewright.ir.formula import Monoid

# what folds know by name; `count` counts elements, `argmax` and `argmin` keep a value and its index
MONOIDS = ("sum", "prod", "max", "min", "argmax", "argmin", "count")


@dataclass(frozen=True)
class Level:
    """`name` = the reduction of `body` by `monoid` along the axis."""

    name: Var
    monoid: str
    body: Expr


@dataclass(frozen=True)
class Fold:
    """State that is folded from terms which know nothing that runs. It starts with `start`.

    Of argmax and argmin, `var` is the place, the value of the stream's index there, an int32 that
    starts with 0; the state has `value_of(fold)` too, the term there, which starts with `start`.
    Of two places with equal values the smaller one is kept.

    Of the user's monoid, `by`, there is a fold for each element of its tuples, all of one term."""

    var: Var
    monoid: str
    term: Expr
    start: float
    by: Monoid | None = None


@dataclass(frozen=True)
class Center:
    """What sums subtract from their elements, so that they stay small: `value` of folds and of
    results so far, `start` before the first block and wherever `value` is not finite."""

    var: Var
    value: Expr
    start: float


@dataclass(frozen=True)
class Shift:
    """How much of the old `of`, a sum or a fold by sum or count, goes into the new sum:
    `coefficient` is over `old(c)` and `c` of centers."""

    of: Var
    coefficient: Expr


@dataclass(frozen=True)
class Sum:
    """State that starts with zero. `term` is over elements and new centers; a term with a factor
    exp(…) that is zero is zero, whatever its other factors are."""

    var: Var
    term: Expr
    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Result:
    """A level's value of folds, sums and results before it."""

    level: Var
    value: Expr


Stage: TypeAlias = "Fold | Center | Sum | Result"
S = TypeVar("S", "Fold", "Center", "Sum", "Result")


@dataclass(frozen=True)
class Stream:
    """`stages` in the order in which a step goes through them."""

    elements: frozenset[Var]
    index: Var
    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()  # which rules were used, for people

    @property
    def state(self) -> tuple[Fold | Center | Sum, ...]:
        return tuple(s for s in self.stages if not isinstance(s, Result))

    def of(self, kind: type[S]) -> list[S]:
        """The stages of one kind."""
        return [s for s in self.stages if isinstance(s, kind)]


def old(var: Var) -> Var:
    """What `var`, a center, was before the step.

    >>> old(Var("c")).name
    'c.old'
    """
    return Var(f"{var.name}.old", var.dtype)


def value_of(fold: Fold) -> Var:
    """The greatest or smallest term, of which a fold by argmax or argmin has the place."""
    return Var(f"{fold.var.name}.value", fold.term.dtype)


def made(stage: Stage) -> set[Var]:
    """What a stage gives a value."""
    match stage:
        case Result(level):
            return {level}
        case Center(var):
            return {var, old(var)}
        case Fold(var, "argmax" | "argmin"):
            return {var, value_of(stage)}
    return {stage.var}


def soonest(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Sums that centers move, each before stages that it does not need and that have other centers:
    what it is a sum of is then used up before there is more of its kind.

    >>> a, b, x, y = map(Var, "abxy")
    >>> sums = [Sum(Var(n), x - c, (Shift(Var(n), old(c) - c),)) for n, c in (("s", a), ("t", b))]
    >>> found = soonest([Center(a, x, 0), Center(b, y, 0), *sums])
    >>> [stage.var.name for stage in found]
    ['a', 's', 'b', 't']
    """
    found: list[Stage] = []
    centers: set[Var] = set()
    for stage in stages:
        at = len(found)
        if isinstance(stage, Center):
            centers |= made(stage)
        if isinstance(stage, Sum) and (own := _needed(stage) & centers):
            alone = all(shift.of is stage.var for shift in stage.shifts)
            while alone and at and _may_pass(stage, found[at - 1], own, centers):
                at -= 1
        found.insert(at, stage)
    return tuple(found)


def _needed(stage: Stage) -> set[Var]:
    match stage:
        case Sum(term=term, shifts=shifts):
            parts = (variables(s.coefficient) | {s.of} for s in shifts)
            return variables(term).union(*parts)
        case Fold(term=value) | Center(value=value) | Result(value=value):
            return variables(value)


def _may_pass(stage: Sum, other: Stage, own: set[Var], centers: set[Var]) -> bool:
    """Whether a sum of its `own` centers may stand before `other`, which has others if it has."""
    needed = _needed(other)
    same = isinstance(other, Sum) and needed & centers in (set(), own)
    return not (same or stage.var in needed or made(other) & _needed(stage))
