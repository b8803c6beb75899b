"""Gradients: reverse mode over formulas. The gradient of a formula is a formula.

Every array has an adjoint, an array again: what a change of the array says about the outputs, given
their cotangents. Definitions are walked backwards; each read of `b` in the body of `a` adds to the
adjoint of `b` the sum, over all who read an element, of the derivative times the adjoint of `a`
(`derivatives`, `inverse`). What the derivatives need is computed again: bodies are pure, and what
lies in memory is decided where kernels are chosen.

| fold | cotangent of what is folded |
|---|---|
| sum | that of the sum |
| max, min | that of the result, for the elements that are equal to it, shared evenly |
| prod | the product of the others; exact where elements are zero |
| scan sum, scan prod | a scan from the end |
| argmax, argmin, any, all | none |

A maximum that the outputs are free of, as that of softmax, gets none (`invariance`). Where an index
is data, the adjoint is a sum over all readers that compares their index: right, but slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from tilewright.formula.front.promotion import compute_type
from tilewright.formula.front.trace import Names
from tilewright.formula.gradients.derivatives import pullback
from tilewright.formula.gradients.invariance import is_free_of, without_ends
from tilewright.formula.gradients.inverse import readers
from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.core import *
from tilewright.ir.formula import (
    Array,
    Axis,
    Extent,
    Formula,
    array,
    needed,
    tensor,
    vars_of,
    verify,
)
from tilewright.ir.simplify import simplify
from tilewright.support.errors import CompileError

_LETTERS = "ijklmnpqrstuvw"


def vjp(formula: Formula, wrt: Sequence[str] | None = None, values: bool = False) -> Formula:
    """The formula of the cotangents of inputs (those named by `wrt`, or all that are float), given
    the inputs and the cotangents of the float outputs; with `values`, of the outputs before them.

    >>> from tilewright.formula.front.trace import trace
    >>> print(vjp(trace(lambda x, w: x @ w, [("x", (4, 8), "float32"), ("w", (8, 6), "float32")])))
    formula formula_vjp(x: float32[4, 8], w: float32[8, 6], d_out: float32[4, 6]) -> d_x, d_w
        d_x[i1 < 4, j1 < 8]: float32 = sum{j4 < 6} d_out[i1, j4] * w[j1, j4]
        d_w[i2 < 8, j2 < 6]: float32 = sum{i4 < 4} d_out[i4, j2] * x[i4, i2]
    """
    targets = _targets(formula, wrt)
    walk = _Backwards(formula, targets)
    outputs = (*(formula.outputs if values else ()), *walk.outputs(targets))
    found = Formula(
        f"{formula.name}_vjp",
        (*formula.inputs, *walk.cotangents),
        needed([*formula.arrays, *walk.arrays], outputs),
        outputs,
    )
    verify(found)
    return found


def _targets(formula: Formula, wrt: Sequence[str] | None) -> list[Buffer]:
    inputs = {b.name: b for b in formula.inputs}
    floats = [b for b in formula.inputs if b.dtype.is_float]
    for name in wrt or ():
        if name not in inputs or not inputs[name].dtype.is_float:
            raise CompileError(
                f"{name} is no float input of {formula.name}, so it has no gradient",
                expected=f"some of {', '.join(b.name for b in floats)}",
                fix="name float inputs in wrt, or leave wrt out for all of them",
            )
    found = floats if wrt is None else [inputs[name] for name in wrt]
    if not found or not any(b.dtype.is_float for b in formula.outputs):
        what = "inputs" if not found else "outputs"
        raise CompileError(
            f"{formula.name} has no float {what}, so it has no gradient",
            fix="gradients are of floats: convert with tm.astype",
        )
    return found


class _Backwards:
    """The adjoints of a formula's arrays, last first."""

    def __init__(self, formula: Formula, targets: list[Buffer]) -> None:
        self.formula = formula
        buffers = formula.buffers
        axes = [v.name for a in formula.arrays for v in vars_of(a.domain)]
        self.names = Names([*(b.name for b in buffers), *axes])
        self.arrays: list[Array] = []
        self.cotangents: list[Buffer] = []
        self.terms: dict[str, list[tuple[tuple[Axis, ...], Expr]]] = defaultdict(list)
        self.axes = {b.name: self._axes(b) for b in buffers if b.dtype.is_float}
        for b in formula.outputs:
            if b.dtype.is_float:
                given = tensor(self.names.fresh(f"d_{b.name}"), b.static_shape, b.dtype)
                self.cotangents.append(given)
                self.terms[b.name].append(((), _wide(Load(given, self._at(b)))))
        self.targets = {b.name: self.names.fresh(f"d_{b.name}") for b in targets}
        self._walk({b.name for b in targets})

    def outputs(self, targets: list[Buffer]) -> tuple[Buffer, ...]:
        """The adjoints of inputs, in their types."""
        found = []
        for b in targets:
            wide = compute_type(b.dtype) != b.dtype
            name = self.names.fresh(f"d_{b.name}") if wide else self.targets[b.name]
            total = self._total(b, name)
            if wide or total is None:
                value = const(0, b.dtype) if total is None else cast(total, b.dtype)
                self.arrays.append(array(self.targets[b.name], self.axes[b.name], value))
            found.append(self.arrays[-1].buffer)
        return tuple(found)

    def _walk(self, active: set[str]) -> None:
        """From the outputs to the inputs, by arrays that depend on what is asked for."""
        for a in self.formula.arrays:
            if a.buffer.dtype.is_float and active & a.sources:
                active.add(a.name)
        extremes = [a.name for a in self.formula.arrays if a.monoid in ("max", "min")]
        free = {name for name in active.intersection(extremes) if is_free_of(self.formula, name)}
        for a in reversed(self.formula.arrays):
            if a.name not in active or a.name in free:
                continue
            total = self._total(a.buffer, self.names.fresh(f"d_{a.name}"), a)
            if total is None:
                continue
            own: dict[Var, Expr] = dict(zip(self._at(a.buffer), a.vars, strict=True))
            given = _FOLDS[_fold(a)](self, a, substitute(total, own))
            for read, value in pullback(without_ends(a.body, free), given).items():
                if read.buffer.name in active:
                    self._add(a, read, value)

    def _axes(self, b: Buffer) -> tuple[Axis, ...]:
        """Axes for the adjoint of `b`, called as those of its definition."""
        made = self.formula.definition(b)
        words = [axis.var.name.rstrip("0123456789") for axis in made.axes] if made else _LETTERS
        return tuple(
            Axis(Var(self.names.fresh(word)), extent)
            for word, extent in zip(words, b.static_shape, strict=made is not None)
        )

    def _at(self, b: Buffer) -> tuple[Var, ...]:
        return vars_of(self.axes[b.name])

    def _total(self, b: Buffer, name: str, of: Array | None = None) -> Expr | None:
        """The adjoint of `b`, an element of an array over its axes; None if it is zero."""
        terms = self.terms.pop(b.name, [])
        folded = [(over, value) for over, value in terms if over]
        parts = [value for over, value in terms if not over]
        if not terms:
            return None
        if of is not None and not folded and len(parts) == 1:
            (only,) = parts
            if isinstance(only.a if isinstance(only, Cast) else only, Load):
                return only
        loc = of.loc if of is not None else None
        at, whole = self._at(b), len(folded) == 1 and not parts
        for over, value in folded:
            own = name if whole else self.names.fresh(f"{name}_part")
            made = array(own, self.axes[b.name], value, monoid="sum", over=over, loc=loc)
            self.arrays.append(made)
            parts.append(Load(made.buffer, at))
        if not whole:
            total = reduce(add, parts)
            self.arrays.append(array(name, self.axes[b.name], total, loc=loc))
        return Load(self.arrays[-1].buffer, at)

    def _add(self, a: Array, read: Load, value: Expr) -> None:
        """What the read of one element in the body of `a` adds to its adjoint."""
        b = read.buffer
        indices = tuple(self._index(i, a.domain) for i in read.indices)
        found = readers(indices, self.axes[b.name], a.domain, lambda w: Var(self.names.fresh(w)))
        new = {axis.var: self._again(axis) for axis in found.left}
        names = {old: axis.var for old, axis in new.items()}
        values = {var: substitute(e, dict(names)) for var, e in found.values.items()}
        body = substitute(value, {**names, **values})
        own = {substitute(axis.var, {**names, **values}): axis.extent for axis in a.axes}
        conditions = [
            substitute(c.holds, dict(names))
            for c in found.conditions
            if not (c.axis in a.vars and _is_zero_outside(body, own))
        ]
        holds: Expr = reduce(logical_and, [TRUE, *conditions])
        body = select(holds, body, const(0, body.dtype))
        over = tuple(new.values())
        ranges = Ranges({x.var: (0, x.extent - 1) for x in (*self.axes[b.name], *over)})
        self.terms[b.name].append((over, simplify(body, ranges)))

    def _index(self, index: Expr, axes: tuple[Axis, ...]) -> Expr:
        """An index with what is known of integer arrays, such as `tm.arange(n)`, written out."""
        ranges = Ranges({axis.var: (0, axis.extent - 1) for axis in axes})

        def rule(node: Expr) -> Expr | None:
            match node:
                case Cast(dtype=kind, a=a) if kind == INT32 and a.dtype.is_int:
                    return _narrow(a)
                case Load(buffer=b) if b.dtype.is_int:
                    made = self.formula.definition(b)
                    inside = all(
                        bounds(i, ranges).lo >= 0 and bounds(i, ranges).hi < n
                        for i, n in zip(node.indices, b.static_shape, strict=True)
                    )
                    if made is not None and made.is_pointwise and inside:
                        return transform(made.at(node.indices), rule)
            return None

        return transform(index, rule)

    def _again(self, axis: Axis) -> Axis:
        return Axis(Var(self.names.fresh(axis.var.name.rstrip("0123456789"))), axis.extent)

    def define(self, word: str, a: Array, body: Expr, monoid: str) -> Expr:
        """An element of a new array that folds as `a` does, but by `monoid`."""
        return self._made(word, replace(a, body=body, monoid=monoid), body.dtype)

    def fold(self, word: str, a: Array, axes: tuple[Axis, ...], monoid: str, along: Axis) -> Expr:
        """An element of a new array that folds what `a` does, by `monoid` along one axis."""
        kind = INT32 if monoid.startswith("arg") else a.body.dtype
        return self._made(word, replace(a, axes=axes, over=(along,), monoid=monoid), kind)

    def _made(self, word: str, a: Array, kind: DType) -> Expr:
        new = {axis: self._again(axis) for axis in a.domain}
        body = substitute(a.body, {x.var: y.var for x, y in new.items()})
        made = array(
            self.names.fresh(f"{a.name}_{word}"), tuple(new[x] for x in a.axes), body, kind,
            monoid=a.monoid, over=tuple(new[x] for x in a.over), scan=a.scan, loc=a.loc,
        )  # fmt: skip
        self.arrays.append(made)
        return Load(made.buffer, a.vars)

    def is_exact(self, e: Expr) -> bool:
        """Whether it is an element of an argument, as it was given: computing that again gives the
        same."""
        match e:
            case Load(buffer=b):
                return b in self.formula.inputs
            case Const():
                return True
            case Select(a=a, b=b):
                return self.is_exact(a) and self.is_exact(b)
            case Cast(dtype=kind, a=a):
                return kind.bits >= a.dtype.bits and self.is_exact(a)
            case Call(name="neg" | "abs", args=(a,)):
                return self.is_exact(a)
        return e.dtype.is_int

    def from_the_end(self, a: Array, body: Expr) -> Expr:
        """The sum of `body` from each index of the scan's axis to its end."""
        (along,) = a.over
        turned = {along.var: along.extent - 1 - along.var}
        found = self.define("rest", a, substitute(body, dict(turned)), "sum")
        return substitute(found, dict(turned))


