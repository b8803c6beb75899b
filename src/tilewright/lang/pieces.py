"""Long dimensions: what a block does piece by piece, and what the blocks of a cluster exchange.

A pass is a loop over the pieces of a dimension that is too long to be worked on at once. Values
under a name become a tile for each piece; what several passes load is kept in shared memory, where
there is room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.gather import loaded_ahead
from tilewright.lang.axes import ONE, Axis
from tilewright.lang.builder import Builder, Position


@dataclass(eq=False)
class Walk:
    """A loop over the pieces of an axis, while its body is built."""

    axis: Axis
    step: Var
    since: Position  # before the loop
    backward: bool = False  # from the last piece to the first
    inner: dict[int, tuple[Expr, Var]] = field(default_factory=dict)  # places in the piece, by id
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # tiles of values, by id

    @property
    def base(self) -> Expr:
        steps = self.axis.size // self.width
        return (steps - 1 - self.step if self.backward else self.step) * self.width

    @property
    def width(self) -> int:
        assert self.axis.split is not None
        return self.axis.split.step

    def place(self, var: Var) -> Expr:
        """The place on the axis of a place in the piece."""
        place = self.base + var
        self.inner[id(place)] = place, var
        return place


def walk_of(builder: Builder, axis: Axis) -> Walk | None:
    return next((walk for walk in builder.walks if walk.axis is axis), None)


@contextmanager
def walking(builder: Builder, axes: Sequence[Axis], backward: bool = False) -> Iterator[None]:
    """What is emitted inside is for a piece of each long axis at a time."""
    opened: list[Walk] = []
    for axis in dict.fromkeys(axes):
        if not axis.is_long or walk_of(builder, axis) is not None:
            continue
        if not builder.walks:
            builder.passes += 1
        walk = Walk(axis, builder.var(f"{axis.name}_step"), builder.position(), backward)
        builder.open(loop=True).counters = [(walk.step, const(0), _steps(walk), const(1))]
        builder.walks.append(walk)
        opened.append(walk)
    yield
    for walk in reversed(opened):
        builder.walks.pop()
        body = builder.close()
        stages = builder.sizes.stages.get((builder.number, walk.axis.name), 0)
        kind, body = (
            ("pipelined", loaded_ahead(body, builder.fresh)) if stages else ("serial", body)
        )
        builder.emit(For(walk.step, const(0), _steps(walk), body, kind=kind, stages=stages))


def _steps(walk: Walk) -> Expr:
    return const(walk.axis.size // walk.width)


@contextmanager
def apart(builder: Builder, position: Position) -> Iterator[None]:
    """What is emitted inside stands at an earlier position, outside all passes."""
    walks, builder.walks = builder.walks, []
    builder.open()
    yield
    for op in builder.close():
        builder.emit_at(position, op)
    builder.walks = walks


def over(builder: Builder, axes: Sequence[Axis]) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """A variable for each axis that is no 1, and the place on each axis."""
    vars: list[Var] = []
    places: list[Expr] = []
    for axis in axes:
        if axis is ONE:
            places.append(const(0))
            continue
        var = builder.var(f"{axis.name}_" if axis.name.isidentifier() else "i", INT32, "i")
        walk = walk_of(builder, axis)
        vars.append(var)
        places.append(var if walk is None else walk.place(var))
    return tuple(vars), tuple(places)


def spans(builder: Builder, axes: Sequence[Axis]) -> tuple[Expr, ...]:
    """The extents of what `over` counts."""
    walks = [(axis, walk_of(builder, axis)) for axis in axes if axis is not ONE]
    return tuple(const(axis.size if walk is None else walk.width) for axis, walk in walks)


def in_piece(builder: Builder, axes: Sequence[Axis], places: Sequence[Expr]) -> Any:
    """The places in the pieces that are being worked on; None where they are elsewhere."""
    found: list[Expr] = []
    for axis, place in zip(axes, places, strict=True):
        if axis.is_long:
            walk = walk_of(builder, axis)
            known = walk.inner.get(id(place)) if walk is not None else None
            if known is None:
                return None
            place = known[1]
        found.append(place)
    return tuple(found)


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────


def blocks_of(axes: Sequence[Axis]) -> int:
    """The blocks of a cluster that have a part of these axes each."""
    return max((axis.split.blocks for axis in axes if axis.split is not None), default=1)


@contextmanager
def once(builder: Builder, axes: Sequence[Axis]) -> Iterator[None]:
    """What is emitted inside has an effect: of the blocks of a cluster that all have these axes,
    one does it."""
    rank = builder.require_kernel().rank
    if rank is None or blocks_of(axes) > 1:
        yield
        return
    builder.open()
    yield
    builder.emit(If(compare("==", rank, const(0)), builder.close()))


def exchanged(
    builder: Builder,
    mine: Buffer,
    kind: DType,
    blocks: int,
    fold: Any,
    since: Position,
) -> None:
    """mine = the fold of what each block of the cluster has there, told as `kind`. `since`: where
    the work on it began, before which the blocks meet so that all are there to be told."""
    kernel = builder.require_kernel()
    assert kernel.rank is not None
    slots = _slots(builder, mine, (const(blocks), *mine.shape), kind, since)
    told = mine
    if mine.dtype != kind or not mine.is_fragment:
        told = builder.tile(None, mine.name, mine.shape, kind)
        builder.emit(Copy(whole(mine), whole(told)))
    zeros, ones = tuple(const(0) for _ in mine.shape), (const(1), *mine.shape)
    for peer in range(blocks):
        to = Region(slots, (kernel.rank, *zeros), ones, cta=const(peer))
        builder.emit(Copy(whole(told), to))
    builder.emit(Sync("cluster"))
    vars = tuple(builder.var("i") for _ in mine.shape)
    total: Expr = Load(slots, (const(0), *vars))
    for peer in range(1, blocks):
        total = fold(total, Load(slots, (const(peer), *vars)))
    builder.emit(Map(vars, mine.shape, (Store(mine, vars, cast(total, mine.dtype)),)))
    if any(body.loop for body in builder.bodies):
        builder.emit(Sync("cluster"))  # before the next iteration writes the slots


def gathered(builder: Builder, mine: Buffer, blocks: int, since: Position) -> None:
    """mine = the sum of what each block has there, in the first one: of two neighbours one tells
    the other, then of those who were told, and so on. It is still the value that it was meant to
    be."""
    rank = builder.require_kernel().rank
    assert rank is not None
    step = 1
    while step < blocks:
        vars = tuple(builder.var("i") for _ in mine.shape)
        slot = _slots(builder, mine, mine.shape, mine.dtype, since)
        place = binary("%", rank, const(2 * step))
        zeros = tuple(const(0) for _ in mine.shape)
        to = Region(slot, zeros, mine.shape, cta=rank - step)
        builder.emit(If(compare("==", place, const(step)), (Copy(whole(mine), to),)))
        builder.emit(Sync("cluster"))
        both = Store(mine, vars, Load(mine, vars) + Load(slot, vars))
        add = Map(vars, mine.shape, (both,))
        builder.emit(If(compare("==", place, const(0)), (add,)), seen=False)
        step *= 2


def _slots(
    builder: Builder, mine: Buffer, shape: tuple[Expr, ...], kind: DType, since: Position
) -> Buffer:
    """A shared tile that peers write, once all blocks are there."""
    slots = Buffer(builder.fresh(f"{mine.name}_slots"), shape, kind, Space.SHARED)
    builder.emit_at(since._replace(at=0), Alloc(slots))
    kernel = builder.require_kernel()
    if kernel not in builder.met:
        builder.met.append(kernel)
        builder.emit_at(since, Sync("cluster"))
    return slots
