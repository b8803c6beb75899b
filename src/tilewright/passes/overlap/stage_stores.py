"""Send what matrix instructions leave to memory by way of shared memory.

An accumulator's rows lie in quarters of warps, eight bytes of 16-bit results each: stored from
there, half of every sector goes in vain. Staged, whole tiles are written by the bulk engine, or by
threads in rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges, stride_of
from tilewright.ir.buffer import Buffer, Region, Space, whole
from tilewright.ir.dtype import DType
from tilewright.ir.expr import (
    TRUE,
    Const,
    Expr,
    Load,
    Var,
    cast,
    const,
    loads,
    substitute,
    variables,
)
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Gemm,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Store,
    walk_ops,
)
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.layout.shared_tiles import bulk_eligible
from tilewright.passes.overlap.stages import PIECE, ROOM, planned_bytes

LEAST = 64 * 64  # elements of a tile that is worth the trip


@dataclass(frozen=True)
class Staging:
    """A store that may go by way of a tile. `part(at, width, tile)`: what stores `width` columns
    from `at` on through `tile`; None where it cannot."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    part: Callable[[int, int, Buffer], Body | None]


def stage_stores(program: Program, target: Target) -> Program:
    """`program` with staging tiles in front of the stores of accumulators, where there is room:
    for the whole tile, or for pieces of its columns that take turns in two, or one."""
    if target.schedule.stage_stores is False:
        return program
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if any(isinstance(op, Role) for op in walk_ops(kernel)):
            return kernel
        ranges = {id(op): r for op, r in scope.walk_ranges(kernel, program.dims)}
        spread = _by_matrix(kernel)
        left = (target.chip.shared - ROOM - planned_bytes(kernel)) // kernel.ping_pong

        def rule(op: Op) -> Op | Body | None:
            nonlocal left
            found: Staging | None = None
            if isinstance(op, Copy):
                found = _of_copy(op, spread, ranges.get(id(op), Ranges()))
            elif isinstance(op, Map):
                found = _of_nest(op, spread, names)
            if found is None or len(found.shape) != 2 or prod(found.shape) < LEAST:
                return None
            rows, columns = found.shape
            for width, count in ((columns, 1), (PIECE, 2), (PIECE, 1)):
                size = rows * width * found.dtype.bits // 8
                if columns % width or size * count > left:
                    continue
                shape = (const(rows), const(width))
                tiles = [
                    Buffer(
                        fresh_name(f"{found.name}_stage", names), shape, found.dtype, Space.SHARED
                    )
                    for _ in range(count)
                ]
                places = range(0, columns, width)
                parts = [found.part(at, width, tiles[k % count]) for k, at in enumerate(places)]
                if all(part is not None for part in parts):
                    left -= size * count
                    body = [each for part in parts for each in part or ()]
                    return (*(Alloc(tile, loc=op.loc) for tile in tiles), *body)
            return None

        return rebuild(kernel, body=map_body(kernel.body, rule))

    return map_kernels(program, one)


def _of_copy(op: Copy, spread: set[str], ranges: Ranges) -> Staging | None:
    """A copy of an accumulator to a tensor, which the bulk engine can make of a tile."""
    if op.atom is not None or op.reduce is not None or op.dst.buffer.space is not Space.GLOBAL:
        return None
    if op.src.buffer.name not in spread or op.dst.dtype.bits != 16:
        return None
    if not all(isinstance(e, Const) for e in (*op.src.extents, *op.dst.extents)):
        return None

    def part(at: int, width: int, tile: Buffer) -> Body | None:
        fill = Copy(_columns(op.src, at, width), whole(tile), loc=op.loc)
        store = rebuild(op, src=whole(tile), dst=_columns(op.dst, at, width))
        return (fill, store) if bulk_eligible(store, ranges) else None

    return Staging(op.src.buffer.name, op.src.static_tile, op.dst.dtype, part)


def _columns(region: Region, at: int, width: int) -> Region:
    """`width` columns of a matrix from `at` on."""
    last = max(d for d, e in enumerate(region.extents) if int(e) != 1)
    starts = tuple(s + at if d == last and at else s for d, s in enumerate(region.starts))
    extents = tuple(const(width) if d == last else e for d, e in enumerate(region.extents))
    return Region(region.buffer, starts, extents, region.cta)


