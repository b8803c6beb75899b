"""Walk the blocks of a grid in panels, so that blocks which run together share rows and columns in
the L2 cache: what `T.use_swizzle` asks for.

Blocks are launched in order of their number. In panels of rows the number goes down the rows of a
panel, then to the next column, turning round at the end of the grid; in panels of columns the other
way. The kernel's own indices become functions of the number.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import Expr, Var, binary, compare, const, select
from tilewright.ir.op import Hint, Kernel, Let, Op, Program
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names
from tilewright.ir.target import Target


def order_blocks(program: Program, target: Target) -> Program:
    """`program` with the block order that its hints ask for."""
    names = program_names(program)
    return map_kernels(program, lambda kernel: _ordered(kernel, names))


def _ordered(kernel: Kernel, names: set[str]) -> Kernel:
    hints = [op for op in kernel.body if isinstance(op, Hint) and op.name == "swizzle"]
    if not hints or len(kernel.blocks) < 2 or kernel.cluster:
        return kernel
    size, order = hints[0].detail
    x, y = kernel.blocks[:2]
    raw = tuple(Var(fresh_name(f"{v.name}_raw", names), v.dtype) for v in (x, y))
    columns, rows = kernel.grid[:2]
    number = Var(fresh_name("block", names), x.dtype)
    lets: list[Op] = [Let(number, raw[0] + raw[1] * columns, loc=kernel.loc)]
    if order == "row":
        along, across = _panels(number, int(size), columns, rows, lets, names)
        places = (along, across)
    else:
        along, across = _panels(number, int(size), rows, columns, lets, names)
        places = (across, along)
    for var, place, extent in zip((x, y), places, (columns, rows), strict=True):
        lets.append(Let(var, place, loc=kernel.loc))
        # what a grid index says by itself
        inside = binary("and", compare(">=", var, 0), compare("<", var, extent))
        lets.append(Hint("assume", value=inside, loc=kernel.loc))
    body = map_body(kernel.body, lambda op: () if op in hints else None)
    return replace(kernel, blocks=(*raw, *kernel.blocks[2:]), body=(*lets, *body))


def _panels(
    number: Var, size: int, length: Expr, width: Expr, lets: list[Op], names: set[str]
) -> tuple[Expr, Expr]:
    """The places along and across panels of `size` by `length`; the last may be narrower."""

    def let(name: str, value: Expr) -> Var:
        var = Var(fresh_name(name, names), number.dtype)
        lets.append(Let(var, value, loc=None))
        return var

    panel = let("panel", number // (length * size))
    inside = let("inside", number - panel * (length * size))
    narrow = let("narrow", binary("min", const(size), width - panel * size))
    step = let("step", inside // narrow)
    back = compare("!=", panel % 2, 0)
    along = select(back, length - 1 - step, step)
    return along, panel * size + inside - step * narrow
