"""Cascades: reductions that use one another's results, derived as one pass over their axis.

A sum whose terms use a running value, the result of an earlier reduction, cannot just be summed:
that value changes from block to block. `derive` brings the terms into normal form and

  1. subtracts *centers*: X - g, where an earlier maximum of X is g, or where the formula itself
     subtracts a running g from X of the element, becomes one variable y
  2. separates what is left into Σ a(running) · b(element, y); a factor that mixes is `Refused`
  3. moves the center: each b with y + d for y, d the center's old value minus its new one, is again
     separated, Σ a(d) · b'(element, y), and the b' that are new join the state until none is

The state is Σ b for each b. `extremes` has what maxima and minima pull out of what they fold, and
products pull out factors as powers of the count. None of it knows a formula by name: online
softmax, Welford's variance and Chan's way to combine two of them are what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count as count_from

from tilewright.formula.streams import extremes
from tilewright.formula.streams.form import *
from tilewright.formula.streams.normal import FLOAT64, Context, expression
from tilewright.formula.streams.starts import Shifted, started
from tilewright.formula.streams.stream import (
    Center,
    Fold,
    Level,
    Result,
    Shift,
    Stage,
    Stream,
    Sum,
    made,
    old,
)
from tilewright.formula.streams.written import Writer
from tilewright.ir.arith import Bin, Call, Cast, Cmp, Const, Expr, Select, Var, cast, const
from tilewright.ir.dtype import FLOAT32, INT32, DType
from tilewright.ir.expr import substitute, transform, variables, walk

MOST_SUMS = 24  # that moving the center of one of them may need


class Refused(Exception):
    """These levels need more than one pass, because of `factor` in the body of `level`."""

    def __init__(self, level: Var, reason: str, factor: Expr) -> None:
        super().__init__(f"{level.name}: {reason}: {factor!r}")
        self.level, self.reason, self.factor = level, reason, factor


def derive(
    levels: Sequence[Level],
    elements: Collection[Var],
    index: Var,
    extent: Expr | None = None,
    positive: Collection[Var] = (),
) -> Stream:
    """One pass that computes `levels`. `extent` is the length of the axis: where a formula divides
    by it, the elements so far are counted. `positive` variables are nowhere negative."""
    axis = frozenset({*elements, index})
    names = {var.name for level in levels for var in variables(level.body) | {level.name}}
    count = Var(_unused("count", names), _type_of(levels))
    if extent is not None:
        counted = [Level(lv.name, lv.monoid, _counted(lv.body, extent, count)) for lv in levels]
        try:
            return Derivation(counted, axis, index, positive, count).stream()
        except Refused:
            pass  # it was no mean: x / N may well be separable where x / count is not
    return Derivation(levels, axis, index, positive, count).stream()


def _counted(body: Expr, extent: Expr, count: Var) -> Expr:
    """`body` with the count for the extent. A variable is the extent wherever it stands, a
    constant only where something is divided by it."""
    integer = cast(count, extent.dtype)

    def rule(node: Expr) -> Expr | None:
        match node:
            case Bin("/", a, Const(value)) if isinstance(extent, Const) and value == extent.value:
                return a / cast(count, a.dtype)
            case Cast(dtype, inner) if inner is integer:
                return cast(count, dtype)
        return integer if node is extent and isinstance(node, Var) else None

    return transform(body, rule)


def _unused(name: str, names: set[str]) -> str:
    return name if name not in names else _unused(f"{name}_", names)


def _type_of(levels: Sequence[Level]) -> DType:
    wide = any(node.dtype is FLOAT64 for level in levels for node in walk(level.body))
    return FLOAT64 if wide else FLOAT32


@dataclass(frozen=True)
class _Candidate:
    """A center to try: `form` - `value`. It may be found as `part` where `under` holds."""

    form: Form
    value: Form
    of: Expr
    part: Form
    under: Expr | None = None


class Derivation:
    """The stages of a stream, as they are found."""

    def __init__(
        self,
        levels: Sequence[Level],
        axis: frozenset[Var],
        index: Var,
        positive: Collection[Var],
        count: Var,
    ) -> None:
        self.levels, self.axis, self.index, self.count = levels, axis, index, count
        self.names = {var.name for lv in levels for var in variables(lv.body) | {lv.name}}
        self.level = levels[0].name if levels else index
        self.context = Context(
            axis, {count, *(level.name for level in levels)}, {count, *positive}, count.dtype
        )
        self.stages: list[Stage] = []
        self.centers: list[Shifted] = []
        self.moves: list[Form] = []  # all that sums are multiplied by when centers move
        self.notes: dict[str, None] = {}
        self._folds: dict[tuple[str, object], Var] = {}
        self._sums: dict[object, Var | None] = {}  # by form; None for one that is always zero
        self._values: dict[Expr, Form] = {}  # of levels, as forms over the state
        self._aliases: dict[Var, Var] = {}  # levels that are a part of the state
        self._candidates: list[_Candidate] = []
        self._bodies: dict[object, Expr] = {}  # how the formula writes a form

    def stream(self) -> Stream:
        for level in self.levels:
            self.level = level.name
            body = substitute(level.body, dict(self._aliases))
            if self.count in variables(body):
                self.sum_of(number(1))
                self.note("the extent is counted")
            form = self.context.normalize(body)
            self._bodies.setdefault(key(form), body)
            self._finish(level, self._reduced(level.monoid, form, body))
        stages = started(_needed(self.stages), self.centers, self.moves, self.context, self.notes)
        return Stream(self.axis, self.index, stages, tuple(self.notes))

    def note(self, text: str) -> None:
        self.notes[text] = None

    def refusal(self, reason: str, form: Form) -> Refused:
        """In terms of the formula: with levels for the state that they are."""
        values: dict[Var, Expr] = {}
        for center in self.centers:
            value = expression(center.value, self.context)
            values[center.y] = cast(center.of, center.y.dtype) - value
        names: dict[Var, Expr] = {v: name for name, v in self._aliases.items()}
        factor = substitute(expression(form, self.context), values)
        return Refused(self.level, reason, substitute(factor, names))

    def _finish(self, level: Level, value: Form) -> None:
        match list(value):
            case [((Var() as var, _),)] if value == atom(var):
                written: Expr = var
            case _ if level.monoid.startswith("arg"):
                written = Writer(INT32, readable=True).write(value)
            case _:
                written = self._written(value)
        written = cast(written, level.name.dtype)
        self.stages.append(Result(level.name, written))
        self._values[level.name] = self.context.replace(value, self._values)
        if isinstance(written, Var):
            self._aliases[level.name] = written
        if self.context.is_positive(value):
            self.context.positive.add(level.name)

    def _reduced(self, monoid: str, form: Form, body: Expr) -> Form:
        match monoid:
            case "count":
                return self._total(number(1), body)
            case "sum":
                return self._total(form, body)
            case "prod":
                return self._product(form, body)
            case "max" | "min" | "argmax" | "argmin":
                return extremes.extreme(self, form, monoid)
        raise self.refusal(f"{monoid} is no reduction that can be derived", form)

    # --- sums ---------------------------------------------------------------------------------

    def _total(self, form: Form, body: Expr) -> Form:
        """Σ form, over the state."""
        total: Form = {}
        for factor, part in self._parts(self._centered(form, body)):
            var = self.sum_of(part)
            if var is not None:
                total = plus(total, self.context.times(factor, atom(var)))
        return total

    def _parts(self, form: Form) -> Iterator[tuple[Form, Form]]:
        """Factors that do not vary, and sums of what they multiply. Those without a center stay
        together as far as they have the same running factor."""
        together: dict[Mono, Form] = {}
        for mono, size in form.items():
            varying, rest = self._split(mono)
            if self._uses_center({varying: WHOLE}):
                yield {rest: size}, {varying: WHOLE}
                continue
            running = tuple(power for power in rest if self.context.runs({(power,): WHOLE}))
            kept = divided({mono: size}, running)
            together[running] = plus(together.get(running, {}), kept)
        for running, part in together.items():
            constant = tuple(p for p in content(part) if not self.context.varies({(p,): WHOLE}))
            if any(is_exp(base) for mono in part for base, _ in self._split(mono)[0]):
                # exp(x - m) is small, exp(x) need not be: what is subtracted stays inside
                constant = tuple(p for p in constant if not is_exp(p[0]))
            part = divided(part, constant)
            size = next(iter(part.values())) if len(part) == 1 else WHOLE
            yield scaled(joined(running, constant), size), scaled(part, 1 / size)

    def _split(self, mono: Mono) -> tuple[Mono, Mono]:
        """What varies along the axis, and what does not."""
        for power in mono:
            if self.context.mixes({(power,): WHOLE}):
                raise self.refusal("a factor mixes elements and running values", {(power,): WHOLE})
        varies = [not self.context.elements.isdisjoint(variables(base)) for base, _ in mono]
        return (
            tuple(power for power, yes in zip(mono, varies, strict=True) if yes),
            tuple(power for power, yes in zip(mono, varies, strict=True) if not yes),
        )

    def sum_of(self, form: Form) -> Var | None:
        """The state that is Σ form; None where that is always zero."""
        if key(form) not in self._sums:
            if self._uses_center(form):
                self._close(next(iter(form)))
            else:
                monoid = "count" if form == number(1) else "sum"
                self._sums[key(form)] = self.fold(monoid, form)
        return self._sums[key(form)]

    def _close(self, mono: Mono) -> None:
        """Sums of `mono` and of what is needed to move its centers."""
        found: dict[Mono, dict[Mono, Form]] = {}
        todo = [mono]
        while todo:
            one = todo.pop(0)
            if one in found or key({one: WHOLE}) in self._sums:
                continue
            if not self._uses_center({one: WHOLE}):
                self.sum_of({one: WHOLE})
            elif self._is_zero(one):
                self._sums[key({one: WHOLE})] = None
                self.note("sums that are always zero are left out")
            else:
                found[one] = self._moved(one)
                todo += found[one]
            if len(found) > MOST_SUMS:
                raise self.refusal("moving its center takes too many sums", {mono: WHOLE})
        for one in found:
            self._sums[key({one: WHOLE})] = self._new("s", {one: WHOLE}, self.context.dtype)
        for one, parts in found.items():
            self._append_sum(one, parts)

    def _append_sum(self, mono: Mono, parts: dict[Mono, Form]) -> None:
        shifts = []
        for part, coefficient in parts.items():
            var = self._sums[key({part: WHOLE})]
            if var is not None:
                self.moves.append(coefficient)
                shifts.append(Shift(var, self._written(coefficient)))
        var = self._sums[key({mono: WHOLE})]
        assert var is not None
        self._warn({mono: WHOLE})
        self.stages.append(Sum(var, self._written({mono: WHOLE}), tuple(shifts)))

    def _moved(self, mono: Mono) -> dict[Mono, Form]:
        """`mono` after a move of its centers: coefficients of monomials."""
        total = number(1)
        for power in mono:
            new = self._moved_factor(power)
            if any(self.context.mixes({(one,): WHOLE}) for found in new for one in found):
                raise self.refusal("the center of a factor cannot move", {(power,): WHOLE})
            total = product(total, new)
        parts: dict[Mono, Form] = {}
        for found, size in total.items():
            varying, rest = self._split(found)
            parts[varying] = plus(parts.get(varying, {}), {rest: size})
        return {part: coefficient for part, coefficient in parts.items() if coefficient}

    def _moved_factor(self, power: tuple[Expr, Fraction]) -> Form:
        centers = [c for c in self.centers if c.y in variables(power[0])]
        for center in centers:
            if power[0] is self._at_center(center.y) and self._extreme_of(center) is not None:
                # y and d have one sign, so y + d = 0 where both are
                self.note("elements at the maximum are counted anew when it moves")
                return product(atom(power[0]), atom(self._at_center(center.moved)))
        values: dict[Expr, Form] = {c.y: plus(atom(c.y), atom(c.moved)) for c in centers}
        return self.context.replace({(power,): WHOLE}, values)

    def _at_center(self, y: Var) -> Expr:
        return Cmp("==", y, const(0, y.dtype))

    def _extreme_of(self, center: Shifted) -> Fold | None:
        """The maximum or minimum that a center is."""
        for stage in self.stages:
            if isinstance(stage, Fold) and center.value == atom(stage.var):
                return stage if stage.monoid in ("max", "min") else None
        return None

    def _is_zero(self, mono: Mono) -> bool:
        """Whether Σ mono is zero because its center is a mean: Σ (x - mean) = Σ x - mean · count,
        of which each is state."""
        for center in self.centers:
            if (center.y, WHOLE) not in mono:
                continue
            others = tuple(power for power in mono if power[0] is not center.y)
            if center.y in used({others: WHOLE}):
                continue
            total: Form = {}
            inside = product({others: WHOLE}, minus(center.form, center.value))
            for one, size in inside.items():
                varying, rest = self._split(one)
                if key({varying: WHOLE}) not in self._sums:
                    break
                var = self._sums[key({varying: WHOLE})]
                part = product({rest: size}, atom(var)) if var is not None else {}
                total = plus(total, self.context.replace(part, self._values))
            else:
                if not total:
                    return True
        return False

    def _uses_center(self, form: Form) -> bool:
        return not used(form).isdisjoint({center.y for center in self.centers})

    # --- centers ------------------------------------------------------------------------------

    def _centered(self, form: Form, body: Expr) -> Form:
        """`form` with y for what has a center, wherever fewer running values are left then."""
        if not self.context.runs(form):
            return form
        for candidate in [*self._candidates, *self._differences(body)]:
            watched = used(candidate.value) & self.context.running
            least = _mentions(form, watched)
            if not least:
                continue
            center, chosen = self._center(candidate), None
            for new in self._tries(form, candidate, center):
                if _mentions(new, watched) < least:
                    least, chosen = _mentions(new, watched), new
            if chosen is not None:
                form = chosen
                self._accept(center)
        return form

    def _center(self, candidate: _Candidate) -> Shifted:
        for center in self.centers:
            if center.form == candidate.form and center.value == candidate.value:
                return center
        dtype, which = self.context.dtype, len(self.centers)
        var = Var(_unused(f"c{which}", self.names), dtype)
        y, moved = Var(f"{var.name}.y", dtype), Var(f"{var.name}.moved", dtype)
        self.context.elements.add(y)
        self.context.running |= {var, moved}
        return Shifted(var, y, moved, candidate.form, candidate.value, candidate.of)

    def _accept(self, center: Shifted) -> None:
        if center not in self.centers:
            self.centers.append(center)
            self.names.add(center.var.name)
            self.stages.append(Center(center.var, self._written(center.value), 0.0))

    def _tries(self, form: Form, candidate: _Candidate, center: Shifted) -> Iterator[Form]:
        """`form` with y for the candidate: solved for one of the atoms that the candidate has once,
        put for it everywhere or in exponents only."""
        part = candidate.part
        whole = form
        if candidate.under is not None:
            whole = {m: n for m, n in form.items() if candidate.under in [base for base, _ in m]}
        for mono, size in part.items():
            for base, power in mono:
                varies = self.context.varies(atom(base))
                if power != 1 or not varies or is_exp(base) or is_indicator(base):
                    continue
                others = minus(part, {mono: size})
                if any(base in walk(found) for m in others for found, _ in m):
                    continue
                rest = self.context.power({mono: size}, Fraction(-1))
                solved = minus(plus(atom(center.y), candidate.value), others)
                value = product(solved, product(rest, atom(base)))
                for only_exp in (False, True):
                    new = self.context.replace(whole, {base: value}, only_exp)
                    yield plus(minus(form, whole), new)

    def _differences(self, body: Expr) -> Iterator[_Candidate]:
        """Candidates from sums in the formula, of elements and of running values."""
        inside: set[Expr] = set()
        for node in walk(body):
            if not _is_sum(node) or node in inside:
                continue
            inside |= set(_partial_sums(node))
            varying: Form = {}
            running: Form = {}
            for term, negated in _terms(node):
                found = scaled(self.context.normalize(term), Fraction(-1 if negated else 1))
                if self.context.varies(found) and not self.context.runs(found):
                    varying = plus(varying, found)
                elif self.context.runs(found) and not self.context.varies(found):
                    running = plus(running, found)
            if varying and running:
                sign = Fraction(1 if leading(varying) > 0 else -1)
                form = scaled(varying, sign)
                yield _Candidate(form, scaled(running, -sign), self._written(form), form)

    # --- folds and products -------------------------------------------------------------------

    def has_fold(self, monoid: str, form: Form) -> bool:
        return (monoid, key(form)) in self._folds

    def fold(self, monoid: str, form: Form) -> Var:
        """The state that is folded from `form`, which knows nothing that runs."""
        known = self._folds.get((monoid, key(form)))
        if known is not None:
            return known
        term = self._bodies.get(key(form))
        if term is None:
            term = self._written(form)
        elif not term.dtype.is_int:  # integers are folded exactly
            term = cast(term, self.context.dtype)
        if monoid == "count":
            var = self.count
        elif monoid.startswith("arg"):
            var = self._new(monoid, {}, INT32)
        else:
            var = self._new(monoid, form, term.dtype)
        self._folds[monoid, key(form)] = var
        self.stages.append(Fold(var, monoid, term, _empty(monoid, term.dtype)))
        if monoid in ("max", "min"):
            self._offer(form, var, term)
        elif monoid == "sum":
            self._warn(form)
        return var

    def _offer(self, form: Form, var: Var, term: Expr) -> None:
        """A maximum or minimum as a center; of x where a mask holds, of x itself there."""
        self._candidates.append(_Candidate(form, atom(var), term, form))
        match list(form):
            case [((Select(condition, a, Const(value)), _),)] if math.isinf(value):
                part = self.context.normalize(a)
                self._candidates.append(_Candidate(form, atom(var), term, part, condition))

    def _product(self, form: Form, body: Expr) -> Form:
        """Π form: what does not vary to the power of the count, exponents summed."""
        common = content(form)
        rest = divided(form, common)
        if self.context.runs(rest):
            raise self.refusal("a product of sums does not separate", form)
        varying, constant = self._split(common)
        inside: Form = {}
        if self.context.varies(exponent(common)):
            inside = exponent(common)
            varying, constant = without_exp(varying), without_exp(constant)
        elif not self.context.runs(form):
            return atom(self.fold("prod", form))
        scale, folded = {constant: WHOLE}, product({varying: WHOLE}, rest)
        if not self.context.varies(folded):
            scale, folded = product(scale, folded), number(1)
        total = self.context.exp(self._total(inside, body)) if inside else number(1)
        if folded != number(1):
            total = product(total, atom(self.fold("prod", folded)))
        if scale != number(1):
            self.sum_of(number(1))
            base = self.context.write(scale)
            total = product(total, atom(Call("pow", (base, self.count), self.count.dtype)))
        return total

    # --- names and expressions ----------------------------------------------------------------

    def _new(self, prefix: str, form: Form, dtype: DType) -> Var:
        """A variable for state that is reduced from `form`."""
        free = (f"{prefix}{which}" for which in count_from())
        name = next(name for name in free if name not in self.names)
        self.names.add(name)
        var = Var(name, dtype)
        self.context.running.add(var)
        if self.context.is_positive(form):
            self.context.positive.add(var)
        return var

    def _written(self, form: Form) -> Expr:
        """`form` as it stands in the stream."""
        values: dict[Var, Expr] = {}
        for center in self.centers:
            values[center.y] = cast(center.of, center.y.dtype) - center.var
            values[center.moved] = old(center.var) - center.var
        return transform(substitute(expression(form, self.context), values), _turned)

    def _warn(self, form: Form) -> None:
        """exp of elements without a center may leave the range of the type."""
        centered = {center.y for center in self.centers}
        for base in {base for mono in form for base, _ in mono if is_exp(base)}:
            found = variables(base)
            if found.isdisjoint(centered) and not found.isdisjoint(self.axis):
                self.note("exp without a maximum")


def _empty(monoid: str, dtype: DType) -> float:
    """What folding nothing gives."""
    low, high = (dtype.min_value, dtype.max_value) if dtype.is_int else (-math.inf, math.inf)
    return {"max": float(low), "min": float(high), "prod": 1.0}.get(monoid.removeprefix("arg"), 0.0)


def _turned(expr: Expr) -> Expr | None:
    match expr:
        case Call("neg", (Bin("-", a, b),)):
            return b - a
    return None


def _mentions(form: Form, watched: set[Var]) -> int:
    """How many factors know one of the variables."""
    return sum(not watched.isdisjoint(variables(base)) for mono in form for base, _ in mono)


def _is_sum(expr: Expr) -> bool:
    return isinstance(expr, Bin) and expr.op in ("+", "-") and expr.dtype.is_float


def _terms(expr: Expr, negated: bool = False) -> Iterator[tuple[Expr, bool]]:
    """What a sum adds or subtracts."""
    match expr:
        case Bin("+" | "-" as op, a, b):
            yield from _terms(a, negated)
            yield from _terms(b, negated != (op == "-"))
        case Call("neg", (a,)):
            yield from _terms(a, not negated)
        case _:
            yield expr, negated


def _partial_sums(expr: Expr) -> Iterator[Expr]:
    """Sums that are terms of a sum."""
    for child in expr.children:
        while isinstance(child, Call) and child.name == "neg":
            child = child.args[0]
        if _is_sum(child):
            yield child
            yield from _partial_sums(child)


def _needed(stages: list[Stage]) -> list[Stage]:
    """`stages` without state that nothing uses."""
    while True:
        read: set[Var] = set()
        for stage in stages:
            match stage:
                case Result(_, value) | Center(_, value):
                    read |= variables(value)
                case Sum(var, term, shifts):
                    read |= variables(term) | {s.of for s in shifts if s.of is not var}
        kept = [s for s in stages if isinstance(s, Result) or not read.isdisjoint(made(s))]
        if len(kept) == len(stages):
            return kept
        stages = kept
