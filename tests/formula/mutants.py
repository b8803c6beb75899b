"""Streams with one thing wrong: every coefficient, term, result, start, monoid and order in turn.

Some mutants are right all the same; `EQUIVALENT` says which of them, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.formula.check.machine import Machine
from tilewright.formula.streams.stream import Center, Fold, Result, Shift, Stage, Stream, Sum, old
from tilewright.ir.arith import Bin, Call, Const, Expr, Var, const
from tilewright.ir.expr import substitute, transform, variables, walk

INF = float("inf")


@dataclass(frozen=True)
class Mutant:
    kind: str  # shift, redirect, term, result, center, start, monoid or order
    what: str
    stream: Stream


def mutants(stream: Stream) -> Iterator[Mutant]:
    """All of them, each once."""
    seen = {stream.stages}
    for kind, what, stages in _changed(stream):
        if stages not in seen:
            seen.add(stages)
            yield Mutant(kind, what, replace(stream, stages=stages))


def _changed(stream: Stream) -> Iterator[tuple[str, str, tuple[Stage, ...]]]:
    stages = stream.stages
    for at, stage in enumerate(stages):
        for kind, what, new in _stages(stage, stream):
            yield kind, f"{_name(stage)}: {what}", (*stages[:at], new, *stages[at + 1 :])
    for at, (a, b) in enumerate(pairwise(stages)):
        if _made(a) & _used(b):
            swapped = (*stages[:at], b, a, *stages[at + 2 :])
            yield "order", f"{_name(b)} before {_name(a)}", swapped


def _name(stage: Stage) -> str:
    return (stage.level if isinstance(stage, Result) else stage.var).name


def _made(stage: Stage) -> set[Var]:
    if isinstance(stage, Result):
        return {stage.level}
    return {stage.var, old(stage.var)}


def _used(stage: Stage) -> set[Var]:
    """What a stage needs of this step; the old sums that it shifts are not of it."""
    if isinstance(stage, Sum):
        shifts = (variables(shift.coefficient) for shift in stage.shifts)
        return variables(stage.term).union(*shifts)
    return variables(stage.term if isinstance(stage, Fold) else stage.value)


def _stages(stage: Stage, stream: Stream) -> Iterator[tuple[str, str, Stage]]:
    if isinstance(stage, Fold):
        for monoid in _OTHER[stage.monoid]:
            yield "monoid", f"{stage.monoid} → {monoid}", replace(stage, monoid=monoid)
        for start in (0.0, 1.0):
            if start != stage.start:
                yield "start", f"starts with {start}", replace(stage, start=start)
    elif isinstance(stage, Center):
        value = stage.value
        for what, new in (
            ("doubled", value * const(2.0, value.dtype)),
            ("negated", -value),
            ("gone", const(0.0, value.dtype)),
        ):
            yield "center", what, replace(stage, value=new)
        for start in (0.0, -INF, INF):
            if start != stage.start:
                yield "start", f"starts with {start}", replace(stage, start=start)
    elif isinstance(stage, Result):
        for what, value in _values(stage.value):
            yield "result", what, replace(stage, value=value)
    else:
        for what, term in _terms(stage.term, stream):
            yield "term", what, replace(stage, term=term)
        for at, shift in enumerate(stage.shifts):
            before, after = stage.shifts[:at], stage.shifts[at + 1 :]
            for kind, what, new in _shifts(shift, stream):
                what = f"shift of {shift.of.name} {what}"
                yield kind, what, replace(stage, shifts=(*before, *new, *after))


_OTHER = {
    "max": ("min", "sum"), "min": ("max", "sum"), "sum": ("prod", "max"), "prod": ("sum",),
    "count": ("max",), "argmax": ("argmin",), "argmin": ("argmax",),
}  # fmt: skip


def _shifts(shift: Shift, stream: Stream) -> Iterator[tuple[str, str, tuple[Shift, ...]]]:
    c = shift.coefficient
    one, two = const(1.0, c.dtype), const(2.0, c.dtype)
    yield "shift", "dropped", ()
    for what, value in (
        ("inverted", one / c if not isinstance(c, Const) else c),
        ("doubled", c * two),
        ("exponent halved", _exponents(c, lambda u: u / two)),
        ("set to 1", one),
        ("negated", -c),
    ):
        if value is not c:
            yield "shift", what, (replace(shift, coefficient=value),)
    for at, factor in enumerate(_factors(c)):
        if len(_factors(c)) > 1:
            yield "shift", f"without factor {at}", (replace(shift, coefficient=c / factor),)
    for other in stream.state:
        if other.var is not shift.of and not isinstance(other, Center):
            yield "redirect", f"takes {other.var.name}", (replace(shift, of=other.var),)


def _factors(expr: Expr) -> list[Expr]:
    if isinstance(expr, Bin) and expr.op == "*":
        return _factors(expr.a) + _factors(expr.b)
    return [expr]


def _exponents(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Call) and node.name == "exp":
            return Call("exp", (change(node.args[0]),), node.dtype)
        return None

    return transform(expr, rule)


def _terms(term: Expr, stream: Stream) -> Iterator[tuple[str, Expr]]:
    for stage in stream.stages:
        if isinstance(stage, Center) and stage.var in variables(term):
            zero = const(0.0, stage.var.dtype)
            yield f"without center {stage.var.name}", substitute(term, {stage.var: zero})
            yield f"old center {stage.var.name}", substitute(term, {stage.var: old(stage.var)})
    yield "negated", -term


_OPPOSITE = {"+": "-", "-": "+", "*": "/", "/": "*", "max": "min", "min": "max"}


def _values(value: Expr) -> Iterator[tuple[str, Expr]]:
    """A result with one of its operations wrong."""
    two = const(2, value.dtype)
    yield "doubled", value * two
    yield "negated", -value
    if value.dtype.is_float:
        yield "inverted", const(1.0, value.dtype) / value
    for node in walk(value):
        if isinstance(node, Bin):
            swapped = _OPPOSITE[node.op]
            for what, new in (
                (f"{node.op} → {swapped}", Bin(swapped, node.a, node.b)),
                (f"left of {node.op} alone", node.a),
                (f"right of {node.op} alone", node.b),
            ):
                yield what, _replaced(value, node, new)
        elif isinstance(node, Call) and node.name in ("exp", "log", "sqrt"):
            yield f"without {node.name}", _replaced(value, node, node.args[0])


def _replaced(value: Expr, node: Expr, new: Expr) -> Expr:
    return transform(value, lambda part: new if part is node else None)


# ---------------------------------------------------------------- mutants that are right

_MEAN = (
    "before the first element every sum is zero, and polynomials of any finite center are finite"
)
EQUIVALENT: dict[tuple[str, str], str] = {
    ("variance", "c: starts with 0.0"): _MEAN,
    ("weighted mean", "c: starts with 0.0"): _MEAN,
    ("covariance", "c: starts with 0.0"): _MEAN,
    ("covariance", "k: starts with 0.0"): _MEAN,
    ("softmax variance", "k: starts with 0.0"): _MEAN,
    ("focal", "n: sum → max"): "at most one element has the label",
    ("product", "top: starts with 0.0"): "absolute values are not below it",
}


# ---------------------------------------------------------------- machines that combine wrongly


class DropsOne(Machine):
    def combine(self, a, b):
        return a


class DropsOther(Machine):
    def combine(self, a, b):
        return b


class KeepsCenters(Machine):
    """Sums of both sides are added as they are."""

    def combine(self, a, b):
        right = super().combine(a, b)
        for stage in self.stream.state:
            if isinstance(stage, Sum):
                right[stage.var] = self.model.add(a[stage.var], b[stage.var])
        return right


class SwapsCenters(Machine):
    """Each side is moved from the other's centers."""

    def combine(self, a, b):
        centers = [s.var for s in self.stream.state if isinstance(s, Center)]
        left, right = dict(a), dict(b)
        for center in centers:
            left[center], right[center] = b[center], a[center]
        return super().combine(left, right)


class MovesOneSide(Machine):
    """Only the first side is moved to the new centers."""

    def combine(self, a, b):
        new = super().combine(a, b)
        kept = {s.var: new[s.var] for s in self.stream.state if isinstance(s, Center)}
        return super().combine(a, {**b, **kept})


class CountsTwice(Machine):
    def combine(self, a, b):
        return super().combine(super().combine(a, b), b)


class FoldsOneSide(Machine):
    """Maxima and other folds are those of the first side."""

    def combine(self, a, b):
        folds = {s.var: a[s.var] for s in self.stream.state if isinstance(s, Fold)}
        new = super().combine(a, b)
        return {**new, **folds}


COMBINES = (
    DropsOne, DropsOther, KeepsCenters, SwapsCenters, MovesOneSide, CountsTwice, FoldsOneSide
)  # fmt: skip
