"""Words on tile values: loads, constants, choices, reductions."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.lang import math, move
from tilewright.lang.alloc import alloc_var
from tilewright.lang.axes import ONE, Axis, shape_text
from tilewright.lang.builder import Builder, current, current_block
from tilewright.lang.check import check_dim
from tilewright.lang.handles import Tile, Tiles
from tilewright.lang.indexing import read
from tilewright.lang.pieces import blocks_of, exchanged, over, walk_of, walking
from tilewright.lang.types import shape_tuple, static_int
from tilewright.lang.values import (
    Places,
    Value,
    again,
    axis_of,
    is_tile,
    lift,
    value_of,
)
from tilewright.lang.where import locate
from tilewright.support.errors import word

_any, _all = builtins.any, builtins.all
inf = float("inf")


def elementwise(function: Callable[..., Any], keeps: bool = False) -> Callable[..., Any]:
    """A word of numbers that works on tiles too: narrow floats are computed as float32, unless the
    word `keeps` their type."""

    def compute_one(*args: Any, **kwargs: Any) -> Any:
        if not keeps:
            args = tuple(map(_wide, args))
        return function(*args, **kwargs)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _any(map(is_tile, args)):
            return lift(lambda *each: compute_one(*each, **kwargs), *args, what=f"T.{word()}")
        return function(*args, **kwargs)

    return wrapper


def _wide(x: Any) -> Any:
    narrow = isinstance(x, Expr) and x.dtype.is_float and x.dtype.bits < 32
    return cast(x, FLOAT32) if narrow else x


# ── making values ────────────────────────────────────────────────────────────────────────────────


def load(source: Any, *more: Any, fill: Any = 0, cache: str | None = None) -> Any:
    """The elements of a tensor at an index, read now; `fill` outside the tensor. `cache` is that of
    `T.copy`.

    >>> @tw.jit
    ... def shifted(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         Y[n] = T.load(X[n + 1], fill=-1)
    ...     return Y
    >>> shifted(np.arange(4, dtype=np.float32)).tolist()
    [1.0, 2.0, 3.0, -1.0]
    """
    if more:
        raise CompileError(
            "T.load reads one place",
            got=f"{1 + len(more)} arguments",
            fix="index the tensor: T.load(A[m, :]) is a tile, A[i] an element; what lies outside "
            "reads as fill=",
            code="arguments",
        )
    place: Any = None
    if isinstance(source, Tiles):
        place = source.tile, source.keys
    elif isinstance(source, Tile):
        place = source, [slice(None)] * source.ndim
    elif isinstance(source, Value):
        if source.box is None:
            return source
        place = source.box.tile, source.box.keys
    if place is None:
        return current("T.load").let(wrap(source))
    made = read(place[0], place[1], fill)
    if isinstance(made, Value):
        made.cache = move.cache_word(cache)
    return made


def full(shape: Any, value: Any, dtype: Any = "float32") -> Any:
    """A value of this shape, all of one number; of shape `()` a variable.

    >>> @tw.jit
    ... def sevens(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         Y[n] = T.full((n,), 7)
    ...     return Y
    >>> sevens(np.zeros(3, np.float32)).tolist()
    [7.0, 7.0, 7.0]
    """
    kind = find_dtype(dtype)
    dims = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not dims:
        return alloc_var(dtype, init=value)
    number = current_block().snapshot(cast(wrap(value, kind), kind))
    made = Value(tuple(map(axis_of, dims)), kind, lambda _: number)
    made.is_formula = False  # mostly where a sum starts
    return made


def zeros(shape: Any, dtype: Any = "float32") -> Any:
    """A value of this shape, all zero: where sums start.

    Example:
        Y[0, :] = T.zeros((64,)) - 1
        # Y[0]: -1 -1
    """
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = "float32") -> Any:
    """A value of this shape, all one.

    Example:
        Y[0, :] = T.ones((64,)) * 3
        # Y[0]: 3 3
    """
    return full(shape, 1, dtype)


def arange(n: Any, *more: Any) -> Value:
    """0, 1, … n - 1, as int32.

    Example:
        M[:] = T.arange(64) * 2
        # M: 0 2 4 6
    """
    if more:
        raise CompileError(
            "T.arange counts from 0",
            got=f"{1 + len(more)} arguments",
            fix="write T.arange(n) + start",
            code="arguments",
        )
    axis = axis_of(n)
    return Value((axis,), INT32, lambda places: axis.index(places[0]))


def where(cond: Any, a: Any, b: Any) -> Any:
    """a where cond, else b, element by element.

    Example:
        x = T.load(X[:, :])
        Y[:, :] = T.where(x > 1, x, 0)
        # Y[0]: 0 0 2 3
    """

    def choose(c: Any, x: Any, y: Any) -> Expr:
        kinds = [each.dtype for each in (x, y) if isinstance(each, Expr)]
        kind = functools.reduce(promote, kinds) if kinds else None
        if kind is not None and kind.is_int and _any(isinstance(e, float) for e in (x, y)):
            kind = FLOAT32
        return select(c, *(cast(wrap(e, kind), kind) if kind else wrap(e) for e in (x, y)))

    if not _any(map(is_tile, (cond, a, b))):
        return math.if_then_else(cond, a, b)
    return lift(choose, cond, a, b, what="T.where")


def maximum(a: Any, b: Any) -> Any:
    """The larger of two, element by element.

    Example:
        Y[:, :] = T.maximum(X[:, :], 2)
        # Y[0]: 2 2 2 3
    """
    return elementwise(math.max, keeps=True)(a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, element by element.

    Example:
        Y[:, :] = T.minimum(X[:, :], 2)
        # Y[0]: 0 1 2 2
    """
    return elementwise(math.min, keeps=True)(a, b)


# ── reductions ───────────────────────────────────────────────────────────────────────────────────


def dims_of(x: Value, dim: Any) -> list[int]:
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    what = f"a value of shape {shape_text(x.axes)}"
    return sorted({check_dim(static_int(d, f"dim of T.{word()}"), x.ndim, what) for d in given})


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
    return alloc_var(str(buffer.dtype), init=number)


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
    reduced = [x.axes[d] for d in dims if x.axes[d] is not ONE]
    rest = tuple(axis for axis in x.real if axis not in reduced)
    if _any(axis.is_long for axis in rest):
        buffer = _folded_pieces(builder, x, op, reduced, rest)
    else:
        long = _any(axis.is_long for axis in reduced)
        source = _accumulated(builder, x, op, reduced) if long else masked(x, op, reduced).hold()
        buffer = _fold(builder, source, x.real, op, reduced, x.kind)
    blocks = blocks_of(reduced)
    if blocks > 1:
        word_kind = _word(x.kind)
        fold = FOLDS[{"any": "max", "all": "min"}.get(op, op)]
        exchanged(builder, buffer, word_kind, blocks, fold, since)
    return buffer


def _inside(axes: Sequence[Axis], places: Places, counted: Sequence[Axis]) -> Expr:
    """Whether places on `axes` count along those that are `counted`."""
    found: Expr = TRUE
    for axis, place in zip(axes, places, strict=True):
        if axis in counted:
            found = logical_and(found, axis.inside(place))
    return found


def masked(x: Value, op: str, reduced: Sequence[Axis]) -> Value:
    """x, with what changes nothing in its padding."""
    ragged, unit = [axis for axis in reduced if axis.is_ragged], math.identity(op, x.kind)
    if ragged and x.is_named and not x.is_long:  # memory of its own
        x.fill_padding(ragged, unit)
    elif ragged:
        return _selected(x, reduced, unit)
    return x


def _selected(x: Value, counted: Sequence[Axis], unit: Expr) -> Value:
    return Value(
        x.axes,
        x.kind,
        lambda places: select(_inside(x.axes, places, counted), x.element(places), unit),
        (x,),
    )


def _word(kind: DType) -> DType:
    """A type of 32 bits or more that holds the same numbers."""
    return kind if kind.bits >= 32 else FLOAT32 if kind.is_float else INT32


def _fold(
    builder: Builder,
    buffer: Buffer,
    axes: Sequence[Axis],
    op: str,
    reduced: Sequence[Axis],
    kind: DType,
) -> Buffer:
    """The buffer, which has `axes`, folded along `reduced`."""
    axes = list(axes)
    for axis in reversed(reduced):
        where = next(k for k, each in enumerate(axes) if each is axis)
        sizes = [int(size) for size in buffer.shape]
        long = [k for k, size in enumerate(sizes) if size != 1]
        rest = [size for k, size in enumerate(sizes) if k != where]
        space = Space.FRAGMENT if rest else Space.SHARED
        shape = tuple(map(const, rest)) or (const(1),)
        dst = Buffer(builder.fresh(builder.hint, op), shape, kind, space)
        builder.emit(Alloc(dst))
        if sizes[where] == 1:
            builder.emit(Copy(whole(buffer), whole(dst)))
        else:
            builder.emit(Reduce(op, whole(buffer), whole(dst), long.index(where), masked=True))
        del axes[where]
        buffer = dst
    return buffer


def _accumulated(builder: Builder, x: Value, op: str, reduced: Sequence[Axis]) -> Buffer:
    """A tile of a piece's shape: each element is the fold of those at its place in the pieces."""
    shape = tuple(const(a.split.step if a.split and a.is_long else a.size) for a in x.real)
    kind = _word(x.kind) if x.kind.is_float else x.kind  # not rounded at every step
    total = Buffer(builder.fresh(builder.hint, f"{op}_pieces"), shape, kind, Space.FRAGMENT)
    builder.emit(Alloc(total))
    builder.emit(Fill(whole(total), math.identity(op, kind)))
    with walking(builder, x.axes):
        vars, places = over(builder, x.axes)
        value = FOLDS[op](Load(total, vars), cast(x.element(places), kind))
        body: Op = Store(total, vars, value, loc=locate())
        inside = _inside(x.axes, places, reduced)
        builder.emit(Map(vars, shape, (body if inside is TRUE else If(inside, (body,)),)))
    return total


def _folded_pieces(
    builder: Builder, x: Value, op: str, reduced: Sequence[Axis], rest: tuple[Axis, ...]
) -> Buffer:
    """x folded along `reduced`, where a long axis remains: in shared memory."""
    shape = tuple(const(axis.size) for axis in rest)
    found = Buffer(builder.fresh(builder.hint, op), shape, x.kind, Space.SHARED)
    builder.emit(Alloc(found))
    with walking(builder, rest):
        crossed = _any(axis.is_long for axis in reduced)
        source = (
            _accumulated(builder, x, op, reduced)
            if crossed
            else again(masked(x, op, reduced)).piece(builder)
        )
        part = _fold(builder, source, x.real, op, reduced, x.kind)
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
    if value.wide is None:
        value.wide = lift(lambda e: cast(e, FLOAT32 if narrow else INT32), value)
        value.wide.zeros = () if value.padding else value.zeros
    return value.wide


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


def mean(x: Any, *, dim: Any, keepdim: bool = False) -> Any:
    """The mean along one or several dimensions.

    Example:
        Y[0, :] = T.mean(X[:, :], dim=1)
        # Y[0]: 31.5 30.5 29.5
    """
    value = summed(x)
    dims = dims_of(value, dim)
    count = _count(value, dims)
    return _reduced(value, "sum", dims, keepdim) / count


def var(x: Any, *, dim: Any, keepdim: bool = False, correction: int = 0) -> Any:
    """The variance along one or several dimensions: divided by n, or n - 1 with correction=1.

    Example:
        Y[0, :] = T.var(X[:, :], dim=1)
        # Y[0]: 341.25 341.25
    """
    value = summed(x)
    dims = dims_of(value, dim)
    if not value.is_named:
        value.is_named = True  # it is read twice
    off = value - mean(value, dim=dim, keepdim=True)
    count = _count(value, dims) - correction if correction else _count(value, dims)
    return _reduced(off * off, "sum", dims, keepdim) / count


def _folding(name: str) -> Callable[..., Any]:
    elementwise_name = f"T.{name}imum(a, b)"

    def word(*values: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            if _any(map(is_tile, values)):
                raise CompileError(
                    f"T.{name} of tiles folds along a dimension",
                    expected=f"T.{name}(x, dim=1)",
                    fix=f"give dim=; the {name}imum of two tiles is {elementwise_name}",
                    code="arguments",
                )
            return getattr(math, name)(*values)
        value = value_of(values[0])
        return _reduced(value, name, dims_of(value, dim), keepdim)

    word.__name__ = word.__qualname__ = name
    return word


max, min = _folding("max"), _folding("min")
max.__doc__, min.__doc__ = math.max.__doc__, math.min.__doc__


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

    def word(x: Any, *, dim: int, keepdim: bool = False) -> Any:
        value = value_of(x)
        if not value.is_named:
            value.is_named = True  # it is read twice
        dims = dims_of(value, dim)
        axis = value.axes[dims[0]]
        top = _reduced(value, name, dims, True)
        last = const(axis.total or axis.size)
        at = [ONE] * value.ndim
        at[dims[0]] = axis
        places = Value(tuple(at), INT32, lambda p: axis.index(p[dims[0]]))

        def found(element: Any, best: Any, place: Any) -> Expr:
            hit = compare("==", element, best)
            if element.dtype.is_float:
                hit = binary("or", hit, compare("!=", element, element))
            return select(hit, place, last)

        return _reduced(lift(found, value, top, places), "min", dims, keepdim)

    return word


def argmax(x: Any, *, dim: int, keepdim: bool = False) -> Any:
    """The first place of the largest element along a dimension, as int32; NaN counts as largest.

    Example:
        M[:] = T.argmax(X[:, :], dim=1)
        # M: 63 63
    """
    return _first("max")(x, dim=dim, keepdim=keepdim)


def argmin(x: Any, *, dim: int, keepdim: bool = False) -> Any:
    """The first place of the smallest element along a dimension, as int32; NaN counts as smallest.

    Example:
        M[:] = T.argmin(X[:, :], dim=1)
        # M: 0 0
    """
    return _first("min")(x, dim=dim, keepdim=keepdim)


# ── functions that models use ────────────────────────────────────────────────────────────────────


def _activation(
    name: str, doc: str, shown: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """A word of one element; `shown` is what it makes of -1, 0, 1."""

    def word(x: Any, **options: Any) -> Any:
        return elementwise(function)(x, **options)

    word.__name__ = word.__qualname__ = name
    word.__doc__ = f"{doc}\n\nExample:\n    Y[:, :] = T.{name}(X[:, :] - 1)\n    # Y[0]: {shown}\n"
    return word


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


gelu = _activation(
    "gelu", 'x · Φ(x), by erf; by tanh with approximate="tanh".', "-0.1587 0 0.8413", _gelu
)
relu = _activation("relu", "max(x, 0).", "0 0 1", lambda x: math.max(x, 0.0))
silu = _activation("silu", "x · sigmoid(x).", "-0.2689 0 0.7311", lambda x: x * math.sigmoid(x))
softplus = _activation(
    "softplus", "log(1 + eˣ).", "0.3133 0.6931 1.3133",
    lambda x: math.max(x, 0.0) + math.log1p(math.exp(-math.abs(x))),
)  # fmt: skip
mish = _activation(
    "mish", "x · tanh(softplus(x)).", "-0.3034 0 0.8651",
    lambda x: x * math.tanh(math.max(x, 0.0) + math.log1p(math.exp(-math.abs(x)))),
)  # fmt: skip
hardsigmoid = _activation(
    "hardsigmoid", "x / 6 + 1 / 2, between 0 and 1.", "0.3333 0.5 0.6667",
    lambda x: math.clamp(x / 6.0 + 0.5, 0.0, 1.0),
)  # fmt: skip


# ── words that have another form ─────────────────────────────────────────────────────────────────


def reshape(src: Any, *shape: Any) -> Any:
    """The same elements under another shape, row-major.

    Example:
        x = T.reshape(T.load(X[:, :]), (32, 128))
        Y[0, :] = x[0, 64:128]
        # Y[0]: -1 0 1 2
    """
    if not isinstance(src, Value):
        return move.reshape(src, *shape)
    dims = shape_tuple(shape[0]) if len(shape) == 1 and not hasattr(shape[0], "axis") else shape
    axes = tuple(map(axis_of, dims))
    changed = [a for a in (*src.axes, *axes) if a not in src.axes or a not in axes]
    if changed:
        current().undivided.add(len(current().kernels))
    if _any(a.is_ragged and not a.total for a in changed):
        raise CompileError(
            "T.reshape of a tile whose end may be ragged",
            got=f"{shape_text(src.axes)} as {shape_text(axes)}",
            fix="reshape whole dimensions only, or pin a size that divides the range",
            code="shape",
        )

    def at(places: Places) -> Expr:
        linear: Expr = const(0)
        for axis, place in zip(axes, places, strict=True):
            linear = linear * (axis.total or axis.size) + place
        found: list[Expr] = []
        for axis in reversed(src.axes):
            found.insert(0, linear % (axis.total or axis.size))
            linear = linear // (axis.total or axis.size)
        return src.element(tuple(found))

    return Value(axes, src.kind, at, (src,))
