"""Reductions of tile values, of whole dimensions piece by piece and across clusters too."""

from __future__ import annotations

import builtins
import math as numbers
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.lang import math
from tilewright.lang.alloc import scalar_value
from tilewright.lang.check import check_dim
from tilewright.lang.types import named
from tilewright.lang.values import *

_any = builtins.any


def dims_of(x: Value, dim: Any) -> list[int]:
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    what = f"a value of shape {shape_text(x.axes)}"
    found = [check_dim(static_int(d, f"dim of T.{word()}"), x.ndim, what) for d in given]
    if len({*found}) < len(found):
        raise CompileError(
            f"T.{word()}: dim names a dimension twice",
            got=f"{dim!r} of {what}",
            fix="name each dimension once",
            code="arguments",
        )
    return sorted(found)


def _reduced(x: Value, op: str, dims: list[int], keepdim: bool) -> Any:
    """x folded along `dims`; padding does not take part."""
    builder = current_block()
    key = (op, *dims)
    known = x.folded.get(key)
    is_known = known is not None and builder.in_turn(known[1]) and not x.is_stale
    if known is None or not is_known or builder.writes(known[0]) != known[2]:
        buffer = _folded(x, op, dims)
        known = x.folded[key] = buffer, builder.position(), builder.writes(buffer)
        is_known = False
    made = as_result(x, dims, keepdim, known[0], op)
    # a loop may change what the first name has
    return again(made) if is_known and isinstance(made, Value) and made.real else made


def as_result(x: Value, dims: list[int], keepdim: bool, buffer: Buffer, op: str) -> Any:
    """What x was folded to along `dims`, as its user sees it."""
    builder = current_block()
    axes = tuple(
        ONE if k in dims else axis for k, axis in enumerate(x.axes) if keepdim or k not in dims
    )
    if _any(axis is not ONE for axis in axes):
        return Value.of(axes, buffer)
    number = builder.let(Load(buffer, (const(0),)), builder.hint or op)
    if axes:
        return Value(axes, buffer.dtype, lambda _: number)
    return scalar_value(str(buffer.dtype), number)


FOLDS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: _extreme("max", a, b),
    "min": lambda a, b: _extreme("min", a, b),
    "any": lambda a, b: binary("or", a, b),
    "all": lambda a, b: binary("and", a, b),
}


def _extreme(op: str, a: Expr, b: Expr) -> Expr:
    """As reductions have it: NaN stays."""
    return Call(f"{op}_nan", (a, b), a.dtype) if a.dtype.is_float else binary(op, a, b)


def _folded(x: Value, op: str, dims: list[int]) -> Buffer:
    builder = current_block()
    scanned = x.scans.get((op, dims[0])) if len(dims) == 1 else None
    if scanned is not None and scanned.is_open:  # which knows the totals of lines
        return scanned.totals()[0]  # type: ignore[no-any-return]
    since = builder.outermost()
    # places, not axes: two dimensions of one size have one axis
    real = [k for k, axis in enumerate(x.axes) if axis is not ONE]
    at = [place for place, k in enumerate(real) if k in dims]
    reduced = [x.real[place] for place in at]
    rest = tuple(axis for place, axis in enumerate(x.real) if place not in at)
    if _any(axis.is_long for axis in rest):
        buffer = _folded_pieces(builder, x, op, at)
    else:
        long = _any(axis.is_long for axis in reduced)
        source = _accumulated(builder, x, op, reduced) if long else masked(x, op, reduced).hold()
        buffer = _fold(builder, source, op, at, x.kind)
    blocks = blocks_of(reduced)
    if blocks > 1:
        word_kind = _word(x.kind)
        fold = FOLDS[{"any": "max", "all": "min"}.get(op, op)]
        exchanged(builder, buffer, word_kind, blocks, fold, since)
    return buffer


def masked(x: Value, op: str, reduced: Sequence[Axis]) -> Value:
    """x, with what changes nothing in its padding. A loop leaves that of values from before it, so
    that all of its turns find the same."""
    ragged, unit = [axis for axis in reduced if axis.is_ragged], identity(op, x.kind)
    if not ragged or x.has_padding(ragged, unit):
        return x
    if not x.is_named or x.is_long or not current().in_turn(x.position):
        return _selected(x, reduced, unit)
    x.fill_padding(ragged, unit)  # it has memory of its own
    return x


