"""Products of matrices inside folds: a sum over an axis of two factors, one with rows, one with
columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul

from tilewright.ir.core import *
from tilewright.ir.formula import Array, vars_of

# the bytes that the blocks of one cluster hold and fold, two of them on a multiprocessor; and the
# elements of several axes that a block holds in registers to fold them by the user's monoid
MOST_FOLDED, MOST_COMBINED = 3 << 19, 1 << 12


@dataclass(frozen=True)
class Product:
    """Σ over `depth` of left · right, times `scale`. `batch` axes are in both factors."""

    left: Expr
    right: Expr
    scale: Expr | None
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    depth: tuple[Var, ...]
    batch: frozenset[Var]


def bytes_folded(f: Array, elements: float) -> float:
    """The bytes of so many elements of what is folded, as they lie in memory."""
    reading = {x.buffer.name: x.dtype.bits for x in loads(f.body) if f.folded & variables(x)}
    return elements * (sum(reading.values()) or 32) / 8


def axes_of(expr: Expr, known: Mapping[Var, frozenset[Var]]) -> frozenset[Var]:
    """The axes that the value of `expr` has: `known` says which a variable stands for."""
    return frozenset().union(*(known.get(var, ()) for var in variables(expr)))


@lru_cache(maxsize=4096)
def axes_met(expr: Expr) -> tuple[Var, ...]:
    """Its axes, in the order in which they are met."""
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Var)))


@lru_cache(maxsize=4096)
def form_of(expr: Expr) -> Expr:
    """The expression over axes without names."""
    return substitute(expr, {v: Var(f"#{n}", v.dtype) for n, v in enumerate(axes_met(expr))})


def swapped(expr: Expr, old: Expr, new: Expr) -> Expr:
    """`expr` with another node in the place of one."""
    return transform(expr, lambda node: new if node is old else None)


def factors_of(expr: Expr) -> list[Expr]:
    """What is multiplied, quotients as factors 1 / x."""
    match expr:
        case Bin(op="*", a=a, b=b):
            return [*factors_of(a), *factors_of(b)]
        case Bin(op="/", a=a, b=b) if not (isinstance(a, Const) and a.value == 1):
            return [*factors_of(a), 1 / b]
        case Call(name="neg", args=(a,)):
            return [const(-1, expr.dtype), *factors_of(a)]
    return [expr]


@lru_cache(maxsize=512)
def product_of(a: Array) -> Product | None:
    """The product that a fold is, if it is one."""
    if a.monoid != "sum" or a.scan:
        return None
    known = {v: frozenset({v}) for v in vars_of(a.domain)}
    return split(a.body, vars_of(a.over), a.vars, known)


def split(
    term: Expr, depth: Iterable[Var], axes: Iterable[Var], known: Mapping[Var, frozenset[Var]]
) -> Product | None:
    """`term` summed over `depth` as a product over `axes`, in the order of the axes."""
    order_of_depth, order = list(depth), list(axes)
    deep = frozenset(order_of_depth)
    inside: list[Expr] = []
    outside: list[Expr] = []
    for factor in factors_of(term):
        (inside if axes_of(factor, known) & deep else outside).append(factor)
    if len(inside) < 2:
        return None
    sets = [axes_of(f, known) - deep for f in inside]
    batch = frozenset.intersection(*sets)
    groups: list[tuple[frozenset[Var], list[Expr]]] = []
    for own, factor in zip((s - batch for s in sets), inside, strict=True):
        touching = [g for g in groups if g[0] & own]
        rest = [g for g in groups if not g[0] & own]
        joined = own.union(*(g[0] for g in touching))
        groups = [*rest, (joined, [*(f for g in touching for f in g[1]), factor])]
    sided = [g for g in groups if g[0]]
    if len(sided) != 2:
        return None
    loose = [f for g in groups if not g[0] for f in g[1]]
    (first, left), (second, right) = sorted(sided, key=lambda g: min(map(order.index, g[0])))
    if any(axes_of(f, known) - deep - batch for f in loose):
        return None
    left = [*left, *loose]  # a factor of the depth alone goes with the rows
    both = reduce(mul, left), reduce(mul, right)
    if not all(deep & axes_of(side, known) for side in both):
        return None
    scale = reduce(mul, outside) if outside else None
    rows, columns = (tuple(v for v in order if v in side) for side in (first, second))
    return Product(*both, scale, rows, columns, tuple(order_of_depth), batch)
