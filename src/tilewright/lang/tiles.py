"""Loops over tiles: the grid of a kernel, and sequential loops inside it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from tilewright.ir.analysis.bounds import multiple_of
from tilewright.ir.gather import loaded_ahead
from tilewright.lang.axes import Axis, Split
from tilewright.lang.builder import CHOSEN
from tilewright.lang.core import *
from tilewright.lang.launch import Kernel as open_kernel
from tilewright.lang.loops import Loop, check_names
from tilewright.lang.shares import Share, blocks_of_steps, drop_rest
from tilewright.lang.values import TileIndex


@dataclass(frozen=True)
class Each:
    """An axis that is counted by ones."""

    count: Any

    def __iter__(self) -> Iterator[Any]:
        raise CompileError(
            "T.each is an axis of T.tile",
            fix="write `for m in T.tile(T.each(M))`",
            code="arguments",
        )


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
    """An axis as it was written: from `low` to `high` by `size`, which is 0 for `T.each`; whether
    the text says that size; `Split.align` of rows that it goes along; whether tiles come after the
    last one."""

    low: Expr
    high: Expr
    size: int
    is_pinned: bool = False
    align: int = 1
    is_padded: bool = False

    @property
    def trips(self) -> Expr:
        length = self.high - self.low + (self.align - 1)
        return length if not self.size else ceildiv(length, const(self.size))

    def index(self, name: str, count: Expr) -> Any:
        """The tile, or the scalar, of trip number `count`."""
        if not self.size:
            return self.low + count
        start = self.low + count * self.size
        end, limit = start + self.size, self.limit
        axis = Axis(name, self.size, object(), start, limit)
        return TileIndex(axis, start, end if limit is None else binary("min", end, limit))

    def index_aligned(self, name: str, count: Expr, shift: Var) -> Any:
        """The tile of trip number `count` where the first one begins before the row."""
        start, split = count * self.size - shift, Split(self.size, align=self.align)
        axis = Axis(name, self.size, object(), start, self.high, self.low, split, shift=shift)
        return TileIndex(axis, start, binary("min", start + self.size, self.high))

    def index_from_end(self, name: str, count: Expr) -> Any:
        """The tile of trip number `count` where the first one is cut, not the last."""
        start = self.high - (self.trips - count) * self.size
        axis = Axis(name, self.size, object(), start, first=self.low)
        return TileIndex(axis, start, start + self.size)

    def ends_inside(self, sizes: Container[Var]) -> bool:
        """Whether tiles are better laid from the end: a tensor's elements may come after it, and
        none before the range, where copies read zeros. What is made of `sizes` ends a tensor."""
        if not self.size or self.is_pinned or not is_const(self.low, 0) or self.limit is None:
            return False
        return bool(loads(self.limit)) or any(v not in sizes for v in variables(self.limit))

    @property
    def limit(self) -> Expr | None:
        """What may cut the last tile. An end that is a whole number of tiles away does not."""
        if self.is_padded or multiple_of(self.low) % self.size:
            return self.high
        cuts = {end for end in _least_of(self.high) if multiple_of(end) % self.size}
        return None if not cuts else cuts.pop() if len(cuts) == 1 else self.high


def _least_of(expr: Expr) -> list[Expr]:
    """The expressions of which one is the minimum."""
    match expr:
        case Bin("min", a, b):
            return [*_least_of(a), *_least_of(b)]
        case Bin("+" | "-" as op, a, Const() as by):
            return [binary(op, each, by) for each in _least_of(a)]
    return [expr]


def tile(*axes: Any, size: Any = None) -> Loop:
    """A loop over tiles: outermost the grid of a kernel, inside it a sequential loop whose loads
    may run ahead.

    An axis is `n`, `(low, high)`, empty where low >= high, or `T.each(n)`; `T.tile()` is one block.
    How many elements a tile has is left open, or pinned by `size`, a number or one for each axis.
    The last tile is shorter, or the first one where nothing is pinned: no word sees what lies
    outside the range. Several axes of known lengths are one loop. `reversed(T.tile(n))` begins with
    the last tile.

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
        check_names(names, len(axes), "axis", loc)
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
        first, last = (_bound(end) for end in (low, high))
    if builder.kernel is None and (loads(first) or loads(last)):
        raise CompileError(
            "a bound of a grid is an element of a tensor, which is not known at launch",
            loc=loc,
            expected="sizes, and scalars of the call",
            fix="go over all that there may be, and cut it inside: for m in T.tile(most): "
            "m = m.within(first, last)",
            code="not-constant",
        )
    if builder.kernel is not None:
        first, last = builder.snapshot(first), builder.snapshot(last)
    if isinstance(axis, Each):
        return _Range(first, last, 0)
    return _Range(first, last, _size(builder, name, size), size is not None)


