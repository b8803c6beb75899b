"""A loop shared by several blocks: each leaves its state in memory, a second kernel combines.

How states combine follows from the stream: folds by their monoid, sums by moving each part to the
center of all. Written over the parts, that is a formula like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.formula.inline import Normal
from tilewright.formula.streams.combine import combined
from tilewright.formula.streams.stream import Fold, Stream
from tilewright.formula.tiles.kernels import CHOSEN, STEPS, KernelPlan
from tilewright.formula.tiles.pieces import Piece
from tilewright.ir.core import *
from tilewright.ir.formula import (
    Array,
    Axis,
    Formula,
    Monoid,
    array,
    most,
    tensor,
    vars_of,
)

# Blocks of this many rows that leave multiprocessors idle share a long loop.
ROWS, BLOCKS = 64, 132
MOST = 128
PARTS = Axis(Var("part"), CHOSEN)


@dataclass(frozen=True)
class Parts:
    """`states`: what each block stores, by the variable that it has in the stream; `normal`: the
    formula of the kernel that combines them."""

    states: dict[Var, Array]
    normal: Normal


def is_thin(kernel: KernelPlan) -> bool:
    """Whether the grid leaves most of a GPU idle while each block has a long way to go."""
    if len(kernel.stream) != 1 or len(kernel.levels) == len(kernel.folds):
        return False
    counts = {axis.var: most(axis.extent, kernel.sizes) for axis in (*kernel.grid, *kernel.stream)}
    blocks = prod(
        counts[axis.var] if kernel.roles[axis.var] == "each" else -(-counts[axis.var] // ROWS)
        for axis in kernel.grid
    )
    return 2 * blocks <= BLOCKS and counts[kernel.stream[0].var] >= STEPS


def parts_of(kernel: KernelPlan, stream: Stream, pieces: dict[Var, Piece]) -> Parts | None:
    """The parts of a kernel whose states are `pieces` of text, and what makes its outputs of them;
    None where blocks would store the same state twice."""
    if any(s.monoid in ("count", "prod") for s in stream.of(Fold)):
        return None
    batch = [axis for axis in kernel.grid if kernel.roles[axis.var] == "each"]
    tiles = {*vars_of(kernel.grid)} - {*vars_of(batch)}
    states: dict[Var, Array] = {}
    for var, piece in pieces.items():
        if not tiles <= set(piece.dims):
            return None
        axes = (*batch, PARTS, *(Axis(v, kernel.extents[v]) for v in piece.dims))
        shape = tuple(axis.extent for axis in axes)
        buffer = tensor(f"{piece.text}_parts", shape, var.dtype)
        states[var] = Array(buffer, axes, const(0, var.dtype))
    return Parts(states, _combined(stream, states, kernel))


def _combined(stream: Stream, states: dict[Var, Array], kernel: KernelPlan) -> Normal:
    """The folds of the parts, and the outputs over them."""
    outputs = kernel.outputs
    arrays: list[Array] = []

    def fold(var: Var, monoid: str, body: Expr, by: Monoid | None) -> Expr:
        axes = tuple(axis for axis in states[var].axes if axis is not PARTS)
        name = states[var].name.removesuffix("_parts") + "_all"
        found = array(name, axes, body, var.dtype, monoid=monoid, over=(PARTS,), by=by)
        arrays.append(found)
        return found.element

    results = combined(stream, {v: a.element for v, a in states.items()}, fold)
    final = {level.name: value for level, value in results.items()}

    def rule(node: Expr) -> Expr | None:
        return final.get(node.buffer.name) if isinstance(node, Load) else None

    for a in outputs:
        body = transform(a.body, rule) if a.is_pointwise else final[a.name]
        arrays.append(replace(a, body=cast(body, a.buffer.dtype), monoid="", over=()))
    inside = {a.name for a in arrays}
    reading = {r.buffer for a in arrays for r in loads(a.body)}
    inputs = tuple(sorted((b for b in reading if b.name not in inside), key=lambda b: b.name))
    made = tuple(a.buffer for a in outputs)
    formula = Formula("combined", inputs, tuple(arrays), made, kernel.sizes)
    return Normal(formula, (), {})
