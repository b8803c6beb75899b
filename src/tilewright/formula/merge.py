"""Neighbouring dimensions that are always used together become one.

A softmax over (batch, heads, queries, keys) is one over (rows, keys): fewer loops, larger tiles.
Two dimensions of a buffer stay apart where somebody reads them other than side by side, folds one
of them, or computes with an index along one of them, other than as a digit of a flat index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir.analysis.bounds import linear
from tilewright.ir.analysis.linear import Linear
from tilewright.ir.core import *
from tilewright.ir.formula import (
    Array,
    Axis,
    Extent,
    Formula,
    extents,
    reads,
    tensor,
    times,
    vars_of,
)


def merged(formula: Formula) -> Formula:
    """
    >>> from tilewright.ir.formula import array
    >>> x = tensor("x", (2, 3, 4), FLOAT32)
    >>> i, j, k = (Axis(Var(n), e) for n, e in zip("ijk", x.static_shape))
    >>> total = array("t", (i, j), Load(x, (i.var, j.var, k.var)), monoid="sum", over=(k,))
    >>> print(merged(Formula("f", (x,), (total,), (total.buffer,))))
    formula f(x: float32[6, 4]) -> t
        t[i < 6]: float32 = sum{k < 4} x[i, k]
    """
    pairs = _pairs(formula)
    while pairs:
        formula = _join(formula, pairs)
        pairs = _pairs(formula)
    return formula


def _pairs(formula: Formula) -> set[tuple[str, int]]:
    """The (buffer, dimension) that may be one with the next, no two of them neighbours."""
    pairs = {(b.name, p) for b in formula.buffers for p in range(b.rank - 1)
             if _is_one_extent(*extents(b)[p : p + 2])}  # fmt: skip
    while True:
        left = {pair for pair in pairs if all(_agrees(a, pair, pairs) for a in formula.arrays)}
        if left == pairs:
            break
        pairs = left
    # one of each chain at a time, the same everywhere: the last, which a later round extends
    return {(name, p) for name, p in pairs if (name, p + 1) not in pairs}


def _is_one_extent(a: Extent, b: Extent) -> bool:
    """Whether the product of two sizes is one: an index holds it, and of sizes that calls give it
    says which they are."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b < 1 << 31
    return isinstance(a, int) or isinstance(b, int)


def _agrees(a: Array, pair: tuple[str, int], pairs: set[tuple[str, int]]) -> bool:
    """Whether `a` uses the two dimensions of a pair only side by side, as what may be one."""
    name, p = pair
    for read in reads(a):
        if read.buffer.name != name:
            continue
        x, y = read.indices[p], read.indices[p + 1]
        if _whole_of(read, p) is not None:
            continue
        if not (isinstance(x, Var) and isinstance(y, Var) and _side_by_side(a, x, y, pairs)):
            return False
        ends = {axis.var: axis.extent for axis in a.domain}
        if (ends[x], ends[y]) != extents(read.buffer)[p : p + 2]:
            return False
    if a.name == name:
        return _side_by_side(a, a.axes[p].var, a.axes[p + 1].var, pairs)
    return True


def _whole_of(read: Load, p: int) -> Expr | None:
    """The index of two dimensions as one, of which they are digits: [i // n, i % n], or
    [i // n % m, i % n] beside a third."""
    high, low = (_digit(index) for index in read.indices[p : p + 2])
    n = low.within
    if n is None or n != extents(read.buffer)[p + 1]:
        return None
    if high.of is not low.of or high.by != low.by * n:
        return None
    whole = low.of if low.by == 1 else low.of // low.by
    return whole if high.within is None else whole % (high.within * n)


@dataclass(frozen=True)
class _Digit:
    """of // by % within"""

    of: Expr
    by: int = 1
    within: int | None = None


def _digit(index: Expr) -> _Digit:
    match index:
        case Bin(op="%", a=a, b=Const(value=n)):
            inner = _digit(a)
            return replace(inner, within=int(n)) if inner.within is None else _Digit(a, 1, int(n))
        case Bin(op="//", a=a, b=Const(value=n)):
            return _Digit(a, int(n))
    return _Digit(index)


