"""States of disjoint parts of an axis, combined: folds by their monoid, sums by moving each part to
the center of all. Written over the parts, that is a formula like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from tilewright.formula.streams.stream import Center, Fold, Result, Stream, Sum, old, value_of
from tilewright.ir.core import *
from tilewright.ir.formula import Monoid, together

NOWHERE = (1 << 31) - 1  # a place after all others
Folded: TypeAlias = Callable[[Var, str, Expr, "Monoid | None"], Expr]


def combined(
    stream: Stream, part: Mapping[Var, Expr], fold: Folded, known: Mapping[Var, Expr] | None = None
) -> dict[Var, Expr]:
    """The levels of all parts, where `part` says what the variables of the state are in one. `fold`
    writes the fold of an expression along the parts, for a variable; of those in `known`, it is
    known."""
    whole = dict(known or {})
    centers: dict[Var, Expr] = {}
    results: dict[Var, Expr] = {}

    def folded(var: Var, monoid: str, body: Expr, by: Monoid | None = None) -> None:
        if var not in whole:  # the value of an argmax may be
            whole[var] = fold(var, monoid, body, by)

    for stage in stream.stages:
        match stage:
            case Fold(var=var, by=Monoid() as by, term=term):
                beside = [s.var for s in stream.of(Fold)
                          if s.term is term and s.by
                          and replace(s.by, part=by.part) == by]  # fmt: skip
                folded(var, "by", together([part[v] for v in beside]), by)
            case Fold(var=var, monoid="argmax" | "argmin" as monoid):
                word = monoid.removeprefix("arg")
                best = value_of(stage)
                if best not in part:
                    best = next(s.var for s in stream.of(Fold)
                                if s.monoid == word and s.term is stage.term)  # fmt: skip
                folded(best, word, part[best])
                at = compare("==", part[best], whole[best])
                if best.dtype.is_float:
                    both = (Call("isnan", (v[best],), BOOL) for v in (part, whole))
                    at = at | logical_and(*both)
                folded(var, "min", select(at, part[var], const(NOWHERE, INT32)))
            case Fold(var=var, monoid=monoid):
                folded(var, monoid, part[var])
            case Center(var=var, value=value):
                value = substitute(value, dict(results))
                centers |= {var: substitute(value, whole), old(var): substitute(value, dict(part))}
            case Sum(var=var, shifts=shifts):
                moved = [_scaled(substitute(s.coefficient, centers), part[s.of]) for s in shifts]
                folded(var, "sum", sum(moved[1:], moved[0]))
            case Result(level=level, value=value):
                results[level] = substitute(value, dict(results))
    return {level: substitute(value, whole) for level, value in results.items()}


def _scaled(coefficient: Expr, value: Expr) -> Expr:
    is_one = isinstance(coefficient, Const) and coefficient.value == 1
    return value if is_one else coefficient * value
