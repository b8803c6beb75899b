"""Loops over tiles: the grid of a kernel, and sequential loops inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.expr import ceildiv
from tilewright.lang.axes import Axis
from tilewright.lang.builder import CHOSEN, Builder
from tilewright.lang.launch import Kernel as open_kernel
from tilewright.lang.loops import Loop
from tilewright.lang.types import integer, shape_tuple, static_int
from tilewright.lang.values import TileIndex
from tilewright.support.errors import at


@dataclass(frozen=True)
class Each:
    """An axis that is counted by ones."""

    count: Any


def each(n: Any) -> Each:
    """An axis of `T.tile` that is taken one index at a time, a scalar.

    >>> @tw.jit
    ... def last(X):
    ...     M, N = T.const("M, N")
    ...     X: T.Tensor((M, N), "float32")
    ...     Y = T.empty((M,), "float32")
    ...     for m in T.tile(T.each(M)):
    ...         Y[m] = X[m, N - 1]
    ...     return Y
    >>> last(np.arange(6, dtype=np.float32).reshape(2, 3)).tolist()
    [2.0, 5.0]
    """
    return Each(n)


@dataclass(frozen=True)
class _Range:
    """An axis as it was written: from `low` to `high` by `size`, which is 0 for `T.each`. `high` is
    a multiple of `align`, or `limit` where that is less."""

    low: Expr
    high: Expr
    size: int
    align: int
    limit: Expr | None

    @property
    def trips(self) -> Expr:
        length = self.high - self.low
        return length if not self.size else ceildiv(length, const(self.size))

    def index(self, name: str, count: Expr) -> Any:
        """The tile, or the scalar, of trip number `count`."""
        if not self.size:
            return self.low + count
        start = self.low + count * self.size
        end = start + self.size
        zero = isinstance(self.low, Const) and self.low.value == 0
        limit = self.limit if zero and self.align % self.size == 0 else self.high
        if zero and isinstance(limit, Const) and limit.value % self.size == 0:
            limit = None
        axis = Axis(name, self.size, object(), start, limit)
        stop = end if limit is None else binary("min", end, limit)
        return TileIndex(axis, start, stop, self.size if zero else 1)


def tile(*axes: Any, size: Any = None) -> Loop:
    """A loop over tiles: outermost the grid of a kernel, inside it a sequential loop whose loads
    may run ahead.

    An axis is `n`, `(low, high)` or `T.each(n)`; `T.tile()` is one block. How many elements a tile
    has is left open, or pinned by `size`, a number or one for each axis. The last tile is shorter:
    no word sees what lies behind its end. `reversed(T.tile(n))` begins with the last tile.

    >>> @tw.jit
    ... def double(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         Y[n] = X[n] * 2
    ...     return Y
    >>> double(np.arange(4, dtype=np.float32)).tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    pinned = (None,) * len(axes) if size is None else shape_tuple(size)
    if len(pinned) == 1:
        pinned = pinned * len(axes)
    if len(pinned) != len(axes):
        raise CompileError(
            "size of T.tile does not fit its axes",
            expected=f"a number, or {len(axes)} of them",
            got=str(len(pinned)),
            fix="give one size for each axis",
            code="arguments",
        )

    def run(
        builder: Builder, names: tuple[str, ...], loc: Loc | None, backward: bool = False
    ) -> Iterator[Any]:
        if not axes:
            names = ()
        if len(names) == 1 and len(axes) > 1:
            names = tuple(f"{names[0]}_{k}" for k in range(len(axes)))
        if len(names) != len(axes):
            raise CompileError(
                "the loop's names do not fit its axes",
                loc=loc,
                expected=f"{len(axes)} name{'s' * (len(axes) != 1)}",
                got=", ".join(names),
                fix="give one axis per name",
                code="shape",
            )
        body = _grid if builder.kernel is None else partial(_sequential, backward)
        yield from body(builder, names, axes, pinned, loc)

    loop = Loop(run, "tiles")
    loop.backward = Loop(partial(run, backward=True), "tiles")
    return loop


def _range(builder: Builder, name: str, axis: Any, size: Any, loc: Loc | None) -> _Range:
    low, high = axis if isinstance(axis, tuple) else (0, axis)
    if isinstance(axis, Each):
        high = axis.count
    if isinstance(high, TileIndex) or isinstance(low, TileIndex):
        raise CompileError(
            "a bound of T.tile is a tile index",
            loc=loc,
            fix="write its start or its stop: T.tile(i.stop)",
            code="arguments",
        )
    with at(loc):
        first, last = (cast(integer(end, "a bound of T.tile"), INT32) for end in (low, high))
    if builder.kernel is not None:
        first, last = builder.snapshot(first), builder.snapshot(last)
    if isinstance(axis, Each):
        return _Range(first, last, 0, 1, last)
    align, limit, _ = builder.stops.get(id(last), (1, last, last))
    return _Range(first, last, _size(builder, name, size), align, limit)


def _size(builder: Builder, name: str, pinned: Any) -> int:
    if pinned is not None:
        return static_int(pinned, "size of T.tile", 1)
    chosen = dict(CHOSEN.get().tiles)
    if name in chosen:
        return int(chosen[name])
    builder.open_tiles.setdefault(name, None)
    return builder.tiles.get(name, PROBED)


PROBED = 16  # the size of a tile while only the form of the text matters


def _made(builder: Builder, name: str, span: _Range, count: Expr) -> Any:
    found = span.index(name, count)
    if isinstance(found, TileIndex):
        builder.stops[id(found.stop)] = (found.align, found.axis.limit, found.stop)
        builder.axes[found.axis.key] = name
    return found


def _grid(
    builder: Builder, names: tuple[str, ...], axes: Any, pinned: Any, loc: Loc | None
) -> Iterator[Any]:
    spans = [
        _range(builder, name, axis, size, loc)
        for name, axis, size in zip(names, axes, pinned, strict=True)
    ]
    counts = [span.trips for span in spans]
    # the last axis is the fastest; a grid has three
    folded = counts if len(counts) <= 3 else [_product(counts[:-2]), *counts[-2:]]
    threads = CHOSEN.get().threads
    scope = open_kernel(*reversed(folded), threads=128 if threads == "auto" else threads)
    scope.names, scope.loc = tuple(reversed(names))[: len(folded)], loc
    scope.unpacked = True
    with scope:
        assert builder.kernel is not None
        blocks: list[Expr] = [*reversed(builder.kernel.blocks)] if folded else []
        if len(counts) > 3:
            first, rest = blocks[0], blocks[1:]
            split: list[Expr] = []
            for count in reversed(counts[1:-2]):
                split.insert(0, first % count)
                first = first // count
            blocks = [first, *split, *rest]
        indices = [
            _made(builder, name, span, block)
            for name, span, block in zip(names, spans, blocks, strict=True)
        ]
        depth = len(builder.bodies)
        yield indices[0] if len(indices) == 1 else tuple(indices)
        builder.close_skipped(depth, loc)


def _product(counts: list[Expr]) -> Expr:
    found = counts[0]
    for count in counts[1:]:
        found = found * count
    return found


def _sequential(
    backward: bool,
    builder: Builder,
    names: tuple[str, ...],
    axes: Any,
    pinned: Any,
    loc: Loc | None,
) -> Iterator[Any]:
    builder.require_block("tile")
    found, opened = [], []
    for k, (name, axis, size) in enumerate(zip(names, axes, pinned, strict=True)):
        span = _range(builder, name, axis, size, loc)
        var = builder.var(f"{name}_trip", INT32)
        trips = builder.snapshot(span.trips)
        builder.open(loop=True).counters = [(var, const(0), trips, const(1))]
        opened.append((var, trips, len(builder.bodies), k == len(axes) - 1))
        found.append(_made(builder, name, span, trips - 1 - var if backward else var))
    yield found[0] if len(found) == 1 else tuple(found)
    for var, trips, depth, inner in reversed(opened):
        builder.close_skipped(depth, loc)
        body = builder.close()
        kind, stages = ("pipelined", -1) if inner else ("serial", 0)
        builder.emit(For(var, const(0), trips, body, kind=kind, stages=stages, loc=loc))


# ── sizes that are left open ─────────────────────────────────────────────────────────────────────

MATRIX = 64  # along each side of a matrix product
ELEMENTS = 4096  # of the largest value that a block keeps
LONGEST = 1024


def default_sizes(builder: Builder) -> dict[str, int]:
    """A size for each tile that was left open, legal for every shape: 64 along the sides of matrix
    products; otherwise as many as keep the values of a block within 4096 elements."""
    multiplied = {builder.axes[key] for key in builder.multiplied if key in builder.axes}
    chosen = {name: MATRIX for name in builder.open_tiles if name in multiplied}
    for name in builder.open_tiles:
        if name in chosen:
            continue
        size = LONGEST
        for axes in builder.footprints:
            mine = {builder.axes.get(a.key) for a in axes} & builder.open_tiles.keys() - multiplied
            if name not in mine:
                continue
            fixed = prod(
                chosen.get(builder.axes.get(a.key, ""), a.size)
                for a in axes
                if builder.axes.get(a.key) not in mine
            )
            room = max(1, ELEMENTS // fixed) ** (1 / len(mine))
            size = min(size, 1 << max(0, int(room).bit_length() - 1))
        chosen[name] = size
    return chosen
