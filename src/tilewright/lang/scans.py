"""Scans of tile values, and reductions by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from tilewright.lang import compute
from tilewright.lang.builder import Position
from tilewright.lang.reductions import FOLDS, as_result, dims_of, masked, summed
from tilewright.lang.sizes import MOST_SCANNED
from tilewright.lang.values import *

NAMED = ("sum", "prod", "max", "min")


@dataclass
class Scanned:
    """A scan that was emitted at a position. Its totals are kept once somebody asks for them."""

    op: Scan
    position: Position
    rest: tuple[Axis, ...]  # the axes that lines do not run along
    values: tuple[ref[Value], ...]

    @property
    def is_open(self) -> bool:
        return current_block().in_turn(self.position)

    def is_of(self, values: Sequence[Value]) -> bool:
        """Whether its totals are those of `values`."""
        found = [each() for each in self.values]
        return self.is_open and [*map(id, found)] == [*map(id, values)]

    def totals(self) -> list[Buffer]:
        """The folds of whole lines."""
        if not self.op.totals:
            builder = current_block()
            space = Space.FRAGMENT if self.rest else Space.SHARED
            shape = tuple(const(axis.size) for axis in self.rest) or (const(1),)
            found = []
            for source in self.op.sources:
                name = builder.fresh(builder.hint, "total")
                found.append(whole(Buffer(name, shape, source.dtype, space)))
                builder.emit_at(self.position, Alloc(found[-1].buffer, loc=self.op.loc))
            self.op = rebuild(self.op, totals=tuple(found))
            builder.replace_at(self.position, self.op)
        return [region.buffer for region in self.op.totals]


def cumsum(src: Any, dst: Any = None, dim: int | None = None, reverse: bool = False) -> Any:
    """Inclusive prefix sum along `dim`, from the end with `reverse`. Of a tile of memory in place,
    or into `dst`, and along its first dimension without `dim`.

    Example:
        x = T.alloc_fragment((64,), "int32")
        T.copy(N, x)
        T.cumsum(x)
        T.copy(x, M)
        # M: 0 1 3 6 10
    """
    if not isinstance(src, (Value, Tiles)) or not (dst is None or isinstance(dst, int)):
        return compute.scan("sum", src, dst, dim or 0, reverse)
    if dst is not None or dim is None:
        raise CompileError(
            "T.cumsum of a value needs a dimension",
            got=f"{dst} in place of dst" if dst is not None else "no dim",
            fix=f"name it: T.cumsum(x, dim={dst or 0})",
            code="arguments",
        )
    return scan(src, "sum", dim=dim, reverse=reverse)


def cummax(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False) -> None:
    """Inclusive prefix maximum of a tile of memory along `dim`, from the end with `reverse`; in
    place without `dst`. Of a value it is `T.scan(x, "max", dim=1)`.

    Example:
        x = T.alloc_fragment((64,), "int32")
        for i in T.Parallel(64):
            x[i] = N[i] % 3
        T.cummax(x)
        T.copy(x, M)
        # M: 0 1 2 2 2
    """
    if isinstance(src, Value) and dst is None:
        raise CompileError(
            "T.cummax scans memory in place, and this is a value",
            got=repr(src),
            fix=f'T.scan(x, "max", dim={dim})',
            code="arguments",
        )
    compute.scan("max", src, dst, dim, reverse)


def cumprod(x: Any, *, dim: int, reverse: bool = False) -> Value:
    """The inclusive products along a dimension; from the end with `reverse`.

    Example:
        Y[:, :] = T.cumprod(X[:, :] / 2 + 1, dim=1)
        # Y[0]: 1 1.5 3 7.5
    """
    return scan(x, "prod", dim=dim, reverse=reverse)  # type: ignore[no-any-return]


def scan(x: Any, op: Any, *, dim: int, reverse: bool = False) -> Any:
    """The inclusive scan along a dimension, from the end with `reverse`.

    `op` is "sum", "prod", "max", "min", or an associative function of two elements. A tuple of
    values is scanned by a function of two tuples.

    >>> @tw.jit
    ... def recurrence(A, B):
    ...     M, N = T.const("M, N")
    ...     A: T.Tensor((M, N), "float32")
    ...     B: T.Tensor((M, N), "float32")
    ...     H = T.empty((M, N), "float32")
    ...     for m in T.tile(M):
    ...         then = lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1])
    ...         _, H[m, :] = T.scan((A[m, :], B[m, :]), then, dim=1)
    ...     return H
    >>> a, b = np.full((1, 4), 0.5, np.float32), np.ones((1, 4), np.float32)
    >>> recurrence(a, b).tolist()  # h = 0.5 * h + 1
    [[1.0, 1.5, 1.75, 1.875]]
    """
    values = _scanned_values(x, op)
    (at,) = _one_dim(values[0], dim)
    axis = values[0].axes[at]
    if axis is ONE or axis.size == 1:
        return tuple(values) if isinstance(x, (tuple, list)) else values[0]
    is_tuple, made = isinstance(x, (tuple, list)), list[Value]()
    if axis.is_long:
        pieces = Pieces(values, op, at, bool(reverse), is_tuple, total=False)
        made += [LongScan(pieces, k) for k in range(len(values))]
    else:
        done = _emitted(values, op, at, bool(reverse), is_tuple)
        pairs = zip(values, done.op.results, strict=False)
        made += [Value.of(value.axes, region.buffer) for value, region in pairs]
    return tuple(made) if is_tuple else made[0]


def reduce(src: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The fold along a dimension by `op`, an associative function of two elements; of a tuple of
    values by a function of two tuples.

    `T.reduce(src, dst, kind, dim=-1, clear=True, nan_propagate=True)` is the form on tiles: dst =
    `kind` over dimension `dim` of src, or folded into dst when not `clear`. `kind` is sum, max,
    min, abssum, absmax, bitand, bitor, bitxor, any or all. `nan_propagate=False` skips NaN in max,
    min and absmax; where all elements are NaN, the result is the neutral one: -∞, ∞ or 0.

    Example:
        Y[0, :] = T.reduce(X[:, :], lambda a, b: T.maximum(a, b), dim=1)
        # Y[0]: 63 62 61
    """
    if callable(op):
        return _reduce_by(src, op, *args, **kwargs)
    if isinstance(op, str):
        raise CompileError(
            "T.reduce of a value takes a function",
            got=f'"{op}"',
            fix=f"T.{op}(x, dim=1) has a name of its own; others: lambda a, b: …",
            code="arguments",
        )
    return compute.reduce(src, op, *args, **kwargs)


