"""Ends of loops that are data: where a mask first and last lets something pass, by blocks of rows.

A condition that reads arrays (documents, padding) bounds no loop by itself. Over intervals it does:
in a block of rows, what depends on rows alone lies between its minimum and its maximum, and an
index may pass only if the condition may hold between these. The first and the last such index are a
formula, which becomes a small kernel: it evaluates the condition once for each block of rows and
each index, and is right for any data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.ir.core import *
from tilewright.ir.formula import Array, Axis, Formula, array, vars_of

# Rows that share their ends. Ends are multiples of it, so that tiles which divide it are whole.
BLOCK = 128
LEAST = 4  # blocks of a loop that is worth a kernel for its ends

# what an expression lies between, both ends included; of a condition: whether it must hold, and may
_Interval: TypeAlias = "tuple[Expr, Expr]"
_UNKNOWN: _Interval = (FALSE, TRUE)
_WORDS = {"min": "least", "max": "most", "all": "every", "any": "some"}


@dataclass(frozen=True)
class Ends:
    """`low` and `high`, in blocks, at each index of `batch` and, where they differ by rows, each
    block of `rows`; `formula` defines them. From its last two outputs, if there are four, to the
    other the conditions that read arrays, `sure`, hold for all rows."""

    low: Array
    high: Array
    formula: Formula
    batch: tuple[Var, ...]
    rows: Var | None
    sure: tuple[Expr, ...] = ()


def ends_of(
    conditions: Iterable[Expr],
    along: Axis,
    tiles: Iterable[Axis],
    batch: Iterable[Axis],
    stored: Collection[str],
    name: str = "ends",
) -> Ends | None:
    """The ends of `along`, outside of which one of `conditions` is false; None where they are not
    known. `tiles` are axes of rows, `stored` arrays that lie in memory; `name` is the formula's,
    and part of the names of its arrays."""
    used = {v for c in conditions for v in variables(c)}
    rows = [axis for axis in tiles if axis.var in used]
    batch = [axis for axis in batch if axis.var in used]
    if len(rows) > 1 or used - {*vars_of((along, *rows, *batch))}:
        return None
    if any(isinstance(x.extent, Expr) for x in (along, *rows, *batch)):
        return None  # the loop goes to its end: blocks of it are counted when a formula is written
    if along.extent < LEAST * BLOCK:
        return None
    # names that do not depend on the kernel: one mask has one formula
    named = {x.var: Axis(Var(f"b{n}"), x.extent) for n, x in enumerate(batch)}
    named |= {x.var: Axis(Var("i"), x.extent) for x in rows}
    named[along.var] = j = Axis(Var("j"), along.extent)
    blocks = _Blocks(
        name,
        j.var,
        named[rows[0].var] if rows else None,
        tuple(named[x.var] for x in batch),
        stored,
    )
    new: dict[Var, Expr] = {old: axis.var for old, axis in named.items()}
    may: Expr = TRUE
    must: Expr = TRUE
    for c in conditions:
        surely, perhaps = blocks.truth(substitute(c, new))
        may = logical_and(may, perhaps)
        must = logical_and(must, surely) if _asks(c, along.var) else must
    if not loads(may):
        return None
    first, none = j.var // BLOCK, -(-j.extent // BLOCK)
    bodies = {"min": select(may, first, none), "max": select(may, first + 1, 0)}
    low, high = (
        array(f"{name}.{end}", blocks.axes, bodies[monoid], INT32, monoid=monoid, over=(j,))
        for end, monoid in (("low", "min"), ("high", "max"))
    )
    sure = () if must in (TRUE, FALSE) else _run(must, blocks.axes, j, name)
    arrays = (*blocks.folds.values(), low, high, *sure)
    read = {x.buffer.name: x.buffer for a in arrays for x in loads(a.body)}
    inputs = tuple(b for n, b in sorted(read.items()) if n not in {a.name for a in arrays})
    outputs = (low.buffer, high.buffer, *(a.buffer for a in sure[:1] + sure[-1:]))
    formula = Formula(name, inputs, arrays, outputs)
    own = tuple(c for c in conditions if _asks(c, along.var)) if sure else ()
    return Ends(low, high, formula, vars_of(batch), rows[0].var if rows else None, own)


def _asks(cond: Expr, along: Var) -> bool:
    """Whether each element of a loop's tile reads something for it."""
    return bool(loads(cond)) and along in variables(cond)


def _run(must: Expr, axes: tuple[Axis, ...], j: Axis, name: str) -> tuple[Array, ...]:
    """Of the indices `j` for which `must` is true the first, and what is behind the last, or 0 if
    others lie between."""
    bodies = {
        "min": select(must, j.var, j.extent),
        "max": select(must, j.var + 1, 0),
        "sum": select(must, const(1, INT32), const(0, INT32)),
    }
    first, end, count = (
        array(f"{name}.{word}", axes, bodies[monoid], INT32, monoid=monoid, over=(j,))
        for word, monoid in (("first", "min"), ("end", "max"), ("count", "sum"))
    )
    is_run = compare("==", count.element, end.element - first.element)
    last = array(f"{name}.last", axes, select(is_run, end.element, const(0, INT32)), INT32)
    return first, end, count, last


