"""Arrays without elements need no kernel: folds of nothing are the neutral element."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array, Formula, extents, needed
from tilewright.support.errors import CompileError


def is_empty(b: Buffer) -> bool:
    return 0 in extents(b)


def without_empty(formula: Formula) -> Formula:
    """The formula without arrays, inputs and outputs that have no elements.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> print(without_empty(parse_formula('''formula f(x: float32[0], y: float32[2]) -> z, w
    ...     t[]: float32 = sum{i < 0} x[i]
    ...     z[i1 < 2]: float32 = y[i1] + t
    ...     w[i2 < 0]: float32 = x[i2]''')))
    formula f(y: float32[2]) -> z
        t[]: float32 = 0.0
        z[i1 < 2]: float32 = y[i1] + t
    """
    outputs = tuple(b for b in formula.outputs if not is_empty(b))
    arrays = [_filled(a) for a in formula.arrays if not is_empty(a.buffer)]
    kept = needed(arrays, outputs)
    for a in kept:
        if any(axis.extent == 0 for axis in a.over):
            raise CompileError(
                f"{a.monoid} of no elements: it has no neutral element",
                got=f"{a.name} folds {', '.join(map(str, a.over))}",
                fix="sums and products of nothing are 0 and 1; check the size before the call",
                loc=a.loc,
                code="arguments",
            )
    inputs = tuple(b for b in formula.inputs if not is_empty(b))
    return replace(formula, inputs=inputs, arrays=kept, outputs=outputs)


def _filled(a: Array) -> Array:
    """Without reads of what has no elements, and without folds of nothing but maxima."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and is_empty(node.buffer):
            return const(0, node.dtype)
        return None

    a = replace(a, body=transform(a.body, rule))
    if all(axis.extent != 0 for axis in a.over):
        return a
    neutral = NEUTRAL.get(a.monoid) if a.by is None else a.by.identity[a.by.part]
    if neutral is None or a.monoid in ("max", "min"):
        return a
    kind = a.buffer.dtype
    body = const(float(neutral) if kind.is_float else neutral, kind)
    return replace(a, body=body, monoid="", over=(), by=None)
