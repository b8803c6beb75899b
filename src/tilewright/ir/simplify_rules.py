"""The rules of `simplify`, by operator: what one node with simplified parts may become.

A rule returns the replacement, or None where it does not apply. Each is exact under the ranges
and the reading of overflow that the simplifier was given.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from tilewright.ir.analysis.bounds import NEGATED, limits, wraps
from tilewright.ir.analysis.intervals import twos
from tilewright.ir.arith import CMP_OPS
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Select,
    cast,
    logical_not,
)
from tilewright.ir.layout.linear import (
    ZERO,
    Linear,
    build_sum,
    factors,
    order_key,
    product,
    shift_amount,
)
from tilewright.ir.sums import Sums

# ── division ─────────────────────────────────────────────────────────────────────────────────


def _divide(s: Sums, e: Bin) -> Expr | None:
    """x // c and x % c for a constant c > 0: multiples of c leave, what is left is reduced."""
    if not (isinstance(e.b, Const) and e.b.value > 0 and e.dtype.is_int):
        return None
    c, dtype, whole = int(e.b.value), e.dtype, s.sum_form(e.a)
    # modulo a divisor of 2^bits it does not matter whether a sum wraps that may
    loose = e.op == "%" and (1 << dtype.bits) % c == 0 and wraps(dtype, s.index)
    if not loose and not s.ranges.exact(e.a, s.index):
        return None
    return (_quotient if e.op == "//" else _remainder)(s, whole, c, dtype, loose)


def _quotient(s: Sums, whole: Linear, c: int, dtype: DType, _: bool) -> Expr | None:
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


def _low_part(s: Sums, form: Linear, c: int) -> Linear:
    """Terms that only count below a multiple of a divisor of c, which the others are: of
    4·n + j with j < 4 it is j, so that // 8 does not see it and % 8 leaves it alone."""
    for g in sorted({gcd(c, k) for k in form.terms.values()} - {1, c}, reverse=True):
        low = Linear({a: k for a, k in form.terms.items() if k % g}, form.const % g)
        v = s.ranges.evaluate(low, s.index)
        if low.terms and v.lo >= 0 and v.hi < g:
            return low
    return ZERO


def _drop_idle_constant(s: Sums, form: Linear, c: int, dtype: DType) -> tuple[Linear, int]:
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


def _nested(s: Sums, form: Linear, c: int, dtype: DType) -> Expr | None:
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


def _remainder(s: Sums, whole: Linear, c: int, dtype: DType, loose: bool) -> Expr | None:
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


def _divide_by_symbol(s: Sums, e: Bin) -> Expr | None:
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


def _divide_by_one(s: Sums, e: Bin) -> Expr | None:
    if e.dtype.is_int and isinstance(e.b, Const) and e.b.value == 1:
        return e.a if e.op == "//" else Const(0, e.dtype)
    return None


# ── bits, minimum, maximum ───────────────────────────────────────────────────────────────────


def _shift_away(s: Sums, e: Bin) -> Expr | None:
    """A shift by the width or more leaves nothing but the sign."""
    if not isinstance(e.b, Const) or shift_amount(e.b) is not None or not e.dtype.is_int:
        return None
    if e.op == "<<" or e.dtype.kind == "uint":
        return Const(0, e.dtype)
    last = e.dtype.bits - 1
    return Bin(">>", e.a, Const(last, e.dtype)) if last <= e.dtype.max_value else None


def _shift_right(s: Sums, e: Bin) -> Expr | None:
    k = shift_amount(e.b)
    if k is not None and 1 << k <= e.dtype.max_value:
        return Bin("//", e.a, Const(1 << k, e.dtype))
    return None


def _bits(s: Sums, e: Bin) -> Expr | None:
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


def _ordered(s: Sums, e: Bin) -> Expr | None:
    """Operands of a commutative operation in one order, constants last."""
    if _rank(e.a) > _rank(e.b):
        return Bin(e.op, e.b, e.a)
    return None


def _rank(expr: Expr) -> tuple[bool, str]:
    return isinstance(expr, Const), order_key(expr)


def _min_max(s: Sums, e: Bin) -> Expr | None:
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


def _cancel(s: Sums, e: Cmp) -> Expr | None:
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


