"""Maps that do nothing but move elements of a tensor to a shared tile, each from wherever an
expression says: rows that a table names, windows of an image, with zeros where a guard says so.
Loads to registers that go by way of such a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import copysign
from typing import TypeGuard

from tilewright.ir.core import *

WIDTHS = (8, 16, 32, 64)  # bits of elements that are moved as they are


@dataclass(frozen=True)
class Gather:
    """`tile[place] = load`, or zero where `cond` does not hold."""

    store: Store
    load: Load
    cond: Expr


def gather_of(op: Map) -> Gather | None:
    """What a map moves that is a single store to the points of a tile, or of one of its slots;
    None where it does anything else."""
    if len(op.body) != 1 or not isinstance(op.body[0], Store):
        return None
    store = op.body[0]
    if not store.buffer.is_shared or store.buffer.dtype.bits not in WIDTHS:
        return None
    inner = len(store.indices) - len(op.vars)
    outer = {v for i in store.indices[: max(inner, 0)] for v in variables(i)}
    if inner < 0 or store.indices[inner:] != op.vars or outer & set(op.vars):
        return None
    cond: Expr = TRUE
    value = store.value
    while isinstance(value, Select):
        holds, kept = value.cond, value.a
        if _is_zero(value.a):
            holds, kept = logical_not(value.cond), value.b
        elif not _is_zero(value.b):
            return None
        cond = logical_and(cond, holds)
        value = kept
    if not isinstance(value, Load) or not value.buffer.is_global:
        return None
    if value.buffer.dtype != store.buffer.dtype:
        return None
    return Gather(store, value, cond)


def filled_by(op: Copy | Map) -> Buffer:
    """The tile of a copy, or of a map that gathers."""
    if isinstance(op, Copy):
        return op.dst.buffer
    found = gather_of(op)
    assert found is not None
    return found.store.buffer


def is_tile_load(op: Op) -> TypeGuard[Copy]:
    """A copy of a tensor to shared memory."""
    spaces = (op.src.buffer.space, op.dst.buffer.space) if isinstance(op, Copy) else ()
    return spaces == (Space.GLOBAL, Space.SHARED)


def loaded_tile(op: Op) -> Buffer | None:
    """The shared tile that a copy of a tensor, or a map that gathers, fills."""
    found = as_gather(op, {}) if isinstance(op, Map) else op if is_tile_load(op) else None
    return None if found is None else filled_by(found)


def as_gather(op: Map, values: Mapping[Var, Expr]) -> Map | None:
    """`op` as a map of a single store that moves elements in the order of its tile, the names in
    it resolved, `values` those around it; None where it does anything else, or not the whole
    tile."""
    if not op.body:
        return None
    *lets, last = op.body
    if not all(isinstance(each, Let) for each in lets):
        return None
    names = let_values(lets, values)
    if isinstance(last, If) and len(last.then) == len(last.orelse) == 1:
        one, other = last.then[0], last.orelse[0]
        if not (isinstance(one, Store) and isinstance(other, Store)):
            return None
        if one.buffer != other.buffer or one.indices != other.indices:
            return None
        value = select(last.cond, one.value, other.value)
        last = Store(one.buffer, one.indices, value, loc=one.loc)
    if not isinstance(last, Store):
        return None
    extents = dict(zip(op.vars, op.extents, strict=True))
    place = tuple(i for i in last.indices if isinstance(i, Var) and i in extents)
    if not len(set(place)) == len(last.indices) == len(op.vars):
        return None
    sizes = tuple(extents[v] for v in place)
    if sizes != last.buffer.shape:
        return None
    store = Store(last.buffer, place, substitute(last.value, names), loc=last.loc)
    found = Map(place, sizes, (store,), loc=op.loc)
    return found if gather_of(found) is not None else None


def reads_inside(load: Load, map_: Map) -> bool:
    """Whether a load is of an element that is there, at every point of a map: outside a tensor are
    zeros, and other buffers are read at the map's own points."""
    sizes = dict(zip(map_.vars, map_.extents, strict=True))
    return load.buffer.is_global or all(
        isinstance(i, Var)
        and isinstance(extent := sizes.get(i), Const)
        and isinstance(size, Const)
        and int(extent) <= int(size)
        for i, size in zip(load.indices, load.buffer.shape, strict=True)
    )


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0 and copysign(1.0, float(e.value)) > 0


def loaded_ahead(body: Body, fresh: Callable[[str], str]) -> Body:
    """The body of a pipelined loop, in which what is loaded to registers comes by way of a shared
    tile: a copy into shared memory runs ahead by as many iterations as the loop has stages.

        copy X[k] -> x        copy X[k] -> x_ahead; copy x_ahead -> x
    """

    def staged(op: Op) -> Body:
        if not isinstance(op, Copy) or not _loads_registers(op):
            return (op,)
        shape = tuple(const(e) for e in op.dst.static_tile)
        name = fresh(f"{op.dst.name}_ahead")
        tile = whole(Buffer(name, shape, op.src.dtype, Space.SHARED))
        return Alloc(tile.buffer), rebuild(op, dst=tile), Copy(tile, op.dst)

    return tuple(each for op in body for each in staged(op))


def _loads_registers(op: Copy) -> bool:
    to_registers = op.src.buffer.is_global and op.dst.buffer.is_fragment and op.dst.is_whole
    return to_registers and op.reduce is None and op.barrier is None and op.atom is None
