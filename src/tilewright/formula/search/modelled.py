"""What the chooser's model says of a tile program, with few candidates for each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tilewright.formula.tiles.program import TileProgram
from tilewright.formula.tiles.source import examples, load
from tilewright.ir.formula import Formula
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError


@dataclass(frozen=True)
class Modelled:
    """By kernel of the text: its name, seconds, and the unit that is busy longest."""

    kernels: tuple[tuple[str, float, str], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds, _ in self.kernels)


def modelled(program: TileProgram, formula: Formula, target: Target) -> Modelled:
    """`program`, whose inputs are those of `formula`."""
    kernel = load(program).on(target)
    bound = kernel.calls.bind(tuple(examples(formula)), {})
    try:
        return Modelled(tuple(kernel.calls.estimated(bound, {})))
    except CompileError as error:  # the text is none for this chip
        return Modelled(((program.name, inf, error.diagnostic.message),))
