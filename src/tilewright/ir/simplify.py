"""Simplification of expressions, exact for every assignment the ranges allow.

`simplify(expr, ranges)` gives an expression with the same value wherever the variables lie in
their ranges and the facts hold. Integer sums come out in one canonical form (terms in a fixed
order, constants last), so that equal sums become one object; comparisons have their common terms
cancelled; `>> k`, `<< k` and `& (2^k - 1)` become `// 2^k`, `* 2^k` and `% 2^k`, which means the
same on wrapping integers of either sign and which backends print as shifts and masks again.

Overflow follows `bounds`: rewriting sums is right modulo 2^bits, always; rewriting what stands
under `//`, `%` or a comparison needs sums that do not wrap, by proof or, for `index=True`, by
decree; and no sum is put under one of these that might wrap where the old one did not. Floats
are touched only where IEEE arithmetic agrees bit for bit (so `x + 0.0` stays: x may be -0.0).

The result is a fixed point: simplifying it again returns the same object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any

from tilewright.ir.analysis.bounds import NEGATED, NOTHING, Ranges
from tilewright.ir.analysis.intervals import *
from tilewright.ir.analysis.linear import *
from tilewright.ir.core import *

# Each rewrite shrinks an expression or moves it towards the canonical form; the tests see chains
# of at most a few steps. The limit only turns a faulty rule into a missed simplification.
_MAX_STEPS = 40


def simplify(expr: Expr, ranges: Ranges = NOTHING, *, index: bool = True) -> Expr:
    """`expr`, simpler, with the same value everywhere in `ranges`.

    `index`: int32 and int64 sums do not overflow (see `bounds`); indices of loads never do.

    >>> from tilewright.ir.expr import Var
    >>> i, j = Var("i"), Var("j")
    >>> simplify((i * 8 + j) // 8, Ranges({j: (0, 7)})) is i
    True
    """
    ranges.trim()
    return Simplifier(ranges, index).go(expr)


class Simplifier:
    def __init__(self, ranges: Ranges, index: bool) -> None:
        self.ranges = ranges
        self.index = index

    def go(self, expr: Expr) -> Expr:
        memo = self.ranges.simplified
        found = memo.get((expr, self.index))
        if found is not None:
            return found
        result = expr
        for _ in range(_MAX_STEPS):
            new = self.step(result)
            if new is result or new == result:
                break
            result = new
            if (result, self.index) in memo:
                result = memo[result, self.index]
                break
        memo[expr, self.index] = memo[result, self.index] = result
        return result

    def step(self, expr: Expr) -> Expr:
        """The parts simplified, then at most one rule applied."""
        if isinstance(expr, Const):
            return expr
        if expr.dtype.is_int and not isinstance(expr, Load):
            v = self.ranges.value(expr, self.index)
            if v.mod == 0:
                return Const(v.rem, expr.dtype)
        if is_ring(expr):
            new = self.attempt(lambda: self.rebuild(self.sum_form(expr), expr.dtype))
            return expr if new is None else new
        children = self.parts(expr)
        if any(new is not old for new, old in zip(children, expr.children, strict=True)):
            if isinstance(expr, Select) and isinstance(children[0], Const):
                expr = children[1] if children[0].value else children[2]
            else:
                expr = expr.rebuild(children)
        if expr.dtype.is_bool:
            known = self.ranges.prove(expr, self.index)
            if known is not None:
                return TRUE if known else FALSE
        kind = expr.op if isinstance(expr, (Bin, Cmp)) else type(expr).__name__
        if isinstance(expr, Call):
            kind = expr.name
        for rule in RULES.get(kind, ()):
            new = self.attempt(partial(rule, self, expr))
            if new is not None:
                return new
        return expr

    @staticmethod
    def attempt(rewrite: Callable[[], Expr | None]) -> Expr | None:
        try:
            return rewrite()
        except TooLarge:
            return None

    def parts(self, expr: Expr) -> tuple[Expr, ...]:
        """The children, each simplified in its own context."""
        match expr:
            case Load():
                inner = Simplifier(self.ranges, True)
                return tuple(inner.go(i) for i in expr.indices)
            case Select(cond, a, b):
                c = self.go(cond)
                return c, self.under(c, True).go(a), self.under(c, False).go(b)
            case Bin("and" | "or", a, b):
                first = self.go(a)
                return first, self.under(first, expr.op == "and").go(b)
        return tuple(self.go(child) for child in expr.children)

    def under(self, cond: Expr, holds: bool) -> Simplifier:
        ranges = self.ranges.given(cond, holds)
        return self if ranges is self.ranges else Simplifier(ranges, self.index)

    # ── integer sums in one canonical form, over simplified terms ────────────────────────────

    def sum_form(self, expr: Expr) -> Linear:
        """`expr` over simplified atoms, equal modulo 2^bits; products stay unexpanded."""
        memo, key = self.ranges.sums, (expr, self.index)
        found = memo.get(key)
        if found is None:
            found = memo[key] = self.collect(expr)
        return found

    def collect(self, expr: Expr) -> Linear:
        if isinstance(expr, Const):
            return Linear({}, int(expr.value))
        if not is_ring(expr):
            atom = self.go(expr)
            if isinstance(atom, Const) or is_ring(atom):
                return self.sum_form(atom)
            return Linear({atom: 1})
        return combined(expr, self.sum_form, partial(self.product_form, dtype=expr.dtype))

    def product_form(self, a: Linear, b: Linear, dtype: DType) -> Linear:
        if not a.terms or not b.terms:
            return b.scaled(a.const) if not a.terms else a.scaled(b.const)
        scale, parts = 1, list[Expr]()
        for form in (a, b):
            (atom, k), *more = form.terms.items()
            if more or form.const:
                atom, k = build_sum(form, dtype), 1
            scale *= k
            parts += factors(atom)
        return Linear({product(parts): scale})

    def rebuild(self, form: Linear, dtype: DType) -> Expr:
        return build_sum(self.recombine(form, dtype), dtype)

    def recombine(self, form: Linear, dtype: DType) -> Linear:
        """Quotients and remainders of one division put together again."""
        for _ in range(len(form.terms)):
            new = next(
                filter(None, (self.undo_division(form, *t, dtype) for t in form.terms.items())),
                None,
            )
            if new is None:
                break
            form = new
        return form

    def undo_division(self, form: Linear, atom: Expr, k: int, dtype: DType) -> Linear | None:
        match atom:
            case Bin("//", x, Const(c)) if c > 0 and k % c == 0:
                t, rest = k // int(c), Bin("%", x, atom.b)
                inner = self.sum_form(x)
                if form.terms.get(rest) == t:  # x // c * c + x % c
                    return form - Linear({atom: k, rest: t}) + inner.scaled(t)
                back = inner.scaled(-t)
                if all(form.terms.get(a) == j for a, j in back.terms.items()):  # x - x // c * c
                    return form - Linear({atom: k}) - back + Linear({rest: -t})
            case Bin("%", Bin("//", x, Const(c)) as q, Const(m)) if c > 0 and m > 0 and k % c == 0:
                t, rest = k // int(c), Bin("%", x, Const(c, dtype))
                if form.terms.get(rest) == t and c * m <= dtype.max_value:
                    # x // c % m * c + x % c
                    whole = Bin("%", x, Const(int(c) * int(m), q.dtype))
                    return form - Linear({atom: k, rest: t}) + Linear({whole: t})
        return None

    def fits(self, form: Linear, dtype: DType) -> bool:
        """The form's exact value is one the type holds."""
        if form.const == 0 and list(form.terms.values()) == [1]:
            return True
        return fits(self.ranges.evaluate(form, self.index), dtype)

    def fits_within(self, part: Linear, whole: Linear, dtype: DType) -> bool:
        """`part` fits, given that `whole` does."""
        if part.key == whole.key or self.fits(part, dtype):
            return True
        full = limits(dtype)
        v = self.ranges.evaluate(part, self.index)
        taken = self.ranges.evaluate(whole - part, self.index)
        return (v.lo >= full.lo or taken.hi <= 0) and (v.hi <= full.hi or taken.lo >= 0)


# ── rules: what one node with simplified parts may become ────────────────────────────────────
#
# A rule returns the replacement, or None where it does not apply. Each is exact under the ranges
# and the reading of overflow that the simplifier was given.

# ── division ─────────────────────────────────────────────────────────────────────────────────


def _divide(s: Simplifier, e: Bin) -> Expr | None:
    """x // c and x % c for a constant c > 0: multiples of c leave, what is left is reduced."""
    if not (isinstance(e.b, Const) and e.b.value > 0 and e.dtype.is_int):
        return None
    if e.op == "//" and e.b.value == 1:
        return e.a
    c, dtype, whole = int(e.b.value), e.dtype, s.sum_form(e.a)
    # modulo a divisor of 2^bits it does not matter whether a sum wraps that may
    loose = e.op == "%" and (1 << dtype.bits) % c == 0 and wraps(dtype, s.index)
    if not loose and not s.ranges.exact(e.a, s.index):
        return None
    return (_quotient if e.op == "//" else _remainder)(s, whole, c, dtype, loose)


def _quotient(s: Simplifier, whole: Linear, c: int, dtype: DType, _: bool) -> Expr | None:
    out = Linear({a: k // c for a, k in whole.terms.items() if k % c == 0}, whole.const // c)
    left = whole - out.scaled(c)
    if not s.fits_within(left, whole, dtype):
        out, left = ZERO, whole
    v = s.ranges.evaluate(left, s.index)
    if v.lo // c == v.hi // c:
        return s.rebuild(out.plus(v.lo // c), dtype)
    high = left - _low_part(s, left, c)
    if s.fits_within(high, left, dtype):
        left = high
    left, carry = _drop_idle_constant(s, left, c, dtype)
    out = out.plus(carry)
    inner = _nested(s, left, c, dtype)
    if inner is None:
        g = gcd(c, *left.terms.values())
        left = Linear({a: k // g for a, k in left.terms.items()}, left.const // g)
        inner = Bin("//", build_sum(left, dtype), Const(c // g, dtype))
    return s.rebuild(out + Linear({inner: 1}), dtype)


def _low_part(s: Simplifier, form: Linear, c: int) -> Linear:
    """Terms that only count below a multiple of a divisor of c, which the others are: of
    4·n + j with j < 4 it is j, so that // 8 does not see it and % 8 leaves it alone."""
    for g in sorted({gcd(c, k) for k in form.terms.values()} - {1, c}, reverse=True):
        low = Linear({a: k for a, k in form.terms.items() if k % g}, form.const % g)
        v = s.ranges.evaluate(low, s.index)
        if low.terms and v.lo >= 0 and v.hi < g:
            return low
    return ZERO


def _drop_idle_constant(s: Simplifier, form: Linear, c: int, dtype: DType) -> tuple[Linear, int]:
    """(f', q) with form // c == f' // c + q, the constant as small as residues allow:
    (4·n + 3) // 8 is 4·n // 8."""
    if not 0 <= form.const < c:
        return form, 0
    bare = form.plus(-form.const)
    v = s.ranges.evaluate(bare, s.index)
    g = gcd(v.mod, c)
    rem = v.rem % g
    steps = (rem + form.const) // g
    if not s.fits_within(bare, form, dtype):
        return form, 0
    if g == c:
        return bare, steps
    return bare.plus(max(0, steps * g - rem)), 0


def _nested(s: Simplifier, form: Linear, c: int, dtype: DType) -> Expr | None:
    """(x // a + k) // c is (x + k·a) // (a·c)."""
    if list(form.terms.values()) != [1]:
        return None
    match next(iter(form.terms)):
        case Bin("//", x, Const(a)) if a > 0 and a * c <= dtype.max_value:
            inner = s.sum_form(x)
            moved = inner.plus(form.const * int(a))
            if s.ranges.exact(x, s.index) and s.fits_within(moved, inner, dtype):
                return Bin("//", build_sum(moved, dtype), Const(int(a) * c, dtype))
    return None


def _remainder(s: Simplifier, whole: Linear, c: int, dtype: DType, loose: bool) -> Expr | None:
    left = Linear({a: r for a, k in whole.terms.items() if (r := _toward_zero(k, c))})
    left = left.plus(whole.const % c)
    for atom, k in left.terms.items():
        match atom:
            case Bin("%", x, Const(m)) if m > 0 and m % c == 0:  # x % m % c
                left = left - Linear({atom: k}) + s.sum_form(x).scaled(k)
                left = left.plus(left.const % c - left.const)
                break
    if not loose and not s.fits_within(left, whole, dtype):
        left = whole
    v = s.ranges.evaluate(left, s.index)
    if v.lo // c == v.hi // c and (not loose or s.fits(left, dtype)):
        return s.rebuild(left.plus(-(v.lo // c) * c), dtype)
    low = ZERO if loose else _low_part(s, left, c)
    if s.fits_within(left - low, left, dtype):
        left = left - low
    else:
        low = ZERO
    g = gcd(c, *left.terms.values())
    extra = left.const % g
    left = Linear({a: k // g for a, k in left.terms.items()}, left.const // g)
    inner = Bin("%", build_sum(left, dtype), Const(c // g, dtype))
    return s.rebuild(Linear({inner: g}, extra) + low, dtype)


def _toward_zero(k: int, c: int) -> int:
    return k % c if k >= 0 else -(-k % c)


def _divide_by_symbol(s: Simplifier, e: Bin) -> Expr | None:
    """(q·d + r) // d and % d for a d known at run time only."""
    if isinstance(e.b, Const) or not e.dtype.is_int or not s.ranges.exact(e.a, s.index):
        return None
    whole, divisor = s.sum_form(e.a), factors(e.b)
    out, left = ZERO, whole
    for atom, k in whole.terms.items():
        parts = factors(atom)
        for factor in divisor:
            if factor not in parts:
                break
            parts.remove(factor)
        else:
            out += Linear({product(parts): k}) if parts else Linear({}, k)
            left -= Linear({atom: k})
    den = s.ranges.form(e.b, s.index)
    if not s.fits_within(left, whole, e.dtype):
        return None
    rest = build_sum(left, e.dtype)
    num = s.ranges.form(rest, s.index)
    if (
        s.ranges.exact(e.b, s.index)
        and s.ranges.nonneg(num, s.index)
        and s.ranges.nonneg(den - num.plus(1), s.index)
    ):
        return s.rebuild(out if e.op == "//" else left, e.dtype)
    if not out.terms and not out.const:
        return None
    inner = Bin(e.op, rest, e.b)
    return inner if e.op == "%" else s.rebuild(out + Linear({inner: 1}), e.dtype)


# ── bits, minimum, maximum ───────────────────────────────────────────────────────────────────


def _shift(s: Simplifier, e: Bin) -> Expr | None:
    """A shift to the right is a division; one by the width or more leaves nothing but the sign."""
    if not isinstance(e.b, Const) or not e.dtype.is_int:
        return None
    k, last = shift_amount(e.b), e.dtype.bits - 1
    if k is not None:
        return Bin("//", e.a, Const(1 << k, e.dtype)) if 1 << k <= e.dtype.max_value else None
    if e.op == "<<" or e.dtype.kind == "uint":
        return Const(0, e.dtype)
    return Bin(">>", e.a, Const(last, e.dtype)) if last <= e.dtype.max_value else None


def _bits(s: Simplifier, e: Bin) -> Expr | None:
    """Masks, disjoint bits, and operations on one value."""
    if not e.dtype.is_int:
        return None
    if e.a == e.b:
        return Const(0, e.dtype) if e.op == "^" else e.a
    for x, y in ((e.a, e.b), (e.b, e.a)):
        if isinstance(y, Const):
            mask = int(y.value)
            if mask == 0:
                return y if e.op == "&" else x
            if e.op == "&" and 0 < mask < e.dtype.max_value and not mask & (mask + 1):
                return Bin("%", x, Const(mask + 1, e.dtype))
        low, high = s.ranges.value(x, s.index), s.ranges.value(y, s.index)
        if e.op != "&" and low.lo >= 0 and low.hi < twos(high):
            return Bin("+", x, y)
    return _ordered(s, e)


def _ordered(s: Simplifier, e: Bin) -> Expr | None:
    """Operands of a commutative operation in one order, constants last."""
    if _rank(e.a) > _rank(e.b):
        return Bin(e.op, e.b, e.a)
    return None


def _rank(expr: Expr) -> tuple[bool, str]:
    return isinstance(expr, Const), order_key(expr)


def _min_max(s: Simplifier, e: Bin) -> Expr | None:
    if e.a == e.b:
        return e.a
    if not e.dtype.is_int:
        return None
    for x, y in ((e.a, e.b), (e.b, e.a)):
        if s.ranges.prove(Cmp("<=", x, y), s.index):
            return x if e.op == "min" else y
    match e:
        case Bin(op, Bin(inner, x, Const() as c), Const() as d) if op == inner:
            pick = min if op == "min" else max
            return Bin(op, x, Const(pick(c.value, d.value), e.dtype))
    return _ordered(s, e)


# ── comparisons and logic ────────────────────────────────────────────────────────────────────


def _cancel(s: Simplifier, e: Cmp) -> Expr | None:
    """Common terms and factors leave; what is left reads `terms < terms` or `terms < constant`."""
    if not e.a.dtype.is_int or not all(s.ranges.exact(x, s.index) for x in e.children):
        return None
    dtype, sides = e.a.dtype, [s.sum_form(x) for x in e.children]
    diff = sides[0] - sides[1]
    op = e.op
    if not diff.terms:
        return None
    first = min(diff.terms, key=order_key)
    has_plus = any(k > 0 for k in diff.terms.values())
    has_minus = any(k < 0 for k in diff.terms.values())
    flip = diff.terms[first] < 0 if op in ("==", "!=") else False
    if op in ("<", "<=", ">", ">="):
        flip = op in (">", ">=") if has_plus and has_minus else not has_plus
    if flip:
        diff = diff.scaled(-1)
        op = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
    # diff op 0, over integers: make it diff < 0 or diff ≥ 0, and divide by the common factor
    g = gcd(*diff.terms.values())
    if op in ("<=", ">"):
        diff, op = diff.plus(-1), "<" if op == "<=" else ">="
    if op in ("==", "!=") and diff.const % g:
        return FALSE if op == "==" else TRUE
    # terms·g + const < 0  ⟺  terms < ⌈-const / g⌉
    limit = -(diff.const // g)
    plus = Linear({a: k // g for a, k in diff.terms.items() if k > 0})
    minus = Linear({a: -k // g for a, k in diff.terms.items() if k < 0})
    if not minus.terms:
        minus = Linear({}, limit)
    elif op == "<" and limit == 1:
        op = "<="
    elif limit > 0:
        minus = minus.plus(limit)
    else:
        plus = plus.plus(-limit)
    known = [side.key for side in sides]
    for side in (plus, minus):
        if side.scaled(g).key not in known and not s.fits(side, dtype):
            return None
    return Cmp(op, s.rebuild(plus, dtype), s.rebuild(minus, dtype))


def _compare_bools(s: Simplifier, e: Cmp) -> Expr | None:
    match e:
        case Cmp("==" | "!=", Cast(_, x) | x, Const(c)) if x.dtype.is_bool and c in (0, 1):
            return x if bool(c) is (e.op == "==") else logical_not(x)
    return None


def _and_or(s: Simplifier, e: Bin) -> Expr | None:
    neutral, zero = (TRUE, FALSE) if e.op == "and" else (FALSE, TRUE)
    if e.a == e.b or e.b is neutral:
        return e.a
    if e.a is neutral:
        return e.b
    return zero if e.a is zero or e.b is zero else None


def _not(s: Simplifier, e: Call) -> Expr | None:
    match e.args[0]:
        case Call("not", (x,)):
            return x
        case Cmp(op, a, b) if not a.dtype.is_float or op in ("==", "!="):
            # not (a < b) is not a >= b when one is NaN
            return Cmp(NEGATED[op], a, b)
    return None


def _select(s: Simplifier, e: Select) -> Expr | None:
    match e:
        case Select(_, a, b) if a == b:
            return a
        case Select(c, a, b) if a is TRUE and b is FALSE:
            return c
        case Select(c, a, b) if a is FALSE and b is TRUE:
            return logical_not(c)
        case Select(Call("not", (c,)), a, b):
            return Select(c, b, a)
    return None


# ── casts and floats ─────────────────────────────────────────────────────────────────────────

# A value of the first type survives a trip through the second.
_ROUND_TRIPS = {
    "float16": ("float32", "float64"), "bfloat16": ("float32", "float64"), "float32": ("float64",),
}  # fmt: skip


def _cast(s: Simplifier, e: Cast) -> Expr | None:
    to, a = e.dtype, e.a
    if isinstance(a, Const) or a.dtype == to:
        return cast(a, to)
    if to.is_bool and a.dtype.is_int:
        return Cmp("!=", a, Const(0, a.dtype))
    if not isinstance(a, Cast):
        return None
    mid, x = a.dtype, a.a
    if x.dtype == to and mid.name in _ROUND_TRIPS.get(to.name, ()):
        return x
    if not (mid.is_int and (x.dtype.is_int or x.dtype.is_bool)):
        return None
    if fits(s.ranges.value(x, s.index), mid) or (to.is_int and to.bits <= mid.bits):
        return cast(x, to)
    return None


def _float_neutral(s: Simplifier, e: Bin) -> Expr | None:
    """x * 1, x / 1, x - 0.0 and x + -0.0 are x for every float, NaN and -0.0 included."""
    if not e.dtype.is_float:
        return None
    sides = [(e.a, e.b)] + [(e.b, e.a)] * (e.op in ("*", "+"))
    for x, y in sides:
        if isinstance(y, Const) and (e.op, repr(float(y.value))) in _NEUTRAL:
            return x
    return None


_NEUTRAL = {("*", "1.0"), ("/", "1.0"), ("-", "0.0"), ("+", "-0.0")}


def _double_negation(s: Simplifier, e: Call) -> Expr | None:
    match e.args[0]:
        case Call("neg", (x,)) if e.dtype.is_float:
            return x
    return None


def _abs(s: Simplifier, e: Call) -> Expr | None:
    x = e.args[0]
    if x.dtype.is_int:
        v = s.ranges.value(x, s.index)
        if v.lo >= 0:
            return x
        if v.hi <= 0:
            return Call("neg", (x,), e.dtype)
    return None


# Rules by operator, function or class of node, tried in order; the first that applies wins.
RULES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("//", "%"), (_divide, _divide_by_symbol)),
    **dict.fromkeys(("<<", ">>"), (_shift,)),
    **dict.fromkeys("&|^", (_bits,)),
    **dict.fromkeys(("min", "max"), (_min_max,)),
    **dict.fromkeys(CMP_OPS, (_compare_bools, _cancel)),
    **dict.fromkeys(("and", "or"), (_and_or,)),
    "not": (_not,),
    "Select": (_select,),
    "Cast": (_cast,),
    **dict.fromkeys("+-*/", (_float_neutral,)),
    "neg": (_double_negation,),
    "abs": (_abs,),
}
