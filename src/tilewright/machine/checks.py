"""Checks on values that the sanitizer builds into expressions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.expr import Expr
from tilewright.machine.postmortem import in_lane
from tilewright.machine.state import Frame
from tilewright.support.errors import SanitizerError

_EXACT: dict[str, Any] = {"+": np.add, "-": np.subtract, "*": np.multiply}


def _refuse(fr: Frame, wrong: Any, kind: str, message: str, fix: str = "") -> None:
    """An error where an active lane is `wrong`."""
    wrong = wrong if fr.mask is None or not np.any(wrong) else wrong & fr.mask
    if np.any(wrong):
        raise in_lane(SanitizerError(kind, message, loc=fr.loc(), fix=fix), fr, wrong)


def divides(fr: Frame, divisor: Any) -> None:
    """No active lane divides by zero."""
    _refuse(
        fr,
        divisor == 0,
        "division-by-zero",
        "an integer is divided by zero",
        "guard the division, e.g. T.if_then_else(d != 0, n // d, 0)",
    )


def shifts(fr: Frame, op: str, count: Any) -> None:
    """No active lane shifts by a negative count."""
    _refuse(
        fr,
        count < 0,
        "negative-shift",
        f"'{op}' by a negative count: {int(np.min(count))}",
        "guard it, e.g. T.if_then_else(n >= 0, x << n, x >> -n)",
    )


def steps(fr: Frame, step: Any) -> None:
    """No active lane counts by zero."""
    _refuse(
        fr,
        step == 0,
        "zero-step",
        "a loop counts by a step of zero, so it has no iterations",
        "guard the loop: if step != 0",
    )


def fits(fr: Frame, op: str, a: Any, b: Any) -> None:
    """`a op b` stays inside int32 in every active lane."""
    exact = _EXACT[op](a.astype(np.int64), b.astype(np.int64))
    wrong = (exact < -(1 << 31)) | (exact >= 1 << 31)
    if not np.any(wrong):
        return
    worst = int(np.max(np.where(wrong, exact, 0))) or int(np.min(np.where(wrong, exact, 0)))
    _refuse(
        fr,
        wrong,
        "index-overflow",
        f"an index computed in int32 overflows: '{op}' gives {worst}",
        'compute it in int64: T.cast(i, "int64")',
    )


def born_nan(fr: Frame, node: Expr, result: Any, args: tuple[Any, ...]) -> None:
    """A NaN in the result comes from a NaN in an operand."""
    new = _nan(result)
    if not new.any():
        return
    for arg in args:
        new = new & ~_nan(arg)
    _refuse(fr, new, "nan", f"NaN is born in {node} though no operand is NaN")


def _nan(x: Any) -> Any:
    return np.isnan(np.asarray(x).astype(np.float64))