def _compare_bools(s: Sums, e: Cmp) -> Expr | None:
    match e:
        case Cmp("==" | "!=", x, Const(c)) if x.dtype.is_bool:
            return x if bool(c) is (e.op == "==") else logical_not(x)
        case Cmp("==" | "!=", Cast(_, x), Const(c)) if x.dtype.is_bool and c in (0, 1):
            return x if bool(c) is (e.op == "==") else logical_not(x)
    return None


def _and_or(s: Sums, e: Bin) -> Expr | None:
    neutral, zero = (TRUE, FALSE) if e.op == "and" else (FALSE, TRUE)
    if e.a == e.b or e.b is neutral:
        return e.a
    if e.a is neutral:
        return e.b
    return zero if e.a is zero or e.b is zero else None


def _not(s: Sums, e: Call) -> Expr | None:
    match e.args[0]:
        case Call("not", (x,)):
            return x
        case Cmp(op, a, b) if not a.dtype.is_float or op in ("==", "!="):
            # not (a < b) is not a >= b when one is NaN
            return Cmp(NEGATED[op], a, b)
    return None


def _select(s: Sums, e: Select) -> Expr | None:
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
    (small, large)
    for small, larges in {
        "float16": ("float32", "float64"),
        "bfloat16": ("float32", "float64"),
        "float32": ("float64",),
    }.items()
    for large in larges
}


def _cast(s: Sums, e: Cast) -> Expr | None:
    to, a = e.dtype, e.a
    if isinstance(a, Const) or a.dtype == to:
        return cast(a, to)
    if to.is_bool and a.dtype.is_int:
        return Cmp("!=", a, Const(0, a.dtype))
    if not isinstance(a, Cast):
        return None
    mid, x = a.dtype, a.a
    if x.dtype == to and (to.name, mid.name) in _ROUND_TRIPS:
        return x
    if not (mid.is_int and (x.dtype.is_int or x.dtype.is_bool)):
        return None
    v, full = s.ranges.value(x, s.index), limits(mid)
    kept = full.lo <= v.lo and v.hi <= full.hi
    if kept or (to.is_int and to.bits <= mid.bits):
        return cast(x, to)
    return None


def _float_neutral(s: Sums, e: Bin) -> Expr | None:
    """x * 1, x / 1, x - 0.0 and x + -0.0 are x for every float, NaN and -0.0 included."""
    if not e.dtype.is_float:
        return None
    sides = [(e.a, e.b)] + [(e.b, e.a)] * (e.op in ("*", "+"))
    for x, y in sides:
        if isinstance(y, Const) and (e.op, repr(float(y.value))) in _NEUTRAL:
            return x
    return None


_NEUTRAL = {("*", "1.0"), ("/", "1.0"), ("-", "0.0"), ("+", "-0.0")}


def _double_negation(s: Sums, e: Call) -> Expr | None:
    match e.args[0]:
        case Call("neg", (x,)) if e.dtype.is_float:
            return x
    return None


def _abs(s: Sums, e: Call) -> Expr | None:
    x = e.args[0]
    if x.dtype.is_int:
        v = s.ranges.value(x, s.index)
        if v.lo >= 0:
            return x
        if v.hi <= 0:
            return Call("neg", (x,), e.dtype)
    return None


_COMPARE = (_compare_bools, _cancel)
# Rules by operator, function or class of node, tried in order; the first that applies wins.
RULES: dict[str, tuple[Any, ...]] = {
    "//": (_divide_by_one, _divide, _divide_by_symbol),
    "%": (_divide_by_one, _divide, _divide_by_symbol),
    "<<": (_shift_away,),
    ">>": (_shift_away, _shift_right),
    "&": (_bits,),
    "|": (_bits,),
    "^": (_bits,),
    "min": (_min_max,),
    "max": (_min_max,),
    **dict.fromkeys(CMP_OPS, _COMPARE),
    "and": (_and_or,),
    "or": (_and_or,),
    "not": (_not,),
    "Select": (_select,),
    "Cast": (_cast,),
    **dict.fromkeys(("+", "-", "*", "/"), (_float_neutral,)),
    "neg": (_double_negation,),
    "abs": (_abs,),
}
