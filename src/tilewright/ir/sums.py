"""Integer sums in one canonical form, over simplified terms: what the rules of `simplify` compute
with."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tilewright.ir.analysis.bounds import Ranges, limits
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Bin, Call, Const, Expr
from tilewright.ir.layout.linear import (
    Linear,
    build_sum,
    factors,
    is_ring,
    product,
    shift_amount,
)


class Sums(ABC):
    def __init__(self, ranges: Ranges, index: bool) -> None:
        self.ranges = ranges
        self.index = index

    @abstractmethod
    def go(self, expr: Expr) -> Expr:
        """`expr`, simplified."""

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
        a, *others = [self.sum_form(child) for child in expr.children]
        match expr:
            case Bin("+"):
                return a + others[0]
            case Bin("-"):
                return a - others[0]
            case Bin("<<"):
                return a.scaled(1 << (shift_amount(expr.b) or 0))
            case Bin("*"):
                return self.product_form(a, others[0], expr.dtype)
            case Call("invert"):
                return a.scaled(-1).plus(-1)
        return a.scaled(-1)

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
        v, full = self.ranges.evaluate(form, self.index), limits(dtype)
        return full.lo <= v.lo and v.hi <= full.hi

    def fits_within(self, part: Linear, whole: Linear, dtype: DType) -> bool:
        """`part` fits, given that `whole` does."""
        if part.key == whole.key or self.fits(part, dtype):
            return True
        full = limits(dtype)
        v = self.ranges.evaluate(part, self.index)
        taken = self.ranges.evaluate(whole - part, self.index)
        return (v.lo >= full.lo or taken.hi <= 0) and (v.hi <= full.hi or taken.lo >= 0)
