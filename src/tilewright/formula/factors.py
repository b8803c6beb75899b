"""Laws of factors and sums: where a factor stands, and which of two sums is inside the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import reduce
from itertools import permutations
from math import e, inf, log2
from operator import mul, truediv
from typing import TypeGuard

from tilewright.formula.matrices import factors_of, product_of
from tilewright.ir.core import *
from tilewright.ir.formula import Array, Axis, Formula, names_in, vars_of

POWERS = {"exp": log2(e), "exp2": 1.0, "exp10": log2(10)}  # of two, their arguments times these
FAR = 1e30  # numbers beyond may be infinite times a factor


def is_far(expr: Expr, near: Collection[str]) -> bool:
    """Whether a value may be so near the last number of its type that 1.44 times that is infinite,
    as where a mask of PyTorch's models leaves nothing: numbers that are read, but for those `near`
    and what is multiplied by an index.

    >>> x, y = (Load(Buffer(n, (4,), FLOAT32, "global"), (0,)) for n in "xy")
    >>> is_far(x * 2 + y, ["x"]), is_far(x * 2 + 1, ["x"])
    (True, False)
    """
    for node in walk_outside(expr, lambda n: isinstance(n, Load) or n.dtype.is_bool or by_index(n)):
        match node:
            case Const(value=value):
                if FAR < abs(value) < inf:
                    return True
            case Load(buffer=buffer):
                wide = buffer.dtype.is_float and str(buffer.dtype) != "float16"
                if wide and buffer.name not in near:
                    return True
    return False


def by_index(e: Expr) -> bool:
    """Whether it is a multiple of an index, or of a sum of indices.

    >>> x, i = Load(Buffer("x", (4,), FLOAT32, "global"), (0,)), Var("i")
    >>> by_index(x * cast(i, FLOAT32)), by_index(x * 2)
    (True, False)
    """
    sides = (e.a, e.b) if isinstance(e, Bin) and e.op == "*" else ()
    return any(all(map(_is_of_ints, walk(s))) and not isinstance(s, Const) for s in sides)


def _is_of_ints(e: Expr) -> bool:
    match e:
        case Var():
            return e.dtype.is_int
        case Const() | Cast() | Bin(op="+" | "-"):
            return True
    return False


def product(factors: Iterable[Expr]) -> Expr:
    """What is multiplied, numbers as one, divisors last.

    >>> x, y = Var("x", FLOAT32), Var("y", FLOAT32)
    >>> product([const(-1, FLOAT32), 1 / y, x])
    -x / y
    """
    numbers, above, below = 1.0, list[Expr](), list[Expr]()
    kind = FLOAT32
    for f in factors:
        kind = f.dtype
        match f:
            case Const(value=value):
                numbers *= float(value)
            case Bin(op="/", a=Const(value=1), b=b):
                below.append(b)
            case _:
                above.append(f)
    if not above:
        found: Expr = const(numbers, kind)
    else:
        found = reduce(mul, above)
        if numbers != 1:
            found = -found if numbers == -1 else found * numbers
    return reduce(truediv, below, found)


def exchanged_sums(formula: Formula) -> Formula:
    """Σⱼ p(j) · Σₖ a(k) · b(j, k) = Σₖ a(k) · Σⱼ p(j) · b(j, k), where the right inner sum is an
    array already: then it is read, and a sum over k is left.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(exchanged_sums(parse_formula('''
    ... formula f(p: float32[4, 8], a: float32[4, 2], b: float32[8, 2]) -> y, t
    ...     y[i < 4, k < 2]: float32 = sum{j < 8} p[i, j] * b[j, k]
    ...     c[i < 4, j < 8]: float32 = sum{k < 2} a[i, k] * b[j, k]
    ...     t[i < 4]: float32 = sum{j < 8} c[i, j] * p[i, j]
    ... ''')))
    formula f(p: float32[4, 8], a: float32[4, 2], b: float32[8, 2]) -> y, t
        y[i < 4, k < 2]: float32 = sum{j < 8} p[i, j] * b[j, k]
        c[i < 4, j < 8]: float32 = sum{k < 2} a[i, k] * b[j, k]
        t[i < 4]: float32 = sum{k_c < 2} y[i, k_c] * a[i, k_c]
    """
    sums = {a.name: a for a in formula.arrays if a.monoid == "sum" and not a.scan}
    before: list[Array] = []
    arrays = []
    for a in formula.arrays:
        arrays.append(_exchanged(a, sums, before) if a.name in sums else a)
        before += [a] if a.name in sums else []
    return replace(formula, arrays=tuple(arrays))


def _exchanged(a: Array, sums: dict[str, Array], before: list[Array]) -> Array:
    factors = factors_of(a.body)
    for n, f in enumerate(factors):
        inner = sums.get(f.buffer.name) if isinstance(f, Load) else None
        if inner is None or not isinstance(f, Load):
            continue
        new = {x.var: Var(f"{x.var.name}_{inner.name}") for x in inner.over}
        over = tuple(Axis(new[x.var], x.extent) for x in inner.over)
        at = dict(zip(inner.vars, f.indices, strict=True))
        both = [*factors[:n], *factors[n + 1 :], *factors_of(substitute(inner.body, at | new))]
        for other in before:
            if other.name != inner.name and (left := _without(other, a, over, both)) is not None:
                return replace(a, over=over, body=product(left))
    return a


def _without(
    other: Array, a: Array, over: tuple[Axis, ...], factors: list[Expr]
) -> list[Expr] | None:
    """The factors with an element of `other` in place of those that it is a sum of over the axes
    of `a`; None if it is no such sum."""
    if [x.extent for x in other.over] != [x.extent for x in a.over]:
        return None
    for axes in permutations((*a.axes, *over), len(other.axes)):
        if [x.extent for x in axes] != [x.extent for x in other.axes]:
            continue
        places = vars_of((*axes, *a.over))
        names: dict[Var, Expr] = dict(zip(vars_of(other.domain), places, strict=True))
        needed = Counter(substitute(f, names) for f in factors_of(other.body))
        left = Counter(factors)
        if needed <= left:
            rest = list((left - needed).elements())
            if not any(a.folded & variables(f) for f in rest):
                return [Load(other.buffer, vars_of(axes)), *rest]
    return None


def factors_behind_sums(formula: Formula) -> Formula:
    """Σⱼ a · b(j) = a · Σⱼ b(j), for rows: who reads the sum multiplies. Products of matrices have
    their factors beside their operands, and a power stays with another and with the sum of powers
    that it is divided by: it may leave its range without them.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(factors_behind_sums(parse_formula('''
    ... formula f(x: float32[4, 8], s: float32[4]) -> y
    ...     t[i < 4]: float32 = sum{j < 8} x[i, j] / s[i]
    ...     y[i < 4]: float32 = t[i] + 1.0
    ... ''')))
    formula f(x: float32[4, 8], s: float32[4]) -> y
        t[i < 4]: float32 = sum{j < 8} x[i, j]
        y[i < 4]: float32 = t[i] / s[i] + 1.0
    """
    moved: dict[str, tuple[tuple[Var, ...], list[Expr]]] = {}
    totals: set[str] = set()  # sums of powers
    arrays = []
    for a in formula.arrays:

        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.buffer.name not in moved:
                return None
            axes, factors = moved[node.buffer.name]
            at = dict(zip(axes, node.indices, strict=True))
            return product([node, *(substitute(f, at) for f in factors)])

        a = replace(a, body=transform(a.body, rule))
        if a.monoid == "sum" and not a.scan and a.buffer not in formula.outputs:
            outside, inside = _parted(a, totals)
            if outside and inside:
                moved[a.name] = a.vars, outside
                a = replace(a, body=product(inside))
        if a.monoid == "sum" and all(map(is_power, factors_of(a.body))):
            totals.add(a.name)
        arrays.append(a)
    return replace(formula, arrays=tuple(arrays))


def is_power(f: Expr) -> TypeGuard[Call]:
    return isinstance(f, Call) and f.name in POWERS


def _parted(a: Array, totals: set[str]) -> tuple[list[Expr], list[Expr]]:
    """The factors that are free of what is folded, and the others."""
    if not a.buffer.dtype.is_float or a.body.dtype != a.buffer.dtype or product_of(a) is not None:
        return [], []
    over = a.folded
    outside, inside = list[Expr](), list[Expr]()
    for f in factors_of(a.body):
        (inside if over & variables(f) or any(map(is_power, walk(f))) else outside).append(f)
    below = [f for f in outside if _divides(f) and totals >= names_in(f)]
    if below and any(map(is_power, inside)):
        outside.remove(below[0])
        inside.append(below[0])
    return outside, inside if any(over & variables(f) for f in inside) else []


def common_divisors(formula: Formula) -> Formula:
    """a / c + b / c = (a + b) / c

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(common_divisors(parse_formula('''
    ... formula f(x: float32[4, 8], s: float32[4]) -> y
    ...     y[i < 4, j < 8]: float32 = x[i, j] / s[i] - 2.0 / s[i]
    ... ''')))
    formula f(x: float32[4, 8], s: float32[4]) -> y
        y[i < 4, j < 8]: float32 = (x[i, j] - 2.0) / s[i]
    """

    def rule(node: Expr) -> Expr | None:
        match node:
            case Bin(op="+" | "-" as op, a=a, b=b) if node.dtype.is_float:
                sides = [Counter(factors_of(side)) for side in (a, b)]
                common = Counter({f: n for f, n in (sides[0] & sides[1]).items() if _divides(f)})
                if common:
                    x, y = (product((side - common).elements()) for side in sides)
                    return product([_sum(op, x, y), *common.elements()])
        return None

    return formula.rewritten(rule)


def _sum(op: str, a: Expr, b: Expr) -> Expr:
    size = _unsigned(b)
    return binary(op, a, b) if size is b else binary("-" if op == "+" else "+", a, size)


def _unsigned(expr: Expr) -> Expr:
    match expr:
        case Call(name="neg", args=(a,)):
            return a
        case Bin(op="/", a=a, b=b) if (size := _unsigned(a)) is not a:
            return size / b
    return expr


def _divides(f: Expr) -> bool:
    match f:
        case Bin(op="/", a=Const(value=1), b=b):
            return not isinstance(b, Const)
    return False
