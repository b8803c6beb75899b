"""The functions beside a kernel's text: what the user's monoids combine by.

Tiles are folded by a function of two elements. The same text combines what a loop keeps with what
a step gives, element by element.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.formula.tiles.pieces import Names, Piece
from tilewright.formula.tiles.text import Writer
from tilewright.ir.core import *
from tilewright.ir.formula import Axis, Monoid, array

_LANE = Axis(Var("lane"), 2)  # stands for the dimensions of tiles, whatever they are
_BODY = array("lane", (_LANE,), const(0))
_PLAN = KernelPlan((_BODY,), (), {_LANE.var: "tile"}, (), (), {}, {_LANE.var: 2})


class Functions:
    """Those of one program, each written once."""

    def __init__(self, names: Names, program: str) -> None:
        self.names, self.program = names, program
        self.lines: list[str] = []
        self._known: dict[Monoid, str] = {}

    def name_of(self, by: Monoid) -> str:
        by = replace(by, part=0)
        if by not in self._known:
            name = f"{by.name}1" if by.name == self.program else by.name
            self._known[by] = self.names.fresh(name)
            self.lines += [*self._written(by, self._known[by]), "", ""]
        return self._known[by]

    def _written(self, by: Monoid, name: str) -> list[str]:
        own = Names()
        own.taken |= {"a", "b"}
        w = Writer(_PLAN, own, {}, lambda var: "", (), False, self.name_of)
        count = len(by.identity)
        for n, var in enumerate(by.combine.vars):
            side = "a" if n < count else "b"
            w.bound[var] = Piece(f"{side}[{n % count}]" if count > 1 else side, (_LANE.var,))
        w.count(by.combine.result)
        results = [w.value(e).text for e in by.combine.result]
        lines = [*w.before, f"return {', '.join(results)}"]
        return [f"def {name}(a, b):", *(f"    {line}" for line in lines)]