def _region(x: Any, op: str) -> Region:
    """A value as a tile that other words read; where they fold it by `op`, without padding."""
    current().uncut.add(current().number)
    value = value_of(x)
    return whole((masked(value, op, value.axes) if op else value).hold())


WORDS["region"] = _region


def _selected(x: Value, counted: Sequence[Axis], unit: Expr) -> Value:
    return Value(
        x.axes,
        x.kind,
        lambda places: select(inside(x.axes, places, counted), x.element(places), unit),
        (x,),
    )


def _word(kind: DType) -> DType:
    """A type of 32 bits or more that holds the same numbers."""
    return kind if kind.bits >= 32 else FLOAT32 if kind.is_float else INT32


def _fold(builder: Builder, buffer: Buffer, op: str, at: Sequence[int], kind: DType) -> Buffer:
    """The buffer, folded along its dimensions `at`, which are in order."""
    for where in reversed(at):
        sizes = [int(size) for size in buffer.shape]
        long = [k for k, size in enumerate(sizes) if size != 1]
        rest = [size for k, size in enumerate(sizes) if k != where]
        space = Space.FRAGMENT if rest else Space.SHARED
        shape = tuple(map(const, rest)) or (const(1),)
        dst = builder.tile(builder.hint, op, shape, kind, space)
        if sizes[where] == 1:
            builder.emit(Copy(whole(buffer), whole(dst)))
        else:
            builder.emit(Reduce(op, whole(buffer), whole(dst), long.index(where), masked=True))
        buffer = dst
    return buffer


def _accumulated(builder: Builder, x: Value, op: str, reduced: Sequence[Axis]) -> Buffer:
    """A tile of a piece's shape: each element is the fold of those at its place in the pieces."""
    shape = tuple(const(a.split.step if a.split and a.is_long else a.size) for a in x.real)
    rounds = x.kind.is_float and op not in ("max", "min")
    kind = _word(x.kind) if rounds else x.kind  # not rounded at every step
    total = builder.tile(builder.hint, f"{op}_pieces", shape, kind)
    builder.emit(Fill(whole(total), identity(op, kind)))
    with walking(builder, x.axes, x.goes_backward):
        vars, places = over(builder, x.axes)
        value = FOLDS[op](Load(total, vars), cast(x.element(places), kind))
        body: Op = Store(total, vars, value, loc=locate())
        counts = inside(x.axes, places, reduced)
        builder.emit(Map(vars, shape, (body if counts is TRUE else If(counts, (body,)),)))
    return total


def _folded_pieces(builder: Builder, x: Value, op: str, at: Sequence[int]) -> Buffer:
    """x folded along the dimensions `at`, where a long axis remains: in shared memory."""
    reduced = [x.real[place] for place in at]
    rest = tuple(axis for place, axis in enumerate(x.real) if place not in at)
    shape = tuple(const(axis.size) for axis in rest)
    found = builder.tile(builder.hint, op, shape, x.kind, Space.SHARED)
    with walking(builder, rest, x.goes_backward):
        crossed = _any(axis.is_long for axis in reduced)
        source = (
            _accumulated(builder, x, op, reduced)
            if crossed
            else again(masked(x, op, reduced)).piece(builder)
        )
        part = _fold(builder, source, op, at, x.kind)
        walks = [walk_of(builder, axis) for axis in rest]
        starts = tuple(const(0) if walk is None else walk.base for walk in walks)
        builder.emit(Copy(whole(part), Region(found, starts, part.shape)))
    return found


def summed(x: Any) -> Value:
    """x in the type that sums have."""
    value = value_of(x)
    narrow = value.kind.is_float and value.kind.bits < 32
    small = value.kind.is_bool or (value.kind.is_int and value.kind.bits < 32)
    if not narrow and not small:
        return value
    wide = value.wide
    if wide is None or not current().in_scope(wide.position) or not value.is_current(wide.position):
        wide = value.wide = lift(lambda e: cast(e, FLOAT32 if narrow else INT32), value)
        wide.zeros = () if value.padding else value.zeros
    return wide


