"""Checks on values that the sanitizer builds into expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.machine.postmortem import in_lane
from tilewright.support.errors import SanitizerError

if TYPE_CHECKING:
    from tilewright.ir.expr import Expr
    from tilewright.machine.lanes import Frame

_EXACT: dict[str, Any] = {"+": np.add, "-": np.subtract, "*": np.multiply}


def _any_active(fr: Frame, wrong: Any) -> bool:
    return bool(np.any(_active(fr, wrong)))


def _active(fr: Frame, wrong: Any) -> Any:
    """Where an active lane is wrong."""
    return wrong if fr.mask is None or not np.any(wrong) else wrong & fr.mask


def divides(fr: Frame, divisor: Any) -> None:
    """No active lane divides by zero."""
    if _any_active(fr, divisor == 0):
        error = SanitizerError(
            "division-by-zero",
            "an integer is divided by zero",
            loc=fr.loc(),
            fix="guard the division, e.g. T.if_then_else(d != 0, n // d, 0)",
        )
        raise in_lane(error, fr, _active(fr, divisor == 0))


def shifts(fr: Frame, op: str, count: Any) -> None:
    """No active lane shifts by a negative count."""
    if _any_active(fr, count < 0):
        error = SanitizerError(
            "negative-shift",
            f"'{op}' by a negative count: {int(np.min(count))}",
            loc=fr.loc(),
            fix="guard it, e.g. T.if_then_else(n >= 0, x << n, x >> -n)",
        )
        raise in_lane(error, fr, _active(fr, count < 0))


def steps(fr: Frame, step: Any) -> None:
    """No active lane counts by zero."""
    if _any_active(fr, step == 0):
        error = SanitizerError(
            "zero-step",
            "a loop counts by a step of zero, so it has no iterations",
            loc=fr.loc(),
            fix="guard the loop: if step != 0",
        )
        raise in_lane(error, fr, _active(fr, step == 0))


def fits(fr: Frame, op: str, a: Any, b: Any) -> None:
    """`a op b` stays inside int32 in every active lane."""
    exact = _EXACT[op](a.astype(np.int64), b.astype(np.int64))
    wrong = (exact < -(1 << 31)) | (exact >= 1 << 31)
    if _any_active(fr, wrong):
        worst = int(np.max(np.where(wrong, exact, 0))) or int(np.min(np.where(wrong, exact, 0)))
        error = SanitizerError(
            "index-overflow",
            f"an index computed in int32 overflows: '{op}' gives {worst}",
            loc=fr.loc(),
            fix='compute it in int64: T.cast(i, "int64")',
        )
        raise in_lane(error, fr, _active(fr, wrong))


def born_nan(fr: Frame, node: Expr, result: Any, args: tuple[Any, ...]) -> None:
    """A NaN in the result comes from a NaN in an operand."""
    new = _nan(result)
    if not new.any():
        return
    for arg in args:
        new = new & ~_nan(arg)
    if _any_active(fr, new):
        error = SanitizerError(
            "nan", f"NaN is born in {_short(node)} though no operand is NaN", loc=fr.loc()
        )
        raise in_lane(error, fr, _active(fr, new))


def _nan(x: Any) -> Any:
    return np.isnan(np.asarray(x).astype(np.float64))


def _short(node: Expr) -> str:
    try:
        return str(node)
    except ImportError:
        return f"a {type(node).__name__.lower()} of type {node.dtype}"