def _of_nest(op: Map, spread: set[str], names: set[str]) -> Staging | None:
    """A nest that stores what it makes of an accumulator along a tensor's rows, with or without a
    condition: computed where the accumulator is, stored in rows."""
    lets: dict[Var, Expr] = {}
    cond: Expr = TRUE
    *before, last = op.body
    for each in before:
        if not isinstance(each, Let):
            return None
        lets[each.var] = substitute(each.value, lets)
    if isinstance(last, If) and not last.orelse and len(last.then) == 1:
        cond, last = last.cond, last.then[0]
    if op.layout is not None or not isinstance(last, Store) or len(op.vars) != 2:
        return None
    store = last
    if store.buffer.space is not Space.GLOBAL or store.buffer.dtype.bits != 16:
        return None
    if not store.buffer.dtype.is_float or not all(isinstance(e, Const) for e in op.extents):
        return None
    value, cond = substitute(store.value, lets), substitute(cond, lets)
    place = tuple(substitute(i, lets) for i in store.indices)
    read = [x.buffer for x in loads(value)]
    if not any(x.buffer.name in spread and x.indices == op.vars for x in loads(value)):
        return None
    if any(x.buffer.space is Space.FRAGMENT for e in (cond, *place) for x in loads(e)):
        return None
    # computed for every element: nothing that only the condition keeps inside a tile
    if store.buffer in read or (cond is not TRUE and not all(_inside(x, op) for x in loads(value))):
        return None
    row, column = op.vars
    if any(column in variables(i) for i in place[:-1]) or stride_of(place[-1], column) != 1:
        return None

    def nest(at: int, width: int, inner: Callable[[tuple[Var, ...], dict[Var, Expr]], Op]) -> Map:
        own = tuple(Var(fresh_name(v.name, names), v.dtype) for v in op.vars)
        swap: dict[Var, Expr] = {row: own[0], column: own[1] + at if at else own[1]}
        return Map(own, (op.extents[0], const(width)), (inner(own, swap),), loc=op.loc)

    def part(at: int, width: int, tile: Buffer) -> Body:
        made = Buffer(fresh_name("made", names), tile.shape, tile.dtype, Space.FRAGMENT)

        def makes(own: tuple[Var, ...], swap: dict[Var, Expr]) -> Op:
            return Store(made, own, cast(substitute(value, swap), made.dtype), loc=store.loc)

        def stores(own: tuple[Var, ...], swap: dict[Var, Expr]) -> Op:
            where = tuple(substitute(i, swap) for i in place)
            found: Op = Store(store.buffer, where, Load(tile, own), loc=store.loc)
            return found if cond is TRUE else If(substitute(cond, swap), (found,), loc=store.loc)

        return (
            Alloc(made, loc=op.loc),
            nest(at, width, makes),
            Copy(whole(made), whole(tile), loc=op.loc),
            nest(at, width, stores),
        )

    shape = tuple(int(e) for e in op.extents)
    source = next(x.buffer.name for x in loads(value) if x.buffer.name in spread)
    return Staging(source, shape, store.buffer.dtype, part)


def _inside(load: Load, nest: Map) -> bool:
    """Whether a load is of an element that is there, at every point of the nest."""
    if load.buffer.space is Space.GLOBAL:
        return True  # zeros are outside
    sizes = dict(zip(nest.vars, nest.extents, strict=True))
    return all(
        isinstance(i, Var)
        and isinstance(extent := sizes.get(i), Const)
        and isinstance(size, Const)
        and int(extent) <= int(size)
        for i, size in zip(load.indices, load.buffer.shape, strict=True)
    )


def _by_matrix(kernel: Kernel) -> set[str]:
    """Fragments that matrix instructions prescribe, and those that nests make of them element by
    element."""
    found = {
        op.c.buffer.name
        for op in walk_ops(kernel)
        if isinstance(op, Gemm) and op.atom in ("mma", "wgmma")
    }
    nests = [op for op in walk_ops(kernel) if isinstance(op, Map)]
    while True:
        more = {
            each.buffer.name
            for nest in nests
            for each in nest.body
            if isinstance(each, Store)
            and each.buffer.space is Space.FRAGMENT
            and each.indices == nest.vars
            and any(x.buffer.name in found and x.indices == nest.vars for x in loads(each.value))
        }
        if more <= found:
            return found
        found |= more