def _reduce_by(x: Any, op: Any, *, dim: int, keepdim: bool = False) -> Any:
    values = _scanned_values(x, op)
    dims = _one_dim(values[0], dim)
    axis = values[0].axes[dims[0]]
    if axis is ONE or axis.size == 1:

        def first(value: Value) -> Any:
            if keepdim:
                kept = tuple(ONE if a is axis else a for a in value.axes)
                return Value(kept, value.kind, value.element, (value,))
            return value[tuple(0 if d == dims[0] else slice(None) for d in range(value.ndim))]

        made = [first(value) for value in values]
    else:
        pairs = zip(
            values, _totals(values, op, dims[0], isinstance(x, (tuple, list))), strict=False
        )
        made = [as_result(value, dims, keepdim, buffer, "fold") for value, buffer in pairs]
    return tuple(made) if isinstance(x, (tuple, list)) else made[0]


def _totals(values: list[Value], op: Any, at: int, is_tuple: bool) -> list[Buffer]:
    """The folds of whole lines."""
    if values[0].axes[at].is_long:
        return Pieces(values, op, at, False, is_tuple, total=True).totals(current_block())
    done = values[0].scans.get((op, at))
    if done is None or done.op.reverse or not done.is_of(values):
        done = _emitted(values, op, at, False, is_tuple, total=True)
    return done.totals()


