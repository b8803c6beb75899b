"""Folds along arrays that are joined: one for each of them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.formula.matrices import product_of
from tilewright.formula.views import plainer, ranges_of
from tilewright.ir.analysis.bounds import prove
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array, Axis, Extent, Formula, array, names_in
from tilewright.ir.simplify import simplify

_COMBINE = {"sum": "+", "prod": "*", "any": "or", "all": "and", "max": "max", "min": "min"}


def folds_of_joined(formula: Formula) -> Formula:
    """max over a and b, joined = the greater of max a and max b, where one of the two is a fold
    itself, such as the scores beside a sink: each is folded where it is, none is copied.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(folds_of_joined(parse_formula('''
    ... formula f(x: float32[4, 8, 2], z: float32[4]) -> t
    ...     s[i < 4, j < 8]: float32 = sum{k < 2} x[i, j, k]
    ...     t[i < 4]: float32 = max{j < 9} (s[i, j] if j < 8 else z[i])
    ... ''')))
    formula f(x: float32[4, 8, 2], z: float32[4]) -> t
        s[i < 4, j < 8]: float32 = sum{k < 2} x[i, j, k]
        t_0[i < 4]: float32 = max{j < 8} s[i, j]
        t[i < 4]: float32 = max_nan(t_0[i], z[i])
    """
    folds = {a.name for a in formula.arrays if a.monoid}
    joined: dict[str, Array] = {}  # over their parts
    arrays: list[Array] = []
    for a in formula.arrays:

        def rule(node: Expr) -> Expr | None:
            whole = joined.get(node.buffer.name) if isinstance(node, Load) else None
            return whole.at(node.indices) if whole and isinstance(node, Load) else None

        a = replace(a, body=transform(a.body, rule))
        is_output = a.buffer in formula.outputs
        value = _split(a, f"{a.name}_0" if is_output else a.name, folds, formula.sizes, arrays)
        if value is None:
            arrays.append(a)
            continue
        joined[a.name] = a = replace(a, body=value, monoid="", over=())
        arrays += [a] if is_output else []
    return replace(formula, arrays=tuple(arrays))


def _split(
    a: Array, name: str, folds: set[str], sizes: tuple[Dim, ...], arrays: list[Array]
) -> Expr | None:
    """An element of `a`, made of folds of its parts, the first of which has the `name`; they are
    added to `arrays`. None where nothing is joined along what it folds."""
    end = _end(a, folds, sizes)
    if end is None:
        return None
    (axis,), values = a.over, list[Expr]()
    rest = simplify(wrap(axis.extent) - end)
    for n, (begin, length) in enumerate(((const(0, INT32), end), (end, rest))):
        own = name if n == 0 else f"{a.name}_{n}"
        part = _part(a, own, Axis(axis.var, _extent(length)), begin, sizes)
        value = _split(part, own, folds, sizes, arrays) if part.monoid else part.body
        if value is None:
            arrays.append(part)
            value = part.element
        values.append(value)
    return _combined(a.monoid, *values)


def _end(f: Array, folds: set[str], sizes: tuple[Dim, ...]) -> Expr | None:
    """Where the first of the arrays ends that are joined along what is folded."""
    if f.monoid not in NEUTRAL or f.scan or len(f.over) != 1 or product_of(f) is not None:
        return None
    (axis,), known = f.over, ranges_of(f, sizes)
    for node in walk(f.body):
        match node:
            case Select(cond=Cmp(op="<", a=a, b=b), a=x, b=y) if axis.var in variables(a):
                both = names_in(x), names_in(y)
                end = simplify(b - simplify(a - axis.var))
                inside = prove(end > 0, known) and prove(end < axis.extent, known)
                same = variables(end) <= {size.var for size in sizes}  # for all rows
                if inside and same and all(both) and folds & (both[0] | both[1]):
                    return end
    return None


def _extent(n: Expr) -> Extent:
    return int(n.value) if isinstance(n, Const) else n


def _part(a: Array, name: str, axis: Axis, begin: Expr, sizes: tuple[Dim, ...]) -> Array:
    """The fold of a part, from `begin` on; of one element, that."""
    over = () if axis.extent == 1 else (axis,)
    known = ranges_of(replace(a, over=over), sizes)
    place = simplify(axis.var + begin) if over else begin
    body = transform(substitute(a.body, {axis.var: place}), lambda node: plainer(node, known))
    if not over:
        return array(name, a.axes, cast(body, a.buffer.dtype))
    return array(name, a.axes, body, a.buffer.dtype, monoid=a.monoid, over=over, loc=a.loc)


def _combined(monoid: str, a: Expr, b: Expr) -> Expr:
    """What two parts make together; a NaN stays."""
    op = _COMBINE[monoid]
    if op in ("max", "min") and a.dtype.is_float:
        return Call(f"{op}_nan", (a, b), a.dtype)
    return binary(op, a, b)
