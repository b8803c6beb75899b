"""A formula of tile values: what a kernel gets that calls a function of `@tw.math`.

The function is traced with arrays that have the dimensions of the tiles, and each array of its
formula becomes a tile value. A dimension has a size of its own, known by where it comes from, so
that what does not match as tile values does not broadcast here either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from inspect import Signature
from typing import Any, NoReturn

from tilewright.formula.arguments import Call as Arguments
from tilewright.formula.arguments import Leaf, apart, together
from tilewright.formula.matrices import Product, product_of
from tilewright.ir.core import *
from tilewright.ir.dtype import promote
from tilewright.ir.formula import Array, Axis, Extent, Formula, Monoid
from tilewright.lang import axes as tile_axes
from tilewright.lang import reductions, scans
from tilewright.lang.axes import ONE, extent_axis
from tilewright.lang.builder import in_kernel
from tilewright.lang.scalar import Scalar
from tilewright.lang.values import Value, is_tile, lift, value_of
from tilewright.support.errors import CompileError


def has_tiles(arguments: Sequence[Any]) -> bool:
    """Whether a kernel is being traced, and calls with its tiles."""
    found: dict[str, Any] = {}
    if in_kernel():
        apart(list(arguments), "x", found, is_leaf=is_tile)
    return bool(found)


def of_tiles(
    traced: Callable[..., tuple[Formula, Any]], signature: Signature, arguments: dict[str, Any]
) -> Any:
    """What a function gives for tile values, with scalars and constants beside them; `traced` gives
    its formula for inputs, a call, and sizes."""
    given: dict[str, Any] = {}
    is_given = lambda x: is_tile(x) or isinstance(x, (Expr, Scalar))  # noqa: E731
    trees = {n: apart(a, n, given, is_leaf=is_given) for n, a in arguments.items()}
    tiles = _Tiles({n: value_of(x) for n, x in given.items()})
    kinds = [(n, tuple(map(tiles.extent, x.axes)), x.kind) for n, x in tiles.values.items()]
    call = Arguments(signature, trees)
    formula, tree = traced(kinds, call, tuple(tiles.sizes))
    for a in formula.arrays:
        tiles.values[a.name] = tiles.value(a)
    leaves: dict[str, Leaf] = {}
    apart(tree, "", leaves, is_leaf=lambda x: isinstance(x, Leaf))
    results = [tiles.values[b.name] for b in formula.outputs]
    names = [leaf.name for leaf in leaves.values()]
    return together(tree, dict(zip(names, results, strict=True)))


class _Tiles:
    """The value of each array, by name."""

    def __init__(self, given: dict[str, Value]) -> None:
        self.values: dict[str, Value] = dict(given)
        self.given = frozenset(given)
        self.axes: dict[Var, tile_axes.Axis] = {}
        self.sizes: list[Dim] = []

    def extent(self, axis: tile_axes.Axis) -> Extent:
        known = [var for var, x in self.axes.items() if x.key == axis.key]
        if axis is ONE or known:
            return known[0] if known else 1
        name = axis.name if axis.name.isidentifier() else f"n{axis.name}"
        taken = {var.name for var in self.axes}
        var = Var(next(n for n in (name, *(f"{name}{k}" for k in range(99))) if n not in taken))
        whole = axis.said or axis.total
        self.axes[var] = axis
        self.sizes.append(Dim(var, whole or 1, whole or axis.size))
        return var

    def axis(self, a: Array, axis: Axis) -> tile_axes.Axis:
        if isinstance(axis.extent, int):
            return extent_axis(axis.extent)
        if axis.extent not in self.axes:
            _refuse(a, f"has {axis.extent} elements along a dimension, as no tile has")
        return self.axes[axis.extent]  # type: ignore[index]

    def value(self, a: Array) -> Value:
        product = product_of(a)
        if product is not None and not product.batch:
            sides = product.rows, product.columns, product.depth
            if all(len(side) == 1 for side in sides):
                return self._product(a, product)
        axes = a.axes if a.scan else (*a.axes, *a.over)
        kind = a.buffer.dtype if a.is_pointwise else None
        bodies = [self._body(a, body, axes, kind) for body in a.bodies]
        dims = [axes.index(axis) for axis in a.over]
        if a.is_pointwise:
            return bodies[0]
        if a.by is not None:
            if len(dims) > 1:
                _refuse(a, "folds several dimensions by a function", "fold one after the other")
            word = scans.scan if a.scan else scans.reduce
            found = word(tuple(bodies), _combine(a.by), dim=dims[0])[a.by.part]
        elif a.scan:
            found = scans.scan(bodies[0], a.monoid, dim=dims[0])
        else:
            found = getattr(reductions, a.monoid)(bodies[0], dim=dims)
        return value_of(found)

    def _body(self, a: Array, body: Expr, axes: Sequence[Axis], kind: DType | None = None) -> Value:
        """An expression over `axes`, as a value that has all of them."""
        inner = body.a if isinstance(body, Cast) and kind == body.a.dtype else body
        places = [axis.var for axis in axes]
        reading, plain = [*dict.fromkeys(loads(inner))], _plain(inner)
        used = [var for var in places if var in plain]
        full = tuple(self.axis(a, axis) for axis in axes)
        parts = [self._read(a, read, places) for read in reading]
        parts += [self._index(a, full, places.index(var)) for var in used]
        if inner in reading and parts[0].axes == full and kind in (None, inner.dtype):
            return parts[0]
        counts: dict[Expr, Expr] = {var: axis.count for var, axis in self.axes.items()}
        names = [*reading, *used]

        def element(*found: Expr) -> Expr:
            own = (cast(x, n.dtype) for n, x in zip(names, found, strict=False))
            new = counts | dict(zip(names, own, strict=False))
            return cast(_put(inner, new), kind or inner.dtype)

        found: Value = lift(element, *(parts or [value_of(0)]))
        if [x.key for x in found.axes] == [x.key for x in full]:
            return found
        own = (ONE,) * (len(full) - len(found.axes)) + found.axes

        def stretched(p: tuple[Expr, ...]) -> Expr:
            at = tuple(const(0) if x is ONE else i for x, i in zip(own, p, strict=True))
            part: Expr = found.element(at[len(own) - len(found.axes) :])
            return part

        return Value(full, found.kind, stretched, (found,))

    def _read(self, a: Array, read: Load, places: list[Var]) -> Value:
        """An array with a dimension for each of `places`, of 1 where it has none."""
        value = self.values[read.buffer.name]
        at = dict(zip(read.indices, value.axes, strict=True))
        own = {i: x for i, x in at.items() if x is not ONE}
        real: list[Expr] = [
            i for i, x in zip(read.indices, value.axes, strict=True) if x is not ONE
        ]
        if len(own) < len(real) or not own.keys() <= {*places}:
            _refuse(a, f"reads {read}", "take parts of tiles in the kernel: x[:, 0:4]")
        order: list[Expr] = [place for place in places if place in own]
        if len(real) == len(value.axes) == 2 and real != order:
            value, real = value.T, order
        axes = tuple(own.get(place, ONE) for place in places)
        if axes == value.axes:
            return value
        mine: list[Expr | None] = [*real]
        if value.base is None:
            pairs = zip(read.indices, value.axes, strict=True)
            mine = [None if x is ONE else i for i, x in pairs]

        def element(p: tuple[Expr, ...]) -> Expr:
            now: dict[Expr | None, Expr] = dict(zip(places, p, strict=True))
            return value.element(tuple(const(0) if i is None else now[i] for i in mine))

        return Value(axes, value.kind, element, (value,))

    def _index(self, a: Array, full: Sequence[tile_axes.Axis], at: int) -> Value:
        axis = full[at]
        if axis.said == axis.total == 0:
            _refuse(a, f"uses indices along {axis.name}, of which a tile has a part",
                    f"pass {axis.name}.index")  # fmt: skip
        ones = (ONE,) * (len(full) - at - 1)
        return Value((axis, *ones), INT32, lambda p: axis.index(p[0]))

    def _product(self, a: Array, p: Product) -> Value:
        """A product of matrices, in the type in which arguments are stored."""
        axes = {axis.var: axis for axis in (*a.axes, *a.over)}
        row, column, depth = (axes[side[0]] for side in (p.rows, p.columns, p.depth))
        kinds = [k for k in (self._stored(p.left), self._stored(p.right)) if k is not None]
        kind = reduce(promote, kinds) if kinds else p.left.dtype
        left = self._body(a, p.left, (row, depth), kind)
        right = self._body(a, p.right, (depth, column), kind)
        found: Value = left @ right  # type: ignore[operator]
        if p.scale is not None:
            scale = self._body(a, p.scale, (row, column))
            found = lift(lambda x, y: x * y, found, scale)
        return found

    def _stored(self, expr: Expr) -> DType | None:
        inner = expr.a if isinstance(expr, Cast) else expr
        given = isinstance(inner, Load) and inner.buffer.name in self.given
        return inner.dtype if given else None


def _plain(expr: Expr) -> set[Var]:
    """The variables that are used as numbers, not as indices."""
    outside = walk_outside(expr, lambda n: isinstance(n, Load))
    return {n for n in outside if isinstance(n, Var)}


def _put(expr: Expr, new: dict[Expr, Expr]) -> Expr:
    """`expr` with others in the place of some, outermost first."""
    if expr not in new:
        new[expr] = map_children(expr, lambda child: _put(child, new))
    return new[expr]


def _combine(by: Monoid) -> Any:
    """The function of two tuples, of tiles or of numbers."""

    def combine(x: Sequence[Any], y: Sequence[Any]) -> tuple[Any, ...]:
        def part(result: Expr) -> Any:
            def number(*each: Expr) -> Expr:
                return substitute(result, dict(zip(by.combine.vars, each, strict=True)))

            return lift(number, *x, *y) if any(map(is_tile, (*x, *y))) else number(*x, *y)

        return tuple(map(part, by.combine.result))

    return combine


def _refuse(a: Array, what: str, fix: str = "leave it to the kernel") -> NoReturn:
    raise CompileError(
        f"{a.name} {what}, which no tile value of a kernel does", loc=a.loc, fix=fix, code="tiles"
    )
