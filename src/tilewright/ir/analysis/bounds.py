"""What is known about integer expressions: intervals, residues, linear forms, proofs.

Everything here is exact or conservative: an interval holds every value the expression can take
under the `Ranges`, a residue is the residue of all of them, and `prove` says True or False only
when it holds for all of them.

**Overflow.** Integer arithmetic wraps. A *ring expression* (`+ - *`, negation, `~`, shifts left
by a constant) whose exact value fits its type equals that exact value however its partial sums
wrap, so only whole ring expressions are ever asked whether they fit. With `index=True` int32 and
int64 ring expressions are taken to fit (an index, an extent or a loop bound that overflows is
undefined). With `index=False`, for values a user computes, a proof by intervals counts, and that a
sum is made of coordinates and of sizes known at launch alone (`Ranges.sized`): scalar parameters
and what is loaded are data, whose sums wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from functools import wraps as wraps_method
from math import gcd
from typing import Any, TypeVar

from tilewright.ir.analysis.intervals import *
from tilewright.ir.analysis.linear import *
from tilewright.ir.core import *

NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
# Products wider than this stay unexpanded; proofs give up after so many steps (each about 10 µs).
_MAX_TERMS = 48
_PROOF_STEPS = 40
Answer = TypeVar("Answer")


def _once(find: Callable[[Ranges, Expr, bool], Answer]) -> Callable[[Ranges, Expr, bool], Answer]:
    """A question that is answered once for these ranges."""
    name = find.__name__

    @wraps_method(find)
    def ask(self: Ranges, expr: Expr, index: bool) -> Answer:
        key = name, expr, index
        found: Any = self._answers.get(key, _once)
        if found is _once:
            found = self._answers[key] = find(self, expr, index)
        return found  # type: ignore[no-any-return]

    return ask


class Ranges:
    """What holds at one place of a program: ranges of variables and facts that relate them.

    Immutable: `where`, `given`, `let`, `loop` return richer ones. Analyses are memoised inside.

    >>> i, n = Var("i"), Var("n")
    >>> r = Ranges({i: (0, 7), n: (0, None, 8)})
    >>> bounds(i * 4 + 3, r), multiple_of(n * 2 + 16, r)
    (Value(lo=3, hi=31, mod=4, rem=3), 16)
    >>> prove(i < n, r), prove(i < n, r.given(n > 0))
    (None, True)
    """

    def __init__(self, variables: Mapping[Var, Sequence[Any]] | None = None) -> None:
        given = variables or {}
        self._env: dict[Expr, Value] = {var: _within(var, *spec) for var, spec in given.items()}
        self._facts: tuple[Linear, ...] = ()
        self._known: dict[Expr, bool] = {}
        self._lets: dict[Var, tuple[Expr, frozenset[Expr]]] = {}
        # variables that are coordinates or sizes: whether a size known at launch is in them
        self._sized: dict[Expr, bool] = dict.fromkeys(given, False)
        self._reset()

    def _reset(self) -> None:
        self._answers: dict[tuple[str, Expr, bool], Any] = {}
        self._richer: dict[tuple[object, ...], Ranges] = {}
        # simplify's memos live here, because they hold for these ranges only
        self.simplified: dict[tuple[Expr, bool], Expr] = {}
        self.sums: dict[tuple[Expr, bool], Linear] = {}

    def trim(self, most: int = 60_000) -> None:
        """Empties the memo when it has grown large; for ranges that live as long as the process."""
        if len(self._answers) + len(self.simplified) + len(self._richer) > most:
            self._reset()

    def _copy(self) -> Ranges:
        new = Ranges.__new__(Ranges)
        new._env, new._facts = dict(self._env), self._facts
        new._known, new._lets = dict(self._known), dict(self._lets)
        new._sized = self._sized
        new._reset()
        return new

    # ── growing ──────────────────────────────────────────────────────────────────────────────

    def where(
        self,
        var: Var,
        lo: int | None = None,
        hi: int | None = None,
        multiple: int = 1,
        offset: int = 0,
        *,
        sized: bool | None = False,
    ) -> Ranges:
        """These, and `var`, a coordinate, in lo … hi, `offset` plus a multiple of `multiple`.

        `sized`: it is a size known at launch, or made of one; None: it is data."""
        key = "where", var, lo, hi, multiple, offset, sized
        if key not in self._richer:
            new = self._richer[key] = self._copy()
            new._mark(var, sized)
            spec = _within(var, lo, hi, multiple, offset)
            new._env[var] = meet(spec, self._env[var]) if var in self._env else spec
        return self._richer[key]

    def where_known(self, known: Mapping[Expr, Value], sized: Mapping[Expr, bool]) -> Ranges:
        """These, and what expressions lie between, loads included; `sized` as in `where`."""
        new = self._copy()
        new._env |= known
        new._sized = {**self._sized, **sized}
        return new

    def _mark(self, var: Var, sized: bool | None) -> None:
        if sized is not None:
            self._sized = {**self._sized, var: sized or self._sized.get(var, False)}

    def given(self, cond: Expr, holds: bool = True, *, index: bool = False) -> Ranges:
        """These, and `cond` true (or false). Conditions with loads say nothing: memory changes.

        `index`: int32 and int64 arithmetic in `cond` cannot overflow (it bounds a loop or a grid).
        """
        key = "given", cond, holds, index
        if key not in self._richer:
            new = self._copy()
            self._richer[key] = new if new._assume(cond, holds, index) else self
        return self._richer[key]

    def let(self, var: Var, value: Expr) -> Ranges:
        """These, and `var` named `value`, evaluated just before."""
        key = "let", var, value
        if key in self._richer:
            return self._richer[key]
        new = self._richer[key] = self._copy()
        new._lets[var] = value, frozenset(self._env)
        new._mark(var, self.sized(value))
        if var.dtype.is_int and value.dtype == var.dtype:
            new._env[var] = self.value(value, False)
            if is_pure(value) and self.settled(value):
                form = self.form(value, False) - Linear({var: 1})
                new._facts += (form, form.scaled(-1))
        return new

    def loop(self, var: Var, start: Expr, stop: Expr, step: Expr) -> Ranges:
        """These, inside `for var = start, start + step, … < stop`; nothing of `var` where the step
        may be negative."""
        first, by = self.value(start, True), self.value(step, True)
        if by.lo < 0:
            return self
        mod = gcd(by.mod, by.rem, first.mod) or 1
        ends = self.sized(start), self.sized(stop)
        sized = None if None in ends else True in ends
        new = self.where(var, None, self.value(stop, True).hi - 1, mod, first.rem, sized=sized)
        if stop.dtype == var.dtype:
            new = new.given(Cmp("<", var, stop), index=True)
        if by.lo > 0:
            new = new.where(var, first.lo, sized=sized)
            if start.dtype == var.dtype:
                new = new.given(Cmp("<=", start, var), index=True)
        return new

    def _assume(self, cond: Expr, holds: bool, index: bool) -> bool:
        """Takes `cond` in, on a copy not yet given out; False when it says nothing new."""
        match cond:
            case Const():
                return False
            case Call("not", (inner,)):
                return self._assume(inner, not holds, index)
            case Bin("and" | "&") if holds:
                return sum(self._assume(c, True, index) for c in cond.children) > 0
            case Bin("or" | "|") if not holds:
                return sum(self._assume(c, False, index) for c in cond.children) > 0
        if not is_pure(cond) or self._known.get(cond) is holds:
            return False
        self._known[cond] = holds
        self._reset()
        if isinstance(cond, Var) and cond in self._lets:
            self._assume(self._lets[cond][0], holds, index)
        if isinstance(cond, Cmp) and cond.a.dtype.is_int:
            self._relate(cond.op if holds else NEGATED[cond.op], cond.a, cond.b, index)
        return True

    def _relate(self, op: str, a: Expr, b: Expr, index: bool) -> None:
        if not (index or (self.settled(a) and self.settled(b))):
            return
        diff = self.form(a, index) - self.form(b, index)
        back = diff.scaled(-1)
        span = self.evaluate(diff, index)
        for form in {
            "<": [back.plus(-1)],
            "<=": [back],
            ">": [diff.plus(-1)],
            ">=": [diff],
            "==": [diff, back],
            "!=": [diff.plus(-1)] * (span.lo == 0) + [back.plus(-1)] * (span.hi == 0),
        }[op]:
            self._at_least_zero(form, index)
        if op == "==" and len(diff.terms) == 1:
            ((atom, k),) = diff.terms.items()
            if k in (1, -1):
                self._residue(atom, -diff.const * k)

    def _at_least_zero(self, form: Linear, index: bool) -> None:
        """Takes in form ≥ 0, and the bounds it puts on each of its atoms."""
        v = self.evaluate(form, index)
        if not form.terms or v.lo >= 0:
            return
        if v.mod > 1:
            form = form.plus(-v.rem)  # form ≥ 0 and form ≡ r, so form ≥ r
        self._facts += (form,)
        for atom, c in form.terms.items():
            if isinstance(atom, Bin) and atom.op == "*":
                continue
            rest = Linear({a: k for a, k in form.terms.items() if a is not atom}, form.const)
            limit = self.evaluate(rest, index).hi
            old = self.value(atom, index)
            lo = max(old.lo, -(limit // c)) if c > 0 else old.lo
            hi = min(old.hi, limit // -c) if c < 0 else old.hi
            if (lo, hi) != old[:2] and lo <= hi:
                self._env[atom] = new = meet(tight(lo, hi, old.mod, old.rem), old)
                self._reset()
                self._push(atom, new, index)

    def _push(self, atom: Expr, v: Value, index: bool) -> None:
        """Bounds of x // c, min and max are bounds of what is inside."""
        match atom:
            case Bin("//", x, Const(c)) if c > 0 and self.exact(x, index):
                inner, c = self.form(x, index), int(c)
                self._at_least_zero(inner.plus(-v.lo * c), index)
                self._at_least_zero(inner.scaled(-1).plus(v.hi * c + c - 1), index)
            case Bin("min" | "max"):
                for x in atom.children:
                    if self.exact(x, index):
                        form, low = self.form(x, index), atom.op == "min"
                        bound = form.plus(-v.lo) if low else form.scaled(-1).plus(v.hi)
                        self._at_least_zero(bound, index)

    def _residue(self, atom: Expr, rem: int) -> None:
        """`x % c == rem` fixes the residue of a variable x."""
        match atom:
            case Bin("%", x, Const(c)) if c > 0 and self.settled(x):
                inner = self.form(x, False)
                (var, k), *more = [*inner.terms.items()] or [(atom, 0)]
                if isinstance(var, Var) and not more and k in (1, -1):
                    old = self.value(var, False)
                    spec = Value(old.lo, old.hi, int(c), (rem - inner.const) * k % int(c))
                    self._env[var] = meet(spec, old)
                    self._reset()

    # ── values ───────────────────────────────────────────────────────────────────────────────

    @_once
    def value(self, expr: Expr, index: bool) -> Value:
        """The values an expression can take."""
        known = None if isinstance(expr, Var) else self._env.get(expr)
        found = self._compute(expr, index)
        return found if known is None else meet(found, known)

    def _compute(self, expr: Expr, index: bool) -> Value:
        dtype = expr.dtype
        if dtype.is_float:
            return limits(dtype)
        if isinstance(expr, Const):
            return single(int(expr.value))
        if isinstance(expr, Var):
            return self._env.get(expr) or limits(dtype)
        if dtype.is_bool:
            return BIT
        if is_ring(expr):
            exact = self.evaluate(self.form(expr, index), index)
            return held(exact, dtype, not self.wraps(expr, index))
        match expr:
            case Bin("min" | "max", a, b):
                x, y = self.value(a, index), self.value(b, index)
                pick = min if expr.op == "min" else max
                both = join(x, y)
                return tight(pick(x.lo, y.lo), pick(x.hi, y.hi), both.mod, both.rem)
            case Bin(op, a, b) if op in BINARY:
                return held(BINARY[op](self.value(a, index), self.value(b, index)), dtype, index)
            case Select(cond, a, b):
                yes = self.given(cond).value(a, index)
                return join(yes, self.given(cond, False).value(b, index))
            case Cast(_, a) if a.dtype.is_int or a.dtype.is_bool:
                return held(self.value(a, index), dtype, False)
            case Call("abs", (a,)):
                x = self.value(a, index)
                ends = abs(x.lo), abs(x.hi)
                low = 0 if x.lo <= 0 <= x.hi else min(ends)
                return held(Value(low, max(ends)), dtype, index)
            case Call("popcount" | "clz", (a,)):
                return Value(0, a.dtype.bits)
        return limits(dtype)

    def sized(self, expr: Expr) -> bool | None:
        """Of arithmetic on coordinates and sizes alone, whether sizes known at launch are in it;
        None of what depends on data."""
        if isinstance(expr, Var) or expr in self._sized:
            return self._sized.get(expr)
        return self._made(expr, False)

    @_once
    def _made(self, expr: Expr, _: bool) -> bool | None:
        parts = [self.sized(child) for child in expr.children]
        return None if isinstance(expr, Load) or None in parts else True in parts

    def wraps(self, expr: Expr, index: bool) -> bool:
        """Overflow of a ring expression has a meaning."""
        return wraps(expr.dtype, index or self.sized(expr) is True)

    # ── linear forms ─────────────────────────────────────────────────────────────────────────

    def exact(self, expr: Expr, index: bool) -> bool:
        """The value of `expr` is that of its form over the integers: nothing wraps away."""
        if not is_ring(expr) or not self.wraps(expr, index):
            return True
        return fits(self.evaluate(self.form(expr, index), index), expr.dtype)

    def settled(self, expr: Expr) -> bool:
        """Nothing in `expr` can overflow, so that it reads the same as an index and as a value.

        A fact about values may serve questions about indices only then: these take for granted
        what the evaluation of the fact did not have.
        """
        dtype = expr.dtype
        if is_ring(expr):
            atoms = [x for atom in self.form(expr, False).terms for x in factors(atom)]
            return self.exact(expr, False) and all(map(self.settled, atoms))
        if not wraps(dtype, True):
            match expr:
                case Bin("//" | "<<" as op, a, b):
                    result = BINARY[op](self.value(a, False), self.value(b, False))
                    if not fits(result, dtype):
                        return False
                case Call("abs", (a,)) if self.value(a, False).lo <= dtype.min_value:
                    return False
        return all(self.settled(child) for child in expr.children)

    def evaluate(self, form: Linear, index: bool) -> Value:
        """The values a form can take over the integers."""
        lo = hi = rem = form.const
        mod = 0
        for atom, c in form.terms.items():
            v = self._product(atom, index)
            lo += c * (v.lo if c > 0 else v.hi)
            hi += c * (v.hi if c > 0 else v.lo)
            mod = gcd(mod, v.mod * c)
            rem += v.rem * c
        return tight(lo, hi, mod, rem)

    @_once
    def _product(self, atom: Expr, index: bool) -> Value:
        """The values of an atom, which may be a product of others."""
        return reduce(multiply, (self.value(factor, index) for factor in factors(atom)))

    @_once
    def form(self, expr: Expr, index: bool) -> Linear:
        """`expr` over its atoms, products expanded: equal modulo 2^bits, and over the integers
        when `exact`."""
        if isinstance(expr, Const):
            return Linear({}, int(expr.value))
        if is_ring(expr):

            def times(a: Linear, b: Linear) -> Linear:
                small = len(a.terms) * len(b.terms) <= _MAX_TERMS
                return a.times(b) if small else Linear({expr: 1})

            return combined(expr, lambda side: self.form(side, index), times)
        if isinstance(expr, Cast) and expr.a.dtype.is_int and expr.dtype.is_int:
            inner = self.value(expr.a, index)
            if fits(inner, expr.dtype) and self.exact(expr.a, index):
                return self.form(expr.a, index)
        v = self.value(expr, index)
        return Linear({}, v.rem) if v.mod == 0 else Linear({expr: 1})

    def resolve(self, expr: Expr, var: Var) -> Expr | None:
        """`expr` with the `Let`s that may depend on `var` put in; None when one of them loads."""
        for _ in range(len(self._lets) + 1):
            inside = {
                name: self._lets[name][0]
                for name in variables(expr)
                if name in self._lets and var in self._lets[name][1]
            }
            if not inside:
                break
            if not all(is_pure(value) for value in inside.values()):
                return None
            expr = substitute(expr, inside)
        return expr

    # ── proofs ───────────────────────────────────────────────────────────────────────────────

    @_once
    def prove(self, cond: Expr, index: bool) -> bool | None:
        """True or False when `cond` always is, else None."""
        if isinstance(cond, Const):
            return bool(cond.value)
        if cond in self._known:
            return self._known[cond]
        match cond:
            case Call("not", (inner,)):
                found = self.prove(inner, index)
                return None if found is None else not found
            case Bin("and" | "or" | "&" | "|"):
                stop = cond.op in ("or", "|")  # the value that decides
                a, b = (self.prove(c, index) for c in cond.children)
                if a is stop or b is stop:
                    return stop
                return None if a is None or b is None else not stop
            case Select(c, a, b):
                chosen = self.prove(c, index)
                sides = [self.prove(a, index)] * (chosen is not False)
                sides += [self.prove(b, index)] * (chosen is not True)
                return sides[0] if all(s is sides[0] for s in sides) else None
            case Var() if cond in self._lets and is_pure(self._lets[cond][0]):
                return self.prove(self._lets[cond][0], False)
            case Cmp(op, a, b) if a.dtype.is_int or a.dtype.is_bool:
                return self._compare(op, a, b, index)
        return None

    def _compare(self, op: str, a: Expr, b: Expr, index: bool) -> bool | None:
        if op in ("!=", ">=", ">"):
            found = self._compare(NEGATED[op], a, b, index)
            return None if found is None else not found
        if a.dtype.is_bool or not (self.exact(a, index) and self.exact(b, index)):
            x, y = self.value(a, index), self.value(b, index)
            low, high = x.lo - y.hi, x.hi - y.lo
            if op == "==":
                apart = (x.rem - y.rem) % (gcd(x.mod, y.mod) or 1) != 0
                return False if low > 0 or high < 0 or apart else True if low == high else None
            limit = -1 if op == "<" else 0
            return True if high <= limit else False if low > limit else None
        diff = self.form(a, index) - self.form(b, index)
        back = diff.scaled(-1)
        if op == "==":
            v = self.evaluate(diff, index)
            if v.mod == 0 or v.rem % (v.mod or 1):
                return v.rem == 0
            if self.nonneg(diff.plus(-1), index) or self.nonneg(back.plus(-1), index):
                return False
            return True if self.nonneg(diff, index) and self.nonneg(back, index) else None
        strict = op == "<"
        if self.nonneg(back.plus(-strict), index):
            return True
        return False if self.nonneg(diff.plus(strict - 1), index) else None

    def nonneg(self, goal: Linear, index: bool) -> bool:
        """`goal` ≥ 0 follows from the intervals and a combination of facts."""
        queue, seen = [goal], {goal.key}
        for form in queue:
            if self.evaluate(form, index).lo >= 0:
                return True
            if len(queue) == _PROOF_STEPS:
                continue
            for less in self._implying(form, index):
                if len(less.terms) <= len(goal.terms) + 3 and (key := less.key) not in seen:
                    seen.add(key)
                    queue.append(less)
                    if len(queue) == _PROOF_STEPS:
                        break
        return False

    def _implying(self, form: Linear, index: bool) -> Iterator[Linear]:
        """Forms that have an atom less, and are not negative only where `form` is not."""
        for atom, c in form.terms.items():
            for fact in self._facts_about(atom, index):
                k = fact.terms[atom]
                if (k > 0) == (c > 0):
                    # with fact ≥ 0, this ≥ 0 implies form ≥ 0, and the atom is gone; a multiple
                    # of an integer that is above -times is not below 0
                    g = gcd(k, c)
                    times = abs(k) // g
                    yield form.mixed(times, fact, -(abs(c) // g), times - 1)

    @_once
    def _facts_about(self, atom: Expr, index: bool) -> tuple[Linear, ...]:
        known = (*self._facts, *self._structural(atom, index))
        return tuple(fact for fact in known if atom in fact.terms)

    def _structural(self, atom: Expr, index: bool) -> Iterator[Linear]:
        """Facts (≥ 0) that an atom carries in itself."""
        one = Linear({atom: 1})
        match atom:
            case Bin("//" | "%", x, d) if self.exact(x, index) and self.exact(d, index):
                num, den = self.form(x, index), self.form(d, index)
                values = self.evaluate(num, index)
                if self.value(d, index).lo < 1:
                    return
                if atom.op == "%":
                    whole = self.form(Bin("//", x, d), index).times(den) + one - num
                    yield from (whole, whole.scaled(-1), den - one.plus(1))
                    if values.lo >= 0:
                        yield num - one
                elif len(den.terms) <= 4:
                    least, most = 0, den.plus(-1)
                    if not den.terms:
                        g = gcd(values.mod, den.const)
                        least = values.rem % g
                        most = Linear({}, den.const - g + least)
                    yield num - one.times(den).plus(least)
                    yield one.times(den) + most - num
            case Bin("min" | "max", a, b):
                for side in (a, b):
                    if self.exact(side, index):
                        gap = self.form(side, index) - one
                        yield gap if atom.op == "min" else gap.scaled(-1)
            case Bin("*"):
                parts = factors(atom)
                for at, factor in enumerate(parts[:3]):
                    others = Linear({}, 1)
                    for other in parts[:at] + parts[at + 1 :]:
                        others = others.times(Linear({other: 1}))
                    if self.evaluate(others, index).lo >= 0:
                        for fact in self._facts_about(factor, index):
                            if all(len(factors(a)) == 1 for a in fact.terms):
                                yield fact.times(others)


def _within(
    var: Var, lo: int | None = None, hi: int | None = None, multiple: int = 1, offset: int = 0
) -> Value:
    full = limits(var.dtype)
    first = full.lo if lo is None else max(lo, full.lo)
    last = full.hi if hi is None else min(hi, full.hi)
    return tight(first, last, multiple, offset)


# ── questions ────────────────────────────────────────────────────────────────────────────────

NOTHING = Ranges()


def bounds(expr: Expr, ranges: Ranges = NOTHING, *, index: bool = True) -> Value:
    """The values of an expression."""
    return ranges.value(expr, index)


def multiple_of(expr: Expr, ranges: Ranges = NOTHING, *, index: bool = True) -> int:
    """The largest known divisor of all values; 0, a multiple of everything, for constant 0."""
    return ranges.value(expr, index).multiple


def prove(cond: Expr, ranges: Ranges = NOTHING, *, index: bool = True) -> bool | None:
    """True or False when `cond` always is, None when it varies or nobody knows."""
    return ranges.prove(cond, index)


def linear(expr: Expr, ranges: Ranges = NOTHING, *, index: bool = True) -> Linear | None:
    """`expr` as a sum of atoms with constant coefficients, equal over the integers.

    None when it may wrap (`index=False` only).

    >>> i, j = Var("i"), Var("j")
    >>> form = linear((i + 2) * 4 - j)
    >>> form.terms[i], form.terms[j], form.const
    (4, -1, 8)
    """
    return ranges.form(expr, index) if ranges.exact(expr, index) else None


def stride_of(expr: Expr, var: Var, ranges: Ranges = NOTHING, *, index: bool = True) -> int | None:
    """How much `expr` grows when `var` grows by one, if that is one constant; else None.

    `Let`s made inside the scope of `var` are looked through. Loads are taken not to change while
    `var` does, except through their indices.
    """
    resolved = ranges.resolve(expr, var)
    form = linear(resolved, ranges, index=index) if resolved is not None else None
    if form is None:
        return None
    if any(atom is not var and var in variables(atom) for atom in form.terms):
        return None
    return form.terms.get(var, 0)
