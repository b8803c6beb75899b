"""The normal form of expressions, in which equal formulas look equal.

`normalize` multiplies out, gathers exponentials (exp2, 10**x and pow(3, x) are exp of a multiple),
takes logarithms of products apart and positive factors out of abs, max, roots and powers.
`expression` writes a form down again (see `written`).

What a formula says about an axis decides how far this goes. Variables are `elements`, which change
along the axis, `running`, which are known only when the axis has been read, or else constant. A sum
is multiplied out only where it mixes elements and running values; a `Select` free of running values
is one atom, another is a sum of indicators. Rounding is a function like any other, nothing gets
through it; conversions between float32 and float64, and to a wider type, change nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import TypeAlias

from tilewright.formula.streams.form import *
from tilewright.formula.streams.written import HALF, Writer, log_of, quotient
from tilewright.ir.analysis.linear import order_key
from tilewright.ir.arith import (
    FALSE,
    TRUE,
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Select,
    Var,
    cast,
    const,
)
from tilewright.ir.dtype import DTYPES, FLOAT32, DType
from tilewright.ir.expr import transform, variables

FLOAT64 = DTYPES["float64"]
MOST_FACTORS = 6  # of a power that is multiplied out
# increasing functions that no rule knows more about
INCREASING = frozenset("tanh sigmoid erf sinh asin atan log1p expm1".split())
STEPS = frozenset("floor ceil round trunc".split())  # increasing too, but not strictly
_SWAPPED = {">": "<", ">=": "<="}

_Rule: TypeAlias = "Callable[[Context, Form], Form]"


class Context:
    """What is known about the variables of a formula, and the type that it is computed in."""

    def __init__(
        self,
        elements: Collection[Var] = (),
        running: Collection[Var] = (),
        positive: Collection[Var] = (),
        dtype: DType = FLOAT32,
    ) -> None:
        self.elements, self.running, self.positive = set(elements), set(running), set(positive)
        self.dtype = dtype
        self.writer = Writer(dtype)
        self._known: dict[Expr, Form] = {}

    # --- what is asked of variables -----------------------------------------------------------

    def varies(self, form: Form) -> bool:
        """Whether it depends on the element."""
        return not self.elements.isdisjoint(used(form))

    def runs(self, form: Form) -> bool:
        return not self.running.isdisjoint(used(form))

    def mixes(self, form: Form) -> bool:
        return self.varies(form) and self.runs(form)

    def _mixed(self, expr: Expr) -> bool:
        found = variables(expr)
        return not (self.elements.isdisjoint(found) or self.running.isdisjoint(found))

    def is_positive(self, form: Form) -> bool:
        """Whether no monomial can be negative; zero counts as positive."""
        return bool(form) and all(
            count > 0 and all(self.atom_is_positive(*power) for power in mono)
            for mono, count in form.items()
        )

    def atom_is_positive(self, base: Expr, exponent: Fraction = WHOLE) -> bool:
        if exponent.denominator == 1 and exponent % 2 == 0:
            return True
        match base:
            case Var():
                return base in self.positive or base.dtype.is_bool
            case Const(value):
                return value > 0
            case Call("log", (Const(value),)):
                return value > 1
            case Call("exp" | "abs" | "sigmoid"):
                return True
            case Bin("max", a, b) | Call("max_nan", (a, b)):
                return any(self.is_positive(self.normalize(side)) or _is_zero(side)
                           for side in (a, b))  # fmt: skip
            case Select(_, a, b):
                return all(self.is_positive(self.normalize(side)) or _is_zero(side)
                           for side in (a, b))  # fmt: skip
            case Bin("+" | "-" | "*" | "/"):
                form = self.normalize(base)
                return form != atom(base) and self.is_positive(form)
        return base.dtype.is_bool

    # --- arithmetic ---------------------------------------------------------------------------

    def write(self, form: Form) -> Expr:
        return self.writer.write(form)

    def times(self, a: Form, b: Form) -> Form:
        """a · b. Sums that do not mix stay together: (x + 1) · (x + 1) is (x + 1)²."""
        if len(a) == 1 or len(b) == 1 or any(self.mixes(f) or indicators(f) for f in (a, b)):
            return product(a, b)
        return product(atom(self.write(a)), atom(self.write(b)))

    def power(self, form: Form, exponent: Fraction) -> Form:
        if exponent == 1:
            return form
        if not exponent:
            return number(1)
        if indicators(form) and (len(form) > 1 or exponent < 0):
            return self.by_cases(form, lambda part: self.power(part, exponent))
        if not form:
            return {} if exponent > 0 else atom(const(0, self.dtype), exponent)
        if len(form) == 1:
            ((mono, count),) = form.items()
            return self._power_of_mono(mono, count, exponent)
        if exponent.denominator == 1 and 0 < exponent <= MOST_FACTORS and self.mixes(form):
            total = form
            for _ in range(int(exponent) - 1):
                total = product(total, form)
            return total
        out = content(form)
        if exponent.denominator != 1:
            out = tuple(power for power in out if self.atom_is_positive(*power))
        taken = self._power_of_mono(out, WHOLE, exponent)
        return product(taken, atom(self.write(divided(form, out)), exponent))

    def _power_of_mono(self, mono: Mono, count: Fraction, exponent: Fraction) -> Form:
        total, rest = number(1), []
        for base, power in mono:
            even = power.denominator == 1 and power % 2 == 0
            if is_indicator(base):
                total = product(total, atom(base))
            elif exponent.denominator == 1 or self.atom_is_positive(base):
                total = product(total, atom(base, power * exponent))
            elif even:
                total = product(total, self.power(self.abs(atom(base)), power * exponent))
            else:
                rest.append((base, power))
        if exponent.denominator == 1:
            return scaled(total, count ** int(exponent))
        if count > 0:
            total = product(total, self._power_of_number(count, exponent))
            count = WHOLE
        if not rest and count == 1:
            return total
        return product(total, atom(self.write({tuple(rest): count}), exponent))

    def _power_of_number(self, value: Fraction, exponent: Fraction) -> Form:
        exact = _root(value, exponent)
        if exact is not None:
            return number(exact)
        total = number(1)
        for part, sign in ((value.numerator, 1), (value.denominator, -1)):
            if part != 1:
                total = product(total, atom(const(float(part), self.dtype), sign * exponent))
        return total

    def exp(self, form: Form) -> Form:
        if indicators(form):
            return self.by_cases(form, self.exp)
        total = number(1)
        for mono, count in form.items():
            match mono:
                case ((Const(value), _),) if value == math.inf and count < 0:
                    return {}
                case ((Call("log", (inner,)), power),) if power == 1:
                    total = product(total, self.power(self.normalize(inner), count))
                case _:
                    made = exp_atom(mono, self.write({mono: WHOLE}))
                    total = product(total, atom(made, count))
        return total

    def log(self, form: Form) -> Form:
        if indicators(form):
            return self.by_cases(form, self.log)
        if not form:
            return scaled(atom(const(math.inf, self.dtype)), Fraction(-1))
        total: Form = {}
        kept = form
        for base, power in content(form):
            if is_exp(base):
                taken = {base.__dict__["_exponent"]: WHOLE}
            elif self.atom_is_positive(base):
                taken = atom(Call("log", (cast(base, self.dtype),), self.dtype))
            else:
                continue
            total = plus(total, taken, power)
            kept = divided(kept, ((base, power),))
        if kept == number(1):
            return total
        if set(kept) == {ONE}:
            inner = quotient(kept[ONE], self.dtype)
        else:
            inner = self.write(kept)
        return plus(total, atom(Call("log", (inner,), self.dtype)))

    def abs(self, form: Form) -> Form:
        if indicators(form):
            return self.by_cases(form, self.abs)
        out, (rest,) = self._positive_factor([form])
        if self.is_positive(rest) or not rest:
            return product(out, rest)
        if len(rest) > 1:
            return product(out, atom(Call("abs", (self.write(rest),), self.dtype)))
        ((mono, count),) = rest.items()
        total = scaled(out, abs(count))
        for base, power in mono:
            made = Call("abs", (cast(base, self.dtype),), self.dtype)
            total = product(total, atom(made, power))
        return total

    def extreme(self, op: str, a: Form, b: Form) -> Form:
        """`op` is min or max, or such a function that gives NaN where a side is."""
        for condition in indicators({**a, **b})[:1]:
            sides = [[given(form, condition, holds) for form in (a, b)] for holds in (True, False)]
            return self._either(condition, *(self.extreme(op, *side) for side in sides))
        out, forms = self._positive_factor([a, b])
        if all(set(form) <= {ONE} for form in forms):
            values = [form.get(ONE, Fraction(0)) for form in forms]
            return scaled(out, max(values) if "max" in op else min(values))
        left, right = sorted(map(self.write, forms), key=order_key)
        made = Bin(op, left, right) if op in ("min", "max") else Call(op, (left, right), self.dtype)
        return product(out, atom(made))

    def _positive_factor(self, forms: list[Form]) -> tuple[Form, list[Form]]:
        """A positive factor of all of `forms`, and what is left of each."""
        monos = [mono for form in forms for mono in form]
        if not monos:
            return number(1), forms
        out = tuple(power for power in content(monos) if self.atom_is_positive(*power))
        several = sum(map(bool, forms)) > 1  # then no number is the one to take out
        size = WHOLE if several else abs(leading(next(form for form in forms if form)))
        rest = [scaled(divided(form, out), 1 / size) for form in forms]
        return {out: size}, rest

    def by_cases(self, form: Form, rule: Callable[[Form], Form]) -> Form:
        """`rule` of a form with indicators, on both sides of its first condition."""
        condition = indicators(form)[0]
        sides = (rule(given(form, condition, holds)) for holds in (True, False))
        return self._either(condition, *sides)

    def _either(self, condition: Expr, a: Form, b: Form) -> Form:
        return plus(product(atom(condition), a), product(atom(opposite(condition)), b))

    # --- reading expressions ------------------------------------------------------------------

    def normalize(self, expr: Expr) -> Form:
        found = self._known.get(expr)
        if found is None:
            found = self._known[expr] = self._read(expr)
        return found

    def _read(self, expr: Expr) -> Form:
        if expr.dtype.is_bool:
            return self.indicator(self.condition(expr))
        if not (expr.dtype in (FLOAT32, FLOAT64) or expr.dtype.is_int or isinstance(expr, Var)):
            return atom(expr)  # narrow floats round after every operation
        if expr.dtype.is_int and expr.children and not self._mixed(expr):
            return atom(expr)  # integers are exact as they are
        match expr:
            case Const(value):
                if math.isfinite(value):
                    return number(Fraction(value))
                if math.isnan(value):
                    return atom(expr)
                return scaled(atom(const(math.inf, self.dtype)), Fraction(1 if value > 0 else -1))
            case Cast(_, a):
                return self._read_cast(expr, a)
            case Select(condition, a, b):
                return self._read_select(self.condition(condition), a, b)
            case Bin(op, a, b):
                return self._read_operation(expr, op, a, b)
            case Call(name, args):
                return self._read_call(expr, name.removeprefix("__"), args)
        return atom(expr)

    def _read_cast(self, expr: Expr, a: Expr) -> Form:
        exact = a.dtype.is_bool or a.dtype.is_int or isinstance(a, Var) or a.dtype.bits >= 32
        if expr.dtype in (FLOAT32, FLOAT64):
            return self.normalize(a) if exact else atom(a)
        if expr.dtype.is_int and a.dtype.is_int and expr.dtype.bits >= a.dtype.bits:
            return self.normalize(a)
        return atom(Cast(expr.dtype, self.plain(a)))

    def _read_select(self, condition: Expr, a: Expr, b: Expr) -> Form:
        if condition is TRUE or condition is FALSE:
            return self.normalize(a if condition is TRUE else b)
        sides = self.normalize(a), self.normalize(b)
        if self.running.isdisjoint(variables(condition)) and not any(map(self.runs, sides)):
            return atom(Select(condition, *map(self.write, sides)))
        return self._either(condition, *sides)

    def _read_operation(self, expr: Expr, op: str, a: Expr, b: Expr) -> Form:
        if op not in ("+", "-", "*", "/", "min", "max"):
            return atom(expr)
        x, y = self.normalize(a), self.normalize(b)
        match op:
            case "+":
                return plus(x, y)
            case "-":
                return minus(x, y)
            case "*":
                return self.times(x, y)
            case "/":
                return self.times(x, self.power(y, Fraction(-1)))
        return self.extreme(op, x, y)

    def _read_call(self, expr: Expr, name: str, args: tuple[Expr, ...]) -> Form:
        if expr.dtype.is_int and name not in ("neg", "abs"):
            return atom(expr)
        forms = [self.normalize(arg) for arg in args]
        if name in _RULES:
            return _RULES[name](self, forms[0])
        match name:
            case "divide":
                return self.times(forms[0], self.power(forms[1], Fraction(-1)))
            case "fma":
                return plus(self.times(forms[0], forms[1]), forms[2])
            case "min_nan" | "max_nan":
                return self.extreme(name, forms[0], forms[1])
            case "pow":
                return self._read_power(*forms)
        return self.apply(name, forms)

    def _read_power(self, base: Form, exponent: Form) -> Form:
        if set(exponent) <= {ONE}:
            return self.power(base, exponent.get(ONE, Fraction(0)))
        if self.is_positive(base):
            return self.exp(product(exponent, self.log(base)))
        return self.apply("pow", [base, exponent])

    def apply(self, name: str, forms: list[Form]) -> Form:
        """A function that no rule knows."""
        if len(forms) == 1 and indicators(forms[0]):
            return self.by_cases(forms[0], lambda part: self.apply(name, [part]))
        return atom(Call(name, tuple(map(self.write, forms)), self.dtype))

    def plain(self, expr: Expr) -> Expr:
        """`expr` as its normal form is written; integers as they are."""
        if expr.dtype in (FLOAT32, FLOAT64):
            return self.write(self.normalize(expr))
        return self.condition(expr) if expr.dtype.is_bool else expr

    def indicator(self, condition: Expr) -> Form:
        if isinstance(condition, Const):
            return number(int(condition.value))
        return atom(condition)

    def condition(self, expr: Expr) -> Expr:
        """A condition in the one way that it is written in forms."""
        match expr:
            case Cmp(op, a, b):
                if op in _SWAPPED:
                    op, a, b = _SWAPPED[op], b, a
                if a.dtype not in (FLOAT32, FLOAT64):
                    return Cmp(op, a, b)
                if self.running.isdisjoint(variables(expr)) or _is_infinite(a) or _is_infinite(b):
                    return Cmp(op, self.plain(a), self.plain(b))
                return self._difference(op, minus(self.normalize(a), self.normalize(b)))
            case Bin(op, a, b) if op in ("and", "or", "&", "|"):
                sides = sorted(map(self.condition, (a, b)), key=order_key)
                return Bin({"&": "and", "|": "or"}.get(op, op), *sides)
            case Call("not", (a,)):
                return opposite(self.condition(a))
        return expr

    def _difference(self, op: str, form: Form) -> Expr:
        """form op 0, in one of the multiples of the form."""
        rest = scaled(form, 1 / abs(leading(form))) if form else form
        zero = const(0, self.dtype)
        if rest and leading(rest) < 0:
            other = self.write(scaled(rest, Fraction(-1)))
            return Cmp(op, zero, other) if op in ("<", "<=") else Cmp(op, other, zero)
        return Cmp(op, self.write(rest), zero)

    # --- putting forms for atoms --------------------------------------------------------------

    def replace(self, form: Form, values: Mapping[Expr, Form], only_exp: bool = False) -> Form:
        """`form` with other forms for some atoms; `only_exp`: inside of exponentials."""
        touched = {var for old in values for var in variables(old)}
        written = {old: self.write(new) for old, new in values.items()}
        total: Form = {}
        for mono, count in form.items():
            changed = {ONE: count}
            for base, power in mono:
                if touched.isdisjoint(variables(base)) or (only_exp and not is_exp(base)):
                    new = atom(base, power)
                elif base in values:
                    new = self.power(values[base], power)
                else:
                    new = self.power(self.normalize(_rewritten(base, written)), power)
                changed = product(changed, new)
            total = plus(total, changed)
        return total


def _is_infinite(expr: Expr) -> bool:
    """Whether a difference from it may be no number."""
    return isinstance(expr, Const) and abs(expr.value) == math.inf


def _rewritten(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`expr` with other expressions for some nodes. A node of a narrower type is replaced where it
    has been made wider, too, without rounding."""
    narrow: dict[Expr, Expr] = {}

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Cast) and node.a in narrow:
            return cast(narrow[node.a], node.dtype)
        new = values.get(node)
        if new is None or new.dtype is node.dtype:
            return new
        made = cast(new, node.dtype)
        narrow[made] = new
        return made

    return transform(expr, rule)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and not expr.value


