"""Differences of index expressions: `(bx + 1) * 128 - bx * 128` is 128."""

from __future__ import annotations

from tilewright.ir.expr import Bin, Cast, Const, Expr, Var, const

Monomial = tuple[Expr, ...]


def _terms(expr: Expr) -> dict[Monomial, int]:
    """The expression as a sum of integer multiples of products."""
    if isinstance(expr, Const):
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, Cast) and expr.dtype.is_int and expr.a.dtype.is_int:
        widens = expr.dtype.kind == expr.a.dtype.kind and expr.dtype.bits >= expr.a.dtype.bits
        if widens:
            return _terms(expr.a)
    if isinstance(expr, Bin) and expr.op in ("+", "-"):
        total = dict(_terms(expr.a))
        sign = 1 if expr.op == "+" else -1
        for product, times in _terms(expr.b).items():
            total[product] = total.get(product, 0) + sign * times
        return {product: times for product, times in total.items() if times}
    if isinstance(expr, Bin) and expr.op == "*":
        total = {}
        for p, m in _terms(expr.a).items():
            for q, n in _terms(expr.b).items():
                product = tuple(sorted(p + q, key=_name))
                total[product] = total.get(product, 0) + m * n
        return {product: times for product, times in total.items() if times}
    return {(expr,): 1}


def _name(expr: Expr) -> str:
    return expr.name if isinstance(expr, Var) else str(expr)


def difference(a: Expr, b: Expr) -> Expr:
    """`a - b` with everything cancelled that cancels as a polynomial.

    Index arithmetic is taken not to wrap, as everywhere in the language.
    """
    left = _terms(a - b)
    if not left:
        return const(0)
    total: Expr | None = None
    for product, times in left.items():
        if not product:
            continue
        term = product[0]
        for factor in product[1:]:
            term = term * factor
        term = term if times == 1 else term * times
        total = term if total is None else total + term
    constant = left.get((), 0)
    if total is None:
        return const(constant)
    return total + constant if constant else total


def same(a: Expr, b: Expr) -> bool:
    """Equal as polynomials."""
    return a is b or not _terms(a - b)