def _scanned_values(x: Any, op: Any) -> list[Value]:
    """What is scanned, in the types in which it is."""
    is_tuple = isinstance(x, (tuple, list))
    if not callable(op) and (is_tuple or op not in NAMED):
        raise CompileError(
            f"T.{word()}: unknown operator" if not is_tuple else f"T.{word()} of a tuple",
            expected="a function of two tuples" if is_tuple else "a function of two elements, or "
            + ", ".join(f'"{name}"' for name in NAMED),
            got=repr(op),
            fix="write it: lambda a, b: a + b, with a[0], a[1], … for tuples",
            code="arguments",
        )  # fmt: skip
    values = [value_of(v) if op in ("max", "min") else summed(v) for v in (x if is_tuple else [x])]
    keys = [[axis.key for axis in value.axes] for value in values]
    if any(key != keys[0] for key in keys):
        raise CompileError(
            f"T.{word()}: the values have different shapes",
            got=" and ".join(shape_text(value.axes) for value in values),
            fix="bring them to one shape, e.g. by adding T.zeros of it",
            code="shape",
        )
    return values


def _one_dim(value: Value, dim: Any) -> list[int]:
    dims = dims_of(value, dim)
    if len(dims) != 1:
        raise CompileError(
            f"T.{word()} goes along one dimension",
            got=f"dim={dim}",
            fix="take one after the other",
            code="arguments",
        )
    return dims


def _prepared(
    values: Sequence[Value], op: Any, at: int, reverse: bool, is_tuple: bool, total: bool = False
) -> tuple[list[Value], Operator | None]:
    """What is scanned along dimension `at`, and by which function. Padding has no part in results
    that count, nor in the totals of a scan by name, nor in those asked for."""
    builder, axis = current_block(), values[0].axes[at]
    arrays = 2 * len(values) if callable(op) else 1
    builder.scanned.append((builder.number, values[0].axes, axis, arrays))
    if not callable(op):
        known = op == "sum" and axis in values[0].zeros and not values[0].padding
        return [values[0] if known else masked(values[0], op, [axis])], None
    by, given = _operator(op, [value.kind for value in values], is_tuple), [*values]
    ahead = axis.first is not None or axis.shift is not None
    if axis.is_ragged and (reverse or total or ahead):
        by = _optional(by)
        inside = Value(values[0].axes, INT32, lambda p: cast(axis.inside(p[at]), INT32), values)
        given.append(inside)
    return given, by


def _emitted(
    values: Sequence[Value],
    op: Any,
    at: int,
    reverse: bool,
    is_tuple: bool = False,
    total: bool = False,
) -> Scanned:
    """The op that scans `values` along dimension `at`."""
    builder, axis = current_block(), values[0].axes[at]
    if axis.size > MOST_SCANNED and builder.is_sized:
        raise CompileError(
            f"T.{word()} of a row that does not fit the registers of a block",
            got=f"a value of shape {shape_text(values[0].axes)}",
            fix=f"loop over pieces of it, with what came before: for j in T.tile({axis.name}): "
            "y = T.cumsum(x, dim=1) + before[:, None]; before += T.sum(x, dim=1)",
            code="shape",
        )
    given, by = _prepared(values, op, at, reverse, is_tuple, total)
    sources, real = [value.hold() for value in given], given[0].real
    hint = builder.hint
    results = [builder.tile(hint, "scan", source.shape, source.dtype) for source in sources]
    position = builder.position()
    builder.emit(_scan_op("by" if by else op, by, sources, results, real, axis, reverse))
    made = builder.trail[-1]
    assert isinstance(made, Scan)
    rest = tuple(each for each in real if each is not axis)
    done = Scanned(made, position, rest, tuple(map(ref, values)))
    if by is None or not axis.is_ragged:
        values[0].scans[op, at] = done
    return done


