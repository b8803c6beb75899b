"""Normal forms as expressions.

Written *plainly*, a form is what its atoms are made of: reading it again gives the same form, if
there is no indicator in it, and atoms have none inside.
Written *readably*, for code, it is short: common factors are taken out, opposite indicators become
one select, logarithms of constants numbers. Both have one exp for each monomial, and select by
indicators, which they never multiply by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tilewright.formula.streams.form import *
from tilewright.ir.analysis.linear import order_key
from tilewright.ir.arith import Call, Const, Expr, cast, const, select
from tilewright.ir.arith import power as to_power
from tilewright.ir.dtype import DType
from tilewright.ir.expr import logical_and, transform

HALF = Fraction(1, 2)


def log_of(value: int, dtype: DType) -> Expr:
    """log(value), not evaluated."""
    return Call("log", (const(value, dtype),), dtype)


def quotient(value: Fraction, dtype: DType) -> Expr:
    """A rational number: a constant, or a quotient of two where `dtype` cannot hold it."""
    rounded = const(float(value), dtype)
    if _exactly(rounded, value):
        return rounded
    above, below = (const(part, dtype) for part in (value.numerator, value.denominator))
    if _exactly(above, Fraction(value.numerator)) and _exactly(below, Fraction(value.denominator)):
        return above / below
    return rounded


def _exactly(constant: Const, value: Fraction) -> bool:
    return math.isfinite(constant.value) and Fraction(constant.value) == value


@dataclass(frozen=True)
class Writer:
    """Writes forms in `dtype`."""

    dtype: DType
    readable: bool = False

    def write(self, form: Form) -> Expr:
        if not form:
            return const(0, self.dtype)
        if self.readable:
            return transform(self._short(form), _fold_logarithm)
        return self._sum(form)

    def _short(self, form: Form) -> Expr:
        if len(form) == 1:
            ((mono, count),) = form.items()
            return self._term(mono, count)
        for condition in indicators(form):
            a, b = given(form, condition, True), given(form, condition, False)
            if len(a) + len(b) == len(form):  # nothing holds on both sides
                return select(condition, self.write(a), self.write(b))
        common = content(form)
        if common:
            return self._term(common, WHOLE, self._sum(divided(form, common)))
        return self._sum(form)

    def _sum(self, form: Form) -> Expr:
        """Terms in one order, what is added before what is subtracted."""
        order = sorted(
            form.items(), key=lambda term: (term[1] < 0, [order_key(base) for base, _ in term[0]])
        )
        if order[0][0] == ONE and len(order) > 1 and order[1][1] > 0:
            order[0], order[1] = order[1], order[0]  # x + 1
        total: Expr | None = None
        for mono, count in order:
            if total is None:
                total = self._term(mono, count)
            else:
                term = self._term(mono, abs(count))
                total = total + term if count > 0 else total - term
        assert total is not None
        return total

    def _term(self, mono: Mono, count: Fraction, factor: Expr | None = None) -> Expr:
        """count · mono · factor."""
        conditions = [base for base, _ in mono if is_indicator(base)]
        if conditions:
            condition = conditions[0]
            for other in conditions[1:]:
                condition = logical_and(condition, other)
            rest = tuple(power for power in mono if not is_indicator(power[0]))
            return select(condition, self._term(rest, count, factor), const(0, self.dtype))
        above, below = self._factors(mono)
        above += [factor] if factor is not None else []
        size = abs(count)
        if size != 1 or not above:
            scale = quotient(size, self.dtype)
            if isinstance(scale, Const):
                above.insert(0, scale)
            else:
                if size.numerator != 1 or not above:
                    above.insert(0, const(size.numerator, self.dtype))
                below.append(const(size.denominator, self.dtype))
        if count < 0:
            above[0] = -above[0]
        value = above[0]
        for other in above[1:]:
            value = value * other
        if self.readable and below:
            divisor = below[0]
            for other in below[1:]:
                divisor = divisor * other
            return value / divisor
        for other in below:  # one by one: their product would be multiplied out when it is read
            value = value / other
        return value

    def _factors(self, mono: Mono) -> tuple[list[Expr], list[Expr]]:
        """What is multiplied, the one exp first, and what is divided by."""
        inside = exponent(mono)
        above = [self._exp(inside)] if inside else []
        below: list[Expr] = []
        for base, power in without_exp(mono):
            if power < 0 and power.denominator == 1:
                below.append(self._power(base, -power))
            else:
                above.append(self._power(base, power))
        return above, below

    def _exp(self, inside: Form) -> Expr:
        """exp(inside), or exp2 where that is what a person would write."""
        if self.readable:
            two = ((log_of(2, self.dtype), WHOLE),)
            if two[0] in content(inside):
                return Call("exp2", (self._short(divided(inside, two)),), self.dtype)
            return Call("exp", (self._short(inside),), self.dtype)
        return Call("exp", (self._sum(inside),), self.dtype)

    def _power(self, base: Expr, exponent: Fraction) -> Expr:
        value = base if isinstance(base, Const) else cast(base, self.dtype)
        if exponent.denominator == 1:
            return to_power(value, int(exponent)) if exponent != 1 else value
        if abs(exponent) == HALF:
            return Call("sqrt" if exponent > 0 else "rsqrt", (value,), self.dtype)
        return Call("pow", (value, const(float(exponent), self.dtype)), self.dtype)


def _fold_logarithm(expr: Expr) -> Expr | None:
    match expr:
        case Call("log", (Const(value),)) if value > 0:
            return const(math.log(value), expr.dtype)
    return None
