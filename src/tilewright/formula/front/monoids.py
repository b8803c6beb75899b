"""Folds and scans by monoids of the user's own.

    best = tm.monoid((-tm.inf, 0), lambda a, b: tuple(tm.where(a[0] >= b[0], x, y) …))
    value, place = tm.reduce(best, (x, j), axis=-1)

A monoid has an element that changes none, and an associative function of two elements. Elements are
numbers, or tuples of them. Nothing is exchanged, so the function need not be commutative. Both laws
are tried on random elements of what is folded; what breaks one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.formula.front.promotion import compute_type, result_type
from tilewright.formula.front.reductions import (
    Axes,
    axes_of,
    comprehended,
    folded_axes,
    kept_axes,
)
from tilewright.formula.front.values import (
    Operand,
    Value,
    axis_of,
    broadcast_at,
    current,
    define,
    element_of,
    operand,
    shape_of,
)
from tilewright.ir import formula as ir
from tilewright.ir.core import *
from tilewright.support.errors import CompileError


@dataclass(frozen=True)
class Monoid:
    """What `tm.monoid` makes."""

    identity: tuple[float, ...]
    combine: Callable[[Any, Any], Any]
    is_tuple: bool

    @property
    def name(self) -> str:
        found = getattr(self.combine, "__name__", "")
        return found if found.isidentifier() and found.isascii() else "combine"


def monoid(identity: Any, combine: Callable[[Any, Any], Any], /) -> Monoid:
    """A monoid: `combine` of two elements is associative, and `identity` changes none. Elements of
    several numbers are tuples, and so is `identity`.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> affine = tm.monoid((1, 0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]))
    >>> recurrence = tw.math(lambda a, b: tm.scan(affine, (a, b), axis=0)[1])
    >>> recurrence(np.full(4, 0.5, np.float32), np.ones(4, np.float32)).tolist()  # h = h / 2 + 1
    [1.0, 1.5, 1.75, 1.875]
    """
    if not callable(combine):
        raise CompileError(
            "tm.monoid takes the identity, and a function of two elements",
            got=repr(combine)[:80],
            fix="write tm.monoid(0.0, lambda a, b: a + b)",
        )
    is_tuple = isinstance(identity, (tuple, list))
    parts = tuple(identity) if is_tuple else (identity,)
    numbers = [operand(each, "the identity of tm.monoid") for each in parts]
    if not numbers or any(isinstance(each, Value) for each in numbers):
        raise CompileError(
            "the identity of tm.monoid is a number, or a tuple of numbers",
            got=repr(identity)[:80],
            fix="write tm.monoid((-tm.inf, 0), …) for elements of two numbers",
        )
    return Monoid(tuple(n for n in numbers if not isinstance(n, Value)), combine, is_tuple)


def reduce(
    monoid: Monoid, x: Any, fn: Callable[..., Any] | None = None, /, *, axis: Axes = None,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """The fold of an array, or of a tuple of arrays, by a monoid: `reduce(m, x, axis=…)`, or over
    indices, `reduce(m, (3, 4), lambda r, s: …)`. Elements are combined in the order of their
    indices."""
    if fn is not None:
        over, found = comprehended("reduce", x, fn)
        numbers = _elements(monoid, found, "the function of tm.reduce")
        if any(isinstance(n, Value) and n.shape for n in numbers):
            raise CompileError(
                "the function of tm.reduce gives numbers, not arrays",
                fix="index them, or fold them inside the function",
            )
        return _folded(monoid, numbers, (), lambda n, _: broadcast_at(n, ()), over)
    parts = _elements(monoid, x, "tm.reduce")
    shape = shape_of(*parts)
    folds = axes_of(axis, len(shape))
    left, over, places = folded_axes(shape, folds)
    found = _folded(monoid, parts, left, lambda p, new: broadcast_at(p, places(new)), over=over)
    if not keepdims:
        return found
    if isinstance(found, tuple):
        return tuple(kept_axes(each, shape, folds) for each in found)
    return kept_axes(found, shape, folds)


def scan(monoid: Monoid, x: Any, /, *, axis: int) -> Any:
    """The folds of the elements up to each, along `axis`, of an array or of a tuple of arrays."""
    parts = _elements(monoid, x, "tm.scan")
    shape = shape_of(*parts)
    along = axis_of(axis, len(shape))
    return _folded(monoid, parts, shape, broadcast_at, along=along)


def _elements(monoid: Any, x: Any, what: str) -> list[Operand]:
    """What is folded: an array or a number for each of a monoid's."""
    if not isinstance(monoid, Monoid):
        raise CompileError(
            f"{what} takes a monoid first", got=repr(monoid)[:80],
            fix="make one by tm.monoid(identity, combine)",
        )  # fmt: skip
    is_tuple = isinstance(x, (tuple, list))
    parts = list(x) if is_tuple else [x]
    if is_tuple != monoid.is_tuple or len(parts) != len(monoid.identity):
        words = [f"a tuple of {n}" if t else "one" for n, t in
                 ((len(monoid.identity), monoid.is_tuple), (len(parts), is_tuple))]  # fmt: skip
        raise CompileError(
            f"{what} folds other elements than its monoid has",
            expected=f"{words[0]}, as the identity is",
            got=words[1],
            fix="give as many arrays as the identity has numbers",
        )
    return [operand(part, what) for part in parts]


