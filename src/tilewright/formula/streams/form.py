"""Sums of monomials, the arithmetic of normal forms.

    Mono    a product of atoms with rational exponents, in one order
    Form    a sum: how often each monomial occurs

An atom is an expression that is not taken apart further. Expressions are interned, so equal atoms
are one object. Two kinds have a meaning here: an atom of type bool is an *indicator*, 1 where it
holds and 0 elsewhere; `exp(t)` is an atom whose exponent is the factor of t, so

    exp(x - m) / 2  is  {exp(x)¹ exp(m)⁻¹: 1/2}
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TypeAlias

from tilewright.ir.analysis.linear import order_key
from tilewright.ir.arith import Call, Const, Expr, Var, logical_not
from tilewright.ir.expr import variables

Mono: TypeAlias = "tuple[tuple[Expr, Fraction], ...]"
Form: TypeAlias = "dict[Mono, Fraction]"

ONE: Mono = ()
WHOLE = Fraction(1)


def number(value: int | Fraction) -> Form:
    return {ONE: Fraction(value)} if value else {}


def atom(expr: Expr, exponent: Fraction = WHOLE) -> Form:
    return {((expr, exponent),): WHOLE}


def is_indicator(expr: Expr) -> bool:
    return expr.dtype.is_bool


def exp_atom(mono: Mono, written: Expr) -> Expr:
    """exp of a monomial, of which `written` is the expression; it keeps the monomial with it."""
    made = Call("exp", (written,), written.dtype)
    made.__dict__["_exponent"] = mono
    return made


def is_exp(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.name == "exp"


def exponent(mono: Mono) -> Form:
    """u, where exp(u) is what the exponentials of a monomial multiply to."""
    return {base.__dict__["_exponent"]: power for base, power in mono if is_exp(base)}


def without_exp(mono: Mono) -> Mono:
    return tuple(power for power in mono if not is_exp(power[0]))


def plus(a: Form, b: Form, times: Fraction = WHOLE) -> Form:
    """a + times · b."""
    total = dict(a)
    for mono, count in b.items():
        new = total.get(mono, Fraction(0)) + times * count
        if new:
            total[mono] = new
        else:
            total.pop(mono, None)
    return total


def scaled(a: Form, factor: Fraction) -> Form:
    return {mono: count * factor for mono, count in a.items()} if factor else {}


def minus(a: Form, b: Form) -> Form:
    return plus(a, b, Fraction(-1))


def product(a: Form, b: Form) -> Form:
    """a · b, multiplied out."""
    total: Form = {}
    for left, m in a.items():
        for right, n in b.items():
            for mono, factor in joined(left, right).items():
                total[mono] = total.get(mono, 0) + m * n * factor
    return {mono: count for mono, count in total.items() if count}


def joined(a: Mono, b: Mono) -> Form:
    """The product of two monomials: one monomial, or nothing where indicators exclude another."""
    if not a or not b:
        return {a or b: WHOLE}
    powers = dict(a)
    for base, exponent in b:
        if is_indicator(base):
            if opposite(base) in powers:
                return {}
            powers[base] = WHOLE
            continue
        powers[base] = powers.get(base, Fraction(0)) + exponent
    factor = WHOLE
    for base, exponent in list(powers.items()):
        if not exponent:
            del powers[base]
        elif isinstance(base, Const) and _is_number(base) and exponent.denominator == 1:
            factor *= Fraction(base.value) ** int(exponent)  # √2 · √2
            del powers[base]
    return {ordered(powers.items()): factor}


def opposite(condition: Expr) -> Expr:
    match condition:
        case Call("not", (inner,)):
            return inner
    return logical_not(condition)


def _is_number(base: Const) -> bool:
    return abs(base.value) < float("inf") and bool(base.value)


def ordered(powers: Iterable[tuple[Expr, Fraction]]) -> Mono:
    return tuple(sorted(powers, key=lambda power: order_key(power[0])))


def inverse(mono: Mono) -> Mono:
    return tuple((base, -exponent) for base, exponent in mono)


def content(monos: Iterable[Mono]) -> Mono:
    """The largest product of powers that is a factor of every monomial, indicators and
    exponentials left out."""
    first, *others = [dict(mono) for mono in monos]
    common = []
    for base, exponent in first.items():
        if is_indicator(base) or (others and is_exp(base)):
            continue
        exponents = [exponent, *(other.get(base, Fraction(0)) for other in others)]
        if min(exponents) > 0:
            common.append((base, min(exponents)))
        elif max(exponents) < 0:
            common.append((base, max(exponents)))
    return tuple(common)


def divided(form: Form, by: Mono) -> Form:
    return product(form, {inverse(by): WHOLE}) if by else form


def leading(form: Form) -> Fraction:
    """How often the first monomial occurs that is not 1, in the one order of monomials."""
    first = min(form, key=lambda mono: (mono == ONE, [order_key(base) for base, _ in mono]))
    return form[first]


def used(form: Form) -> set[Var]:
    """The variables of a form."""
    return {var for mono in form for base, _ in mono for var in variables(base)}


def key(form: Form) -> frozenset[tuple[Mono, Fraction]]:
    """What equal forms have in common."""
    return frozenset(form.items())


def indicators(form: Form) -> list[Expr]:
    """The conditions that occur, none beside its opposite."""
    found: list[Expr] = []
    for mono in form:
        for base, _ in mono:
            if is_indicator(base) and base not in found and opposite(base) not in found:
                found.append(base)
    return found


def given(form: Form, condition: Expr, holds: bool) -> Form:
    """`form` where `condition` holds, or where it does not."""
    negated = opposite(condition)
    gone, kept = (negated, condition) if holds else (condition, negated)
    total: Form = {}
    for mono, count in form.items():
        bases = [base for base, _ in mono]
        if gone not in bases:
            rest = tuple(power for power in mono if power[0] is not kept)
            total = plus(total, {rest: count})
    return total
