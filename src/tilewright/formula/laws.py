"""Laws: formulas that mean the same, one of which is better to compute.

Each takes a formula in normal form and gives one; nothing but sums is reassociated.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tilewright.formula.factors import (
    by_index,
    common_divisors,
    exchanged_sums,
    factors_behind_sums,
)
from tilewright.formula.long_folds import split_long_folds
from tilewright.formula.masks import is_zero_without
from tilewright.formula.matrices import product_of
from tilewright.formula.parts import folds_of_joined
from tilewright.formula.views import ranges_of
from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.core import *
from tilewright.ir.formula import Array, Axis, Formula, array, reads
from tilewright.ir.simplify import simplify


def masks_once(formula: Formula) -> Formula:
    """where(c, a, 0) = a where `a` is zero anyway if c is false, as the exponential of a masked
    score is: then it is a product's factor like any other.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> x, i = tensor("x", (4,), FLOAT32), Axis(Var("i"), 4)
    >>> c, element = i.var < 3, Load(x, (i.var,))
    >>> e = Call("exp", (select(c, element, const(-inf, FLOAT32)),), FLOAT32)
    >>> y = array("y", (i,), select(c, e * element, const(0, FLOAT32)))
    >>> print(masks_once(Formula("f", (x,), (y,), (y.buffer,))))
    formula f(x: float32[4]) -> y
        y[i < 4]: float32 = exp(x[i] if i < 3 else -inf) * x[i]
    """

    def rule(node: Expr) -> Expr | None:
        match node:
            case Select(cond=cond, a=a, b=Const(value=0)) if a.dtype.is_float:
                return a if is_zero_without(cond, a) else None
        return None

    return formula.rewritten(rule)


def rows_behind_extremes(formula: Formula) -> Formula:
    """max (a + r · float(j - i)) = max (a + r · float(j)) - r · float(i) for the index i of a row,
    and what subtracts the maximum needs neither: r · float(j) is one number for each column. Such
    numbers are larger than distances, so it is for results of 16 bits.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(rows_behind_extremes(parse_formula('''
    ... formula f(x: float32[4, 8], r: float32[]) -> y
    ...     t[i < 4]: float32 = max{j < 8} x[i, j] + r[] * float32(j - i)
    ...     y[i < 4, j < 8]: bfloat16 = bfloat16(x[i, j] + r[] * float32(j - i) - t[i])
    ... ''')))
    formula f(x: float32[4, 8], r: float32[]) -> y
        t[i < 4]: float32 = max{j < 8} x[i, j] + r * float32(j)
        y[i < 4, j < 8]: bfloat16 = bfloat16(x[i, j] + r * float32(j) - t[i])
    """
    if not any(b.dtype.is_float and b.dtype.bits <= 16 for b in formula.outputs):
        return formula
    moved: dict[str, tuple[tuple[Var, ...], Expr]] = {}
    sizes = {size.var for size in formula.sizes}
    arrays = []
    for a in formula.arrays:
        known = ranges_of(a, formula.sizes)

        def rule(node: Expr, known: Ranges = known) -> Expr | None:
            match node:
                case Load(buffer=b) if b.name in moved:
                    axes, rest = moved[b.name]
                    return node + substitute(rest, dict(zip(axes, node.indices, strict=True)))
                case Bin(op="-", a=x, b=Bin(op="+", a=Load(buffer=b) as top, b=rest)):
                    if b.name in moved and (found := _of_rows(x, sizes | variables(rest), known)):
                        return found[0] - top if found[1] == rest else None
            return None

        a = replace(a, body=transform(a.body, rule))
        is_inner = a.monoid in ("max", "min") and not a.scan and a.buffer not in formula.outputs
        if is_inner and (found := _of_rows(a.body, {*sizes, *a.vars}, known)):
            a, moved[a.name] = replace(a, body=found[0]), (a.vars, found[1])
        arrays.append(a)
    return replace(formula, arrays=tuple(arrays))


def _of_rows(e: Expr, rows: set[Var], known: Ranges) -> tuple[Expr, Expr] | None:
    """`e`, a mask's other side infinite, as a sum of two: the second is of indices of `rows`."""

    def either(op: str, a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
        if found := _of_rows(a, rows, known):
            return binary(op, found[0], b), found[1]
        if found := _of_rows(b, rows, known):
            return binary(op, a, found[0]), found[1] if op == "+" else -found[1]
        return None

    match e:
        case Select(cond=cond, a=a, b=Const(value=end)) if end in (inf, -inf):
            found = _of_rows(a, rows, known)
            return found and (select(cond, found[0], e.b), found[1])
        case Bin(op="+" | "-" as op, a=a, b=b) if e.dtype == FLOAT32:
            return either(op, a, b)
        case Bin(op="*" | "/" as op, a=a, b=b) if e.dtype == FLOAT32:
            if variables(b) <= rows and (found := _of_rows(a, rows, known)):
                return binary(op, found[0], b), binary(op, found[1], b)
            if op == "*" and variables(a) <= rows and (found := _of_rows(b, rows, known)):
                return a * found[0], a * found[1]
        case Cast(dtype=dtype, a=Bin(op="+" | "-" as op, a=x, b=y) as inner) if dtype == FLOAT32:
            own = [variables(side) <= rows for side in (x, y)]
            if own[0] != own[1] and variables(x) and variables(y) and _is_exact(inner, known):
                x, y = cast(x, dtype), cast(y, dtype) if op == "+" else -cast(y, dtype)
                return (y, x) if own[0] else (x, y)
    return None


def _is_exact(e: Bin, known: Ranges) -> bool:
    """Whether float32 holds a sum of indices and both of its sides."""
    if e.dtype != INT32 or loads(e):
        return False
    sides = [bounds(side, known) for side in (e.a, e.b, e)]
    return all(v.lo >= -(1 << 24) and v.hi <= 1 << 24 for v in sides)


def scales_of_sums(formula: Formula) -> Formula:
    """a · k + r · w = (a + r / k · w) · k for a product `a` of which maxima are taken and an index
    `w`, where `r` has fewer axes than `w` or both fewer than `a`: k can then stand after the
    maximum, and is no product of an element.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> i, j, l = (Axis(Var(n), extent) for n, extent in (("i", 4), ("j", 8), ("l", 2)))
    >>> x, y, r = (tensor(n, e, FLOAT32) for n, e in (("x", (4, 2)), ("y", (2, 8)), ("r", ())))
    >>> body = Load(x, (i.var, l.var)) * Load(y, (l.var, j.var))
    >>> s = array("s", (i, j), body, monoid="sum", over=(l,))
    >>> body = Load(s.buffer, (i.var, j.var)) * 0.5 + Load(r, ()) * cast(j.var, FLOAT32)
    >>> top = array("t", (i,), body, monoid="max", over=(j,))
    >>> print(scales_of_sums(Formula("f", (x, y, r), (s, top), (top.buffer,))).arrays[1])
    t[i < 4]: float32 = max{j < 8} (s[i, j] + r * 2.0 * float32(j)) * 0.5
    """
    products = {a.name for a in formula.arrays if product_of(a) is not None}
    extremes = [a for a in formula.arrays if a.monoid in ("max", "min")]
    scores = products & set().union(*(a.sources for a in extremes))

    def rule(node: Expr) -> Expr | None:
        match node:
            case Bin(
                op="+",
                a=Bin(op="*", a=Load(buffer=buffer) as a, b=Const(value=k) as factor),
                b=Bin(op="*", a=r, b=w) as b,
            ) if buffer.name in scores and by_index(b) and 2**-60 < k < 2**60:
                r, w = (w, r) if loads(w) or isinstance(w, Const) else (r, w)
                fewer = len(variables(b)) < len(variables(a))
                if fewer or len(variables(r)) < len(variables(w)):
                    return (a + r * const(1 / float(k), FLOAT32) * w) * factor
        return None

    return formula.rewritten(rule)


def scales_behind_maxima(formula: Formula) -> Formula:
    """A positive factor of what a maximum or minimum is of stands after it, and after a mask:
    rounding is monotone, so not a bit changes, and what is folded needs no product.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> x, i, j = tensor("x", (4, 8), FLOAT32), Axis(Var("i"), 4), Axis(Var("j"), 8)
    >>> top = array("t", (i,), Load(x, (i.var, j.var)) * 2, monoid="max", over=(j,))
    >>> y = array("y", (i,), Load(top.buffer, (i.var,)) + 1)
    >>> print(scales_behind_maxima(Formula("f", (x,), (top, y), (y.buffer,))))
    formula f(x: float32[4, 8]) -> y
        t[i < 4]: float32 = max{j < 8} x[i, j]
        y[i < 4]: float32 = t[i] * 2.0 + 1.0
    """
    factors: dict[str, Expr] = {}
    arrays = []
    for a in formula.arrays:

        def rule(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.buffer.name in factors:
                return node * factors[node.buffer.name]
            return _behind_mask(node)

        a = replace(a, body=transform(a.body, rule))
        match a.body:
            case Bin(op="*", a=inner, b=Const(value=k)) if k > 0 and a.monoid in ("max", "min"):
                if a.buffer not in formula.outputs and not a.scan:
                    factors[a.name], a = a.body.b, replace(a, body=inner)
        arrays.append(a)
    return replace(formula, arrays=tuple(arrays))


def _behind_mask(node: Expr) -> Expr | None:
    """where(c, a · k, ±inf) = where(c, a, ±inf) · k"""
    match node:
        case Bin(op="*", a=Const(value=k) as factor, b=b) if not isinstance(b, Const) and k > 0:
            return b * factor
        case Select(cond=cond, a=Bin(op="*", a=a, b=Const(value=k) as factor), b=Const(value=end)):
            if k > 0 and end in (inf, -inf):
                return select(cond, a, node.b) * factor
        case Bin(op="*", a=Bin(op="*", a=a, b=Const(value=k)), b=Const(value=other)):
            if k > 0 and other > 0 and node.dtype == FLOAT32:
                product = float(k) * float(other)
                exact = const(product, FLOAT32)
                return a * exact if exact.value == product else None
    return None


def indices_as_floats(formula: Formula) -> Formula:
    """float(i - j) = float(i) - float(j) for indices, exactly below 2²⁴: one conversion for each
    row and each column, not for each element.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> x, i, j = tensor("x", (4,), FLOAT32), Axis(Var("i"), 4), Axis(Var("j"), 8)
    >>> y = array("y", (i, j), Load(x, (i.var,)) * cast(j.var - i.var, FLOAT32))
    >>> print(indices_as_floats(Formula("f", (x,), (y,), (y.buffer,))))
    formula f(x: float32[4]) -> y
        y[i < 4, j < 8]: float32 = x[i] * (float32(j) - float32(i))
    """

    def converted(a: Array) -> Array:
        known = ranges_of(a, formula.sizes)

        def rule(node: Expr) -> Expr | None:
            match node:
                case Cast(dtype=dtype, a=Bin(op="+" | "-" as op, a=x, b=y) as inner):
                    if dtype == FLOAT32 and _is_exact(inner, known):
                        parts = [cast(x, dtype), cast(y, dtype)]
                        return Bin(op, *(c if (r := rule(c)) is None else r for c in parts))
            return None

        return replace(a, body=transform(a.body, rule))

    return replace(formula, arrays=tuple(map(converted, formula.arrays)))


def tanh_of_log1p(formula: Formula) -> Formula:
    """tanh(log1p(u)) = n / (n + 2) with n = u · (u + 2), for exponentials u: a quotient in place of
    two functions. It is 1 in float32 past 2²⁰, as is tanh(x) past 10: softplus needs no choice.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> x, i = tensor("x", (4,), FLOAT32), Axis(Var("i"), 4)
    >>> element = Load(x, (i.var,))
    >>> log = Call("log1p", (Call("exp", (element,), FLOAT32),), FLOAT32)
    >>> y = array("y", (i,), Call("tanh", (select(element > 20, element, log),), FLOAT32))
    >>> print(tanh_of_log1p(Formula("f", (x,), (y,), (y.buffer,))).arrays[0].body.b)
    min_nan(exp(x[i]), 1.048576e+06) * (min_nan(exp(x[i]), 1.048576e+06) + 2.0) + 2.0
    """

    def rule(node: Expr) -> Expr | None:
        match node:
            case Call(name="tanh", args=(log,), dtype=dtype) if dtype == FLOAT32:
                match _without_choice(log):
                    case Call(name="log1p", args=(Call(name="exp" | "exp2" | "exp10") as u,)):
                        least = Call("min_nan", (u, const(2.0**20, FLOAT32)), FLOAT32)
                        n = least * (least + 2)
                        return n / (n + 2)
        return None

    return formula.rewritten(rule)


def _without_choice(softplus: Expr) -> Expr:
    """Of x beyond a number and log1p(exp(x)) the second, as far as tanh can tell."""
    match softplus:
        case Select(
            cond=Cmp(op=">", a=x, b=Const(value=k)), a=a,
            b=Call(name="log1p", args=(Call(name="exp", args=(exponent,)),)) as b,
        ) if exponent == a and a in (x, cast(x, a.dtype)) and k >= 10:  # fmt: skip
            return b
    return softplus


def shifted_scans(formula: Formula) -> Formula:
    """Sums up to each element that are read some places earlier only are those of elements that
    many places earlier: no array of them is written and read again.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(shifted_scans(parse_formula('''
    ... formula f(x: float32[4, 7]) -> y
    ...     s[i < 4, j < 7]: float32 = scan sum{j < 7} x[i, j]
    ...     y[i < 4, j < 8]: float32 = 0.0 if j < 1 else s[i, j - 1]
    ... ''')))
    formula f(x: float32[4, 7]) -> y
        s[i < 4, j < 8]: float32 = scan sum{j < 8} 0.0 if j < 1 else x[i, j - 1]
        y[i < 4, j < 8]: float32 = 0.0 if j < 1 else s[i, j]
    """
    for a in formula.arrays:
        if not a.scan or a.monoid != "sum" or a.buffer in formula.outputs:
            continue
        (along,), place = a.over, a.vars.index(a.over[0].var)
        found = [(b, x) for b in formula.arrays for x in reads(b) if x.buffer == a.buffer]
        shifts = {_earlier(b, x.indices[place]) for b, x in found}
        by, length = shifts.pop() if len(shifts) == 1 else (0, 0)
        if not by or not isinstance(along.extent, int) or length > along.extent + by:
            continue
        longer = Axis(along.var, length)
        body = substitute(a.body, {along.var: along.var - by})
        body = select(along.var < by, const(0, body.dtype), body)
        axes = tuple(longer if x == along else x for x in a.axes)
        new = array(a.name, axes, body, a.buffer.dtype, monoid="sum", scan=True, over=(longer,),
                    given=a.given, loc=a.loc)  # fmt: skip
        there: dict[Expr, Expr] = {}
        for _, read in found:
            at = [simplify(i + by) if p == place else i for p, i in enumerate(read.indices)]
            there[read] = Load(new.buffer, tuple(at), read.loc)
        arrays = tuple(new if b is a else b for b in formula.arrays)
        formula = replace(formula, arrays=arrays).rewritten(there.get)
    return formula


def _earlier(reader: Array, index: Expr) -> tuple[int, int]:
    """How many places before its own an element is read, and along how many; 0, if not so."""
    for axis in reader.domain:
        by = simplify(axis.var - index)
        if isinstance(by, Const) and by.value > 0 and isinstance(axis.extent, int):
            return int(by.value), axis.extent
    return 0, 0


# in the order in which they are applied: a mask that is gone does not hide a factor
LAWS = (
    folds_of_joined,
    masks_once,
    rows_behind_extremes,
    scales_of_sums,
    scales_behind_maxima,
    exchanged_sums,
    factors_behind_sums,
    common_divisors,
    indices_as_floats,
    tanh_of_log1p,
    shifted_scans,
    split_long_folds,
)
