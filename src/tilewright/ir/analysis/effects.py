"""What code does: which buffers it touches and writes, and whether it leaves a loop early."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.buffer import Space
from tilewright.ir.marks import kept
from tilewright.ir.op import (
    Body,
    Break,
    Continue,
    For,
    Kernel,
    Op,
    View,
    While,
    bodies,
    touched_within,
    walk_ops,
)


@kept
def touched(op: Op) -> dict[str, bool]:
    """The buffers that `op`, and what stands in it, touch: by name, whether they are written."""
    found: dict[str, bool] = {}
    for buffer, writes in touched_within(op):
        found[buffer.name] = writes or found.get(buffer.name, False)
    return found


def mentioned(op: Op) -> set[str]:
    return {*touched(op)}


def written_in(body: Iterable[Op]) -> set[str]:
    return {name for op in body for name, writes in touched(op).items() if writes}


def written_by(kernel: Kernel) -> set[str]:
    """Buffers that the kernel writes, tensors also under the names of their views."""
    found, roots = written_in(kernel.body), aliases(kernel)
    views = list(walk_ops(kernel, View))
    tensors = {op.buffer.name for op in views if op.source.space is Space.GLOBAL}
    changed = found | {roots[name] for name in found & tensors}
    return changed | {view for view in tensors if roots[view] in changed}


def leaves_early(body: Body, *ways: type[Op]) -> bool:
    """Control may leave an iteration of the loop around `body` early, by `break` or `continue`, or
    by one of these `ways`."""
    return any(
        isinstance(op, ways or (Break, Continue))
        or (not isinstance(op, (For, While)) and any(leaves_early(b, *ways) for b in bodies(op)))
        for op in body
    )
