"""Maxima that nothing depends on: softmax subtracts one, and its result is the same without.

Say that an array `m` grows by δ. Then `x - m` grows by -δ, `exp(x - m)` by a factor exp(-δ), and so
does its sum along a row, so that their quotient stays what it was. Where all outputs stay, they do
not depend on `m`, and its cotangent is zero: a gradient need not be computed to find that out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from typing import NamedTuple, TypeAlias

from tilewright.ir.core import *
from tilewright.ir.formula import Array, Axis, Formula


class Growth(NamedTuple):
    """By `rate` · δ[at], added, or as the exponent of a factor."""

    is_factor: bool
    rate: float
    at: tuple[Expr, ...]


STAYS = Growth(False, 0.0, ())
_Rule: TypeAlias = "Callable[[Growth, Growth, Bin], Growth]"


class _Unknown(Exception):
    """How a value grows is not one of these."""


def is_free_of(formula: Formula, name: str) -> bool:
    """Whether all outputs stay what they are when the array `name` grows.

    >>> from tilewright.formula.front.reductions import softmax
    >>> from tilewright.formula.front.trace import trace
    >>> is_free_of(trace(softmax, [("x", (2, 4), "float32")]), "max")
    True
    """
    known: dict[str, tuple[Array, Growth]] = {}
    try:
        for a in formula.arrays:
            own = Growth(False, 1.0, a.vars)
            found = own if a.name == name else _grown(a, known)
            if found.rate:
                known[a.name] = a, found
    except _Unknown:
        return False
    return not any(b.name in known for b in formula.outputs)


def _grown(a: Array, known: dict[str, tuple[Array, Growth]]) -> Growth:
    axes = {axis.var: axis for axis in a.domain}
    found = _Growths(known, axes)(a.body)
    if not found.rate or not a.monoid:
        return found
    alike = not any(a.folded & variables(i) for i in found.at)
    keeps = a.monoid in ("max", "min") or (a.monoid == "sum" and found.is_factor)
    if a.scan or not alike or not keeps:
        raise _Unknown
    return found


class _Growths:
    """How expressions over `axes` grow, given how arrays do."""

    def __init__(self, known: dict[str, tuple[Array, Growth]], axes: dict[Var, Axis]) -> None:
        self.known, self.axes = known, axes
        self.memo: dict[Expr, Growth] = {}

    def __call__(self, expr: Expr) -> Growth:
        if expr not in self.memo:
            self.memo[expr] = self._of(expr)
        return self.memo[expr]

    def _of(self, expr: Expr) -> Growth:
        parts = [self(child) for child in expr.children]
        if isinstance(expr, Load):
            return self._read(expr, parts)
        if not any(p.rate for p in parts):
            return STAYS
        match expr:
            case Cast() if expr.dtype.is_float:
                return parts[0]
            case Select():
                return self._chosen(expr, parts)
            case Call(name="isinf") if not parts[0].is_factor:
                return STAYS
            case Bin(op=op) if op in _BINARY:
                return _BINARY[op](parts[0], parts[1], expr)
            case Call(name="neg"):
                (x,) = parts
                return x if x.is_factor else x._replace(rate=-x.rate)
            case Call(name="exp") if not parts[0].is_factor:
                return parts[0]._replace(is_factor=True)
            case Call(name="log") if parts[0].is_factor:
                return parts[0]._replace(is_factor=False)
        raise _Unknown

    def _read(self, read: Load, parts: list[Growth]) -> Growth:
        if any(p.rate for p in parts):
            raise _Unknown
        if read.buffer.name not in self.known:
            return STAYS
        a, found = self.known[read.buffer.name]
        for index, extent in zip(read.indices, read.buffer.static_shape, strict=True):
            inside = isinstance(index, Var) and self.axes[index].extent <= extent
            if not inside and not (isinstance(index, Const) and 0 <= index.value < extent):
                raise _Unknown
        own = dict(zip(a.vars, read.indices, strict=True))
        return found._replace(at=tuple(substitute(i, own) for i in found.at))

    def _chosen(self, node: Select, parts: list[Growth]) -> Growth:
        """Between values that grow alike; an infinite one grows by any amount, zero by any
        factor."""
        condition, a, b = parts
        if condition.rate:
            raise _Unknown
        if _is_at_end(node):
            return b
        for side, other, value in ((a, b, node.b), (b, a, node.a)):
            free = (0.0,) if side.is_factor else (inf, -inf)
            if side.rate and not other.rate and isinstance(value, Const) and value.value in free:
                return side
        return _alike(a, b, node)


def without_ends(body: Expr, free: Collection[str]) -> Expr:
    """`body` without choices where maxima that nothing depends on are infinite: as those of a
    softmax, gradients of such rows are no numbers."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Select) and _is_at_end(node) and isinstance(node.a, Load):
            return node.b if node.a.buffer.name in free else None
        return None

    return transform(body, rule)


def _is_at_end(node: Select) -> bool:
    """Whether it chooses what it asks for being infinite: that grows by any amount."""
    return bool(node.cond == Call("isinf", (node.a,), BOOL))


def _alike(a: Growth, b: Growth, node: Expr) -> Growth:
    if a != b:
        raise _Unknown
    return a


def _sum(sign: int) -> _Rule:
    def rule(a: Growth, b: Growth, node: Bin) -> Growth:
        if a.is_factor or b.is_factor:
            return _alike(a, b, node)
        return _joined(a, b, sign, False)

    return rule


def _product(sign: int) -> _Rule:
    def rule(a: Growth, b: Growth, node: Bin) -> Growth:
        scaled = a.rate and not a.is_factor and isinstance(node.b, Const)
        if scaled and isinstance(node.b, Const):
            factor = float(node.b.value) ** sign
            return a._replace(rate=a.rate * factor)
        if any(x.rate and not x.is_factor for x in (a, b)):
            raise _Unknown
        return _joined(a, b, sign, True)

    return rule


def _joined(a: Growth, b: Growth, sign: int, is_factor: bool) -> Growth:
    if a.rate and b.rate and a.at != b.at:
        raise _Unknown
    rate = a.rate + sign * b.rate
    return Growth(is_factor, rate, a.at if a.rate else b.at) if rate else STAYS


_BINARY: dict[str, _Rule] = {
    "+": _sum(1), "-": _sum(-1), "*": _product(1), "/": _product(-1), "max": _alike, "min": _alike,
}  # fmt: skip
