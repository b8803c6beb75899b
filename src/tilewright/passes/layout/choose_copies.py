"""Choose the instruction of every copy that has none: whole matrices between shared memory and
registers where they fit, threads otherwise. What fits is asked of the lowering itself."""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.core import *
from tilewright.passes.layout.shared_tiles import as_copy, turned
from tilewright.passes.layout.thread_layouts import unrolled
from tilewright.passes.lower.copies import copy_matrices
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.threads import lowering_of
from tilewright.passes.overlap.roles import by_hand, role_of


@kernel_pass
def choose_copies(at: Facts) -> Kernel:
    """An atom for each copy; roles of their author's stay as they are."""
    if by_hand(at.kernel):
        return at.kernel
    low = lowering_of(at, TakenNames(at.names))
    low.unrolled = unrolled(at.kernel)
    block, roles = low.instance, role_of(at.kernel)
    shares = {
        id(role): replace(block, threads=role.warps * WARP, thread=low.var("thread"))
        for role in walk_ops(at.kernel, Role)
    }
    chosen: dict[int, Op | Body] = {}
    for op, ranges in scope.walk_body(at.kernel.body, low.ranges):
        low.ranges, low.instance = ranges, shares.get(id(roles.get(id(op))), block)
        if isinstance(op, Copy) and op.atom is None:
            chosen[id(op)] = rebuild(op, atom=_atom(op, low, at.target))
        elif isinstance(op, Map) and (tiles := turned(op)) is not None:
            # by matrix loads that transpose
            view, copy = as_copy(op, *tiles, low.var(f"{tiles[0].name}_turned").name)
            if _atom(copy, low, at.target) == "ldmatrix":
                chosen[id(op)] = view, rebuild(copy, atom="ldmatrix")
    return map_ops(at.kernel, lambda op: chosen.get(id(op)))


_MATRICES = {  # between which spaces
    (Space.SHARED, Space.FRAGMENT): "ldmatrix",
    (Space.FRAGMENT, Space.SHARED): "stmatrix",
}


def _atom(op: Copy, low: Lowering, target: Target) -> str:
    name = _MATRICES.get((op.src.space, op.dst.space))
    if name is None or not ATOMS[name].needs <= target.features:
        return "threads"
    try:
        copy_matrices(low, rebuild(op, atom=name))
    except CompileError as error:
        because(low.kernel.name, op, f"not {name}: {error.message}")
        return "threads"
    because(low.kernel.name, op, "8×8 matrices, rows of 16 bytes, fit both layouts")
    return name