def _folded(
    monoid: Monoid,
    parts: Sequence[Operand],
    shape: tuple[int, ...],
    at: Callable[[Value, tuple[Expr, ...]], Expr],
    over: tuple[ir.Axis, ...] = (),
    along: int | None = None,
) -> Any:
    """An array for each element of the tuples; `at` says what is folded for given indices."""
    # what numbers mean is needed for that alone
    from tilewright.formula.check.monoids import check_laws

    kinds = _kinds(monoid, parts)
    by = ir.Monoid(_operator(monoid, kinds), _identity(monoid, kinds), 0, monoid.name)
    stored = [_stored(kind) for kind in kinds]
    if not over and along is None:
        raise CompileError(
            "tm.reduce folds no axis", got="axis=()", fix="name an axis, or give none for all"
        )

    def elements(new: tuple[Expr, ...]) -> Expr:
        found = []
        for part, kind, wide in zip(parts, kinds, stored, strict=True):
            if isinstance(part, Value):
                element = at(part, new)
            else:
                element = element_of(part, (), kind)
            found.append(cast(cast(element, compute_type(kind)), wide))
        return ir.together(found)

    word = "reduce" if along is None else "scan"
    first = define(word, shape, elements, stored[0], monoid="by", over=over, scan=along, by=by)
    trace = current()
    made = trace.arrays[-1]
    check_laws(made, trace.arrays[:-1])
    results = []
    for n, (kind, wide) in enumerate(zip(kinds, stored, strict=True)):
        if n:
            buffer = ir.tensor(trace.fresh(word), ir.extents(made.buffer), wide)
            trace.arrays.append(replace(made, buffer=buffer, by=replace(by, part=n)))
        results.append(first.of(trace.arrays[-1].buffer, kind))
    return tuple(results) if monoid.is_tuple else results[0]


def _stored(kind: DType) -> DType:
    """Tiles fold in 32 bits at least."""
    return INT32 if kind == BOOL or (kind.is_int and kind.bits < 32) else compute_type(kind)


def _identity(monoid: Monoid, kinds: Sequence[DType]) -> tuple[float, ...]:
    found = zip(monoid.identity, kinds, strict=True)
    return tuple(float(n) if kind.is_float else int(n) for n, kind in found)


def _kinds(monoid: Monoid, parts: Sequence[Operand]) -> list[DType]:
    """The types of elements: those of what is folded, and of what they become."""
    kinds = [result_type(part, n) for part, n in zip(parts, monoid.identity, strict=True)]
    for _ in range(4):
        both = zip(kinds, _results(monoid, kinds)[1], strict=True)
        wider = [result_type(kind, found) for kind, found in both]
        if wider == kinds:
            return kinds
        kinds = wider
    raise AssertionError("types only become wider")


def _results(monoid: Monoid, kinds: Sequence[DType]) -> tuple[list[Var], list[Operand]]:
    """The variables of two elements, and what they combine to."""
    trace = current()
    stored = [_stored(kind) for kind in kinds]
    numbers = [""] if not monoid.is_tuple else [str(n) for n in range(len(kinds))]
    sides = [[Var(f"{side}{n}", kind) for n, kind in zip(numbers, stored, strict=True)]
             for side in "ab"]  # fmt: skip
    values = [
        tuple(Value((), kind, scalar=cast(var, compute_type(kind)))
              for var, kind in zip(side, kinds, strict=True))
        for side in sides
    ]  # fmt: skip
    before = len(trace.arrays)
    with trace.inside(trace.axes((2,))):
        found = (
            monoid.combine(*values) if monoid.is_tuple else monoid.combine(*(v[0] for v in values))
        )
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if isinstance(found, (tuple, list)) != monoid.is_tuple or len(results) != len(kinds):
        raise CompileError(
            "combine of a monoid gives another number of elements than it takes",
            expected=f"a tuple of {len(kinds)}" if monoid.is_tuple else "one element",
            got=f"{len(results)}" if isinstance(found, (tuple, list)) else repr(found)[:80],
            fix="return what it takes, combined",
        )
    results = [operand(each, "combine of a monoid") for each in results]
    known = {*sides[0], *sides[1]}
    exprs = [each.at(()) for each in results if isinstance(each, Value) and not each.shape]
    whole = all(not isinstance(each, Value) or not each.shape for each in results)
    if not whole or len(trace.arrays) > before or any(
        loads(e) or variables(e) - known for e in exprs
    ):  # fmt: skip
        raise CompileError(
            "combine of a monoid uses more than its two elements",
            fix="compute with the two elements and numbers only, one by one; what it needs besides "
            "is one of the arrays of the tuple",
        )
    return [*sides[0], *sides[1]], results


def _operator(monoid: Monoid, kinds: Sequence[DType]) -> Operator:
    vars, results = _results(monoid, kinds)
    both = zip(results, kinds, strict=True)
    return Operator(tuple(vars), tuple(cast(element_of(r, (), k), _stored(k)) for r, k in both))
