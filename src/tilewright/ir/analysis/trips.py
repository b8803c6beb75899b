"""How often a loop runs, computed so that nothing overflows."""

from __future__ import annotations

from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.core import *


def values_of(loop: For) -> range | None:
    """The values of a loop's variable, where they are known."""
    bounds = (loop.start, loop.stop, loop.step)
    return range(*map(int, bounds)) if all(isinstance(e, Const) for e in bounds) else None


def downward(start: Expr, stop: Expr, size: int, ranges: Ranges) -> Expr:
    """Iterations of `range(start, stop, -size)`, or 0 or less: of the type of the bounds or, where
    that may be too narrow, int64."""
    kind = start.dtype
    if isinstance(start, Const) and isinstance(stop, Const):
        count = len(range(int(start.value), int(stop.value), -size))
        return const(count, kind if count <= kind.max_value else INT64)
    if ranges.exact(start - stop + (size - 1), False):
        return cast(wrap(ceildiv(start - stop, const(size, kind))), kind)
    return upward_or_downward(start, stop, const(-size, kind))


def upward_or_downward(start: Expr, stop: Expr, step: Expr) -> Expr:
    """Iterations of `range(start, stop, step)` in int64; none by a step of 0."""
    if start.dtype.bits < 64:
        a, b, by = (cast(e, INT64) for e in (start, stop, step))
        up, down = (b - a + (by - 1)) // by, (b - a + (by + 1)) // by
    else:  # distances of 64-bit numbers are right as unsigned ones
        bits = DTYPES["uint64"]
        a, b, by = (cast(e, bits) for e in (start, stop, step))
        one = const(1, bits)
        up = select(start < stop, cast((b - a - one) // by + one, INT64), 0)
        down = select(start > stop, cast((a - b - one) // (const(0, bits) - by) + one, INT64), 0)
    if isinstance(step, Const):
        return up if step.value > 0 else down
    backwards = select(compare("<", step, const(0, step.dtype)), down, const(0, INT64))
    return select(compare(">", step, const(0, step.dtype)), up, backwards)


def nth(start: Expr, step: Expr, at: Expr) -> Expr:
    """The value of iteration `at`; what wraps on the way wraps back."""
    return start + cast(at, start.dtype) * step
