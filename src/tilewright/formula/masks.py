"""Where a mask says that nothing happens, a loop need not go.

A condition guards a fold if what is folded where it is false changes nothing: -inf in a maximum,
zero in a sum. Where the condition bounds the loop's index by the indices of the block or by an
element that all of the block reads, so does the loop. `ends` is for conditions that read more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import inf
from typing import TypeAlias

from tilewright.ir.analysis.bounds import Ranges, prove
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array, Axis, Extent
from tilewright.ir.simplify import simplify


@dataclass(frozen=True)
class Limits:
    """Expressions that bound the loop from below (none below zero) and above, over `first(i)` and
    `stop(i)` of tiles and over indices of batches. `data`: conditions of the mask, all of them, if
    one reads what gives no such bound."""

    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()
    data: tuple[Expr, ...] = ()


def first(var: Var) -> Var:
    return Var(f"{var.name}.start", var.dtype)


def stop(var: Var) -> Var:
    return Var(f"{var.name}.stop", var.dtype)


def limits(
    levels: Iterable[Array], along: Axis, roles: dict[str, set[Var]], stored: Collection[str] = ()
) -> Limits:
    """What bounds the index `along`. `roles`: which axes are "tile" and which "each"; `stored`: the
    arrays that lie in memory.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> i, j = Axis(Var("i"), 64), Axis(Var("j"), 64)
    >>> s = Load(tensor("s", (64, 64), FLOAT32), (i.var, j.var))
    >>> body = select(j.var <= i.var + 3, s, const(-inf, FLOAT32))
    >>> top = array("top", (i,), body, monoid="max", over=(j,))
    >>> limits([top], j, {"tile": {i.var}, "each": set()}).high
    (`i.stop` + 3,)
    """
    folds = list(levels)
    guards = dict.fromkeys(node for f in folds for node in walk(f.body)
                           if isinstance(node, Select) and isinstance(node.b, Const)
                           and along.var in variables(node.cond))  # fmt: skip
    conditions = tuple(dict.fromkeys(
        c for guard in guards if all(_guards(guard.cond, f) for f in folds)
        for c in _parts(guard.cond, _AND)))  # fmt: skip
    hull = _Hull(along, roles, stored)
    found = [hull.of(c) for c in conditions]
    low, high = (tuple(dict.fromkeys(x[n] for x in found if x[n] is not None)) for n in (0, 1))
    return Limits(low, high, conditions if hull.is_open else ())  # type: ignore[arg-type]


def _guards(cond: Expr, fold: Array) -> bool:
    """Whether what `fold` folds where `cond` is false leaves it as it is."""
    neutral = NEUTRAL.get(fold.monoid.removeprefix("arg"))  # a place starts with the first
    return neutral is not None and known_without(cond, fold.body) == neutral


def known_without(cond: Expr, expr: Expr) -> float | None:
    """0, inf or -inf if `expr` surely is that where `cond` is false; what is not known is finite.

    >>> x, c = Var("x", FLOAT32), Var("i") < 3
    >>> known_without(c, Call("exp", (select(c, x, const(-inf, FLOAT32)) - 1,), FLOAT32) * x)
    0.0
    """

    return _known(_without(cond, expr))


def _without(cond: Expr, expr: Expr) -> Expr:
    def outside(node: Expr) -> Expr | None:
        return node.b if isinstance(node, Select) and node.cond is cond else None

    return transform(expr, outside)


def is_zero_without(cond: Expr, expr: Expr) -> bool:
    """Whether `expr` is computed as 0 where `cond` is false: nothing infinite meets that zero.

    >>> x, c = Var("x", FLOAT32), Var("i") < 3
    >>> score = select(c, x, const(-inf, FLOAT32))
    >>> p = Call("exp", (score,), FLOAT32)
    >>> is_zero_without(c, p * x), is_zero_without(c, p * score)
    (True, False)
    """
    found = _without(cond, expr)
    outside = walk_outside(found, lambda n: isinstance(n, Call) and n.name in _POWERS)
    ends = (inf, -inf)
    return _known(found) == 0 and not any(isinstance(n, Const) and n.value in ends for n in outside)


@lru_cache(maxsize=4096)
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
        case Call(name=name, args=(a,)) if name in _POWERS:
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


_POWERS = ("exp", "exp2", "exp10")
_AND, _OR = ("and", "&"), ("or", "|")
_Ends: TypeAlias = "tuple[Expr | None, Expr | None]"


def _parts(cond: Expr, ops: tuple[str, str]) -> Iterator[Expr]:
    if isinstance(cond, Bin) and cond.op in ops:
        yield from _parts(cond.a, ops)
        yield from _parts(cond.b, ops)
    else:
        yield cond


@dataclass
class _Hull:
    """The range of an index outside of which a condition is false everywhere in a block."""

    along: Axis
    roles: dict[str, set[Var]]
    stored: Collection[str]
    is_open: bool = False  # a condition reads what gives no end

    def of(self, cond: Expr) -> _Ends:
        """(low, high): it is false below the one, and from the other on; None is no bound."""
        for ops, (least, most) in ((_AND, ("max", "min")), (_OR, ("min", "max"))):
            parts = list(_parts(cond, ops))
            if len(parts) == 1:
                continue
            lows, highs = zip(*map(self.of, parts), strict=True)
            return _all_of(least, lows, ops is _OR), _all_of(most, highs, ops is _OR)
        if isinstance(cond, Cmp) and cond.op == "==":
            more, less = (self.of(Cmp(op, cond.a, cond.b)) for op in (">=", "<="))
            lows, highs = zip(more, less, strict=True)
            return _all_of("max", lows, False), _all_of("min", highs, False)
        bound = _bound(cond, self.along.var, self.roles) or self._read(cond)
        if bound is None:
            self.is_open |= bool(loads(cond))
            return None, None
        return (None, bound[1]) if bound[0] else (bound[1], None)

    def _read(self, cond: Expr) -> tuple[bool, Expr] | None:
        """The bound of `j < length[b]`. An element may be any number, so that nothing is added to
        it before it is cut at the ends of the axis."""
        if not isinstance(cond, Cmp) or cond.op not in _TURNED:
            return None
        op, a, b = cond.op, cond.a, cond.b
        if _bare(b) is self.along.var:
            op, a, b = _TURNED[op], b, a
        if _bare(a) is not self.along.var or b.dtype.kind != "int":
            return None
        if not variables(b) <= self.roles["each"] or any(
            x.buffer.name not in self.stored for x in loads(b)
        ):
            return None
        more = int(op in ("<=", ">"))
        wide = cast(b, INT32) if b.dtype.bits < 32 else b
        wide = binary("max", wide, -1) if b.dtype.bits > 32 else wide
        cut = binary("min", wide, self.along.extent - more)
        return op in ("<", "<="), cast(cut, INT32) + more


_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _bare(expr: Expr) -> Expr:
    """`expr` without casts to wider integers."""
    while isinstance(expr, Cast) and expr.dtype.is_int and expr.dtype.bits >= expr.a.dtype.bits:
        expr = expr.a
    return expr


def _all_of(op: str, ends: Sequence[Expr | None], needs_all: bool) -> Expr | None:
    known = [e for e in ends if e is not None]
    if not known or (needs_all and len(known) < len(ends)):
        return None
    return reduce(lambda a, b: binary(op, a, b), dict.fromkeys(known))


def _bound(cond: Expr, along: Var, roles: dict[str, set[Var]]) -> tuple[bool, Expr] | None:
    """(is it an upper one, the bound) that `cond` sets to `along` anywhere in a block."""
    if not isinstance(cond, Cmp) or cond.op not in ("<", "<=", ">", ">=") or loads(cond):
        return None
    a, b = (cond.a, cond.b) if cond.op in ("<", "<=") else (cond.b, cond.a)
    if not (a.dtype.is_int and b.dtype.is_int):
        return None
    less, quotients = _of_quotients(a - b if cond.op in ("<=", ">=") else a - b + 1)
    at, by = quotients.get(along, (along, 1))
    rest = simplify(substitute(less, {at: const(0, at.dtype)}))
    slope = simplify(less - rest - at), simplify(less - rest + at)
    if not any(isinstance(s, Const) and s.value == 0 for s in slope):
        return None
    upper = isinstance(slope[0], Const) and slope[0].value == 0
    edge = simplify(-rest if upper else rest)  # at <= edge, or at >= edge
    whole = {quotient: (var, n) for var, (quotient, n) in quotients.items()}
    for var in variables(edge):
        of, n = whole.get(var, (var, 1))
        end: Expr = of
        if of not in roles["each"]:
            step = simplify(substitute(edge, {var: var + 1}) - edge)
            if of not in roles["tile"] or not isinstance(step, Const):
                return None
            end = stop(of) - 1 if bool(step.value > 0) == upper else first(of)
        edge = substitute(edge, {var: end // n if n > 1 else end})
    return upper, simplify((edge + 1 if upper else edge) * by)


def _of_quotients(expr: Expr) -> tuple[Expr, dict[Var, tuple[Var, int]]]:
    """`expr` over a variable for each `i // 8` where it has no other `i`; by `i`, that and 8."""
    found: dict[Var, tuple[Var, int]] = {}

    def rule(node: Expr) -> Expr | None:
        match node:
            case Bin(op="//", a=Var() as var, b=Const(value=by)) if by > 0:
                quotient, n = found.setdefault(var, (Var(f"{var.name}//", var.dtype), int(by)))
                return quotient if n == by else None
        return None

    plain = transform(expr, rule)
    return (plain, found) if found.keys().isdisjoint(variables(plain)) else (expr, {})


def within(limit: Expr, ranges: Ranges, extent: Extent, upper: bool) -> bool:
    """Whether a bound needs no cut at the end of the axis."""
    return bool(prove(limit <= extent if upper else limit >= 0, ranges))
