"""A tile program's text as a kernel, and arrays to try it with."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any

import numpy as np

from tilewright.formula.tiles.program import TileProgram
from tilewright.ir.formula import Formula, at_sizes


def load(program: TileProgram) -> Any:
    """The kernel of a program's text, compiled as if it had been read from a file."""
    digest = hashlib.sha256(program.text.encode()).hexdigest()[:12]
    name = f"<tile program {program.name} {digest}>"
    linecache.cache[name] = (len(program.text), None, program.text.splitlines(True), name)
    scope: dict[str, Any] = {"__name__": f"tile_program_{program.name}"}
    exec(compile(program.text, name, "exec"), scope)
    return scope[program.name]


def examples(formula: Formula) -> list[Any]:
    """Arrays like those that it takes, of the smallest sizes that contracts allow."""
    sizes = {d.var: -(-d.min // d.multiple_of) * d.multiple_of for d in formula.sizes}
    inputs = at_sizes(formula, sizes).inputs
    return [np.zeros(b.static_shape, b.dtype.numpy) for b in inputs]