def _root(value: Fraction, exponent: Fraction) -> Fraction | None:
    """value ** exponent, where it is rational."""
    degree = exponent.denominator
    if degree > MOST_FACTORS:
        return None
    parts = [round(part ** (1 / degree)) if part < 1 << 52 else 0
             for part in (value.numerator, value.denominator)]  # fmt: skip
    found = Fraction(parts[0], parts[1]) if all(parts) else Fraction(0)
    return found**exponent.numerator if found and found**degree == value else None


def _scaled_exp(base: int) -> _Rule:
    def rule(context: Context, form: Form) -> Form:
        return context.exp(product(form, atom(log_of(base, context.dtype))))

    return rule


def _scaled_log(base: int) -> _Rule:
    def rule(context: Context, form: Form) -> Form:
        return product(context.log(form), atom(log_of(base, context.dtype), Fraction(-1)))

    return rule


def _root_rule(exponent: Fraction) -> _Rule:
    return lambda context, form: context.power(form, exponent)


def _if_mixed(name: str, rule: _Rule) -> _Rule:
    """Functions that lose digits when they are taken apart."""

    def chosen(context: Context, form: Form) -> Form:
        return rule(context, form) if context.mixes(form) else context.apply(name, [form])

    return chosen


def _wave(name: str) -> _Rule:
    """cos and sin of what varies plus what runs."""

    def rule(context: Context, form: Form) -> Form:
        varying = {mono: n for mono, n in form.items() if context.varies({mono: n})}
        rest = minus(form, varying)
        if not context.runs(rest) or not varying or context.mixes(varying):
            return context.apply(name, [form])
        cos, sin = ([context.apply(f, [part]) for part in (varying, rest)] for f in ("cos", "sin"))
        if name == "cos":
            return minus(product(cos[0], cos[1]), product(sin[0], sin[1]))
        return plus(product(sin[0], cos[1]), product(cos[0], sin[1]))

    return rule


_RULES: dict[str, _Rule] = {
    "neg": lambda context, form: scaled(form, Fraction(-1)),
    "abs": Context.abs,
    "exp": Context.exp,
    "exp2": _scaled_exp(2),
    "exp10": _scaled_exp(10),
    "log": Context.log,
    "log2": _scaled_log(2),
    "log10": _scaled_log(10),
    "sqrt": _root_rule(HALF),
    "rsqrt": _root_rule(-HALF),
    "expm1": _if_mixed("expm1", lambda c, form: plus(c.exp(form), number(-1))),
    "log1p": _if_mixed("log1p", lambda c, form: c.log(plus(form, number(1)))),
    "cos": _wave("cos"),
    "sin": _wave("sin"),
}


def normalize(expr: Expr, context: Context) -> Form:
    """The normal form of `expr`."""
    return context.normalize(expr)


def expression(form: Form, context: Context, readable: bool = True) -> Expr:
    """An expression of that form, in the type of the context."""
    return Writer(context.dtype, readable).write(form)