@dataclass
class _Blocks:
    """Expressions over blocks of rows. `folds` are the minima and maxima that they need."""

    name: str
    along: Var
    rows: Axis | None
    batch: tuple[Axis, ...]
    stored: Collection[str]
    folds: dict[tuple[str, Expr], Array] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[Axis, ...]:
        if self.rows is None:
            return self.batch
        return (*self.batch, Axis(Var("block"), -(-self.rows.extent // BLOCK)))

    def truth(self, cond: Expr) -> _Interval:
        """Whether `cond` must hold in the block, and whether it may."""
        if self._is_same(cond):
            return (cond, cond) if self._is_known(cond) else _UNKNOWN
        if self.along not in variables(cond):
            return self._folded("all", "any", cond) if self._is_known(cond) else _UNKNOWN
        match cond:
            case Bin(op="and" | "&", a=a, b=b):
                (must, may), (must1, may1) = self.truth(a), self.truth(b)
                return logical_and(must, must1), logical_and(may, may1)
            case Bin(op="or" | "|", a=a, b=b):
                (must, may), (must1, may1) = self.truth(a), self.truth(b)
                return _either(must, must1), _either(may, may1)
            case Call(name="not" | "invert", args=(a,)):
                must, may = self.truth(a)
                return logical_not(may), logical_not(must)
            case Cmp(op=op, a=a, b=b):
                x, y = self.between(a), self.between(b)
                return _UNKNOWN if x is None or y is None else _compared(op, x, y)
        return _UNKNOWN

    def between(self, expr: Expr) -> _Interval | None:
        """What an integer lies between. Sums of what is read may wrap: nothing is known of them."""
        if self._is_same(expr):
            return (expr, expr) if self._is_known(expr) else None
        if not expr.dtype.is_int:
            return None
        if self.along not in variables(expr):
            if expr is self.rows.var:  # type: ignore[union-attr]
                return self._row(0), self._row(BLOCK - 1)
            return self._folded("min", "max", expr) if self._is_known(expr) else None
        match expr:
            case Bin(op="+" | "-" | "min" | "max" as op, a=a, b=b):
                x, y = self.between(a), self.between(b)
                if x is None or y is None or (op in "+-" and loads(expr)):
                    return None
                y = y[::-1] if op == "-" else y
                return binary(op, x[0], y[0]), binary(op, x[1], y[1])
            case Call(name="abs", args=(a,)):
                x = None if loads(a) else self.between(a)
                least = None if x is None else binary("max", binary("max", x[0], -x[1]), 0)
                return None if x is None or least is None else (least, binary("max", -x[0], x[1]))
        return None

    def _is_same(self, expr: Expr) -> bool:
        """Whether all rows have the same."""
        return self.rows is None or self.rows.var not in variables(expr)

    def _is_known(self, expr: Expr) -> bool:
        return all(x.buffer.name in self.stored for x in loads(expr))

    def _row(self, at: Expr | int) -> Expr:
        """Row `at` of the block; the last one stands for those that do not exist."""
        assert self.rows is not None
        row, extent = self.axes[-1].var * BLOCK + at, self.rows.extent
        return binary("min", row, extent - 1) if extent % BLOCK else row

    def _folded(self, least: str, most: str, expr: Expr) -> _Interval:
        assert self.rows is not None
        row = Axis(Var("row"), BLOCK)
        body = substitute(expr, {self.rows.var: self._row(row.var)})
        for monoid in (least, most):
            name = f"{self.name}.{_WORDS[monoid]}{len(self.folds)}"
            fold = array(name, self.axes, body, monoid=monoid, over=(row,))
            self.folds.setdefault((monoid, expr), fold)
        return self.folds[least, expr].element, self.folds[most, expr].element


def _either(a: Expr, b: Expr) -> Expr:
    if TRUE in (a, b):
        return TRUE
    return b if a is FALSE else a if b is FALSE else binary("or", a, b)


def _compared(op: str, a: _Interval, b: _Interval) -> _Interval:
    """Whether `a op b` must hold, and may."""
    match op:
        case "<" | "<=":
            return compare(op, a[1], b[0]), compare(op, a[0], b[1])
        case ">" | ">=":
            return compare(op, a[0], b[1]), compare(op, a[1], b[0])
    must = logical_and(compare("==", a[0], b[1]), compare("==", a[1], b[0]))
    may = logical_and(compare("<=", a[0], b[1]), compare("<=", b[0], a[1]))
    return (must, may) if op == "==" else (logical_not(may), logical_not(must))
