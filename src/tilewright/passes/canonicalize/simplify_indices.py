"""Simplify every expression with what is known where it stands, and drop what cannot run.

Indices, regions, extents and loop bounds are index arithmetic, where overflow is undefined; other
values and conditions wrap, and are rewritten only where that cannot matter. Branches with a known
condition become the branch taken; loops and nests without iterations go.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tilewright.ir.analysis.bounds import NOTHING, Ranges, prove
from tilewright.ir.buffer import Region
from tilewright.ir.expr import FALSE, TRUE, Const, Expr, compare
from tilewright.ir.op import (
    Body,
    Break,
    Continue,
    For,
    Hint,
    If,
    Kernel,
    Map,
    Op,
    Store,
    View,
    While,
    marked,
)
from tilewright.ir.rewrite import rebuild
from tilewright.ir.scope import after, entry, inside
from tilewright.ir.simplify import simplify
from tilewright.passes.canonicalize.rules import Facts, kernel_pass

AnyOp = TypeVar("AnyOp", bound=Op)

# Fields whose own expressions are index arithmetic; regions always are.
_INDEX_FIELDS: dict[type[Op], frozenset[str]] = {
    Kernel: frozenset({"grid"}),
    For: frozenset({"start", "stop", "step"}),
    Map: frozenset({"extents"}),
    Store: frozenset({"indices"}),
    View: frozenset({"offset"}),
}


@kernel_pass
def simplify_indices(at: Facts) -> Kernel:
    """Expressions are simplified with the contracts of sizes too."""
    ranges = entry(at.kernel, at.dims)
    kernel = simplify_operands(at.kernel, ranges)
    return rebuild(kernel, body=_body(kernel.body, ranges))


def _body(body: Body, ranges: Ranges, pinned: bool = False) -> Body:
    """`pinned`: each statement has a place in its loop's schedule, so none may come or go."""
    result: list[Op] = []
    waiting = list(reversed(body))
    while waiting:
        op = simplify_operands(waiting.pop(), ranges)
        taken = None if pinned else _taken(op, ranges)
        if taken is not None:
            waiting.extend(reversed(taken))
            continue
        new = _bodies(op, ranges)
        if not pinned and _is_idle(new):
            continue
        result.append(new)
        if isinstance(new, (Break, Continue)) and not pinned:
            break
        ranges = after(new, ranges)
    return tuple(result)


def _taken(op: Op, ranges: Ranges) -> Body | None:
    """What is left of an op whose control is known: statements to run in its place, or None."""
    match op:
        case If() if op.cond is TRUE:
            return op.then
        case If() if op.cond is FALSE:
            return op.orelse
        case While() if op.cond is FALSE:
            return ()
        case For() if prove(compare(">=", op.start, op.stop), ranges):
            return () if isinstance(op.step, Const) else None
        case Map() if any(prove(compare("<=", extent, 0), ranges) for extent in op.extents):
            return ()
    return None


def _is_idle(op: Op) -> bool:
    match op:
        case If():
            return not op.then and not op.orelse
        case For() | Map():
            return not op.body
    return False


def _bodies(op: Op, ranges: Ranges) -> Op:
    pinned = isinstance(op, For) and not (op.order is None and op.stage is None)
    changes: dict[str, Any] = {}
    for f in marked(op, "body"):
        old = getattr(op, f.name)
        new = _body(old, inside(op, f.name, ranges), pinned)
        if len(new) != len(old) or any(a is not b for a, b in zip(new, old, strict=True)):
            changes[f.name] = new
    return rebuild(op, **changes)


def simplify_operands(op: AnyOp, ranges: Ranges = NOTHING) -> AnyOp:
    """The op with its own expressions simplified; assumptions stay as they were written."""
    if isinstance(op, Hint):
        return op
    index = _INDEX_FIELDS.get(type(op), frozenset())
    names = [f.name for f in marked(op, "arg")]
    return rebuild(op, **{n: _operand(getattr(op, n), ranges, n in index) for n in names})


def _operand(value: Any, ranges: Ranges, index: bool) -> Any:
    if isinstance(value, tuple):
        new = tuple(_operand(v, ranges, index) for v in value)
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    if isinstance(value, Expr):
        return simplify(value, ranges, index=index)
    if isinstance(value, Region):
        return _region(value, ranges)
    return value


def _region(region: Region, ranges: Ranges) -> Region:
    # an extent that is the buffer's own size stays that very expression: `is_whole` compares them
    starts = _operand(region.starts, ranges, True)
    extents = tuple(
        extent if extent is size else simplify(extent, ranges)
        for extent, size in zip(region.extents, region.buffer.shape, strict=True)
    )
    cta = _operand(region.cta, ranges, True)
    if starts is region.starts and extents == region.extents and cta is region.cta:
        return region
    return Region(region.buffer, starts, extents, cta)
