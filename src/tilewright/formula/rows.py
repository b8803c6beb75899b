"""Rows of numbers between kernels: what a reader computes of them alone is computed once, and that
lies in memory.

A softmax whose loop has ended is exp(x − top) / total. A reader of `top` and `total` computes
exp2(x · log₂e − l) of one number l = top · log₂e + log₂ total instead: no quotient, no center.
Its error grows with `top`: where results have more than 16 bits, both numbers are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import reduce
from operator import add

from tilewright.formula.factors import POWERS, is_far, is_power, product
from tilewright.formula.front.trace import Names
from tilewright.formula.inline import Normal
from tilewright.formula.matrices import factors_of, product_of
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.ir.core import *
from tilewright.ir.formula import Array, Axis, Formula, array


def kept_rows(
    normal: Normal, kernels: Iterable[KernelPlan], apart: dict[str, str], is_fast: bool
) -> tuple[Normal, dict[str, str]] | None:
    """The formula whose kernels leave each other what is read of rows, with what lies in memory;
    None if that is what they leave already. Who computes a row reads it as it is. `is_fast`: rows
    may lose their centers, since results have 16 bits."""
    formula = normal.formula
    rows = {a.name for a in formula.arrays if a.name in apart and is_row(a)}
    rows -= {b.name for b in formula.outputs}
    # what is compared may have to be equal to what is computed elsewhere: it is computed as it was
    compared = (x for a in formula.arrays for x in walk(a.body) if isinstance(x, Cmp))
    rows -= {read.buffer.name for x in compared for read in loads(x)}
    foreign: dict[str, set[str]] = {}
    for kernel in kernels:
        inside = {a.name for a in (*kernel.folds, *kernel.outputs)}
        for name in inside:
            foreign[name] = foreign.get(name, rows) - inside
    found = Reading(formula, {b.name for b in formula.inputs}, is_fast)
    arrays = tuple(found.of(a, foreign.get(a.name, set())) for a in formula.arrays)
    if not found.made:
        return None
    left = set().union(*(a.sources & foreign[a.name] for a in arrays))
    memory = {name: why for name, why in apart.items() if name not in rows or name in left}
    memory |= {a.name: apart[row] for a, row in found.made.values()}
    return replace(normal, formula=replace(formula, arrays=found.placed(arrays))), memory


def is_row(a: Array) -> bool:
    """Whether it has a number for many that are folded, and is no product of matrices."""
    return not a.is_pointwise and not a.scan and a.buffer.dtype.is_float and product_of(a) is None


class Reading:
    """What arrays read of rows, as arrays of their own; `free` are the names of what the kernels
    of rows may read beside them."""

    def __init__(self, formula: Formula, free: Collection[str], is_fast: bool = True) -> None:
        self.formula, self.free, self.is_fast = formula, free, is_fast
        self.made: dict[Expr, tuple[Array, str]] = {}  # by definition; and of which row
        self.products = {a.name for a in formula.arrays if product_of(a) is not None}
        self.names = Names(b.name for b in formula.buffers)

    def of(self, a: Array, rows: Collection[str]) -> Array:
        """`a`, reading what is made of `rows`."""
        if a.sources.isdisjoint(rows):
            return a
        if a.is_pointwise and self._is_made_of(a.body, rows):
            return a  # a row itself
        body = transform(a.body, lambda node: self._in_exponent(node, rows))
        extents = {axis.var: axis for axis in a.domain}
        return replace(a, body=self._read(body, rows, extents))

    def placed(self, arrays: Iterable[Array]) -> tuple[Array, ...]:
        """The arrays, each that was made after the last that it reads."""
        found = list(arrays)
        for a, _ in self.made.values():
            at = max(n for n, other in enumerate(found) if other.name in a.sources)
            found.insert(at + 1, a)
        return tuple(found)

    def _is_made_of(self, expr: Expr, rows: Collection[str]) -> bool:
        """Whether it is a number for each index of a row."""
        found = loads(expr)
        places = {x.indices for x in found}
        if len(places) != 1 or not any(x.buffer.name in rows for x in found):
            return False
        (place,) = places
        known = all(x.buffer.name in rows or x.buffer.name in self.free for x in found)
        plain = all(isinstance(i, Var) for i in place) and len(set(place)) == len(place)
        own = {*place, *(size.var for size in self.formula.sizes)}
        return known and plain and variables(expr) <= own and expr.dtype.is_float

    def _in_exponent(self, node: Expr, rows: Collection[str]) -> Expr | None:
        """exp(x − m) / s = exp2(x · log₂e − (m · log₂e + log₂ s)) for rows m and s > 0"""
        if not isinstance(node, Bin) or node.op not in "*/" or not node.dtype.is_float:
            return None
        factors = factors_of(node)
        power = next(filter(is_power, factors), None)
        below = [s for f in factors if (s := self._divisor(f, rows)) is not None]
        if not isinstance(power, Call) or not below:
            return None
        wide, row = list[Expr](), list[Expr]()
        for by, term in _terms(power.args[0], POWERS[power.name]):
            own = isinstance(term, Const) or self._is_made_of(term, rows)
            (row if own else wide).append(term * (-by if own else by))
        exact = not self.is_fast and any(loads(term) for term in row)
        if not wide or exact or (row and any(is_far(term, self.products) for term in wide)):
            return None
        row += [Call("log2", (s,), s.dtype) for s in below]
        exponent = reduce(add, wide) - reduce(add, row)
        rest = [f for f in factors if f is not power and self._divisor(f, rows) is None]
        return product([*rest, Call("exp2", (exponent,), node.dtype)])

    def _divisor(self, f: Expr, rows: Collection[str]) -> Expr | None:
        """s of 1 / s, a row of positive numbers: a sum of powers."""
        match f:
            case Bin(op="/", a=Const(value=1), b=Load(buffer=b) as s) if b.name in rows:
                made = self.formula.definition(b)
                if made is not None and made.monoid == "sum":
                    return s if all(map(is_power, factors_of(made.body))) else None
        return None

    def _read(self, expr: Expr, rows: Collection[str], axes: dict[Var, Axis]) -> Expr:
        def rule(node: Expr) -> Expr | None:
            if self._is_made_of(node, rows) and not _is_scaled(node):
                return self._element(node, rows, axes)
            match node:
                case Bin(op="/", a=a, b=b) if self._is_made_of(b, rows):
                    is_root = isinstance(b, Call) and b.name == "sqrt"
                    below = Call("rsqrt", b.children, b.dtype) if is_root else 1 / b
                    return self._read(a, rows, axes) * self._element(below, rows, axes)
            return None

        return transform_outermost(expr, rule)

    def _element(self, expr: Expr, rows: Collection[str], axes: dict[Var, Axis]) -> Expr:
        """An element of the array that `expr` is one of."""
        read = next(x for x in loads(expr) if x.buffer.name in rows)
        own = {v: Var(f"i{n}") for n, v in enumerate(read.indices) if isinstance(v, Var)}
        body = substitute(expr, dict(own))
        if body not in self.made:
            word = "log_sum" if any(isinstance(n, Call) and n.name == "log2" for n in walk(expr)) \
                else f"{read.buffer.name}_row"  # fmt: skip
            over = tuple(Axis(new, axes[old].extent) for old, new in own.items())
            self.made[body] = array(self.names.fresh(word), over, body), read.buffer.name
        return Load(self.made[body][0].buffer, read.indices)


def _is_scaled(expr: Expr) -> bool:
    """Whether it is an element, or one times a number: no less to read than to compute."""
    match expr:
        case Load() | Cast() | Bin(op="*" | "/", a=Load(), b=Const()):
            return True
    return False


def _terms(expr: Expr, by: float) -> list[tuple[float, Expr]]:
    """What is added up, and the number that each is multiplied by."""
    match expr:
        case Bin(op="+" | "-" as op, a=a, b=b):
            return [*_terms(a, by), *_terms(b, by if op == "+" else -by)]
        case Call(name="neg", args=(a,)):
            return _terms(a, -by)
        case Bin(op="*", a=a, b=Const(value=k)):
            return _terms(a, by * float(k))
    return [(by, expr)]
