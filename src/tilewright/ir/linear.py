"""Linear forms over atoms, and a fixed order of expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.ir.expr import Bin, Call, Const, Expr, Load, Var


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
            return ZERO
        return Linear({atom: c * k for atom, c in self.terms.items()}, self.const * k)

    def plus(self, k: int) -> Linear:
        return Linear(self.terms, self.const + k)

    def times(self, other: Linear) -> Linear:
        """The product, expanded."""
        total = self.scaled(other.const) + other.scaled(self.const).plus(-self.const * other.const)
        for x, j in self.terms.items():
            for y, k in other.terms.items():
                total += Linear({product(factors(x) + factors(y)): j * k})
        return total

    @property
    def key(self) -> object:
        return frozenset(self.terms.items()), self.const


ZERO = Linear({})


def factors(atom: Expr) -> list[Expr]:
    """The factors of a product, or the atom itself."""
    if isinstance(atom, Bin) and atom.op == "*":
        return factors(atom.a) + factors(atom.b)
    return [atom]


def product(parts: Iterable[Expr]) -> Expr:
    """The product of atoms in a fixed order, so that equal products are one object."""
    first, *rest = sorted(parts, key=order_key)
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
        return expr.op in ("+", "-", "*") or (expr.op == "<<" and shift_amount(expr.b) is not None)
    return isinstance(expr, Call) and expr.name in ("neg", "invert")