def sum(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """The sum along one or several dimensions.

    >>> @tw.jit
    ... def rows(X):
    ...     M, N = T.const("M, N")
    ...     X: T.Tensor((M, N), "float32")
    ...     Y = T.empty((M,), "float32")
    ...     for m in T.tile(M):
    ...         Y[m] = T.sum(X[m, :], dim=1)
    ...     return Y
    >>> rows(np.ones((3, 5), np.float32)).tolist()
    [5.0, 5.0, 5.0]
    """
    value = summed(x)
    return _reduced(value, "sum", dims_of(value, dim), keepdim)


def prod(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """The product along one or several dimensions.

    Example:
        Y[0, :] = T.prod(T.where(X[:, :] > 60, X[:, :], 1), dim=1)
        # Y[0]: 238266 3782 61
    """
    value = summed(x)
    return _reduced(value, "prod", dims_of(value, dim), keepdim)


def _count(value: Value, dims: list[int]) -> Expr:
    """How many elements are folded into one."""
    total: Expr = const(1)
    for dim in dims:
        total = total * value.axes[dim].count
    return cast(total, FLOAT32)


def _averaged(x: Any) -> Value:
    """x in the type that means have: sums of integers would wrap."""
    value = value_of(x)
    if value.kind.is_int:
        value = lift(lambda e: cast(e, FLOAT32), value)
    return summed(value)


def mean(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """The mean along one or several dimensions.

    Example:
        Y[0, :] = T.mean(X[:, :], dim=1)
        # Y[0]: 31.5 30.5 29.5
    """
    value = _averaged(x)
    dims = dims_of(value, dim)
    count = _count(value, dims)
    return _reduced(value, "sum", dims, keepdim) / count


def var(x: Any, *, dim: Any, keepdim: bool = False, correction: int = 0) -> Any:
    """The variance along one or several dimensions: divided by n, or n - 1 with correction=1.

    Example:
        Y[0, :] = T.var(X[:, :], dim=1)
        # Y[0]: 341.25 341.25
    """
    value = _averaged(x)
    dims = dims_of(value, dim)
    if not value.is_named:
        value.is_named = True  # it is read twice
    off = value - mean(value, dim=dim, keepdim=True)
    count = _count(value, dims) - correction if correction else _count(value, dims)
    return _reduced(off * off, "sum", dims, keepdim) / count


def _folding(name: str) -> Callable[..., Any]:
    @named(name, getattr(math, name).__doc__)
    def word(*values: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            if _any(map(is_tile, values)):
                raise CompileError(
                    f"T.{name} of tiles folds along a dimension",
                    expected=f"T.{name}(x, dim=1)",
                    fix=f"give dim=; the {name}imum of two tiles is T.{name}imum(a, b)",
                    code="arguments",
                )
            return getattr(math, name)(*values)
        value = value_of(values[0])
        return _reduced(value, name, dims_of(value, dim), keepdim)

    return word


max, min = _folding("max"), _folding("min")


def _tested(x: Any) -> Any:
    return lift(truth, value_of(x))


def any(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """Whether any element along one or several dimensions is true.

    Example:
        M[:] = T.any(X[:, :] > 62, dim=1)
        # M: 1 0 0
    """
    value = _tested(x)
    return _reduced(value, "any", dims_of(value, dim), keepdim)


def all(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """Whether all elements along one or several dimensions are true.

    Example:
        M[:] = T.all(X[:, :] >= 0, dim=1)
        # M: 1 0 0
    """
    value = _tested(x)
    return _reduced(value, "all", dims_of(value, dim), keepdim)


def _first(name: str) -> Callable[..., Any]:
    """argmax and argmin: the first place of the extreme; a NaN wins."""

    def word(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
        value = value_of(x)
        dims = dims_of(value, dim)
        axis = value.axes[dims[0]]
        alone = len(dims) == 1 and not _any(a.is_long for a in value.real if a is not axis)
        if axis.is_long and alone and not value.goes_backward:
            buffer = _first_of_pieces(current_block(), value, name, axis)
            return as_result(value, dims, keepdim, buffer, f"arg{name}")
        if not value.is_named:
            value.is_named = True  # it is read twice
        top = _reduced(value, name, dims, True)
        last = const(numbers.prod(a.total or a.size for a in _along(value, dims)))
        at = tuple(a if k in dims else ONE for k, a in enumerate(value.axes))
        places = Value(at, INT32, lambda p: _place(value, dims, p))

        def found(element: Any, best: Any, place: Any) -> Expr:
            hit = compare("==", element, best)
            if element.dtype.is_float:
                hit = binary("or", hit, compare("!=", element, element))
            return select(hit, place, last)

        return _reduced(lift(found, value, top, places), "min", dims, keepdim)

    return word


def _along(value: Value, dims: Sequence[int]) -> list[Axis]:
    return [value.axes[k] for k in dims]


def _place(value: Value, dims: Sequence[int], places: Places) -> Expr:
    """Which element along several dimensions that is, row by row."""
    axes = _along(value, dims)
    found = axes[0].index(places[dims[0]])
    for k, axis in zip(dims[1:], axes[1:], strict=True):
        found = found * axis.count + axis.index(places[k])
    return found


def _first_of_pieces(builder: Builder, x: Value, op: str, axis: Axis) -> Buffer:
    """The first place of the extreme along a long axis: each element of two tiles of a piece's
    shape has the best of those at its place in the pieces, and in which piece that was."""
    since, kind = builder.outermost(), _word(x.kind)
    shape = tuple(const(a.split.step if a.split and a is axis else a.size) for a in x.real)
    nowhere = const(-1)
    made = []
    for what, of, start in (
        ("best", kind, identity(op, kind)),
        ("pieces", INT32, nowhere),
    ):
        made.append(builder.tile(builder.hint, f"{op}_{what}", shape, of))
        builder.emit(Fill(whole(made[-1]), start))
    best, pieces = made
    with walking(builder, x.axes):
        walk = walk_of(builder, axis)
        assert walk is not None
        vars, places = over(builder, x.axes)
        known, counts = Load(best, vars), inside(x.axes, places, [axis])
        new = FOLDS[op](cast(x.element(places), kind), known)
        hit = compare("!=", new, known)
        if kind.is_float:
            hit = logical_and(hit, compare("==", known, known))  # the first NaN stays
        body: Body = (
            Store(pieces, vars, select(hit, walk.step, Load(pieces, vars)), loc=locate()),
            Store(best, vars, new, loc=locate()),
        )
        builder.emit(Map(vars, shape, body if counts is TRUE else (If(counts, body),)))
    dims = [k for k, each in enumerate(x.real) if each is axis]
    top = _fold(builder, best, op, dims, kind)
    blocks = blocks_of([axis])
    if blocks > 1:
        exchanged(builder, top, kind, blocks, FOLDS[op], since)
    vars = tuple(builder.var("i") for _ in shape)
    at = next(v for v, a in zip(vars, x.real, strict=True) if a is axis)
    rest = tuple(v for v in vars if v is not at) or (const(0),)
    known, piece = Load(best, vars), Load(pieces, vars)
    hit = compare("==", known, Load(top, rest))
    if kind.is_float:
        hit = binary("or", hit, compare("!=", known, known))
    # nowhere, where nothing was better than the neutral element: all are it
    hit = logical_and(compare("!=", piece, nowhere), hit)
    place, last = axis.index(piece * walk.width + at), const(axis.total)
    builder.emit(Map(vars, shape, (Store(pieces, vars, select(hit, place, last)),)))
    first = _fold(builder, pieces, "min", dims, INT32)
    if blocks > 1:
        exchanged(builder, first, INT32, blocks, FOLDS["min"], since)
    vars = tuple(builder.var("i") for _ in first.shape)
    own = Load(first, vars)
    found = Store(first, vars, select(compare("==", own, last), const(0), own))
    builder.emit(Map(vars, first.shape, (found,)))
    return first


def argmax(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """The first place of the largest element along a dimension, as int32; NaN counts as largest.
    Along several dimensions places count row by row.

    Example:
        M[:] = T.argmax(X[:, :], dim=1)
        # M: 63 63
    """
    return _first("max")(x, dim=dim, keepdim=keepdim)


def argmin(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """The first place of the smallest element along a dimension, as int32; NaN counts as smallest.
    Along several dimensions places count row by row.

    Example:
        M[:] = T.argmin(X[:, :], dim=1)
        # M: 0 0
    """
    return _first("min")(x, dim=dim, keepdim=keepdim)
