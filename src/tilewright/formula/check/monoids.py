"""Whether the user's monoid is one: its laws on random elements like those that are folded.

Elements are drawn as the formula makes them: a count that is 1 everywhere is 1 in every trial. What
is combined of some is an element, too. Numbers are compared in float64, so an order of sums is no
difference, but a rounding inside `combine` is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.formula.meaning import Evaluator, combined
from tilewright.ir.core import *
from tilewright.ir.formula import Array, most
from tilewright.support.errors import CompileError

_TRIALS = 64


def check_laws(a: Array, arrays: Iterable[Array] = ()) -> None:
    """Refuse a function that is no monoid on random elements like those that are folded. `arrays`
    are those that `a` may read: an element is drawn as they make it."""
    assert a.by is not None
    by, rng = a.by, np.random.default_rng(0)
    known = {each.name: each for each in arrays if each.is_pointwise}
    leaves = [_drawn(a, known, rng) for _ in range(5)]
    sizes = [max(float(np.max(np.abs(x), initial=0, where=np.isfinite(x))) for x in column)
             for column in zip(*leaves, strict=True)]  # fmt: skip

    def join(x: Any, y: Any) -> Any:
        with np.errstate(all="ignore"):
            return combined(by, x, y, True)

    def differ(x: Any, y: Any) -> int | None:
        """The first trial in which two elements are not the same."""
        wrong = np.zeros(_TRIALS, bool)
        for p, q, size in zip(x, y, sizes, strict=True):
            p, q = (np.asarray(v, np.float64) for v in (p, q))
            with np.errstate(all="ignore"):
                near = abs(p - q) <= 1e-9 * (1 + size + np.minimum(abs(p), abs(q)))
                wrong |= ~((p == q) | near | (np.isnan(p) & np.isnan(q)))
        return int(np.argmax(wrong)) if wrong.any() else None

    def said(*elements: Any, at: int) -> list[str]:
        return [_text([x[at] for x in element], len(by.identity) > 1) for element in elements]

    shape, floats = (_TRIALS,), [v.dtype.is_float for v in by.combine.vars]
    unit = [np.full(shape, n, np.float64 if is_float else np.int64)
            for n, is_float in zip(by.identity, floats, strict=False)]  # fmt: skip
    one, two, *rest = leaves
    for element in (one, join(one, two), unit):
        for sides in ((unit, element), (element, unit)):
            found = join(*sides)
            at = differ(found, element)
            if at is not None:
                left, right, given, want = said(*sides, found, element, at=at)
                raise CompileError(
                    f"the identity of the monoid changes elements: {by.name}({left}, {right}) "
                    f"is {given}",
                    expected=want,
                    fix="give the element that changes none as the identity: 0 for sums, -tm.inf "
                    "for maxima; where that leads to inf - inf, a large number such as -1e30",
                    code="monoid",
                )
    for x, y, z in ((one, two, rest[0]), (join(one, two), rest[0], rest[1]),
                    (one, join(two, rest[0]), join(rest[1], rest[2]))):  # fmt: skip
        left, right = join(join(x, y), z), join(x, join(y, z))
        at = differ(left, right)
        if at is not None:
            texts = said(x, y, z, left, right, at=at)
            raise CompileError(
                f"{by.name} of the monoid is not associative",
                expected="(a · b) · c = a · (b · c)",
                got=f"{texts[3]} and {texts[4]} for a = {texts[0]}, b = {texts[1]}, c = {texts[2]}",
                fix="combine so that only the order of elements counts; keep what else is needed, "
                "such as a count, as one more number of the tuple",
                code="monoid",
            )


def _text(numbers: Sequence[Any], is_tuple: bool) -> str:
    texts = [f"{float(n):.6g}" for n in numbers]
    return f"({', '.join(texts)})" if is_tuple else texts[0]


def _drawn(a: Array, known: Mapping[str, Array], rng: np.random.Generator) -> list[Any]:
    """What a fold might meet, some of it equal: its bodies for random numbers and indices."""
    extents = {axis.var: int(min(most(axis.extent), 100)) for axis in a.domain}
    drawn: dict[Expr, Var] = {}

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        if made := known.get(node.buffer.name):
            return cast(transform(made.at(node.indices), rule), node.dtype)
        return drawn.setdefault(node, Var(f"%{len(drawn)}", node.dtype))

    bodies = [transform(body, rule) for body in a.bodies]
    env: dict[Var, Any] = {v: rng.integers(0, n, _TRIALS, np.int32) for v, n in extents.items()}
    for var in drawn.values():
        kind = var.dtype
        small = rng.integers(0 if str(kind).startswith("uint") else -3, 4, _TRIALS)
        wide = np.where(rng.random(_TRIALS) < 0.3, small, rng.standard_normal(_TRIALS) * 2)
        env[var] = wide if kind.is_float else (small if kind != BOOL else small > 0)
    value = Evaluator(env, {}, True)
    with np.errstate(all="ignore"):
        return [np.broadcast_to(value(body), (_TRIALS,)) for body in bodies]