def _scan_op(
    op: str,
    by: Operator | None,
    sources: list[Buffer],
    results: list[Buffer],
    axes: Sequence[Axis],
    axis: Axis,
    reverse: bool,
    totals: Sequence[Buffer] = (),
) -> Scan:
    """The scan of tiles over `axes` along one of them."""
    where = next(k for k, each in enumerate(axes) if each is axis)
    dim = [k for k, each in enumerate(axes) if each.size != 1].index(where)
    (first, *more), (into, *others) = map(whole, sources), map(whole, results)
    ends = tuple(map(whole, totals))
    return Scan(op, first, into, dim, reverse, by, tuple(more), tuple(others), ends)


# ── piece by piece ───────────────────────────────────────────────────────────────────────────────


class Pieces:
    """A scan along an axis that is too long to be held. Each pass that uses it scans a piece at a
    time, and carries what comes before it."""

    def __init__(
        self, values: list[Value], op: Any, at: int, reverse: bool, is_tuple: bool, total: bool
    ) -> None:
        self.given, self.by = _prepared(values, op, at, reverse, is_tuple, total)
        self.op, self.reverse, self.axis = op, reverse, values[0].axes[at]
        self.real = values[0].real
        self.is_optional = len(self.given) > len(values)
        self.before: list[Buffer] = []  # of the last pass

    def fold(self, a: Sequence[Expr], b: Sequence[Expr]) -> tuple[Expr, ...]:
        return (FOLDS[self.op](a[0], b[0]),) if self.by is None else self.by(*a, *b)

    def piece(self, builder: Builder) -> list[Buffer]:
        """Tiles of the piece that a pass is working on."""
        walk = walk_of(builder, self.axis)
        assert walk is not None
        if id(self) in walk.made:
            return walk.made[id(self)][1]  # type: ignore[no-any-return]
        sources = [_tile_of(builder, value) for value in self.given]
        kinds = [source.dtype for source in sources]
        lines = tuple(each for each in self.real if each is not self.axis)
        shape = tuple(const(each.size) for each in lines) or (const(1),)
        space = Space.FRAGMENT if lines else Space.SHARED
        hint = builder.hint
        results = [builder.tile(hint, "scan", source.shape, source.dtype) for source in sources]
        totals, self.before = (
            [Buffer(builder.fresh(hint, name), shape, kind, space) for kind in kinds]
            for name in ("total", "before")
        )
        for total, before in zip(totals, self.before, strict=True):
            unit = const(0, before.dtype) if self.by else identity(self.op, before.dtype)
            builder.emit(Alloc(total))
            builder.emit_at(walk.since, Alloc(before))
            builder.emit_at(walk.since, Fill(whole(before), unit))
        op = "by" if self.by else self.op
        builder.emit(
            _scan_op(op, self.by, sources, results, self.real, self.axis, self.reverse, totals)
        )
        at = tuple(builder.var("i") for _ in self.real)
        line = tuple(v for v, axis in zip(at, self.real, strict=True) if axis is not self.axis)
        builder.open()
        self._fold_into(builder, results, at, line or (const(0),), results[0].shape)
        first = tuple(builder.var("i") for _ in shape)
        self._fold_into(builder, self.before, first, first, shape, totals)
        body = builder.close()
        if self.by is None or self.is_optional:
            for each in body:
                builder.emit(each)
        else:  # nothing comes before the first piece
            keep = [Copy(whole(t), whole(b)) for t, b in zip(totals, self.before, strict=True)]
            builder.emit(If(compare("==", walk.step, const(0)), tuple(keep), body))
        walk.made[id(self)] = self, results
        return results

    def _fold_into(
        self,
        builder: Builder,
        into: list[Buffer],
        at: tuple[Expr, ...],
        line: tuple[Expr, ...],
        extents: tuple[Expr, ...],
        more: list[Buffer] | None = None,
    ) -> None:
        """into = what comes before, folded with it or with `more`."""
        old = [Load(buffer, line) for buffer in self.before]
        new = [Load(buffer, at) for buffer in more or into]
        lets = [Let(builder.var("v", e.dtype), e) for e in self.fold(old, new)]
        stores = [Store(buffer, at, let.var) for buffer, let in zip(into, lets, strict=True)]
        vars = tuple(v for v in at if isinstance(v, Var))
        builder.emit(Map(vars, extents, (*lets, *stores)))

    def totals(self, builder: Builder) -> list[Buffer]:
        """The folds of whole lines."""
        with walking(builder, [self.axis], self.reverse):
            self.piece(builder)
        return self.before


