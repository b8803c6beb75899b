"""Linear forms over atoms, and a fixed order of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tilewright.ir.core import *


@dataclass(slots=True)
class Linear:
    """sum(coefficient · atom) + const. Atoms are variables, other expressions that are no ring
    expressions, or products (`Bin "*"`) of these; products serve as keys only, their sides may
    differ in type. Coefficients are not 0.

    Forms are shared and never changed; to make a frozen one would take three times as long.
    """

    terms: Mapping[Expr, int]
    const: int = 0

    def __add__(self, other: Linear) -> Linear:
        return self.mixed(1, other, 1)

    def __sub__(self, other: Linear) -> Linear:
        return self.mixed(1, other, -1)

    def mixed(self, j: int, other: Linear, k: int, more: int = 0) -> Linear:
        """self · j + other · k + more, j and k not 0."""
        terms = {atom: c * j for atom, c in self.terms.items()} if j != 1 else dict(self.terms)
        for atom, c in other.terms.items():
            total = terms.get(atom, 0) + c * k
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return Linear(terms, self.const * j + other.const * k + more)

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
    if isinstance(expr, Bin):
        shifts = expr.op == "<<" and shift_amount(expr.b) is not None
        if not shifts and expr.op not in ("+", "-", "*"):
            return False
    elif not (
        isinstance(expr, Call)
        and expr.name in ("neg", "invert")
        and expr.args[0].dtype == expr.dtype
    ):
        return False
    return expr.dtype.is_int


def combined(
    expr: Expr, form: Callable[[Expr], Linear], times: Callable[[Linear, Linear], Linear]
) -> Linear:
    """The form of a ring expression, from those of its sides."""
    a, *others = map(form, expr.children)
    match expr:
        case Bin("+"):
            return a + others[0]
        case Bin("-"):
            return a - others[0]
        case Bin("<<"):
            return a.scaled(1 << others[0].const)
        case Bin("*"):
            return times(a, others[0])
        case Call("invert"):
            return a.scaled(-1).plus(-1)
    return a.scaled(-1)


class TooLarge(Exception):
    """A coefficient does not fit the type; the sum stays as it was written."""


def build_sum(form: Linear, dtype: DType) -> Expr:
    """The sum as an expression: positive terms, negative terms, constant."""
    most = int(dtype.max_value)
    if any(abs(k) > most for k in (*form.terms.values(), form.const)):
        raise TooLarge
    terms = sorted(form.terms.items(), key=lambda term: order_key(term[0]))
    parts = [(atom, k) for atom, k in terms if k > 0] + [(atom, k) for atom, k in terms if k < 0]
    rest = form.const
    total: Expr | None = None
    if rest >= 0 and not any(k > 0 for _, k in parts) and (not parts or rest > 0):
        total, rest = Const(rest, dtype), 0
    for atom, k in parts:
        term = atom if abs(k) == 1 else Bin("*", atom, Const(abs(k), dtype))
        if total is None:
            total = term if k > 0 else Call("neg", (term,), dtype)
        else:
            total = Bin("+" if k > 0 else "-", total, term)
    if total is None:
        if dtype.kind == "uint":
            raise TooLarge
        return Const(rest, dtype)
    return Bin("+" if rest > 0 else "-", total, Const(abs(rest), dtype)) if rest else total
