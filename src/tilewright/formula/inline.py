"""Formulas in normal form: folds, and what is pointwise written out inside them.

Dimensions of one element go, arrays that fold nothing are inlined unless they are deep, equal folds
become one, what nobody needs is dropped, and dimensions that are always used together become one.
Names that the user gave to what was inlined are kept beside.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.formula.laws import LAWS
from tilewright.formula.merge import merged
from tilewright.formula.views import plainer, ranges_of, split_views
from tilewright.ir.analysis.bounds import prove
from tilewright.ir.core import *
from tilewright.ir.formula import Array, Extent, Formula, extents, needed, tensor
from tilewright.ir.simplify import simplify

# operations inside each other, and written out: beyond, an array lies in memory, since texts and
# what walks them are as deep as expressions, and so many operations take longer than a number that
# is written and read. Random numbers of ten rounds are 71 deep.
DEEPEST, LARGEST = 96, 1 << 20


@dataclass(frozen=True)
class Normal:
    """A formula whose arrays are folds, outputs, and what is too deep to be written out. `inlined`
    are those that were, for their names; `shapes`: inputs and outputs as they look from outside;
    `laws` names those that changed something."""

    formula: Formula
    inlined: tuple[Array, ...]
    shapes: dict[str, tuple[Extent, ...]]
    laws: tuple[str, ...] = ()


def normalize(formula: Formula, without: Collection[str] = ()) -> Normal:
    """The normal form, `without` some of the laws, by name.

    >>> from tilewright.ir.formula import Axis, array
    >>> x, i = tensor("x", (4,), FLOAT32), Axis(Var("i"), 4)
    >>> y = array("y", (i,), Load(x, (i.var,)) * 2)
    >>> z = array("z", (i,), Load(y.buffer, (i.var,)) + 1)
    >>> print(normalize(Formula("f", (x,), (y, z), (z.buffer,))).formula)
    formula f(x: float32[4]) -> z
        z[i < 4]: float32 = x[i] * 2.0 + 1.0
    """
    shapes = {b.name: extents(b) for b in (*formula.inputs, *formula.outputs)}
    formula = squeezed(formula)
    known: dict[str, Array] = {}  # what is pointwise, inlined already
    folds: dict[tuple[object, ...], Buffer] = {}
    same: dict[str, Buffer] = {}
    arrays: list[Array] = []
    outputs = {b.name for b in formula.outputs}
    for a in formula.arrays:
        a = _inlined(a, known, same, formula.sizes)
        size, depth = written_size(a.body)
        is_deep = a.is_pointwise and (depth > DEEPEST or size > LARGEST)
        if a.is_pointwise and not is_deep:
            known[a.name] = a
        else:
            key = _definition(a)
            if key in folds and a.name not in outputs:
                same[a.name] = folds[key]
                continue
            folds.setdefault(key, a.buffer)
        if not a.is_pointwise or is_deep or a.name in outputs:
            arrays.append(a)
    kept = needed(arrays, formula.outputs)
    aside = [a for a in known.values() if a.name not in outputs]
    found = merged(split_views(replace(formula, arrays=(*kept, *aside))))
    used = []
    for law in LAWS:
        if law.__name__ not in without:
            before, found = found, law(found)
            used += [law.__name__] if found.arrays != before.arrays else []
    names = {a.name for a in aside}
    inlined = tuple(a for a in found.arrays if a.name in names)
    arrays = [a for a in found.arrays if a.name not in names]
    found = replace(found, arrays=needed(arrays, found.outputs))  # laws may leave some unread
    return Normal(found, inlined, shapes, tuple(used))


def squeezed(formula: Formula) -> Formula:
    """Without dimensions of one element: their index is zero."""

    def short(b: Buffer) -> Buffer:
        shape = tuple(n for n in extents(b) if n != 1)
        return b if len(shape) == b.rank else tensor(b.name, shape, b.dtype)

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        pairs = list(zip(node.indices, extents(node.buffer), strict=True))
        kept = tuple(i for i, n in pairs if n != 1)
        element: Expr = Load(short(node.buffer), kept, node.loc)
        for index, n in pairs:  # what lies outside is zero, of one element, too
            if n == 1 and not (isinstance(index, Const) and index.value == 0):
                inside = compare("==", index, 0)
                element = select(inside, element, const(0, element.dtype))
        return element

    def shortened(a: Array) -> Array:
        ones: dict[Var, Expr] = {x.var: const(0, INT32) for x in a.domain if x.extent == 1}
        arg = a.monoid.startswith("arg") and a.over[0].extent == 1
        body = transform(substitute(a.body, ones), rule)
        over = tuple(axis for axis in a.over if axis.extent != 1)
        monoid = a.monoid if over else ""
        if a.monoid and not over:
            body = body.children[a.by.part] if a.by is not None else body  # of one element, it
            body = const(0, a.buffer.dtype) if arg else cast(body, a.buffer.dtype)
        axes = tuple(axis for axis in a.axes if axis.extent != 1)
        return replace(a, buffer=short(a.buffer), axes=axes, body=body, over=over, monoid=monoid,
                       scan=a.scan and bool(over), by=a.by if over else None)  # fmt: skip

    return formula.relaid(short, shortened)


def _inlined(
    a: Array, known: dict[str, Array], same: dict[str, Buffer], sizes: tuple[Dim, ...]
) -> Array:
    ranges = ranges_of(a, sizes)

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        if node.buffer.name in same:
            return Load(same[node.buffer.name], node.indices, node.loc)
        inner = known.get(node.buffer.name)
        if inner is None:
            return None
        indices = tuple(simplify(i, ranges) for i in node.indices)
        element = cast(inner.at(indices), node.dtype)
        for index, extent in zip(indices, extents(node.buffer), strict=True):
            ends = compare(">=", index, 0), compare("<", index, extent)
            if not all(prove(end, ranges) for end in ends):  # zero outside
                inside = logical_and(*ends)
                element = select(inside, element, const(0, element.dtype))
        return element

    body = transform(transform(a.body, rule), _root)

    return replace(a, body=transform(body, lambda node: plainer(node, ranges)))


def _root(node: Expr) -> Expr | None:
    """Powers that have a name."""
    match node:
        case Call(name="pow", args=(a, Const(value=0.5))):
            return Call("sqrt", (a,), a.dtype)
        case Call(name="pow", args=(a, Const(value=-0.5))):
            return Call("rsqrt", (a,), a.dtype)
    return None


def _definition(a: Array) -> tuple[object, ...]:
    """Equal for folds that are the same but for the names of their axes."""
    axes = (*a.axes, *a.over)
    body = substitute(a.body, {axis.var: Var(f"#{n}") for n, axis in enumerate(axes)})
    ends = tuple(axis.extent for axis in axes)
    return (a.monoid, a.by, a.scan, len(a.axes), ends, a.buffer.dtype, body)