def _bound(end: Any) -> Expr:
    found = integer(end, "a bound of T.tile")
    if isinstance(found, Const) and abs(found.value) > LONGEST:
        raise CompileError(
            f"a bound of T.tile is {found.value:,}",
            expected=f"at most {LONGEST:,}: indices of tiles are int32",
            fix="give the tensor one more dimension: x.reshape(-1, 1024)",
            code="too-large",
        )
    return cast(found, INT32)


def _aligned(builder: Builder, name: str, span: _Range) -> _Range:
    align = builder.sizes.aligns.get((builder.number, name), 1)
    return replace(span, align=align) if span.size and is_const(span.low, 0) else span


def _size(builder: Builder, name: str, pinned: Any) -> int:
    if pinned is not None:
        return static_int(pinned, "size of T.tile", 1)
    chosen = dict(CHOSEN.get().schedule.tiles)
    if name in chosen:
        if chosen[name] > LARGEST:
            raise CompileError(
                f"the schedule has {chosen[name]} elements in a tile along {name!r}",
                expected=f"at most {LARGEST}",
                fix="choose a smaller size, or leave it open",
                code="too-large",
            )
        return int(chosen[name])
    at = builder.number, name
    builder.open_tiles.setdefault(at)
    return builder.sizes.tiles.get(at, PROBED)


LARGEST = 1 << 20  # elements along an axis; no block holds them
PROBED = 16  # the size of a tile while only the form of the text matters
MOST_BLOCKS = 65535  # along an axis of a grid but the last


def _made(builder: Builder, name: str, span: _Range, count: Expr, from_end: bool = False) -> Any:
    if span.align > 1:
        key = builder.number, name
        shift = builder.shift_of.setdefault(key, builder.var("shift"))
        found = span.index_aligned(name, count, shift)
    else:
        found = (span.index_from_end if from_end else span.index)(name, count)
    if isinstance(found, TileIndex):
        builder.axes[found.axis.key] = builder.number, name
        builder.pinned |= {found.axis.key} if span.is_pinned else set()
        length = span.high - span.low
        if isinstance(length, Const):
            builder.lengths[found.axis.key] = max(1, int(length.value))  # it may be empty
        else:
            builder.spans[found.axis.key] = length
    return found


def _grid(
    builder: Builder, names: tuple[str, ...], axes: Any, pinned: Any, loc: Loc | None
) -> Iterator[Any]:
    spans = [
        _range(builder, name, axis, size, loc)
        for name, axis, size in zip(names, axes, pinned, strict=True)
    ]
    if _is_known(builder):
        return
    trips = [span.trips for span in spans]
    is_empty = any(isinstance(n, Const) and n.value < 1 for n in trips)
    counts: list[Expr] = [const(1) for _ in trips] if is_empty else trips  # a launch has a block
    # the last axis is the fastest; a grid has three, and only that one may be long
    lead = max(len(counts) - 2, 1)
    if any(isinstance(n, Const) and n.value > MOST_BLOCKS for n in _folded(counts, lead)[:-1]):
        lead = len(counts)
    folded = _folded(counts, lead)
    number = builder.number
    builder.tiled.add(number)
    splits = [split for (kernel, _), split in builder.sizes.splits.items() if kernel == number]
    shares = [n for (kernel, _), n in builder.sizes.shares.items() if kernel == number]
    cluster = max([*(split.blocks for split in splits), *shares], default=1)
    grid = [*reversed(folded)] or [const(1)] * (cluster > 1)
    if cluster > 1:
        grid[0] = grid[0] * cluster
    parts = blocks_of_steps(builder, number)
    if parts > 1 and len(grid) > 2:
        raise CompileError(
            "a grid of three axes has none for parts of a loop", fix="leave the choice open"
        )
    grid += [const(parts)] * (parts > 1)
    chosen = CHOSEN.get().schedule.threads
    threads = builder.sizes.threads.get(number, 128) if chosen == "auto" else chosen
    scope = open_kernel(*grid, threads=threads, cluster_dims=cluster if cluster > 1 else None)
    scope.names = (*tuple(reversed(names))[: len(grid)], *("part",) * (parts > 1))
    scope.loc = loc
    scope.unpacked = bool(folded)
    with scope:
        assert builder.kernel is not None
        blocks: list[Expr] = [*reversed(builder.kernel.blocks)] if folded else []
        blocks = blocks[parts > 1 :]
        if cluster > 1 and folded:
            blocks[-1] = blocks[-1] // cluster
        if lead > 1:
            blocks = [*_parts(blocks[0], counts[:lead]), *blocks[1:]]
        indices = [
            _made(builder, name, span, block)
            for name, span, block in zip(names, spans, blocks, strict=True)
        ]
        if number in builder.sizes.blocks:
            builder.emit(Hint("min_blocks", detail=(builder.sizes.blocks[number],)))
        if builder.sizes.clusters.get(number, 1) > 1:
            builder.emit(Hint("cluster", detail=(builder.sizes.clusters[number],)))
        depth = len(builder.bodies)
        if is_empty:
            builder.skip_unless(FALSE)
        yield indices[0] if len(indices) == 1 else tuple(indices)
        drop_rest(builder, depth, loc)
        builder.close_skipped(depth, loc)
        along = [axis.shift for (kernel, _), axis in builder.extents.items() if kernel == number]
        along += [shift for (kernel, _), shift in builder.shift_of.items() if kernel == number]
        for shift in along:
            if shift is not None and shift not in builder.shifts:  # no tensor is read by rows
                begin = builder.outermost()._replace(at=0, order=0)
                builder.emit_at(begin, Let(shift, const(0)))