def _wide(e: Expr) -> Expr:
    return cast(e, compute_type(e.dtype))


def _narrow(e: Expr) -> Expr:
    """An index in int32, where its parts are: indices do not overflow."""
    match e:
        case Cast(a=a) if a.dtype.is_int:
            return _narrow(a)
        case Bin(op="+" | "-" | "*" as op, a=a, b=b):
            return binary(op, _narrow(a), _narrow(b))
    return cast(e, INT32)


def _is_zero_outside(e: Expr, own: dict[Expr, Extent]) -> bool:
    """Whether a term has a factor of the extents and at the indices `own`, all finite: an element
    that lies outside is zero, and so is the term."""
    match e:
        case Load(buffer=b, indices=indices):
            return own.items() <= set(zip(indices, b.static_shape, strict=True))
        case Cast(a=a) | Call(name="neg", args=(a,)):
            return _is_zero_outside(a, own)
        case Bin(op="*", a=a, b=b):
            return any(_is_zero_outside(x, own) for x in (a, b)) and _is_finite(a) and _is_finite(b)
        case Bin(op="+" | "-", a=a, b=b):
            return _is_zero_outside(a, own) and _is_zero_outside(b, own)
    return False


def _is_finite(e: Expr) -> bool:
    """Whether it is finite if all that it reads is."""
    match e:
        case Load():
            return True
        case Const(value=value):
            return abs(value) < float("inf")
        case Cast(a=a) | Call(name="neg", args=(a,)):
            return _is_finite(a)
        case Bin(op="*" | "+" | "-", a=a, b=b):
            return _is_finite(a) and _is_finite(b)
    return False


