"""Who reads an element: the indices of a read, solved for the axes that they are made of.

A read `x[f(i, r), …]` is of the element `y` where f(i, r) = y. Plain axes, sums with factors
(slices, flips, strides, windows), `//` and `%` (reshapes, repeats, rolls) are solved, so that only
those who read `y` are asked; what is left, such as indices that are data, becomes a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.ir.analysis.bounds import Ranges, bounds, linear, prove
from tilewright.ir.core import *
from tilewright.ir.formula import Axis
from tilewright.ir.simplify import simplify


class Condition(NamedTuple):
    """`axis`: it only says that this axis lies in its range."""

    holds: Expr
    axis: Var | None = None


@dataclass(frozen=True)
class Readers:
    """Element `at` is read where axes have these `values`, by every index of those that are
    `left`, if the conditions hold."""

    values: dict[Var, Expr]
    left: tuple[Axis, ...]
    conditions: tuple[Condition, ...]


def readers(
    indices: tuple[Expr, ...],
    at: tuple[Axis, ...],
    axes: tuple[Axis, ...],
    fresh: Callable[[str], Var],
) -> Readers:
    """Who among `axes` reads the element `at` by `indices`.

    >>> i, r, y = Axis(Var("i"), 8), Axis(Var("r"), 3), Axis(Var("y"), 8)
    >>> found = readers((i.var + r.var - 1,), (y,), (i, r), Var)
    >>> found.values, found.left, [c.holds for c in found.conditions]
    ({i: y - r + 1}, (Axis(var=r, extent=3),), [r < y + 2, y < r + 7])
    """
    system = _System(axes, at, fresh)
    system.equations = [_Equation(i, a.var) for i, a in zip(indices, at, strict=True)]
    return system.solved()


class _Equation(NamedTuple):
    left: Expr
    right: Expr


class _Term(NamedTuple):
    """factor · step of something that is `atom - low` or `high - atom`, from 0 to `span`."""

    atom: Expr
    factor: int  # not negative
    span: int
    back: Callable[[Expr], Expr]  # the atom, given its step


@dataclass
class _System:
    """Equations, and the axes that nothing is known of yet."""

    axes: tuple[Axis, ...]
    at: tuple[Axis, ...]
    fresh: Callable[[str], Var]
    equations: list[_Equation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open = {axis.var: axis for axis in self.axes}
        self.found: list[tuple[Var, Expr]] = []
        self.conditions: list[Condition] = []
        self.ranges = Ranges({a.var: (0, a.extent - 1) for a in (*self.axes, *self.at)})

    def solved(self) -> Readers:
        rules = (self._plain, self._pair, self._digits, self._unfolded, self._window)
        while any(rule() for rule in rules):
            known = dict(self.found[-1:])
            self.equations = [
                _Equation(self._simple(substitute(e.left, known)), e.right) for e in self.equations
            ]
        rest = [Condition(compare("==", *e)) for e in self.equations]
        values: dict[Var, Expr] = {}
        for var, value in reversed(self.found):
            values[var] = self._simple(substitute(value, values))
        checked = []
        for holds, axis in dict.fromkeys([*self.conditions, *rest]):
            holds = self._simple(substitute(holds, values))
            if prove(holds, self.ranges) is not True:
                checked.append(Condition(holds, axis))
        return Readers(values, tuple(self.open.values()), tuple(checked))

    def _simple(self, expr: Expr) -> Expr:
        return simplify(expr, self.ranges)

    def _is_open(self, expr: Expr) -> bool:
        return not variables(expr).isdisjoint(self.open)

    def _solve(self, var: Var, value: Expr) -> None:
        extent = self.open.pop(var).extent
        self.found.append((var, value))
        for holds in (compare(">=", value, 0), compare("<", value, extent)):
            self.conditions.append(Condition(holds, var))

    def _new(self, word: str, extent: int) -> Expr:
        var = self.fresh(word)
        self.open[var] = Axis(var, extent)
        self.ranges = Ranges(
            {
                **{a.var: (0, a.extent - 1) for a in (*self.axes, *self.at)},
                **{a.var: (0, a.extent - 1) for a in self.open.values()},
            }
        )
        return var

    # rules: each takes one step, and says whether it could

    def _plain(self) -> bool:
        """i = y"""
        for e in self.equations:
            if isinstance(e.left, Var) and e.left in self.open:
                self.equations.remove(e)
                self._solve(e.left, e.right)
                return True
        return False

    def _pair(self) -> bool:
        """f // (k·m) = y and f // k % m = z: f // k = y · m + z"""
        parts = [(e, *_divided(e.left)) for e in self.equations]
        for low, inner, k, m in parts:
            for high, outer, other, rest in parts:
                if m and inner is outer and other == k * m and self._is_open(inner):
                    self.conditions.append(Condition(compare("<", low.right, m)))
                    joined = inner // k if k > 1 else inner
                    if rest:
                        joined = joined % (m * rest)
                    self.equations = [e for e in self.equations if e not in (low, high)]
                    self.equations.append(_Equation(joined, high.right * m + low.right))
                    return True
        return False

    def _digits(self) -> bool:
        """i · 8 + j with j < 8: i = y // 8, j = y % 8"""
        for e in self.equations:
            terms, constant = self._terms(e.left)
            if not terms or (len(terms) == 1 and terms[0].atom is e.left):
                continue
            sums = [sum(t.factor * t.span for t in terms[n:]) for n in range(1, len(terms) + 1)]
            if any(rest >= t.factor for t, rest in zip(terms, sums, strict=True)):
                continue
            if not isinstance(self._simple(constant), Const) and self._is_open(constant):
                continue
            self.equations.remove(e)
            left = e.right - constant
            for t in terms:
                digit = left // t.factor if t.factor > 1 else left
                left = left % t.factor if t.factor > 1 else const(0)
                self.equations.append(_Equation(t.atom, self._simple(t.back(digit))))
                if not isinstance(t.atom, Var):
                    inside = binary("and", digit >= 0, digit <= t.span)
                    self.conditions.append(Condition(inside))
            if terms[-1].factor > 1:
                self.conditions.append(Condition(compare("==", left, 0)))
            return True
        return False

    def _unfolded(self) -> bool:
        """f // 4 = y: f = y · 4 + t; f % 4 = y: f = t · 4 + y"""
        for e in self.equations:
            match e.left:
                case Bin(op="//", a=inner, b=Const(value=k)) if k > 0 and self._is_open(inner):
                    new = _Equation(inner, e.right * k + self._new("t", int(k)))
                case Bin(op="%", a=inner, b=Const(value=k)) if k > 0 and self._is_open(inner):
                    low, high = bounds(inner, self.ranges)[:2]
                    if high - low >= 1 << 31:
                        continue
                    first, last = low // int(k), high // int(k)
                    turn = self._new("t", last - first + 1) + first
                    self.conditions.append(Condition(compare("<", e.right, int(k))))
                    new = _Equation(inner, turn * k + e.right)
                case _:
                    continue
            self.equations[self.equations.index(e)] = new
            return True
        return False

    def _window(self) -> bool:
        """i · 2 + r = y: i = (y - r) / 2, where it divides; the longest axis is solved."""
        for e in self.equations:
            form = linear(e.left, self.ranges)
            if form is None:
                continue
            known = [a for a in form.terms if isinstance(a, Var) and a in self.open]
            alone = [v for v in known if sum(v in variables(a) for a in form.terms) == 1]
            if not alone:
                continue
            var = max(alone, key=lambda v: self.open[v].extent)
            factor = form.terms[var]
            rest = self._simple(e.left - var * factor)
            distance = (e.right - rest) if factor > 0 else (rest - e.right)
            self.equations.remove(e)
            size = abs(factor)
            if size > 1:
                self.conditions.append(Condition(compare("==", distance % size, 0)))
            self._solve(var, distance // size if size > 1 else distance)
            return True
        return False

    def _terms(self, expr: Expr) -> tuple[list[_Term], Expr]:
        """The open terms of a sum, largest factor first, each counted up from zero; the rest."""
        form = linear(expr, self.ranges)
        if form is None:
            return [], expr
        rest: Expr = const(form.const)
        terms = []
        for atom, factor in form.terms.items():
            if not self._is_open(atom):
                rest = rest + atom * factor
                continue
            low, high = bounds(atom, self.ranges)[:2]
            if high - low >= 1 << 31:
                return [], expr
            rest = rest + (low if factor > 0 else high) * factor
            terms.append(_Term(atom, abs(factor), high - low, _counted(low, high, factor)))
        return sorted(terms, key=lambda t: -t.factor), rest


def _counted(low: int, high: int, factor: int) -> Callable[[Expr], Expr]:
    return (lambda step: step + low) if factor > 0 else (lambda step: high - step)


def _divided(expr: Expr) -> tuple[Expr, int, int]:
    """`f`, k and m of f // k % m; m is 0 where nothing is taken from."""
    m = k = 0
    match expr:
        case Bin(op="%", a=inner, b=Const(value=value)) if value > 0:
            expr, m = inner, int(value)
    match expr:
        case Bin(op="//", a=inner, b=Const(value=value)) if value > 0:
            expr, k = inner, int(value)
    return expr, max(k, 1), m
