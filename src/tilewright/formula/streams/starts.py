"""What the state of a stream starts with.

A center starts far away on the side from which it comes, so that what it multiplies old sums by,
exp(old - new), is zero at first; with a finite number, since it is subtracted from elements: the
last of float32, which elements may be, as those that masks of PyTorch's models leave. Where its
distance is multiplied or a power is taken of it, that must not leave the range of the type either.
A maximum that is a center starts with the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tilewright.formula.streams.form import *
from tilewright.formula.streams.normal import Context
from tilewright.formula.streams.stream import Center, Fold, Stage
from tilewright.ir.arith import Expr, Var
from tilewright.ir.dtype import FLOAT32

DIGITS = 30  # a center whose distance is multiplied starts at ±10³⁰
LAST = 3.4028234663852886e38  # of float32, which wider values may be rounded to
RANGE = 36  # powers of distances stay below 10³⁶ in float32


@dataclass(frozen=True)
class Shifted:
    """A center: in forms `y` stands for `form` - `value` and `moved` for the old value minus the
    new one; in the stream they are `of` - `var` and `old(var)` - `var`."""

    var: Var
    y: Var
    moved: Var
    form: Form
    value: Form
    of: Expr


def started(
    stages: Sequence[Stage],
    centers: Iterable[Shifted],
    moves: Sequence[Form],
    context: Context,
    notes: dict[str, None],
) -> tuple[Stage, ...]:
    """`stages` with the starts of centers, and of the maxima that they are."""
    starts: dict[Var, float] = {}
    folds = {s.var: s for s in stages if isinstance(s, Fold) and s.var.dtype.is_float}
    for center in centers:
        side = _side(center.moved, moves, context)
        fold = next((folds[v] for v in folds if center.value == atom(v)), None)
        if side is None:
            notes["exp of both signs of one center"] = None
        elif not side and fold is not None:
            side = {"max": -1, "min": 1}.get(fold.monoid, 0)
        starts[center.var] = (side or 0) * _distance(center.moved, moves, context)
        if fold is not None and side == {"max": -1, "min": 1}.get(fold.monoid):
            starts[fold.var] = starts[center.var]
    return tuple(
        replace(stage, start=starts[stage.var])
        if isinstance(stage, (Fold, Center)) and stage.var in starts
        else stage
        for stage in stages
    )


def _side(moved: Var, moves: Sequence[Form], context: Context) -> int | None:
    """-1 where exp(k · moved) has positive k, 1 where k is negative, 0 where there is none or its
    sign is not known, None where there are both."""
    sides = set()
    for form in moves:
        for mono in form:
            for inner, factor in exponent(mono).items():
                others = tuple(power for power in inner if power[0] is not moved)
                linear = (moved, Fraction(1)) in inner
                if linear and all(context.atom_is_positive(*power) for power in others):
                    sides.add(-1 if factor > 0 else 1)
    return None if len(sides) > 1 else sides.pop() if sides else 0


def _distance(moved: Var, moves: Sequence[Form], context: Context) -> float:
    powers = [power for form in moves for mono in form for base, power in mono if base is moved]
    factors = [
        abs(factor) if len(inner) == 1 else 2
        for form in moves for mono in form for inner, factor in exponent(mono).items()
        if any(base is moved for base, _ in inner)
    ]  # fmt: skip
    if not powers and max(factors, default=1) <= 1:
        return LAST
    degree = max([1, *(int(power) for power in powers)])
    limit = RANGE if context.dtype is FLOAT32 else 8 * RANGE
    return float(10 ** min(DIGITS, limit // degree))