# ── folds ────────────────────────────────────────────────────────────────────────────────────


def _fold(a: Array) -> str:
    name = f"scan {a.monoid}" if a.scan else a.monoid
    if name not in _FOLDS:
        raise CompileError(
            f"the gradient of {'a fold by ' + a.by.name if a.by else name} is not known",
            got=f"the array {a.name}",
            fix="write it as a sum or a maximum, or leave its inputs out of wrt",
            loc=a.loc,
        )
    return name


def _extreme(walk: _Backwards, a: Array, given: Expr) -> Expr:
    """To the elements that are equal to the result, shared evenly. What was computed may be rounded
    in another way when it is computed again: then to the first, by its place."""
    zero = const(0, given.dtype)
    if not walk.is_exact(a.body):
        return select(_is_at_extreme(walk, a), given, zero)
    equal = compare("==", _wide(a.body), _wide(a.element))
    ties = walk.define("ties", a, select(equal, const(1, given.dtype), zero), "sum")
    return select(equal, given / ties, zero)


def _is_at_extreme(walk: _Backwards, a: Array) -> Expr:
    """Whether the indices of the fold are those of its first extreme: the last one by its place in
    each row, the one before by that of the row, and so on."""
    found: Expr = TRUE
    part = a
    for axis in reversed(a.over):
        outer = tuple(x for x in part.domain if x != axis)
        place = walk.fold("place", part, outer, f"arg{a.monoid}", axis)
        found = logical_and(found, compare("==", place, cast(axis.var, place.dtype)))
        if outer != a.axes:
            best = walk.fold("part", part, outer, a.monoid, axis)
            part = replace(part, axes=a.axes, over=outer[len(a.axes) :], body=best)
    return found


