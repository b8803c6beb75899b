"""What maxima and minima, and their places, pull out of what they fold.

    max (f(x) + r)  = max f(x) + r              r runs, or is constant along the axis
    max (f(x) · r)  = max f(x) · r              r positive; of unknown sign: max or min, by its sign
    max g(f(x))     = g(max f(x))               g increases; for places, strictly
    max |f(x)|      = max(max f(x), -min f(x))

An exp is pulled out even where nothing runs: what is folded stays in its exponent.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from tilewright.formula.streams.form import *
from tilewright.formula.streams.normal import INCREASING, STEPS, Context
from tilewright.ir.arith import Bin, Call, Cmp, Expr, Var, const

FLIPPED = {"max": "min", "min": "max", "argmax": "argmin", "argmin": "argmax"}


class Folds(Protocol):
    """What a derivation has for this."""

    context: Context

    def has_fold(self, monoid: str, form: Form) -> bool: ...
    def fold(self, monoid: str, form: Form) -> Var: ...
    def note(self, text: str) -> None: ...
    def refusal(self, reason: str, form: Form) -> Exception: ...


def extreme(d: Folds, form: Form, monoid: str) -> Form:
    """The reduction of `form` by max, min, argmax or argmin, over the state."""
    of_exp = _of_exponent(d, form, monoid)
    if of_exp is not None:
        return of_exp
    place = monoid.startswith("arg")
    if not d.context.varies(form):
        return {} if place else form
    if not d.context.runs(form):
        return _folded(d, form, monoid)
    varying = {mono: size for mono, size in form.items() if d.context.varies({mono: size})}
    rest = minus(form, varying)
    if rest:
        d.note("what does not vary is added after the maximum")
        found = extreme(d, varying, monoid)
        return found if place else plus(found, rest)
    return _scaled(d, form, monoid)


def _folded(d: Folds, form: Form, monoid: str) -> Form:
    """Of what knows nothing that runs: a fold, or a positive multiple of one that there is."""
    ((mono, size), *others) = form.items()
    if not others and size > 0 and not d.has_fold(monoid, form):
        factor = tuple(
            power for power in mono
            if d.context.atom_is_positive(*power) and not d.context.varies({(power,): WHOLE})
        )  # fmt: skip
        part = divided({mono: WHOLE}, factor)
        if d.has_fold(monoid, part):
            found = atom(d.fold(monoid, part))
            return found if monoid.startswith("arg") else product(found, {factor: size})
    return atom(d.fold(monoid, form))


def _of_exponent(d: Folds, form: Form, monoid: str) -> Form | None:
    """Of a positive multiple of an exponential."""
    if len(form) != 1:
        return None
    ((mono, size),) = form.items()
    inside, rest = exponent(mono), without_exp(mono)
    positive = all(d.context.atom_is_positive(*power) for power in rest)
    if not d.context.varies(inside) or d.context.varies({rest: WHOLE}) or not positive:
        return None
    d.note("the maximum of an exponential is that of its exponent")
    found = extreme(d, inside, monoid if size > 0 else FLIPPED[monoid])
    return found if monoid.startswith("arg") else product(d.context.exp(found), {rest: size})


def _scaled(d: Folds, form: Form, monoid: str) -> Form:
    """Of terms that have one running factor in common."""
    parts: dict[Mono, Form] = {}
    for mono, size in form.items():
        running = tuple(
            power for power in mono
            if d.context.runs({(power,): WHOLE}) and not d.context.varies({(power,): WHOLE})
        )  # fmt: skip
        rest = divided({mono: size}, running)
        parts[running] = plus(parts.get(running, {}), rest)
    if len(parts) != 1:
        raise d.refusal(f"its {monoid} does not separate", form)
    ((factor, part),) = parts.items()
    if not factor:
        return _of_function(d, form, monoid)
    place = monoid.startswith("arg")
    if all(d.context.atom_is_positive(*power) for power in factor):
        d.note("positive factors are multiplied after the maximum")
        found = extreme(d, part, monoid)
        return found if place else product(found, {factor: WHOLE})
    return _of_either_sign(d, part, {factor: WHOLE}, monoid)


def _of_either_sign(d: Folds, form: Form, factor: Form, monoid: str) -> Form:
    d.note("both the maximum and the minimum are kept for a factor of unknown sign")
    most, least = extreme(d, form, monoid), extreme(d, form, FLIPPED[monoid])
    written, zero = d.context.write(factor), const(0, d.context.dtype)
    above = d.context.condition(Cmp(">", written, zero))
    below = d.context.condition(Cmp("<", written, zero))
    if monoid.startswith("arg"):  # all are equal where the factor is zero
        return plus(product(atom(above), most), product(atom(below), least))
    either = plus(product(atom(below), least), product(atom(opposite(below)), most))
    return product(either, factor)


def _of_function(d: Folds, form: Form, monoid: str) -> Form:
    """Of a multiple of one function that increases, or whose greatest values are at the ends."""
    ((mono, size), *others) = form.items()
    if others or len(mono) != 1:
        raise d.refusal(f"its {monoid} does not separate", form)
    ((base, power),) = mono
    monoid = monoid if size > 0 else FLIPPED[monoid]
    place = monoid.startswith("arg")
    found = _of_power(d, base, power, monoid)
    if found is None and power == 1:
        found = _of_call(d, base, monoid, place)
    if found is None:
        raise d.refusal(f"its {monoid} does not separate", form)
    return found if place else scaled(found, size)


def _of_power(d: Folds, base: Expr, power: Fraction, monoid: str) -> Form | None:
    """Of a power of a sum that increases or decreases."""
    inner = d.context.normalize(base)
    odd = power.denominator == 1 and power % 2 == 1
    if power == 1 or not (d.context.is_positive(inner) or (odd and power > 0)):
        return None
    found = extreme(d, inner, monoid if power > 0 else FLIPPED[monoid])
    return found if monoid.startswith("arg") else d.context.power(found, power)


def _of_call(d: Folds, base: Expr, monoid: str, place: bool) -> Form | None:
    context = d.context
    match base:
        case Call(name, (inner,)) if (
            name in INCREASING or name == "log" or (name in STEPS and not place)
        ):
            d.note(f"the maximum of {name} is that of its argument")
            found = extreme(d, context.normalize(inner), monoid)
            return found if place else context.normalize(
                Call(name, (context.write(found),), context.dtype)
            )  # fmt: skip
        case Call("abs", (inner,)) if monoid == "max":
            form = context.normalize(inner)
            low = scaled(extreme(d, form, "min"), Fraction(-1))
            return context.extreme("max", extreme(d, form, "max"), low)
        case Bin("max" | "min" as op, a, b) if not place:
            sides = [context.normalize(side) for side in (a, b)]
            if op == monoid or not all(map(context.varies, sides)):
                low, high = (extreme(d, side, monoid) for side in sides)
                return context.extreme(op, low, high)
    return None
