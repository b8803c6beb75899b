"""Where a mask says that nothing happens, a loop need not go.

A condition guards a fold if what is folded where it is false changes nothing: -inf in a maximum,
zero in a sum. Where the condition bounds the loop's index by the indices of the block, so does
the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array
from tilewright.ir.simplify import simplify


@dataclass(frozen=True)
class Limits:
    """Expressions that bound the loop from below (none below zero) and above, over `first(i)` and
    `stop(i)` of tiles and over indices of batches."""

    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()


def first(var: Var) -> Var:
    return Var(f"{var.name}.start", var.dtype)


def stop(var: Var) -> Var:
    return Var(f"{var.name}.stop", var.dtype)


def limits(levels: Iterable[Array], along: Var, roles: dict[str, set[Var]]) -> Limits:
    """What bounds the index `along`. `roles`: which axes are "tile" and which "each".

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> i, j = Axis(Var("i"), 64), Axis(Var("j"), 64)
    >>> s = Load(tensor("s", (64, 64), FLOAT32), (i.var, j.var))
    >>> body = select(j.var <= i.var + 3, s, const(-inf, FLOAT32))
    >>> top = array("top", (i,), body, monoid="max", over=(j,))
    >>> limits([top], j.var, {"tile": {i.var}, "each": set()}).high
    (`i.stop` + 3,)
    """
    folds = list(levels)
    low: list[Expr] = []
    high: list[Expr] = []
    guards = dict.fromkeys(node for f in folds for node in walk(f.body)
                           if isinstance(node, Select) and isinstance(node.b, Const)
                           and along in variables(node.cond))  # fmt: skip
    for guard in guards:
        if not all(_guards(guard.cond, f) for f in folds):
            continue
        for condition in _conjuncts(guard.cond):
            bound = _bound(condition, along, roles)
            if bound is not None:
                (high if bound[0] else low).append(bound[1])
    return Limits(tuple(dict.fromkeys(low)), tuple(dict.fromkeys(high)))


def _guards(cond: Expr, fold: Array) -> bool:
    """Whether what `fold` folds where `cond` is false leaves it as it is."""
    return known_without(cond, fold.body) == NEUTRAL.get(fold.monoid)


def known_without(cond: Expr, expr: Expr) -> float | None:
    """0, inf or -inf if `expr` surely is that where `cond` is false; what is not known is finite.

    >>> x, c = Var("x", FLOAT32), Var("i") < 3
    >>> known_without(c, Call("exp", (select(c, x, const(-inf, FLOAT32)) - 1,), FLOAT32) * x)
    0.0
    """

    def outside(node: Expr) -> Expr | None:
        return node.b if isinstance(node, Select) and node.cond is cond else None

    return _known(transform(expr, outside))


def _known(expr: Expr) -> float | None:
    """0, inf or -inf if the value surely is that; what is not known is finite."""
    match expr:
        case Const(value=value):
            return float(value) if value in (0, inf, -inf) else None
        case Cast(a=a):
            return _known(a)
        case Call(name="neg", args=(a,)):
            found = _known(a)
            return None if found is None else -found
        case Call(name="exp" | "exp2" | "exp10", args=(a,)):
            return 0.0 if _known(a) == -inf else None
        case Select(a=a, b=b):
            return _known(a) if _known(a) == _known(b) else None
        case Bin(op=op, a=a, b=b):
            return _known_of(op, _known(a), _known(b), b)
    return None


def _known_of(op: str, a: float | None, b: float | None, right: Expr) -> float | None:
    if op == "-":
        op, b = "+", None if b is None else -b
    if op == "+":
        ends = {v for v in (a, b) if v in (inf, -inf)}
        if len(ends) == 1:
            return ends.pop()
        return 0.0 if a == 0 and b == 0 else None
    if op == "*" and 0 in (a, b):
        return 0.0
    if op == "/" and a == 0:
        return 0.0
    scale = isinstance(right, Const) and right.value > 0
    return a if op in ("*", "/") and scale and a in (inf, -inf) else None


def _conjuncts(cond: Expr) -> Iterator[Expr]:
    if isinstance(cond, Bin) and cond.op in ("and", "&"):
        yield from _conjuncts(cond.a)
        yield from _conjuncts(cond.b)
    else:
        yield cond


def _bound(cond: Expr, along: Var, roles: dict[str, set[Var]]) -> tuple[bool, Expr] | None:
    """(is it an upper one, the bound) that `cond` sets to `along` anywhere in a block."""
    if not isinstance(cond, Cmp) or cond.op not in ("<", "<=", ">", ">=") or loads(cond):
        return None
    a, b = (cond.a, cond.b) if cond.op in ("<", "<=") else (cond.b, cond.a)
    if not (a.dtype.is_int and b.dtype.is_int):
        return None
    less = a - b if cond.op in ("<=", ">=") else a - b + 1  # at most zero
    rest = simplify(substitute(less, {along: const(0, along.dtype)}))
    slope = simplify(less - rest - along), simplify(less - rest + along)
    if not any(isinstance(s, Const) and s.value == 0 for s in slope):
        return None
    upper = isinstance(slope[0], Const) and slope[0].value == 0
    edge = simplify(-rest if upper else rest)  # along <= edge, or along >= edge
    for var in variables(edge):
        if var in roles["each"]:
            continue
        if var not in roles["tile"]:
            return None
        step = simplify(substitute(edge, {var: var + 1}) - edge)
        if not isinstance(step, Const):
            return None
        rises = bool(step.value > 0) == upper
        edge = substitute(edge, {var: stop(var) - 1 if rises else first(var)})
    return upper, simplify(edge + 1 if upper else edge)


def within(limit: Expr, ranges: Ranges, extent: int, upper: bool) -> bool:
    """Whether a bound needs no cut at the end of the axis."""
    found = bounds(limit, ranges)
    return found.hi <= extent if upper else found.lo >= 0
