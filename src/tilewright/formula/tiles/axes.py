"""Axes that arrays of a kernel share, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count

from tilewright.ir.core import *
from tilewright.ir.formula import Array, vars_of


class Classes:
    """Axes that are one, by union and find."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        self.arrays = [vars_of(a.domain) for a in arrays]
        self.extents = {x.var: x.extent for a in arrays for x in a.domain}
        self.above: dict[Var, Var] = {}

    def root(self, var: Var) -> Var:
        while var in self.above:
            var = self.above[var]
        return var

    def join(self, a: Var, b: Var) -> bool:
        """Whether they could be made one."""
        a, b = self.root(a), self.root(b)
        if a is b:
            return True
        if self.extents[a] != self.extents[b] or any(
            {a, b} <= {self.root(v) for v in axes} for axes in self.arrays
        ):
            return False
        self.above[b] = a
        return True


def sizes_of(arrays: Sequence[Array]) -> set[str]:
    """The names of the sizes that arrays mention."""
    axes = [axis for a in arrays for axis in a.domain]
    ends = [axis.extent for axis in axes if isinstance(axis.extent, Expr)]
    found = {v for expr in (*ends, *(a.body for a in arrays)) for v in variables(expr)}
    return {v.name for v in found - {*vars_of(axes)}}


def names_of(arrays: Sequence[Array], classes: Classes, taken: set[str]) -> dict[Var, Var]:
    """A short name for each class: that of the last array's axis, as the user sees it first."""
    names: dict[Var, Var] = {}
    for a in reversed(arrays):
        for var in vars_of(a.domain):
            root = classes.root(var)
            if root in names:
                continue
            base = var.name.split(".")[-1].rstrip("0123456789") or "i"
            options = chain((base, *"ijklmnpqrstuvw"), (f"{base}{n}" for n in count()))
            name = next(c for c in options if c not in taken)
            taken.add(name)
            names[root] = Var(name)
    return names