def _tile_of(builder: Builder, value: Value) -> Buffer:
    """The piece of a value that a pass is working on."""
    vars, places = over(builder, value.axes)
    found = value.element(places)
    if isinstance(found, Load) and found.buffer.is_fragment and found.indices == vars:
        return found.buffer
    return (value if value.region is not None else again(value)).piece(builder)


class LongScan(Value):
    """A result of `Pieces`."""

    def __init__(self, scan: Pieces, number: int) -> None:
        like = scan.given[number]
        super().__init__(like.axes, like.kind, like.at, scan.given)
        self.scan, self.number = scan, number
        self.is_named, self.is_formula, self.is_backward = True, False, scan.reverse

    def element(self, places: Places) -> Expr:
        builder = current_block()
        walk = walk_of(builder, self.scan.axis)
        inner = in_piece(builder, self.axes, places)
        if self._held or inner is None or walk is None or walk.backward is not self.scan.reverse:
            return Load(self.hold(), self._real(places), self.loc)
        return Load(self.piece(builder), self._real(inner), self.loc)

    def piece(self, builder: Builder) -> Buffer:
        return self.scan.piece(builder)[self.number]

    def make(self, builder: Builder, space: Space, masked: tuple[Axis, ...]) -> Buffer:
        buffer = new_tile(builder, self, space)
        builder.emit_at(self.position, Alloc(buffer, loc=self.loc))
        with apart(builder, self.position), walking(builder, self.axes, self.is_backward):
            part = self.piece(builder)
            walks = [walk_of(builder, axis) for axis in self.real]
            starts = tuple(const(0) if walk is None else walk.base for walk in walks)
            builder.emit(Copy(whole(part), Region(buffer, starts, part.shape)))
        return buffer


def _operator(function: Callable[..., Any], kinds: list[DType], is_tuple: bool) -> Operator:
    """A Python function of elements as one of the IR."""
    sides = [
        [Var(f"{side}{k}" if is_tuple else side, kind) for k, kind in enumerate(kinds)]
        for side in "ab"
    ]
    made = function(*(tuple(side) if is_tuple else side[0] for side in sides))
    results = made if is_tuple and isinstance(made, (tuple, list)) else (made,)
    names = {var for side in sides for var in side}
    found = [wrap(e, kind) for e, kind in zip(results, kinds, strict=False)]
    if len(results) != len(kinds) or any(
        k.is_int and e.dtype.is_float for e, k in zip(found, kinds, strict=False)
    ):
        raise CompileError(
            f"the function of T.{word()} gives something else than it takes",
            expected=", ".join(map(str, kinds)),
            got=", ".join(str(e.dtype) for e in found) or repr(made),
            fix="return an element of the same type for each that it takes",
            code="dtype",
        )
    for e in found:
        outer = [str(x) for x in walk(e) if isinstance(x, Load)]
        outer += [var.name for var in variables(e) - names]
        if outer:
            raise CompileError(
                f"the function of T.{word()} uses more than its arguments",
                expected="its arguments, and numbers known when the kernel is traced",
                got=outer[0],
                fix="scan a tuple of values, and make it one of them",
                code="not-constant",
            )
    vars = tuple(var for side in sides for var in side)
    return Operator(vars, tuple(cast(e, k) for e, k in zip(found, kinds, strict=True)))


def _optional(by: Operator) -> Operator:
    """`by` of elements that need not be there: the last one of a tuple says whether the others
    are."""
    count = len(by.result)
    left, right = by.vars[:count], by.vars[count:]
    a, b = Var("a_there", INT32), Var("b_there", INT32)
    found = tuple(
        select(truth(b), select(truth(a), both, y), x)
        for both, x, y in zip(by.result, left, right, strict=True)
    )
    return Operator((*left, a, *right, b), (*found, a | b))