def _side_by_side(a: Array, x: Var, y: Var, pairs: set[tuple[str, int]]) -> bool:
    if a.scan and a.folded & {x, y}:
        return False
    for axes, own in ((a.axes, True), (a.over, False)):
        order = vars_of(axes)
        if x in order and y in order:
            p = order.index(x)
            if order[p + 1 : p + 2] != (y,) or (own and (a.name, p) not in pairs):
                return False
            if not own and a.monoid.startswith("arg"):
                return False
            return _only_together(a, x, y, pairs)
    return False


def _line(node: Expr) -> Linear | None:
    """A sum of indices."""
    is_sum = isinstance(node, Bin) and node.op in "+-*" and node.dtype == INT32
    return linear(node) if is_sum else None


def _only_together(a: Array, x: Var, y: Var, pairs: set[tuple[str, int]]) -> bool:
    uses, together = Counter[Var](), 0
    (extent,) = (axis.extent for axis in a.domain if axis.var is y)
    ahead, seen = [a.body], set[Expr]()
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        form = _line(node)
        if form is not None and (x in form.terms or y in form.terms):
            step = form.terms.get(y, 0)
            if not isinstance(extent, int) or form.terms.get(x) != step * extent:
                return False
            ahead += [atom for atom in form.terms if not isinstance(atom, Var)]
            continue
        ahead += node.children
        uses.update(child for child in node.children if isinstance(child, Var))
        if isinstance(node, Load):
            found = list(zip(node.indices, node.indices[1:], strict=False))
            at = [p for p, (u, v) in enumerate(found) if u is x and v is y]
            together += len(at)
            if any((node.buffer.name, p) not in pairs for p in at):
                return False
    alone = isinstance(a.body, Var) and a.body in (x, y)
    return uses[x] == uses[y] == together and not alone


def _join(formula: Formula, pairs: set[tuple[str, int]]) -> Formula:
    def shorter(b: Buffer) -> Buffer:
        shape, at = list(extents(b)), [p for name, p in pairs if name == b.name]
        for p in sorted(at, reverse=True):
            shape[p : p + 2] = [times(shape[p], shape[p + 1])]
        return tensor(b.name, tuple(shape), b.dtype) if at else b

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        indices: list[Expr] = []
        drop = {p + 1 for name, p in pairs if name == node.buffer.name}
        for p, index in enumerate(node.indices):
            whole = _whole_of(node, p) if p + 1 in drop else None
            if p not in drop:
                indices.append(index if whole is None else whole)
        return Load(shorter(node.buffer), tuple(indices), node.loc) if drop else None

    def joined(a: Array) -> Array:
        gone = {p + 1 for name, p in pairs if name == a.name}
        first = {a.axes[p - 1].var: a.axes[p] for p in gone}
        by_var = {axis.var: axis for axis in a.domain}
        for read in reads(a):
            for name, p in pairs:
                if name == read.buffer.name and _whole_of(read, p) is None:
                    x, y = read.indices[p : p + 2]
                    assert isinstance(x, Var) and isinstance(y, Var)
                    first[x] = by_var[y]
        axes, over = _longer(a.axes, first), _longer(a.over, first)
        body = _flat(a.body, {axis.var: x for x, axis in first.items()}, rule, {})
        return replace(a, buffer=shorter(a.buffer), axes=axes, over=over, body=body)

    return formula.relaid(shorter, joined)


def _flat(
    node: Expr, second: dict[Var, Var], rule: Callable[[Expr], Expr | None], memo: dict[int, Expr]
) -> Expr:
    """What `rule` makes of an expression, with sums of the indices that become one: `second` has
    for each that goes the one that stays."""
    if id(node) not in memo:
        form = _line(node)
        if form is not None and not second.keys().isdisjoint(form.terms):
            steps: dict[Expr, int] = {
                second[v]: c for v, c in form.terms.items() if isinstance(v, Var) and v in second
            }
            total: Expr = const(form.const)
            for atom, step in form.terms.items():
                if atom not in second:
                    total += _flat(atom, second, rule, memo) * steps.get(atom, step)
            memo[id(node)] = total
        else:
            new = map_children(node, lambda child: _flat(child, second, rule, memo))
            found = rule(new)
            memo[id(node)] = new if found is None else found
    return memo[id(node)]


def _longer(axes: tuple[Axis, ...], first: dict[Var, Axis]) -> tuple[Axis, ...]:
    """The axes, each that is the first of a pair with the length of both."""
    return tuple(
        Axis(axis.var, times(axis.extent, first[axis.var].extent if axis.var in first else 1))
        for axis in axes
        if axis not in first.values()
    )
