"""What is known about integer expressions: intervals, residues, linear forms, proofs.

Everything here is exact or conservative: an interval holds every value the expression can take
under the `Ranges`, a residue is the residue of all of them, and `prove` says True or False only
when it holds for all of them.

**Overflow.** Integer arithmetic wraps. A *ring expression* (`+ - *`, negation, `~`, shifts left
by a constant) whose exact value fits its type equals that exact value however its partial sums
wrap, so only whole ring expressions are ever asked whether they fit. With `index=True` int32 and
int64 ring expressions are taken to fit (an index, an extent or a loop bound that overflows is
undefined); with `index=False`, for values a user computes, only a proof by intervals counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, Union

from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Load,
    Select,
    Var,
    is_pure,
    logical_not,
    walk,
)

# ── values: an interval and a residue ────────────────────────────────────────────────────────


class Interval(NamedTuple):
    """All values lie in lo … hi; None is unbounded (floats; integers have their type's limits)."""

    lo: int | None
    hi: int | None

    @property
    def value(self) -> int | None:
        """The only value, if there is one."""
        return self.lo if self.lo == self.hi else None


class Range(NamedTuple):
    """What is known of a variable: lo … hi, and that it is `offset` plus a multiple."""

    lo: int | None = None
    hi: int | None = None
    multiple: int = 1
    offset: int = 0


class Value(NamedTuple):
    """lo … hi, congruent to `rem` modulo `mod`; mod 0 is the single value `rem`."""

    lo: int
    hi: int
    mod: int = 1
    rem: int = 0


BIT = Value(0, 1)


def single(c: int) -> Value:
    return Value(c, c, 0, c)


def _tight(lo: int, hi: int, mod: int, rem: int) -> Value:
    """The interval cut to the residue class. An empty one (dead code) stays uncut."""
    if mod == 0:
        return single(rem)
    rem %= mod
    low, high = lo + (rem - lo) % mod, hi - (hi - rem) % mod
    if low > high:
        return Value(lo, hi)
    return single(low) if low == high else Value(low, high, mod, rem)


def _add(a: Value, b: Value) -> Value:
    return _tight(a.lo + b.lo, a.hi + b.hi, gcd(a.mod, b.mod), a.rem + b.rem)


def _scale(a: Value, k: int) -> Value:
    lo, hi = (a.lo * k, a.hi * k) if k >= 0 else (a.hi * k, a.lo * k)
    return _tight(lo, hi, abs(a.mod * k), a.rem * k)


def _mul(a: Value, b: Value) -> Value:
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    mod = gcd(a.mod * b.mod, a.mod * b.rem, b.mod * a.rem)
    return _tight(min(corners), max(corners), mod, a.rem * b.rem)


def _join(a: Value, b: Value) -> Value:
    mod = gcd(a.mod, b.mod, a.rem - b.rem)
    return _tight(min(a.lo, b.lo), max(a.hi, b.hi), mod, a.rem)


def _meet(a: Value, b: Value) -> Value:
    """Both hold. Where they contradict each other (dead code) `a` stands."""
    lo, hi = max(a.lo, b.lo), min(a.hi, b.hi)
    g = gcd(a.mod, b.mod)
    if lo > hi or (a.rem - b.rem) % (g or 1) or (g == 0 and a.rem != b.rem):
        return a
    if a.mod == 0 or b.mod == 0:
        return a if a.mod == 0 else b
    # the residue modulo the least common multiple, by the Chinese remainder theorem
    step = b.mod // g
    k = (b.rem - a.rem) // g * pow(a.mod // g, -1, step) if step > 1 else 0
    return _tight(lo, hi, a.mod * step, a.rem + a.mod * k)


def _limits(dtype: DType) -> Value:
    return Value(int(dtype.min_value), int(dtype.max_value))


def _twos(v: Value) -> int:
    """A power of two that divides every value (a large one for zero)."""
    g = gcd(v.mod, v.rem)
    return g & -g if g else 1 << 64


def _floordiv(a: Value, b: Value) -> Value:
    """Quotients, division by zero left out as undefined."""
    segments = [(max(b.lo, 1), b.hi), (b.lo, min(b.hi, -1))]
    ends = [y for lo, hi in segments if lo <= hi for y in (lo, hi)]
    if not ends:
        return Value(-(1 << 64), 1 << 64)
    corners = [x // y for x in (a.lo, a.hi) for y in ends]
    mod, rem = 1, 0
    if b.mod == 0 and a.mod % b.rem == 0 and a.mod:
        mod, rem = a.mod // abs(b.rem), a.rem // b.rem
    return _tight(min(corners), max(corners), mod, rem)


def _floormod(a: Value, b: Value) -> Value:
    if b.mod == 0 and b.rem > 0:
        c = b.rem
        if a.lo // c == a.hi // c:
            return _add(a, single(-(a.lo // c) * c))
        return _tight(0, c - 1, gcd(a.mod, c), a.rem)
    hi = max(b.hi - 1, 0)
    if a.lo >= 0 and b.lo >= 0:
        hi = min(hi, a.hi)
    return Value(min(b.lo + 1, 0), hi)


def _and(a: Value, b: Value) -> Value:
    for x, y in ((a, b), (b, a)):
        if y.mod == 0 and y.rem >= 0 and y.rem & (y.rem + 1) == 0:
            return _floormod(x, single(y.rem + 1))
    highs = [v.hi for v in (a, b) if v.lo >= 0]
    if not highs:
        return Value(min(a.lo, b.lo, -1) * 2, max(a.hi, b.hi, 0))
    return _tight(0, min(highs), max(_twos(a), _twos(b)), 0)


def _or_xor(a: Value, b: Value) -> Value:
    bits = max(v.bit_length() for x in (a, b) for v in (x.lo, x.hi))
    low = 0 if a.lo >= 0 and b.lo >= 0 else -(1 << bits)
    return _tight(low, (1 << bits) - 1, min(_twos(a), _twos(b)), 0)


def _shift(a: Value, b: Value, left: bool) -> Value:
    ends = [min(max(y, 0), 64) for y in (b.lo, b.hi)]
    corners = [x << y if left else x >> y for x in (a.lo, a.hi) for y in ends]
    return _tight(min(corners), max(corners), _twos(a) << ends[0] if left else 1, 0)


_BINARY = {
    "//": _floordiv,
    "%": _floormod,
    "&": _and,
    "|": _or_xor,
    "^": _or_xor,
    "<<": lambda a, b: _shift(a, b, True),
    ">>": lambda a, b: _shift(a, b, False),
}


# ── linear forms ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Linear:
    """sum(coefficient · atom) + const. Atoms are variables, other expressions that are no ring
    expressions, or products (`Bin "*"`) of these; products serve as keys only, their sides may
    differ in type. Coefficients are not 0."""

    terms: Mapping[Expr, int]
    const: int = 0

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            total = terms.get(atom, 0) + c
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return Linear(terms, self.const + other.const)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, k: int) -> Linear:
        if k == 0:
            return Linear({})
        return Linear({atom: c * k for atom, c in self.terms.items()}, self.const * k)

    def plus(self, k: int) -> Linear:
        return Linear(self.terms, self.const + k)


_MAX_TERMS = 48


def _factors(atom: Expr) -> list[Expr]:
    if isinstance(atom, Bin) and atom.op == "*":
        return _factors(atom.a) + _factors(atom.b)
    return [atom]


def product(factors: Iterable[Expr]) -> Expr:
    """The product of atoms in a fixed order, so that equal products are one object."""
    first, *rest = sorted(factors, key=order_key)
    for factor in rest:
        first = Bin("*", first, factor)
    return first


_keys: dict[int, tuple[Expr, str]] = {}


def order_key(expr: Expr) -> str:
    """A text that orders expressions the same way in every run."""
    found = _keys.get(id(expr))
    if found is not None:
        return found[1]
    match expr:
        case Var():
            key = expr.name
        case Const():
            key = f"#{expr.value!r}"
        case _:
            name = getattr(expr, "op", "") or getattr(expr, "name", "") or type(expr).__name__
            if isinstance(expr, Load):
                name = expr.buffer.name
            inner = ",".join(order_key(child) for child in expr.children)
            key = f"~{name}:{expr.dtype.name}({inner})"
    if len(_keys) > 20_000:
        _keys.clear()
    _keys[id(expr)] = expr, key  # holding the expression keeps its id its own
    return key


def shift_amount(expr: Expr) -> int | None:
    """k, when `expr` is the constant of a well-defined shift by k."""
    if isinstance(expr, Const) and 0 <= expr.value < expr.dtype.bits:
        return int(expr.value)
    return None


def is_ring(expr: Expr) -> bool:
    """`expr` is a sum, difference, product, negation, complement or constant shift to the left."""
    if not expr.dtype.is_int:
        return False
    if isinstance(expr, Bin):
        return expr.op in ("+", "-", "*") or (
            expr.op == "<<" and shift_amount(expr.b) is not None
        )
    return isinstance(expr, Call) and expr.name in ("neg", "invert")


# ── ranges ───────────────────────────────────────────────────────────────────────────────────

RangeLike = Union[Range, tuple[Union[int, None], ...]]
_MIRROR = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
NEGATED = _MIRROR
_PROOF_STEPS = 40


class Ranges:
    """What holds at one place of a program: ranges of variables and facts that relate them.

    Immutable: `where`, `given`, `let` return richer ones. Analyses are memoised inside.

    >>> i, n = Var("i"), Var("n")
    >>> r = Ranges({i: (0, 7), n: (0, None, 8)})
    >>> bounds(i * 4 + 3, r), multiple_of(n * 2 + 16, r)
    (Interval(lo=3, hi=31), 16)
    >>> prove(i < n, r), prove(i < n, r.given(n > 0))
    (None, True)
    """

    def __init__(self, variables: Mapping[Var, RangeLike] | None = None) -> None:
        self._env: dict[Expr, Value] = {}
        self._facts: tuple[Linear, ...] = ()
        self._known: dict[Expr, bool] = {}
        self._defs: dict[Var, Expr] = {}
        self._reset()
        for var, spec in (variables or {}).items():
            self._env[var] = self._from_range(var, Range(*spec))  # type: ignore[arg-type]

    def _reset(self) -> None:
        self._values: dict[tuple[Expr, bool], Value] = {}
        self._forms: dict[tuple[Expr, bool], Linear] = {}
        self._given: dict[tuple[Expr, bool], Ranges] = {}
        self._proofs: dict[tuple[Expr, bool], bool | None] = {}
        # simplify's memo lives here, because it holds for these ranges only
        self.simplified: dict[tuple[Expr, bool], Expr] = {}

    def _copy(self) -> Ranges:
        new = Ranges.__new__(Ranges)
        new._env, new._facts = dict(self._env), self._facts
        new._known, new._defs = dict(self._known), dict(self._defs)
        new._reset()
        return new

    @staticmethod
    def _from_range(var: Var, spec: Range) -> Value:
        lo, hi, mod, rem = spec
        limits = _limits(var.dtype)
        low = limits.lo if lo is None else max(lo, limits.lo)
        high = limits.hi if hi is None else min(hi, limits.hi)
        return _tight(low, high, mod, rem)

    # growing

    def where(self, var: Var, lo: int | None = None, hi: int | None = None, multiple: int = 1,
              offset: int = 0) -> Ranges:  # fmt: skip
        """These, and `var` in lo … hi, `offset` plus a multiple of `multiple`."""
        new = self._copy()
        spec = self._from_range(var, Range(lo, hi, multiple, offset))
        new._env[var] = _meet(spec, self._env[var]) if var in self._env else spec
        return new

    def given(self, cond: Expr, holds: bool = True, *, index: bool = False) -> Ranges:
        """These, and `cond` true (or false). Conditions with loads say nothing: memory changes."""
        key = cond, holds
        found = self._given.get(key)
        if found is None:
            new = self._copy()
            changed = new._assume(cond, holds, index)
            found = self._given[key] = new if changed else self
        return found

    def let(self, var: Var, value: Expr) -> Ranges:
        """These, and `var` named `value`, evaluated just before."""
        new = self._copy()
        if var.dtype.is_int and value.dtype == var.dtype:
            new._env[var] = self._value(value, False)
            if is_pure(value) and self._exact(value, False):
                form = self._form(value, False) - Linear({var: 1})
                new._facts += (form, form.scaled(-1))
        elif var.dtype.is_bool and is_pure(value):
            new._defs[var] = value
        return new

    def loop(self, var: Var, start: Expr, stop: Expr, step: Expr) -> Ranges:
        """These, inside `for var = start, start + step, … < stop`."""
        first, by = self._value(start, True), self._value(step, True)
        mod = gcd(by.mod, by.rem, first.mod)
        new = self.where(var, None, None, mod or 1, first.rem % (mod or 1))
        if by.lo > 0:
            new = new.given(Cmp("<=", start, var), index=True) if start.dtype == var.dtype else new
            new = new.where(var, first.lo)
        new = new.given(Cmp("<", var, stop), index=True) if stop.dtype == var.dtype else new
        return new.where(var, None, self._value(stop, True).hi - 1)

    def _assume(self, cond: Expr, holds: bool, index: bool) -> bool:
        match cond:
            case Const():
                return False
            case Call(name="not", args=(inner,)):
                return self._assume(inner, not holds, index)
            case Bin(op="and" | "&") if holds:
                parts = [self._assume(c, True, index) for c in (cond.a, cond.b)]
                return any(parts)
            case Bin(op="or" | "|") if not holds:
                parts = [self._assume(c, False, index) for c in (cond.a, cond.b)]
                return any(parts)
        if not is_pure(cond) or self._known.get(cond) is holds:
            return False
        self._known[cond] = holds
        if isinstance(cond, Var) and cond in self._defs:
            self._assume(self._defs[cond], holds, index)
        if isinstance(cond, Cmp) and cond.a.dtype.is_int:
            self._reset()
            self._relate(cond.op if holds else _MIRROR[cond.op], cond.a, cond.b, index)
        self._reset()
        return True

    def _relate(self, op: str, a: Expr, b: Expr, index: bool) -> None:
        if not (self._exact(a, index) and self._exact(b, index)):
            return
        diff = self._form(a, index) - self._form(b, index)
        back = diff.scaled(-1)
        if op == "!=":
            span = self._eval(diff, index)
            forms = [diff.plus(-1)] * (span.lo == 0) + [back.plus(-1)] * (span.hi == 0)
        else:
            forms = {
                "<": [back.plus(-1)],
                "<=": [back],
                ">": [diff.plus(-1)],
                ">=": [diff],
                "==": [diff, back],
            }[op]
        for form in forms:
            rem = self._eval(form, index)
            if rem.mod > 1:
                # form ≥ 0 and form ≡ r, so form ≥ r
                form = form.plus(-(rem.rem % rem.mod))
            if form.terms:
                self._facts += (form,)
                self._narrow(form, index)
        if op == "==":
            self._residue(diff)

    def _narrow(self, form: Linear, index: bool) -> None:
        """Bounds of each atom from form ≥ 0 and the bounds of the others."""
        for atom, c in form.terms.items():
            if isinstance(atom, Bin) and atom.op == "*":
                continue
            rest = Linear({a: k for a, k in form.terms.items() if a is not atom}, form.const)
            limit = self._eval(rest, index).hi
            old = self._value(atom, index)
            if c > 0:
                new = Value(max(old.lo, -(limit // c)), old.hi, old.mod, old.rem)
            else:
                new = Value(old.lo, min(old.hi, limit // -c), old.mod, old.rem)
            if new != old and new.lo <= new.hi:
                self._env[atom] = _meet(_tight(*new), old)
                self._reset()

    def _residue(self, diff: Linear) -> None:
        """`x % c == r` fixes the residue of a variable x."""
        for atom, k in diff.terms.items():
            match atom:
                case Bin("%", _, Const(c)) if len(diff.terms) == 1 and abs(k) == 1 and c > 0:
                    inner = self._form(atom.a, False)
                    r = -diff.const * k
                    if not self._exact(atom.a, False) or len(inner.terms) != 1:
                        continue
                    ((var, scale),) = inner.terms.items()
                    if isinstance(var, Var) and abs(scale) == 1:
                        old = self._value(var, False)
                        spec = Value(old.lo, old.hi, int(c), (r - inner.const) * scale % int(c))
                        self._env[var] = _meet(spec, old)
                        self._reset()

    # values

    def _wraps(self, dtype: DType, index: bool) -> bool:
        return not (index and dtype.kind == "int" and dtype.bits >= 32)

    def _finish(self, v: Value, dtype: DType, index: bool) -> Value:
        """An exact result as the type holds it."""
        limits = _limits(dtype)
        if limits.lo <= v.lo and v.hi <= limits.hi:
            return v
        if self._wraps(dtype, index):
            mod = gcd(v.mod, 1 << dtype.bits)
            return _tight(limits.lo, limits.hi, mod, v.rem)
        return _meet(limits, v)

    def _value(self, expr: Expr, index: bool) -> Value:
        key = expr, index
        found = self._values.get(key)
        if found is None:
            found = self._compute(expr, index)
            known = self._env.get(expr)
            if known is not None and not isinstance(expr, Var):
                found = _meet(found, known)
            self._values[key] = found
        return found

    def _compute(self, expr: Expr, index: bool) -> Value:
        dtype = expr.dtype
        if isinstance(expr, Const):
            return single(int(expr.value))
        if isinstance(expr, Var):
            return self._env.get(expr) or _limits(dtype)
        if dtype.is_bool:
            return BIT
        if is_ring(expr):
            return self._finish(self._eval(self._form(expr, index), index), dtype, index)
        match expr:
            case Bin("min" | "max", a, b):
                x, y = self._value(a, index), self._value(b, index)
                pick = min if expr.op == "min" else max
                both = _join(x, y)
                return _tight(pick(x.lo, y.lo), pick(x.hi, y.hi), both.mod, both.rem)
            case Bin() if expr.op in _BINARY:
                x, y = self._value(expr.a, index), self._value(expr.b, index)
                return self._finish(_BINARY[expr.op](x, y), dtype, index)
            case Select():
                yes = self.given(expr.cond)._value(expr.a, index)
                no = self.given(expr.cond, False)._value(expr.b, index)
                return _join(yes, no)
            case Cast(_, a) if a.dtype.is_int or a.dtype.is_bool:
                return self._finish(self._value(a, index), dtype, False)
            case Call("abs", (a,)):
                x = self._value(a, index)
                low = 0 if x.lo <= 0 <= x.hi else min(abs(x.lo), abs(x.hi))
                v = Value(low, max(abs(x.lo), abs(x.hi)))
                return self._finish(v, dtype, index)
            case Call("popcount" | "clz", (a,)):
                return Value(0, a.dtype.bits)
        return _limits(dtype)

    # linear forms

    def _exact(self, expr: Expr, index: bool) -> bool:
        """The value of `expr` is that of its form over the integers."""
        if not is_ring(expr) or not self._wraps(expr.dtype, index):
            return True
        limits, v = _limits(expr.dtype), self._eval(self._form(expr, index), index)
        return limits.lo <= v.lo and v.hi <= limits.hi

    def _eval(self, form: Linear, index: bool) -> Value:
        total = single(form.const)
        for atom, c in form.terms.items():
            total = _add(total, _scale(self._monomial(atom, index), c))
        return total

    def _monomial(self, atom: Expr, index: bool) -> Value:
        if not (isinstance(atom, Bin) and atom.op == "*"):
            return self._value(atom, index)
        total = single(1)
        for factor in _factors(atom):
            total = _mul(total, self._value(factor, index))
        return total

    def _form(self, expr: Expr, index: bool) -> Linear:
        """`expr` over its atoms, products expanded: equal modulo 2^bits, and over the integers
        when `_exact`."""
        key = expr, index
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = self._expand(expr, index)
        return found

    def _expand(self, expr: Expr, index: bool) -> Linear:
        if isinstance(expr, Const):
            return Linear({}, int(expr.value))
        if is_ring(expr):
            forms = [self._form(child, index) for child in expr.children]
            match expr:
                case Bin("+"):
                    return forms[0] + forms[1]
                case Bin("-"):
                    return forms[0] - forms[1]
                case Bin("<<"):
                    return forms[0].scaled(1 << (shift_amount(expr.children[1]) or 0))
                case Bin("*"):
                    return self._times(*forms)
                case Call("neg"):
                    return forms[0].scaled(-1)
                case Call("invert"):
                    return forms[0].scaled(-1).plus(-1)
        if isinstance(expr, Cast) and expr.a.dtype.is_int and expr.dtype.is_int:
            v, limits = self._value(expr.a, index), _limits(expr.dtype)
            if limits.lo <= v.lo and v.hi <= limits.hi and self._exact(expr.a, index):
                return self._form(expr.a, index)
        v = self._value(expr, index)
        return Linear({}, v.rem) if v.mod == 0 else Linear({expr: 1})

    @staticmethod
    def _times(a: Linear, b: Linear) -> Linear:
        if not a.terms or not b.terms:
            return b.scaled(a.const) if not a.terms else a.scaled(b.const)
        if len(a.terms) * len(b.terms) > _MAX_TERMS:
            raise OverflowError
        total = a.scaled(b.const) + b.scaled(a.const).plus(-a.const * b.const)
        for x, j in a.terms.items():
            for y, k in b.terms.items():
                total += Linear({product(_factors(x) + _factors(y)): j * k})
        return total
