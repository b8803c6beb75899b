"""Dimensions that are only ever used as two become two.

Heads in groups are read as `q[b, g * 3 + h]`, results come back by `o[b, h // 3, h % 3]`: reshapes,
which cost nothing where arrays lie contiguous. Split dimensions leave plain indices behind, so that
what reads and what is read can be one kernel.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.formula.tiles.windows import is_window
from tilewright.ir.analysis.bounds import Ranges, prove
from tilewright.ir.core import *
from tilewright.ir.formula import (
    Array,
    Axis,
    Formula,
    extents,
    reads,
    tensor,
    vars_of,
    within_sizes,
)
from tilewright.ir.simplify import simplify


def split_views(formula: Formula) -> Formula:
    """
    >>> from tilewright.ir.formula import array
    >>> x, i, j = tensor("x", (6,), FLOAT32), Axis(Var("i"), 2), Axis(Var("j"), 3)
    >>> y = array("y", (i, j), Load(x, (i.var * 3 + j.var,)) * 2)
    >>> print(split_views(Formula("f", (x,), (y,), (y.buffer,))))
    formula f(x: float32[2, 3]) -> y
        y[i < 2, j < 3]: float32 = x[i, j] * 2.0
    """
    while True:
        found = _split_axis(formula) or _split_input(formula)
        if found is None:
            return formula
        formula = found


def ranges_of(a: Array, sizes: tuple[Dim, ...] = ()) -> Ranges:
    """What is known of the axes of an array."""
    return within_sizes(sizes, a.domain)


def plainer(node: Expr, known: Ranges) -> Expr | None:
    """An element at simple indices, or the side of a choice that is always taken."""
    match node:
        case Load(buffer=buffer, indices=indices):
            return Load(buffer, tuple(simplify(i, known) for i in indices), node.loc)
        case Select(cond=cond, a=a, b=b) if not loads(cond):
            return a if prove(cond, known) else b if prove(logical_not(cond), known) else None
    return None


def _split_axis(formula: Formula) -> Formula | None:
    """With one axis as two, of an array that uses only its quotients and remainders."""
    for a in formula.arrays:
        for place, axis in enumerate(a.axes):
            by = _divisor(a, axis)
            if by is None or not isinstance(axis.extent, int):
                continue
            high, low = Axis(_fresh(a, axis.var), axis.extent // by), Axis(axis.var, by)
            body = substitute(a.body, {axis.var: high.var * by + axis.var})
            axes = (*a.axes[:place], high, low, *a.axes[place + 1 :])
            new = replace(a, axes=axes, body=body)
            new = replace(new, body=_simpler(new))
            arrays = tuple(new if x is a else x for x in formula.arrays)
            return _with_split(replace(formula, arrays=arrays), a.buffer, place, by)
    return None


def _fresh(a: Array, var: Var) -> Var:
    """A variable for the quotient: no axis has its name, also where one was split before."""
    taken, name = {each.name for each in vars_of(a.domain)}, f"{var.name}_h"
    while name in taken:
        name += "h"
    return Var(name)


def _divisor(a: Array, axis: Axis) -> int | None:
    """The number by which every use of the axis divides it, but those that read at it: there a
    split axis is two that are added, and what is read may be split, too."""
    if a.scan and axis in a.over:
        return None
    if not any(isinstance(n, Bin) and n.op in ("//", "%") and n.a is axis.var
               for read in reads(a) for index in read.indices for n in walk(index)):  # fmt: skip
        return None  # two dimensions would make no read plainer
    uses, by = 0, set[int]()
    for node in walk(a.body):
        uses += sum(child is axis.var for child in node.children)
        match node:
            case Bin(op="//" | "%", a=Var() as var, b=Const(value=value)) if var is axis.var:
                by.add(int(value))
                uses -= 1
            case Load(indices=indices):
                uses -= sum(index is axis.var for index in indices)
    if len(by) != 1 or uses or not isinstance(axis.extent, int):
        return None
    return min(by) if axis.extent % min(by) == 0 and 1 < min(by) < axis.extent else None


def _split_input(formula: Formula) -> Formula | None:
    """With one dimension of an input as two, where everybody reads it as two."""
    for b in formula.inputs:
        reading = [(a, r) for a in formula.arrays for r in reads(a) if r.buffer == b]
        for place, extent in enumerate(extents(b)):
            if not isinstance(extent, int) or any(_is_shifted(a, r, place) for a, r in reading):
                continue
            factors = {
                int(node.b.value)
                for _, read in reading
                for node in walk(read.indices[place])
                if isinstance(node, Bin) and node.op == "*" and isinstance(node.b, Const)
            }
            for by in sorted(f for f in factors if f > 1 and extent % f == 0 and f < extent):
                if all(_parts(a, read.indices[place], by) is not None for a, read in reading):
                    return _with_split(formula, b, place, by)
    return None


def _is_shifted(a: Array, read: Load, place: int) -> bool:
    """Whether a fold over windows goes along the dimension: its threads read runs of it."""
    return is_window(a) and not variables(read.indices[place]).isdisjoint(a.folded)


def _parts(a: Array, index: Expr, by: int) -> tuple[Expr, Expr] | None:
    """index // by and index % by, if they are no more complicated than the index."""
    known = ranges_of(a)
    high, low = (simplify(e, known) for e in (index // by, index % by))
    before, after = (
        sum(isinstance(n, Bin) and n.op in ("//", "%") for e in found for n in walk(e))
        for found in ((index,), (high, low))
    )
    return (high, low) if after <= before else None


def _with_split(formula: Formula, b: Buffer, place: int, by: int) -> Formula:
    """The formula whose buffer `b` has two dimensions in place of one."""
    shape = extents(b)
    whole = shape[place]
    assert isinstance(whole, int)
    shape = (*shape[:place], whole // by, by, *shape[place + 1 :])
    new = tensor(b.name, shape, b.dtype)

    def split(a: Array) -> Array:
        known = ranges_of(a)

        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.buffer != b:
                return None
            index = node.indices[place]
            both = (simplify(index // by, known), simplify(index % by, known))
            indices = (*node.indices[:place], *both, *node.indices[place + 1 :])
            return Load(new, indices, node.loc)

        return replace(a, buffer=named(a.buffer), body=transform(a.body, rule))

    def named(x: Buffer) -> Buffer:
        return new if x == b else x

    return formula.relaid(named, split)


def _simpler(a: Array) -> Expr:
    known = ranges_of(a)

    def rule(node: Expr) -> Expr | None:
        match node:
            case Bin(op="//" | "%") if node.dtype.is_int:
                return simplify(node, known)
        return plainer(node, known)

    return transform(a.body, rule)