def _without_zeros(walk: _Backwards, a: Array) -> tuple[Expr, Expr, Expr]:
    """Whether an element is zero, how many are, and the product of the others."""
    body = _wide(a.body)
    one, zero = const(1, body.dtype), const(0, body.dtype)
    is_zero = compare("==", body, zero)
    zeros = walk.define("zeros", a, select(is_zero, one, zero), "sum")
    others = walk.define("others", a, select(is_zero, one, body), "prod")
    return is_zero, zeros, others


def _product(walk: _Backwards, a: Array, given: Expr) -> Expr:
    is_zero, zeros, others = _without_zeros(walk, a)
    zero = const(0, given.dtype)
    alone = select(compare("==", zeros, 1), given * others, zero)
    rest = select(compare("==", zeros, 0), given * others / _wide(a.body), zero)
    return select(is_zero, alone, rest)


def _running_product(walk: _Backwards, a: Array, given: Expr) -> Expr:
    """Products that reach an element: those before the first zero, for the first zero those up to
    the second."""
    is_zero, zeros, others = _without_zeros(walk, a)
    zero = const(0, given.dtype)
    before, between = (
        walk.from_the_end(a, select(compare("==", zeros, n), given * others, zero)) for n in (0, 1)
    )
    alone = select(compare("==", zeros, 1), between, zero)
    return select(is_zero, alone, before / _wide(a.body))


_FOLDS: dict[str, Callable[[_Backwards, Array, Expr], Expr]] = {
    "": lambda walk, a, given: given,
    "sum": lambda walk, a, given: given,
    "max": _extreme,
    "min": _extreme,
    "prod": _product,
    "scan sum": lambda walk, a, given: walk.from_the_end(a, given),
    "scan prod": _running_product,
}
