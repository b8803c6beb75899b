"""Choose the instruction of every copy that has none: whole matrices between shared memory and
registers where they fit, threads otherwise. What fits is asked of the lowering itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tilewright.ir import scope
from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Space
from tilewright.ir.op import Body, Copy, Kernel, Map, Op, Role, marked
from tilewright.ir.rewrite import Names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.layout.shared_tiles import as_copy, turned
from tilewright.passes.layout.thread_layouts import unrolled
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.matrices import lower_ldmatrix, lower_stmatrix
from tilewright.passes.lower.threads import lowering_of
from tilewright.passes.overlap.roles import WARP, by_hand
from tilewright.passes.reasons import because
from tilewright.support.errors import CompileError


@kernel_pass
def choose_copies(at: Facts) -> Kernel:
    """An atom for each copy; roles of their author's stay as they are."""
    if by_hand(at.kernel):
        return at.kernel
    low = lowering_of(at.kernel, at.program, Names(at.names), at.target)
    return rebuild(at.kernel, body=_body(at.kernel.body, low, at.target))


def _body(body: Body, low: Lowering, target: Target) -> Body:
    before, found = low.ranges, list[Op]()
    for op in body:
        found += _op(op, low, target)
        low.ranges = scope.after(op, low.ranges)
    low.ranges = before
    return tuple(found)


def _op(op: Op, low: Lowering, target: Target) -> tuple[Op, ...]:
    if isinstance(op, Copy) and op.atom is None:
        return (rebuild(op, atom=_atom(op, low, target)),)
    if isinstance(op, Map):
        return _by_matrices(op, low, target) or (op,)
    outer, ranges, instance = dict(low.unrolled), low.ranges, low.instance
    low.unrolled |= unrolled(op)
    if isinstance(op, Role):
        low.instance = replace(instance, threads=op.warps * WARP, thread=low.var("thread"))
    inner = {}
    for f in marked(op, "body"):
        low.ranges = scope.inside(op, f.name, ranges)
        inner[f.name] = _body(getattr(op, f.name), low, target)
    low.unrolled, low.ranges, low.instance = outer, ranges, instance
    return (rebuild(op, **inner) if inner else op,)


def _by_matrices(op: Map, low: Lowering, target: Target) -> tuple[Op, ...] | None:
    """A nest that turns a tile over, by matrix loads that transpose."""
    tiles = turned(op)
    if tiles is None:
        return None
    view, copy = as_copy(op, *tiles, low.var(f"{tiles[0].name}_turned").name)
    copy = rebuild(copy, atom=_atom(copy, low, target))
    return (view, copy) if copy.atom == "ldmatrix" else None


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