def _is_known(builder: Builder) -> bool:
    """Whether the next kernel is not the one that is asked for: it is that of an earlier trace."""
    asked, known = builder.only or (0, [])
    if builder.number == asked or builder.number >= len(known):
        return False
    kernel = known[builder.number]
    builder.names |= defined_names(kernel)
    builder.kernels.append(kernel)
    return True


def _folded(counts: list[Expr], lead: int) -> list[Expr]:
    """The lengths of a grid whose first axis counts the tiles of `lead` axes."""
    return [_product(counts[:lead]), *counts[lead:]] if counts else []


def _product(counts: list[Expr]) -> Expr:
    known = [int(n.value) for n in counts if isinstance(n, Const)]
    if len(known) == len(counts):
        return wrap(prod(known))  # of any size: T.Kernel says what is too long
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
    if not axes:
        raise CompileError(
            "T.tile() is a grid of one block, and this is inside a kernel",
            loc=loc,
            fix="leave the loop out",
            code="arguments",
        )
    spans = [
        _aligned(builder, name, _range(builder, name, axis, size, loc))
        for name, axis, size in zip(names, axes, pinned, strict=True)
    ]
    trips = [builder.snapshot(span.trips) for span in spans]
    # several axes of known lengths are one loop: what runs ahead does so across their ends
    known = len(spans) > 1 and all(isinstance(n, Const) and n.value > 0 for n in trips)
    lengths, label = ([_product(trips)], "_".join(names)) if known else (trips, "")
    share, since = Share.of(builder, names, lengths), builder.outermost()
    spans = [replace(span, is_padded=share.is_padded) for span in spans]
    ahead = builder.sizes.stages.get((builder.number, names[-1]), -1)
    opened: list[tuple[Var, Expr, int]] = []
    for name, length in zip((label,) if known else names, lengths, strict=True):
        var = builder.var(f"{name}_trip", INT32)
        length = share.length(length)
        builder.open(loop=True).counters = [(var, const(0), length, const(1))]
        opened.append((var, length, len(builder.bodies)))
    vars = [var for var, _, _ in opened]
    counts = [share.count(var) for var in vars]
    if known:
        (count,) = counts
        counts = _parts(count, trips)
        if share.is_padded:  # steps past the end are tiles past the end of the last axis
            inside = compare("<", count, lengths[0])
            counts = [select(inside, each, const(0, each.dtype)) for each in counts[:-1]] + [
                select(inside, counts[-1], trips[-1])
            ]
    if backward:
        counts = [length - 1 - count for count, length in zip(counts, trips, strict=True)]
    found = [
        _made(builder, name, span, count, span.ends_inside(builder.dims))
        for name, span, count in zip(names, spans, counts, strict=True)
    ]
    yield found[0] if len(found) == 1 else tuple(found)
    for k, (var, length, depth) in reversed([*enumerate(opened)]):
        builder.close_skipped(depth, loc)
        body = builder.close()
        kind, stages = ("pipelined", ahead) if k == len(opened) - 1 else ("serial", 0)
        if stages > 1:
            body = loaded_ahead(body, builder.fresh)
        loop = For(var, const(0), length, body, kind=kind, stages=stages, loc=loc)
        share.emit(builder, loop, since)


def _parts(count: Expr, lengths: list[Expr]) -> list[Expr]:
    """The numbers of which `count` is made, the last of them the fastest."""
    found: list[Expr] = []
    for length in reversed(lengths[1:]):
        found.insert(0, count % length)
        count = count // length
    return [count, *found]
