"""Choose the instruction of every copy that has none: whole matrices between shared memory and
registers where they fit, threads otherwise. What fits is asked of the lowering itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.ir import scope
from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Space
from tilewright.ir.op import Body, Copy, Kernel, Map, Op
from tilewright.ir.rewrite import Names, map_ops, rebuild
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.layout.shared_tiles import as_copy, turned
from tilewright.passes.layout.thread_layouts import unrolled
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.matrices import lower_ldmatrix, lower_stmatrix
from tilewright.passes.lower.threads import lowering_of
from tilewright.passes.overlap.roles import by_hand
from tilewright.passes.reasons import because
from tilewright.support.errors import CompileError


@kernel_pass
def choose_copies(at: Facts) -> Kernel:
    """An atom for each copy of the kernels that have no roles."""
    if by_hand(at.kernel):
        return at.kernel
    low = lowering_of(at.kernel, at.program, Names(at.names), at.target)
    low.unrolled = unrolled(at.kernel)
    chosen: dict[int, Op | Body] = {}
    for op, ranges in scope.walk_body(at.kernel.body, low.ranges):
        low.ranges = ranges
        if isinstance(op, Copy) and op.atom is None:
            chosen[id(op)] = rebuild(op, atom=_atom(op, low, at.target))
        elif isinstance(op, Map) and (tiles := turned(op)) is not None:
            # by matrix loads that transpose
            view, copy = as_copy(op, *tiles, low.var(f"{tiles[0].name}_turned").name)
            if _atom(copy, low, at.target) == "ldmatrix":
                chosen[id(op)] = view, rebuild(copy, atom="ldmatrix")
    return map_ops(at.kernel, lambda op: chosen.get(id(op)))


# between which spaces, and the rule that lowers it
_MATRICES: dict[tuple[Space, Space], tuple[str, Callable[[Lowering, Copy], Iterable[Op]]]] = {
    (Space.SHARED, Space.FRAGMENT): ("ldmatrix", lower_ldmatrix),
    (Space.FRAGMENT, Space.SHARED): ("stmatrix", lower_stmatrix),
}


def _atom(op: Copy, low: Lowering, target: Target) -> str:
    route = _MATRICES.get((op.src.buffer.space, op.dst.buffer.space))
    if route is None or not ATOMS[route[0]].needs <= target.features:
        return "threads"
    name, rule = route
    try:
        list(rule(low, rebuild(op, atom=name)))
    except CompileError as error:
        because(low.kernel.name, op, f"not {name}: {error.message}")
        return "threads"
    because(low.kernel.name, op, "whole matrices of 8 rows of 16 bytes fit both layouts")
    return name
