"""The order of the dimensions of a kernel's values."""

from __future__ import annotations

from tilewright.formula.matrices import axes_met
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.formula.tiles.windows import ROLE as WINDOW
from tilewright.ir.core import *
from tilewright.ir.formula import vars_of


def order_of(kernel: KernelPlan) -> list[Var]:
    """The order of dimensions: rows, the loop's tile, columns; without a loop, as what is read
    has them, so that little is turned."""
    order = [*kernel.output.vars]
    if kernel.stream:
        at = 1 + next((n for n, v in enumerate(order) if kernel.roles[v] == "tile"), -1)
        order.insert(at, kernel.stream[-1].var)
    else:
        order = _read_order(kernel, order)
    for fold in kernel.folds:
        order += [var for var in vars_of(fold.domain) if var not in order]
    steps = vars_of(kernel.stream[:-1])
    return [v for v in order if kernel.roles[v] not in ("each", WINDOW) and v not in steps]


def _read_order(kernel: KernelPlan, output: list[Var]) -> list[Var]:
    """The axes as the largest array that is folded has them, then those of the output."""
    inside = {f.name for f in kernel.folds}
    read = [x.indices for f in kernel.folds for x in loads(f.body) if x.buffer.name not in inside]
    held = {v for v, role in kernel.roles.items() if role != "each"}
    along = [[[v for v in axes_met(i) if v in held] for i in indices] for indices in read]
    axes = [[v for one in each if len(one) == 1 for v in one] for each in along]
    most = max(axes, key=len, default=[])
    found = list(dict.fromkeys((*most, *output)))
    told, wanted = ([v for v in order if v in held and v in output] for order in (found, output))
    return found if told == wanted else output
