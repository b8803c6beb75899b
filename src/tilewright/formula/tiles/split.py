"""A loop shared by several blocks: each leaves its state in memory, a second kernel combines.

How states combine follows from the stream: folds by their monoid, sums by moving each part to the
center of all. Written over the parts, that is a formula like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.formula.inline import Normal
from tilewright.formula.streams.stream import Center, Fold, Result, Stream, Sum, old
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.formula.tiles.text import Piece
from tilewright.ir.core import *
from tilewright.ir.formula import Array, Axis, Formula, array, tensor

# Blocks of this many rows that leave multiprocessors idle share a loop of at least so many steps.
ROWS, BLOCKS, STEPS = 64, 132, 2048
MOST = 128
# stands for the number of parts, which is chosen with the tiles: no axis is as long
PARTS = Axis(Var("part"), (1 << 31) - 1)


@dataclass(frozen=True)
class Parts:
    """`states`: what each block stores, by the variable that it has in the stream; `normal`: the
    formula of the kernel that combines them."""

    states: dict[Var, Array]
    normal: Normal


def is_thin(kernel: KernelPlan) -> bool:
    """Whether the grid leaves most of a GPU idle while each block has a long way to go."""
    if len(kernel.stream) != 1 or not any(f.name not in _levels(kernel) for f in kernel.folds):
        return False
    blocks = prod(
        axis.extent if kernel.roles[axis.var] == "each" else -(-axis.extent // ROWS)
        for axis in kernel.grid
    )
    return 2 * blocks <= BLOCKS and kernel.stream[0].extent >= STEPS


def _levels(kernel: KernelPlan) -> set[str]:
    return {f.name for f in kernel.levels}


def parts_of(kernel: KernelPlan, stream: Stream, pieces: dict[Var, Piece]) -> Parts | None:
    """The parts of a kernel whose states are `pieces` of text, and what makes its outputs of them;
    None where blocks would store the same state twice."""
    if any(isinstance(s, Fold) and s.monoid not in ("max", "min", "sum") for s in stream.stages):
        return None
    batch = [axis for axis in kernel.grid if kernel.roles[axis.var] == "each"]
    tiles = {axis.var for axis in kernel.grid} - {axis.var for axis in batch}
    states: dict[Var, Array] = {}
    for stage in stream.stages:
        if isinstance(stage, (Fold, Sum)):
            if not tiles <= set(pieces[stage.var].dims):
                return None
            axes = (*batch, PARTS, *(Axis(v, kernel.extents[v]) for v in pieces[stage.var].dims))
            shape = tuple(axis.extent for axis in axes)
            name = pieces[stage.var].text
            buffer = tensor(f"{name}_parts", shape, stage.var.dtype)
            states[stage.var] = Array(buffer, axes, const(0, stage.var.dtype))
    return Parts(states, _combined(stream, states, kernel.outputs))


def _combined(stream: Stream, states: dict[Var, Array], outputs: tuple[Array, ...]) -> Normal:
    """The folds of the parts, and the outputs over them."""
    part: dict[Var, Expr] = {v: Load(a.buffer, _vars(a.axes)) for v, a in states.items()}
    whole: dict[Var, Expr] = {}
    centers: dict[Var, Expr] = {}
    results: dict[Var, Expr] = {}
    arrays: list[Array] = []

    def fold(var: Var, monoid: str, body: Expr) -> None:
        axes = tuple(axis for axis in states[var].axes if axis is not PARTS)
        name = states[var].name.removesuffix("_parts") + "_all"
        found = array(name, axes, body, var.dtype, monoid=monoid, over=(PARTS,))
        arrays.append(found)
        whole[var] = Load(found.buffer, _vars(axes))

    for stage in stream.stages:
        match stage:
            case Fold(var=var, monoid=monoid):
                fold(var, monoid, part[var])
            case Center(var=var, value=value):
                value = substitute(value, dict(results))
                centers |= {var: substitute(value, whole), old(var): substitute(value, part)}
            case Sum(var=var, shifts=shifts):
                moved = [substitute(s.coefficient, centers) * part[s.of] for s in shifts]
                fold(var, "sum", sum(moved[1:], moved[0]))
            case Result(level=level, value=value):
                results[level] = substitute(value, dict(results))
    final = {level.name: substitute(value, whole) for level, value in results.items()}

    def rule(node: Expr) -> Expr | None:
        return final.get(node.buffer.name) if isinstance(node, Load) else None

    for a in outputs:
        body = transform(a.body, rule) if a.is_pointwise else final[a.name]
        arrays.append(replace(a, body=cast(body, a.buffer.dtype), monoid="", over=()))
    inside = {a.name for a in arrays}
    reading = {r.buffer for a in arrays for r in loads(a.body)}
    inputs = tuple(sorted((b for b in reading if b.name not in inside), key=lambda b: b.name))
    formula = Formula("combined", inputs, tuple(arrays), tuple(a.buffer for a in outputs))
    return Normal(formula, (), {})


def _vars(axes: tuple[Axis, ...]) -> tuple[Var, ...]:
    return tuple(axis.var for axis in axes)
