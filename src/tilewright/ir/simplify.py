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

from tilewright.ir.analysis.bounds import NOTHING, Ranges
from tilewright.ir.expr import FALSE, TRUE, Bin, Call, Cmp, Const, Expr, Load, Select
from tilewright.ir.layout.linear import TooLarge, is_ring
from tilewright.ir.simplify_rules import RULES
from tilewright.ir.sums import Sums

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


class Simplifier(Sums):
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
        is_int = expr.dtype.is_int
        if is_int and not isinstance(expr, Load):
            v = self.ranges.value(expr, self.index)
            if v.mod == 0:
                return Const(v.rem, expr.dtype)
        if is_ring(expr):
            new = self.attempt(lambda: self.rebuild(self.sum_form(expr), expr.dtype))
            return expr if new is None else new
        children = self.parts(expr)
        if any(new is not old for new, old in zip(children, expr.children, strict=True)):
            expr = _rebuild(expr, children)
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


def _rebuild(expr: Expr, children: tuple[Expr, ...]) -> Expr:
    if isinstance(expr, Select) and isinstance(children[0], Const):
        return children[1] if children[0].value else children[2]
    return expr.rebuild(children)
